//! The system's allocator, counting.
#![allow(unsafe_code, reason = "an allocator passes on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Constant and without a destructor, so that counting allocates nothing itself.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread; a test program has it as its `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

/// Allocations of this thread so far.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: both methods hand their arguments to the system's allocator unchanged, and return its answer; counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc`, with the same layout.
        unsafe { System.dealloc(at, layout) }
    }
}
