//! Collectives by mailboxes and through slots: results, losses, sleepers.
pub(crate) mod calls;
mod given_up;
mod kept;
mod lengths;
mod single_copy;

use super::*;
use crate::job::Job;
use crate::late::Late;
use calls::{Choose, any, exchange, listed, long, short};
use gapless_coll::choose::candidates;
use gapless_coll::sm::{CallPlan, Opening, SharedSegment};
use gapless_coll::{BufferBlocks, CollError, Operation};
use gapless_engine::{Engine, HostEngine, Reducer};
use gapless_pml::Pml;
use gapless_testkit::{rounds, sample};
use std::collections::VecDeque;
use std::task::Poll;

const TURNS_MAX: u32 = 200_000;

/// The segments of all ranks that live, or that there are none.
pub(crate) fn open(
    job: &mut Job,
    sequencers: &[Sequencer],
    kill: Option<(u32, u32)>,
) -> Vec<Option<SharedSegment>> {
    open_all(job, sequencers.iter().map(|it| Some(Opening::new(it))).collect(), kill)
}

/// What comes of these openings; `kill`: a rank, and when it dies.
pub(crate) fn open_all(
    job: &mut Job,
    mut openings: Vec<Option<Opening>>,
    kill: Option<(u32, u32)>,
) -> Vec<Option<SharedSegment>> {
    let mut segments: Vec<Option<SharedSegment>> = openings.iter().map(|_| None).collect();
    for turn in 0..TURNS_MAX {
        if let Some((rank, when)) = kill
            && turn == when
        {
            job.kill(rank);
            openings[rank as usize] = None;
        }
        for (rank, opening) in openings.iter_mut().enumerate() {
            let Some(going) = opening else { continue };
            let pml = job.ranks[rank].as_mut().unwrap();
            if let Poll::Ready(segment) = going.advance(pml, &HostEngine, &HostEngine) {
                segments[rank] = segment.unwrap();
                *opening = None;
            }
        }
        if openings.iter().all(Option::is_none) {
            return segments;
        }
        job.progress();
    }
    panic!("the openings do not end");
}

/// A job of so many ranks, and their segments.
pub(crate) fn job(ranks: u32) -> (Job, Vec<SharedSegment>) {
    let mut job = Job::new(ranks);
    let worlds = job.worlds();
    let segments = open(&mut job, &Job::sequencers(&worlds), None);
    (job, segments.into_iter().map(|segment| segment.expect("loopbacks map")).collect())
}

