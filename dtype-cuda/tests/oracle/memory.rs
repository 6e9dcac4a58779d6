//! Memory for the tests: taken from a provider, filled, read back, given back.

use gapless_mem::{Completion, Device, Region};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than anything right takes, by far.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Waits for a completion that must end well.
#[track_caller]
pub(crate) fn wait(work: &Completion) {
    if let Err(error) = waited(work) {
        panic!("{error}");
    }
}

/// Looking all the time, a test takes the processor from drivers that compile kernels and compute on it. So it does for a
/// moment only, as short work ends in it.
const MOMENT: Duration = Duration::from_micros(200);

/// Waits for a completion; says how it failed.
pub(crate) fn waited(work: &Completion) -> Result<(), String> {
    let begin = Instant::now();
    while !work.poll().map_err(|error| error.to_string())? {
        let waited = begin.elapsed();
        if waited > WATCHDOG {
            return Err("the work does not come to an end".to_owned());
        }
        if waited < MOMENT {
            std::thread::yield_now();
        } else {
            std::thread::sleep(MOMENT);
        }
    }
    Ok(())
}

/// An index into a test's memory.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("tests' memories fit the address space")
}

/// A length as the interfaces count it.
pub(crate) fn wide(number: usize) -> u64 {
    u64::try_from(number).expect("a length fits 64 bits")
}

/// Where a test's memory comes from.
pub(crate) trait Provider: Send + Sync {
    /// What kind of memory it is.
    fn name(&self) -> String;

    /// `len` bytes aligned to 256.
    fn take(&self, len: u64) -> Region;

    /// Takes back what [`take`](Provider::take) gave; nothing uses it any more.
    fn give_back(&self, region: Region);

    /// Who copies to and from it.
    fn copier(&self) -> &dyn Device;
}

/// A device's own memory.
pub(crate) struct Own(pub(crate) Arc<dyn Device>);

impl Provider for Own {
    fn name(&self) -> String {
        self.0.space().to_string()
    }

    fn take(&self, len: u64) -> Region {
        self.0.allocate(len).unwrap()
    }

    fn give_back(&self, region: Region) {
        // SAFETY: `take` gave it, `Buffer` gives it back once, and the tests wait for their work.
        let freed = unsafe { self.0.free(region) };
        assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
    }

    fn copier(&self) -> &dyn Device {
        &*self.0
    }
}

/// A contiguous span of a provider's memory, given back at the end.
pub(crate) struct Buffer<'a> {
    provider: &'a dyn Provider,
    region: Region,
}

impl<'a> Buffer<'a> {
    /// Takes `len` bytes; what they hold is unknown.
    pub(crate) fn new(provider: &'a dyn Provider, len: u64) -> Buffer<'a> {
        Buffer { provider, region: provider.take(len) }
    }

    /// Takes as many bytes as `bytes` and fills them.
    pub(crate) fn holding(provider: &'a dyn Provider, bytes: &[u8]) -> Buffer<'a> {
        let buffer = Buffer::new(provider, wide(bytes.len()));
        buffer.write(0, bytes);
        buffer
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// `len` bytes from `at` on.
    pub(crate) fn part(&self, at: u64, len: u64) -> Region {
        self.region.sub(at, len).unwrap()
    }

    /// Puts bytes there and waits.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.part(at, wide(bytes.len()));
        // SAFETY: both live until the wait below ends, and nothing else uses them.
        let done = unsafe { self.provider.copier().copy(to, Region::of(bytes), &[]) };
        wait(&done.unwrap());
    }

    /// Fills all of it with repetitions of `bytes`, mostly within the device.
    pub(crate) fn repeat(&self, bytes: &[u8]) {
        let len = self.region.len();
        let mut full = len.min(wide(bytes.len()));
        self.write(0, &bytes[..index(full)]);
        while full < len {
            let more = full.min(len - full);
            let (to, from) = (self.part(full, more), self.part(0, more));
            // SAFETY: both are parts of this buffer that do not overlap; nothing else uses them.
            wait(&unsafe { self.provider.copier().copy(to, from, &[]) }.unwrap());
            full += more;
        }
    }

    /// What `len` bytes from `at` on hold.
    pub(crate) fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; index(len)];
        let from = self.part(at, len);
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait below ends, and nothing else uses them.
        let done = unsafe { self.provider.copier().copy(to, from, &[]) };
        wait(&done.unwrap());
        bytes
    }

    /// What all of it holds.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.read(0, self.region.len())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.provider.give_back(self.region);
    }
}
