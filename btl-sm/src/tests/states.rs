//! What an end says and counts of itself: whether it may be slept on, whether something is due, who has been met, how
//! many links are on their way up or down.

use super::{Default, Pair, until};
use gapless_btl::{Btl, Event, Mapped, POLLS_PER_LOOK, PeerId, Queue};
use gapless_btl_testkit::conformance::Fixture;
use std::time::{Duration, Instant};

/// Polls both until the first has nothing to do.
fn rest(pair: &mut Pair) {
    until("it is quiet", || {
        pair.a.poll(None, &mut pair.events);
        pair.b.poll(None, &mut pair.events);
        pair.a.is_quiet()
    });
}

#[test]
fn an_end_at_rest_may_be_slept_on_and_one_that_is_at_work_may_not() {
    let mut pair = Pair::new();
    rest(&mut pair);
    let sleeps = |pair: &mut Pair| {
        let armed = pair.a.arm().is_some();
        assert_eq!(pair.a.armed.is_some(), armed, "whoever sleeps has said so");
        assert!(!armed || !pair.a.is_quiet(), "it must get up first");
        rest(pair);
        armed
    };
    assert!(sleeps(&mut pair), "nothing is due");
    pair.a.packets_wait = true;
    assert!(pair.a.arm().is_none(), "a socket was full");
    pair.a.packets_wait = false;
    pair.a.dying += 1;
    assert!(pair.a.arm().is_none() && !pair.a.is_quiet(), "a peer is to be buried");
    pair.a.dying -= 1;
    pair.a.cm.paused = Some(Instant::now());
    assert!(pair.a.arm().is_none(), "the listener is left alone");
    pair.a.cm.paused = None;
    assert!(sleeps(&mut pair));
}

#[test]
fn links_on_their_way_up_and_down_are_counted() {
    let mut pair = Pair::new();
    let counts = |pair: &Pair| (pair.a.cm.meeting, pair.a.dying);
    assert_eq!(counts(&pair), (0, 0), "all are up");
    let lose = |pair: &mut Pair, peer: PeerId| {
        until("the loss", || {
            pair.a.poll(None, &mut pair.events);
            let mut events = pair.events.drain();
            events.any(|event| matches!(event, Event::Lost { peer: lost, .. } if lost == peer))
        });
    };
    let mut config = pair.a.config.clone();
    config.name = "c".to_owned();
    let third = crate::Sm::new(config).unwrap();
    let met = pair.a.connect(&third.address()).unwrap();
    assert_eq!(counts(&pair), (1, 0), "one does not answer");
    drop(third);
    lose(&mut pair, met);
    assert_eq!(counts(&pair), (0, 0));
    let end = std::mem::replace(&mut pair.b, Default.pair().1);
    drop(end);
    let to_b = pair.to_b;
    lose(&mut pair, to_b);
    assert_eq!(counts(&pair), (0, 0));
}

#[test]
fn whoever_called_first_is_met_when_it_is_introduced_and_others_are_not() {
    let (mut a, mut b) = Default.pair();
    let mut config = a.config.clone();
    config.name = "c".to_owned();
    let third = crate::Sm::new(config).unwrap();
    b.connect(&a.address()).unwrap();
    let mut events = Queue::with_capacity(8);
    // Its greeting is read, and waits.
    for _ in 0..2 {
        a.look_around();
        a.poll(None, &mut events);
    }
    let silent = a.introduce(&third.address()).unwrap();
    assert!(!a.has_met(silent), "nobody has asked for it");
    let caller = a.introduce(&b.address()).unwrap();
    assert!(a.has_met(caller), "it is called back");
    assert!(!a.has_met(silent) && !a.has_met(PeerId(7)));
}

#[test]
fn sockets_are_looked_at_now_and_then_and_more_often_while_somebody_is_met_or_it_sleeps() {
    let (mut a, _) = Default.pair();
    let mut due = |ticks: u32, meeting: usize, looked: Instant, armed: Option<u32>| {
        (a.ticks, a.cm.meeting, a.cm.looked, a.armed) = (ticks, meeting, looked, armed);
        let due = a.tick();
        assert_eq!(a.ticks, ticks + 1);
        (a.cm.meeting, a.armed) = (0, None);
        due
    };
    // No test runs for an hour.
    let now = Instant::now() + Duration::from_secs(3600);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    for ticks in 0..2 * POLLS_PER_LOOK {
        let turn = (ticks + 1).is_multiple_of(POLLS_PER_LOOK);
        assert!(!due(ticks, 0, now, None), "{ticks}");
        assert_eq!(due(ticks, 1, now, None), turn, "{ticks}");
        assert_eq!(due(ticks, 2, now, None), turn, "{ticks}");
        assert_eq!(due(ticks, 0, long_ago, None), turn, "{ticks}");
        assert!(due(ticks, 0, now, Some(0)), "{ticks}");
    }
}

/// A peer that has both greetings shares memory, and tells its key otherwise than by this link: whoever gets the key
/// has perhaps not looked at its listener since.
#[test]
fn memory_of_a_peer_whose_connection_is_pending_is_mapped() {
    let (mut a, mut b) = Default.pair();
    let to_a = b.connect(&a.address()).unwrap();
    let to_b = a.connect(&b.address()).unwrap();
    let mut events = Queue::with_capacity(64);
    until("one end is up", || {
        a.poll(None, &mut events);
        a.links[to_b.0 as usize].is_up() == Ok(true)
    });
    assert!(b.links[to_a.0 as usize].incoming.is_none(), "it has not looked");
    let memory = a.allocate(4096).unwrap();
    let key = a.key(to_b, memory.lease()).expect("a link that is up");
    let mapping = b.map(to_a, &key).unwrap();
    assert_eq!(mapping.region().len(), 4096);
    assert_eq!(b.links[to_a.0 as usize].is_up(), Ok(true));
}
