//! What goes wrong ends everywhere, with an error that names the rank.
use super::*;
use crate::job::Job;
use gapless_coll::choose::candidates;
use gapless_coll::execute::{IN_FLIGHT_MAX, SLOTS_MAX};
use gapless_coll::{BufferBlocks, CollError, Exchange, Method, Row, Tree};
use gapless_dtype::Equivalence;
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine, ReduceOp, Typed};
use gapless_mem::{Completion, DeviceError, Region, Space};
use gapless_pml::{Config, Protocol};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;

/// A rank dies after some steps: whoever needs it fails and names it, the others end well.
#[test]
fn a_rank_dies_midway() {
    let mut random = Random(20);
    let n = 6;
    let of = sum(Arithmetic::Sum);
    let (mut failed, mut well) = (0, 0);
    for config in
        [Config::default(), Config { force: Some(Protocol::Pipeline), ..Config::default() }]
    {
        for call in [
            Call::Barrier,
            Call::Bcast { root: 0, len: 6000 },
            Call::Allreduce { len: 6000, of, in_place: false },
            Call::Alltoall { len: 400, in_place: false },
            Call::Gather { root: 2, len: 600, in_place: false },
        ] {
            let calls = vec![call; n as usize];
            for algorithm in candidates(&call, &Locality::flat(n as usize)) {
                for turns in [0, 1, 2, 4] {
                    let how = (Arithmetic::Sum, &[Lie::Gaps, Lie::Plain][..]);
                    let mut collective = Collective::new(&calls, &algorithm, how, &mut random);
                    let mut job = Job::with(n, &config);
                    let worlds = job.worlds();
                    let mut executors = collective.start(&Job::sequencers(&worlds));
                    for _ in 0..turns {
                        for (rank, executor) in &mut executors {
                            let _ = job.advance(*rank, executor);
                        }
                        job.progress();
                    }
                    let dead = 1;
                    job.kill(dead);
                    for (rank, result) in (0..).zip(job.finish(&mut executors)) {
                        match result {
                            None => assert_eq!(rank, dead),
                            Some(Ok(())) => well += 1,
                            Some(Err(error)) => {
                                failed += 1;
                                let what = &collective.what;
                                assert_eq!(error.culprit(), Some(dead), "{what}: {error}");
                                assert!(error.to_string().contains(" 1 is lost"), "{error}");
                            }
                        }
                    }
                    // Executors of the dead go first: their memory is leaked.
                    drop(executors);
                }
            }
        }
    }
    assert!(failed > 500 && well > 500, "{failed} failed, {well} ended well");
}

/// All ranks need all others here, so none ends well if one was dead from the start.
#[test]
fn everybody_hears_of_the_dead() {
    let mut random = Random(21);
    let calls = vec![Call::Barrier; 7];
    for algorithm in candidates(&calls[0], &Locality::flat(7)) {
        let how = (Arithmetic::Sum, &[Lie::Plain][..]);
        let mut collective = Collective::new(&calls, &algorithm, how, &mut random);
        let mut job = Job::new(7);
        let worlds = job.worlds();
        let mut executors = collective.start(&Job::sequencers(&worlds));
        job.kill(3);
        for (rank, result) in job.finish(&mut executors).into_iter().enumerate() {
            match result {
                None => assert_eq!(rank, 3),
                Some(result) => {
                    assert_eq!(result.unwrap_err().culprit(), Some(3), "{algorithm}: rank {rank}")
                }
            }
        }
    }
}

/// Nothing wakes a caller that sleeps until something comes, if all has come.
#[test]
fn one_call_goes_as_far_as_it_can() {
    let mut random = Random(24);
    let mut job = Job::new(3);
    let worlds = job.worlds();
    let chain = Algorithm::new(Method::Tree(Tree::Chain)).segmented(40);
    let calls = [Call::Bcast { root: 0, len: 400 }; 3];
    let how = (Arithmetic::Sum, &[Lie::Gaps][..]);
    let mut collective = Collective::new(&calls, &chain, how, &mut random);
    let mut executors = collective.start(&Job::sequencers(&worlds));
    job.kill(0);
    let failed = job.finish(&mut executors[1..2]);
    assert!(matches!(failed[..], [Some(Err(CollError::Lost { rank: 0, .. }))]), "{failed:?}");
    for _ in 0..20 {
        job.progress();
    }
    let told = job.advance(2, &mut executors[2].1);
    assert_eq!(told, Poll::Ready(Err(CollError::ToldLost { rank: 0, by: 1 })));
}

