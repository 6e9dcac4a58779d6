//! Arguments that do not fit are errors that name them, and later collectives are not disturbed.

use crate::collectives::ranks;
use gapless::coll::{BuildError, Operation};
use gapless::{
    BlocksMut, Collective, CollectiveError, Datatype, Error, InPlace, Primitive, ReduceOp, UserOp,
    View, ViewMut,
};

fn why(result: Result<(), Error>) -> CollectiveError {
    match result {
        Err(Error::Collective { error, .. }) => *error,
        other => panic!("{other:?}"),
    }
}

/// All ranks make the same mistake.
#[test]
fn mistakes_are_named_by_argument() {
    use CollectiveError as E;
    const SEND: &str = "send buffer";
    const RECV: &str = "receive buffer";
    ranks(2, |comm| {
        let (one, mut two, mut three) = ([1i32], [0i32; 2], [0i32; 3]);
        let sum = ReduceOp::Sum;
        let gather = why(comm.allgather(&one, &mut three));
        assert_eq!(gather, E::Uneven { argument: RECV, bytes: 12, blocks: 2 });
        let gather = why(comm.allgather(&two.clone(), &mut two));
        assert_eq!(gather, E::Block { many: RECV, bytes: 8, blocks: 2, one: SEND, len: 8 });
        let said = "the receive buffer of 8 bytes has 2 blocks of 4, but the send buffer has 8";
        assert_eq!(gather.to_string(), said);
        assert_eq!(why(comm.allgather((), &mut two)), E::Missing { argument: SEND });
        assert_eq!(why(comm.allgather(&one, InPlace)), E::InPlace { argument: RECV });
        let reduce = why(comm.allreduce(&one, &mut two, sum));
        assert_eq!(reduce, E::Length { argument: SEND, bytes: 4, expected: 8 });
        let blocks = BlocksMut::packed(&mut three, &[1, 1, 1]).unwrap();
        let gather = why(comm.allgatherv(&one, blocks));
        assert_eq!(gather, E::Blocks { argument: RECV, given: 3, expected: 2 });
        let scatter = why(comm.reduce_scatter(&two, &mut three, &[1, 1, 1], sum));
        assert_eq!(scatter, E::Blocks { argument: "list of counts", given: 3, expected: 2 });
        let root = why(comm.bcast(&mut two, 2));
        assert_eq!(root, E::Arguments(BuildError::NoSuchRank { rank: 2, ranks: 2 }));
        let reduce = why(comm.allreduce(&[1.5f32], &mut [0i32], sum));
        let [float, int] = [Primitive::of::<f32>(), Primitive::of::<i32>()];
        let said = format!("the send buffer has {float}, but the other buffer has {int}");
        assert_eq!(reduce.to_string(), said);
        let and = why(comm.allreduce(&[1.5f32], &mut [0f32], ReduceOp::Band));
        assert!(matches!(and, E::Operation { argument: RECV, .. }), "{and}");
        assert_eq!(why(comm.neighbor_allgather(&one, &mut two)), E::NoTopology);
        let twice = Datatype::resized(0, 0, &Primitive::Int32.into()).unwrap().commit().unwrap();
        let into = ViewMut::typed(&mut two, 0, &twice, 2).unwrap();
        let overlap = why(comm.allreduce(&[1i32, 2], into, sum));
        assert_eq!(overlap, E::Overlap { argument: RECV });
        // It may be sent.
        let both = View::typed(&one, 0, &twice, 2).unwrap();
        comm.allreduce(both, &mut two, sum).unwrap();
        assert_eq!(two, [2, 2]);
        let error = comm.scope(|s| s.iallgather(&one, &mut three).map(drop)).unwrap_err();
        let said =
            "allgather: the receive buffer of 12 bytes does not consist of 2 blocks of one length";
        assert_eq!(error.to_string(), said);
        assert!(matches!(error, Error::Collective { operation: Operation::Allgather, .. }));
    });
}

