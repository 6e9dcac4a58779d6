//! Answers of tasks: they come before the end of their put, of any length up to [`ANSWER_MAX`].

use super::*;
use crate::wire::Head;
use crate::{ANSWER_MAX, PutAnswer, Tried};

/// A function that answers with as many bytes as its third argument says, or fails if the fourth is not 0.
fn answering(job: &Job, at: usize, quick: bool) {
    let run = |task: &mut crate::Task<'_>| {
        let [_, _, bytes, fails] = task.arguments();
        task.answer(vec![9; 3]);
        task.answer((0..bytes).map(|i| (i % 251).to_le_bytes()[0]).collect());
        if fails == 0 { Ok(()) } else { Err("as it was told".into()) }
    };
    let function = Function::new(0, run);
    let function = if quick { function.quick(0, move |task| Some(run(task))) } else { function };
    job.xtq(at).register_function(0, function).unwrap();
    job.xtq(at).register_queue(0, QueueOptions { capacity: 64, width: 2 }).unwrap();
}

fn task(arguments: [u64; 2]) -> Put {
    Put::function(Rank(1), 0, 0, arguments)
}

fn ask(job: &Job, put: Put, name: u64) -> PutHandle {
    match job.xtq(0).ask(put, name).unwrap() {
        Tried::Put(handle) => handle,
        full => panic!("{full:?}"),
    }
}

/// What the answers say, by name.
fn collect(job: &mut Job, count: usize) -> Vec<(u64, Result<Vec<u8>, XtqError>)> {
    let mut all = Vec::new();
    job.until(|job| {
        all.extend(job.xtq(0).take_answers());
        (all.len() >= count).then_some(())
    });
    all.sort_by_key(|(name, _)| *name);
    all
}

#[test]
fn answers_of_any_length_come_with_the_end() {
    let target = Rank(1);
    for (seed, quick) in [(None, false), (None, true), (Some(5), false)] {
        let mut job = Job::new(2, seed);
        answering(&job, 1, quick);
        let max = ANSWER_MAX as u64;
        let lengths = [0, 8, 999, 1000, 1001, 2000, 5999, max, max + 1];
        for (name, bytes) in (0..).zip(lengths) {
            ask(&job, task([bytes, 0]), name);
        }
        let failed = ask(&job, task([8, 1]), 9);
        // Nobody has asked for the last one, and nobody is told.
        let plain = job.xtq(0).put(task([5000, 0]).acknowledged()).unwrap();
        assert_eq!(job.outcome(&plain), Ok(()));
        let answers = collect(&mut job, lengths.len() + 1);
        let failure = |reason: String| Err(XtqError::Failed { target, reason });
        let due = |name: u64| match lengths.get(usize::try_from(name).unwrap()) {
            Some(&bytes) if bytes <= max => {
                Ok((0..bytes).map(|i| (i % 251).to_le_bytes()[0]).collect())
            }
            Some(bytes) => failure(format!("its answer has {bytes} bytes, and may have {max}")),
            None => failure("as it was told".to_owned()),
        };
        let due: Vec<(u64, Result<Vec<u8>, _>)> = (0..=9).map(|name| (name, due(name))).collect();
        assert!(answers == due, "{seed:?}");
        assert!(matches!(failed.outcome(), Some(Err(XtqError::Failed { .. }))));
        job.settle();
        assert!(job.xtq(0).take_answers().is_empty());
    }
}

#[test]
fn a_put_that_asks_ends_once_whatever_becomes_of_it() {
    let (mut job, target) = (Job::new(3, None), Rank(1));
    // Refused, timed out, given up with its target, closed.
    ask(&job, task([0; 2]), 0);
    let refusal = Refusal::NotRegistered;
    assert_eq!(collect(&mut job, 1), [(0, Err(XtqError::Refused { target, refusal }))]);
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let waits =
        Function::new(0, move |_| gate.lock().unwrap().recv().map_err(|e| e.to_string().into()));
    job.xtq(1).register_function(0, waits).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    let late = ask(&job, task([0; 2]).within(Duration::from_millis(1)), 1);
    ask(&job, task([0; 2]), 2);
    let timed_out = collect(&mut job, 1);
    assert!(matches!(timed_out[..], [(1, Err(XtqError::TimedOut { may_run: true, .. }))]));
    assert!(late.outcome().is_some());
    let bml = &mut job.ends[0].bml;
    bml.give_up(target, gapless_bml::LinkError::Corrupt { what: String::new() });
    assert!(matches!(collect(&mut job, 1)[..], [(2, Err(XtqError::Lost { .. }))]));
    ask(&job, to(Rank(2), task([0; 2])), 3);
    drop(job.xtq(0).abandon());
    assert_eq!(job.xtq(0).take_answers(), [(3, Err(XtqError::Closed))]);
    (0..2).for_each(|_| go.send(()).unwrap());
}

/// Whoever asks and does not take what comes, is refused: so what waits for it has a bound.
#[test]
fn answers_wait_in_bounded_memory() {
    const COUNT: usize = 30;
    let mut job = Job::new(2, None);
    answering(&job, 1, true);
    for name in 0..COUNT as u64 {
        ask(&job, task([ANSWER_MAX as u64, 0]).retry(Retry::InAnyOrder), name);
    }
    for _ in 0..20 * COUNT {
        job.now_ns += 20_000;
        let End { bml, xtq } = &mut job.ends[0];
        xtq.advance(bml, job.now_ns);
        job.step_one(1);
    }
    let waits = job.xtq(1).inner.with(|state| state.initiator.answer_bytes(Rank(0)));
    let max = crate::host::nic::ANSWERS_MAX;
    assert!((max + 1..=max + ANSWER_MAX).contains(&waits), "{waits}");
    let answers = collect(&mut job, COUNT);
    let is_whole =
        |(_, answer): &PutAnswer| answer.as_ref().is_ok_and(|all| all.len() == ANSWER_MAX);
    assert!(answers.len() == COUNT && answers.iter().all(is_whole));
    job.settle();
    assert_eq!(job.xtq(1).inner.with(|state| state.initiator.answer_bytes(Rank(0))), 0);
}

/// Pieces of an answer that no task of the peer's owes are corrupt.
#[test]
fn stray_answers_are_corrupt() {
    use gapless_bml::{AmTag, PeerState, Token};
    let mut job = Job::with(2, None, Some(0));
    let bml = &mut job.ends[0].bml;
    let mut slot = bml.reserve(Rank(1), 24).unwrap();
    slot.write(0, &Head::Answer { put: 0 }.write(0)).unwrap();
    bml.send(slot, AmTag(32), Token::NONE);
    (0..4).for_each(|_| _ = job.step());
    assert!(matches!(job.ends[1].bml.state(Rank(0)), PeerState::Lost(_)));
}