/// Ranks that do not agree on a length fail, and the communicator can be used afterwards.
#[test]
fn lengths_that_differ() {
    let mut random = Random(22);
    for (root_len, len) in [(4000, 400), (400, 4000), (40_000, 8), (8, 40_000)] {
        let n = 5;
        let mut job = Job::new(n);
        let worlds = job.worlds();
        let sequencers = Job::sequencers(&worlds);
        let algorithm = Algorithm::new(Method::Tree(Tree::Chain));
        let calls: Vec<Call<'_>> = (0..n as usize)
            .map(|rank| Call::Bcast { root: 0, len: if rank < 2 { root_len } else { len } })
            .collect();
        let locality = Locality::flat(n as usize);
        let how = (Arithmetic::Sum, &[Lie::Plain][..]);
        let good = vec![calls[0]; n as usize];
        let mut collective = Collective::new(&good, &algorithm, how, &mut random);
        collective.schedules = (0..n as usize)
            .map(|rank| build(rank, &locality, &calls[rank], &algorithm).unwrap())
            .collect();
        let content = |row: &Row| vec![0; usize::try_from(row.len()).unwrap()];
        let rows = collective.schedules.iter().map(|schedule| {
            let (send, recv) = (schedule.row(Buffer::Send), schedule.row(Buffer::Recv));
            let held =
                |row: &Row, random: &mut Random| Held::new(row, Lie::Plain, &content(row), random);
            (held(&send, &mut random), held(&recv, &mut random))
        });
        collective.held = rows.collect();
        let mut executors = collective.start(&sequencers);
        let results: Vec<_> = job.finish(&mut executors).into_iter().flatten().collect();
        assert_eq!(results[0], Ok(()));
        assert_eq!(results[1], Ok(()));
        let expected = CollError::Length { rank: 1, sent: root_len, expected: len };
        assert_eq!(results[2], Err(expected));
        for result in &results[3..] {
            assert_eq!(*result, Err(CollError::GaveUp { rank: 2 }));
        }
        drop(executors);
        let mut after = Collective::new(&good, &algorithm, how, &mut random);
        let mut executors = after.start(&sequencers);
        assert!(job.finish(&mut executors).iter().all(|result| *result == Some(Ok(()))));
        after.check();
    }
}

