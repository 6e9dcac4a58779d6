//! Sends that wait for work of the caller's: what is read, when, in which order, and what happens if the
//! work, the peer or the endpoint comes to an end first.

use crate::common::lab::{Lab, config, layout};
use crate::common::rogue::{Pair, offer};
use crate::common::{Buffer, Home, Job};
use gapless_dtype::Layout;
use gapless_engine::EngineError;
use gapless_mem::Completion;
use gapless_mem::testkit::Hand;
use gapless_pml::{Config, PmlError, Protocol, RequestId, SendMode, Source, TagSel};

/// Work that ends when the test says so.
fn by_hand() -> (Hand, Completion) {
    let hand = Hand::default();
    (hand.clone(), hand.work())
}

fn isend_after(
    job: &mut Job,
    buffer: &Buffer,
    (from, to): (u32, u32),
    tag: i32,
    after: &[Completion],
) -> RequestId {
    let world = job.pml(from).world();
    // SAFETY: tests keep the buffer until the request has ended or the rank is dropped.
    unsafe { job.pml(from).isend_after(&world, &buffer.typed(), to, tag, after) }.unwrap()
}

/// Other bytes where a buffer of the host is.
fn rewrite(buffer: &Buffer, shape: &Layout) {
    let other = Buffer::source_in(shape, 1, 99, Home::Heap);
    // SAFETY: both are as long as the layout needs, and apart; nobody reads while the test is here.
    unsafe { gapless_mem::copy(&buffer.region(), &other.region()) }.unwrap();
    assert_eq!(buffer.packed(), other.packed());
}

const SIZES: [u64; 4] = [0, 8, 3000, 1 << 20];

#[test]
fn later_messages_overtake_nothing_and_wait_for_nothing() {
    // Posted before, posted after all has come, in memory of the host and of a device.
    for (posted_first, on_device) in [(true, false), (false, false), (true, true), (false, true)] {
        for size in SIZES {
            let mut lab = Lab::new(Config::default(), 1);
            let what = format!("{size} bytes, posted first {posted_first}, device {on_device}");
            let shape = layout(size, true);
            let (hand, completion) = by_hand();
            let homes = [0; 4].map(|_| lab.home(on_device));
            let [a, b, c, d] = homes;
            let (one, two) =
                (Buffer::source_in(&shape, 1, 1, a), Buffer::source_in(&shape, 1, 2, b));
            let (first, second) =
                (Buffer::target_in(&shape, 1, c), Buffer::target_in(&shape, 1, d));
            let job = &mut lab.job;
            let mut recvs = Vec::new();
            let mut post = |job: &mut Job| {
                for buffer in [&first, &second] {
                    recvs.push(job.irecv(1, buffer, Source::Any, TagSel::Any));
                }
            };
            if posted_first {
                post(job);
            }
            let waits = isend_after(job, &one, (0, 1), 7, &[Completion::Ready, completion]);
            let goes = job.isend(0, &two, 1, 8);
            job.settle();
            if !posted_first {
                post(job);
            }
            let status = job.finish(1, recvs[1]).unwrap();
            assert_eq!((status.tag, status.bytes), (8, size), "{what}");
            job.finish(0, goes).unwrap();
            second.assert_received(&two.packed(), &what);
            job.settle();
            if size > 0 {
                assert_eq!(job.pml(0).is_done(waits), Ok(false), "{what}");
                assert_eq!(job.pml(1).is_done(recvs[0]), Ok(false), "{what}");
            }
            hand.end();
            let status = job.finish(1, recvs[0]).unwrap();
            assert_eq!((status.tag, status.bytes), (7, size), "{what}");
            job.finish(0, waits).unwrap();
            first.assert_received(&one.packed(), &what);
            lab.assert_idle(&what);
        }
    }
}

#[test]
fn data_is_read_when_the_work_has_ended_and_not_before() {
    for protocol in [Protocol::Pipeline, Protocol::Mapped, Protocol::SingleCopy, Protocol::Eager] {
        for size in [100u64, 50_000] {
            let mut job = Job::with(2, config(protocol, 2), crate::common::link());
            let shape = layout(size, false);
            let (hand, completion) = by_hand();
            let home = job.mappable(0, &shape, 1);
            let from = Buffer::source_in(&shape, 1, 1, home);
            let to = Buffer::target_in(&shape, 1, Home::Heap);
            let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
            let send = isend_after(&mut job, &from, (0, 1), 0, &[completion]);
            job.settle();
            // The work writes only now.
            rewrite(&from, &shape);
            hand.end();
            job.finish(1, recv).unwrap();
            job.finish(0, send).unwrap();
            to.assert_received(&from.packed(), &format!("{size} bytes, {protocol}"));
        }
    }
}

#[test]
fn all_work_is_waited_for_in_any_order() {
    let mut job = Job::new(2);
    let shape = layout(64, false);
    let hands: Vec<_> = (0..5).map(|_| by_hand()).collect();
    let after: Vec<Completion> = hands.iter().map(|(_, completion)| completion.clone()).collect();
    let from = Buffer::source_in(&shape, 1, 1, Home::Heap);
    let to = Buffer::target_in(&shape, 1, Home::Heap);
    let send = isend_after(&mut job, &from, (0, 1), 0, &after);
    let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
    for ended in [3, 0, 4, 1, 2] {
        job.settle();
        assert_eq!(job.pml(1).is_done(recv), Ok(false));
        hands[ended].0.end();
    }
    job.finish(1, recv).unwrap();
    job.finish(0, send).unwrap();
    // All of it over: as any other send, eagerly.
    let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
    let send = isend_after(&mut job, &from, (0, 1), 0, &after);
    assert_eq!(job.finish(1, recv).unwrap().protocol, Protocol::Eager);
    job.finish(0, send).unwrap();
}

