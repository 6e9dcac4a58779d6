//! Checked mode: ranks that do not agree are told what they do not agree on, and nothing is left over.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Communicator, ReduceOp, World};
use gapless_tests::job_of;

/// Runs `body` as each of `size` ranks that compare what they give to collectives.
fn checked(size: u32, body: impl Fn(&Communicator) + Sync) {
    let hub = Hub::new();
    let builder = |_| {
        let transport = Box::new(Loopback::new(&hub));
        World::builder().only(["loopback"]).transport(transport).checked_collectives(true)
    };
    job_of(size, builder, |world| body(world.comm()));
}

#[test]
fn other_roots_are_named_at_all_ranks() {
    checked(2, |world| {
        for comm in [world, &world.dup().unwrap()] {
            let mut word = [comm.rank()];
            let said = comm.bcast(&mut word, comm.rank()).unwrap_err().to_string();
            assert_eq!(said, "bcast: rank 1 gives 1 as the root, but rank 0 gives 0");
            assert_eq!(word, [comm.rank()], "nothing has come");
            comm.bcast(&mut word, 1).unwrap();
            assert_eq!(word, [1]);
        }
    });
}

#[test]
fn other_operations_and_lengths_are_named_at_all_ranks() {
    checked(3, |comm| {
        let (mine, mut sum) = ([1u32, 2], [0u32; 2]);
        let said = match comm.rank() {
            0 | 1 => comm.allreduce(&mine, &mut sum, ReduceOp::Sum),
            _ => comm.barrier(),
        };
        let said = said.unwrap_err().to_string();
        assert!(said.contains("the operation") && said.contains("rank 2"), "{said}");
        let count = if comm.rank() == 1 { 1 } else { 2 };
        let longer = comm.allreduce(&mine[..count], &mut sum[..count], ReduceOp::Sum);
        let said = longer.unwrap_err().to_string();
        assert!(said.contains("rank 1 gives 4 as the number of bytes"), "{said}");
        comm.allreduce(&mine, &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [3, 6]);
    });
}
