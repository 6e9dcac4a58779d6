//! Who hangs: a question what a peer is in is answered, and one who says nonsense is lost.

use crate::common::rogue::{Pair, VERSION};
use crate::common::{Buffer, Job, bytes};
use gapless_pml::{Answer, Doing, PmlError, Protocol, Source, TagSel, WaitingCall};
use std::time::Duration;

const BARRIER: WaitingCall = WaitingCall::Collective { operation: 1, number: 3 };
const BCAST: WaitingCall = WaitingCall::Collective { operation: 2, number: 3 };

fn on(context: u32, call: WaitingCall) -> Doing {
    Doing { call, context: Some(context), whom: None, millis: 1500 }
}

/// What the other rank says that it is in.
fn told(job: &mut Job, me: u32, doing: &Doing) -> Doing {
    let peer = 1 - me;
    job.until("an answer", |job| match job.pml(me).ask(peer, doing) {
        Answer::Said(said, _) => Some(said),
        Answer::Silent(_) => None,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_question_is_answered_in_any_progress() {
    let mut job = Job::new(2);
    let recv = Doing { whom: Some(1), ..on(0, WaitingCall::Receive { tag: Some(7) }) };
    // It waits in nothing.
    assert_eq!(told(&mut job, 0, &recv), Doing::NOTHING);
    // And was told what the other waits in.
    let heard: Vec<_> = job.pml(1).heard().map(|(peer, doing)| (peer, *doing)).collect();
    assert_eq!(heard, [(0, recv)]);
}

#[test]
fn of_several_threads_the_one_in_the_same_collective_is_told_and_then_what_was_done() {
    let (recv, barrier) = (on(0, WaitingCall::Receive { tag: None }), on(1, BARRIER));
    let answer = |seats: &[Doing], past: Option<u8>| {
        let mut job = Job::new(2);
        for doing in seats {
            job.pml(1).waits_in(&mut None, doing);
        }
        if let Some(operation) = past {
            job.pml(1).was_in(1, operation, 3);
        }
        told(&mut job, 0, &on(1, BCAST))
    };
    assert_eq!(answer(&[recv, barrier], Some(2)), barrier);
    assert_eq!(answer(&[recv], None), recv);
    let was = WaitingCall::Was { operation: 2, number: 3 };
    assert_eq!(answer(&[recv], Some(2)), Doing { millis: 0, ..on(1, was) });
    // A later one on the same communicator says more than a receive.
    let later = on(1, WaitingCall::Collective { operation: 5, number: 4 });
    assert_eq!(answer(&[recv, later], None), later);
}

#[test]
fn a_thread_is_noted_once_until_it_waits_no_more() {
    let mut job = Job::new(2);
    let mut seat = None;
    for millis in [100, 200] {
        job.pml(1).waits_in(&mut seat, &Doing { millis, ..on(0, WaitingCall::Window) });
    }
    assert_eq!(told(&mut job, 0, &Doing::NOTHING).millis, 200);
    job.pml(1).waits_no_more(seat.unwrap());
    std::thread::sleep(Duration::from_millis(1100));
    job.pml(0).ask(1, &Doing::NOTHING);
    job.settle();
    assert_eq!(job.pml(0).heard().next(), Some((1, &Doing::NOTHING)));
}

#[test]
fn one_who_does_not_answer_is_asked_once() {
    let mut pair = Pair::new(Protocol::Pipeline);
    for _ in 0..10 {
        assert!(matches!(pair.pml.ask(1, &Doing::NOTHING), Answer::Silent(_)));
        pair.turn();
    }
    std::thread::sleep(Duration::from_millis(1100));
    assert!(
        matches!(pair.pml.ask(1, &Doing::NOTHING), Answer::Silent(since) if since.as_secs() >= 1)
    );
    pair.turn();
    assert_eq!(pair.inbox.0.iter().filter(|message| message[0] == ASK).count(), 1);
}

#[test]
fn requests_say_what_they_wait_for() {
    let mut job = Job::new(2);
    let to = Buffer::target(&bytes(40), 1);
    let recv = job.irecv(0, &to, Source::Rank(1), TagSel::Is(7));
    let any = job.irecv(0, &to, Source::Any, TagSel::Any);
    let long = Buffer::source(&bytes(1 << 20), 1, 1);
    let send = job.isend(0, &long, 1, 9);
    let pml = job.pml(0);
    let doing = |call, whom| Some(Doing { call, context: Some(0), whom, millis: 0 });
    assert_eq!(pml.awaits(recv), doing(WaitingCall::Receive { tag: Some(7) }, Some(1)));
    assert_eq!(pml.awaits(any), doing(WaitingCall::Receive { tag: None }, None));
    assert_eq!(pml.awaits(send), doing(WaitingCall::Send { tag: 9 }, Some(1)));
    for id in [recv, any] {
        assert!(pml.cancel_recv(id).unwrap());
        assert_eq!(pml.test(id).map_err(PmlError::from), Err(PmlError::Cancelled));
    }
}

const ASK: u8 = 17;
const SAY: u8 = 18;

/// A question or an answer of a peer that is in nothing.
fn message(kind: u8) -> Vec<u8> {
    let mut message = vec![0; 24];
    message[..2].copy_from_slice(&[kind, VERSION]);
    message[4..8].fill(255);
    message[16..20].fill(255);
    message
}

#[test]
fn nonsense_loses_the_peer() {
    let with = |kind: u8, at: usize, byte: u8| {
        let mut message = message(kind);
        message[at] = byte;
        message
    };
    let all = [
        ("an answer to no question", message(SAY)),
        ("a call that there is not", with(ASK, 2, 11)),
        ("an operation of nothing", with(ASK, 3, 1)),
        ("a number of nothing", with(ASK, 8, 1)),
        ("a process that there is not", [&with(ASK, 16, 9)[..17], &[0; 7]].concat()),
        ("a short one", message(ASK)[..23].to_vec()),
        ("a long one", [message(ASK), vec![0]].concat()),
    ];
    for (what, message) in all {
        let mut pair = Pair::new(Protocol::Pipeline);
        let to = Buffer::target(&bytes(40), 1);
        let recv = pair.recv(&to);
        pair.inject(&message);
        pair.assert_lost(recv, what);
        assert_eq!(pair.pml.ask(1, &Doing::NOTHING), Answer::Lost, "{what}");
    }
}

/// Who asks and asks, and takes no answers, has no more than one of them waiting here.
#[test]
fn questions_pile_nothing_up() {
    let mut pair = Pair::new(Protocol::Pipeline);
    let to = Buffer::target(&bytes(40), 1);
    let recv = pair.recv(&to);
    for _ in 0..100_000 {
        let Ok(mut slot) = pair.rogue.reserve(gapless_bml::Rank(0), 24) else { break };
        slot.write(0, &message(ASK)).unwrap();
        pair.rogue.send(slot, gapless_pml::AM_TAG, gapless_btl::Token::NONE);
        // It never polls.
        pair.pml.progress();
    }
    pair.assert_lost(recv, "questions without end");
}
