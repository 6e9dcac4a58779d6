//! The conformance suite, with a peer that writes nonsense into every shared word and socket, and
//! tests that need to see the inside.

use crate::address::Hello;
use crate::link::LinkState;
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::wire::{device_packet, freed_packet, released_packet, share_packet};
use crate::{SlotClass, Sm, SmConfig, socket, wire};
use gapless_btl::{
    AmTag, Btl, Event, Fragment, LinkError, Mapped, PeerId, Queue, ReserveError, Short, Sink, Slot,
    Token,
};
use gapless_btl_testkit::conformance::Fixture;
use gapless_mem::{Lease, Region};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

mod crowds;
mod devices;
mod ends;
mod private;
mod states;
mod suspects;
mod unauthenticated;

/// A job per test, so that tests that run at the same time do not take each other for one job.
fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

struct Default;

impl Fixture for Default {
    type Btl = Sm;

    fn pair(&mut self) -> (Sm, Sm) {
        let job = job();
        let open = |name: &str| Sm::new(SmConfig::new(job.clone(), name)).unwrap();
        (open("a"), open("b"))
    }

    fn process_end(&mut self) -> Option<Sm> {
        Some(Sm::new(SmConfig::new("conformance between processes", "end")).unwrap())
    }

    fn garbage(&mut self, from: &mut Sm, to: PeerId, variant: u32) -> bool {
        scribble(from, to, variant)
    }
}

gapless_btl_testkit::conformance!(defaults, Default);

/// The smallest of everything, so that every bound is met all the time; no single copy.
struct Tiny;

impl Fixture for Tiny {
    type Btl = Sm;

    fn pair(&mut self) -> (Sm, Sm) {
        let job = job();
        let open = |name: &str| Sm::new(tiny(&job, name)).unwrap();
        (open("a"), open("b"))
    }

    fn process_end(&mut self) -> Option<Sm> {
        Some(Sm::new(tiny("conformance between processes", "end")).unwrap())
    }

    fn garbage(&mut self, from: &mut Sm, to: PeerId, variant: u32) -> bool {
        scribble(from, to, variant)
    }
}

fn tiny(job: &str, name: &str) -> SmConfig {
    let mut config = SmConfig::new(job, name);
    config.ring_lines = 16;
    config.classes = vec![SlotClass { bytes: 320, count: 1 }, SlotClass { bytes: 1024, count: 2 }];
    config.eager_bytes = 256;
    config.parked = 16;
    config.single_copy = false;
    config.map_cache_entries = 1;
    config.device_map_cache_entries = 2;
    config.device_exports = 3;
    config
}

gapless_btl_testkit::conformance!(tiniest, Tiny);

