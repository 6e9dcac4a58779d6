//! The status beside an error: a receive that fails after it has taken a message says whose, with which tag and how
//! many bytes, whatever has failed, and however its result is asked for.

use crate::common::lab::{Lab, config, layout};
use crate::common::{Buffer, Job, bytes, link};
use gapless_pml::{
    Config, Persistent, PmlError, Protocol, RequestId, RequestOutcome, Source, TagSel,
};

const ANY: (Source, TagSel) = (Source::Any, TagSel::Any);
const SIZE: u64 = 60_000;

/// Source, tag and bytes beside an error.
fn told(outcome: &RequestOutcome) -> Option<(u32, i32, u64)> {
    let status = outcome.as_ref().expect_err("it has failed").status()?;
    Some((status.source, status.tag, status.bytes))
}

fn lost(outcome: &RequestOutcome) -> bool {
    matches!(
        outcome.as_ref().map_err(|failure| &failure.error),
        Err(PmlError::PeerLost { rank: 0, .. })
    )
}

#[test]
fn a_receive_whose_sender_is_lost_midway_knows_the_message() {
    for (protocol, room) in [(Protocol::Pipeline, SIZE), (Protocol::Pipeline, 1000)] {
        let mut job = Job::with(2, Config { force: Some(protocol), ..Config::default() }, link());
        let from = Buffer::source(&bytes(SIZE), 1, 1);
        let to = [Buffer::target(&bytes(room), 1), Buffer::target(&bytes(room), 1)];
        job.isend(0, &from, 1, 9);
        let recv = job.irecv(1, &to[0], ANY.0, ANY.1);
        let never = job.irecv(1, &to[1], Source::Rank(0), TagSel::Is(10));
        dies_when_matched(&mut job, recv);
        let outcome = job.outcome(1, recv);
        assert!(lost(&outcome) && told(&outcome) == Some((0, 9, room)), "{protocol}: {outcome:?}");
        let outcome = job.outcome(1, never);
        assert!(lost(&outcome) && told(&outcome).is_none(), "{protocol}: {outcome:?}");
    }
    for protocol in Protocol::STAGED {
        let mut lab = Lab::new(config(protocol, 3), 2);
        let from = Buffer::source_in(&layout(SIZE, true), 1, 1, lab.home(true));
        let to = Buffer::target_in(&layout(SIZE, true), 1, lab.home(true));
        lab.job.isend(0, &from, 1, 9);
        let recv = lab.job.irecv(1, &to, ANY.0, ANY.1);
        dies_when_matched(&mut lab.job, recv);
        let outcome = lab.job.outcome(1, recv);
        assert!(lost(&outcome) && told(&outcome) == Some((0, 9, SIZE)), "{protocol}: {outcome:?}");
    }
}

/// Rank 0 offers a message, rank 1 takes the offer, rank 0 dies.
fn dies_when_matched(job: &mut Job, recv: RequestId) {
    job.pml(0).progress();
    job.pml(1).progress();
    assert_eq!(job.pml(1).cancel_recv(recv), Ok(false), "it has taken the offer");
    job.kill(0);
}

#[test]
fn a_receive_whose_engine_or_whose_sender_s_engine_fails_knows_the_message() {
    for (size, broken) in [(100, 1), (SIZE, 0), (SIZE, 1)] {
        for room in [size, size / 2] {
            let what = format!("{room} of {size} bytes, the engine of rank {broken} fails");
            let mut lab = Lab::new(config(Protocol::Pipeline, 3), 2);
            if size < 1000 {
                lab = Lab::new(config(Protocol::Eager, 3), 2);
            }
            lab.break_after(broken, 0);
            let on_device = |rank| lab.home(rank == broken);
            let from = Buffer::source_in(&layout(size, true), 1, 1, on_device(0));
            let to = Buffer::target_in(&layout(room, true), 1, on_device(1));
            let send = lab.job.isend(0, &from, 1, 3);
            let recv = lab.job.irecv(1, &to, ANY.0, ANY.1);
            let outcome = lab.job.outcome(1, recv);
            assert_eq!(told(&outcome), Some((0, 3, room)), "{what}: {outcome:?}");
            let error = outcome.unwrap_err().error;
            match broken {
                0 => assert_eq!(error, PmlError::SenderFailed { rank: 0 }, "{what}"),
                _ => assert!(matches!(error, PmlError::Engine(_)), "{what}: {error}"),
            }
            assert_eq!(lab.job.outcome(0, send).is_ok(), broken == 1, "{what}");
        }
    }
}

