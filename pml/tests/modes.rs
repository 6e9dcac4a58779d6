//! Send modes, and sends that are taken back.

use crate::common::{Buffer, Job, bytes, strided};
use gapless_pml::{
    BUFFERED_OVERHEAD, Config, PmlError, Protocol, RequestId, SendMode, Source, TagSel,
};

fn start(
    job: &mut Job,
    from: u32,
    buffer: &Buffer,
    to: u32,
    mode: SendMode,
) -> Result<RequestId, PmlError> {
    let world = job.pml(from).world();
    // SAFETY: tests keep the buffer until the request has ended or the rank is dropped.
    unsafe { job.pml(from).isend_mode(&world, &buffer.typed(), to, 7, mode) }
}

/// Nothing, what fits a slot, and what needs a rendezvous.
const LENGTHS: [u64; 4] = [0, 40, 1000, 100_000];

#[test]
fn a_synchronous_send_ends_when_it_is_received_and_not_before() {
    for to in [0, 1] {
        for len in LENGTHS {
            for posted in [false, true] {
                let mut job = Job::new(2);
                let layout = strided(len / 4, 4, 6);
                let (from, target) = (Buffer::source(&layout, 1, len), Buffer::target(&layout, 1));
                let mut recv = posted.then(|| job.irecv(to, &target, Source::Rank(0), TagSel::Any));
                let send = start(&mut job, 0, &from, to, SendMode::Synchronous).unwrap();
                job.settle();
                if recv.is_none() {
                    assert_eq!(job.pml(0).test(send), Ok(None), "{len} bytes, nobody receives");
                    recv = Some(job.irecv(to, &target, Source::Rank(0), TagSel::Any));
                }
                assert_eq!(job.finish(to, recv.unwrap()).unwrap().bytes, len);
                assert_eq!(job.finish(0, send).unwrap().bytes, len);
                target.assert_received(&from.packed(), "a synchronous message");
            }
        }
    }
}

#[test]
fn synchronous_and_standard_messages_do_not_overtake() {
    let mut job = Job::new(2);
    let from: Vec<Buffer> = (0..40).map(|seed| Buffer::source(&bytes(60), 1, seed)).collect();
    let sends: Vec<RequestId> = from
        .iter()
        .enumerate()
        .map(|(at, from)| {
            let mode = if at % 3 == 0 { SendMode::Synchronous } else { SendMode::Standard };
            start(&mut job, 0, from, 1, mode).unwrap()
        })
        .collect();
    job.settle();
    for from in &from {
        let to = Buffer::target(&bytes(60), 1);
        let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
        job.finish(1, recv).unwrap();
        to.assert_received(&from.packed(), "in order");
    }
    for send in sends {
        job.finish(0, send).unwrap();
    }
}

#[test]
fn a_ready_send_without_a_receive_is_reported() {
    for len in LENGTHS {
        let mut job = Job::new(2);
        let from = Buffer::source(&bytes(len), 1, 1);
        let (first, second) = (Buffer::target(&bytes(len), 1), Buffer::target(&bytes(len), 1));
        let recv = job.irecv(1, &first, Source::Rank(0), TagSel::Any);
        let send = start(&mut job, 0, &from, 1, SendMode::Ready).unwrap();
        assert_eq!(job.finish(1, recv).unwrap().bytes, len);
        job.finish(0, send).unwrap();
        first.assert_received(&from.packed(), "a receive that was ready");

        let send = start(&mut job, 0, &from, 1, SendMode::Ready).unwrap();
        let sent = job.finish(0, send);
        job.settle();
        let recv = job.irecv(1, &second, Source::Rank(0), TagSel::Any);
        assert_eq!(job.finish(1, recv), Err(PmlError::NotReady { rank: 0, tag: 7 }));
        match sent {
            Ok(status) => {
                assert_eq!(status.protocol, Protocol::Eager);
                second.assert_received(&from.packed(), "a receive that was late");
            }
            Err(error) => {
                assert_eq!(error, PmlError::NotReady { rank: 1, tag: 7 });
                second.assert_received(&[], "what was not carried");
            }
        }
    }
}

