//! Rails and peers that die. The peer is played by bare transports, so that one of its rails can die
//! alone.

use super::{Shared, named, pair, poll, say};
use crate::{Bml, BmlError, PeerState, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Address, AmTag, Btl, LinkError, PeerId, Queue, ReserveError, Short, Token};

/// Rank 0 with two rails to rank 1, whose ends are given bare.
fn two_rails() -> (Bml, [(Loopback, PeerId); 2]) {
    let mut bml = Bml::new(Rank(0), 2);
    let mut addresses: Vec<(String, Address)> = Vec::new();
    let ends = [("first", 10), ("second", 1000)].map(|(name, latency_ns)| {
        let hub = Hub::new();
        let mut ours = Loopback::with(&hub, named(name, latency_ns));
        let mut theirs = Loopback::with(&hub, named(name, latency_ns));
        let peer = theirs.connect(&ours.address()).unwrap();
        addresses.push((name.to_owned(), theirs.address()));
        // Connecting is bml's to do; this only shows that it may be done before.
        ours.connect(&theirs.address()).unwrap();
        bml.add(Box::new(ours));
        (theirs, peer)
    });
    bml.connect(Rank(1), &addresses).unwrap();
    (bml, ends)
}

fn heard(end: &mut Loopback) -> Vec<(AmTag, Vec<u8>)> {
    let mut events = Queue::with_capacity(9);
    end.poll(None, &mut events);
    let arrived = events.drain().filter_map(|event| match event {
        gapless_btl::Event::Arrived { tag, fragment, .. } => {
            Some((tag, fragment.to_vec().unwrap()))
        }
        _ => None,
    });
    arrived.collect()
}

#[test]
fn the_death_of_a_peer_reaches_every_handler_once() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    let logs = [Shared::default(), Shared::default()];
    a.register(1..=1, Box::new(logs[0].clone())).unwrap();
    a.register(2..=9, Box::new(logs[1].clone())).unwrap();
    let held = a.reserve(Rank(1), 1).unwrap();
    say(&mut b, 0, 2, b"last words", Token::NONE);
    drop(b);
    a.send(held, AmTag(1), Token(4));
    let mut events = poll(&mut a);
    events.extend((0..10).flat_map(|_| poll(&mut a)));
    assert!(matches!(&events[..], [RankEvent::Lost { peer: Rank(1), .. }]), "{events:?}");
    let first = logs[0].take();
    let [
        RankEvent::Sent { token: Token(4), result: Err(_) },
        RankEvent::Lost { peer: Rank(1), .. },
    ] = &first[..]
    else {
        panic!("{first:?}")
    };
    let second = logs[1].take();
    assert!(
        matches!(&second[..], [RankEvent::Arrived { .. }, RankEvent::Lost { peer: Rank(1), .. }]),
        "{second:?}"
    );
    let gone = |error: &LinkError| matches!(error, LinkError::PeerGone { .. });
    assert!(matches!(a.state(Rank(1)), PeerState::Lost(error) if gone(error)));
    assert!(matches!(a.reserve(Rank(1), 1), Err(ReserveError::Link(error)) if gone(&error)));
    assert!(matches!(a.connect(Rank(1), &[]), Err(BmlError::PeerLost { peer: Rank(1), .. })));
    assert!(a.limits(Rank(1)).is_none());
    assert!(a.rdma(Rank(1)).is_none() && a.mapped(Rank(1)).is_none());
    // Others, oneself for one, are not concerned.
    say(&mut a, 0, 77, b"me", Token::NONE);
    assert_eq!(poll(&mut a).len(), 1);
}

#[test]
fn another_rail_takes_over_from_one_that_was_never_used() {
    let (mut a, [(first, _), (mut second, _)]) = two_rails();
    assert_eq!(a.limits(Rank(1)).unwrap().name, "first");
    drop(first);
    assert!(poll(&mut a).is_empty(), "nothing is missing, so nothing is said");
    assert_eq!(a.limits(Rank(1)).unwrap().name, "second");
    say(&mut a, 1, 5, b"on", Token::NONE);
    assert_eq!(heard(&mut second), [(AmTag(5), b"on".to_vec())]);
    // The last rail takes the peer with it.
    drop(second);
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Lost { peer: Rank(1), .. }]));
}

