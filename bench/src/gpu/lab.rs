//! A CUDA device to measure on: its memory, streams and engine, and the kernels that measuring needs.
//!
//! [`Lab`] owns all memory that is measured with and frees it last, after everything on the device has
//! ended. [`Spot`] and [`Laid`] are pieces of it that only the lab makes, so what enqueues work on them
//! asks its callers for no promises: what two pieces of work write at once is any mixture of both, in
//! memory that no reference covers. Units: bytes; device time in seconds.

mod queue;
mod tools;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_dtype::Layout;
use gapless_dtype_cuda::{Config, GpuEngine};
use gapless_engine::{Engine, HostEngine, ReduceOp, Reducer, Typed};
use gapless_kernels::Direction;
use gapless_mem::{Completion, Device, Region, Space};
use gapless_mem_cuda::{CudaDevice, CudaDriver, PinnedBuffer, Stream};

use self::tools::Tools;
use super::subject::Subject;
use crate::error::Failure;

/// Device memory that the engine may keep plans in: nothing that is measured warm is evicted.
const PLAN_BYTES: u64 = 2 << 30;
/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Places begin at multiples of this.
const PAGE: u64 = 4096;

pub use self::queue::{Parts, Queue};
pub(crate) use self::tools::TOOLS;

/// A piece of memory that the lab holds.
#[derive(Clone, Copy, Debug)]
pub struct Spot(Region);

impl Spot {
    /// Its length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose memory it is.
    #[must_use]
    pub fn space(&self) -> Space {
        self.0.space()
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    /// They do not lie inside.
    pub fn sub(&self, offset: u64, len: u64) -> Result<Spot, Failure> {
        Ok(Spot(self.0.sub(offset, len).map_err(gapless_mem::DeviceError::from)?))
    }

    /// The description, for asking what work on it would do.
    #[must_use]
    pub fn region(&self) -> Region {
        self.0
    }
}

/// A subject's instances in memory that the lab holds.
#[derive(Clone, Debug)]
pub struct Laid(Typed);

impl Laid {
    /// Bytes of the packed stream.
    #[must_use]
    pub fn payload(&self) -> u64 {
        self.0.packed_bytes()
    }

    /// The memory that it lies in.
    #[must_use]
    pub fn place(&self) -> Spot {
        Spot(self.0.region())
    }

    /// Buffer and layout, for asking what work on it would do.
    #[must_use]
    pub fn typed(&self) -> &Typed {
        &self.0
    }
}

/// Memory, and who frees it.
enum LabMemory {
    Device(Arc<CudaDevice>, Region),
    /// Freed by being dropped.
    Pinned(#[expect(dead_code, reason = "kept, not looked at")] PinnedBuffer),
}

/// Memory for places, and for what they are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Arenas {
    /// Where layouts lie.
    pub typed: Spot,
    /// Where packed bytes lie.
    pub packed: Spot,
    /// Where plain copies are from …
    pub from: Spot,
    /// … and to.
    pub to: Spot,
    /// Known bytes, never written.
    pub master: Spot,
    /// What is unpacked to and looked at.
    pub proof: Spot,
    /// What is packed to and looked at.
    pub proof_packed: Spot,
}

/// A CUDA device to measure on.
pub struct Lab {
    engine: GpuEngine,
    tools: Result<Tools, String>,
    arenas: Arenas,
    stream: Stream,
    memory: RefCell<Vec<LabMemory>>,
    device: Arc<CudaDevice>,
    driver: CudaDriver,
}

impl Lab {
    /// Opens device 0.
    ///
    /// # Errors
    /// [`Failure::NoGpu`] on a machine without one; else what the driver refuses.
    pub fn open(quick: bool) -> Result<Lab, Failure> {
        let no_gpu = |why: gapless_mem_cuda::CudaError| Failure::NoGpu { why: why.to_string() };
        let driver = CudaDriver::load().map_err(no_gpu)?;
        let device = Arc::new(driver.device(0).map_err(no_gpu)?);
        device.bind_thread()?;
        let engine = GpuEngine::cuda_with(Arc::clone(&device), configured(|_| ()))?;
        let nowhere = Spot(Region::new(device.space(), 0, 0, 0));
        let mut lab = Lab {
            engine,
            tools: Err("not loaded yet".to_owned()),
            arenas: Arenas {
                typed: nowhere,
                packed: nowhere,
                from: nowhere,
                to: nowhere,
                master: nowhere,
                proof: nowhere,
                proof_packed: nowhere,
            },
            stream: device.stream()?,
            memory: RefCell::default(),
            device,
            driver,
        };
        lab.arenas = lab.find_arenas(quick)?;
        // Without its tools a lab measures less, and says so.
        lab.tools = Tools::load(&lab).map_err(|failure| failure.to_string());
        Ok(lab)
    }

