//! Reductions by tasks: results, whenever tasks run; failures.
use super::*;
use crate::job::Job;
use gapless_coll::choose::candidates;
use gapless_coll::testkit::Hub;
use gapless_coll::{CollError, Method, Operation, TaskName};
use std::task::Poll;

fn by_tasks(segment: u64) -> Algorithm {
    Algorithm::new(Method::Xtq).segmented(segment)
}

/// Turns after which a test gives up.
const TURNS_MAX: u32 = 100_000;

/// Has all executors of one collective go on until those of the living have ended; some late tasks run in each turn.
fn finish(
    job: &mut Job,
    hub: &Hub,
    executors: &mut [(u32, Executor)],
    random: &mut Random,
) -> Vec<Option<Result<(), CollError>>> {
    let mut results = vec![None; executors.len()];
    for _ in 0..TURNS_MAX {
        let mut open = false;
        for ((rank, executor), result) in executors.iter_mut().zip(&mut results) {
            if job.ranks[*rank as usize].is_none() || result.is_some() {
                continue;
            }
            match job.advance(*rank, executor) {
                Poll::Ready(ended) => *result = Some(ended),
                Poll::Pending => open = true,
            }
        }
        if !open {
            return results;
        }
        hub.run_one(random);
        job.progress();
    }
    panic!("they do not end: {results:?}");
}

fn start(collective: &mut Collective, sequencers: &[Sequencer], hub: &Hub) -> Vec<(u32, Executor)> {
    let tickets = sequencers.iter().map(Sequencer::next).collect();
    collective.each(tickets, |rank, make| make().with_tasks(hub.end(rank)))
}

#[test]
fn reductions_by_tasks_give_what_they_mean_whenever_tasks_run() {
    const LIES: [&[Lie]; 3] = [&[Lie::Plain], &[Lie::Gaps], &[Lie::Apart, Lie::Plain]];
    let mut random = Random(81);
    let (how, mut count) = (Arithmetic::Sum, 0);
    for n in 1..=9 {
        let mut job = Job::new(n);
        let sequencers = Job::sequencers(&job.worlds());
        let (n, of) = (n as usize, sum(how));
        for (turn, hub) in [Hub::early(), Hub::late()].into_iter().enumerate() {
            for in_place in [false, true] {
                for elements in [0, 1, random.below(100), 300] {
                    let (root, len) = (random.index(n), of.unit * elements);
                    let lens: Vec<u64> = (0..n).map(|_| of.unit * random.below(30)).collect();
                    for call in [
                        Call::Reduce { root, len, of, in_place },
                        Call::Allreduce { len, of, in_place },
                        Call::ReduceScatterBlock { len, of, in_place },
                        Call::ReduceScatter { lens: &lens, of, in_place },
                    ] {
                        let segment = [0, 24][random.index(2)];
                        let lies = LIES[random.index(3)];
                        let calls = vec![call; n];
                        let mut all =
                            Collective::new(&calls, &by_tasks(segment), (how, lies), &mut random);
                        let mut executors = start(&mut all, &sequencers, &hub);
                        let ended = finish(&mut job, &hub, &mut executors, &mut random);
                        for (rank, result) in ended.into_iter().enumerate() {
                            assert_eq!(result, Some(Ok(())), "{}: rank {rank}", all.what);
                        }
                        drop(executors);
                        all.check();
                    }
                }
            }
            assert_eq!(hub.strays(), 0, "{n} ranks, {turn}");
            count += hub.count();
        }
    }
    assert!(count > 3000, "{count} tasks");
}