#[test]
fn a_users_function_that_panics_is_named() {
    ranks(2, |comm| {
        let number = Datatype::from(Primitive::Int32).commit().unwrap();
        let op = UserOp::packed("odd", true, &number, |_| panic!("no sum today"));
        let failed = comm.allreduce(&[1i32], &mut [0i32], op).unwrap_err();
        let said = failed.to_string();
        assert!(said.contains("odd") && said.contains("no sum today"), "{said}");
        comm.barrier().unwrap();
    });
}

/// It has the world's lock, which it would wait for.
#[test]
fn a_users_function_that_calls_its_world_does_not_wait_for_itself() {
    ranks(2, |comm| {
        let number = Datatype::from(Primitive::Int32).commit().unwrap();
        let theirs = comm.clone();
        let op = UserOp::packed("restless", true, &number, move |_| {
            let _ = theirs.iprobe(0, 5);
        });
        for len in [1, 100_000] {
            let failed = comm.allreduce(&vec![1i32; len], &mut vec![0i32; len], op.clone());
            let said = failed.unwrap_err().to_string();
            assert!(said.contains("restless") && said.contains("wait for itself"), "{said}");
        }
        comm.barrier().unwrap();
    });
}

/// One rank alone makes a mistake: its later collectives are not taken for the one that it was refused.
#[test]
fn what_is_refused_at_one_rank_is_not_mixed_with_what_follows() {
    ranks(2, |comm| {
        let mut word = [comm.rank()];
        let mut number = [0u32; 1];
        comm.scope(|s| {
            // A non-blocking one, which rank 1 alone is refused. Rank 0 is the root, and needs nothing.
            if comm.rank() == 0 {
                s.ibcast(&mut word, 0)?.wait()?;
            } else {
                assert!(s.begin(Collective::bcast(&mut word, 9)).is_err());
            }
            Ok(())
        })
        .unwrap();
        comm.allreduce(&[5u32], &mut number, ReduceOp::Sum).unwrap();
        assert_eq!((word, number), ([comm.rank()], [10]));
    });
}

/// Refused at all ranks but the root, which needs nothing of them: the communicator's next collectives are the same ones
/// everywhere.
#[test]
fn the_first_collective_may_be_refused_at_some_ranks() {
    for size in [2, 3, 4] {
        ranks(size, |comm| {
            let mut word = [comm.rank()];
            if comm.rank() == 0 {
                comm.bcast(&mut word, 0).unwrap();
            } else {
                let nobody = BuildError::NoSuchRank { rank: 9, ranks: size as usize };
                assert_eq!(why(comm.bcast(&mut word, 9)), CollectiveError::Arguments(nobody));
            }
            comm.barrier().unwrap();
            comm.allreduce(&[5u32], &mut word, ReduceOp::Sum).unwrap();
            assert_eq!(word, [5 * comm.size()]);
        });
    }
}

/// What is remembered of a call that was refused does not make it another one the next time.
#[test]
fn what_is_refused_once_is_refused_again() {
    ranks(2, |comm| {
        let sum = ReduceOp::Sum;
        let nobody = || CollectiveError::Arguments(BuildError::NoSuchRank { rank: 9, ranks: 2 });
        let (mut word, mut all) = ([comm.rank()], [0u32; 2]);
        for root in [9, 9, 9] {
            assert_eq!(why(comm.bcast(&mut word, root)), nobody());
        }
        for root in [9, 9] {
            assert_eq!(why(comm.gather(&word, (), root)), nobody());
        }
        for root in [9, 9] {
            assert_eq!(why(comm.scatter((), &mut word, root)), nobody());
        }
        for root in [9, 9] {
            assert_eq!(why(comm.reduce(&word, (), sum, root)), nobody());
        }
        // One half of an element for each rank.
        let pair = Datatype::contiguous(2, &Primitive::Uint32.into()).unwrap();
        let pair = Datatype::contiguous(1, &pair).unwrap().commit().unwrap();
        for _ in 0..2 {
            let mut half = [0u8; 2];
            let sent = View::typed(&all, 0, &pair, 1).unwrap();
            assert!(comm.reduce_scatter_block(sent, &mut half, sum).is_err());
        }
        for _ in 0..3 {
            comm.allgather(&word, &mut all).unwrap();
            assert_eq!(all, [0, 1]);
        }
    });
}