    fn find_arenas(&self, quick: bool) -> Result<Arenas, Failure> {
        const GIB: u64 = 1 << 30;
        let (free, _) = self.device.memory_now()?;
        let share = |hundredths: u64, most: u64| {
            let most = if quick { 96 << 20 } else { most };
            self.device_memory((free / 100 * hundredths).min(most) / PAGE * PAGE)
        };
        Ok(Arenas {
            typed: share(30, 20 * GIB)?,
            packed: share(8, 5 * GIB)?,
            from: share(8, 5 * GIB)?,
            to: share(8, 5 * GIB)?,
            master: share(9, 5 * GIB)?,
            proof: share(9, 5 * GIB)?,
            proof_packed: share(7, 5 * GIB)?,
        })
    }

    /// The engine; its plans are not evicted.
    #[must_use]
    pub fn engine(&self) -> &GpuEngine {
        &self.engine
    }

    /// An engine of its own, with another configuration.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn engine_with(&self, change: impl FnOnce(&mut Config)) -> Result<GpuEngine, Failure> {
        Ok(GpuEngine::cuda_with(Arc::clone(&self.device), configured(change))?)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The stream on which device time is measured.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The memory for places.
    #[must_use]
    pub fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    /// The GPU's own cache, in bytes.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        self.device.properties().cache_bytes
    }

