//! Reductions of host memory allocate nothing, unless there are many sources or an element of a user's is large, or
//! all that is left is a copy between layouts of short runs (one source, `MPI_REPLACE`), which may take a buffer.

#![allow(
    unsafe_code,
    reason = "counts what the allocator is asked for, and describes memory to a reducer"
)]

use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{HostEngine, Op, ReduceOp, Reducer, Typed, UserOp};
use gapless_mem::Region;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread; constant and without a destructor, so counting allocates nothing itself.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: both methods hand their arguments to the system's allocator and return its answer; counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Layout) {
        // SAFETY: `at` came from `System.alloc`, with the same block.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_few_sources_take_no_memory_from_the_heap() {
    let double = Datatype::from(Primitive::Double);
    let flat = double.commit().unwrap();
    let column = Datatype::vector(1000, 1, 2, &double).unwrap().commit().unwrap();
    let mut memory = vec![vec![0u8; 16000]; 5];
    let regions: Vec<Region> = memory.iter_mut().map(|memory| Region::of_mut(memory)).collect();
    let typed = |layout, count| -> Vec<Typed> {
        regions.iter().map(|region| Typed::new(*region, 0, layout, count).unwrap()).collect()
    };
    let ops: [Op; 2] = [ReduceOp::Sum.into(), UserOp::packed("none", true, &flat, |_| {}).into()];
    for (buffers, op) in [typed(&flat, 1000), typed(&column, 1)]
        .iter()
        .flat_map(|b| ops.iter().map(move |op| (b, op)))
    {
        let count = || {
            let before = ALLOCATIONS.get();
            // SAFETY: five buffers of this test, apart from each other, which live through the call.
            let done =
                unsafe { HostEngine.reduce_into(op, &buffers[..4], &buffers[4], 0..8000, &[]) };
            assert!(done.is_ok());
            ALLOCATIONS.get() - before
        };
        assert_eq!(count(), 0, "{op:?}");
    }
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}
