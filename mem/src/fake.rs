//! A pretend accelerator for tests.
//!
//! Its memory is mapped twice: the address that users see may not be touched by the CPU (it is
//! mapped `PROT_NONE`: a stray load or store is a segmentation fault, not a silent success), and a
//! hidden alias is used by the device's own copies. Its work is asynchronous: a copy happens when
//! its completion has been polled [`FakeDevice::with_delay`] times, so code that forgets to wait
//! reads stale bytes.
//!
//! What it shares with others is in `fake/sharing.rs`: its memory is exported as a descriptor, and
//! it keeps books of the host memory that is registered with it, so that tests can see whether
//! everything was undone, and in the right order.

mod sharing;
#[cfg(test)]
mod tests;

use crate::host::wait_all;
use crate::{
    Abilities, Completion, Device, DeviceError, DeviceProperties, DmaBuf, Export, Pending, Region,
    Space, access,
};
use sharing::Registered;
use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One allocation by its forbidden address: its hidden alias and its length, in bytes.
#[derive(Debug)]
struct FakeBlock {
    alias: u64,
    len: u64,
    mapped: usize,
    id: u64,
    /// What others map; `None` for what was itself imported.
    file: Option<OwnedFd>,
}

impl FakeBlock {
    fn unmap(self, forbidden: u64) {
        unmap(forbidden, self.mapped);
        unmap(self.alias, self.mapped);
    }
}

#[derive(Debug, Default)]
struct Heap {
    blocks: BTreeMap<u64, FakeBlock>,
    next_id: u64,
}

/// A device whose memory only the device can touch.
#[derive(Debug)]
pub struct FakeDevice {
    number: u32,
    delay: u32,
    identity: Option<u128>,
    takes_turns: bool,
    properties: DeviceProperties,
    heap: Arc<Mutex<Heap>>,
    registered: Mutex<Registered>,
    /// How often adapters' writes were waited for.
    settled: AtomicUsize,
    /// How often adapters were to be given memory, and whether they get none.
    asked: AtomicUsize,
    keeps: AtomicBool,
}

impl FakeDevice {
    /// Fake device `number`, whose work ends at once.
    #[must_use]
    pub fn new(number: u32) -> FakeDevice {
        FakeDevice::with_delay(number, 0)
    }

    /// Fake device `number`, whose work ends only when it has been polled more than `polls` times.
    #[must_use]
    pub fn with_delay(number: u32, polls: u32) -> FakeDevice {
        FakeDevice {
            number,
            delay: polls,
            identity: None,
            takes_turns: false,
            properties: DeviceProperties {
                name: format!("fake:{number}"),
                memory_bytes: 1 << 30,
                cache_bytes: 0,
                compute_units: 1,
            },
            heap: Arc::default(),
            registered: Mutex::default(),
            settled: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            keeps: AtomicBool::new(false),
        }
    }

    /// The same, as one of several that are one physical device, each in a process of its own; `takes_turns` as
    /// [`Device::takes_turns`].
    #[must_use]
    pub fn identified(mut self, identity: u128, takes_turns: bool) -> FakeDevice {
        self.identity = Some(identity);
        self.takes_turns = takes_turns;
        self
    }