/// Breaks a rule of the link from `from` to `to`; false when there are no more.
fn scribble(from: &mut Sm, to: PeerId, variant: u32) -> bool {
    let link = &mut from.links[to.0 as usize];
    let outbound = link.outbound.as_ref().unwrap();
    let (ours, at) = (outbound.lane().ring(), outbound.next_line());
    let lines = ours.lines.len();
    let line = &ours.lines[at];
    // The line before this one carries the sequence number before this one's.
    let due = {
        let before = ours.lines[(at + lines - 1) & (lines - 1)].word(0) & 0xFFFF_FFFF;
        (before + 1) & 0xFFFF_FFFF
    };
    let header = |kind: u64, len: u64| line.scribble(0, due | 9 << 32 | kind << 40 | len << 48);
    let descriptor = |slot: u64, len: u64| {
        line.scribble(1, slot | 1 << 32);
        line.scribble(2, len);
        header(2, 16);
    };
    let theirs = &link.waker.as_ref().unwrap().lane;
    let wire = link.outgoing.clone().unwrap();
    let packet = |bytes: &[u8]| assert_eq!(socket::send(&wire, bytes, None), Ok(true));
    let (segment, file) = Segment::create(4096, false).unwrap();
    let device = |descriptors: u8, number: u64| {
        device_packet(3, descriptors, number, 64, b"nothing a device made").unwrap()
    };
    match variant {
        0 => header(0, 8),
        1 => header(3, 8),
        2 => header(255, 0),
        3 => header(1, 1121),
        4 => header(1, 65_535),
        5 => header(2, 8),
        6 => header(2, 24),
        7 => descriptor(outbound.lane().geometry().slots() as u64, 8),
        8 => descriptor(0xFFFF_FFFF, 8),
        9 => descriptor(0, 1 << 20),
        10 => descriptor(0, u64::MAX),
        11 => theirs.ring().head.store(usize::MAX, Ordering::Release),
        12 => theirs.ring().head.store(1 << 40, Ordering::Release),
        13 => theirs.returned().iter().for_each(|word| word.store(u32::MAX, Ordering::Release)),
        14 => outbound.lane().sleep().store(u32::MAX, Ordering::Release),
        15 => packet(&[99, 1, 2, 3]),
        16 => packet(&[wire::SHARE; 17]),
        17 => packet(&freed_packet(12)),
        18 => packet(&[wire::FREED]),
        19 => packet(&[wire::HELLO; 96]),
        20 => packet(&[wire::WAKE; 256]),
        21 => drop(socket::send(&wire, &[wire::SHARE; 3], Some(&file))),
        22 => {
            let _ = socket::send(&wire, &share_packet(0, 1 << 40), Some(&file));
            let _ = socket::send(&wire, &share_packet(0, 1 << 40), Some(&file));
        }
        23 => ours.lines.iter().for_each(|line| {
            (0..8).for_each(|word| line.scribble(word, 0xAAAA_5555_DEAD_0003));
        }),
        24 => from.meet_as_someone_else(to),
        25 => packet(&[wire::DEVICE, 3, 0, 1, 2]),
        26 => packet(&released_packet(3)),
        27 => packet(&[wire::RELEASED; 4]),
        28 => packet(&device(2, 8)),
        29 => {
            packet(&device(0, 8));
            packet(&device(0, 8));
        }
        30 => drop(socket::send(&wire, &device(0, 8), Some(&file))),
        31 => {
            let _ = socket::send(&wire, &share_packet(8, 4096), Some(&file));
            packet(&device(0, 8));
        }
        32 => {
            packet(&device(0, 8));
            let _ = socket::send(&wire, &share_packet(8, 4096), Some(&file));
        }
        33 => (0..300).for_each(|number| {
            let _ = socket::send(&wire, &device(0, number), None);
        }),
        34 => (0..5000).for_each(|number| {
            // It never reads what it is answered.
            let _ = socket::send(&wire, &device(0, number), None);
            let _ = socket::send(&wire, &freed_packet(number), None);
        }),
        _ => return false,
    }
    drop(segment);
    true
}

impl Sm {
    /// Calls a peer's listener with greetings that are not ours to give.
    fn meet_as_someone_else(&mut self, to: PeerId) {
        let address = self.links[to.0 as usize].address.clone();
        let lane = self.links[to.0 as usize].outbound.as_ref().unwrap().lane().clone();
        let hello = |from: [u8; 16], to: [u8; 16]| Hello {
            from,
            to,
            geometry: lane.geometry().clone(),
            asymmetric: false,
            probe: (8, 8),
            number: None,
        };
        let (short, file) = Segment::create(4096, false).unwrap();
        for hello in [
            hello(self.address.nonce, address.nonce),
            hello([1; 16], address.nonce),
            hello([2; 16], [3; 16]),
        ] {
            let caller = socket::call(&address.meeting_place()).unwrap().unwrap();
            assert_eq!(socket::send(&caller, hello.packet().as_ref(), Some(&file)), Ok(true));
        }
        let silent = socket::call(&address.meeting_place()).unwrap().unwrap();
        assert_eq!(socket::send(&silent, &[7; 200], None), Ok(true));
        drop(short);
    }
}

/// Two ends, connected and up.
struct Pair {
    a: Sm,
    b: Sm,
    to_b: PeerId,
    to_a: PeerId,
    events: Queue,
}

impl Pair {
    fn of(mut a: Sm, mut b: Sm) -> Pair {
        let to_b = a.connect(&b.address()).unwrap();
        let to_a = b.connect(&a.address()).unwrap();
        let mut pair = Pair { a, b, to_b, to_a, events: Queue::with_capacity(64) };
        until("both links are up", || {
            pair.a.poll(None, &mut pair.events);
            pair.b.poll(None, &mut pair.events);
            let up = |end: &Sm, peer: PeerId| end.links[peer.0 as usize].state == LinkState::Up;
            up(&pair.a, pair.to_b) && up(&pair.b, pair.to_a)
        });
        assert!(pair.events.is_empty());
        pair
    }

