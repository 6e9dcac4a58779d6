//! The fast path of short messages, over a transport that offers the next message of a peer alone: where it is
//! taken, where it is not, and that both come to the same.
#![allow(unsafe_code, reason = "promises buffers that outlive the job")]

use crate::common::ahead::offer_next;
use crate::common::{Buffer, Job, bytes, link};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, Event, PeerId, Queue, Sink, delegate, hand_out};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_pml::{Config, Next, PmlError, Source, TagSel};
use std::collections::VecDeque;

const FROM_0: Source = Source::Rank(0);

/// A loopback that has looked ahead.
struct Ahead {
    inner: Loopback,
    waiting: VecDeque<Event>,
}

impl Btl for Ahead {
    delegate!(self => self.inner; limits address connect reserve send);

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let mut events = Queue::with_capacity(64);
        self.inner.poll(None, &mut events);
        self.waiting.extend(events.drain());
        match only {
            Some(peer) => offer_next(&mut self.waiting, peer, sink),
            None => hand_out(&mut self.waiting, None, sink),
        }
    }
}

fn job(size: u32) -> Job {
    let mut job = Job::build(size, Config::default(), &mut |_, hub: &Hub| {
        Box::new(Ahead { inner: Loopback::with(hub, link()), waiting: VecDeque::new() })
    });
    // The first receive from a process makes the link, and is posted.
    let (from, to) = (Buffer::source(&bytes(0), 1, 0), Buffer::target(&bytes(0), 1));
    let received = job.irecv(1, &to, FROM_0, TagSel::Is(0));
    let sent = job.isend(0, &from, 1, 0);
    job.finish(1, received).unwrap();
    job.finish(0, sent).unwrap();
    job
}

/// What becomes of a receive that waits: `None` if it has to be posted.
fn look(job: &mut Job, to: &Buffer, tag: i32) -> Option<Next> {
    let end = job.ranks[1].as_mut().unwrap();
    let world = end.world();
    let awaited = end.awaited(&world, &to.typed(), FROM_0, TagSel::Is(tag))?;
    // SAFETY: the buffer is of the test, which does nothing with it meanwhile.
    let next = unsafe { end.take_awaited(&awaited) };
    if next == Next::Taken {
        let status = awaited.status();
        assert_eq!((status.source, status.tag, status.bytes), (0, tag, to.typed().packed_bytes()));
    }
    Some(next)
}

fn doubles(count: u64) -> Layout {
    Datatype::contiguous(count, &Primitive::Double.into()).unwrap().commit().unwrap()
}

#[test]
fn messages_of_all_short_lengths_are_taken_unposted() {
    let mut job = job(2);
    let lengths = (0..70).chain([191, 192, 193, 200, 1000, 1087, 1088]);
    for layout in lengths.map(bytes).chain([doubles(1), doubles(25)]) {
        let (from, to) = (Buffer::source(&layout, 1, 3), Buffer::target(&layout, 1));
        assert_eq!(look(&mut job, &to, 5), Some(Next::Nothing));
        let sent = job.isend(0, &from, 1, 5);
        assert_eq!(look(&mut job, &to, 5), Some(Next::Taken), "{} bytes", layout.size());
        to.assert_received(&from.packed(), "taken");
        job.finish(0, sent).unwrap();
        // The same with a posted receive.
        let received = job.irecv(1, &to, FROM_0, TagSel::Is(6));
        let sent = job.isend(0, &from, 1, 6);
        assert_eq!(job.finish(1, received).unwrap().bytes, layout.size());
        to.assert_received(&from.packed(), "posted");
        job.finish(0, sent).unwrap();
    }
    let long = Buffer::target(&bytes(1089), 1);
    assert_eq!(look(&mut job, &long, 5), None);
}

