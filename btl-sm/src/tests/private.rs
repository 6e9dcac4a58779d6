//! Memory that is taken back from peers that go on writing it.

use super::{Default, Pair};
use gapless_btl::{Allocation, Btl, Mapped, Mapping};
use gapless_btl_testkit::conformance::Fixture;
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn write(region: Region, at: usize, byte: u8) {
    // SAFETY: the memory is an allocation's or a mapping's of this test, and no reference covers it.
    unsafe { gapless_mem::write(&region, at as u64, &[byte]) }.unwrap();
}

fn read(region: Region, at: usize) -> u8 {
    let mut byte = [0];
    // SAFETY: as in `write`.
    unsafe { gapless_mem::read(&region, at as u64, &mut byte) }.unwrap();
    byte[0]
}

/// An allocation of five pages, mapped by the peer.
fn shared(pair: &mut Pair) -> (Allocation, Mapping, usize) {
    let page = rustix::param::page_size();
    let memory = pair.a.allocate(5 * page as u64).unwrap();
    let key = pair.a.key(pair.to_b, memory.lease()).unwrap();
    let mapping = pair.b.map(pair.to_a, &key).unwrap();
    (memory, mapping, page)
}

#[test]
fn a_peer_that_writes_on_is_not_seen_any_more() {
    let (a, b) = Default.pair();
    let mut pair = Pair::of(a, b);
    let device = Arc::new(FakeDevice::new(0));
    pair.a.attach(&(Arc::clone(&device) as Arc<dyn Device>)).unwrap();
    let (memory, mapping, page) = shared(&mut pair);
    let (ours, theirs) = (memory.region(), mapping.region());
    (0..5 * page).for_each(|at| write(theirs, at, 1));
    // From the middle of page 1 to the middle of page 3.
    let part = ours.sub(page as u64 * 3 / 2, page as u64 * 2).unwrap();
    assert!(pair.a.make_private(part));
    assert!(device.alias(ours).is_err(), "no device knows the old pages");
    (0..5 * page).for_each(|at| assert_eq!(read(ours, at), 1, "byte {at} is as it was"));
    (0..5 * page).for_each(|at| write(theirs, at, 2));
    for at in 0..5 * page {
        let alone = (page..4 * page).contains(&at);
        assert_eq!(read(ours, at), if alone { 1 } else { 2 }, "byte {at}");
    }
    write(ours, 2 * page, 3);
    assert_eq!(read(theirs, 2 * page), 2, "and the peer keeps the old pages");
    // What shares a page with it is taken back later, and does not bring the old page back.
    assert!(pair.a.make_private(ours.sub(page as u64, 10).unwrap()));
    assert!(pair.a.make_private(ours));
    assert_eq!((read(ours, page), read(ours, 2 * page), read(ours, 0)), (1, 3, 2));
    (0..5 * page).for_each(|at| write(theirs, at, 4));
    assert_eq!((read(ours, page), read(ours, 2 * page), read(ours, 0)), (1, 3, 2));
    let key = pair.a.key(pair.to_b, memory.lease());
    assert!(key.is_none(), "a peer would map other pages than ours");
    assert!(pair.a.make_private(Region::of(&[0u8; 8])), "other memory is nobody's");
    assert!(!pair.a.make_private(device.allocate(8).unwrap()), "a device's cannot be");
}

#[test]
fn stores_beside_what_is_taken_back_are_not_lost() {
    let (a, b) = Default.pair();
    let mut pair = Pair::of(a, b);
    for round in 0..50 {
        let (memory, _mapping, page) = shared(&mut pair);
        let ours = memory.region();
        let count = ours.sub(page as u64 * 2 + 64, 8).unwrap();
        let (stop, started) = (AtomicBool::new(false), AtomicBool::new(false));
        let address = count.as_ptr().unwrap().expose_provenance();
        let total = std::thread::scope(|threads| {
            let counting = threads.spawn(|| {
                let place = std::ptr::with_exposed_provenance::<AtomicU64>(address);
                // SAFETY: the allocation outlives the scope, the place is aligned, and nothing else touches it.
                let place = unsafe { &*place };
                let mut total = 0;
                while !stop.load(Ordering::Relaxed) {
                    total += 1;
                    place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    started.store(true, Ordering::Relaxed);
                }
                total
            });
            while !started.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert!(pair.a.make_private(ours.sub(page as u64, page as u64 + 64).unwrap()));
            stop.store(true, Ordering::Relaxed);
            counting.join().unwrap()
        });
        let mut bytes = [0; 8];
        // SAFETY: nobody else touches it any more.
        unsafe { gapless_mem::read(&count, 0, &mut bytes) }.unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), total, "round {round}");
    }
}
