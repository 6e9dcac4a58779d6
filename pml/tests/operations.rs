//! Operations of several steps: matched probe, persistent requests, send and receive at once.

use crate::common::{Buffer, Job, bytes, strided};
use gapless_dtype::{Datatype, Primitive};
use gapless_pml::{Persistent, PmlError, SendMode, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};

/// Nothing, what fits a slot, and what needs a rendezvous.
const LENGTHS: [u64; 4] = [0, 40, 1000, 100_000];

#[test]
fn a_message_that_was_probed_and_taken_is_nobody_elses() {
    for len in LENGTHS {
        for mode in [SendMode::Standard, SendMode::Synchronous] {
            let mut job = Job::new(2);
            let (first, second) =
                (Buffer::source(&bytes(len), 1, 1), Buffer::source(&bytes(len), 1, 2));
            let world = job.pml(0).world();
            let sends = [&first, &second].map(|from| {
                // SAFETY: the buffers live until the requests have ended.
                unsafe { job.pml(0).isend_mode(&world, &from.typed(), 1, 3, mode) }.unwrap()
            });
            let at = job.pml(1).world();
            let (message, status) = job.until("a message", |job| {
                job.pml(1).improbe(&at, Source::Any, TagSel::Is(3)).unwrap()
            });
            assert_eq!((status.source, status.tag, status.bytes), (0, 3, len));
            // Idle for a while: the transport's memory comes back.
            job.settle();
            let (late, early) = (Buffer::target(&bytes(len), 1), Buffer::target(&bytes(len), 1));
            let recv = job.irecv(1, &early, Source::Any, TagSel::Any);
            job.finish(1, recv).unwrap();
            early.assert_received(&second.packed(), "the second message");
            // SAFETY: as above.
            let recv = unsafe { job.pml(1).imrecv(&message, &late.typed()) }.unwrap();
            assert_eq!(job.finish(1, recv).unwrap().bytes, len);
            late.assert_received(&first.packed(), "the first message");
            sends.into_iter().for_each(|send| assert_eq!(job.finish(0, send).unwrap().bytes, len));
            // SAFETY: as above.
            let again = unsafe { job.pml(1).imrecv(&message, &late.typed()) };
            assert_eq!(again, Err(PmlError::NoSuchMessage.into()));
        }
    }
}

#[test]
fn a_message_that_was_taken_can_be_dropped() {
    let mut job = Job::new(2);
    let from = Buffer::source(&bytes(60_000), 1, 1);
    let send = job.isend(0, &from, 1, 0);
    let at = job.pml(1).world();
    let (message, _) = job
        .until("a message", |job| job.pml(1).improbe(&at, Source::Rank(0), TagSel::Any).unwrap());
    job.settle();
    assert_eq!(job.pml(0).test(send), Ok(None));
    job.pml(1).drop_message(&message);
    job.finish(0, send).unwrap();
}

#[test]
fn a_message_that_was_taken_outlives_its_sender_only_if_it_is_here() {
    for (len, here) in [(60_000, false), (40, true)] {
        let mut job = Job::new(2);
        let from = Buffer::source(&bytes(len), 1, 1);
        let _send = job.isend(0, &from, 1, 0);
        let at = job.pml(1).world();
        let (message, _) = job.until("a message", |job| {
            job.pml(1).improbe(&at, Source::Rank(0), TagSel::Any).unwrap()
        });
        job.kill(0);
        job.until("the death", |job| job.pml(1).iprobe(&at, Source::Rank(0), TagSel::Any).err());
        let to = Buffer::target(&bytes(len), 1);
        // SAFETY: the buffer lives until the request has ended.
        match unsafe { job.pml(1).imrecv(&message, &to.typed()) } {
            Ok(recv) => {
                assert!(here);
                job.finish(1, recv).unwrap();
                to.assert_received(&from.packed(), "what had arrived");
            }
            Err(failure) => {
                let lost = matches!(failure.error, PmlError::PeerLost { rank: 0, .. });
                assert!(!here && lost, "{failure}");
                let told = failure.status().map(|status| (status.source, status.tag, status.bytes));
                assert_eq!(told, Some((0, 0, len)), "what the probe had said");
            }
        }
    }
}