/// More collectives than an epoch has: markers go where tasks do.
#[test]
fn tasks_go_on_through_epochs() {
    let mut random = Random(82);
    let (mut job, hub, how) = (Job::new(3), Hub::late(), Arithmetic::Sum);
    let sequencers = Job::sequencers(&job.worlds());
    let calls = vec![Call::Allreduce { len: 24, of: sum(how), in_place: false }; 3];
    for _ in 0..gapless_coll::execute::IN_FLIGHT_MAX + 9 {
        let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Plain]), &mut random);
        let mut executors = start(&mut all, &sequencers, &hub);
        let ended = finish(&mut job, &hub, &mut executors, &mut random);
        assert!(ended.iter().all(|result| *result == Some(Ok(()))), "{ended:?}");
        drop(executors);
        all.check();
    }
}

/// One rank is in another collective, and the others are told: in the first epoch, and where markers are to be exchanged
/// before anything goes.
#[test]
fn nobody_waits_for_a_rank_that_is_in_another_collective() {
    let mut random = Random(84);
    let (how, n) = (Arithmetic::Sum, 4u32);
    let absent = n - 1;
    let call = Call::Allreduce { len: 240, of: sum(how), in_place: false };
    let calls = vec![call; n as usize];
    let messages = candidates(&call, &Locality::flat(n as usize));
    let theirs = Some(Operation::Barrier);
    for algorithm in messages.into_iter().chain([by_tasks(0)]) {
        for before in [0, gapless_coll::execute::IN_FLIGHT_MAX] {
            for turns in [0, 1, 3] {
                let (mut job, hub) = (Job::new(n), Hub::late());
                let sequencers = Job::sequencers(&job.worlds());
                for _ in 0..before {
                    sequencers.iter().for_each(|sequencer| drop(sequencer.next()));
                }
                let make = &mut random;
                let mut all = Collective::new(&calls, &algorithm, (how, &[Lie::Plain]), make);
                let mut executors = start(&mut all, &sequencers, &hub);
                executors.truncate(absent as usize);
                for _ in 0..turns {
                    for (rank, executor) in &mut executors {
                        let _ = job.advance(*rank, executor);
                    }
                    job.progress();
                }
                for (rank, executor) in &mut executors {
                    assert!(executor.differs(job.pml(*rank), absent, Operation::Barrier.code()));
                }
                let ended = finish(&mut job, &hub, &mut executors, &mut random);
                let ours = call.operation();
                for result in ended {
                    let error = CollError::Mismatch { rank: absent, theirs, ours };
                    assert_eq!(result, Some(Err(error)), "{algorithm:?} after {before}");
                }
            }
        }
    }
}

#[test]
fn whoever_needs_a_lost_rank_names_it() {
    let mut random = Random(83);
    let how = Arithmetic::Sum;
    for (n, lost, turns) in [(2, 1, 0), (4, 2, 0), (4, 0, 1), (5, 3, 3), (7, 1, 5)] {
        let (mut job, hub) = (Job::new(n), Hub::late());
        let sequencers = Job::sequencers(&job.worlds());
        let calls = vec![Call::Allreduce { len: 240, of: sum(how), in_place: false }; n as usize];
        let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Plain]), &mut random);
        let mut executors = start(&mut all, &sequencers, &hub);
        for _ in 0..turns {
            for (rank, executor) in &mut executors {
                let _ = job.advance(*rank, executor);
            }
            job.progress();
        }
        job.kill(lost);
        hub.lose(lost);
        let ended = finish(&mut job, &hub, &mut executors, &mut random);
        let failed = ended.iter().flatten().filter_map(|result| result.as_ref().err());
        for error in failed.clone() {
            assert_eq!(error.culprit(), Some(lost), "{n} ranks, {lost} lost: {error}");
        }
        assert!(failed.count() > 0, "{n} ranks without {lost} cannot have its part");
        drop(executors);
    }
}

#[test]
fn a_rank_with_another_length_is_named_and_later_collectives_are_right() {
    [2, 3].into_iter().for_each(another_length);
}

