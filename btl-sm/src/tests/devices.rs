//! Devices, seen from the inside: bounds, choices, refusals, lies.

use super::{Default, Pair, tiny, until};
use crate::link::LinkState;
use crate::wire::{device_packet, make_key};
use crate::{Sm, SmConfig, socket, wire};
use gapless_btl::{Btl, LinkError, MapError, Mapped, RemoteKey};
use gapless_btl_testkit::conformance::Fixture;
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::{Call, Wrapped};
use gapless_mem::{Device, DeviceError, Export, Lease, Region, Space};
use std::sync::Arc;

fn attach<D: Device + 'static>(end: &mut Sm, device: &Arc<D>) -> Result<(), LinkError> {
    end.attach(&(Arc::clone(device) as Arc<dyn Device>))
}

/// A pair, each with a device.
fn equipped(a: Sm, b: Sm) -> (Pair, Arc<FakeDevice>, Arc<FakeDevice>) {
    let (ours, theirs) = (Arc::new(FakeDevice::new(0)), Arc::new(FakeDevice::new(1)));
    let mut pair = Pair::of(a, b);
    attach(&mut pair.a, &ours).unwrap();
    attach(&mut pair.b, &theirs).unwrap();
    (pair, ours, theirs)
}

/// A key of the first for memory that it has.
fn key(pair: &mut Pair, region: Region) -> Option<RemoteKey> {
    // SAFETY: these tests free no memory during this call, which keeps nothing of the lease.
    let lease = unsafe { Lease::kept_by_caller(region) };
    pair.a.key(pair.to_b, &lease)
}

fn poll(pair: &mut Pair) {
    pair.a.poll(None, &mut pair.events);
    pair.b.poll(None, &mut pair.events);
    assert!(pair.events.is_empty(), "{:?}", pair.events.drain().collect::<Vec<_>>());
}

#[test]
fn both_caches_keep_their_bounds() {
    let job = super::job();
    let open = |name| Sm::new(tiny(&job, name)).unwrap();
    let (mut pair, ours, theirs) = equipped(open("a"), open("b"));
    let buffers: Vec<Region> = (0..8).map(|_| ours.allocate(4096).unwrap()).collect();
    for memory in &buffers {
        let key = key(&mut pair, *memory).unwrap();
        let mapping = pair.b.map(pair.to_a, &key).unwrap();
        assert!(theirs.imported() <= 3, "two that are kept, and one in use");
        drop(mapping);
        assert!(theirs.imported() <= 2);
        assert!(pair.a.device_exports.counts().0 <= 3);
        poll(&mut pair);
    }
    // Nobody has asked for any of them back, and what is remembered of those that have left is bounded.
    until("all that have left are let go of", || {
        poll(&mut pair);
        pair.a.links[0].leaving.is_empty()
    });
    let last = ours.allocate(4096).unwrap();
    assert!(key(&mut pair, last).is_some());
    assert!(pair.a.device_exports.counts().1 <= 1, "{:?}", pair.a.device_exports.counts());
    for memory in buffers.iter().chain([&last]) {
        until("it is let go of", || {
            poll(&mut pair);
            !pair.a.invalidate(*memory)
        });
    }
    assert_eq!((pair.a.device_exports.counts(), theirs.imported()), ((0, 0), 0));
}

#[test]
fn the_importing_process_chooses_the_device() {
    let (a, b) = Default.pair();
    let (mut pair, ours, first) = equipped(a, b);
    let second = Arc::new(FakeDevice::new(2));
    attach(&mut pair.b, &second).unwrap();
    let memory = ours.allocate(4096).unwrap();
    let key = key(&mut pair, memory).unwrap();
    for (user, space) in [
        (Space::Host, first.space()),
        (first.space(), first.space()),
        (second.space(), second.space()),
    ] {
        let mapping = pair.b.map_for(pair.to_a, &key, user).unwrap();
        assert_eq!(mapping.region().space(), space);
    }
    let error = pair.b.map_for(pair.to_a, &key, Space::Cuda { device: 0 }).unwrap_err();
    assert!(error.to_string().contains("no device is attached here that maps it for cuda:0"));
    assert_eq!((first.imported(), second.imported()), (1, 1));
    until("both have let go of it", || {
        poll(&mut pair);
        !pair.a.invalidate(memory)
    });
    assert_eq!((first.imported(), second.imported()), (0, 0));
}