/// A call of all ranks, its buffers, and what comes out.
pub(crate) fn collective(
    calls: &[Call<'_>],
    how: Arithmetic,
    lies: &[Lie],
    random: &mut Random,
) -> Collective {
    let algorithm = candidates(&calls[0], &Locality::flat(calls.len()))[0];
    Collective::new(calls, &algorithm, (how, lies), random)
}

impl Collective {
    /// Begins one rank's call.
    pub(crate) fn begin(
        &mut self,
        (rank, segment): (usize, &mut SharedSegment),
        number: usize,
        call: &Call<'_>,
    ) -> Result<(), CollError> {
        let combine = Some(self.how.how());
        let known = CallPlan::new(call, (rank, self.held.len()), combine.clone(), false);
        let known = known.filter(|_| number % 2 == 1);
        let (send, recv) = &mut self.held[rank];
        let rows = CallBuffers { send: send.blocks(), recv: recv.blocks() };
        match known {
            // SAFETY: tests keep the buffers until all has ended, or the segments are gone.
            Some(known) => unsafe { segment.begin_call(number as u64, known.sm_call(rows)) },
            // SAFETY: likewise.
            None => unsafe { segment.begin(number as u64, call, rows, combine) },
        }
    }

    /// Tries one rank's call at once, with so many looks, if it can go that way; whether it has ended.
    pub(crate) fn attempt(
        &mut self,
        (rank, segment): (usize, &mut SharedSegment),
        number: usize,
        (call, pml): (&Call<'_>, &mut Pml),
        looks: u64,
    ) -> Option<bool> {
        let ranks = (rank, self.held.len());
        let known = CallPlan::new(call, ranks, Some(self.how.how()), true)?;
        let (send, recv) = &mut self.held[rank];
        let plain = |blocks: BufferBlocks| match blocks {
            BufferBlocks::None => Some(None),
            BufferBlocks::Whole(typed) => typed.as_contiguous().map(Some),
            BufferBlocks::Each(_) => None,
        };
        let buffers = (plain(send.blocks())?, plain(recv.blocks())?);
        let mut look = 0..looks;
        // SAFETY: as in `begin`.
        Some(unsafe {
            segment.attempt(number as u64, &known, buffers, pml, || look.next().is_some())
        })
    }
}

pub(crate) fn advance(segment: &mut SharedSegment, pml: &mut Pml) -> Poll<Result<(), CollError>> {
    segment.advance(pml, &HostEngine, &HostEngine)
}

/// Ranks go through a list of random calls, each as far ahead of others as it can: all results are as defined. How many
/// were tried at once and went on otherwise, and how many ended so.
fn play(
    (ranks, count, choose): (u32, usize, Choose),
    engine: &(impl Engine + Reducer),
    random: &mut Random,
) -> [u32; 2] {
    let mut attempts = [0; 2];
    let (mut job, mut segments) = job(ranks);
    let n = ranks as usize;
    let lies = [Lie::Gaps, Lie::Apart, Lie::Plain];
    let mut program: Vec<(Vec<Call<'_>>, Collective)> = (0..count)
        .map(|_| {
            let how = if random.below(2) == 0 { Arithmetic::Sum } else { Arithmetic::Affine };
            let calls = choose(n, sum(how), random);
            let at = usize::try_from(random.below(3)).unwrap();
            let one = collective(&calls, how, &lies[at..], random);
            (calls, one)
        })
        .collect();
    // Numbers are left out by collectives that go by messages.
    let gap = |number: &mut usize, _| {
        *number += usize::try_from(1 + random.below(8)).unwrap();
        Some(*number)
    };
    let numbers: Vec<usize> = (0..count).scan(0, gap).collect();
    let mut left: Vec<VecDeque<usize>> = (0..n).map(|_| (0..count).collect()).collect();
    let mut going = vec![false; n];
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "{n} ranks have {left:?} left");
        if left.iter().all(VecDeque::is_empty) {
            break;
        }
        // One rank has many turns in a row now and then.
        let rank = usize::try_from(random.below(n as u64)).unwrap();
        for _ in 0..=random.below(4) * 3 {
            let Some(&index) = left[rank].front() else { break };
            let segment = &mut segments[rank];
            if !going[rank] {
                let (calls, one) = &mut program[index];
                if random.below(2) == 0 {
                    let with = (&calls[rank], job.pml(u32::try_from(rank).unwrap()));
                    let tried = one.attempt((rank, segment), numbers[index], with, random.below(3));
                    tried.inspect(|ended| attempts[usize::from(*ended)] += 1);
                    if tried == Some(true) {
                        left[rank].pop_front();
                        continue;
                    }
                }
                one.begin((rank, segment), numbers[index], &calls[rank]).unwrap();
                going[rank] = true;
            }
            let looked = segment.look();
            match segment.advance(job.pml(u32::try_from(rank).unwrap()), engine, engine) {
                Poll::Pending => {}
                Poll::Ready(result) => {
                    assert_eq!(result, Ok(()), "{}: rank {rank}", program[index].1.what);
                    assert!(looked || turn == 0 || n > 1);
                    left[rank].pop_front();
                    going[rank] = false;
                }
            }
        }
    }
    drop(segments);
    program.iter().for_each(|(_, one)| one.check());
    attempts
}

#[test]
fn every_short_operation_gives_what_it_is_defined_to_give() {
    let mut random = Random(40);
    for ranks in [2, 3, 5, 8, 9, 12] {
        let [halfway, at_once] = play((ranks, 120, short), &HostEngine, &mut random);
        assert!(halfway > 10 && at_once > 10, "{halfway} {at_once}");
    }
    for ranks in [17, 33, 64] {
        play((ranks, 12, short), &HostEngine, &mut random);
    }
}

#[test]
fn engines_that_work_later_are_waited_for_here_too() {
    let mut random = Random(41);
    for ranks in [2, 9] {
        play((ranks, 40, short), &Late, &mut random);
        play((ranks, 20, any), &Late, &mut random);
    }
}

#[test]
fn every_exchange_gives_what_it_is_defined_to_give() {
    let mut random = Random(50);
    for ranks in [2, 3, 5, 8, 12] {
        play((ranks, 60, exchange), &HostEngine, &mut random);
    }
    for ranks in [17, 33] {
        play((ranks, 6, exchange), &HostEngine, &mut random);
    }
    play((4, 30, exchange), &Late, &mut random);
}

#[test]
fn every_operation_through_slots_gives_what_it_is_defined_to_give() {
    let mut random = Random(46);
    for ranks in [2, 3, 5, 8, 12] {
        play((ranks, 60, any), &HostEngine, &mut random);
    }
    for ranks in [17, 33] {
        play((ranks, 6, any), &HostEngine, &mut random);
    }
}

/// Those of plain memory, which are tried at once and stop anywhere.
#[test]
fn long_collectives_go_on_where_they_have_stopped() {
    let mut random = Random(47);
    let (mut all_halfway, mut all_at_once) = (0, 0);
    for ranks in [2, 3, 5] {
        let [halfway, at_once] = play((ranks, 100, long), &HostEngine, &mut random);
        (all_halfway, all_at_once) = (all_halfway + halfway, all_at_once + at_once);
    }
    assert!(all_halfway > 20 && all_at_once > 20, "{all_halfway} {all_at_once}");
}

/// Without mappings there are no segments, at any rank; nor if a rank dies before all have one. They agree either way.
#[test]
fn all_ranks_have_a_segment_or_none_has() {
    let mut job = Job::unmapped(3);
    let worlds = job.worlds();
    let segments = open(&mut job, &Job::sequencers(&worlds), None);
    assert!(segments.iter().all(Option::is_none));
    let mut job = Job::new(1);
    let worlds = job.worlds();
    assert!(open(&mut job, &Job::sequencers(&worlds), None)[0].is_none(), "one rank needs none");
    let (mut some, mut none) = (0, 0);
    for dead in [0, 1] {
        for when in 0..40 {
            let mut job = Job::new(4);
            let worlds = job.worlds();
            let mut segments = open(&mut job, &Job::sequencers(&worlds), Some((dead, when)));
            segments.remove(dead as usize);
            let opened = segments.iter().flatten().count();
            assert!([0, segments.len()].contains(&opened), "{opened} of {}", segments.len());
            if opened == 0 { none += 1 } else { some += 1 }
        }
    }
    assert!(some > 0 && none > 0, "{some} {none}");
}

/// A rank dies in the midst of collectives: those that need it fail and name it, and the others go on.
#[test]
fn a_death_ends_collectives_with_its_name() {
    deaths(60, short);
    deaths(60, any);
    deaths(30, exchange);
}

fn deaths(many: u32, choose: Choose) {
    let mut random = Random(42);
    let (mut failed, mut well) = (0, 0);
    for ranks in [3, 10] {
        let n = ranks as usize;
        for (round, dead) in sample(many).map(|round| (round, round % ranks)) {
            let (mut job, mut segments) = job(ranks);
            let of = sum(Arithmetic::Sum);
            let program: Vec<Vec<Call<'_>>> = (0..12).map(|_| choose(n, of, &mut random)).collect();
            let mut collectives: Vec<Collective> = program
                .iter()
                .map(|calls| collective(calls, Arithmetic::Sum, &[Lie::Plain], &mut random))
                .collect();
            let mut at = vec![(0, false); n];
            for turn in 0.. {
                assert!(turn < 2000, "{at:?} of {program:?}");
                if turn == round / 3 {
                    job.kill(dead);
                    at[dead as usize].0 = program.len();
                }
                for (rank, segment) in segments.iter_mut().enumerate() {
                    let (index, going) = &mut at[rank];
                    let Some(calls) = program.get(*index) else { continue };
                    if !*going {
                        collectives[*index].begin((rank, segment), *index, &calls[rank]).unwrap();
                        *going = true;
                    }
                    let Poll::Ready(result) = advance(segment, job.ranks[rank].as_mut().unwrap())
                    else {
                        continue;
                    };
                    match result {
                        Ok(()) => well += 1,
                        Err(error) => {
                            assert_eq!(error.culprit(), Some(dead), "{error}");
                            failed += 1;
                        }
                    }
                    (*index, *going) = (*index + 1, false);
                }
                job.progress();
                if at.iter().all(|(index, _)| *index == program.len()) {
                    break;
                }
            }
        }
    }
    assert!(failed > rounds(100) && well > rounds(100), "{failed} {well}");
}

/// Ranks that do not call the same are told which rank does not, and can go on.
#[test]
fn calls_that_do_not_fit_together() {
    let of = sum(Arithmetic::Sum);
    let in_place = true;
    for (ranks, calls, expected) in [
        (
            2,
            [Call::Bcast { root: 0, len: 8 }, Call::Bcast { root: 0, len: 12 }],
            [Ok(()), Err(CollError::Length { rank: 0, sent: 8, expected: 12 })],
        ),
        (
            2,
            [Call::Allreduce { len: 8, of, in_place }, Call::Allgather { len: 4, in_place }],
            [
                Err(CollError::Mismatch {
                    rank: 1,
                    theirs: Some(Operation::Allgather),
                    ours: Operation::Allreduce,
                }),
                Err(CollError::Mismatch {
                    rank: 0,
                    theirs: Some(Operation::Allreduce),
                    ours: Operation::Allgather,
                }),
            ],
        ),
        (
            2,
            [[8, 8], [8, 12]].map(|lens| Call::Allgatherv { lens: listed(lens), in_place }),
            [Err(CollError::Length { rank: 1, sent: 12, expected: 8 }), Ok(())],
        ),
        (
            2,
            [[4000, 8], [4000, 12]].map(|lens| Call::Allgatherv { lens: listed(lens), in_place }),
            [Err(CollError::Length { rank: 1, sent: 12, expected: 8 }), Ok(())],
        ),
        (
            2,
            [[8, 8], [12, 8]].map(|lens| Call::ReduceScatter { lens: listed(lens), of, in_place }),
            [
                Err(CollError::Length { rank: 1, sent: 20, expected: 16 }),
                Err(CollError::Length { rank: 0, sent: 16, expected: 20 }),
            ],
        ),
    ] {
        let (mut job, mut segments) = job(ranks);
        let mut random = Random(43);
        let good = vec![Call::Allreduce { len: 40, of, in_place }; ranks as usize];
        let mut each: Vec<Collective> = calls
            .iter()
            .map(|call| collective(&[*call; 2], Arithmetic::Sum, &[Lie::Plain], &mut random))
            .collect();
        for (rank, segment) in segments.iter_mut().enumerate() {
            each[rank].begin((rank, segment), 3, &calls[rank]).unwrap();
        }
        let results = finish(&mut job, &mut segments);
        assert_eq!(results, expected, "{calls:?}");
        let mut after = collective(&good, Arithmetic::Sum, &[Lie::Plain], &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            after.begin((rank, segment), 7, &good[rank]).unwrap();
        }
        assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(())]);
        after.check();
    }
}

