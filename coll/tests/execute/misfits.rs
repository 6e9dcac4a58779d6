//! Calls that do not fit together: found before anything is sent, in checked mode; otherwise no message is taken for
//! another's.
use super::*;
use crate::job::Job;
use gapless_coll::choose::{Table, choose};
use gapless_coll::execute::IN_FLIGHT_MAX;
use gapless_coll::topologies::{Cartesian, Neighborhood};
use gapless_coll::{BetweenCall, BufferBlocks, CollError, Method, Tree};
use std::task::Poll;

const N: usize = 5;

/// A rank's call with plain buffers of its own, and by which algorithm.
struct Misfit<'a> {
    calls: Vec<(Call<'a>, Algorithm)>,
    how: Vec<Arithmetic>,
}

impl<'a> Misfit<'a> {
    /// All ranks make one call, but rank `odd` makes another.
    fn new(good: Call<'a>, odd: usize, other: Call<'a>) -> Self {
        let by = |call: Call<'a>| (call, choose_for(&call));
        let call = |rank| if rank == odd { by(other) } else { by(good) };
        Self { calls: (0..N).map(call).collect(), how: vec![Arithmetic::Sum; N] }
    }

    /// Runs it in checked mode: what all ranks give.
    fn run(&self, job: &mut Job, sequencers: &[Sequencer]) -> CollError {
        let mut random = Random(1);
        let locality = Locality::flat(N);
        let mut held = Vec::new();
        let mut executors = Vec::new();
        for (rank, (call, algorithm)) in self.calls.iter().enumerate() {
            let schedule = build(rank, &locality, call, algorithm).unwrap();
            let mut plain = |buffer| {
                let row = schedule.row(buffer);
                let content = random.bytes(row.len());
                (Held::new(&row, Lie::Plain, &content, &mut random), content)
            };
            let mut own = (plain(Buffer::Send), plain(Buffer::Recv));
            let rows = CallBuffers { send: own.0.0.blocks(), recv: own.1.0.blocks() };
            let (ticket, how) = (sequencers[rank].next(), Some(self.how[rank].how()));
            // SAFETY: the buffers are kept until all have ended.
            let executor = unsafe { Executor::new(schedule, rows, how, ticket) }.unwrap();
            executors.push((u32::try_from(rank).unwrap(), executor));
            held.push(own);
        }
        let results = job.finish(&mut executors);
        drop(executors);
        for (send, recv) in held {
            assert_eq!(send.0.holds(&send.1), Ok(()));
            assert_eq!(recv.0.holds(&recv.1), Ok(()), "something was received");
        }
        let first = results[0].clone().unwrap().unwrap_err();
        assert!(results.iter().all(|it| *it == Some(Err(first.clone()))), "{results:?}");
        first
    }
}

fn choose_for(call: &Call<'_>) -> Algorithm {
    choose(&Table::default(), call, &Locality::flat(N))
}

fn checked(worlds: &[gapless_pml::Comm]) -> Vec<Sequencer> {
    worlds.iter().map(|world| Sequencer::new(world).checked(true)).collect()
}

#[test]
fn all_ranks_say_which_argument_differs_and_where() {
    let mut job = Job::new(5);
    let worlds = job.worlds();
    let sequencers = checked(&worlds);
    let of = sum(Arithmetic::Sum);
    let odd_of = sum(Arithmetic::Affine);
    let bcast = |root, len| Call::Bcast { root, len };
    let reduce = |of, len| Call::Allreduce { len, of, in_place: false };
    let (lens, others) = ([8, 0, 4, 4, 4], [8, 4, 0, 4, 4]);
    let listed = |lens| Call::Allgatherv { lens, in_place: false };
    let alltoall = |in_place| Call::Alltoall { len: 8, in_place };
    for (good, other, what) in [
        (bcast(0, 8), Call::Barrier, "the operation"),
        (bcast(0, 8), reduce(of, 8), "the operation"),
        (bcast(0, 8), bcast(1, 8), "the root"),
        (bcast(0, 0), bcast(0, 8), "the number of bytes"),
        (bcast(0, 8), bcast(0, 0), "the number of bytes"),
        (reduce(of, 16), reduce(of, 8), "the number of bytes"),
        (reduce(of, 16), reduce(odd_of, 16), "the element's bytes"),
        (listed(&lens), listed(&others), "the list of lengths"),
        (alltoall(false), alltoall(true), "the algorithm, or being in place"),
    ] {
        for odd in 0..N {
            let misfit = Misfit::new(good, odd, other);
            match misfit.run(&mut job, &sequencers) {
                CollError::Differs { rank, argument, other, given, expected } => {
                    assert_eq!(argument, what, "{good:?}");
                    // The first rank is what the others are compared with.
                    let named = if odd == 0 { (1, 0) } else { (odd, 0) };
                    assert_eq!((rank as usize, other as usize), named, "{good:?}");
                    assert_ne!(given, expected);
                }
                error => panic!("{good:?} and {other:?} at rank {odd}: {error}"),
            }
        }
    }
    // The communicator is as good as new, and what fits together runs.
    let calls = vec![bcast(3, 400); N];
    let how = (Arithmetic::Sum, &[Lie::Gaps][..]);
    let mut after = Collective::new(&calls, &choose_for(&calls[0]), how, &mut Random(2));
    let mut executors = after.start(&sequencers);
    assert!(job.finish(&mut executors).iter().all(|result| *result == Some(Ok(()))));
    after.check();
}