#[test]
fn a_buffered_send_ends_at_once_and_its_room_comes_back() {
    let mut job = Job::new(2);
    let layout = strided(5000, 4, 6);
    let (from, to) = (Buffer::source(&layout, 1, 1), Buffer::target(&layout, 1));
    let none = start(&mut job, 0, &from, 1, SendMode::Buffered).unwrap_err();
    let wanted = 20_000 + BUFFERED_OVERHEAD;
    assert_eq!(none, PmlError::BufferExhausted { wanted, free: 0, attached: 0 });
    job.pml(0).attach_buffer(2 * wanted + 10).unwrap();
    assert_eq!(job.pml(0).attach_buffer(1), Err(PmlError::BufferAttached));
    for _ in 0..2 {
        let send = start(&mut job, 0, &from, 1, SendMode::Buffered).unwrap();
        assert_eq!(job.pml(0).test(send).unwrap().unwrap().bytes, 20_000);
    }
    let full = start(&mut job, 0, &from, 1, SendMode::Buffered).unwrap_err();
    assert_eq!(full, PmlError::BufferExhausted { wanted, free: 10, attached: 2 * wanted + 10 });
    job.settle();
    assert_eq!(job.pml(0).try_detach_buffer(), None);
    for _ in 0..2 {
        let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
        job.finish(1, recv).unwrap();
        to.assert_received(&from.packed(), "a buffered message");
    }
    let size = job.until("the buffer to be empty", |job| job.pml(0).try_detach_buffer());
    assert_eq!(size, 2 * wanted + 10);
    assert_eq!(job.pml(0).detach_buffer(), Ok(0));
}

#[test]
fn buffered_messages_are_those_of_the_time_they_were_sent() {
    let mut job = Job::new(2);
    job.pml(0).attach_buffer(1 << 20).unwrap();
    let layout = bytes(3000);
    // More than the link has room for: most of them wait as copies.
    let mut sent = Vec::new();
    for seed in 0..200 {
        let from = Buffer::source(&layout, 1, seed);
        let send = start(&mut job, 0, &from, 1, SendMode::Buffered).unwrap();
        job.pml(0).test(send).unwrap().expect("it has ended");
        sent.push(from.packed());
        drop(from);
    }
    for packed in sent {
        let to = Buffer::target(&layout, 1);
        let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
        job.finish(1, recv).unwrap();
        to.assert_received(&packed, "a copy");
    }
}

#[test]
fn a_synchronous_send_ends_with_its_peer() {
    for len in LENGTHS {
        let mut job = Job::new(2);
        let from = Buffer::source(&bytes(len), 1, 1);
        let send = start(&mut job, 0, &from, 1, SendMode::Synchronous).unwrap();
        job.settle();
        job.kill(1);
        let error = job.finish(0, send).unwrap_err();
        assert!(matches!(error, PmlError::PeerLost { rank: 1, .. }), "{error}");
    }
}

#[test]
fn a_send_that_nobody_receives_can_be_taken_back() {
    for (len, mode) in [(100_000, SendMode::Standard), (50, SendMode::Synchronous)] {
        let mut job = Job::new(2);
        let from = Buffer::source(&bytes(len), 1, 1);
        let to = Buffer::target(&bytes(len), 1);
        let (kept, back) = (
            start(&mut job, 0, &from, 1, mode).unwrap(),
            start(&mut job, 0, &from, 1, mode).unwrap(),
        );
        job.settle();
        job.pml(0).cancel_unfinished_send(back).unwrap();
        assert_eq!(job.finish(0, back), Err(PmlError::Cancelled));
        // Only that one, and not one that was received meanwhile.
        let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
        job.pml(0).cancel_unfinished_send(kept).unwrap();
        job.finish(1, recv).unwrap();
        assert_eq!(job.finish(0, kept).unwrap().bytes, len);
        assert_eq!(job.pml(0).cancel_unfinished_send(kept), Err(PmlError::NoSuchRequest));
        let world = job.pml(1).world();
        job.settle();
        assert_eq!(job.pml(1).iprobe(&world, Source::Any, TagSel::Any), Ok(None));
    }
}

#[test]
fn whoever_leaves_refuses_what_it_has_not_received() {
    let mut job = Job::with(2, Config::default(), crate::common::link());
    let from = Buffer::source(&bytes(50_000), 1, 1);
    let send = start(&mut job, 0, &from, 1, SendMode::Standard).unwrap();
    // They have a link, and neither has said anything yet.
    job.settle();
    assert!(!job.pml(0).all_farewells() && !job.pml(1).all_farewells());
    job.pml(0).say_farewell();
    job.settle();
    assert!(!job.pml(0).all_farewells(), "the other one has not");
    job.pml(1).say_farewell();
    job.until("both farewells", |job| {
        (job.pml(0).all_farewells() && job.pml(1).all_farewells()).then_some(())
    });
    assert!(job.pml(0).has_requests());
    job.pml(1).refuse_unreceived();
    assert_eq!(job.finish(0, send), Err(PmlError::Unreceived { rank: 1, tag: 7 }));
    assert!(!job.pml(0).has_requests());
}
