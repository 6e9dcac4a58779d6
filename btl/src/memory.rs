//! Heap memory by address, for pools and the loopback's allocations: with slots, the only place of this crate that
//! touches raw memory.

use gapless_mem::{Region, Space};
use std::alloc::Layout;

/// Zeroed, aligned heap memory that never moves; freed on drop.
#[derive(Debug)]
pub(crate) struct HeapMemory {
    region: Region,
    layout: Layout,
}

impl HeapMemory {
    /// `len` zeroed bytes at an address that is a multiple of `align`; `None` if there are none.
    pub(crate) fn new(len: usize, align: usize) -> Option<HeapMemory> {
        let layout = Layout::from_size_align(len.max(1), align).ok()?;
        // SAFETY: `layout` has a size of at least one byte.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return None;
        }
        let address = pointer.expose_provenance() as u64;
        Some(HeapMemory { region: Region::new(Space::Host, address, 0, len as u64), layout })
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region {
        self.region
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

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `new` allocated this address with this layout, and nothing frees it but this
        // drop; users of the memory hold the owner.
        unsafe { std::alloc::dealloc(self.pointer(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::HeapMemory;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        let memory = HeapMemory::new(5000, 4096).unwrap();
        assert_eq!(memory.region().start() % 4096, 0);
        // SAFETY: nothing else touches this test's memory.
        let first = unsafe { memory.bytes_mut(8) };
        first[0] = 9;
        // SAFETY: as above, and the exclusive reference is gone.
        let bytes = unsafe { memory.bytes(5000) };
        assert_eq!(bytes[0], 9);
        assert!(bytes[1..].iter().all(|&b| b == 0));
        assert!(HeapMemory::new(usize::MAX, 4096).is_none());
    }
}