#[test]
fn algorithms_and_operators_are_compared() {
    let mut job = Job::new(5);
    let worlds = job.worlds();
    let sequencers = checked(&worlds);
    let call = Call::Bcast { root: 0, len: 64 };
    let mut misfit = Misfit::new(call, 0, call);
    misfit.calls[2].1 = Algorithm::new(Method::Tree(Tree::Chain));
    let error = misfit.run(&mut job, &sequencers);
    assert!(error.to_string().starts_with("rank 2 gives one with digest"), "{error}");
    let of = sum(Arithmetic::Affine);
    let call = Call::Allreduce { len: 64, of, in_place: false };
    let mut misfit = Misfit::new(call, 0, call);
    misfit.how = vec![Arithmetic::Affine; N];
    // Sums of 32-bit numbers do for elements of 8 bytes.
    misfit.how[4] = Arithmetic::Sum;
    let error = misfit.run(&mut job, &sequencers);
    assert_eq!(error.culprit(), Some(4), "{error}");
    assert!(error.to_string().contains("the reduction operator"), "{error}");
}

#[test]
fn lengths_that_only_two_ranks_know_are_compared() {
    let mut job = Job::new(5);
    let worlds = job.worlds();
    let sequencers = checked(&worlds);
    let (all, own) = ([4, 0, 8, 12, 4], [4, 0, 8, 0, 4]);
    for gathers in [true, false] {
        let calls: Vec<_> = (0..N)
            .map(|rank| {
                let (root, len, lens, in_place) = (1, own[rank], &all[..], false);
                let call = match gathers {
                    true => Call::Gatherv { root, len, lens, in_place },
                    false => Call::Scatterv { root, len, lens, in_place },
                };
                (call, choose_for(&call))
            })
            .collect();
        let misfit = Misfit { calls, how: vec![Arithmetic::Sum; N] };
        let expected = match gathers {
            true => CollError::Lengths { rank: 3, to: 1, sent: 0, expected: 12 },
            false => CollError::Lengths { rank: 1, to: 3, sent: 12, expected: 0 },
        };
        assert_eq!(misfit.run(&mut job, &sequencers), expected);
    }
    let ring = Cartesian::new(&[5], &[true]).unwrap();
    let around: Vec<Neighborhood> = (0..5).map(|rank| ring.neighbors(rank).unwrap()).collect();
    let lens = |len| [len, 4];
    let (good, bad) = (lens(4), lens(0));
    let calls = around.iter().enumerate().map(|(rank, Neighborhood { sources, destinations })| {
        let send = if rank == 4 { &bad } else { &good };
        let call = Call::NeighborAlltoall { sources, destinations, send, recv: &good };
        (call, choose_for(&call))
    });
    let misfit = Misfit { calls: calls.collect(), how: vec![Arithmetic::Sum; N] };
    let expected = CollError::Lengths { rank: 4, to: 3, sent: 0, expected: 4 };
    assert_eq!(misfit.run(&mut job, &sequencers), expected);
}

/// The ranks of a persistent collective compare even without checked mode, and give the same error at each start.
#[test]
fn persistent_collectives_are_compared_once() {
    let mut random = Random(3);
    let mut job = Job::new(3);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    let calls = [Call::Bcast { root: 0, len: 8 }; 3];
    let how = (Arithmetic::Sum, &[Lie::Plain][..]);
    let mut collective = Collective::new(&calls, &chain, how, &mut random);
    let none = Call::Bcast { root: 0, len: 0 };
    collective.schedules[1] = build(1, &Locality::flat(3), &none, &chain).unwrap();
    collective.held[1].1 = Held::new(&gapless_coll::Row::one(0), Lie::Plain, &[], &mut random);
    let tickets = sequencers.iter().map(|each| each.next_persistent().unwrap()).collect();
    let mut executors = collective.with(tickets);
    for _ in 0..2 {
        for result in job.finish(&mut executors) {
            let error = result.unwrap().unwrap_err();
            assert!(matches!(error, CollError::Differs { rank: 1, other: 0, .. }), "{error}");
        }
        for (_, executor) in &mut executors {
            // SAFETY: as when it was made.
            unsafe { executor.restart() }.unwrap();
        }
    }
}