#[test]
fn what_a_dead_peer_shared_is_let_go_of_when_nobody_uses_it() {
    let (a, b) = Default.pair();
    let (mut pair, ours, theirs) = equipped(a, b);
    let buffers = [ours.allocate(10).unwrap(), ours.allocate(10).unwrap()];
    let [one, two] = buffers.map(|memory| {
        let key = key(&mut pair, memory).unwrap();
        pair.b.map(pair.to_a, &key).unwrap()
    });
    drop(one);
    assert_eq!(theirs.imported(), 2, "one is kept");
    let Pair { a, mut b, mut events, .. } = pair;
    drop(a);
    until("the loss", || b.poll(None, &mut events) > 0);
    assert_eq!(theirs.imported(), 1);
    let user = std::thread::spawn(move || drop(two));
    user.join().unwrap();
    assert_eq!(theirs.imported(), 0, "on whatever thread");
    b.poll(None, &mut events);
}

#[test]
fn a_peer_that_dies_with_our_memory_mapped_has_let_go_of_it() {
    let (a, b) = Default.pair();
    let (mut pair, ours, _theirs) = equipped(a, b);
    let memory = ours.allocate(10).unwrap();
    let key = key(&mut pair, memory).unwrap();
    let mapping = pair.b.map(pair.to_a, &key).unwrap();
    assert!(pair.a.invalidate(memory));
    let Pair { mut a, b, mut events, .. } = pair;
    drop(b);
    until("the loss", || a.poll(None, &mut events) > 0);
    for _ in 0..100 {
        a.look_around();
        assert!(a.invalidate(memory), "the process lives, and uses it");
    }
    drop(mapping);
    until("that is known", || {
        a.poll(None, &mut events);
        !a.invalidate(memory)
    });
}

/// Whoever breaks the rules is hung up on at once, and may live and write what it was granted for long.
#[test]
fn a_peer_that_broke_the_rules_is_waited_for_while_it_uses_our_memory() {
    for asked_before in [true, false] {
        let (a, b) = Default.pair();
        let (mut pair, ours, _theirs) = equipped(a, b);
        let host = pair.a.allocate(10_000).unwrap();
        let regions = [ours.allocate(10).unwrap(), host.region()];
        let mappings = regions.map(|region| {
            let key = key(&mut pair, region).unwrap();
            pair.b.map(pair.to_a, &key).unwrap()
        });
        let Pair { mut a, mut b, to_b, mut events, .. } = pair;
        if asked_before {
            assert!(regions.iter().all(|region| a.revoke_access(to_b, *region)));
        }
        let wire = b.links[0].outgoing.clone().unwrap();
        assert_eq!(socket::send(&wire, &[99], None), Ok(true));
        drop(wire);
        for end in [&mut a, &mut b] {
            until("the loss at both ends", || {
                end.poll(None, &mut events);
                events.drain().any(|event| matches!(event, gapless_btl::Event::Lost { .. }))
            });
        }
        assert!(matches!(a.links[0].state, LinkState::Lost(LinkError::Corrupt { .. })));
        let mut used = |events: &mut gapless_btl::Queue| {
            a.poll(None, events);
            b.poll(None, events);
            a.look_around();
            regions.iter().any(|region| a.revoke_access(to_b, *region))
        };
        let [first, second] = mappings;
        for mapping in [first, second] {
            for _ in 0..100 {
                assert!(used(&mut events), "it is mapped over there");
            }
            drop(mapping);
        }
        until("it has let go", || !used(&mut events));
        assert!(a.links[0].departed.is_none() && a.links[0].process.is_none());
    }
}

/// It gave us up after it had heard nothing of us for long, and we have not read what it said.
#[test]
fn a_peer_that_finds_our_socket_full_says_later_that_it_uses_nothing() {
    let (a, b) = Default.pair();
    let mut pair = Pair::of(a, b);
    let memory = pair.a.allocate(10_000).unwrap();
    let key = pair.a.key(pair.to_b, memory.lease()).unwrap();
    let mapping = pair.b.map(pair.to_a, &key).unwrap();
    let Pair { mut a, mut b, to_b, to_a, mut events } = pair;
    let wire = b.links[0].outgoing.clone().unwrap();
    while socket::send(&wire, &[wire::WAKE], None) == Ok(true) {}
    drop(wire);
    b.die(to_a.0, LinkError::Corrupt { what: "a test says so".to_owned() });
    until("the loss over there", || b.poll(None, &mut events) > 0);
    drop(mapping);
    drop(events.drain());
    until("the loss here", || a.poll(None, &mut events) > 0);
    for _ in 0..10_000 {
        a.look_around();
        assert!(a.revoke_access(to_b, memory.region()), "what we know of has it mapped");
    }
    until("it has let go", || {
        b.look_around();
        a.look_around();
        !a.revoke_access(to_b, memory.region())
    });
}

