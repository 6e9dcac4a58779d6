//! That faults happen, and that they stay within the contract.

use super::*;
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{Access, RdmaError};
use gapless_mem::Region;

fn pair(plan: Plan) -> (Fault<Loopback>, Loopback, PeerId, PeerId) {
    let hub = Hub::new();
    let (mut a, mut b) = (Fault::new(Loopback::new(&hub), plan), Loopback::new(&hub));
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.connect(&a.address()).unwrap();
    (a, b, to_b, to_a)
}

fn poll(end: &mut impl Btl) -> Vec<Event> {
    let mut events = Queue::with_capacity(1000);
    end.poll(None, &mut events);
    events.drain().collect()
}

fn say(end: &mut impl Btl, to: PeerId, number: u8, done: Token) {
    let mut slot = end.reserve(to, 1).unwrap();
    slot.write(0, &[number]).unwrap();
    end.send(slot, AmTag(0), done);
}

#[test]
fn storms_come_and_go() {
    let plan = Plan { seed: 3, full_per_mille: 300, full_calls_max: 5, ..Plan::default() };
    let (mut a, mut b, to_b, _) = pair(plan.clone());
    let mut pattern = Vec::new();
    for _ in 0..200 {
        pattern.push(a.reserve(to_b, 1).is_ok());
        poll(&mut b);
    }
    assert!(pattern.contains(&true) && pattern.contains(&false));
    let (mut again, _b, to_b, _) = pair(plan);
    assert!(pattern.iter().all(|&ok| again.reserve(to_b, 1).is_ok() == ok), "same seed");
}

#[test]
fn late_reports_keep_their_order() {
    let (mut a, mut b, _, to_a) = pair(Plan { seed: 1, delay_polls_max: 9, ..Plan::default() });
    assert_eq!(a.arm(), None);
    let mut got = Vec::new();
    let mut idle = 0;
    for number in 0..30 {
        say(&mut b, to_a, number, Token::NONE);
        let events = poll(&mut a);
        idle += usize::from(events.is_empty());
        got.extend(events);
    }
    drop(b);
    while !matches!(got.last(), Some(Event::Lost { .. })) {
        got.extend(poll(&mut a));
    }
    assert!(idle > 0);
    assert_eq!(got.len(), 31);
    for (number, event) in (0..30u8).zip(&got) {
        assert!(
            matches!(event, Event::Arrived { fragment, .. } if fragment.to_vec().unwrap() == [number])
        );
    }
}

#[test]
fn a_link_is_lost_after_its_last_message() {
    let (mut a, mut b, to_b, to_a) = pair(Plan { lose_after_messages: Some(2), ..Plan::default() });
    let held = a.reserve(to_b, 1).unwrap();
    say(&mut a, to_b, 0, Token(10));
    say(&mut a, to_b, 1, Token(11));
    a.send(held, AmTag(0), Token(12));
    assert!(matches!(a.reserve(to_b, 1), Err(ReserveError::Link(LinkError::PeerGone { .. }))));
    say(&mut b, to_a, 9, Token::NONE);
    let events = poll(&mut a);
    let failed: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Sent { token, result: Err(_) } => Some(token.0),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [12, 10, 11]);
    assert!(matches!(events.last(), Some(Event::Lost { peer, .. }) if *peer == to_b));
    assert_eq!(events.len(), 4, "what comes later is not delivered");
    drop(b);
    assert!(poll(&mut a).is_empty(), "lost once");
}

#[test]
#[allow(unsafe_code, reason = "calls Rdma")]
fn abilities_are_refused() {
    let plan =
        Plan { rdma_refused_per_mille: 1000, mapped_refused_per_mille: 1000, ..Plan::default() };
    let (mut a, _b, to_b, _) = pair(plan);
    let mut bytes = [0; 8];
    let region = Region::of_mut(&mut bytes);
    let rdma = a.rdma().unwrap();
    assert_eq!(rdma.reaches(to_b), Some(true));
    // SAFETY: refused; `bytes` outlives the transport anyway.
    let refused = unsafe { rdma.register(region, Access::Write) };
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })));
    assert!(a.mapped().unwrap().allocate(10).is_err());
    a.set_plan(Plan::default());
    // SAFETY: `bytes` outlives the transport.
    assert!(unsafe { a.rdma().unwrap().register(region, Access::Write) }.is_ok());
    assert!(a.mapped().unwrap().allocate(10).is_ok());
}