/// Groups that differ: in an intercommunicator all lengths are compared pair by pair.
#[test]
fn two_groups_are_compared() {
    let mut job = Job::new(3);
    let comms = job.inter(|process| process == 0);
    let sequencers = checked(&comms);
    let none = || CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
    let mut executors: Vec<(u32, Executor)> = Vec::new();
    for (rank, sequencer) in sequencers.iter().enumerate() {
        let at = gapless_coll::execute::between(&comms[rank]).unwrap();
        let root = if rank == 0 { None } else { Some(1) };
        // Rank 0 says that its group has the root, and so does rank 1; rank 2 expects nothing.
        let call = match rank {
            0 => BetweenCall::Bcast { root: Some(0), len: 0 },
            1 => BetweenCall::Bcast { root, len: 0 },
            _ => BetweenCall::Barrier,
        };
        let schedule = at.build(&call).unwrap();
        // SAFETY: there are no buffers.
        let executor = unsafe { Executor::new(schedule, none(), None, sequencer.next()) };
        executors.push((u32::try_from(rank).unwrap(), executor.unwrap()));
    }
    for result in job.finish(&mut executors) {
        let error = result.unwrap().unwrap_err();
        let what = "rank 2 gives barrier as the operation, but rank 0 gives bcast";
        assert_eq!(error.to_string(), what);
    }
}

/// A rank dies while the others compare: they give errors that name it, and nobody waits for ever.
#[test]
fn a_rank_dies_while_the_others_compare() {
    let mut random = Random(4);
    let lens = [4; N];
    let call = Call::Alltoallv { send: &lens, recv: &lens, in_place: false };
    let mut failed = 0;
    for turns in 0..12 {
        let mut job = Job::new(5);
        let worlds = job.worlds();
        let how = (Arithmetic::Sum, &[Lie::Plain][..]);
        let calls = vec![call; N];
        let mut collective = Collective::new(&calls, &choose_for(&call), how, &mut random);
        let mut executors = collective.start(&checked(&worlds));
        for _ in 0..turns {
            for (rank, executor) in &mut executors {
                let _ = job.advance(*rank, executor);
            }
            job.progress();
        }
        job.kill(2);
        for (rank, result) in job.finish(&mut executors).into_iter().enumerate() {
            match result {
                None => assert_eq!(rank, 2),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    failed += 1;
                    assert_eq!(error.culprit(), Some(2), "after {turns} turns: {error}");
                }
            }
        }
    }
    assert!(failed > 12, "{failed} have failed");
}

/// Rank 1 does not expect what rank 0 sends. The message stays, and no later collective takes it.
#[test]
fn a_message_that_nobody_expects_is_not_taken_for_a_later_one() {
    let mut random = Random(5);
    let mut job = Job::new(2);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    let how = (Arithmetic::Sum, &[Lie::Plain][..]);
    let calls = [Call::Bcast { root: 0, len: 8 }; 2];
    let mut first = Collective::new(&calls, &chain, how, &mut random);
    let none = Call::Bcast { root: 0, len: 0 };
    first.schedules[1] = build(1, &Locality::flat(2), &none, &chain).unwrap();
    first.held[1].1 = Held::new(&gapless_coll::Row::one(0), Lie::Plain, &[], &mut random);
    let mut executors = first.start(&sequencers);
    assert_eq!(job.finish(&mut executors), [Some(Ok(())), Some(Ok(()))]);
    drop(executors);
    // Rank 0 is ahead of rank 1 by all of the first epoch, and waits there.
    let count = usize::try_from(2 * IN_FLIGHT_MAX).unwrap() + 5;
    let mut all: Vec<Collective> =
        (0..count).map(|_| Collective::new(&calls, &chain, how, &mut random)).collect();
    let mut executors: Vec<_> = all.iter_mut().map(|each| each.start(&sequencers)).collect();
    let mut ended = 0;
    while ended < count {
        let result = job.advance(0, &mut executors[ended][0].1);
        if result == Poll::Pending && job.pml(0).progress() == 0 {
            break;
        }
        ended += usize::from(result == Poll::Ready(Ok(())));
        job.progress();
    }
    assert_eq!(ended as u64, IN_FLIGHT_MAX - 1);
    let mut flat: Vec<_> = executors.into_iter().flatten().collect();
    for result in job.finish(&mut flat) {
        assert_eq!(result, Some(Ok(())));
    }
    all.iter().for_each(Collective::check);
    assert_eq!((sequencers[0].strays(), sequencers[1].strays()), (0, 1));
}