#[test]
fn persistent_requests_are_started_again_and_again() {
    for mode in [SendMode::Standard, SendMode::Synchronous, SendMode::Ready] {
        for len in LENGTHS {
            let mut job = Job::new(2);
            let layout = strided(len / 4, 4, 7);
            let (from, to) = (Buffer::source(&layout, 1, len), Buffer::target(&layout, 1));
            let worlds = [0, 1].map(|rank| job.pml(rank).world());
            let mut send = Persistent::send(&worlds[0], &from.typed(), 1, 5, mode);
            let mut recv =
                Persistent::recv(&worlds[1], &to.typed(), Source::Rank(0), TagSel::Is(5));
            for _ in 0..20 {
                // SAFETY: the buffers live until the requests have ended.
                let received = unsafe { job.pml(1).start(&mut recv) }.unwrap();
                // SAFETY: as above.
                let sent = unsafe { job.pml(0).start(&mut send) }.unwrap();
                // SAFETY: as above.
                let again = unsafe { job.pml(1).start(&mut recv) };
                assert_eq!(again, Err(PmlError::StillActive));
                assert_eq!(job.finish(1, received).unwrap().bytes, len);
                job.finish(0, sent).unwrap();
            }
            to.assert_received(&from.packed(), "the last one");
            // One that is not started does not go on by itself.
            assert_eq!(job.pml(1).iprobe(&worlds[1], Source::Any, TagSel::Any), Ok(None));
        }
    }
}

/// A caller's own work is waited for among messages, and whoever watches it is told.
#[test]
fn work_of_the_callers_is_a_request_like_any_other() {
    let mut job = Job::new(1);
    let world = job.pml(0).world();
    let pml = job.pml(0);
    let (work, dropped) = (pml.begin_general(), pml.begin_general());
    let to = Buffer::target(&bytes(8), 1);
    // SAFETY: the buffer lives until the request has ended.
    let message = unsafe { pml.irecv(&world, &to.typed(), Source::Any, TagSel::Is(1)) }.unwrap();
    assert_eq!((pml.test_any(&[message, work]), pml.has_requests()), (None, true));
    let mut waker = Some(Waker::noop().clone());
    assert_eq!(pml.notify(work, &mut waker), Ok(true));
    pml.release(dropped).unwrap();
    pml.end_general(work).unwrap();
    pml.end_general(dropped).unwrap();
    assert_eq!(pml.take_woken().len(), 1);
    let (at, outcome) = pml.wait_any(&[message, work]).unwrap();
    assert_eq!((at, outcome.map(|status| (status.source, status.bytes))), (1, Ok((0, 0))));
    // Gone, gone, and no work of the caller's.
    for id in [work, dropped, message] {
        assert_eq!(pml.end_general(id), Err(PmlError::NoSuchRequest));
    }
    assert_eq!(pml.cancel_recv(message), Ok(true));
    assert_eq!(pml.wait(message), Err(PmlError::Cancelled.into()));
    assert!(!pml.has_requests());
}

#[test]
fn a_ring_exchanges_and_replaces() {
    let mut job = Job::new(1);
    let world = job.pml(0).world();
    for len in LENGTHS {
        let layout = strided(len / 4, 4, 7);
        let (from, to) = (Buffer::source(&layout, 1, len), Buffer::target(&layout, 1));
        let (at, with) = ((0, 1), (Source::Rank(0), TagSel::Is(1)));
        let pml = job.pml(0);
        // SAFETY: both live until this returns.
        let status = unsafe { pml.sendrecv(&world, &from.typed(), at, &to.typed(), with) };
        assert_eq!(status.unwrap().bytes, len);
        to.assert_received(&from.packed(), "sendrecv");
        let before = from.bytes();
        // SAFETY: as above.
        let status = unsafe { pml.sendrecv_replace(&world, &from.typed(), at, with) };
        assert_eq!(status.unwrap().bytes, len);
        assert_eq!(from.bytes(), before);
        // SAFETY: as above.
        let failed = unsafe { pml.sendrecv(&world, &from.typed(), (9, 1), &to.typed(), with) };
        let what = "the destination of a send";
        assert_eq!(failed, Err(PmlError::InvalidRank { what, rank: 9, size: 1 }.into()));
        // SAFETY: as above.
        let failed = unsafe { pml.sendrecv_replace(&world, &from.typed(), (0, -1), with) };
        assert_eq!(failed, Err(PmlError::InvalidTag { tag: -1 }.into()));
    }
}