#[test]
fn to_oneself_and_by_matched_probe() {
    for size in SIZES {
        let mut job = Job::new(2);
        let shape = layout(size, true);
        let from = Buffer::source_in(&shape, 1, 1, Home::Heap);
        for to in [0, 1] {
            let target = Buffer::target_in(&shape, 1, Home::Heap);
            let (hand, completion) = by_hand();
            let send = isend_after(&mut job, &from, (0, to), 3, &[completion]);
            job.settle();
            let world = job.pml(to).world();
            let claimed = job.pml(to).improbe(&world, Source::Rank(0), TagSel::Is(3)).unwrap();
            let (message, status) = claimed.expect("it is matched at once");
            assert_eq!(status.bytes, size);
            hand.end();
            job.settle();
            // SAFETY: kept until the request has ended.
            let recv = unsafe { job.pml(to).imrecv(&message, &target.typed()) }.unwrap();
            job.finish(to, recv).unwrap();
            job.finish(0, send).unwrap();
            target.assert_received(&from.packed(), &format!("{size} bytes to {to}"));
        }
    }
}

#[test]
fn work_that_fails_fails_both_ends_and_nothing_else() {
    for (posted_first, size) in [(true, 10), (false, 10), (true, 1 << 20), (false, 1 << 20)] {
        let mut job = Job::new(2);
        let shape = layout(size, false);
        let from = Buffer::source_in(&shape, 1, 1, Home::Heap);
        let to = Buffer::target_in(&shape, 1, Home::Heap);
        let (hand, completion) = by_hand();
        let early = posted_first.then(|| job.irecv(1, &to, Source::Rank(0), TagSel::Any));
        let send = isend_after(&mut job, &from, (0, 1), 0, std::slice::from_ref(&completion));
        job.settle();
        hand.fail();
        job.settle();
        let recv = early.unwrap_or_else(|| job.irecv(1, &to, Source::Rank(0), TagSel::Any));
        assert_eq!(job.finish(1, recv), Err(PmlError::SenderFailed { rank: 0 }));
        let error = PmlError::from(EngineError::from(Hand::failure()));
        assert_eq!(job.finish(0, send), Err(error.clone()));
        // At once, if it is known.
        let world = job.pml(0).world();
        // SAFETY: nothing is started.
        let refused = unsafe { job.pml(0).isend_after(&world, &from.typed(), 1, 0, &[completion]) };
        assert_eq!(refused, Err(error));
        let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        let send = job.isend(0, &from, 1, 0);
        job.finish(1, recv).unwrap();
        job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), "the next one");
    }
}

#[test]
fn a_lost_peer_ends_it_and_an_endpoint_goes_without_the_work() {
    for matched in [true, false] {
        for dies in [0, 1] {
            let mut job = Job::new(2);
            let shape = layout(5000, false);
            let from = Buffer::source_in(&shape, 1, 1, Home::Heap);
            let to = Buffer::target_in(&shape, 1, Home::Heap);
            let (hand, completion) = by_hand();
            let send = isend_after(&mut job, &from, (0, 1), 0, &[completion]);
            let recv = matched.then(|| job.irecv(1, &to, Source::Rank(0), TagSel::Any));
            job.settle();
            // The work never ends, or only when nobody is left to care.
            job.kill(dies);
            if dies == 1 {
                assert!(matches!(job.finish(0, send), Err(PmlError::PeerLost { .. })));
                hand.end();
                job.settle();
                assert!(!job.pml(0).is_busy());
            } else if let Some(recv) = recv {
                assert!(matches!(job.finish(1, recv), Err(PmlError::PeerLost { .. })));
            }
        }
    }
}

#[test]
fn what_nobody_has_matched_can_be_taken_back() {
    let mut job = Job::new(2);
    let shape = layout(5000, false);
    let from = Buffer::source_in(&shape, 1, 1, Home::Heap);
    let to = Buffer::target_in(&shape, 1, Home::Heap);
    let (hand, completion) = by_hand();
    let send = isend_after(&mut job, &from, (0, 1), 0, &[completion]);
    job.settle();
    job.pml(0).cancel_unfinished_send(send).unwrap();
    assert_eq!(job.finish(0, send), Err(PmlError::Cancelled));
    hand.end();
    job.settle();
    let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Any);
    let world = job.pml(0).world();
    // SAFETY: kept until the request has ended.
    let next = unsafe { job.pml(0).isend_mode(&world, &from.typed(), 1, 4, SendMode::Synchronous) };
    assert_eq!(job.finish(1, recv).unwrap().tag, 4);
    job.finish(0, next.unwrap()).unwrap();
}

#[test]
fn two_offers_of_one_name_break_the_protocol() {
    let mut pair = Pair::new(Protocol::StagedGet);
    let buffers = [0; 2].map(|_| Buffer::target_in(&layout(500, true), 1, pair.home()));
    let ids = buffers.each_ref().map(|to| pair.recv(to));
    for sequence in 0u32..2 {
        let mut offer = offer(500);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        // Its data comes later.
        offer[110] = 1;
        pair.inject(&offer);
        assert_eq!(pair.inbox.1, sequence == 1, "what is wrong is the second");
    }
    for id in ids {
        pair.assert_lost(id, "both are its");
    }
}
