//! Heap memory by address, for pools and the loopback's allocations: with slots, the only place of this crate that
//! touches raw memory. It is of the allocator, or a mapping of its own: that can be given up while the system still reads
//! it.

use gapless_mem::{Device, DeviceError, Region, Space};
use std::alloc::Layout;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What devices register is whole pages, and no page for two buffers: the largest page of the processors that this runs on.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };

/// Zeroed, aligned heap memory that never moves; freed on drop, once the devices that know it have forgotten it.
pub(crate) struct HeapMemory {
    region: Region,
    layout: Layout,
    /// It is a mapping of its own.
    mapped: bool,
    /// The system may still read it.
    retired: AtomicBool,
    /// Those that it is registered with.
    devices: Mutex<Vec<Arc<dyn Device>>>,
    /// Whether all devices that work on it know it.
    pinned: AtomicBool,
}

impl HeapMemory {
    /// `len` zeroed bytes at an address that is a multiple of `align`; `None` if there are none.
    pub(crate) fn new(len: usize, align: usize) -> Option<HeapMemory> {
        // Nothing else shares its last page.
        let layout = Layout::from_size_align(len.max(1), align).ok()?.pad_to_align();
        // SAFETY: `layout` has a size of at least one byte.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return None;
        }
        Some(HeapMemory::of(pointer, len, layout, false))
    }

    /// The same as a mapping of its own, of whole pages. `None` if there is none, also because there are too many.
    #[cfg(feature = "watch")]
    pub(crate) fn mapped(len: usize) -> Option<HeapMemory> {
        use rustix::mm::{MapFlags, ProtFlags};
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?.pad_to_align();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping where the system likes it touches no memory that is there.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(at, layout.size(), rights, MapFlags::PRIVATE) };
        Some(HeapMemory::of(mapped.ok()?.cast(), len, layout, true))
    }

    /// What was allocated or mapped.
    fn of(pointer: *mut u8, len: usize, layout: Layout, mapped: bool) -> HeapMemory {
        let address = pointer.expose_provenance() as u64;
        let region = Region::new(Space::Host, address, 0, len as u64);
        let (devices, pinned) = (Mutex::default(), AtomicBool::new(false));
        HeapMemory { region, layout, mapped, retired: AtomicBool::new(false), devices, pinned }
    }

    /// The system may read it for as long as it likes, also after this value is dropped. Nobody writes it any more. A
    /// mapping is unmapped then: its pages belong to the system until that has done with them. What is the allocator's is
    /// never freed.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// All of it: page-locked memory, if all devices that work on it know it.
    pub(crate) fn region(&self) -> Region {
        if !self.pinned.load(Ordering::Relaxed) {
            return self.region;
        }
        Region::new(Space::Pinned, self.region.address(), 0, self.region.len())
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages that it lies in.
    fn pages(&self) -> Region {
        Region::new(Space::Host, self.region.address(), 0, self.layout.size() as u64)
    }

    /// It is ordinary memory until it is registered again.
    pub(crate) fn unpin(&self) {
        self.pinned.store(false, Ordering::Relaxed);
    }

    /// Makes it known to these devices, once each. From now on its regions are page-locked, if none refuses.
    ///
    /// # Errors
    /// One has refused: until all know it, it is ordinary memory.
    pub(crate) fn register(&self, all: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
        let mut known = self.devices();
        self.pinned.store(false, Ordering::Relaxed);
        for device in all {
            if known.iter().any(|one| Arc::ptr_eq(one, device)) {
                continue;
            }
            // SAFETY: the memory is freed by `drop` alone, which unregisters it first.
            match unsafe { device.register(self.pages()) } {
                Ok(()) => known.push(Arc::clone(device)),
                // It reaches the host's memory by copies, whoever has locked it.
                Err(DeviceError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.pinned.store(!known.is_empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Has a device forget it, if it knows it.
    ///
    /// # Safety
    /// [`Device::finish`] has returned `true`, and no work of the device's on this memory began since.
    pub(crate) unsafe fn unregister(&self, device: &Arc<dyn Device>) {
        let mut known = self.devices();
        let Some(at) = known.iter().position(|one| Arc::ptr_eq(one, device)) else { return };
        // SAFETY: `register` registered it with this device, no work of which is in flight on it: the caller's promise.
        match unsafe { device.unregister(self.pages()) } {
            Ok(()) => drop(known.swap_remove(at)),
            // It may still reach the memory: `drop` must know that.
            Err(error) => tracing::warn!(%error, "a device does not forget memory of the host"),
        }
        let pinned = self.pinned.load(Ordering::Relaxed) && !known.is_empty();
        self.pinned.store(pinned, Ordering::Relaxed);
    }

    fn pointer(&self) -> *mut u8 {
        self.region.as_ptr().expect("heap memory is for the CPU")
    }

    /// The first `len` bytes, or all if there are fewer.
    ///
    /// # Safety
    /// Nothing writes them while the reference lives.
    pub(crate) unsafe fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the memory is `layout.size()` initialised bytes, alive as long as `self`; the
        // caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.pointer(), len.min(self.layout.size())) }
    }

    /// The first `len` bytes, or all if there are fewer.
    ///
    /// # Safety
    /// Nothing else touches them while the reference lives.
    #[expect(clippy::mut_from_ref, reason = "exclusiveness is the caller's to prove")]
    pub(crate) unsafe fn bytes_mut(&self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; the caller vouches for exclusiveness.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), len.min(self.layout.size())) }
    }
}

impl fmt::Debug for HeapMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapMemory {:?}", self.region())
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        let (pages, mut known) = (self.pages(), false);
        for device in self.devices().drain(..) {
            // SAFETY: `register` registered it with this device. Whoever has a device work on it holds a slot or a
            // fragment until that is over, and those keep their pool, which owns this.
            known |= unsafe { device.unregister(pages) }.is_err();
        }
        if known {
            // A device may still reach it: nobody else may have it.
            return;
        }
        if self.mapped {
            #[cfg(feature = "watch")]
            // SAFETY: `mapped` mapped this address with this size, whole pages, which nothing unmaps but this drop; users
            // of the memory hold the owner. A system that still reads what was retired (a send without a copy) holds its
            // pages by references of its own, as get_user_pages(9) gives them, and not by this mapping: they become
            // nobody else's before it has given them back.
            let _ = unsafe { rustix::mm::munmap(self.pointer().cast(), self.layout.size()) };
            return;
        }
        if *self.retired.get_mut() {
            // The allocator would give it to somebody else, and the system send what they write.
            return;
        }
        // SAFETY: `new` allocated this address with this layout, and nothing frees it but this
        // drop; users of the memory hold the owner.
        unsafe { std::alloc::dealloc(self.pointer(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::{HeapMemory, PAGE};
    use gapless_mem::fake::FakeDevice;
    use gapless_mem::{Device, Space};
    use std::sync::Arc;

    #[test]
    fn memory_that_devices_know_is_page_locked_until_it_is_freed() {
        let fakes = [Arc::new(FakeDevice::new(0)), Arc::new(FakeDevice::new(1))];
        let devices = fakes.clone().map(|device| device as Arc<dyn Device>);
        let memory = HeapMemory::new(PAGE + 5, PAGE).unwrap();
        assert_eq!(memory.region().space(), Space::Host);
        for _ in 0..2 {
            memory.register(&devices).unwrap();
            assert_eq!(
                (memory.region().space(), memory.region().len()),
                (Space::Pinned, PAGE as u64 + 5)
            );
            assert!(fakes.iter().all(|fake| fake.registered().len() == 1));
        }
        drop(memory);
        assert!(fakes.iter().all(|fake| fake.registered().is_empty()));
    }

    #[test]
    fn memory_is_zeroed_and_aligned() {
        is_zeroed_and_aligned(HeapMemory::new(5000, 4096).unwrap());
        assert!(HeapMemory::new(usize::MAX, 4096).is_none());
        #[cfg(feature = "watch")]
        {
            is_zeroed_and_aligned(HeapMemory::mapped(5000).unwrap());
            assert!(HeapMemory::mapped(usize::MAX).is_none());
            assert!(HeapMemory::mapped(usize::MAX / 4).is_none());
        }
    }

    fn is_zeroed_and_aligned(memory: HeapMemory) {
        assert_eq!(memory.region().start() % 4096, 0);
        // SAFETY: nothing else touches this test's memory.
        let first = unsafe { memory.bytes_mut(8) };
        first[0] = 9;
        // SAFETY: as above, and the exclusive reference is gone.
        let bytes = unsafe { memory.bytes(5000) };
        assert_eq!(bytes[0], 9);
        assert!(bytes[1..].iter().all(|&b| b == 0));
    }

    /// Memory that was retired is still there, unless it is a mapping: an allocator would give it to the next that asks.
    #[test]
    fn retired_memory_of_the_allocator_is_nobody_elses() {
        let len = 77_777;
        let memory = HeapMemory::new(len, PAGE).unwrap();
        let at = memory.region().start();
        memory.retire();
        drop(memory);
        let others: Vec<_> = (0..64).map(|_| HeapMemory::new(len, PAGE).unwrap()).collect();
        assert!(others.iter().all(|other| other.region().start() != at));
    }

    /// And a mapping is gone.
    #[cfg(feature = "watch")]
    #[test]
    fn a_mapping_that_was_retired_is_unmapped() {
        let maps = |at: u64| {
            let text = std::fs::read_to_string("/proc/self/maps").unwrap();
            text.lines().any(|line| {
                let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
                let [from, to] = [from, to].map(|word| u64::from_str_radix(word, 16).unwrap());
                (from..to).contains(&at)
            })
        };
        // Other tests map as well, perhaps there: not each time.
        let unmapped = (0..100).any(|_| {
            let memory = HeapMemory::mapped(3 * PAGE).unwrap();
            let at = memory.region().start();
            assert!(maps(at));
            memory.retire();
            drop(memory);
            !maps(at)
        });
        assert!(unmapped);
    }
}