/// Goes on until all have ended.
fn finish(job: &mut Job, segments: &mut [SharedSegment]) -> Vec<Result<(), CollError>> {
    let mut results = vec![None; segments.len()];
    for _ in 0..TURNS_MAX {
        for ((segment, pml), result) in segments.iter_mut().zip(&mut job.ranks).zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ended) = advance(segment, pml.as_mut().unwrap())
            {
                *result = Some(ended);
            }
        }
        if results.iter().all(Option::is_some) {
            return results.into_iter().flatten().collect();
        }
        job.progress();
    }
    panic!("{results:?}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let (mut job, mut segments) = job(2);
    let mut random = Random(44);
    let of = sum(Arithmetic::Sum);
    let good = [Call::Allreduce { len: 8, of, in_place: false }; 2];
    let mut one = collective(&good, Arithmetic::Sum, &[Lie::Plain], &mut random);
    let large = [0, 1 << 47];
    let error = one
        .begin(
            (0, &mut segments[0]),
            0,
            &Call::Alltoallv { send: &large, recv: &[0, 0], in_place: false },
        )
        .unwrap_err();
    assert_eq!(error, CollError::NotShared { operation: Operation::Alltoallv });
    let error = one.begin((0, &mut segments[0]), 0, &Call::Bcast { root: 2, len: 8 }).unwrap_err();
    assert!(matches!(error, CollError::Call { .. }), "{error}");
    let error =
        one.begin((0, &mut segments[0]), 0, &Call::Allreduce { len: 4, of, in_place: false });
    assert!(matches!(error, Err(CollError::Row { given: 8, expected: 4, .. })), "{error:?}");
    let odd = Reduction { unit: 6, commutative: true };
    let error = one.begin(
        (0, &mut segments[0]),
        0,
        &Call::Reduce { root: 0, len: 6, of: odd, in_place: false },
    );
    assert!(matches!(error, Err(CollError::Row { .. } | CollError::Combine { .. })), "{error:?}");
    one.begin((0, &mut segments[0]), 0, &good[0]).unwrap();
    let error = one.begin((0, &mut segments[0]), 0, &good[0]).unwrap_err();
    assert_eq!(error, CollError::Abandoned);
    one.begin((1, &mut segments[1]), 0, &good[1]).unwrap();
    assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(())]);
    one.check();
    assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Ready(Ok(())), "nothing is under way");
}

