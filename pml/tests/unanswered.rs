//! Short messages out of device memory: offered, and followed by their data if nobody answers. What nobody receives yet
//! leaves all the same, in its turn; what is received at once takes one copy.

use crate::common::lab::{Lab, layout};
use crate::common::rogue::{GET, Pair, VERSION, serial_of, word};
use crate::common::{Buffer, Home, Job, link};
use gapless_btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::HostEngine;
use gapless_engine::testkit::FakeEngine;
use gapless_pml::{Config, PmlError, Protocol, RequestId, SendMode, Source, TagSel, Tuning};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// No watchdog: only longer than what is waited for.
const LONG: Duration = Duration::from_secs(60);

/// A device that short messages gain by being offered.
fn config() -> Config {
    let tuning = Tuning { launch_wait_ns: 8000.0, import_uses: 1_000_000, ..Tuning::default() };
    Config { tuning, ..Config::default() }
}

/// Both ranks make progress until `done`.
fn until(lab: &mut Lab, what: &str, mut done: impl FnMut(&mut Lab) -> bool) {
    let start = Instant::now();
    while !done(lab) {
        assert!(start.elapsed() < LONG, "{what}");
        for rank in 0..2 {
            lab.job.pml(rank).progress();
        }
    }
}

fn is_done(lab: &mut Lab, rank: u32, id: RequestId) -> bool {
    lab.job.pml(rank).is_done(id).unwrap()
}

#[test]
fn what_is_received_at_once_takes_one_copy() {
    for (bytes, gaps) in [(1, false), (8, true), (1000, true), (8000, false)] {
        let mut lab = Lab::new(config(), 2);
        let from = Buffer::source_in(&layout(bytes, gaps), 1, 1, lab.home(true));
        let to = Buffer::target_in(&layout(bytes, gaps), 1, lab.home(true));
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        let send = lab.job.isend(0, &from, 1, 0);
        let status = lab.job.finish(1, recv).unwrap();
        lab.job.finish(0, send).unwrap();
        let what = format!("{bytes} bytes, gaps: {gaps}");
        to.assert_received(&from.packed(), &what);
        assert!([Protocol::Mapped, Protocol::MappedPut].contains(&status.protocol), "{what}");
        lab.assert_idle(&what);
    }
}

#[test]
fn in_a_crowd_messages_are_eager_and_keep_their_order() {
    const MANY: u64 = 60;
    let mut lab = Lab::new(config(), 5);
    let source = |seed| Buffer::source_in(&layout(8, true), 1, seed, lab.home(true));
    let from: Vec<Buffer> = (0..MANY).map(source).collect();
    let target = |_| Buffer::target_in(&layout(8, true), 1, lab.home(true));
    let to: Vec<Buffer> = (0..MANY).map(target).collect();
    let receive = |to| lab.job.irecv(1, to, Source::Rank(0), TagSel::Is(0));
    let recvs: Vec<RequestId> = to.iter().map(receive).collect();
    let send = |from| lab.job.isend(0, from, 1, 0);
    let sends: Vec<RequestId> = from.iter().map(send).collect();
    let mut last = None;
    for (recv, (from, to)) in recvs.into_iter().zip(from.iter().zip(&to)) {
        last = Some(lab.job.finish(1, recv).unwrap().protocol);
        to.assert_received(&from.packed(), "one of many");
    }
    assert_eq!(last, Some(Protocol::Eager));
    for send in sends {
        lab.job.finish(0, send).unwrap();
    }
    lab.assert_idle("all are there");
}

