//! Ends of links, seen from the inside: what a peer has sent before it died arrives, however early it
//! died and however full everything is.

use super::{Default, Pair, Tiny, fragment, until};
use crate::link::LinkState;
use crate::{Sm, socket};
use gapless_btl::{AmTag, Btl, Event, Fragment, LinkError, PeerId, Queue, Short, Slot, Token};
use gapless_btl_testkit::conformance::Fixture;

/// Sends a message of `len` bytes, the first of which is `number`.
fn say(end: &mut Sm, to: PeerId, number: u8, len: usize) {
    let mut slot = end.reserve(to, len).unwrap();
    slot.write(0, &[number]).unwrap();
    end.send(slot, AmTag(number), Token::NONE);
}

fn first(fragment: &Fragment) -> u8 {
    fragment.to_vec().unwrap()[0]
}

/// The first bytes of all messages until the loss.
fn hear_out(end: &mut Sm) -> (Vec<u8>, LinkError) {
    let mut events = Queue::with_capacity(8);
    let (mut heard, mut lost) = (Vec::new(), None);
    until("the loss", || {
        end.poll(None, &mut events);
        for event in events.drain() {
            assert!(lost.is_none(), "after the loss: {event:?}");
            match event {
                Event::Arrived { fragment, .. } => heard.push(first(&fragment)),
                Event::Lost { error, .. } => lost = Some(error),
                other => panic!("{other:?}"),
            }
        }
        lost.is_some()
    });
    (heard, lost.unwrap())
}

/// The end of the socket is seen before the greeting: so many unauthenticated processes called first that a look at the
/// listener does not get as far.
#[test]
fn a_peer_that_died_before_its_greeting_was_accepted_is_heard_out() {
    let (mut a, mut b) = Default.pair();
    let place = a.address.meeting_place();
    let unauthenticated: Vec<_> = (0..64).map(|_| socket::call(&place).unwrap().unwrap()).collect();
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.connect(&a.address()).unwrap();
    let mut events = Queue::with_capacity(8);
    until("one end is up", || {
        b.poll(None, &mut events);
        b.links[to_a.0 as usize].state == LinkState::Up
    });
    for number in 0..20 {
        say(&mut b, to_a, number, if number % 4 == 0 { 1000 } else { 5 });
    }
    drop(b);
    let link = &a.links[to_b.0 as usize];
    assert!(link.state == LinkState::Meeting && link.inbound.is_none());
    // The first look hears of the end, with the greeting still behind the unauthenticated processes.
    a.look_around();
    let link = &a.links[to_b.0 as usize];
    assert!(
        matches!(link.state, LinkState::Dying(_)) && link.inbound.is_some(),
        "{:?}",
        link.state
    );
    let (heard, error) = hear_out(&mut a);
    assert!(heard.iter().copied().eq(0..20), "{heard:?}");
    assert!(matches!(error, LinkError::PeerGone { .. }), "{error}");
    drop(unauthenticated);
}

/// A receiver that keeps every message has no private buffer for more: these wait in the ring of a
/// peer that is dead until there is one.
#[test]
fn a_dead_peer_is_not_buried_while_messages_wait_for_buffers() {
    let (a, b) = Tiny.pair();
    let mut pair = Pair::of(a, b);
    let parked = u8::try_from(pair.b.parked).unwrap();
    let mut kept = Vec::new();
    for number in 0..parked {
        say(&mut pair.a, pair.to_b, number, 5);
        kept.extend(pair.hear().into_iter().map(fragment));
    }
    assert_eq!(kept.len(), usize::from(parked), "every buffer is out");
    for number in parked..parked + 10 {
        say(&mut pair.a, pair.to_b, number, 5);
    }
    let Pair { a, mut b, to_a, mut events, .. } = pair;
    drop(a);
    until("the end is noticed", || {
        b.poll(None, &mut events);
        matches!(b.links[to_a.0 as usize].state, LinkState::Dying(_)) || !events.is_empty()
    });
    for _ in 0..100 {
        b.poll(None, &mut events);
        assert!(events.is_empty(), "{:?}", events.drain().collect::<Vec<_>>());
    }
    assert!(kept.iter().map(first).eq(0..parked));
    kept.clear();
    let (heard, _) = hear_out(&mut b);
    assert!(heard.iter().copied().eq(parked..parked + 10), "{heard:?}");
}

/// Lines of the ring that slots were promised are not given to messages by value.
#[test]
fn messages_by_value_leave_reserved_slots_their_lines() {
    let (a, b) = Tiny.pair();
    let mut pair = Pair::of(a, b);
    let lines = u8::try_from(pair.b.config.ring_lines).unwrap();
    let mut slots: Vec<Slot> = Vec::new();
    for number in 1..lines {
        // In the ring or out of it: one line each.
        let len = if number <= 2 { 300 } else { 5 };
        let mut slot = pair.slot(len);
        slot.write(0, &[number]).unwrap();
        slots.push(slot);
    }
    let short =
        |pair: &mut Pair, len| pair.a.send_short(pair.to_b, AmTag(0), Short::new(&[0; 8], len));
    assert!(!short(&mut pair, 57), "two lines, and only one is free");
    assert!(short(&mut pair, 8));
    assert!(!short(&mut pair, 8), "no line is free");
    for slot in slots {
        pair.a.send(slot, AmTag(0), Token::NONE);
    }
    let mut heard = Vec::new();
    until("all have come", || {
        heard.extend(pair.hear().into_iter().map(|event| first(&fragment(event))));
        heard.len() >= usize::from(lines)
    });
    assert!(heard.iter().copied().eq(0..lines), "{heard:?}");
}
