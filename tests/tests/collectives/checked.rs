//! Checked mode: ranks that do not agree are told what they do not agree on, and nothing is left over.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Blocks, BlocksMut, Collective, Communicator, Error, InPlace, ReduceOp, World};
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

/// What is of 8 bytes everywhere, but `f64` at rank 1 and `i64` at the others, is refused at all ranks, which name both.
#[test]
fn other_elements_are_named_at_all_ranks() {
    checked(3, |comm| {
        let (me, odd) = (comm.rank(), comm.rank() == 1);
        let (f, i) = ([1.5f64; 3], [7i64; 3]);
        let (mut g, mut j) = ([0f64; 3], [0i64; 3]);
        let refused = |name: &str, result: Result<(), Error>| {
            let said = result.unwrap_err().to_string();
            assert!(said.contains("MPI_DOUBLE") && said.contains("MPI_INT64_T"), "{name}: {said}");
        };
        macro_rules! differ {
            ($name:literal, $send:ident, $recv:ident, $do:expr) => {
                let result = match odd {
                    true => {
                        let ($send, $recv) = (&f, &mut g);
                        $do
                    }
                    false => {
                        let ($send, $recv) = (&i, &mut j);
                        $do
                    }
                };
                refused($name, result);
            };
        }
        differ!("bcast", _s, r, comm.bcast(r, 0));
        differ!("allreduce", s, r, comm.allreduce(s, r, ReduceOp::Sum));
        differ!("in place", _s, r, comm.allreduce(InPlace, r, ReduceOp::Max));
        differ!("reduce", s, r, comm.reduce(s, r, ReduceOp::Sum, 2));
        differ!("scan", s, r, comm.scan(s, r, ReduceOp::Sum));
        differ!("gather", s, r, comm.gather(&s[..1], r, 0));
        differ!("scatter", s, r, comm.scatter(s, &mut r[..1], 0));
        differ!("allgather", s, r, comm.allgather(&s[..1], r));
        differ!("alltoall", s, r, comm.alltoall(s, r));
        differ!("reduce_scatter_block", s, r, {
            comm.perform(Collective::reduce_scatter_block(s, &mut r[..1], ReduceOp::Sum))
        });
        let counts = [1, 1, 1];
        differ!("allgatherv", s, r, {
            let all = BlocksMut::packed(&mut r[..], &counts).unwrap();
            comm.perform(Collective::allgatherv(&s[..1], all))
        });
        differ!("alltoallv", s, r, {
            let send = Blocks::packed(&s[..], &counts).unwrap();
            comm.perform(Collective::alltoallv(
                send,
                BlocksMut::packed(&mut r[..], &counts).unwrap(),
            ))
        });
        differ!("gatherv", s, r, {
            let all = BlocksMut::packed(&mut r[..], &counts).unwrap();
            comm.perform(Collective::gatherv(&s[..1], all, 0))
        });
        // Sent are other elements than are received, at all ranks.
        refused("own", comm.alltoall(&f, &mut j));
        assert!(g == [0.0; 3] && j == [0; 3], "nothing has come");
        // Bytes stand for anything, and blocks may have types of their own.
        let mut bytes = [0u8; 24];
        if me == 0 { comm.bcast(&mut bytes, 0) } else { comm.bcast(&mut g, 0) }.unwrap();
        comm.allreduce(&i, &mut j, ReduceOp::Sum).unwrap();
        assert_eq!(j, [21; 3]);
    });
}

/// The first start of a persistent one compares as the checked mode does.
#[test]
fn persistent_ones_refuse_other_elements() {
    crate::ranks(2, |comm| {
        let said = match comm.rank() {
            0 => {
                let made = comm.collective_init((), vec![1.5f64], |_, r| Collective::bcast(r, 0));
                let mut bcast = made.unwrap();
                bcast.start().unwrap();
                bcast.wait().unwrap_err()
            }
            _ => {
                let made = comm.collective_init((), vec![1i64], |_, r| Collective::bcast(r, 0));
                let mut bcast = made.unwrap();
                bcast.start().unwrap();
                bcast.wait().unwrap_err()
            }
        };
        let said = said.to_string();
        assert!(said.contains("MPI_DOUBLE") && said.contains("MPI_INT64_T"), "{said}");
    });
}