#[test]
fn two_that_send_first_both_end() {
    for polls in [0, 5] {
        let mut lab = Lab::new(config(), polls);
        // Between two messages of the device's, one that is eager by itself: they keep their order.
        let homes = [true, false, true, true];
        let sizes = [8, 8, 1000, 1];
        let buffer = |lab: &Lab, rank: u64, at: usize| {
            let seed = 10 * rank + at as u64;
            Buffer::source_in(&layout(sizes[at], true), 1, seed, lab.home(homes[at]))
        };
        let from = [0, 1].map(|rank| [0, 1, 2, 3].map(|at| buffer(&lab, rank, at)));
        let mut sends = Vec::new();
        for rank in 0..2u32 {
            for from in &from[rank as usize] {
                sends.push((rank, lab.job.isend(rank, from, 1 - rank, 7)));
            }
        }
        for (rank, send) in sends {
            until(&mut lab, "a send without a receive", |lab| is_done(lab, rank, send));
            lab.job.finish(rank, send).unwrap();
        }
        for rank in 0..2u32 {
            for (at, from) in from[1 - rank as usize].iter().enumerate() {
                let to = Buffer::target_in(&layout(sizes[at], true), 1, lab.home(at % 2 == 0));
                let recv = lab.job.irecv(rank, &to, Source::Any, TagSel::Any);
                assert_eq!(lab.job.finish(rank, recv).unwrap().protocol, Protocol::Eager);
                to.assert_received(&from.packed(), &format!("message {at} to rank {rank}"));
            }
        }
        lab.assert_idle("both have received");
    }
}

#[test]
fn a_send_ends_after_the_engine_that_packs_its_data() {
    // The sender's engine is slow, the receiver's moves the message meanwhile.
    let mut lab = Lab::new(config(), 0);
    let slow = Arc::new(FakeEngine::new(&lab.device, 100_000));
    lab.engines[0] = Arc::clone(&slow);
    let mut rail = |_, hub: &Hub| Box::new(Loopback::with(hub, link())) as Box<dyn Btl>;
    lab.job = Job::with_engines(2, config(), &mut rail, &[Arc::new(HostEngine)]);
    for (rank, engine) in (0..).zip(&lab.engines) {
        lab.job.pml(rank).add_engine(Arc::clone(engine) as _);
    }
    let from = Buffer::source_in(&layout(500, true), 1, 3, lab.home(true));
    let to = Buffer::target_in(&layout(500, true), 1, lab.home(true));
    let send = lab.job.isend(0, &from, 1, 0);
    let packing = Arc::clone(&lab.engines[0].under_way);
    until(&mut lab, "its data is packed", |_| packing.load(Ordering::Relaxed) > 0);
    let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
    assert_ne!(lab.job.finish(1, recv).unwrap().protocol, Protocol::Eager);
    assert_eq!(packing.load(Ordering::Relaxed), 1, "it is not packed yet");
    until(&mut lab, "the send", |lab| is_done(lab, 0, send));
    assert_eq!(
        packing.load(Ordering::Relaxed),
        0,
        "an engine reads the buffer of a send that ended"
    );
    lab.job.finish(0, send).unwrap();
    to.assert_received(&from.packed(), "moved");
    lab.assert_idle("at the end");
}

#[test]
fn a_send_whose_receiver_dies_while_its_data_is_packed_ends_after_the_engine() {
    for steps in 0..40 {
        let mut lab = Lab::new(config(), 20);
        let from = Buffer::source_in(&layout(500, true), 1, 3, lab.home(true));
        let send = lab.job.isend(0, &from, 1, 0);
        let packing = Arc::clone(&lab.engines[0].under_way);
        until(&mut lab, "its data is packed", |_| packing.load(Ordering::Relaxed) > 0);
        for step in 0..steps {
            lab.job.pml(step % 2).progress();
        }
        lab.job.kill(1);
        let _ = lab.job.finish(0, send);
        assert_eq!(packing.load(Ordering::Relaxed), 0, "after {steps} steps");
        lab.assert_idle("the survivor");
    }
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    let mut lab = Lab::new(config(), 0);
    let from = Buffer::source_in(&layout(64, false), 1, 3, lab.home(true));
    let to = Buffer::target_in(&layout(64, false), 1, Home::Heap);
    let world = lab.job.pml(0).world();
    // SAFETY: kept until the request has ended.
    let send =
        unsafe { lab.job.pml(0).isend_mode(&world, &from.typed(), 1, 0, SendMode::Synchronous) };
    let send = send.unwrap();
    let start = Instant::now();
    until(&mut lab, "some time", |_| start.elapsed() > Duration::from_millis(2));
    assert!(!is_done(&mut lab, 0, send), "nobody has received it");
    let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
    lab.job.finish(1, recv).unwrap();
    lab.job.finish(0, send).unwrap();
    to.assert_received(&from.packed(), "synchronous");
}

