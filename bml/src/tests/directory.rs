//! Peers whose addresses are looked up when they are needed.

use super::{Log, named, poll, say};
use crate::{Bml, Directory, FoundPeer, PeerState, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, LinkError, PeerId, ReserveError, Sink, Token, delegate};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

type Shared<T> = Arc<Mutex<T>>;

/// A loopback that tells who calls, as the test has it.
struct Telling {
    inner: Loopback,
    callers: Shared<Vec<u32>>,
}

impl Btl for Telling {
    delegate!(self => self.inner; limits address connect reserve send poll);

    fn callers(&mut self) -> Option<Vec<u32>> {
        Some(std::mem::take(&mut self.callers.lock().unwrap()))
    }
}

/// Answers in turn, and counts questions.
struct Book(Shared<VecDeque<FoundPeer>>, Shared<Vec<Rank>>);

impl Directory for Book {
    fn look_up(&mut self, peer: Rank) -> FoundPeer {
        self.1.lock().unwrap().push(peer);
        self.0.lock().unwrap().pop_front().expect("it is asked no more often")
    }
}

struct End {
    bml: Bml,
    callers: Shared<Vec<u32>>,
    answers: Shared<VecDeque<FoundPeer>>,
    asked: Shared<Vec<Rank>>,
}

impl End {
    fn new(hub: &Hub, me: u32) -> End {
        let (callers, answers, asked) = (Shared::default(), Shared::default(), Shared::default());
        let mut bml = Bml::new(Rank(me), 2);
        let inner = Loopback::with(hub, named("x", 100));
        bml.add(Box::new(Telling { inner, callers: Arc::clone(&callers) }));
        assert_eq!(bml.state(Rank(1 - me)), &PeerState::Unknown);
        assert!(bml.set_directory(Box::new(Book(Arc::clone(&answers), Arc::clone(&asked)))));
        End { bml, callers, answers, asked }
    }

