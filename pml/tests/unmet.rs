//! Sends to a peer that has not been met.
#![allow(unsafe_code, reason = "promises buffers that outlive the job")]

use crate::common::{Buffer, Job, bytes, link};
use gapless_btl::loopback::Loopback;
use gapless_btl::{Btl, PeerId, ReserveError, Slot, delegate};
use gapless_pml::{Config, Protocol, SendMode, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A loopback whose links stand when the test says so.
struct Strange {
    inner: Loopback,
    met: Arc<AtomicBool>,
}

impl Btl for Strange {
    delegate!(self => self.inner; limits address connect send poll);

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        if self.met.load(Ordering::Relaxed) {
            return self.inner.reserve(to, len);
        }
        Err(ReserveError::Full)
    }
}

fn job(meeting: Duration) -> (Job, Arc<AtomicBool>) {
    let met = Arc::new(AtomicBool::new(false));
    let config = Config { meeting, ..Config::default() };
    let job = Job::build(2, config, &mut |_, hub| {
        Box::new(Strange { inner: Loopback::with(hub, link()), met: Arc::clone(&met) })
    });
    (job, met)
}

/// Some rounds of progress.
fn go_on(job: &mut Job) {
    (0..50).for_each(|_| _ = job.progress());
}

#[test]
fn short_sends_end_without_their_peer_and_arrive_in_order() {
    let (mut job, met) = job(Duration::ZERO);
    let layout = bytes(100);
    let sources: Vec<_> = (0..100).map(|seed| Buffer::source(&layout, 1, seed)).collect();
    let mut sends = Vec::new();
    for (from, tag) in sources.iter().zip(0..) {
        sends.push((tag, job.isend(0, from, 1, tag)));
    }
    go_on(&mut job);
    // There is a bound: the others wait, and are as they were.
    let (ended, waiting): (Vec<_>, Vec<_>) =
        sends.into_iter().partition(|&(_, id)| job.pml(0).is_done(id) == Ok(true));
    assert_eq!(ended.len(), 64);
    assert_eq!(waiting.first().map(|(tag, _)| *tag), Some(64));
    let packed: Vec<_> = sources.iter().map(Buffer::packed).collect();
    let mut sources = sources.into_iter();
    for (tag, id) in ended {
        let status = job.finish(0, id).unwrap();
        assert_eq!((status.source, status.tag, status.bytes), (1, tag, 100));
        // The memory is the caller's again.
        drop(sources.next());
    }
    met.store(true, Ordering::Relaxed);
    for (packed, tag) in packed.iter().zip(0..) {
        let to = Buffer::target(&layout, 1);
        let received = job.irecv(1, &to, Source::Any, TagSel::Any);
        assert_eq!(job.finish(1, received).unwrap().tag, tag);
        to.assert_received(packed, "in order");
    }
    for (_, id) in waiting {
        job.finish(0, id).unwrap();
    }
    assert_eq!(job.pml(0).counters().of(Protocol::Eager).messages, 100, "each counts once");
}

#[test]
fn others_wait_for_their_peer() {
    let (mut job, met) = job(Duration::ZERO);
    let short = Buffer::source(&bytes(8), 1, 1);
    let long = Buffer::source(&bytes(1 << 20), 1, 2);
    let world = job.pml(0).world();
    // SAFETY: the buffers outlive the job's use of them.
    let synchronous =
        unsafe { job.pml(0).isend_mode(&world, &short.typed(), 1, 1, SendMode::Synchronous) };
    let waiting = [synchronous.unwrap(), job.isend(0, &long, 1, 2)];
    go_on(&mut job);
    assert!(waiting.iter().all(|&id| job.pml(0).is_done(id) == Ok(false)));
    met.store(true, Ordering::Relaxed);
    for (from, tag) in [(&short, 1), (&long, 2)] {
        let to = Buffer::target(&bytes(from.typed().packed_bytes()), 1);
        let received = job.irecv(1, &to, Source::Rank(0), TagSel::Is(tag));
        job.finish(1, received).unwrap();
        to.assert_received(&from.packed(), "waited");
    }
    waiting.into_iter().for_each(|id| _ = job.finish(0, id).unwrap());
}

#[test]
fn a_send_that_has_not_waited_for_long_can_be_cancelled() {
    let (mut job, met) = job(Duration::MAX);
    let from = Buffer::source(&bytes(8), 1, 1);
    let sent = job.isend(0, &from, 1, 1);
    go_on(&mut job);
    assert_eq!(job.pml(0).is_done(sent), Ok(false));
    job.pml(0).cancel_send(sent).unwrap();
    assert!(job.finish(0, sent).is_err());
    met.store(true, Ordering::Relaxed);
    // Once one has left, the peer has been met: nobody waits for that any more.
    let sent = job.isend(0, &from, 1, 2);
    let to = Buffer::target(&bytes(8), 1);
    let received = job.irecv(1, &to, Source::Any, TagSel::Any);
    assert_eq!(job.finish(1, received).unwrap().tag, 2);
    job.finish(0, sent).unwrap();
}