#[test]
fn data_that_follows_a_claimed_offer_is_the_message() {
    let mut lab = Lab::new(config(), 0);
    let from = Buffer::source_in(&layout(100, true), 1, 3, lab.home(true));
    let to = Buffer::target_in(&layout(100, true), 1, lab.home(true));
    let send = lab.job.isend(0, &from, 1, 0);
    let mut claimed = None;
    until(&mut lab, "a message to claim", |lab| {
        let world = lab.job.pml(1).world();
        claimed = lab.job.pml(1).improbe(&world, Source::Any, TagSel::Any).unwrap();
        claimed.is_some()
    });
    until(&mut lab, "the send", |lab| is_done(lab, 0, send));
    lab.job.finish(0, send).unwrap();
    let (message, status) = claimed.unwrap();
    assert_eq!(status.bytes, 100);
    // SAFETY: kept until the request has ended.
    let recv = unsafe { lab.job.pml(1).imrecv(&message, &to.typed()) }.unwrap();
    lab.job.finish(1, recv).unwrap();
    to.assert_received(&from.packed(), "claimed");
    lab.assert_idle("claimed");
}

/// An offer of `bytes` bytes without gaps out of device memory, and data for it.
fn data(serial: u64, bytes: usize) -> Vec<u8> {
    let mut message = vec![9; 32 + bytes];
    message[..32].fill(0);
    message[..2].copy_from_slice(&[16, VERSION]);
    word(&mut message, 8, serial);
    message
}

#[test]
fn data_of_another_length_breaks_the_protocol_and_data_for_nothing_means_nothing() {
    for (bytes, lost) in [(500, false), (499, true), (501, true), (0, true)] {
        let mut pair = Pair::new(Protocol::StagedGet);
        let offer = crate::common::rogue::offer(500);
        pair.inject(&data(1 << 40, 77));
        assert!(!pair.inbox.1, "data for an offer that never was, or whose receive has begun");
        pair.inject(&offer);
        pair.inject(&data(serial_of(&offer), bytes));
        assert_eq!(pair.inbox.1, lost, "{bytes} bytes for an offer of 500");
        if !lost {
            assert_eq!(pair.heard(5)[2], 1, "received eagerly");
            let to = Buffer::target_in(&layout(500, false), 1, pair.home());
            let id = pair.recv(&to);
            pair.turn();
            assert_eq!(pair.pml.test(id).unwrap().unwrap().protocol, Protocol::Eager);
            to.assert_received(&[9; 500], "the data");
        }
    }
}

#[test]
fn data_for_a_receive_that_has_begun_is_dropped() {
    let mut pair = Pair::new(Protocol::StagedGet);
    let to = Buffer::target_in(&layout(500, false), 1, pair.home());
    let id = pair.recv(&to);
    let offer = crate::common::rogue::offer(500);
    pair.inject(&offer);
    pair.inject(&data(serial_of(&offer), 500));
    assert!(!pair.inbox.1, "it crossed the decision");
    assert!(!pair.pml.is_done(id).unwrap(), "it goes on as was decided");
    assert_eq!(pair.heard(10)[2], GET);
}

#[test]
fn sends_whose_data_cannot_be_packed_fail_and_no_receive_waits_for_them() {
    for polls in [0, 3] {
        let mut lab = Lab::new(config(), polls);
        lab.break_after(0, 0);
        lab.break_after(1, 0);
        let from = Buffer::source_in(&layout(500, true), 1, 3, lab.home(true));
        let sends = [0, 1].map(|rank: u32| lab.job.isend(rank, &from, 1 - rank, 0));
        for (rank, send) in (0..).zip(sends) {
            until(&mut lab, "a send whose engine fails", |lab| is_done(lab, rank, send));
            let outcome = lab.job.finish(rank, send);
            assert!(matches!(outcome, Err(PmlError::Engine(_))), "{polls} polls: {outcome:?}");
        }
        let world = lab.job.pml(1).world();
        let found = lab.job.pml(1).iprobe(&world, Source::Any, TagSel::Any).unwrap();
        assert_eq!(found, None, "what could not be packed is no message");
    }
}
