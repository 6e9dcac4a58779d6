//! Two ends in one process, driven by one thread, and what they have heard.

use super::Fixture;
use super::bench::Watch;
use gapless_btl::{AmTag, Btl, Event, LinkError, PeerId, Queue, ReserveError, Slot, Token};
use std::collections::VecDeque;

/// One end of a [`Duo`].
pub(super) const A: usize = 0;
/// The other.
pub(super) const B: usize = 1;

/// An event without its credits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Message { from: PeerId, tag: AmTag, bytes: Vec<u8> },
    Sent { token: Token, result: Result<(), LinkError> },
    Completed { token: Token, result: Result<(), LinkError> },
    Lost { peer: PeerId },
}

impl Seen {
    pub(super) fn of(event: Event) -> Seen {
        match event {
            Event::Arrived { from, tag, fragment } => {
                let bytes = fragment.to_vec().expect("arrivals are in host memory");
                Seen::Message { from, tag, bytes }
            }
            Event::Sent { token, result } => Seen::Sent { token, result },
            Event::Completed(ended) => {
                let (token, result) = ended.into_parts();
                Seen::Completed { token, result }
            }
            Event::Lost { peer, .. } => Seen::Lost { peer },
        }
    }
}

/// Polls once and gives what was reported.
pub(super) fn poll<T: Btl>(end: &mut T, events: &mut Queue) -> Vec<Event> {
    let added = end.poll(None, events);
    assert_eq!(added, events.len(), "`poll` gives how many events it added");
    assert!(added <= events.capacity(), "{added} events, and room for {}", events.capacity());
    events.drain().collect()
}

/// The message that everyone knows by its number and length.
pub(super) fn message(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares without printing megabytes.
pub(super) fn assert_message(bytes: &[u8], number: u64, len: usize) {
    let right = message(number, len);
    assert_eq!(bytes.len(), right.len(), "length of message {number}");
    let wrong = bytes.iter().zip(&right).position(|(got, right)| got != right);
    assert_eq!(wrong, None, "first wrong byte of message {number}, of {len} bytes");
}

/// Two connected ends.
pub(super) struct Duo<T> {
    pub(super) ends: [T; 2],
    /// What each end calls the other.
    pub(super) peer: [PeerId; 2],
    /// What each end has heard and no test has looked at.
    pub(super) heard: [VecDeque<Seen>; 2],
    events: Queue,
}

impl<T: Btl> Duo<T> {
    /// A connected pair, whose links stand in both directions.
    pub(super) fn new(fixture: &mut impl Fixture<Btl = T>) -> Duo<T> {
        let (a, b) = fixture.pair();
        Duo::of(a, b)
    }

    /// Connects two ends, until their links stand.
    pub(super) fn of(mut a: T, mut b: T) -> Duo<T> {
        let (a_address, b_address) = (a.address(), b.address());
        let to_b = a.connect(&b_address).expect("the ends of a pair reach each other");
        let to_a = b.connect(&a_address).expect("the ends of a pair reach each other");
        let mut duo = Duo::joined([a, b], [to_b, to_a]);
        for side in [A, B] {
            drop(duo.reserve(side, 0));
        }
        duo
    }

    /// Two ends that call each other so, connected as far as they are.
    pub(super) fn joined(ends: [T; 2], peer: [PeerId; 2]) -> Duo<T> {
        let heard = [VecDeque::new(), VecDeque::new()];
        Duo { ends, peer, heard, events: Queue::with_capacity(64) }
    }

    /// Polls one end; messages give their credits back at once.
    pub(super) fn poll(&mut self, side: usize) -> usize {
        let events = poll(&mut self.ends[side], &mut self.events);
        let count = events.len();
        self.heard[side].extend(events.into_iter().map(Seen::of));
        count
    }

    /// Polls both ends.
    pub(super) fn step(&mut self) {
        self.poll(A);
        self.poll(B);
    }

    /// Reserves, polling both ends while there is no room.
    pub(super) fn reserve(&mut self, side: usize, len: usize) -> Slot {
        let watch = Watch::new("room for a message");
        loop {
            match self.ends[side].reserve(self.peer[side], len) {
                Ok(slot) => {
                    assert_eq!(slot.len(), len);
                    assert_eq!(slot.peer(), self.peer[side]);
                    return slot;
                }
                Err(ReserveError::Full) => self.step(),
                Err(error) => panic!("reserving {len} bytes: {error}"),
            }
            watch.tick();
        }
    }

    /// Sends a message with content.
    pub(super) fn say(&mut self, side: usize, tag: AmTag, bytes: &[u8], done: Token) {
        let mut slot = self.reserve(side, bytes.len());
        slot.write(0, bytes).expect("slots are in host memory");
        self.ends[side].send(slot, tag, done);
    }

    /// Sends message `number` of `len` bytes.
    pub(super) fn say_number(&mut self, side: usize, number: u64, len: usize) {
        self.say(side, tag_of(number), &message(number, len), Token::NONE);
    }

    /// What one end has heard next, waiting for it.
    pub(super) fn hear(&mut self, side: usize) -> Seen {
        let watch = Watch::new("an event");
        loop {
            if let Some(seen) = self.heard[side].pop_front() {
                return seen;
            }
            self.step();
            watch.tick();
        }
    }

    /// The next message at one end, waiting for it; endings are passed over.
    pub(super) fn hear_message(&mut self, side: usize) -> (AmTag, Vec<u8>) {
        loop {
            match self.hear(side) {
                Seen::Message { from, tag, bytes } => {
                    assert_eq!(from, self.peer[side], "who sent it");
                    return (tag, bytes);
                }
                Seen::Sent { result, .. } | Seen::Completed { result, .. } => {
                    result.expect("the link stands");
                }
                Seen::Lost { .. } => panic!("a living peer was reported lost"),
            }
        }
    }

    /// Takes message `number` of `len` bytes.
    pub(super) fn hear_number(&mut self, side: usize, number: u64, len: usize) {
        let (tag, bytes) = self.hear_message(side);
        assert_message(&bytes, number, len);
        assert_eq!(tag, tag_of(number), "tag of message {number}");
    }

    /// Nothing more comes, however often one asks.
    pub(super) fn expect_silence(&mut self) {
        for look in 0..200 {
            self.step();
            // Another process, or the kernel, may be about to.
            if look % 20 == 0 {
                std::thread::yield_now();
            }
        }
        for side in [A, B] {
            assert_eq!(self.heard[side].front(), None, "nothing else was sent");
        }
    }

    /// Messages still pass both ways.
    pub(super) fn expect_health(&mut self) {
        for (side, other) in [(A, B), (B, A)] {
            self.say_number(side, 0x4ea1, 100);
            self.hear_number(other, 0x4ea1, 100);
        }
    }
}

/// The tag that message `number` has.
pub(super) fn tag_of(number: u64) -> AmTag {
    AmTag(number.to_le_bytes()[0])
}