#[test]
fn what_is_replaced_is_what_came() {
    let mut job = Job::new(2);
    // Longer than a slot: both offers wait for each other's receives.
    for len in [400u64, 120_000] {
        let layout = strided(len / 4, 4, 7);
        let buffers = [Buffer::source(&layout, 1, 1), Buffer::source(&layout, 1, 2)];
        let packed = [buffers[0].packed(), buffers[1].packed()];
        let requests: Vec<_> = (0u32..2)
            .map(|rank| {
                let (world, typed) = (job.pml(rank).world(), buffers[rank as usize].typed());
                // SAFETY: the buffers live until the requests have ended, and what is sent is a copy.
                let send = unsafe { job.pml(rank).isend_copy(&world, &typed, 1 - rank, 0) };
                let (source, tag) = (Source::Rank(1 - rank), TagSel::Is(0));
                // SAFETY: as above.
                let recv = unsafe { job.pml(rank).irecv(&world, &typed, source, tag) };
                (rank, send.unwrap(), recv.unwrap())
            })
            .collect();
        for (rank, send, recv) in requests {
            job.finish(rank, recv).unwrap();
            job.finish(rank, send).unwrap();
        }
        assert_eq!([buffers[1].packed(), buffers[0].packed()], packed, "{len} bytes");
    }
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn whoever_asks_is_told_of_the_end_once() {
    let mut job = Job::new(2);
    let told: [Arc<Count>; 2] = Default::default();
    let (from, to) = (Buffer::source(&bytes(100), 1, 1), Buffer::target(&bytes(100), 1));
    let wake = |job: &mut Job| {
        let woken = job.pml(1).take_woken();
        woken.into_iter().for_each(Waker::wake);
        told.each_ref().map(|count| count.0.load(Ordering::Relaxed))
    };
    // Who comes back is not told, and is not dropped in there.
    let notify = |job: &mut Job, id, who: usize| {
        let mut waker = Some(Waker::from(Arc::clone(&told[who])));
        let waits = job.pml(1).notify(id, &mut waker);
        (waits, waker.is_some())
    };
    let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
    let never = job.irecv(1, &to, Source::Any, TagSel::Is(99));
    assert_eq!(notify(&mut job, recv, 0), (Ok(true), false));
    assert_eq!(notify(&mut job, recv, 0), (Ok(true), true));
    assert_eq!(notify(&mut job, never, 1), (Ok(true), false));
    job.settle();
    assert_eq!(wake(&mut job), [0, 0]);
    let send = job.isend(0, &from, 1, 0);
    job.settle();
    assert!(job.pml(1).has_woken());
    assert_eq!(wake(&mut job), [1, 0]);
    assert_eq!(notify(&mut job, recv, 0), (Ok(false), true));
    job.finish(0, send).unwrap();
    job.finish(1, recv).unwrap();
    assert!(matches!(notify(&mut job, recv, 0), (Err(_), true)));
    assert_eq!(job.pml(1).take_all_wakers().len(), 1);
    job.pml(1).cancel_unmatched_receives();
    assert_eq!(job.finish(1, never), Err(PmlError::Cancelled));
    assert!(!job.pml(1).has_requests());
}

/// What was sent before the receive's arguments were refused would be a message too many.
#[test]
fn a_replacement_that_is_refused_has_sent_nothing() {
    let mut job = Job::new(2);
    let world = job.pml(0).world();
    let int = Datatype::from(Primitive::Int);
    let twice = Datatype::hindexed_block(1, &[0, 2], &int).unwrap().commit().unwrap();
    let good = strided(10, 4, 7);
    let (from, tag) = (Source::Rank(1), TagSel::Is(0));
    let what = "the source of a receive or probe";
    let cases = [
        (&twice, (from, tag), PmlError::OverlappingReceive { count: 1 }),
        (&good, (Source::Rank(9), tag), PmlError::InvalidRank { what, rank: 9, size: 2 }),
        (&good, (from, TagSel::Is(-2)), PmlError::InvalidTag { tag: -2 }),
    ];
    for (layout, from, why) in cases {
        let buffer = Buffer::source(layout, 1, 1);
        // SAFETY: the buffer lives until this returns.
        let failed = unsafe { job.pml(0).sendrecv_replace(&world, &buffer.typed(), (1, 0), from) };
        assert_eq!(failed, Err(why.into()));
    }
    // Messages between two processes stay in order: this one would come after them.
    let marker = Buffer::source(&good, 1, 2);
    let sent = job.isend(0, &marker, 1, 7);
    let to = Buffer::target(&good, 1);
    let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
    assert_eq!(job.finish(1, recv).unwrap().tag, 7);
    job.finish(0, sent).unwrap();
}
