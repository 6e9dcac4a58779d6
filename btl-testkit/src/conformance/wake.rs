//! What an end sees of the end of a peer.

use super::Fixture;
use super::bench::Watch;
use super::duo::{message, poll, tag_of};
use gapless_btl::{
    AmTag, Btl, Event, Fragment, LinkError, PeerId, Queue, ReserveError, Slot, Token,
};
use std::collections::BTreeMap;

/// Lengths of messages in tests of death.
pub(super) const LEN: usize = 96;

/// Listens to one peer until it is lost.
pub(super) struct Wake {
    pub(super) peer: PeerId,
    events: Queue,
    /// How often each token was given, less how often it came back.
    open: BTreeMap<u64, u32>,
    /// How operations failed.
    failed: Vec<LinkError>,
    /// Messages that came in full.
    pub(super) messages: Vec<(AmTag, Vec<u8>)>,
    /// Their fragments, if they are kept.
    parked: Option<Vec<Fragment>>,
    pub(super) lost: Option<LinkError>,
}

impl Wake {
    pub(super) fn new(peer: PeerId) -> Wake {
        Wake::with_room(peer, 8)
    }

    /// One that polls into a list with room for so many events.
    pub(super) fn with_room(peer: PeerId, room: usize) -> Wake {
        Wake {
            peer,
            events: Queue::with_capacity(room),
            open: BTreeMap::new(),
            failed: Vec::new(),
            messages: Vec::new(),
            parked: None,
            lost: None,
        }
    }

    /// One that keeps all fragments.
    pub(super) fn parking(peer: PeerId) -> Wake {
        Wake { parked: Some(Vec::new()), ..Wake::new(peer) }
    }

    /// The fragments that were kept, in the order of the messages; from now on none is.
    pub(super) fn take_parked(&mut self) -> Vec<Fragment> {
        self.parked.take().unwrap_or_default()
    }

    pub(super) fn give(&mut self, token: u64) -> Token {
        *self.open.entry(token).or_default() += 1;
        Token(token)
    }

    pub(super) fn poll(&mut self, end: &mut impl Btl) {
        for event in poll(end, &mut self.events) {
            assert!(self.lost.is_none(), "after the loss there is nothing more: {event:?}");
            match event {
                Event::Arrived { from, tag, fragment } => {
                    assert_eq!(from, self.peer);
                    let bytes = fragment.to_vec().expect("arrivals are in host memory");
                    self.messages.push((tag, bytes));
                    if let Some(parked) = &mut self.parked {
                        parked.push(fragment);
                    }
                }
                Event::Sent { token, result } => self.came_back(token, result),
                Event::Completed(ended) => {
                    let (token, result) = ended.into_parts();
                    self.came_back(token, result);
                }
                Event::Lost { peer, error } => {
                    assert_eq!(peer, self.peer);
                    self.lost = Some(error);
                }
            }
        }
    }

    fn came_back(&mut self, token: Token, result: Result<(), LinkError>) {
        let count = self.open.get_mut(&token.0).expect("a token that was given");
        *count = count.checked_sub(1).expect("a token comes back once");
        self.failed.extend(result.err());
    }

    /// The peer is dead by now: waits until that is known, and checks that every token came back.
    /// Gives why the peer is lost.
    pub(super) fn expect_loss(&mut self, end: &mut impl Btl) -> LinkError {
        let watch = Watch::promised("the loss of the peer", end.limits().death_notice_ms);
        while self.lost.is_none() {
            self.poll(end);
            watch.tick();
        }
        let left: Vec<_> = self.open.iter().filter(|(_, count)| **count > 0).collect();
        assert!(left.is_empty(), "tokens that never came back: {left:?}");
        let error = end.reserve(self.peer, 1).expect_err("the peer is gone");
        assert!(matches!(error, ReserveError::Link(_)), "{error:?}");
        for _ in 0..100 {
            self.poll(end);
            std::thread::yield_now();
        }
        self.lost.clone().expect("it was there before")
    }

    /// As [`expect_loss`](Wake::expect_loss), of a peer that has kept to the rules: nothing says that it
    /// broke them.
    pub(super) fn expect_gone(&mut self, end: &mut impl Btl) {
        let lost = self.expect_loss(end);
        for error in self.failed.iter().chain([&lost]) {
            let gone = matches!(error, LinkError::PeerGone { .. });
            assert!(gone, "the peer has ended and is reported as {error:?}");
        }
    }

    /// As [`expect_gone`](Wake::expect_gone), of a peer that was killed.
    pub(super) fn expect_death(&mut self, end: &mut impl Btl, fixture: &impl Fixture) {
        if !fixture.deaths_are_silent() {
            return self.expect_gone(end);
        }
        let lost = self.expect_loss(end);
        for error in self.failed.iter().chain([&lost]) {
            let silent = matches!(error, LinkError::Unreachable { .. });
            assert!(silent, "the peer is silent and is reported as {error:?}");
        }
    }

    /// A slot that outlived the peer: sending it says so.
    pub(super) fn send_to_the_dead(&mut self, end: &mut impl Btl, slot: Slot) {
        end.send(slot, AmTag(0), Token(0xdead));
        let watch = Watch::promised("the end of a message", end.limits().death_notice_ms);
        loop {
            match poll(end, &mut self.events).as_slice() {
                [] => watch.tick(),
                [Event::Sent { token: Token(0xdead), result: Err(_) }] => return,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A slot, which there must be.
pub(super) fn reserve_once<T: Btl>(end: &mut T, wake: &mut Wake) -> Slot {
    let watch = Watch::new("room for a message");
    loop {
        match end.reserve(wake.peer, LEN) {
            Ok(slot) => return slot,
            Err(ReserveError::Full) => wake.poll(end),
            Err(error) => panic!("{error}"),
        }
        watch.tick();
    }
}

/// Sends long messages with tokens until there is no room, at most `most`.
pub(super) fn pile_up<T: Btl>(end: &mut T, wake: &mut Wake, most: u64) {
    let len = end.limits().max_fragment_bytes.min(64 << 10);
    let mut refused = 0;
    let mut number = 0;
    while refused < 20 && number < most {
        match end.reserve(wake.peer, len) {
            Ok(slot) => {
                let token = wake.give(number);
                end.send(slot, tag_of(number), token);
                number += 1;
                refused = 0;
            }
            Err(ReserveError::Full) => {
                refused += 1;
                wake.poll(end);
            }
            // The death was quicker.
            Err(ReserveError::Link(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Message `number` of an end that dies.
pub(super) fn last_word(number: u64, end: &impl Btl) -> Vec<u8> {
    let longest = end.limits().max_fragment_bytes.min(64 << 10);
    message(number, if number % 3 == 2 { longest } else { LEN })
}
