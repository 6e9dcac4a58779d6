//! What all of these tests share: a device with its engine, buffers in its memory that start as known
//! nonsense in every byte, what must be in them in the end, and two connected processes.

use gapless_btl::{Btl, Event, PeerId, Queue, ReserveError, Slot};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_dtype::naive::Typemap;
use gapless_dtype_cuda::GpuEngine;
use gapless_engine::Typed;
use gapless_layouts::{Case, Side, cases};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDevice, CudaDriver};
use gapless_mem_opencl::OpenClDevice;
use gapless_tests::actor::{self, Actor, hex, listen, say, unhex, until};
use gapless_tests::byte_at;
use std::sync::Arc;

/// A device and its engine.
pub(crate) struct Lab {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) engine: GpuEngine,
    /// The same device, if it is a CUDA one.
    pub(crate) cuda: Option<Arc<CudaDevice>>,
    /// Whether slots can be registered with it.
    pub(crate) registers: bool,
}

impl Lab {
    /// An OpenCL device, or why there is none.
    pub(crate) fn opencl() -> Result<Lab, String> {
        let device = OpenClDevice::open(0).map_err(|error| error.to_string())?;
        let engine = GpuEngine::opencl(Arc::new(device)).map_err(|error| error.to_string())?;
        Ok(Lab { device: engine.device(), engine, cuda: None, registers: false })
    }

    /// A CUDA device: the first in the process that runs the test, the second, if there is one, in
    /// the other.
    pub(crate) fn cuda() -> Result<Lab, String> {
        let driver = CudaDriver::load().map_err(|error| error.to_string())?;
        let ordinal = if actor::part().is_some() { driver.devices().min(2) - 1 } else { 0 };
        let device = Arc::new(driver.device(ordinal).map_err(|error| error.to_string())?);
        let engine = GpuEngine::cuda(Arc::clone(&device)).map_err(|error| error.to_string())?;
        Ok(Lab { device: engine.device(), engine, cuda: Some(device), registers: true })
    }

    /// Memory of the device with these bytes.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Memory {
        let region = self.device.allocate(bytes.len() as u64).expect("device memory");
        // SAFETY: both memories live over the wait below, and nothing else touches them.
        let copied = unsafe { self.device.copy(region, Region::of(bytes), &[]) };
        copied.expect("a copy").wait().expect("a copy");
        Memory { region, device: Arc::clone(&self.device) }
    }

    /// The device memory of one side of a case, every byte of it set from a seed.
    pub(crate) fn buffer(&self, side: &Side, seed: u64) -> Memory {
        self.upload(&image(side, seed))
    }

    /// A buffer's bytes.
    pub(crate) fn download(&self, memory: &Memory) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(memory.region.len()).expect("test sizes")];
        // SAFETY: as in `upload`.
        let copied = unsafe { self.device.copy(Region::of_mut(&mut bytes), memory.region, &[]) };
        copied.expect("a copy").wait().expect("a copy");
        bytes
    }
}

/// Device memory, freed when dropped: by then nothing may use it.
pub(crate) struct Memory {
    pub(crate) region: Region,
    device: Arc<dyn Device>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `upload`; the tests have waited for all work on it, and have had it
        // given back by peers.
        unsafe { self.device.free(self.region) }.expect("memory of this device");
    }
}

/// The bytes that a buffer starts with.
fn image(side: &Side, seed: u64) -> Vec<u8> {
    (0..side.buffer_bytes).map(|at| byte_at(seed, at)).collect()
}

/// Where each packed byte of a side lies in its buffer, from the typemap alone.
fn places(side: &Side) -> impl Iterator<Item = usize> {
    let typemap = Typemap::of(&side.datatype).expect("small enough to write out");
    let displacements = typemap.displacements(side.count).expect("small enough to write out");
    let origin = side.origin;
    displacements.into_iter().map(move |displacement| {
        let at = origin.checked_add_signed(displacement).expect("inside the buffer");
        usize::try_from(at).expect("inside the buffer")
    })
}

/// The seeds of the sender's and the receiver's buffer of a case.
pub(crate) fn seeds(index: usize) -> (u64, u64) {
    (index as u64 * 2 + 1, index as u64 * 2 + 2)
}