#[test]
fn a_rail_without_room_for_a_short_message_is_not_used() {
    let (mut a, [(first, _), (mut second, _)]) = two_rails();
    let (rail, peer) = a.path_for_tests(Rank(1), 0);
    let mut slots = Vec::new();
    while let Ok(slot) = a.btl_for_tests(rail).reserve(peer, 1) {
        slots.push(slot);
    }
    let message = Short::new(&[7], 8);
    assert!(!a.send_short(Rank(1), AmTag(5), message), "there is no room");
    drop((slots, first));
    assert!(poll(&mut a).is_empty(), "nothing was sent, so nothing is missing");
    assert!(a.send_short(Rank(1), AmTag(5), message));
    assert_eq!(heard(&mut second), [(AmTag(5), 7u64.to_ne_bytes().to_vec())]);
}

#[test]
fn a_used_rail_takes_the_peer_with_it_and_the_peer_is_told() {
    let (mut a, [(first, _), (mut second, to_a)]) = two_rails();
    // A slot is enough: whoever holds it will send it there.
    let held = a.reserve(Rank(1), 1).unwrap();
    drop(first);
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Lost { peer: Rank(1), .. }]));
    assert_eq!(heard(&mut second), [(Bml::CONTROL_TAG, vec![1])]);
    // What it still says is not delivered, and its later death is no news.
    let slot = second.reserve(to_a, 1).unwrap();
    second.send(slot, AmTag(5), Token::NONE);
    assert!(poll(&mut a).is_empty());
    drop(second);
    assert!(poll(&mut a).is_empty());
    a.send(held, AmTag(0), Token(3));
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Sent { token: Token(3), result: Err(_) }]));
}

#[test]
fn a_farewell_waits_for_room() {
    let (mut a, [(first, _), (mut second, to_a)]) = two_rails();
    // Both rails are in use: the peer's last words came over the second.
    let slot = second.reserve(to_a, 1).unwrap();
    second.send(slot, AmTag(5), Token::NONE);
    assert_eq!(poll(&mut a).len(), 1);
    drop(a.reserve(Rank(1), 1).unwrap());
    // Slots that were taken before the loss keep the second rail full.
    let (rail, peer) = a.path_for_tests(Rank(1), 1);
    let mut slots = Vec::new();
    while let Ok(slot) = a.btl_for_tests(rail).reserve(peer, 1) {
        slots.push(slot);
    }
    drop(first);
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Lost { .. }]));
    poll(&mut a);
    assert!(heard(&mut second).is_empty());
    slots.clear();
    poll(&mut a);
    assert_eq!(heard(&mut second), [(Bml::CONTROL_TAG, vec![1])]);
}

#[test]
fn a_peer_that_is_given_up_is_told_over_every_rail() {
    let (mut a, [(mut first, to_a), (mut second, _)]) = two_rails();
    let slot = first.reserve(to_a, 1).unwrap();
    first.send(slot, AmTag(5), Token::NONE);
    let nonsense = || LinkError::Corrupt { what: "nonsense".to_owned() };
    a.give_up(Rank(1), nonsense());
    a.give_up(Rank(1), nonsense());
    assert!(matches!(a.state(Rank(1)), PeerState::Lost(LinkError::Corrupt { .. })));
    let lost = poll(&mut a);
    let [RankEvent::Lost { peer: Rank(1), error }] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(*error, nonsense());
    assert!(poll(&mut a).is_empty(), "once, and what it still says is not delivered");
    for end in [&mut first, &mut second] {
        assert_eq!(heard(end), [(Bml::CONTROL_TAG, vec![1])]);
    }
}

/// Both ends hear of it, the one that is given up before anything dies.
#[test]
fn giving_up_ends_both_sides() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    a.give_up(Rank(1), LinkError::Corrupt { what: "nonsense".to_owned() });
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Lost { peer: Rank(1), .. }]));
    let lost = poll(&mut b);
    assert!(
        matches!(
            &lost[..],
            [RankEvent::Lost { peer: Rank(0), error: LinkError::PeerGone { reason } }]
                if reason.contains("gave this process up")
        ),
        "{lost:?}"
    );
    assert!(b.reserve(Rank(0), 1).is_err());
}

#[test]
fn a_peer_that_gives_us_up_is_lost() {
    let (mut a, [_first, (mut second, to_a)]) = two_rails();
    for kind in [[1], [1]] {
        let mut slot = second.reserve(to_a, kind.len()).unwrap();
        slot.write(0, &kind).unwrap();
        second.send(slot, Bml::CONTROL_TAG, Token::NONE);
    }
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Lost { peer: Rank(1), .. }]));
    assert!(a.reserve(Rank(1), 1).is_err());
}

#[test]
#[should_panic(expected = "bml's own")]
fn the_control_tag_is_not_for_others() {
    let mut bml = Bml::new(Rank(0), 1);
    say(&mut bml, 0, Bml::CONTROL_TAG.0, b"", Token::NONE);
}