    /// Whether the device is lost to this process, and why.
    #[must_use]
    pub fn lost(&self) -> Option<Failure> {
        self.device.lost().map(Failure::from)
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// There is no more.
    pub fn device_memory(&self, len: u64) -> Result<Spot, Failure> {
        let region = self.device.allocate(len)?;
        self.memory.borrow_mut().push(LabMemory::Device(Arc::clone(&self.device), region));
        Ok(Spot(region))
    }

    /// Page-locked host memory, zeroed.
    ///
    /// # Errors
    /// There is no more.
    pub fn pinned_memory(&self, len: u64) -> Result<Spot, Failure> {
        let buffer = self.device.pinned(len)?;
        let spot = Spot(buffer.region());
        self.memory.borrow_mut().push(LabMemory::Pinned(buffer));
        // SAFETY: page-locked memory of the lab's, new to it; nothing works on it yet.
        unsafe { gapless_mem::fill(&spot.0, 0) }?;
        Ok(spot)
    }

    /// Memory of another GPU that this one reaches; `None` if there is none.
    ///
    /// # Errors
    /// There is one, and it refuses.
    pub fn peer_memory(&self, len: u64) -> Result<Option<Spot>, Failure> {
        if self.driver.devices() < 2 || !self.device.can_access(1)? {
            return Ok(None);
        }
        let peer = Arc::new(self.driver.device(1)?);
        self.device.enable_peer(1)?;
        let region = peer.allocate(len)?;
        self.memory.borrow_mut().push(LabMemory::Device(peer, region));
        self.device.bind_thread()?;
        Ok(Some(Spot(region)))
    }

    /// A subject at a place that is as long as its span at least.
    ///
    /// # Errors
    /// It does not fit.
    pub fn lay(&self, subject: &Subject, place: &Spot) -> Result<Laid, Failure> {
        let region = place.sub(0, subject.span.min(place.len()))?.0;
        Ok(Laid(Typed::new(region, subject.origin, &subject.layout, subject.count)?))
    }

    /// So many instances of a layout at the beginning of a place.
    ///
    /// # Errors
    /// They do not fit.
    pub fn lay_blocks(&self, spot: &Spot, layout: &Layout, count: u64) -> Result<Laid, Failure> {
        Ok(Laid(Typed::new(spot.0, 0, layout, count)?))
    }

    /// What the host makes of instances of a layout: all of the sources' memory combined into the first one's.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn combined(
        &self,
        op: ReduceOp,
        layout: &Layout,
        count: u64,
        mut sides: Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, Failure> {
        let regions: Vec<Region> = sides.iter_mut().map(|side| Region::of_mut(side)).collect();
        let typed = regions.iter().map(|region| Typed::new(*region, 0, layout, count));
        let typed: Vec<Typed> = typed.collect::<Result<_, _>>()?;
        let Some((target, sources)) = typed.split_first() else { return Ok(Vec::new()) };
        let range = 0..target.packed_bytes();
        // SAFETY: the vectors are this call's, and the host's work is over when it returns.
        let done = unsafe { HostEngine.reduce_into(&op.into(), sources, target, range, &[]) }?;
        self.wait(&done)?;
        Ok(sides.swap_remove(0))
    }

    /// A piece of memory as bytes without gaps.
    #[must_use]
    pub fn lay_bytes(&self, spot: &Spot) -> Laid {
        Laid(Typed::contiguous(spot.0))
    }

    /// The engine on the lab's stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn on<'a>(&'a self, engine: &'a GpuEngine) -> Result<Queue<'a>, Failure> {
        self.on_stream(engine, &self.stream)
    }