/// What is wrong with a collective before it begins.
#[test]
fn what_does_not_fit_is_refused() {
    let mut job = Job::new(2);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let refused = |schedule: &Schedule, rows: CallBuffers, combine, on: usize| {
        // SAFETY: it never runs.
        let made = unsafe { Executor::new(schedule.clone(), rows, combine, sequencers[on].next()) };
        made.unwrap_err()
    };
    let none = || CallBuffers {
        send: gapless_coll::BufferBlocks::None,
        recv: gapless_coll::BufferBlocks::None,
    };
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    let make = |call: Call<'_>, algorithm| build(0, &Locality::flat(2), &call, &algorithm).unwrap();
    let bcast = make(Call::Bcast { root: 0, len: 8 }, chain);
    let error = refused(&bcast, none(), None, 1);
    assert_eq!(error, CollError::OtherRank { rank: 0, ranks: 2, own: 1, size: 2 });
    let error = refused(&bcast, none(), None, 0);
    let (buffer, what) = (Buffer::Recv, "bytes");
    assert_eq!(error, CollError::Row { buffer, what, given: 0, expected: 8 });
    let two = gapless_coll::BufferBlocks::Each(Vec::new());
    let error = refused(&bcast, CallBuffers { recv: two, ..none() }, None, 0);
    assert_eq!(error, CollError::Row { buffer, what: "blocks", given: 0, expected: 1 });
    let of = Reduction { unit: 6, commutative: true };
    let mut random = Random(1);
    let reduce = make(Call::Allreduce { len: 12, of, in_place: true }, chain);
    let mut held = Held::new(&Row::one(12), Lie::Plain, &[0; 12], &mut random);
    let int = Datatype::from(Primitive::Int32).commit().unwrap();
    for combine in [None, Some(Combine::new(&Arithmetic::Sum.op(), &int).unwrap())] {
        let given = combine.as_ref().map(Combine::bytes);
        let error = refused(&reduce, CallBuffers { recv: held.blocks(), ..none() }, combine, 0);
        assert_eq!(error, CollError::Combine { unit: 6, given });
    }
    assert!(Combine::new(&Arithmetic::Affine.op(), &int).is_err());
    // A chain's reduction and broadcast are told apart by direction; a ring's rounds go the same way.
    let ring = Algorithm::new(Method::Exchange(Exchange::Ring)).segmented(1);
    let many =
        build(0, &Locality::flat(20), &Call::Bcast { root: 1, len: 20 << 16 }, &ring).unwrap();
    let error = refused_among(20, many);
    assert!(matches!(error, CollError::TooManySlots { max: SLOTS_MAX, .. }), "{error}");
    let mut tickets: Vec<_> = Vec::new();
    for _ in 0..IN_FLIGHT_MAX {
        tickets.push(sequencers[0].next_persistent().unwrap());
    }
    let error = sequencers[0].next_persistent().unwrap_err();
    assert_eq!(error, CollError::TooManyPersistent { max: IN_FLIGHT_MAX });
    tickets.remove(1);
    sequencers[0].next_persistent().unwrap();
}

fn refused_among(ranks: u32, schedule: Schedule) -> CollError {
    let mut job = Job::new(ranks);
    let worlds = job.worlds();
    let ticket = Sequencer::new(&worlds[0]).next();
    let mut held =
        Held::new(&schedule.row(Buffer::Recv), Lie::Plain, &[0; 20 << 16], &mut Random(0));
    let rows = CallBuffers { send: gapless_coll::BufferBlocks::None, recv: held.blocks() };
    // SAFETY: it never runs.
    unsafe { Executor::new(schedule, rows, None, ticket) }.unwrap_err()
}

/// An engine that packs so many times, and then fails once.
struct FailsOnce(AtomicI64);

// SAFETY: the numbers are those of the contract. 1., 2. and 3.: the work is that of `HostEngine`, which keeps them. 4.:
// where it fails it has started nothing.
unsafe impl Wrapper for FailsOnce {
    fn name(&self) -> &'static str {
        "fails once"
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&HostEngine, space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        if matches!(work, Work::Pack(..)) && self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
            let (device, reason) = ("a test's".to_owned(), "on purpose".to_owned());
            return Err(DeviceError::Failed { device, operation: "pack", reason }.into());
        }
        // SAFETY: the caller's promise.
        unsafe { work.run(&HostEngine, after) }
    }
}

/// A rank whose engine fails in the middle of a long message, or before it: the others are told once, so that the next
/// start of a persistent collective meets no message of this one.
#[test]
fn a_start_that_failed_leaves_nothing_to_the_next_one() {
    let mut random = Random(25);
    let config = Config { force: Some(Protocol::Pipeline), ..Config::default() };
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    for (len, packs) in [(600, 0), (400_000, 0), (400_000, 1), (400_000, 2)] {
        let what = format!("{len} bytes, fails after {packs}");
        let engine = Arc::new(FailsOnce(AtomicI64::new(-1)));
        let mut job = Job::with_engines(vec![engine.clone(); 3], &config);
        let worlds = job.worlds();
        let calls = [Call::Bcast { root: 0, len }; 3];
        let how = (Arithmetic::Sum, &[Lie::Gaps][..]);
        let mut collective = Collective::new(&calls, &chain, how, &mut random);
        let sequencers = Job::sequencers(&worlds);
        let tickets = sequencers.iter().map(|each| each.next_persistent().unwrap()).collect();
        let mut executors = collective.with(tickets);
        for start in 0..5 {
            if start > 0 {
                for (_, executor) in &mut executors {
                    // SAFETY: as when it was made.
                    unsafe { executor.restart() }.unwrap();
                }
            }
            let fails = start % 2 == 1;
            if fails {
                engine.0.store(packs, Ordering::Relaxed);
            }
            let results = job.finish(&mut executors);
            if !fails {
                assert_eq!(results, vec![Some(Ok(())); 3], "start {start}, {what}");
                collective.check();
                continue;
            }
            let failed = results[0].clone();
            assert!(matches!(failed, Some(Err(CollError::Engine { rank: 0, .. }))), "{failed:?}");
            for (rank, result) in results.into_iter().enumerate().skip(1) {
                let error = result.unwrap().unwrap_err();
                assert_eq!(error.culprit(), Some(0), "start {start}, rank {rank}, {what}: {error}");
            }
        }
    }
}

