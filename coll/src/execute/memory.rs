//! Memory of the executor's own, and what it is lent.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use gapless_mem::{Region, Space};

use super::lender::Lender;
use crate::schedule::SCRATCH_ALIGN;

/// Memory for data, which its owner does not look at: lent, or of the host.
#[derive(Debug)]
pub(super) enum Room {
    Own(Memory),
    Lent(Loan),
}

/// Lent memory.
#[derive(Debug)]
pub(super) struct Loan {
    region: Region,
    of: Arc<dyn Lender>,
}

impl Room {
    /// So many bytes; `None` if there are not so many.
    pub(super) fn new(bytes: u64, lender: Option<&Arc<dyn Lender>>) -> Option<Self> {
        if let Some(of) = lender.filter(|_| bytes > 0)
            && let Some(region) = of.lend(bytes)
        {
            let region = region.sub(0, bytes).ok()?;
            return Some(Room::Lent(Loan { region, of: Arc::clone(of) }));
        }
        Memory::new(bytes).map(Room::Own)
    }

    pub(super) fn region(&self) -> Region {
        match self {
            Room::Own(memory) => memory.region(),
            Room::Lent(loan) => loan.region,
        }
    }

    /// As [`Memory::head`]; zeros of lent memory, which is never for what is looked at.
    pub(super) fn head<const N: usize>(&self) -> [u8; N] {
        match self {
            Room::Own(memory) => memory.head(),
            Room::Lent(_) => [0; N],
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: it was lent with this region; whoever has granted it to others forgets the value instead.
        unsafe { self.of.take_back(self.region) };
    }
}

/// Zeroed memory, aligned to [`SCRATCH_ALIGN`]. What is lent to others is a region of it; no reference covers that.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, and gives out descriptions of it only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many bytes; `None` if there are not so many.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        let align = usize::try_from(SCRATCH_ALIGN).ok()?;
        let layout = Layout::from_size_align(usize::try_from(bytes).ok()?, align).ok()?;
        if layout.size() == 0 {
            return Some(Self { start: NonNull::dangling(), layout });
        }
        // SAFETY: the layout has bytes.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub(super) fn region(&self) -> Region {
        let address = self.start.as_ptr().expose_provenance();
        Region::new(Space::Host, address as u64, 0, self.layout.size() as u64)
    }

    /// Writes numbers to its beginning, as far as they fit. Nothing else touches it meanwhile.
    pub(super) fn write(&self, numbers: &[u64]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        // SAFETY: no reference covers this memory; the caller sees to it that nothing else touches it.
        let written = unsafe { gapless_mem::write(&self.region(), 0, &bytes) };
        debug_assert!(written.is_ok(), "what is written fits");
    }

    /// The numbers from number `first` on; zeros where it has none. Nothing is written to it meanwhile.
    pub(super) fn numbers<const N: usize>(&self, first: usize) -> [u64; N] {
        let mut numbers = [0; N];
        for (at, number) in (first as u64..).zip(&mut numbers) {
            let mut bytes = [0; 8];
            // SAFETY: as in `head`.
            let read = unsafe { gapless_mem::read(&self.region(), 8 * at, &mut bytes) };
            *number = read.map_or(0, |()| u64::from_le_bytes(bytes));
        }
        numbers
    }

    /// Its first bytes; zeros where it has none. Nothing is written to it meanwhile.
    pub(super) fn head<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: no reference covers this memory; the caller sees to it that nothing writes it.
        let read = unsafe { gapless_mem::read(&self.region(), 0, &mut bytes) };
        read.map_or([0; N], |()| bytes)
    }
}

impl Memory {
    /// One of its bytes; 0 where it has none. Nothing is written to it meanwhile.
    pub(super) fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        // SAFETY: as in `head`.
        let read = unsafe { gapless_mem::read(&self.region(), at as u64, &mut byte) };
        read.map_or(0, |()| byte[0])
    }

    /// The `len` bytes from `at` on, or as many of them as there are.
    ///
    /// # Safety
    /// While the slice is there, nothing else touches these bytes: none of them are lent.
    pub(super) unsafe fn slice(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = at.min(self.layout.size());
        let len = len.min(self.layout.size() - at);
        // SAFETY: `at` lies inside the allocation, or at its end.
        let start = unsafe { self.start.add(at) };
        // SAFETY: the bytes lie inside the allocation, which was zeroed, and lives as long as `self`, which is borrowed
        // for as long as the slice; the caller sees to it that nothing else touches them.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: `new` has allocated it with this layout; whoever has granted it to others forgets the value
            // instead.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}