    fn new() -> Pair {
        let (a, b) = Default.pair();
        Pair::of(a, b)
    }

    fn slot(&mut self, len: usize) -> Slot {
        self.a.reserve(self.to_b, len).unwrap()
    }

    /// What `b` hears.
    fn hear(&mut self) -> Vec<Event> {
        self.b.poll(None, &mut self.events);
        self.events.drain().collect()
    }
}

/// Repeats until it is so, at most a minute.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waiting until {what}");
        std::thread::yield_now();
    }
}

fn fragment(event: Event) -> Fragment {
    match event {
        Event::Arrived { fragment, .. } => fragment,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_slot_sent_twice_is_the_end_of_its_sender_alone() {
    let mut pair = Pair::new();
    let mut other = Sm::new(SmConfig::new(pair.a.config.job.clone(), "c")).unwrap();
    let to_other = pair.b.connect(&other.address()).unwrap();
    let other_to_b = other.connect(&pair.b.address()).unwrap();
    let mut events = Queue::with_capacity(8);
    until("the other is up", || {
        other.poll(None, &mut events);
        pair.b.poll(None, &mut events);
        other.links[other_to_b.0 as usize].state == LinkState::Up
    });
    let slot = pair.slot(1000);
    pair.a.send(slot, AmTag(1), Token::NONE);
    let held = fragment(pair.hear().pop().unwrap());
    let (first, second) = {
        let lane = pair.a.links[0].outbound.as_ref().unwrap();
        let lines = lane.lane().ring().lines;
        let at = lane.next_line();
        let before = &lines[at - 1];
        lines[at].scribble(1, before.word(1));
        lines[at].scribble(2, before.word(2));
        lines[at].scribble(0, before.word(0) + 1);
        (at, before.word(1))
    };
    let heard = pair.hear();
    let [Event::Lost { peer, error: LinkError::Corrupt { what } }] = &heard[..] else {
        panic!("{heard:?} after line {first} was sent again with {second:#x}");
    };
    assert_eq!(*peer, pair.to_a);
    assert!(what.contains("sent again"), "{what}");
    assert_eq!(held.len(), 1000, "what it sent before stays");
    let slot = other.reserve(other_to_b, 3).unwrap();
    other.send(slot, AmTag(5), Token::NONE);
    until("the other's message", || {
        pair.hear().iter().any(|e| matches!(e, Event::Arrived { from, .. } if *from == to_other))
    });
    // The one that broke the rules is told that it is over.
    until("it knows", || {
        pair.a.poll(None, &mut pair.events);
        pair.events.drain().any(|event| matches!(event, Event::Lost { .. }))
    });
}

#[test]
fn an_impossible_head_is_noticed_when_room_is_needed() {
    let mut pair = Pair::new();
    pair.b.links[0].waker.as_ref().unwrap().lane.ring().head.store(1 << 40, Ordering::Release);
    let error = loop {
        match pair.a.reserve(pair.to_b, 1) {
            Ok(slot) => pair.a.send(slot, AmTag(0), Token::NONE),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReserveError::Link(LinkError::Corrupt { .. })), "{error:?}");
    assert_eq!(pair.a.poll(None, &mut pair.events), 1);
    assert!(matches!(pair.events.drain().next(), Some(Event::Lost { .. })));
}

/// Takes all messages but those with a tag below 10, and notes the first byte of each; of those as well once they have
/// come as events.
#[derive(Debug)]
struct Taken {
    firsts: Vec<Option<u8>>,
    events: Queue,
    room: usize,
}

impl Taken {
    fn new(room: usize) -> Taken {
        Taken { firsts: Vec::new(), events: Queue::with_capacity(8), room }
    }

    /// Polls, notes what came as events, and gives how many were taken directly.
    fn poll(&mut self, end: &mut Sm, only: Option<PeerId>) -> usize {
        let before = self.firsts.len();
        let found = end.poll(only, self);
        let taken = self.firsts.len() - before;
        assert_eq!(found, taken + self.events.len());
        for event in self.events.drain() {
            self.firsts.push(fragment(event).to_vec().unwrap().first().copied());
        }
        taken
    }
}

impl Sink for Taken {
    fn short(&mut self, _: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let first = message.words().first().map(|word| word.to_ne_bytes()[0]);
        self.firsts.extend((tag.0 >= 10).then_some(first.filter(|_| !message.is_empty())));
        tag.0 >= 10
    }

    fn fragment(&mut self, _: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let mut first = [0];
        fragment.read(0, &mut first).unwrap();
        self.firsts.extend((tag.0 >= 10).then_some(Some(first[0])));
        tag.0 >= 10
    }

    fn event(&mut self, event: Event) {
        self.events.event(event);
    }

    fn room(&self) -> usize {
        self.room - self.events.len()
    }
}

#[test]
fn messages_that_are_taken_directly_and_others_stay_in_order() {
    let (mut a, mut b) = Tiny.pair();
    let (to_b, _) = (a.connect(&b.address()).unwrap(), b.connect(&a.address()).unwrap());
    let (mut events, mut taken) = (Queue::with_capacity(4), Taken::new(4));
    let mut sent = 0u8;
    let mut direct = 0;
    until("all messages have come", || {
        // Short by value, short through a slot of its own, and long, by turns.
        let len = [8, 60, 200, 300, 700][usize::from(sent % 5)];
        let tag = AmTag(if sent % 7 == 3 { 1 } else { 10 });
        let words = [u64::from_ne_bytes([sent; 8]); 140];
        let left = match sent % 3 {
            _ if sent == 200 => false,
            0 if len != 300 => a.send_short(to_b, tag, Short::new(&words, len)),
            _ => a.reserve(to_b, len).is_ok_and(|mut slot| {
                slot.write(0, &[sent]).unwrap();
                a.send(slot, tag, Token::NONE);
                true
            }),
        };
        sent += u8::from(left);
        a.poll(None, &mut events);
        if sent.is_multiple_of(5) || !left {
            direct += taken.poll(&mut b, None);
        }
        taken.firsts.len() == 200
    });
    assert!(taken.firsts.iter().copied().eq((0..200).map(Some)), "{taken:?}");
    assert!(direct > 50, "{direct} were taken directly");
}

#[test]
fn the_next_message_is_taken_alone_or_left_as_it_is() {
    let (mut a, mut b) = Default.pair();
    let (to_b, from_a) = (a.connect(&b.address()).unwrap(), b.connect(&a.address()).unwrap());
    let (mut events, mut taken) = (Queue::with_capacity(4), Taken::new(0));
    assert_eq!(taken.poll(&mut b, Some(PeerId(7))), 0, "nobody knows it");
    until("the link is up", || {
        a.poll(None, &mut events);
        b.poll(None, &mut events);
        a.send_short(to_b, AmTag(10), Short::new(&[1; 140], 1120))
    });
    until("it has come", || taken.poll(&mut b, Some(from_a)) == 1);
    assert!(a.send_short(to_b, AmTag(1), Short::new(&[2; 7], 56)));
    assert!(a.send_short(to_b, AmTag(10), Short::new(&[3], 0)));
    let slot = |a: &mut Sm, tag: u8, first: u8| {
        let mut slot = a.reserve(to_b, 2000).unwrap();
        slot.write(0, &[first]).unwrap();
        a.send(slot, AmTag(tag), Token::NONE);
    };
    slot(&mut a, 10, 4);
    slot(&mut a, 1, 5);
    for _ in 0..3 {
        assert_eq!(taken.poll(&mut b, Some(from_a)), 0, "refused, and no room for it");
    }
    assert_eq!(taken.firsts, [Some(1)]);
    taken.room = 1;
    let mut next = |direct: usize, first: Option<u8>| {
        assert_eq!(taken.poll(&mut b, Some(from_a)), direct);
        assert_eq!(taken.firsts.pop(), Some(first));
    };
    next(0, Some(2));
    next(1, None);
    next(1, Some(4));
    next(0, Some(5));
    assert_eq!(taken.poll(&mut b, Some(from_a)), 0, "that was all");
    slot(&mut a, 10, 6);
    taken.room = 0;
    assert_eq!(taken.poll(&mut b, Some(from_a)), 0, "there is no room, should it be refused");
    taken.room = 8;
    assert_eq!(taken.poll(&mut b, None), 1);
    assert_eq!(taken.firsts, [Some(1), Some(6)]);
}

#[test]
fn everything_sent_before_a_death_is_delivered_into_a_short_list() {
    let mut pair = Pair::new();
    for number in 0..100u8 {
        let mut slot = pair.slot(if number % 3 == 0 { 500 } else { 5 });
        slot.write(0, &[number]).unwrap();
        pair.a.send(slot, AmTag(number), Token::NONE);
        if number % 3 == 0 && number > 85 {
            // Slots are fewer than messages.
            break;
        }
    }
    let Pair { a, mut b, .. } = pair;
    drop(a);
    let mut events = Queue::with_capacity(1);
    let mut next = 0;
    until("the loss", || {
        b.poll(None, &mut events);
        events.drain().any(|event| match event {
            Event::Arrived { tag, .. } => {
                assert_eq!(tag, AmTag(next));
                next += 1;
                false
            }
            Event::Lost { .. } => true,
            other => panic!("{other:?}"),
        })
    });
    assert!(next > 80, "{next}");
}

#[test]
fn freed_allocations_are_unmapped_by_peers_and_new_ones_are_not_confused_with_them() {
    let mut pair = Pair::new();
    let first = pair.a.allocate(10_000).unwrap();
    let key = pair.a.key(pair.to_b, first.lease()).unwrap();
    let mapping = pair.b.map(pair.to_a, &key).unwrap();
    assert_eq!(mapping.region().len(), 10_000);
    drop(first);
    pair.a.poll(None, &mut pair.events);
    until("the notice", || {
        pair.b.poll(None, &mut pair.events);
        pair.b.map(pair.to_a, &key).is_err()
    });
    let second = pair.a.allocate(10_000).unwrap();
    assert_eq!(pair.a.key(pair.to_b, mapping.lease()), None, "not memory of ours");
    let other = pair.a.key(pair.to_b, second.lease()).unwrap();
    assert_ne!(key, other);
    assert!(pair.b.map(pair.to_a, &other).is_ok());
    assert!(pair.b.map(pair.to_a, &key).is_err(), "freed for ever");
    // A mapping in use survives its owner's freeing it.
    assert_eq!(mapping.region().len(), 10_000);
}

#[test]
fn what_follows_an_allocation_in_its_page_is_nobodys() {
    let mut pair = Pair::new();
    let memory = pair.a.allocate(10_000).unwrap();
    let whole = memory.region();
    let mut key = |offset, len| {
        let part = Region::new(whole.space(), whole.address(), offset, len);
        // SAFETY: the pages of `memory`, which stay mapped, go on to 12,288.
        let lease = unsafe { Lease::kept_by_caller(part) };
        pair.a.key(pair.to_b, &lease).is_some()
    };
    assert!(key(0, 10_000) && key(9_999, 1) && key(10_000, 0));
    assert!(!key(0, 10_001) && !key(9_999, 2) && !key(10_000, 1));
}

#[test]
fn eager_messages_are_no_longer_than_the_largest_slot() {
    let mut config = SmConfig::new("one job", "e");
    config.classes = vec![SlotClass { bytes: 33_024, count: 4 }];
    let sm = Sm::new(config).unwrap();
    assert_eq!((sm.limits().eager_bytes, sm.limits().max_fragment_bytes), (33_024, 33_024));
}

#[test]
fn jobs_do_not_mix_and_nonsense_is_refused() {
    let mut a = Sm::new(SmConfig::new("one job", "a")).unwrap();
    let b = Sm::new(SmConfig::new("another", "b")).unwrap();
    let error = a.connect(&b.address()).unwrap_err();
    assert!(matches!(&error, LinkError::Unreachable { reason } if reason.contains("another")));
    let gone = Sm::new(SmConfig::new("one job", "c")).unwrap().address();
    assert!(matches!(a.connect(&gone), Err(LinkError::PeerGone { .. })));
    for change in [
        (|config| config.ring_lines = 5) as fn(&mut SmConfig),
        |config| config.classes = Vec::new(),
        |config| config.classes = vec![SlotClass { bytes: 128, count: 1 }],
        |config| config.parked = 0,
        |config| config.parked = usize::MAX,
        |config| config.job = "j".repeat(129),
        |config| config.name = "n".repeat(65),
    ] {
        let mut config = SmConfig::new("one job", "d");
        change(&mut config);
        assert!(Sm::new(config).is_err());
    }
}