/// Sends of 16 bytes to oneself with these tags; they are short, and have ended.
fn send_all(job: &mut Job, tags: impl IntoIterator<Item = i32>) {
    for tag in tags {
        let from = Buffer::source(&bytes(16), 1, 2);
        let send = job.isend(0, &from, 0, tag);
        job.finish(0, send).unwrap();
    }
}

#[test]
fn of_several_receives_each_has_its_own() {
    let mut job = Job::new(1);
    // Tag 2 has room, the others have not.
    let to: Vec<Buffer> =
        (0..4).map(|tag| Buffer::target(&bytes(if tag == 2 { 16 } else { 4 }), 1)).collect();
    let post = |job: &mut Job| -> Vec<RequestId> {
        (0i32..).zip(&to).map(|(tag, to)| job.irecv(0, to, ANY.0, TagSel::Is(tag))).collect()
    };
    let check = |tag: usize, outcome: &RequestOutcome| match (i32::try_from(tag), tag) {
        (_, 2) => assert_eq!(outcome.as_ref().map(|status| status.tag), Ok(2)),
        (Ok(own), _) => assert_eq!(told(outcome), Some((0, own, 4)), "{outcome:?}"),
        (Err(error), _) => panic!("{error}"),
    };
    let recvs = post(&mut job);
    send_all(&mut job, 0..4);
    job.pml(0).wait_all(&recvs).iter().enumerate().for_each(|(at, outcome)| check(at, outcome));
    let recvs = post(&mut job);
    send_all(&mut job, 0..4);
    let all = job.pml(0).test_all(&recvs).expect("all have ended");
    all.iter().enumerate().for_each(|(at, outcome)| check(at, outcome));
    let recvs = post(&mut job);
    send_all(&mut job, [3]);
    let (at, outcome) = job.pml(0).wait_any(&recvs).unwrap();
    assert_eq!(at, 3);
    check(at, &outcome);
    send_all(&mut job, [2, 1]);
    for (at, outcome) in job.pml(0).wait_some(&recvs[..3]).unwrap() {
        assert!(at > 0, "tag 0 was not sent");
        check(at, &outcome);
    }
}

#[test]
fn blocking_persistent_and_claimed_receives_have_it_too() {
    let mut job = Job::new(1);
    let (from, to) = (Buffer::source(&bytes(16), 1, 1), Buffer::target(&bytes(4), 1));
    let comm = job.pml(0).world();
    let truncated = PmlError::Truncated { sent: 16, room: 4 };
    let check = |outcome: RequestOutcome, tag| {
        assert_eq!(told(&outcome), Some((0, tag, 4)), "{outcome:?}");
        let failure = outcome.unwrap_err();
        assert_eq!(failure.error, truncated);
        let text = format!(
            "receiving the message from rank 0 with tag {tag} failed: \
             the message has 16 bytes, the receive has room for 4"
        );
        assert_eq!(failure.to_string(), text);
    };
    // SAFETY: the buffers live to the end of this function, and are apart.
    let both =
        unsafe { job.pml(0).sendrecv(&comm, &from.typed(), (0, 1), &to.typed(), (ANY.0, ANY.1)) };
    check(both, 1);
    let mut persistent = Persistent::recv(&comm, &to.typed(), ANY.0, ANY.1);
    for tag in [2, 3] {
        // SAFETY: as above.
        let recv = unsafe { job.pml(0).start(&mut persistent) }.unwrap();
        send_all(&mut job, [tag]);
        check(job.pml(0).wait(recv), tag);
    }
    send_all(&mut job, [4]);
    let (message, status) = job.pml(0).mprobe(&comm, ANY.0, ANY.1).unwrap();
    assert_eq!(status.bytes, 16, "a probe tells the whole length");
    // SAFETY: as above.
    let recv = unsafe { job.pml(0).imrecv(&message, &to.typed()) }.unwrap();
    check(job.pml(0).wait(recv), 4);
}
