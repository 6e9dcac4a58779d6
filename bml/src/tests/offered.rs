//! Messages that are offered while the transport is still polled: every handler gets those of its tags, in their turn.

use super::{named, pair, rank, say};
use crate::{Bml, Handler, Next, PeerState, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{
    AmTag, Btl, Event, Fragment, LinkError, PeerId, Queue, Short, Sink, Token, delegate,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What came to whom, in which way and with which tag.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Takes what it is offered, but for tags that end in 9.
struct Taker(&'static str, Diary);

impl Taker {
    fn takes(&self, how: &str, from: Rank, tag: AmTag) -> bool {
        let takes = tag.0 % 10 != 9;
        if takes {
            self.1.note(format!("{} {how} {} of {from}", self.0, tag.0));
        }
        takes
    }
}

impl Handler for Taker {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        self.1.note(match event {
            RankEvent::Arrived { from, tag, .. } => format!("{} event {} of {from}", self.0, tag.0),
            RankEvent::Lost { peer, .. } => format!("{} loss of {peer}", self.0),
            other => panic!("{other:?}"),
        });
    }

    fn short(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        assert_eq!(message.words()[0], u64::from(tag.0));
        self.takes("short", from, tag)
    }

    fn fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        assert_eq!(fragment.to_vec().unwrap(), b"words");
        self.takes("fragment", from, tag)
    }
}

/// A loopback that has what is 8 bytes long by value.
struct ByValue {
    inner: Loopback,
    waiting: VecDeque<Event>,
}

impl Btl for ByValue {
    delegate!(self => self.inner; limits address connect reserve send);

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let mut events = Queue::with_capacity(64);
        self.inner.poll(None, &mut events);
        self.waiting.extend(events.drain());
        let mut taken = 0;
        while let Some(Event::Arrived { from, tag, fragment }) = self.waiting.front()
            && only.is_none_or(|peer| peer == *from && taken == 0)
            && let Ok(bytes) = fragment.to_vec().unwrap().try_into()
            && sink.short(*from, *tag, Short::new(&[u64::from_ne_bytes(bytes)], 8))
        {
            self.waiting.pop_front();
            taken += 1;
        }
        // Behind what was refused, all are events.
        let count = if only.is_some() { 0 } else { sink.room().min(self.waiting.len()) };
        self.waiting.drain(..count).for_each(|event| sink.event(event));
        taken + count
    }
}

fn by_value() -> (Bml, Bml) {
    let hub = Hub::new();
    let (mut a, mut b) = (rank(&[(&hub, named("x", 100))], 0, 2), Bml::new(Rank(1), 2));
    let inner = Loopback::with(&hub, named("x", 100));
    b.add(Box::new(ByValue { inner, waiting: VecDeque::new() }));
    super::connect(&mut a, &mut b);
    (a, b)
}

#[test]
fn every_handler_is_offered_the_messages_of_its_tags_in_their_turn() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    let diary = Diary::default();
    b.register(50..=59, Box::new(Taker("fifties", diary.clone()))).unwrap();
    b.register(70..=79, Box::new(Taker("seventies", diary.clone()))).unwrap();
    for tag in [50, 71, 3, 52, 59, 53, 4] {
        say(&mut a, 1, tag, b"words", Token::NONE);
    }
    assert_eq!(b.poll(&mut Taker("rest", diary.clone())), 7);
    // Behind the one that was refused, all are events.
    let right = [
        "fifties fragment 50 of rank 0",
        "seventies fragment 71 of rank 0",
        "rest fragment 3 of rank 0",
        "fifties fragment 52 of rank 0",
        "fifties event 59 of rank 0",
        "fifties event 53 of rank 0",
        "rest event 4 of rank 0",
    ];
    assert_eq!(diary.take(), right);
    say(&mut a, 1, 54, b"words", Token::NONE);
    assert_eq!(b.poll(&mut Taker("rest", diary.clone())), 1);
    assert_eq!(diary.take(), ["fifties fragment 54 of rank 0"]);
}

#[test]
fn messages_by_value_are_for_all_tags() {
    let (mut a, mut b) = by_value();
    let diary = Diary::default();
    b.register(50..=59, Box::new(Taker("fifties", diary.clone()))).unwrap();
    a.register(50..=59, Box::new(Taker("fifties", diary.clone()))).unwrap();
    for tag in [50, 3, 59] {
        assert!(a.send_short(Rank(1), AmTag(tag), Short::new(&[tag.into()], 8)));
    }
    assert!(!a.send_short(Rank(1), Bml::CONTROL_TAG, Short::new(&[1], 8)), "it is bml's own");
    assert!(!a.send_short(Rank(7), AmTag(3), Short::new(&[1], 8)), "there is no such rank");
    assert_eq!(b.poll(&mut Taker("rest", diary.clone())), 3);
    assert_eq!(
        diary.take(),
        ["fifties short 50 of rank 0", "rest short 3 of rank 0", "fifties event 59 of rank 0"]
    );
}

#[test]
fn whoever_waits_for_the_next_message_gets_it_whatever_its_tag() {
    let (mut a, mut b) = by_value();
    b.register(50..=59, Box::new(Taker("fifties", Diary::default()))).unwrap();
    let look = |b: &mut Bml, tag: u8, wants: bool| {
        let mut offered = 0;
        let next = b.take_next(Rank(0), AmTag(tag), |message| {
            assert_eq!((message.words(), message.len()), (&[u64::from(tag)][..], 8));
            offered += 1;
            wants
        });
        (next, offered)
    };
    assert_eq!(look(&mut b, 50, true), (Next::Nothing, 0));
    for tag in [50, 3] {
        assert!(a.send_short(Rank(1), AmTag(tag), Short::new(&[tag.into()], 8)));
    }
    assert_eq!(look(&mut b, 3, true), (Next::Kept, 0), "another comes first");
    assert_eq!(look(&mut b, 50, false), (Next::Kept, 1));
    assert_eq!(look(&mut b, 50, true), (Next::Taken, 1));
    assert_eq!(look(&mut b, 3, true), (Next::Taken, 1));
    assert_eq!(look(&mut b, Bml::CONTROL_TAG.0, true), (Next::Kept, 0), "it is bml's own");
    assert_eq!(look(&mut b, 3, true), (Next::Nothing, 0));
}

#[test]
fn nothing_of_bml_or_of_the_lost_is_offered() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    let diary = Diary::default();
    let mut rest = Taker("rest", diary.clone());
    a.give_up(Rank(1), LinkError::Corrupt { what: "nonsense".to_owned() });
    say(&mut b, 0, 3, b"words", Token::NONE);
    a.poll(&mut rest);
    assert_eq!(diary.take(), ["rest loss of rank 1"]);
    // The farewell is no message to whoever takes everything.
    b.poll(&mut rest);
    assert_eq!(diary.take(), ["rest loss of rank 0"]);
    assert!(matches!(b.state(Rank(0)), PeerState::Lost(_)));
}
