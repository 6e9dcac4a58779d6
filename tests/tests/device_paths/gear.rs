//! What a rank works with: a device of some kind, the engine of its memory, and buffers in it.

use crate::fake::unwilling;
use gapless::{Config, CudaDriver, Engine, GpuEngine, OpenClDevice, World};
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, Region};
use gapless_mem_cuda::{CudaDevice, Stream};
use gapless_tests::launcher::Member;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A kind of device, and of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Shares its memory as files; works late.
    Fake,
    /// The same, but it refuses to share.
    FakeSealed,
    /// The same, but it refuses what others share.
    FakeBlind,
    /// PoCL, in CI. Shares nothing.
    OpenCl,
    /// All ranks on the first CUDA device.
    CudaOne,
    /// Each rank on a device of its own, as far as they go.
    CudaTwo,
    /// All on the first device; buffers come from the driver's pool, which cannot be shared.
    CudaPool,
    /// All on the first device; buffers are shared as descriptors.
    CudaVmm,
    /// All on the first device; buffers are managed memory.
    CudaManaged,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Fake,
        Kind::FakeSealed,
        Kind::FakeBlind,
        Kind::OpenCl,
        Kind::CudaOne,
        Kind::CudaTwo,
        Kind::CudaPool,
        Kind::CudaVmm,
        Kind::CudaManaged,
    ];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    fn of_name(name: &str) -> Kind {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind of device")
    }

    pub(crate) fn is_cuda(self) -> bool {
        !matches!(self, Kind::Fake | Kind::FakeSealed | Kind::FakeBlind | Kind::OpenCl)
    }

    /// Whether this machine has such devices, or why not; without opening one.
    pub(crate) fn is_there(self) -> Result<(), String> {
        if self == Kind::OpenCl {
            return OpenClDevice::open(0).map(drop).map_err(|error| error.to_string());
        }
        if self.is_cuda() {
            let driver = CudaDriver::load().map_err(|error| error.to_string())?;
            if self == Kind::CudaTwo && driver.devices() < 2 {
                return Err("there is one CUDA device".to_owned());
            }
        }
        Ok(())
    }
}

/// A device and its engine.
pub(crate) struct Gear {
    pub(crate) kind: Kind,
    pub(crate) device: Arc<dyn Device>,
    /// Those of the world, in order: with two devices, each rank has those of both.
    engines: Vec<Arc<dyn Engine>>,
    cuda: Option<Arc<CudaDevice>>,
    fake: Option<Arc<FakeDevice>>,
    /// Whose pool buffers come from.
    stream: Option<Arc<Stream>>,
}

impl Gear {
    /// Opens the device of a rank.
    pub(crate) fn open(kind: &str, rank: u32) -> Gear {
        let kind = Kind::of_name(kind);
        let (cuda, fake, stream) = (None, None, None);
        if !kind.is_cuda() && kind != Kind::OpenCl {
            let fake = Arc::new(FakeDevice::with_delay(0, 2));
            let engine = FakeEngine { attaches: false, ..FakeEngine::new(&fake, 3) };
            let device: Arc<dyn Device> = match kind {
                Kind::Fake => Arc::clone(&fake) as _,
                _ => {
                    let (exports, imports) = (kind != Kind::FakeSealed, kind != Kind::FakeBlind);
                    Arc::new(unwilling(&fake, exports, imports))
                }
            };
            let engines = vec![Arc::new(engine) as _];
            return Gear { kind, device, engines, cuda, fake: Some(fake), stream };
        }
        if kind == Kind::OpenCl {
            let device = Arc::new(OpenClDevice::open(0).expect("as the test has found"));
            let engine = GpuEngine::opencl(device).expect("an engine");
            let device = engine.device();
            return Gear { kind, device, engines: vec![Arc::new(engine)], cuda, fake, stream };
        }
        let driver = CudaDriver::load().expect("as the test has found");
        let ordinal = if kind == Kind::CudaTwo { rank % driver.devices() } else { 0 };
        let cuda = Arc::new(driver.device(ordinal).expect("a device"));
        let engine = GpuEngine::cuda(Arc::clone(&cuda)).expect("an engine");
        let stream = (kind == Kind::CudaPool).then(|| Arc::new(cuda.stream().expect("a stream")));
        let device = engine.device();
        let mut engines: Vec<Arc<dyn Engine>> = Vec::new();
        for other in
            (0..driver.devices()).filter(|&other| kind == Kind::CudaTwo && other != ordinal)
        {
            let other = Arc::new(driver.device(other).expect("a device"));
            engines.push(Arc::new(GpuEngine::cuda(other).expect("an engine")));
        }
        // Each rank's own comes last: engines of devices that only reach its memory leave it alone.
        engines.push(Arc::new(engine));
        Gear { kind, device, engines, cuda: Some(cuda), fake, stream }
    }