    /// Another physical device, whose memory this one maps, and it this one's.
    #[must_use]
    pub fn beside(&self, identity: u128) -> FakeDevice {
        FakeDevice {
            number: self.number,
            delay: self.delay,
            identity: Some(identity),
            takes_turns: self.takes_turns,
            properties: self.properties.clone(),
            heap: Arc::clone(&self.heap),
            registered: Mutex::default(),
            settled: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            keeps: AtomicBool::new(false),
        }
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `mapped` bytes of a file: at an address that may not be touched, and at one that may.
    fn map_twice(&self, file: &OwnedFd, mapped: usize) -> Result<(u64, u64), DeviceError> {
        let map = |protection| {
            // SAFETY: a fresh shared mapping of `mapped` bytes of an open file of that size,
            // wherever the kernel likes.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    mapped,
                    protection,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            if at == libc::MAP_FAILED {
                return Err(self.failed("mmap"));
            }
            Ok(at.expose_provenance() as u64)
        };
        let forbidden = map(libc::PROT_NONE)?;
        match map(libc::PROT_READ | libc::PROT_WRITE) {
            Ok(alias) => Ok((forbidden, alias)),
            Err(error) => {
                unmap(forbidden, mapped);
                Err(error)
            }
        }
    }

    /// Enters a mapping into the books.
    fn remember(
        &self,
        forbidden: u64,
        alias: u64,
        len: u64,
        mapped: usize,
        file: Option<OwnedFd>,
    ) -> Region {
        let mut heap = self.heap();
        heap.next_id += 1;
        let id = heap.next_id;
        heap.blocks.insert(forbidden, FakeBlock { alias, len, mapped, id, file });
        Region::new(self.space(), forbidden, 0, len)
    }

    /// Takes what starts where `region`'s object does out of the books: memory of ours, or memory
    /// that was imported.
    fn take(&self, region: Region, ours: bool) -> Result<FakeBlock, DeviceError> {
        let wrong =
            DeviceError::WrongSpace { device: self.properties.name.clone(), space: region.space() };
        let mut heap = self.heap();
        match heap.blocks.get(&region.address()) {
            Some(block) if block.file.is_some() == ours && region.space() == self.space() => {
                heap.blocks.remove(&region.address()).ok_or(wrong)
            }
            _ => Err(wrong),
        }
    }

    fn failed(&self, operation: &'static str) -> DeviceError {
        DeviceError::Failed {
            device: self.properties.name.clone(),
            operation,
            reason: std::io::Error::last_os_error().to_string(),
        }
    }

    /// The hidden alias of `region` for engines that pretend to run on this device (tests); host
    /// memory is passed through.
    ///
    /// # Errors
    /// The space is not this device's, the bytes do not lie in a live allocation, or the memory is
    /// said to be pinned and is not registered here.
    pub fn alias(&self, region: Region) -> Result<Region, DeviceError> {
        if region.space() == Space::Pinned {
            return self.registered_alias(region);
        }
        if region.space().cpu_accessible() {
            return Ok(region);
        }
        let wrong = || DeviceError::WrongSpace {
            device: self.properties.name.clone(),
            space: region.space(),
        };
        if region.space() != self.space() {
            return Err(wrong());
        }
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=region.start()).next_back().ok_or_else(wrong)?;
        let whole = Region::new(Space::Host, block.alias, 0, block.len);
        Ok(whole.sub(region.start() - start, region.len())?)
    }
}

/// A copy that happens when it has been polled often enough.
struct Delayed {
    left: Mutex<u32>,
    /// Let go of at the end: work in a row would keep all that came before.
    after: Mutex<Vec<Completion>>,
    dst: Region,
    src: Region,
    done: Mutex<Option<Result<(), DeviceError>>>,
}

// SAFETY: the numbers are those of the contract.
// 1. `done` is set by the copy, made by the polling thread; an error of earlier work comes before the
//    copy, which is then never made, because that error stays.
// 2. The copy is made, and `done` read, under one lock.
// 3. `done` is never changed again. `is_known_over` is the default.
// 4. `as_any` gives `self`.
// 5. `export` is the default, which refuses.
unsafe impl Pending for Delayed {
    fn poll(&self) -> Result<bool, DeviceError> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = done.as_ref() {
            return result.clone().map(|()| true);
        }
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        for earlier in &*after {
            if !earlier.poll()? {
                return Ok(false);
            }
        }
        after.clear();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left > 0 {
            *left -= 1;
            return Ok(false);
        }
        // SAFETY: `FakeDevice::copy`'s caller guarantees both regions until the completion, and
        // only aliases or host memory get here.
        let result = unsafe { access::copy(&self.dst, &self.src) };
        *done = Some(result.clone());
        result.map(|()| true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Each allocation is a fresh mapping of a fresh file, unmapped by `free` or with the device.
// 2. A copy is a `Delayed`, which copies once after all of `after`; `copy_2d` waits and copies by the
//    host's device. Both reach what `alias` found inside live allocations.
// 3. `register` only keeps books; `free` and `release` unmap, and keep nothing.
// 4. `import` maps the exported file, which lives as long as a mapping of it.
// 5. The space is the device's number; `allocation` and `buffer_id` come from the books, where numbers
//    count up; `locate` likewise; `identity` is what a test has given to devices whose
//    memory can be mapped by each other.
// 6. `import_completion` is the default, which refuses.
// 8. The file of the allocation, and where the region lies in it.
// 9. A copy of a device without delay is over when the call returns.
unsafe impl Device for FakeDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        Space::Device { kind: "fake", device: self.number }
    }

