//! `MPI_Cancel` of sends: cancelled or received, never both, and nothing is left of either.

use crate::common::{Buffer, Job, bytes};
use gapless_btl::loopback;
use gapless_pml::{Config, PmlError, RequestId, SendMode, Source, TagSel};

const TAG: i32 = 7;

fn start(job: &mut Job, buffer: &Buffer, to: u32, mode: SendMode) -> RequestId {
    let world = job.pml(0).world();
    // SAFETY: tests keep the buffer until the request has ended.
    unsafe { job.pml(0).isend_mode(&world, &buffer.typed(), to, TAG, mode) }.unwrap()
}

/// Messages that wait at their receiver, or that nobody has heard of.
fn waiting(job: &mut Job, rank: u32) -> bool {
    let world = job.pml(rank).world();
    job.settle();
    job.pml(rank).iprobe(&world, Source::Any, TagSel::Any).unwrap().is_some()
}

const MODES: [SendMode; 2] = [SendMode::Standard, SendMode::Synchronous];
/// Nothing, what fits a slot, and what needs a rendezvous.
const LENGTHS: [u64; 4] = [0, 40, 1000, 100_000];

#[test]
fn a_message_that_nobody_receives_is_gone() {
    for to in [0, 1] {
        for (len, mode) in LENGTHS.into_iter().flat_map(|len| MODES.map(|mode| (len, mode))) {
            let mut job = Job::new(2);
            let sources: Vec<Buffer> =
                (0..3).map(|seed| Buffer::source(&bytes(len), 1, seed)).collect();
            let sends: Vec<RequestId> =
                sources.iter().map(|from| start(&mut job, from, to, mode)).collect();
            job.settle();
            // The middle one: same label as its neighbours. This process answers itself at once.
            let at_once = job.pml(0).cancel_send(sends[1]).unwrap();
            assert_eq!(at_once, to == 0, "{len} {mode:?}");
            assert_eq!(job.finish(0, sends[1]), Err(PmlError::Cancelled), "{len} {mode:?}");
            for at in [0, 2] {
                let target = Buffer::target(&bytes(len), 1);
                let recv = job.irecv(to, &target, Source::Rank(0), TagSel::Is(TAG));
                assert_eq!(job.finish(to, recv).unwrap().bytes, len);
                target.assert_received(&sources[at].packed(), "its neighbour");
                assert_eq!(job.finish(0, sends[at]).unwrap().bytes, len);
            }
            assert!(!waiting(&mut job, to), "{len} {mode:?}");
            assert!(!job.pml(0).has_requests() && !job.pml(1).has_requests());
        }
    }
}

#[test]
fn a_message_that_was_taken_completes() {
    for (len, mode) in LENGTHS.into_iter().flat_map(|len| MODES.map(|mode| (len, mode))) {
        for posted in [true, false] {
            let mut job = Job::new(2);
            let (from, target) =
                (Buffer::source(&bytes(len), 1, 5), Buffer::target(&bytes(len), 1));
            let mut recv = posted.then(|| job.irecv(1, &target, Source::Any, TagSel::Any));
            let send = start(&mut job, &from, 1, mode);
            job.settle();
            let recv =
                recv.take().unwrap_or_else(|| job.irecv(1, &target, Source::Any, TagSel::Any));
            job.pml(0).cancel_send(send).unwrap();
            // Asking twice changes nothing.
            job.pml(0).cancel_send(send).unwrap();
            assert_eq!(job.finish(1, recv).unwrap().bytes, len);
            assert_eq!(job.finish(0, send).unwrap().bytes, len, "{len} {mode:?} {posted}");
            target.assert_received(&from.packed(), "a message that was asked for back too late");
            assert_eq!(job.pml(0).cancel_send(send), Err(PmlError::NoSuchRequest));
        }
    }
}

#[test]
fn a_claimed_message_was_taken() {
    let mut job = Job::new(2);
    let (from, target) = (Buffer::source(&bytes(64), 1, 5), Buffer::target(&bytes(64), 1));
    let send = start(&mut job, &from, 1, SendMode::Standard);
    job.settle();
    let world = job.pml(1).world();
    let (message, _) = job.pml(1).improbe(&world, Source::Any, TagSel::Any).unwrap().unwrap();
    job.pml(0).cancel_send(send).unwrap();
    assert_eq!(job.finish(0, send).unwrap().bytes, 64);
    // SAFETY: the buffer lives until the request has ended.
    let recv = unsafe { job.pml(1).imrecv(&message, &target.typed()) }.unwrap();
    job.finish(1, recv).unwrap();
    target.assert_received(&from.packed(), "a claimed message");
}

/// A link with two slots, so that most messages have not left when they are asked for back.
#[test]
fn what_has_not_left_is_gone_at_once_and_the_rest_is_in_order() {
    for (len, mode) in LENGTHS.into_iter().flat_map(|len| MODES.map(|mode| (len, mode))) {
        let link = loopback::Config { slots: 2, ..crate::common::link() };
        let mut job = Job::with(2, Config::default(), link);
        let sources: Vec<Buffer> =
            (0..40).map(|seed| Buffer::source(&bytes(len), 1, seed)).collect();
        let sends: Vec<RequestId> =
            sources.iter().map(|from| start(&mut job, from, 1, mode)).collect();
        for send in sends.iter().skip(2).step_by(3) {
            job.pml(0).cancel_send(*send).unwrap();
        }
        // Nothing has been polled since: these never left, and nobody else had to be asked.
        let last = sends[38];
        assert_eq!(job.pml(0).test(last), Err(PmlError::Cancelled.into()), "{len} {mode:?}");
        job.settle();
        for (at, (from, send)) in sources.iter().zip(&sends).enumerate() {
            if at % 3 == 2 {
                let due = if *send == last { PmlError::NoSuchRequest } else { PmlError::Cancelled };
                assert_eq!(job.finish(0, *send), Err(due), "{at}: {len} {mode:?}");
                continue;
            }
            let target = Buffer::target(&bytes(len), 1);
            let recv = job.irecv(1, &target, Source::Any, TagSel::Any);
            job.finish(1, recv).unwrap();
            target.assert_received(&from.packed(), "in order");
            job.finish(0, *send).unwrap();
        }
        assert!(!waiting(&mut job, 1));
    }
}

#[test]
fn nobody_knows_what_became_of_a_message_to_the_dead() {
    let mut job = Job::new(2);
    let from = Buffer::source(&bytes(64), 1, 5);
    let (asked, late) = (
        start(&mut job, &from, 1, SendMode::Standard),
        start(&mut job, &from, 1, SendMode::Standard),
    );
    job.settle();
    job.pml(0).cancel_send(asked).unwrap();
    assert_eq!(job.pml(0).test(asked), Ok(None), "nobody has answered");
    job.kill(1);
    let error = job.finish(0, asked).unwrap_err();
    assert!(matches!(error, PmlError::PeerLost { rank: 1, .. }), "{error}");
    // It had ended, and nobody is left to ask.
    job.pml(0).cancel_send(late).unwrap();
    assert_eq!(job.finish(0, late).unwrap().bytes, 64);
}

#[test]
fn a_released_send_that_was_asked_for_back_leaves_nothing() {
    let mut job = Job::new(2);
    let from = Buffer::source(&bytes(64), 1, 5);
    let send = start(&mut job, &from, 1, SendMode::Standard);
    job.pml(0).cancel_send(send).unwrap();
    job.pml(0).release(send).unwrap();
    assert!(!waiting(&mut job, 1));
    assert!(!job.pml(0).has_requests());
}