#[test]
fn what_is_not_expected_stays_in_its_turn() {
    let mut job = job(2);
    let (one, two) = (bytes(8), bytes(16));
    let from = [Buffer::source(&one, 1, 1), Buffer::source(&two, 1, 2)];
    let (to, longer, real) =
        (Buffer::target(&one, 1), Buffer::target(&two, 1), Buffer::target(&doubles(1), 1));
    let sent = [job.isend(0, &from[0], 1, 5), job.isend(0, &from[1], 1, 6)];
    assert_eq!(look(&mut job, &longer, 6), Some(Next::Kept), "another comes before");
    assert_eq!(look(&mut job, &longer, 5), Some(Next::Kept), "it is shorter");
    assert_eq!(look(&mut job, &real, 5), Some(Next::Kept), "it is of other types");
    let received = job.irecv(1, &longer, FROM_0, TagSel::Is(6));
    assert_eq!(look(&mut job, &longer, 6), None, "that receive was first");
    let wild = job.irecv(1, &to, Source::Any, TagSel::Is(9));
    assert_eq!(look(&mut job, &to, 5), None, "it might be the wildcard's");
    assert_eq!(job.finish(1, received).unwrap().bytes, 16);
    job.settle();
    assert_eq!(look(&mut job, &to, 5), None, "it has come and waits");
    assert!(job.ranks[1].as_mut().unwrap().cancel_recv(wild).unwrap());
    let received = job.irecv(1, &to, FROM_0, TagSel::Is(5));
    job.finish(1, received).unwrap();
    to.assert_received(&from[0].packed(), "the first");
    for id in sent {
        job.finish(0, id).unwrap();
    }
    assert_eq!(look(&mut job, &to, 5), Some(Next::Nothing));
}

#[test]
fn many_posted_receives_meet_their_messages_in_order() {
    let mut job = job(2);
    let layout = bytes(8);
    let from: Vec<Buffer> = (0..200).map(|seed| Buffer::source(&layout, 1, seed)).collect();
    let to: Vec<Buffer> = from.iter().map(|_| Buffer::target(&layout, 1)).collect();
    // The third of every seven is for a receive that comes much later.
    let tag = |number: usize| if number % 7 == 3 { 2 } else { 1 };
    let mut sent = Vec::new();
    let mut received = Vec::new();
    for (number, to) in to.iter().enumerate() {
        while sent.len() < (number * 3 / 2 + 5).min(from.len()) {
            let next = sent.len();
            sent.push(job.isend(0, &from[next], 1, tag(next)));
        }
        if tag(number) == 1 {
            received.push((number, job.irecv(1, to, FROM_0, TagSel::Is(1))));
        }
    }
    for number in (0..to.len()).filter(|&number| tag(number) == 2) {
        received.push((number, job.irecv(1, &to[number], FROM_0, TagSel::Is(2))));
    }
    for (number, id) in received {
        assert_eq!(job.finish(1, id).unwrap().bytes, 8);
        to[number].assert_received(&from[number].packed(), "in order");
    }
    for id in sent {
        job.finish(0, id).unwrap();
    }
}

#[test]
fn inline_receives_are_cancelled_refused_and_cut_off_like_others() {
    let mut job = job(2);
    let (short, long) = (bytes(8), bytes(16));
    let from = [Buffer::source(&short, 1, 1), Buffer::source(&long, 1, 2)];
    let to: Vec<Buffer> = (0..4).map(|_| Buffer::target(&short, 1)).collect();
    let first = job.irecv(1, &to[0], FROM_0, TagSel::Is(1));
    let second = job.irecv(1, &to[1], FROM_0, TagSel::Is(1));
    assert!(job.ranks[1].as_mut().unwrap().cancel_recv(first).unwrap());
    let sent = job.isend(0, &from[0], 1, 1);
    assert_eq!(job.finish(1, second).unwrap().bytes, 8);
    assert_eq!(job.finish(1, first), Err(PmlError::Cancelled));
    job.finish(0, sent).unwrap();
    let short_of_room = job.irecv(1, &to[2], FROM_0, TagSel::Is(1));
    let sent = job.isend(0, &from[1], 1, 1);
    let truncated = PmlError::Truncated { sent: 16, room: 8 };
    assert_eq!(job.finish(1, short_of_room), Err(truncated));
    job.finish(0, sent).unwrap();
    let real = Buffer::target(&doubles(1), 1);
    let integers = Datatype::contiguous(2, &Primitive::Int.into()).unwrap().commit().unwrap();
    let other = job.irecv(1, &real, FROM_0, TagSel::Is(1));
    let sent = job.isend(0, &Buffer::source(&integers, 1, 1), 1, 1);
    assert!(matches!(job.finish(1, other), Err(PmlError::SignatureMismatch { .. })));
    job.finish(0, sent).unwrap();
    let orphan = job.irecv(1, &to[3], FROM_0, TagSel::Is(1));
    job.ranks[0] = None;
    assert!(matches!(job.finish(1, orphan), Err(PmlError::PeerLost { rank: 0, .. })));
    assert_eq!(look(&mut job, &to[3], 1), None, "nobody is there");
}