    fn abilities(&self) -> Abilities {
        Abilities { shares: NonZeroU8::new(3), kernels_reach_host: true }
    }

    fn reaches(&self, space: Space) -> bool {
        space.cpu_accessible() || space == self.space()
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        let mapped = usize::try_from(len.max(1)).map_err(|_| DeviceError::OutOfMemory {
            device: self.properties.name.clone(),
            len,
            reason: "more than the address space holds".to_owned(),
        })?;
        // SAFETY: the name is a NUL-terminated literal.
        let raw = unsafe { libc::memfd_create(c"gapless-fake".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(self.failed("memfd_create"));
        }
        // SAFETY: `raw` was just opened and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        let size = libc::off_t::try_from(mapped).map_err(|_| self.failed("ftruncate"))?;
        // SAFETY: `file` is an open memfd.
        if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
            return Err(self.failed("ftruncate"));
        }
        let (forbidden, alias) = self.map_twice(&file, mapped)?;
        Ok(self.remember(forbidden, alias, len, mapped, Some(file)))
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        self.take(region, true)?.unmap(region.start());
        Ok(())
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        if dst.len() != src.len() {
            return Err(DeviceError::LengthMismatch { src_len: src.len(), dst_len: dst.len() });
        }
        let work = Delayed {
            left: Mutex::new(self.delay),
            after: Mutex::new(after.to_vec()),
            dst: self.alias(dst)?,
            src: self.alias(src)?,
            done: Mutex::new(None),
        };
        Ok(Completion::Pending(Arc::new(work)))
    }

    unsafe fn copy_2d(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        wait_all(after)?;
        let (dst, src) = (self.alias(dst)?, self.alias(src)?);
        let host = crate::HostDevice::new();
        // SAFETY: the aliases are host memory for as long as the caller keeps the regions.
        unsafe { host.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, &[]) }
    }

    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        self.register_host(host)
    }

    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        self.unregister_host(host)
    }

    fn finish(&self) -> bool {
        self.delay == 0
    }

    fn export(&self, region: Region) -> Result<Export, DeviceError> {
        self.export_region(region)
    }

    fn dma_buf(&self, region: Region) -> Result<DmaBuf, DeviceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.keeps.load(Ordering::Relaxed) {
            return Err(DeviceError::Unsupported { what: "giving memory to adapters of networks" });
        }
        let (descriptor, offset, ..) = self.file_of(region)?;
        Ok(DmaBuf { descriptor, offset })
    }

    fn settle_writes(&self) -> Result<(), DeviceError> {
        self.settled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn import(&self, export: Export) -> Result<Region, DeviceError> {
        self.import_region(export)
    }

    unsafe fn release(&self, region: Region) -> Result<(), DeviceError> {
        self.take(region, false)?.unmap(region.address());
        Ok(())
    }

    fn identity(&self) -> Option<u128> {
        self.identity
    }

    fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        if region.space() != self.space() {
            return None;
        }
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=region.start()).next_back()?;
        (region.start() - start < block.len.max(1)).then_some(block.id)
    }

    fn allocation(&self, region: Region) -> Option<Region> {
        if region.space() != self.space() {
            return None;
        }
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=region.start()).next_back()?;
        let whole = Region::new(self.space(), *start, 0, block.len);
        (region.start() - start < block.len.max(1)).then_some(whole)
    }

    fn locate(&self, address: u64) -> Option<Space> {
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=address).next_back()?;
        (address - start < block.len).then(|| self.space())
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        if Arc::strong_count(&self.heap) > 1 {
            return;
        }
        for (address, block) in std::mem::take(&mut self.heap().blocks) {
            block.unmap(address);
        }
    }
}

/// Unmaps one of this file's own mappings.
fn unmap(address: u64, len: usize) {
    let Ok(address) = usize::try_from(address) else { return };
    // SAFETY: only called with a mapping that `map_twice` made with this length and that is
    // in nobody's table (any more), so it is unmapped once.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), len) };
}