/// Who sleeps gets one message, when what it waits for is there, and whoever is awake gets none.
#[test]
fn sleepers_are_woken_by_a_message() {
    let (mut job, mut segments) = job(2);
    let mut random = Random(45);
    let calls = [Call::Bcast { root: 0, len: 8 }; 2];
    for (number, sleeps) in [true, false, true, true].into_iter().enumerate() {
        let mut one = collective(&calls, Arithmetic::Sum, &[Lie::Plain], &mut random);
        one.begin((1, &mut segments[1]), number, &calls[1]).unwrap();
        assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Pending);
        assert!(!segments[1].look());
        let wake_request = sleeps.then(|| {
            let wake_request = segments[1].arm(job.pml(1)).unwrap();
            assert_eq!(segments[1].arm(job.pml(1)), Some(wake_request), "the same sleep");
            assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Pending);
            wake_request
        });
        job.progress();
        if let Some(wake_request) = wake_request {
            assert_eq!(job.pml(1).collect(wake_request).unwrap(), None);
        }
        one.begin((0, &mut segments[0]), number, &calls[0]).unwrap();
        assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Ready(Ok(())));
        job.progress();
        if let Some(wake_request) = wake_request {
            assert!(job.pml(1).collect(wake_request).unwrap().is_some(), "it was woken");
        }
        assert!(segments[1].look());
        assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Ready(Ok(())));
        one.check();
    }
    let [first, second] = &mut segments[..] else { panic!("two ranks") };
    first.close(job.pml(0));
    second.close(job.pml(1));
}

