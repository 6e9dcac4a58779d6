//! Exchanging a plan allocates nothing once tables have grown, also when another array has its turn.

#![allow(unsafe_code, reason = "an allocator that counts")]

use gapless::{Datatype, Primitive, World};
use gapless_testkit::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_allocate_nothing() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let double = Datatype::from(Primitive::Double);
    let column = Datatype::vector(32, 1, 32, &double).unwrap().commit().unwrap();
    let row = Datatype::contiguous(16, &double).unwrap().commit().unwrap();
    let (mut cells, mut next) = (vec![1.0f64; 32 * 32], vec![2.0f64; 32 * 32]);
    let mut plan = comm.plan(&cells);
    for (at, tag) in (0..4).zip(0..) {
        plan = plan.send(at, &column, 1, 0, tag).unwrap();
        plan = plan.recv(at + 4, &column, 1, 0, tag).unwrap();
        plan = plan.send(8 + 32 * at, &row, 1, 0, 10 + tag).unwrap();
        plan = plan.recv(8 + 32 * (at + 4), &row, 1, 0, 10 + tag).unwrap();
    }
    let mut plan = plan.build().unwrap();
    let mut steps = |count: u32| {
        let before = allocations();
        for _ in 0..count {
            plan.exchange(&mut cells).unwrap();
            std::mem::swap(&mut cells, &mut next);
        }
        allocations() - before
    };
    steps(50);
    assert_eq!(steps(200), 0);
    world.finalize().unwrap();
}