#[test]
fn disorder_only_where_order_is_not_promised() {
    let plan =
        Plan { seed: 5, reorder_per_mille: 300, duplicate_per_mille: 300, ..Plan::default() };
    for ordered in [true, false] {
        let loopback = Loopback::with(&Hub::new(), Config { ordered, ..Config::default() });
        let mut end = Fault::new(loopback, plan.clone());
        let address = end.address();
        let me = end.connect(&address).unwrap();
        for number in 0..30 {
            say(&mut end, me, number, Token::NONE);
        }
        let got: Vec<u8> = poll(&mut end)
            .iter()
            .filter_map(|event| match event {
                Event::Arrived { fragment, .. } => Some(fragment.to_vec().unwrap()[0]),
                _ => None,
            })
            .collect();
        if ordered {
            assert_eq!(got, (0..30).collect::<Vec<_>>());
        } else {
            assert!(got.len() > 30, "some came twice");
            assert!(!got.is_sorted(), "some out of order");
            assert!((0..30).all(|number| got.contains(&number)), "none is missing");
        }
    }
}

/// A loopback that retains what was sent until a test says that it is known to be there.
struct Keeper {
    inner: Loopback,
    kept: VecDeque<Unacknowledged>,
    known: usize,
}

impl Btl for Keeper {
    delegate!(self => self.inner; limits address connect reserve poll);

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let message = slot.to_vec().unwrap();
        self.kept.push_back(Unacknowledged { tag, message, done });
        self.inner.send(slot, tag, done);
    }
    fn retains(&self) -> bool {
        true
    }
    fn unacknowledged(&mut self, _: PeerId) -> Vec<Unacknowledged> {
        self.kept.drain(..).skip(self.known).collect()
    }
    fn outstanding(&self, _: PeerId) -> u64 {
        self.kept.iter().skip(self.known).map(|it| it.message.len() as u64).sum()
    }
}

/// A keeper in a wrapper, and what it calls the other end.
fn keeper(plan: Plan) -> (Fault<Keeper>, Loopback, PeerId) {
    let hub = Hub::new();
    let inner = Keeper { inner: Loopback::new(&hub), kept: VecDeque::new(), known: 0 };
    let (mut a, mut b) = (Fault::new(inner, plan), Loopback::new(&hub));
    let to_b = a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    assert!(a.retains());
    a.retain(to_b);
    (a, b, to_b)
}

fn numbers(left: &[Unacknowledged]) -> Vec<(u8, u64)> {
    left.iter().map(|it| (it.message[0], it.done.0)).collect()
}

const NONE: u64 = Token::NONE.0;

#[test]
fn what_is_retained_is_given_back_when_the_link_is_cut() {
    let (mut a, _b, to_b) = keeper(Plan::default());
    for (number, token) in [(0, Token(70)), (1, Token(71)), (2, Token::NONE)] {
        say(&mut a, to_b, number, token);
    }
    assert_eq!(a.outstanding(to_b), 3);
    let first = poll(&mut a);
    assert!(matches!(&first[..], [Event::Sent { token: Token(70), .. }, Event::Sent { .. }]));
    // The first is known to be there; the token of the second has come back.
    a.inner_mut().known = 1;
    say(&mut a, to_b, 3, Token(73));
    assert!(a.unacknowledged(to_b).is_empty(), "the link stands");
    let held = a.reserve(to_b, 1).unwrap();
    a.cut(to_b);
    a.send(held, AmTag(0), Token(74));
    let events = poll(&mut a);
    assert!(matches!(&events[..], [Event::Lost { .. }]), "no message has failed: {events:?}");
    assert_eq!(a.outstanding(to_b), 4);
    let left = a.unacknowledged(to_b);
    assert_eq!(numbers(&left), [(1, NONE), (2, NONE), (3, 73), (0, 74)]);
    assert!(a.unacknowledged(to_b).is_empty() && poll(&mut a).is_empty());
}

#[test]
fn what_the_transport_gives_back_has_the_callers_tokens() {
    let (mut a, b, to_b) = keeper(Plan { delay_polls_max: 3, ..Plan::default() });
    say(&mut a, to_b, 5, Token(9));
    drop(b);
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Lost { .. })) {
        events.extend(poll(&mut a));
    }
    let told = events.iter().any(|event| matches!(event, Event::Sent { token: Token(9), .. }));
    let token = if told { NONE } else { 9 };
    assert_eq!(numbers(&a.unacknowledged(to_b)), [(5, token)]);
    assert!(a.unacknowledged(to_b).is_empty());
}

#[test]
fn a_link_that_retains_nothing_gives_nothing_back() {
    let (mut a, _b, to_b, _) = pair(Plan::default());
    a.retain(to_b);
    say(&mut a, to_b, 0, Token(1));
    assert!(!a.retains() && a.outstanding(to_b) == 0);
    a.cut(to_b);
    say_to_the_lost(&mut a, to_b);
    assert!(a.unacknowledged(to_b).is_empty());
}

fn say_to_the_lost(end: &mut impl Btl, to: PeerId) {
    assert!(matches!(end.reserve(to, 1), Err(ReserveError::Link(_))));
}
