//! Windows of ranks on two hosts: those of one host are mapped, others are reached by messages, in one window and at one target.

use super::{host_of, on_two_hosts};
use crate::common::{await_flag, flag, meeting_folder};
use gapless::{Communicator, Equivalence, Lock, Place, ReduceOp};

const EACH: u64 = 40;

pub(super) fn neighbours(comm: &Communicator) {
    let (me, size) = (comm.rank(), comm.size());
    let mut window = comm.window_allocate::<u64>(5000).unwrap();
    for rank in 0..size {
        assert_eq!(window.is_mapped(rank).unwrap(), host_of(rank) == host_of(me));
    }
    let numbers: Vec<u64> = (0..5000).map(|at| u64::from(me) * 10_000 + at).collect();
    for step in 1..size {
        window.fence().unwrap();
        window.put(&numbers, (me + step) % size, 0).unwrap();
        window.fence_last().unwrap();
        let from = u64::from((me + size - step) % size) * 10_000;
        let mut found = vec![0u64; 5000];
        window.read(&mut found, 0).unwrap();
        assert!(found.iter().zip(from..).all(|(found, due)| *found == due));
        let far = (me + step) % size;
        window.post(&[far]).unwrap();
        window.start(&[(me + size - step) % size]).unwrap();
        window.get(&mut found, (me + size - step) % size, 0).unwrap();
        window.complete().unwrap();
        window.wait().unwrap();
    }
    window.free().unwrap();
}

/// One target, whose lock and elements are reached both ways.
fn counters(comm: &Communicator) {
    let mut window = comm.window_allocate::<u64>(600).unwrap();
    for target in [0, 3] {
        for _ in 0..EACH {
            window.lock(target, Lock::Exclusive).unwrap();
            let mut count = [0u64];
            window.get(&mut count, target, 599).unwrap();
            window.put(&[count[0] + 1], target, 599).unwrap();
            window.unlock(target).unwrap();
        }
    }
    window.lock_all().unwrap();
    let mut last = 0;
    for _ in 0..EACH {
        window.accumulate(&[1u64; 590], 3, 0, ReduceOp::Sum).unwrap();
        let ticket = window.fetch_and_op(1u64, 3, 595, ReduceOp::Sum).unwrap();
        assert!(ticket >= last);
        last = ticket;
    }
    window.unlock_all().unwrap();
    comm.barrier().unwrap();
    let all = EACH * u64::from(comm.size());
    if comm.rank() == 3 {
        assert_eq!([0, 589, 595, 599].map(|at| window.load(at).unwrap()), [all; 4]);
    }
    if comm.rank() == 0 {
        assert_eq!(window.load(599).unwrap(), all);
    }
    window.free().unwrap();
}

/// Numbers of rank 0, which calls nothing meanwhile if adapters change them.
pub(super) fn numbers(comm: &Communicator, by_adapter: bool) {
    let (me, last) = (comm.rank(), comm.size() - 1);
    let mut window = comm.window().allocate_numbers::<u64>(100).unwrap();
    assert_eq!(window.is_by_adapter(), by_adapter);
    let done = |rank| format!("numbers-{rank}");
    window.fence().unwrap();
    if me == 0 && by_adapter {
        // Not by the library: it makes no progress.
        (1..=last).for_each(|rank| await_flag(&meeting_folder(), &done(rank)));
    } else {
        for round in 0..EACH {
            window.accumulate(&[1u64; 20], 0, 0, ReduceOp::Sum).unwrap();
            let quarter = Place::typed(90, f64::layout(), 1);
            window.accumulate(&[0.25], 0, quarter, ReduceOp::Sum).unwrap();
            let highest = u64::from(me) * 1000 + round;
            window.accumulate(&[highest], 0, 91, ReduceOp::Max).unwrap();
            let mut seen = 0u64;
            while let found = window.compare_and_swap(seen, seen + 1, 0, 92).unwrap()
                && found != seen
            {
                seen = found;
            }
        }
        if by_adapter {
            flag(&meeting_folder(), &done(me));
        }
    }
    window.fence().unwrap();
    // Its own numbers, and those of others, all at once.
    for target in 0..=last {
        for _ in 0..EACH {
            window.fetch_and_op(1u64, target, 99, ReduceOp::Sum).unwrap();
        }
    }
    window.fence_last().unwrap();
    let all = u64::from(comm.size()) * EACH;
    assert_eq!(window.load(99).unwrap(), all);
    if me == 0 {
        let others = if by_adapter { u64::from(last) * EACH } else { all };
        let found = [0, 19, 91, 92].map(|at| window.load(at).unwrap());
        assert_eq!(found, [others, others, u64::from(last) * 1000 + EACH - 1, others]);
        let quarters = f64::from_bits(window.load(90).unwrap()) * 4.0;
        assert!(quarters.to_bits() == f64::from(u32::try_from(others).unwrap()).to_bits());
    }
    window.free().unwrap();
}

#[test]
fn windows_of_two_hosts() {
    on_two_hosts("windows::windows_of_two_hosts", &[], |builder| {
        // Adapters, where hosts have them, change numbers in the tests of verbs.
        let world = builder.only(["sm", "tcp"]).init().unwrap();
        neighbours(world.comm());
        counters(world.comm());
        numbers(world.comm(), false);
        world.finalize().unwrap();
    });
}