/// Nothing begins on a communicator after a collective was dropped in flight.
#[test]
fn a_collective_dropped_in_flight() {
    let mut random = Random(23);
    let mut job = Job::new(2);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    let calls = [Call::Bcast { root: 0, len: 400 }; 2];
    let how = (Arithmetic::Sum, &[Lie::Gaps][..]);
    let mut first = Collective::new(&calls, &chain, how, &mut random);
    let mut second = Collective::new(&calls, &chain, how, &mut random);
    let mut executors = first.start(&sequencers);
    assert_eq!(job.advance(1, &mut executors[1].1), Poll::Pending);
    drop(executors);
    let mut executors = second.start(&sequencers);
    assert_eq!(job.advance(1, &mut executors[1].1), Poll::Ready(Err(CollError::Abandoned)));
    assert!(matches!(job.advance(0, &mut executors[0].1), Poll::Ready(Ok(()))));
    // What peers may write to outlives the endpoints.
    drop(job);
}

/// A rank that has no memory for what it would receive takes part without it: those that need it are told, and the next
/// collective goes on.
#[test]
fn a_rank_without_memory_tells_the_others() {
    let mut job = Job::new(3);
    let sequencers = Job::sequencers(&job.worlds());
    let chain = Algorithm::new(Method::Tree(Tree::Chain));
    let word = Datatype::from(Primitive::Uint64);
    let all_at_once = Datatype::resized(0, 0, &word).unwrap().commit().unwrap();
    let (mut own, mut total) = ([[1u8; 8]; 3], [0u8; 8]);
    // More than there are addresses, if it did not all lie at one place.
    for count in [1u64 << 45, 1, 1 << 45, 1] {
        let mut executors: Vec<(u32, Executor)> = Vec::new();
        for (rank, sequencer) in (0u32..).zip(&sequencers) {
            let count = if rank == 1 { count } else { 1 };
            let of = Reduction { unit: 8, commutative: true };
            let call = Call::Reduce { root: 0, len: 8 * count, of, in_place: false };
            let schedule = build_apart(rank as usize, &Locality::flat(3), &call, &chain).unwrap();
            let region = Region::of_mut(&mut own[rank as usize]);
            let send = BufferBlocks::Whole(Typed::new(region, 0, &all_at_once, count).unwrap());
            let recv = match rank {
                0 => BufferBlocks::Whole(Typed::contiguous(Region::of_mut(&mut total))),
                _ => BufferBlocks::None,
            };
            let rows = CallBuffers { send, recv };
            let combine = Combine::new(&ReduceOp::Max.into(), u8::layout()).unwrap();
            // SAFETY: the buffers outlive the executors.
            let made = unsafe { Executor::new(schedule, rows, Some(combine), sequencer.next()) };
            executors.push((rank, made.unwrap()));
        }
        let ended = job.finish(&mut executors);
        if count == 1 {
            assert_eq!((ended, total), (vec![Some(Ok(())); 3], [1; 8]));
            total = [0; 8];
            continue;
        }
        assert!(matches!(ended[0], Some(Err(CollError::GaveUp { rank: 1 }))), "{ended:?}");
        assert!(matches!(ended[1], Some(Err(CollError::NoMemory { rank: 1, .. }))), "{ended:?}");
        assert_eq!(ended[2], Some(Ok(())));
    }
}