    /// A world in which messages of this device are carried by its engine.
    pub(crate) fn world(
        &self,
        member: &mut Member,
        config: Config,
    ) -> Result<World, gapless::Error> {
        let builder = World::builder().wireup(member.wireup()).open_devices(false).config(config);
        let engines = self.engines.iter();
        let builder = engines.fold(builder, |builder, engine| builder.engine(Arc::clone(engine)));
        builder.device(Arc::clone(&self.device)).init()
    }

    /// How much of peers' memory the device has mapped; `None` where it cannot tell.
    pub(crate) fn imported(&self) -> Option<usize> {
        let cuda = self.cuda.as_ref().map(|device| device.imported());
        cuda.or_else(|| self.fake.as_ref().map(|device| device.imported()))
    }

    /// Memory with these bytes: the device's, or the host's.
    pub(crate) fn hold(&self, mut bytes: Vec<u8>, on_device: bool) -> Held {
        if !on_device {
            let region = Region::of_mut(&mut bytes);
            return Held { bytes, region, owner: None };
        }
        let len = bytes.len() as u64;
        let cuda = || self.cuda.as_ref().expect("a CUDA device");
        let region = match (self.kind, &self.stream) {
            (_, Some(stream)) => stream.allocate(len).expect("memory of a pool"),
            (Kind::CudaVmm, _) => cuda().allocate_shareable(len).expect("device memory"),
            (Kind::CudaManaged, _) => cuda().allocate_managed(len).expect("managed memory"),
            _ => self.device.allocate(len).expect("device memory"),
        };
        // SAFETY: both live over the wait, and nothing else touches them.
        let copied = unsafe { self.device.copy(region, Region::of(&bytes), &[]) };
        settle(&copied.expect("a copy"));
        let owner = Owner { device: Arc::clone(&self.device), stream: self.stream.clone() };
        Held { bytes: Vec::new(), region, owner: Some(owner) }
    }

    /// All memory that the device has left, or as good as.
    pub(crate) fn hog(&self) -> Vec<Held> {
        let mut all = Vec::new();
        let mut len = 32u64 << 30;
        while len >= 2 << 20 {
            match self.device.allocate(len) {
                Ok(region) => {
                    let owner = Owner { device: Arc::clone(&self.device), stream: None };
                    all.push(Held { bytes: Vec::new(), region, owner: Some(owner) });
                }
                Err(_) => len /= 2,
            }
        }
        all
    }
}

/// Waits for work of a device, far longer than anything right takes: a kernel that is never let go would
/// hang here.
pub(crate) fn settle(work: &Completion) {
    let until = Instant::now() + Duration::from_secs(60);
    while !work.poll().expect("work that ends well") {
        assert!(Instant::now() < until, "the device does not come to an end");
        std::thread::yield_now();
    }
}

/// A buffer.
pub(crate) struct Held {
    /// Empty if it is a device's.
    bytes: Vec<u8>,
    region: Region,
    owner: Option<Owner>,
}

struct Owner {
    device: Arc<dyn Device>,
    /// If it came from a pool.
    stream: Option<Arc<Stream>>,
}

impl Owner {
    fn free(&self, region: Region) -> Result<(), DeviceError> {
        match &self.stream {
            // SAFETY: `Gear::hold` allocated it, and says `Held`, nothing uses it any more.
            Some(stream) => Ok(unsafe { stream.free(region) }?),
            // SAFETY: as above.
            None => unsafe { self.device.free(region) },
        }
    }
}

impl Held {
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// What is in it.
    pub(crate) fn fetch(&self) -> Vec<u8> {
        let mut bytes = vec![0u8; usize::try_from(self.region.len()).expect("test sizes")];
        match &self.owner {
            // Messages write it by its address.
            None => bytes.copy_from_slice(std::hint::black_box(&self.bytes)),
            Some(owner) => {
                let to = Region::of_mut(&mut bytes);
                // SAFETY: as in `Gear::hold`; every message in it has ended.
                let copied = unsafe { owner.device.copy(to, self.region, &[]) };
                settle(&copied.expect("a copy"));
            }
        }
        bytes
    }

    /// Frees it; peers are told first, as the library asks for. Gives where it was.
    pub(crate) fn free(mut self, world: &World) -> u64 {
        if let Some(owner) = self.owner.take() {
            world.invalidate(self.region).expect("peers let go");
            owner.free(self.region).expect("memory of this device");
        }
        self.region.start()
    }

    /// Frees it and tells nobody: for the pretended device, whose memory peers may keep. Gives where it
    /// was.
    pub(crate) fn free_silently(self) -> u64 {
        self.region.start()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            let freed = owner.free(self.region);
            assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
        }
    }
}
