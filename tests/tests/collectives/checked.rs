//! Checked mode: ranks that do not agree are told what they do not agree on, and nothing is left over.

use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Blocks, BlocksMut, Collective, Communicator, Datatype, Error, InPlace, Primitive, ReduceOp,
    View, ViewMut, World,
};
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
        // Bytes stand for anything.
        let mut bytes = [0u8; 24];
        if me == 0 { comm.bcast(&mut bytes, 0) } else { comm.bcast(&mut g, 0) }.unwrap();
        comm.allreduce(&i, &mut j, ReduceOp::Sum).unwrap();
        assert_eq!(j, [21; 3]);
    });
}

/// A value and a count, and a count and a value.
#[derive(Clone, Copy, Datatype, Default)]
#[repr(C)]
struct Pair(f64, i64);
#[derive(Clone, Copy, Datatype, Default)]
#[repr(C)]
struct Turned(i64, f64);

/// What is sent has to be what is expected, block by block, however it lies.
#[test]
fn blocks_of_several_types_are_compared() {
    checked(3, |comm| {
        let (me, size) = (comm.rank(), comm.size() as usize);
        let refused = |name: &str, result: Result<(), Error>, both: [&str; 2]| {
            let said = result.unwrap_err().to_string();
            assert!(both.iter().all(|one| said.contains(one)), "{name}: {said}");
        };
        let types = ["GAPLESS_DOUBLE_INT64", "several types (MPI_INT64_T, MPI_DOUBLE, ...)"];
        let ours = [Pair(1.5, 2); 3];
        let (mut pairs, mut turned) = ([Pair::default(); 3], [Turned::default(); 3]);
        // Twice the same, in one instance that covers all: no block is a whole instance.
        let all: Vec<Datatype> = (0..2 * size)
            .map(|at| if at % 2 == 0 { Primitive::Double } else { Primitive::Int64 }.into())
            .collect();
        let places: Vec<i64> = (0..2 * size).map(|at| 8 * i64::try_from(at).unwrap()).collect();
        let one = Datatype::structure(&vec![1; 2 * size], &places, &all).unwrap();
        let one = one.commit().unwrap();
        let mut bytes = vec![0u8; 16 * size];
        comm.gather(&ours[..1], &mut pairs[..], 0).unwrap();
        comm.gather(&ours[..1], ViewMut::typed(&mut bytes, 0, &one, 1).unwrap(), 0).unwrap();
        comm.allgather(&ours[..1], ViewMut::typed(&mut bytes, 0, &one, 1).unwrap()).unwrap();
        assert_eq!(bytes[16..24], 1.5f64.to_ne_bytes());
        comm.scatter(View::typed(&bytes, 0, &one, 1).unwrap(), &mut pairs[..1], 1).unwrap();
        comm.alltoall(&ours, ViewMut::typed(&mut bytes, 0, &one, 1).unwrap()).unwrap();

        refused("gather", comm.gather(&ours[..1], &mut turned[..], 0), types);
        refused("scatter", comm.scatter(&ours[..], &mut turned[..1], 0), types);
        refused("allgather", comm.allgather(&ours[..1], &mut turned[..]), types);
        refused("alltoall", comm.alltoall(&ours[..], &mut turned[..]), types);
        let counts = [1, 1, 1];
        let to = BlocksMut::packed(&mut turned[..], &counts).unwrap();
        let result = comm.perform(Collective::gatherv(&ours[..1], to, 2));
        refused("gatherv", result, types);
        let to = BlocksMut::packed(&mut turned[..], &counts).unwrap();
        let result = comm.perform(Collective::allgatherv(&ours[..1], to));
        refused("allgatherv", result, types);
        let send = Blocks::packed(&ours[..], &counts).unwrap();
        let to = BlocksMut::packed(&mut turned[..], &counts).unwrap();
        refused("alltoallv", comm.perform(Collective::alltoallv(send, to)), types);

        // Each block of the root's has a type of its own.
        let layouts = [Primitive::Double, Primitive::Int64, Primitive::Uint64]
            .map(|primitive| Datatype::from(primitive).commit().unwrap());
        let mut words = [0u8; 24];
        for fits in [true, false] {
            let mine = layouts[(me as usize + usize::from(!fits)) % 3].clone();
            let each = words.chunks_exact_mut(8).zip(&layouts);
            let each = each.map(|(word, layout)| ViewMut::typed(word, 0, layout, 1).unwrap());
            let into = BlocksMut::each(each);
            let word = me.to_ne_bytes().repeat(2);
            let send = View::typed(&word, 0, &mine, 1).unwrap();
            let result = comm.perform(Collective::gatherv(send, into, 0));
            match fits {
                true => result.unwrap(),
                false => {
                    let (sent, due) = (Primitive::Uint64.name(), Primitive::Int64.name());
                    refused("each its own", result, [sent, due]);
                }
            }
        }
    });
}

/// The first start of a persistent one compares as the checked mode does.
#[test]
fn persistent_ones_refuse_other_elements() {
    crate::collectives::ranks(2, |comm| {
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