/// What must be in the receiver's buffer in the end: its own bytes, but for those that were sent.
pub(crate) fn expected(index: usize, case: &Case) -> Vec<u8> {
    let (sent, own) = seeds(index);
    let sent = image(&case.send, sent);
    let mut bytes = image(&case.recv, own);
    for (from, to) in places(&case.send).zip(places(&case.recv)) {
        bytes[to] = sent[from];
    }
    bytes
}

/// Compares without printing megabytes.
pub(crate) fn assert_bytes(got: &[u8], right: &[u8], what: &str) {
    let wrong = got.iter().zip(right).position(|(got, right)| got != right);
    assert_eq!((wrong, got.len()), (None, right.len()), "{what}: the first wrong byte");
}

/// One side of a case in memory of any space.
pub(crate) fn typed(side: &Side, region: Region) -> Typed {
    let layout = side.datatype.commit().expect("a layout");
    Typed::new(region, side.origin, &layout, side.count).expect("it fits its buffer")
}

/// Vectors, triangles, transposes, index lists, an application's struct, from some bytes to some
/// megabytes.
pub(crate) fn messages() -> Vec<Case> {
    let some = [
        ("v", 1),
        ("v", 40),
        ("v", 512),
        ("vc", 100),
        ("t", 33),
        ("t", 500),
        ("x", 96),
        ("face-x", 24),
        ("lammps-full", 1),
        ("openmpi", 2),
    ];
    let all = some.into_iter().flat_map(|(name, n)| cases(name, Some(n)).expect(name));
    // The oracle writes every byte's place out.
    all.filter(|case| case.payload_bytes <= 4 << 20 && case.send.buffer_bytes <= 16 << 20).collect()
}

/// An end, its peer, and room for events.
pub(crate) struct End {
    pub(crate) sm: Sm,
    pub(crate) peer: PeerId,
    events: Queue,
}

/// In the process that runs the test: starts the other, and meets it.
pub(crate) fn start(test: &str, part: &str, lab: &Lab) -> (End, Actor) {
    let mut actor = Actor::start(test, part);
    let mut sm = open(lab);
    let peer = sm.connect(&unhex(&actor.hear())).expect("the other process can be reached");
    actor.tell(&hex(&sm.address()));
    (End { sm, peer, events: Queue::with_capacity(16) }, actor)
}

/// In the other process: meets the one that started it.
pub(crate) fn meet(lab: &Lab) -> End {
    let mut sm = open(lab);
    say(&hex(&sm.address()));
    let peer = sm.connect(&unhex(&listen())).expect("the first process can be reached");
    End { sm, peer, events: Queue::with_capacity(16) }
}

fn open(lab: &Lab) -> Sm {
    let mut sm = Sm::new(SmConfig::new("device messages", "end")).expect("shared memory");
    sm.attach(&lab.device).expect("the device takes segments, or has no such thing");
    sm
}

impl End {
    /// What has come since.
    pub(crate) fn poll(&mut self) -> Vec<Event> {
        self.sm.poll(None, &mut self.events);
        self.events.drain().collect()
    }

    /// Room for a message, waiting for it; `None` when the peer is lost. `hear` gets what comes
    /// meanwhile.
    pub(crate) fn reserve(&mut self, len: usize, mut hear: impl FnMut(Event)) -> Option<Slot> {
        let mut slot = None;
        until("there is room for a message", || {
            match self.sm.reserve(self.peer, len) {
                Ok(found) => slot = Some(found),
                Err(ReserveError::Full) => {
                    self.poll().into_iter().for_each(&mut hear);
                    return false;
                }
                Err(ReserveError::Link(_)) => {}
                Err(error) => panic!("{error}"),
            }
            true
        });
        slot
    }

    /// Polls until the peer is lost; what still arrives goes to `hear`.
    pub(crate) fn expect_loss(&mut self, mut hear: impl FnMut(Event)) {
        let mut lost = false;
        until("the loss is known", || {
            for event in self.poll() {
                match event {
                    Event::Lost { peer, .. } => {
                        assert_eq!(peer, self.peer);
                        lost = true;
                    }
                    other => hear(other),
                }
            }
            lost
        });
        assert!(matches!(self.sm.reserve(self.peer, 1), Err(ReserveError::Link(_))));
    }
}
