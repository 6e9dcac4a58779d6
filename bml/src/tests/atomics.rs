//! Numbers that all processes change by one rail of their owner.

use super::{Config, Hub, named, poll, rank};
use crate::{Bml, PeerState, Rank, RankEvent, RdmaRail, TokenSpace};
use gapless_btl::{Access, Address, Change, RemoteKey};
use gapless_mem::{Region, Space};

/// A number that is never freed.
fn leaked() -> Region {
    let number: &'static mut u64 = Box::leak(Box::new(0));
    let address = std::ptr::from_mut(number).expose_provenance() as u64;
    Region::new(Space::Host, address, 0, 8)
}

#[allow(unsafe_code, reason = "calls Rdma")]
fn register(owner: &mut Bml) -> Option<(RdmaRail, Address, RemoteKey)> {
    let (rail, address, rdma) = owner.atomics(None)?;
    // SAFETY: the memory is never freed, and no reference to it is used.
    let key = unsafe { rdma.register(leaked(), Access::Atomic) }.unwrap();
    Some((rail, address, key))
}

/// Adds one; what was there.
#[allow(unsafe_code, reason = "calls Rdma, and reads what it has written")]
fn count(bml: &mut Bml, rail: RdmaRail, owner: Rank, key: &RemoteKey) -> u64 {
    let (found, token) = (leaked(), TokenSpace::REST.token(3).unwrap());
    let (peer, rdma) = bml.changing(rail, owner, key).expect("it reaches the memory");
    // SAFETY: the word is never freed, and is read once the operation has ended.
    unsafe { rdma.atomic(peer, key, 0, Change::Add(1), found, token) }.unwrap();
    let ended = poll(bml);
    assert!(matches!(&ended[..], [RankEvent::Completed { result: Ok(()), .. }]), "{ended:?}");
    let mut bytes = [0; 8];
    // SAFETY: as above.
    unsafe { gapless_mem::read(&found, 0, &mut bytes) }.unwrap();
    u64::from_ne_bytes(bytes)
}

/// Processes change each other's numbers by the rail that these are registered with, whatever carries their messages, and
/// their own; and nothing else is known of that rail.
#[test]
fn all_use_the_rail_that_the_memory_is_registered_with() {
    let (x, y) = (Hub::new(), Hub::new());
    // The best rail, which carries messages, has no atomic operations.
    let plain = Config { atomics: false, ..named("x", 10) };
    let all = [(&x, plain), (&y, named("y", 900))];
    let mut ranks = [0, 1, 2].map(|me| rank(&all, me, 3));
    let made = ranks.each_mut().map(|bml| register(bml).unwrap());
    // The first two know each other by the first rail alone, as if they were of one host; the third knows nobody.
    let near = |bml: &Bml| vec![bml.addresses().remove(0)];
    let [a, b, c] = &mut ranks;
    let (of_a, of_b) = (near(a), near(b));
    a.connect(Rank(1), &of_b).unwrap();
    b.connect(Rank(0), &of_a).unwrap();
    for (bml, (rail, ..)) in [&mut *a, &mut *b, &mut *c].into_iter().zip(&made) {
        for (owner, (_, address, key)) in (0..).map(Rank).zip(&made) {
            assert_eq!(bml.changes(*rail, owner, key), Some(false), "nobody has met");
            assert!(bml.meet_for_changes(*rail, owner, address));
            assert!(bml.meet_for_changes(*rail, owner, address), "again");
            assert_eq!(bml.changes(*rail, owner, key), Some(true));
            let (_, _, other) = &made[(owner.0 as usize + 1) % 3];
            assert_eq!(bml.changes(*rail, owner, other), Some(false), "another's key");
        }
    }
    let (rail, _, key) = &made[0];
    let found: Vec<u64> = (0..2)
        .flat_map(|_| [&mut *a, &mut *b, &mut *c].map(|bml| count(bml, *rail, Rank(0), key)))
        .collect();
    assert_eq!(found, [0, 1, 2, 3, 4, 5]);
    assert_eq!((a.limits(Rank(1)).unwrap().name, a.state(Rank(2))), ("x", &PeerState::Unknown));
    a.deregister(*rail, key);
    for bml in [a, b, c] {
        assert_eq!(bml.changes(*rail, Rank(0), key), Some(false));
        assert!(bml.changing(*rail, Rank(0), key).is_none());
    }
}

/// The end of such a link is not the end of the peer.
#[test]
fn a_link_for_changes_ends_alone() {
    let (x, y) = (Hub::new(), Hub::new());
    let mut a = rank(&[(&x, named("x", 10)), (&y, named("y", 900))], 0, 2);
    let mut b = rank(&[(&x, named("x", 10))], 1, 2);
    let mut other = Bml::new(Rank(1), 2);
    other.add(Box::new(gapless_btl::loopback::Loopback::with(&y, named("y", 1))));
    a.connect(Rank(1), &b.addresses()).unwrap();
    b.connect(Rank(0), &[a.addresses().remove(0)]).unwrap();
    let (_, address, key) = register(&mut other).unwrap();
    let rail = RdmaRail(2);
    assert!(a.meet_for_changes(rail, Rank(1), &address));
    assert_eq!(a.changes(rail, Rank(1), &key), Some(true));
    drop(other);
    assert!(poll(&mut a).is_empty());
    assert_eq!((a.changes(rail, Rank(1), &key), a.state(Rank(1))), (Some(false), &PeerState::Up));
    assert!(!a.meet_for_changes(RdmaRail(9), Rank(1), &address), "no such rail");
}

#[test]
fn without_a_transport_to_others_there_are_none() {
    let mut alone = Bml::new(Rank(0), 1);
    assert!(register(&mut alone).is_none());
}
