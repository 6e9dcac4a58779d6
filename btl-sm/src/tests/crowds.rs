//! Tests that need hundreds of open files.

use super::unauthenticated::greet;
use super::{Default, Pair, job, tiny, until};
use crate::link::LinkState;
use crate::meeting::EVENTS;
use crate::{Sm, socket, wire};
use gapless_btl::{AmTag, Btl, Event, Mapped, PeerId, Queue, Token};
use gapless_btl_testkit::conformance::{Fixture, skip};
use rustix::process::{Resource, getrlimit};

/// Whether this process may open so many files; a test that holds both ends, or all, of many links needs them. Says so
/// if not.
fn may_open(files: u64, test: &str) -> bool {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if allowed < files {
        skip(test, &format!("needs {files} open files of one process, which may have {allowed}"));
    }
    allowed >= files
}

#[test]
fn a_peer_that_shares_too_much_is_refused_before_it_hurts() {
    if !may_open(1000, "a_peer_that_shares_too_much_is_refused_before_it_hurts") {
        return;
    }
    let mut pair = Pair::new();
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..wire::SHARED + 10 {
        let allocation = pair.a.allocate(1).unwrap();
        match pair.a.key(pair.to_b, allocation.lease()) {
            Some(_) => kept.push(allocation),
            None => refused += 1,
        }
        pair.b.look_around();
    }
    assert_eq!((kept.len(), refused), (wire::SHARED, 10));
    drop(kept);
    let again = pair.a.allocate(1).unwrap();
    until("there is room again", || {
        pair.a.poll(None, &mut pair.events);
        pair.b.poll(None, &mut pair.events);
        pair.a.key(pair.to_b, again.lease()).is_some()
    });
    assert_eq!(pair.b.links[0].state, LinkState::Up);
}

#[test]
fn many_peers_meet_in_any_order() {
    if !may_open(1000, "many_peers_meet_in_any_order") {
        return;
    }
    const PEERS: u8 = 12;
    let job = job();
    let mut ends: Vec<_> =
        (0..PEERS).map(|rank| Sm::new(tiny(&job, &format!("rank {rank}"))).unwrap()).collect();
    let addresses: Vec<_> = ends.iter().map(Btl::address).collect();
    let mut events = Queue::with_capacity(16);
    // Each calls the others in an order of its own, itself among them.
    let whom = |rank: u8, step: u8| (rank * 7 + step) % PEERS;
    for (rank, end) in (0..).zip(&mut ends) {
        for step in 0..PEERS {
            let address = &addresses[usize::from(whom(rank, step))];
            assert_eq!(end.connect(address).unwrap(), PeerId(step.into()));
        }
        assert_eq!(end.poll(None, &mut events), 0);
    }
    let mut sent = [0; PEERS as usize];
    let mut got = [0; PEERS as usize];
    until("everybody has heard everybody", || {
        for (rank, end) in (0..).zip(&mut ends) {
            let sent = &mut sent[usize::from(rank)];
            if *sent < PEERS
                && let Ok(slot) = end.reserve(PeerId((*sent).into()), 300)
            {
                end.send(slot, AmTag(rank), Token::NONE);
                *sent += 1;
            }
            end.poll(None, &mut events);
            for event in events.drain() {
                let Event::Arrived { from, tag, .. } = event else { panic!("{event:?}") };
                assert_eq!(whom(rank, u8::try_from(from.0).unwrap()), tag.0);
                got[usize::from(rank)] += 1;
            }
        }
        got.iter().all(|&count| count == PEERS)
    });
}

/// It has been let in before it greeted, and so many others have something to say that one look does not hear it.
#[test]
fn a_peer_that_greets_behind_a_crowd_is_heard_when_it_is_looked_for() {
    if !may_open(1000, "a_peer_that_greets_behind_a_crowd_is_heard_when_it_is_looked_for") {
        return;
    }
    let (a, mut b) = Default.pair();
    let to_a = b.connect(&a.address()).unwrap();
    let call = |b: &mut Sm| {
        let socket = socket::call(&b.address.meeting_place()).unwrap().unwrap();
        b.look_around();
        socket
    };
    let crowd: Vec<_> = (0..EVENTS + 6).map(|_| call(&mut b)).collect();
    let peer = call(&mut b);
    for unauthenticated in &crowd {
        assert_eq!(socket::send(unauthenticated, &[7; 200], None), Ok(true));
    }
    greet(&peer, a.address.nonce, b.address.nonce);
    b.admit(to_a.0);
    assert!(b.links[to_a.0 as usize].incoming.is_some(), "it has been heard");
}
