//! What the conformance suite does not ask, because it is the loopback's own.

use super::*;
use crate::{MapError, Queue};
use gapless_mem::{Lease, fake::FakeDevice};

fn poll(end: &mut Loopback) -> Vec<Event> {
    let mut events = Queue::with_capacity(64);
    end.poll(None, &mut events);
    events.drain().collect()
}

fn say(end: &mut Loopback, to: PeerId, text: &[u8]) {
    let mut slot = end.reserve(to, text.len()).unwrap();
    slot.write(0, text).unwrap();
    end.send(slot, AmTag(1), Token::NONE);
}

#[test]
fn the_last_words_of_a_dropped_end_come_before_its_loss() {
    let hub = Hub::new();
    let (mut a, mut b) = (Loopback::new(&hub), Loopback::new(&hub));
    let to_a = b.connect(&a.address()).unwrap();
    let to_b = a.connect(&b.address()).unwrap();
    let held = a.reserve(to_b, 1).unwrap();
    say(&mut b, to_a, b"last");
    drop(b);
    assert!(matches!(a.reserve(to_b, 1), Err(ReserveError::Link(LinkError::PeerGone { .. }))));
    let events = poll(&mut a);
    assert!(
        matches!(&events[0], Event::Arrived { fragment, .. } if fragment.to_vec().unwrap() == b"last")
    );
    assert!(matches!(&events[1], Event::Lost { peer, .. } if *peer == to_b));
    assert_eq!(events.len(), 2);
    a.send(held, AmTag(0), Token(4));
    assert!(matches!(&poll(&mut a)[..], [Event::Sent { token: Token(4), result: Err(_) }]));
}

#[test]
fn connecting_to_the_dead_gives_what_they_said() {
    let hub = Hub::new();
    let (mut a, mut b) = (Loopback::new(&hub), Loopback::new(&hub));
    let to_a = b.connect(&a.address()).unwrap();
    let b_address = b.address();
    say(&mut b, to_a, b"early");
    drop(b);
    assert!(poll(&mut a).is_empty());
    a.connect(&b_address).unwrap();
    assert!(matches!(&poll(&mut a)[..], [Event::Arrived { .. }, Event::Lost { .. }]));
    // The third end joined after the death and hears of it too.
    let mut c = Loopback::new(&hub);
    c.connect(&b_address).unwrap();
    assert!(matches!(&poll(&mut c)[..], [Event::Lost { .. }]));
}

#[test]
fn other_hubs_and_nonsense_are_refused() {
    let mut a = Loopback::new(&Hub::new());
    let b = Loopback::new(&Hub::new());
    assert!(matches!(a.connect(&b.address()), Err(LinkError::Unreachable { .. })));
    let mut bytes = a.address().as_bytes().to_vec();
    *bytes.last_mut().unwrap() = 9;
    let error = a.connect(&Address::new(&bytes).unwrap()).unwrap_err();
    assert!(matches!(error, LinkError::BadAddress { .. }));
    assert!(a.connect(&Address::new(b"").unwrap()).is_err());
    assert!(matches!(a.reserve(PeerId(3), 0), Err(ReserveError::Link(_))));
}

#[test]
fn abilities_can_be_switched_off() {
    let config = Config { rdma: false, mapped: false, ..Config::default() };
    let mut end = Loopback::with(&Hub::new(), config);
    assert!(end.rdma().is_none());
    assert!(end.mapped().is_none());
}

#[test]
fn a_freed_allocation_cannot_be_mapped() {
    let hub = Hub::new();
    let (mut a, mut b) = (Loopback::new(&hub), Loopback::new(&hub));
    let to_a = b.connect(&a.address()).unwrap();
    let to_b = a.connect(&b.address()).unwrap();
    let memory = a.allocate(100).unwrap();
    let key = a.key(to_b, &memory.lease().sub(10, 90).unwrap()).unwrap();
    let mapping = b.map(to_a, &key).unwrap();
    assert_eq!(mapping.region().start(), memory.region().start() + 10);
    drop(memory);
    assert!(b.map(to_a, &key).is_ok(), "a mapping holds it");
    drop(mapping);
    assert!(matches!(b.map(to_a, &key), Err(MapError::Unavailable { .. })));
}

/// Or its revocation would say nothing of who has the memory.
#[test]
#[allow(unsafe_code, reason = "vouches for memory of a device")]
fn a_key_is_for_the_peer_that_it_was_made_for() {
    let hub = Hub::new();
    let [mut owner, mut friend, mut thief] = [(); 3].map(|()| Loopback::new(&hub));
    let to_friend = owner.connect(&friend.address()).unwrap();
    let device: Arc<dyn Device> = Arc::new(FakeDevice::new(0));
    let memory = owner.allocate(64).unwrap();
    let far = device.allocate(64).unwrap();
    for end in [&mut owner, &mut friend, &mut thief] {
        end.attach(&device).unwrap();
    }
    // SAFETY: the device has just given it, and nobody frees it.
    let far = unsafe { Lease::kept_by_caller(far) };
    for lease in [memory.lease(), &far] {
        let key = owner.key(to_friend, lease).unwrap();
        let to_owner = thief.connect(&owner.address()).unwrap();
        assert!(matches!(thief.map(to_owner, &key), Err(MapError::BadKey { .. })));
        let to_owner = friend.connect(&owner.address()).unwrap();
        assert!(friend.map(to_owner, &key).is_ok());
    }
}
