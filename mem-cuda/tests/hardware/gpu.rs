//! What the tests share: the device, memories of every kind, patterns, kernels, bounded waits.

use gapless_mem::{Completion, Device, Region, Space};
use gapless_mem_cuda::{CudaDevice, CudaDriver, CudaError, Function, Module, PinnedBuffer, Stream};
use std::ffi::CStr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Says that a test did not run and why.
pub(crate) fn skip(test: &str, why: &str) {
    gapless_testkit::skip(&format!("CUDA {test}"), why);
}

/// Device 0 for one test at a time: allocating waits for all kernels of the process, so a test that
/// lets a kernel wait for it must be alone.
pub(crate) struct Turn {
    device: Arc<CudaDevice>,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Turn {
    type Target = Arc<CudaDevice>;

    fn deref(&self) -> &Arc<CudaDevice> {
        &self.device
    }
}

/// Device 0, one for the process; or the test is skipped.
pub(crate) fn device(test: &str) -> Option<Turn> {
    static DEVICE: OnceLock<Result<Arc<CudaDevice>, CudaError>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = DEVICE.get_or_init(|| CudaDriver::load()?.device(0).map(Arc::new));
    match opened {
        Ok(device) => Some(Turn { device: Arc::clone(device), _turn: turn }),
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            skip(test, &why.to_string());
            None
        }
        Err(error) => panic!("there is a driver and it fails: {error}"),
    }
}

/// Waits for a completion, far longer than anything right takes.
pub(crate) fn wait(work: &Completion) {
    let until = Instant::now() + Duration::from_secs(60);
    while !work.poll().unwrap() {
        assert!(Instant::now() < until, "the device does not come to an end");
        std::thread::yield_now();
    }
}

/// Waits for everything on a stream.
pub(crate) fn finish(stream: &Stream) {
    wait(&stream.record().unwrap());
}

/// Copies and waits.
pub(crate) fn copy(device: &CudaDevice, dst: Region, src: Region) {
    // SAFETY: the tests' buffers live and are used by nobody else while this waits.
    let done = unsafe { device.copy(dst, src, &[]) }.unwrap();
    wait(&done);
}

/// What a region holds.
pub(crate) fn read(device: &CudaDevice, region: Region) -> Vec<u8> {
    let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
    copy(device, Region::of_mut(&mut bytes), region);
    bytes
}

/// Puts bytes into a region of their length.
pub(crate) fn write(device: &CudaDevice, region: Region, bytes: &[u8]) {
    copy(device, region, Region::of(bytes));
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    (0..len).map(|_| random.next().to_le_bytes()[3]).collect()
}

/// A small generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Seeded from `GAPLESS_SEED`, or by chance; the seed is printed, and shown if the test fails.
    pub(crate) fn seeded() -> Random {
        Random(gapless_testkit::seed(gapless_testkit::fresh()) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }
}

/// Memory of some kind, freed at the end.
pub(crate) enum Memory {
    Host(Vec<u8>),
    Pinned(PinnedBuffer),
    Own(Arc<CudaDevice>, Region),
}

impl Memory {
    /// One of each kind that a device can work on.
    pub(crate) fn of_every_kind(device: &Arc<CudaDevice>, len: u64) -> Vec<Memory> {
        vec![
            Memory::Host(vec![0; usize::try_from(len).unwrap()]),
            Memory::Pinned(device.pinned(len).unwrap()),
            Memory::on(device, len),
            Memory::Own(Arc::clone(device), device.allocate_shareable(len).unwrap()),
            Memory::Own(Arc::clone(device), device.allocate_managed(len).unwrap()),
        ]
    }

    /// Ordinary device memory.
    pub(crate) fn on(device: &Arc<CudaDevice>, len: u64) -> Memory {
        Memory::Own(Arc::clone(device), device.allocate(len).unwrap())
    }

    pub(crate) fn region(&mut self) -> Region {
        match self {
            Memory::Host(bytes) => Region::of_mut(bytes),
            Memory::Pinned(buffer) => buffer.region(),
            Memory::Own(_, region) => *region,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Own(device, region) = self {
            // SAFETY: the test that ends here has waited for its work, or has failed.
            let freed = unsafe { device.free(*region) };
            assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
        }
    }
}

/// A `u32` in page-locked memory that host and kernels see.
pub(crate) struct Flag(PinnedBuffer);

impl Flag {
    pub(crate) fn new(device: &CudaDevice) -> Flag {
        let flag = Flag(device.pinned(4).unwrap());
        flag.set(0);
        flag
    }

    pub(crate) fn set(&self, value: u32) {
        let at = self.0.region().as_ptr().unwrap().cast::<u32>();
        // SAFETY: four aligned bytes of the buffer, which lives; kernels only read them.
        unsafe { at.write_volatile(value) };
    }

    pub(crate) fn address(&self, device: &CudaDevice) -> u64 {
        device.device_address(self.0.region()).unwrap()
    }
}

/// The tests' kernels, as text that any driver compiles.
pub(crate) const PTX: &str = r"
.version 7.0
.target sm_80
.address_size 64

// at[i] += value for i < count
.visible .entry add(.param .u64 at, .param .u32 count, .param .u32 value)
{
    .reg .pred %p1;
    .reg .b32 %count, %value, %block, %width, %thread, %i, %old;
    .reg .b64 %at, %step;
    ld.param.u64 %at, [at];
    ld.param.u32 %count, [count];
    ld.param.u32 %value, [value];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %width, %thread;
    setp.ge.u32 %p1, %i, %count;
    @%p1 bra DONE;
    mul.wide.u32 %step, %i, 4;
    add.u64 %at, %at, %step;
    ld.volatile.u32 %old, [%at];
    add.u32 %old, %old, %value;
    st.volatile.u32 [%at], %old;
DONE:
    ret;
}

// waits until the flag is not 0, at most 20 seconds
.visible .entry until(.param .u64 flag)
{
    .reg .pred %p1, %p2;
    .reg .b32 %seen;
    .reg .b64 %flag, %start, %now;
    ld.param.u64 %flag, [flag];
    mov.u64 %start, %globaltimer;
SPIN:
    ld.volatile.u32 %seen, [%flag];
    setp.ne.u32 %p1, %seen, 0;
    @%p1 bra DONE;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p2, %now, 20000000000;
    @%p2 bra SPIN;
DONE:
    ret;
}

// stores where nothing is
.visible .entry wrong()
{
    .reg .b64 %at;
    mov.u64 %at, 16;
    st.u64 [%at], %at;
    ret;
}
";

/// The tests' kernels on a device; `None` (and the test is skipped) where the driver's compiler is
/// not installed.
pub(crate) fn kernels(test: &str, device: &CudaDevice) -> Option<Module> {
    const NO_COMPILER: u32 = 221;
    // SAFETY: written by hand for this, and checked by the driver's compiler.
    match unsafe { Module::load(device, PTX.as_bytes()) } {
        Ok(module) => Some(module),
        Err(CudaError::Failed { code: NO_COMPILER, reason, .. }) => {
            skip(test, &reason);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn function(module: &Module, name: &CStr) -> Function {
    module.function(name).unwrap()
}

/// In which space an address lies, as the driver says.
pub(crate) fn space_at(device: &CudaDevice, address: u64) -> Option<Space> {
    device.pointer(address).map(|facts| facts.space)
}

/// Whether a region lies on a device.
pub(crate) fn on_device(region: Region) -> bool {
    matches!(region.space(), Space::Cuda { .. })
}