    /// The engine on a stream of the lab's.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn on_stream<'a>(
        &'a self,
        engine: &'a GpuEngine,
        stream: &'a Stream,
    ) -> Result<Queue<'a>, Failure> {
        Ok(Queue(engine.on(stream)?))
    }

    /// Packs by the whole call and waits.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn pack(&self, engine: &GpuEngine, from: &Laid, to: &Spot) -> Result<(), Failure> {
        // SAFETY: both are memory of the lab's, which it frees after all work has ended.
        let done = unsafe { engine.pack(&from.0, 0..from.payload(), to.0, &[]) }?;
        self.wait(&done)
    }

    /// Unpacks by the whole call and waits.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn unpack(&self, engine: &GpuEngine, from: &Spot, to: &Laid) -> Result<(), Failure> {
        // SAFETY: as in `pack`.
        let done = unsafe { engine.unpack(from.0, &to.0, 0..to.payload(), &[]) }?;
        self.wait(&done)
    }

    /// Packs or unpacks by the whole call and waits.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn call(
        &self,
        engine: &GpuEngine,
        direction: Direction,
        laid: &Laid,
        packed: &Spot,
    ) -> Result<(), Failure> {
        match direction {
            Direction::Pack => self.pack(engine, laid, packed),
            Direction::Unpack => self.unpack(engine, packed, laid),
        }
    }

    /// Packs or unpacks on the CPU, in memory that it reaches.
    ///
    /// # Errors
    /// Memory that it does not reach.
    pub fn on_host(
        &self,
        direction: Direction,
        laid: &Laid,
        range: Range<u64>,
        packed: &Spot,
    ) -> Result<(), Failure> {
        let done = match direction {
            // SAFETY: memory of the lab's, which no reference covers.
            Direction::Pack => unsafe { HostEngine.pack(&laid.0, range, packed.0, &[]) },
            // SAFETY: as above.
            Direction::Unpack => unsafe { HostEngine.unpack(packed.0, &laid.0, range, &[]) },
        };
        self.wait(&done?)
    }

    /// Enqueues a copy.
    ///
    /// # Errors
    /// Unequal lengths, or what the driver refuses.
    pub fn copy(&self, stream: &Stream, to: &Spot, from: &Spot) -> Result<(), Failure> {
        // SAFETY: memory of the lab's, which it frees after all work has ended.
        Ok(unsafe { self.device.copy_on(stream, to.0, from.0) }?)
    }

    /// Enqueues a copy of `rows` rows of `width` bytes.
    ///
    /// # Errors
    /// Rows that leave their memory, or what the driver refuses.
    pub fn copy_2d(
        &self,
        to: (&Spot, u64),
        from: (&Spot, u64),
        width: u64,
        rows: u64,
    ) -> Result<(), Failure> {
        let stream = &self.stream;
        // SAFETY: as in `copy`.
        Ok(unsafe { self.device.copy_2d_on(stream, to.0.0, to.1, from.0.0, from.1, width, rows) }?)
    }

    /// Enqueues copies by one call.
    ///
    /// # Errors
    /// A driver that cannot, or what it refuses.
    pub fn copy_batch(&self, copies: &[(Spot, Spot)]) -> Result<(), Failure> {
        let regions: Vec<_> = copies.iter().map(|(to, from)| (to.0, from.0)).collect();
        // SAFETY: as in `copy`.
        Ok(unsafe { self.device.copy_batch_on(&self.stream, &regions) }?)
    }

    /// Enqueues setting every byte.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill(&self, spot: &Spot, value: u8) -> Result<(), Failure> {
        // SAFETY: as in `copy`.
        Ok(unsafe { self.device.fill_on(&self.stream, spot.0, value) }?)
    }

    /// Copies bytes to memory of the lab's, and waits.
    ///
    /// # Errors
    /// Unequal lengths, or what the driver refuses.
    pub fn upload(&self, to: &Spot, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: `bytes` is borrowed until the wait ends; the rest as in `copy`. A device that hangs
        // has read pageable memory before the call returned.
        unsafe { self.device.copy_on(&self.stream, to.0, Region::of(bytes)) }?;
        self.settle()
    }

    /// The bytes of host memory of the lab's.
    ///
    /// # Errors
    /// Memory that the CPU does not reach.
    pub fn read(&self, from: &Spot, into: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: readable memory of the lab's.
        Ok(unsafe { gapless_mem::read(&from.0, 0, into) }?)
    }

    fn write_word(&self, spot: &Spot, at: u64, word: u32) -> Result<(), Failure> {
        // SAFETY: writable memory of the lab's, which no reference covers.
        Ok(unsafe { gapless_mem::write(&spot.0, at, &word.to_le_bytes()) }?)
    }

    /// Waits for everything on the lab's stream.
    ///
    /// # Errors
    /// Some of it failed, or it hangs.
    pub fn settle(&self) -> Result<(), Failure> {
        self.wait(&self.stream.record()?)
    }

    /// Waits, but not for ever.
    ///
    /// # Errors
    /// The work failed, or it hangs.
    pub fn wait(&self, work: &Completion) -> Result<(), Failure> {
        let begin = Instant::now();
        while !work.poll()? {
            if begin.elapsed() > PATIENCE {
                return Err(Failure::Hangs { seconds: PATIENCE.as_secs() });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// An engine's configuration: room for all plans, and what `change` does.
fn configured(change: impl FnOnce(&mut Config)) -> Config {
    let keep_all = |config: &mut Config| config.plan_bytes = PLAN_BYTES;
    let mut config = Config::default();
    keep_all(&mut config);
    change(&mut config);
    config
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The engine's own streams too: the context is one.
        let _ = self.settle();
        for held in self.memory.borrow_mut().drain(..) {
            if let LabMemory::Device(device, region) = held {
                // SAFETY: `allocate` of this device gave it. The lab's streams have ended, calls of the
                // engine were waited for, and the driver frees only once the device is idle. A failure
                // leaves it to the process's end.
                let _ = unsafe { device.free(region) };
            }
        }
    }
}
