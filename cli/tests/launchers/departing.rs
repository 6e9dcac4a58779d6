//! A process that drops its world, under launchers whose fences count all processes.

use super::pass_under_each;
use gapless::World;

/// Rank 1 needs nobody any more, and ends with 0.
fn leave_one_by_one() {
    let world = World::init().unwrap();
    let comm = world.comm().clone();
    comm.barrier().unwrap();
    if world.rank() == 1 {
        drop(comm);
        return drop(world);
    }
    // What needs it says so.
    let error = comm.recv(&mut [0u8], 1, 0).unwrap_err();
    assert_eq!(error.to_string(), "process 1 left without finalizing");
    drop(comm);
    world.finalize().unwrap();
}

#[test]
fn one_of_two_departs() {
    pass_under_each(2, "launchers::departing::one_of_two_departs", leave_one_by_one);
}

#[test]
fn one_of_four_departs() {
    pass_under_each(4, "launchers::departing::one_of_four_departs", leave_one_by_one);
}