fn another_length(odd: usize) {
    let mut random = Random(84);
    let (mut job, hub, how) = (Job::new(4), Hub::late(), Arithmetic::Sum);
    let sequencers = Job::sequencers(&job.worlds());
    let call = |rank: usize| {
        let len = if rank == odd { 120 } else { 240 };
        Call::Reduce { root: 0, len, of: sum(how), in_place: false }
    };
    let calls: Vec<_> = (0..4).map(call).collect();
    let locality = near(4);
    let schedules: Vec<_> = (0..4)
        .map(|rank| build_apart(rank, &locality, &calls[rank], &by_tasks(0)).unwrap())
        .collect();
    let expected = |schedules: &[Schedule], _: &[_]| vec![Vec::new(); schedules.len()];
    let what = "lengths".to_owned();
    let mut all = Collective::of(what, schedules, (how, &[Lie::Plain]), expected, &mut random);
    let mut executors = start(&mut all, &sequencers, &hub);
    let ended = finish(&mut job, &hub, &mut executors, &mut random);
    // Rank 3 puts at rank 2, and that would put at rank 0.
    let [zero, one, two, three] = [0, 1, 2, 3].map(|rank: usize| ended[rank].clone().unwrap());
    match odd {
        3 => {
            let error = CollError::Length { rank: 3, sent: 120, expected: 240 };
            assert_eq!((two, three), (Err(error), Ok(())));
        }
        // What does not fit into its receive buffer is refused there.
        _ => {
            assert!(matches!(three, Err(CollError::Task { rank: 2, .. })), "{three:?}");
            assert_eq!(two, Err(CollError::GaveUp { rank: 3 }));
        }
    }
    assert!(matches!(zero, Err(CollError::GaveUp { rank: 2 | 3 })), "{zero:?}");
    assert_eq!(one, Ok(()));
    drop(executors);
    let calls = vec![Call::Allreduce { len: 240, of: sum(how), in_place: true }; 4];
    let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Gaps]), &mut random);
    let mut executors = start(&mut all, &sequencers, &hub);
    let ended = finish(&mut job, &hub, &mut executors, &mut random);
    assert!(ended.iter().all(|result| *result == Some(Ok(()))), "{ended:?}");
    drop(executors);
    all.check();
}

#[test]
fn without_somebody_who_carries_tasks_all_ranks_fail() {
    let mut random = Random(85);
    let (mut job, how) = (Job::new(3), Arithmetic::Sum);
    let sequencers = Job::sequencers(&job.worlds());
    let calls = vec![Call::Allreduce { len: 24, of: sum(how), in_place: false }; 3];
    let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Plain]), &mut random);
    let mut executors = all.start(&sequencers);
    for result in job.finish(&mut executors) {
        assert!(matches!(result, Some(Err(CollError::NoTasks { .. }))), "{result:?}");
    }
}

/// What a process puts before the schedule lets it touches nothing.
#[test]
fn a_task_that_comes_too_early_is_an_error() {
    let mut random = Random(86);
    let (mut job, hub, how) = (Job::new(4), Hub::early(), Arithmetic::Sum);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let calls = vec![Call::Reduce { root: 0, len: 24, of: sum(how), in_place: false }; 4];
    let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Plain]), &mut random);
    let mut executors = start(&mut all, &sequencers, &hub);
    let (rank, executor) = &mut executors[0];
    assert!(job.advance(*rank, executor).is_pending());
    // Rank 1's turn comes first.
    let context = worlds[0].collective().context();
    let name = TaskName { context, slot: 0, collective: 0 };
    let _ = hub.end(2).put(0, name, vec![7; 24]).unwrap();
    let ended = finish(&mut job, &hub, &mut executors, &mut random);
    assert!(matches!(ended[0], Some(Err(CollError::Task { rank: 2, .. }))), "{ended:?}");
    drop(executors);
    let mut all = Collective::new(&calls, &by_tasks(0), (how, &[Lie::Plain]), &mut random);
    let mut executors = start(&mut all, &sequencers, &hub);
    let ended = finish(&mut job, &hub, &mut executors, &mut random);
    assert!(ended.iter().all(|result| *result == Some(Ok(()))), "{ended:?}");
    drop(executors);
    all.check();
}
