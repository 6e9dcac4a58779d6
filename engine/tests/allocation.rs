//! Reductions of host memory allocate nothing, unless there are many sources or an element of a user's is large, or
//! all that is left is a copy between layouts of short runs (one source, `MPI_REPLACE`), which may take a buffer.

#![allow(
    unsafe_code,
    reason = "counts what the allocator is asked for, and describes memory to a reducer"
)]

use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{HostEngine, Op, ReduceOp, Reducer, Typed, UserOp};
use gapless_mem::Region;
use gapless_testkit::{Counting, allocations};

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
            let before = allocations();
            // SAFETY: five buffers of this test, apart from each other, which live through the call.
            let done =
                unsafe { HostEngine.reduce_into(op, &buffers[..4], &buffers[4], 0..8000, &[]) };
            assert!(done.is_ok());
            allocations() - before
        };
        assert_eq!(count(), 0, "{op:?}");
    }
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(allocations() - before, 1, "the counter counts");
}