    fn answer(&self, found: FoundPeer) {
        self.answers.lock().unwrap().push_back(found);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[test]
fn an_address_is_asked_for_once_by_whoever_sends_and_whoever_is_called() {
    let hub = Hub::new();
    let (mut a, mut b) = (End::new(&hub, 0), End::new(&hub, 1));
    assert_eq!(a.bml.state(Rank(1)), &PeerState::Up);
    assert!(a.bml.limits(Rank(1)).is_none() && !a.bml.has_met(Rank(1)));
    (0..200).for_each(|_| assert!(poll(&mut a.bml).is_empty()));
    assert_eq!(a.asked(), 0, "nobody needs it");
    a.answer(FoundPeer::Addresses(b.bml.addresses()));
    b.answer(FoundPeer::Addresses(a.bml.addresses()));
    let room = a.bml.reserve(Rank(1), 5);
    assert!(matches!(room, Ok(_) | Err(ReserveError::Full)), "{room:?}");
    drop(room);
    assert_eq!(a.asked(), 1);
    assert_eq!(a.bml.limits(Rank(1)).unwrap().name, "x");
    // The transport says who called, and who cannot be.
    b.callers.lock().unwrap().extend([0, 0, 1, 77]);
    (0..8).for_each(|_| assert!(poll(&mut b.bml).is_empty()));
    assert_eq!(b.asked(), 1);
    say(&mut a.bml, 1, 3, b"hello", Token::NONE);
    assert!(matches!(&poll(&mut b.bml)[..], [RankEvent::Arrived { from: Rank(0), .. }]));
    assert_eq!((a.asked(), b.asked()), (1, 1));
}

#[test]
fn a_directory_that_cannot_answer_now_is_asked_again() {
    let hub = Hub::new();
    let (mut a, b) = (End::new(&hub, 0), End::new(&hub, 1));
    for _ in 0..3 {
        a.answer(FoundPeer::Later);
    }
    a.answer(FoundPeer::Addresses(b.bml.addresses()));
    assert_eq!(a.bml.reserve(Rank(1), 5).unwrap_err(), ReserveError::Full);
    assert!(!a.bml.is_quiet(), "there is something to do");
    (0..5).for_each(|_| assert!(poll(&mut a.bml).is_empty()));
    assert_eq!(a.asked(), 4);
    assert!(a.bml.limits(Rank(1)).is_some() && a.bml.look_up(Rank(1)));
    drop(b);
}

#[test]
fn a_peer_without_an_address_is_lost_and_a_transport_that_does_not_tell_gets_no_directory() {
    let hub = Hub::new();
    let mut a = End::new(&hub, 0);
    a.answer(FoundPeer::Nothing(LinkError::Unreachable { reason: "no such page".to_owned() }));
    let error = a.bml.reserve(Rank(1), 5).unwrap_err();
    assert!(error.to_string().contains("no such page"), "{error}");
    let events = poll(&mut a.bml);
    assert!(matches!(&events[..], [RankEvent::Lost { peer: Rank(1), .. }]), "{events:?}");
    assert!(a.bml.reserve(Rank(1), 5).is_err() && !a.bml.look_up(Rank(1)));
    assert_eq!(a.asked(), 1);
    let mut silent = Bml::new(Rank(0), 2);
    silent.add(Box::new(Loopback::with(&hub, named("x", 100))));
    assert!(!silent.set_directory(Box::new(Book(Shared::default(), Shared::default()))));
    assert_eq!(silent.state(Rank(1)), &PeerState::Unknown);
    silent.poll(&mut Log::default());
}

/// Of a large job whose launcher has gone, each neighbour is asked for once, and the others stay.
#[test]
fn one_address_that_is_not_to_be_had_costs_one_peer() {
    struct Gone(Shared<u32>);
    impl Directory for Gone {
        fn look_up(&mut self, _: Rank) -> FoundPeer {
            *self.0.lock().unwrap() += 1;
            FoundPeer::Nothing(LinkError::Unreachable { reason: "the launcher is gone".to_owned() })
        }

        fn may_be_mapped(&self, peer: Rank) -> bool {
            peer.0 < 100
        }
    }
    let asked = Shared::default();
    let mut bml = Bml::new(Rank(0), 10_000);
    assert!(bml.set_directory(Box::new(Gone(Arc::clone(&asked)))));
    bml.watch();
    let neighbours = *asked.lock().unwrap();
    assert!((14..=28).contains(&neighbours), "{neighbours}");
    assert!(bml.mapped(Rank(5000)).is_none(), "it is known to be elsewhere");
    assert_eq!(*asked.lock().unwrap(), neighbours);
    assert_eq!(bml.state(Rank(5000)), &PeerState::Up);
    assert_eq!(poll(&mut bml).len(), neighbours as usize, "losses");
    bml.watch();
    assert_eq!(*asked.lock().unwrap(), neighbours, "not once more");
    assert!(bml.reserve(Rank(77), 1).is_err());
    assert_eq!(*asked.lock().unwrap(), neighbours + 1);
}

/// Whoever polls seldom sees at once what is looked at only now and then.
#[test]
fn a_thorough_poll_hears_callers_and_looks_at_quiet_rails() {
    struct Counted(Loopback, Shared<u32>);
    impl Btl for Counted {
        delegate!(self => self.0; limits address connect reserve send);

        fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
            *self.1.lock().unwrap() += 1;
            self.0.poll(only, sink)
        }
    }
    let hub = Hub::new();
    let mut b = End::new(&hub, 1);
    let polls = Shared::default();
    let slow = Loopback::with(&Hub::new(), named("slow", 9000));
    b.bml.add(Box::new(Counted(slow, Arc::clone(&polls))));
    (0..200).for_each(|_| assert!(poll(&mut b.bml).is_empty()));
    let before = *polls.lock().unwrap();
    b.callers.lock().unwrap().push(0);
    b.answer(FoundPeer::Nothing(LinkError::Unreachable { reason: "for the test".to_owned() }));
    b.bml.poll_thoroughly(&mut Log::default());
    assert_eq!(*polls.lock().unwrap() - before, gapless_btl::POLLS_PER_LOOK);
    assert_eq!(b.asked(), 1);
}