/// A rank that waits for one that is past the collective, or has refused it, or has another root, is told so, whoever
/// calls what; and all go on together.
#[test]
fn who_has_no_part_in_a_collective_is_named() {
    let mut random = Random(47);
    let (short, long) = (8, 4000);
    let gather = |root, len| Call::Gather { root, len, in_place: false };
    let scatter = |root, len| Call::Scatter { root, len, in_place: false };
    let differs = |rank: u32, other: u32, given: &str, expected: &str| CollError::Differs {
        rank,
        argument: "root",
        given: given.to_owned(),
        other,
        expected: expected.to_owned(),
    };
    // What each rank calls, or that it refuses; what becomes of it.
    let cases = [
        (
            // Rank 1 takes what rank 2 has written, and is past it.
            [Some(gather(0, short)), Some(Call::Bcast { root: 2, len: short }), None],
            [Err(CollError::WentOn { rank: 1 }), Err(CollError::WentOn { rank: 2 }), Ok(())],
        ),
        (
            [Some(gather(0, short)), None, Some(gather(0, short))],
            [Err(CollError::WentOn { rank: 1 }), Ok(()), Ok(())],
        ),
        (
            [Some(gather(0, long)), None, Some(gather(0, long))],
            [Err(CollError::WentOn { rank: 1 }), Ok(()), Ok(())],
        ),
        (
            [Some(scatter(1, long)), Some(scatter(0, long)), Some(scatter(0, long))],
            [
                Err(differs(1, 0, "0", "1")),
                Err(differs(0, 1, "1", "0")),
                Err(differs(0, 2, "1", "0")),
            ],
        ),
    ];
    for (calls, expected) in cases {
        let (mut job, mut segments) = job(3);
        let mut each: Vec<Option<Collective>> = calls
            .iter()
            .map(|call| {
                let call = call.as_ref()?;
                Some(collective(&[*call; 3], Arithmetic::Sum, &[Lie::Plain], &mut random))
            })
            .collect();
        for (rank, segment) in segments.iter_mut().enumerate() {
            match (&mut each[rank], &calls[rank]) {
                (Some(one), Some(call)) => one.begin((rank, segment), 3, call).unwrap(),
                _ => segment.refuse(3, job.pml(u32::try_from(rank).unwrap())),
            }
        }
        let results = finish(&mut job, &mut segments);
        // Of several, which one a rank notices depends on who comes first.
        match &results[0] {
            Err(CollError::WentOn { rank: 2 }) if calls[2].is_none() => {
                assert_eq!(results[1..], expected[1..], "{calls:?}");
            }
            _ => assert_eq!(results, expected, "{calls:?}"),
        }
        let of = sum(Arithmetic::Sum);
        let good = [Call::Allreduce { len: 40, of, in_place: false }; 3];
        let mut after = collective(&good, Arithmetic::Sum, &[Lie::Plain], &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            after.begin((rank, segment), 4, &good[rank]).unwrap();
        }
        assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(()), Ok(())]);
        after.check();
    }
}

/// A rank that refuses a collective which the others do by messages delays nobody later, whichever it is.
#[test]
fn a_refusal_that_nobody_hears_of_delays_nobody() {
    let mut random = Random(48);
    for later in 1..10 {
        for call in [
            Call::Bcast { root: 1, len: 8 },
            Call::Bcast { root: 1, len: 4000 },
            Call::Scatter { root: 1, len: 4000, in_place: false },
            Call::Gather { root: 0, len: 8, in_place: false },
        ] {
            let (mut job, mut segments) = job(2);
            segments[1].refuse(4, job.pml(1));
            let mut one = collective(&[call; 2], Arithmetic::Sum, &[Lie::Plain], &mut random);
            for (rank, segment) in segments.iter_mut().enumerate() {
                one.begin((rank, segment), 4 + later, &call).unwrap();
            }
            assert_eq!(
                finish(&mut job, &mut segments),
                [Ok(()), Ok(())],
                "{call:?}, {later} later"
            );
            one.check();
        }
    }
}