#[test]
fn lies_about_device_memory_are_refused() {
    let (a, b) = Default.pair();
    let (mut pair, ours, theirs) = equipped(a, b);
    let owner = pair.a.address.nonce;
    let wire = pair.a.links[0].outgoing.clone().unwrap();
    let memory = ours.allocate(4096).unwrap();
    // What no device made.
    let nonsense = device_packet(3, 0, 7, 4096, b"no device made this").unwrap();
    assert_eq!(socket::send(&wire, &nonsense, None), Ok(true));
    let error = pair.b.map(pair.to_a, &make_key(owner, 7, 0, 10)).unwrap_err();
    assert!(matches!(error, MapError::Device(DeviceError::Failed { .. })), "{error}");
    // Of a kind that nobody has here.
    let other = device_packet(1, 0, 8, 4096, b"GCM1").unwrap();
    assert_eq!(socket::send(&wire, &other, None), Ok(true));
    let error = pair.b.map(pair.to_a, &make_key(owner, 8, 0, 10)).unwrap_err();
    assert!(matches!(error, MapError::Unavailable { .. }), "{error}");
    assert!(device_packet(3, 0, 9, 1, &[0; 256]).is_none(), "longer than a packet");
    assert_eq!(pair.b.links[0].state, LinkState::Up, "a peer may be wrong about its own memory");
    // A buffer that is shorter than it was said to be.
    let Export { bytes, mut descriptors } = ours.export(memory).unwrap();
    let long = device_packet(3, 1, 9, 8192, &bytes).unwrap();
    assert_eq!(socket::send(&wire, &long, descriptors.pop().as_ref()), Ok(true));
    let error = pair.b.map(pair.to_a, &make_key(owner, 9, 5000, 10)).unwrap_err();
    assert!(matches!(error, MapError::Link(LinkError::Corrupt { .. })), "{error}");
    assert_eq!(theirs.imported(), 0);
    assert!(matches!(pair.b.links[0].state, LinkState::Dying(_)), "but not contradict itself");
}

/// A device that takes no host memory.
fn stubborn(number: u32) -> Arc<impl Device> {
    Arc::new(Wrapped::new(Arc::new(FakeDevice::new(number)), |call| match call {
        Call::Register(_) => Err(DeviceError::Failed {
            device: "stubborn".to_owned(),
            operation: "register",
            reason: "no more".to_owned(),
        }),
        _ => Ok(()),
    }))
}

#[test]
fn a_device_that_refuses_segments_shares_its_memory_all_the_same() {
    let (a, b) = Default.pair();
    let mut pair = Pair::of(a, b);
    let ours = stubborn(0);
    let theirs = stubborn(1);
    for _ in 0..2 {
        let error = attach(&mut pair.a, &ours).unwrap_err();
        assert!(error.to_string().contains("no more"), "{error}");
    }
    assert!(attach(&mut pair.b, &theirs).is_err());
    assert_eq!(pair.slot(1000).region().space(), Space::Host, "to be staged");
    let memory = ours.allocate(64).unwrap();
    let key = key(&mut pair, memory).unwrap();
    assert_eq!(pair.b.map(pair.to_a, &key).unwrap().region().space(), theirs.space());
}

#[test]
fn registered_slots_say_so_and_later_links_and_mappings_are_registered_too() {
    let (a, b) = Default.pair();
    let (mut pair, ours, theirs) = equipped(a, b);
    for len in [10, 1000, 60_000] {
        assert_eq!(pair.slot(len).region().space(), Space::Pinned);
    }
    let before = (ours.registered().len(), theirs.registered().len());
    let allocation = pair.a.allocate(10_000).unwrap();
    assert_eq!(allocation.region().space(), Space::Pinned);
    let key = pair.a.key(pair.to_b, allocation.lease()).unwrap();
    let mapping = pair.b.map(pair.to_a, &key).unwrap();
    assert_eq!(mapping.region().space(), Space::Pinned);
    let now = (ours.registered().len(), theirs.registered().len());
    assert_eq!(now, (before.0 + 1, before.1 + 1));
    drop((allocation, mapping));
    until("the notice", || {
        poll(&mut pair);
        (ours.registered().len(), theirs.registered().len()) == before
    });
    let late = Sm::new(SmConfig::new(pair.a.config.job.clone(), "late")).unwrap();
    pair.a.connect(&late.address()).unwrap();
    assert!(ours.registered().len() > before.0, "a link that is made later");
    drop((pair, late));
    assert!(ours.registered().is_empty() && theirs.registered().is_empty());
}
