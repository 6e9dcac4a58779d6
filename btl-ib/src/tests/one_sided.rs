//! One-sided operations: the ways to local memory, refusals, and keys that ended.

use super::{End, Patience, config, expect_health, joined};
use crate::IbConfig;
use crate::verbs::memory::{COUNTS, REFUSES};
use gapless_btl::{Access, Extent, Rdma, RdmaError, RemoteKey, Token};
use gapless_mem::{Device, HostDevice, Lasting, Lease, Region};
use std::sync::Arc;
use std::time::Duration;

/// Memory that is never freed, and that only its test and operations it starts touch.
fn ground(len: u64) -> Region {
    HostDevice::new().allocate(len).unwrap()
}

fn fill(region: &Region, seed: u64) {
    let bytes: Vec<u8> =
        (0..region.len()).map(|i| ((i * 7 + seed) >> 3).to_le_bytes()[0]).collect();
    // SAFETY: `ground` is never freed, and no operation is under way when tests fill it.
    unsafe { gapless_mem::write(region, 0, &bytes) }.unwrap();
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len()).unwrap()];
    // SAFETY: `ground` is never freed, and tests read it when operations have ended.
    unsafe { gapless_mem::read(region, 0, &mut bytes) }.unwrap();
    bytes
}

fn register(end: &mut End, region: Region, access: Access) -> Result<RemoteKey, RdmaError> {
    // SAFETY: `ground` is never freed, and no reference covers it.
    unsafe { end.ib.register(region, access) }
}

/// One operation of the first end on all of the key's memory, to its end.
fn operate([a, b]: &mut [End; 2], put: bool, local: &[Region], key: &RemoteKey) {
    let (before, patience) = (a.completed.len(), Patience::new());
    let remote = [Extent { offset: 0, len: local.iter().map(Region::len).sum() }];
    loop {
        let (peer, done) = (a.peer, Token(5));
        let begun = if put {
            // SAFETY: `ground` is never freed, and nothing else touches it until this function has seen the end.
            unsafe { a.ib.put(peer, local, key, &remote, done) }
        } else {
            // SAFETY: as above.
            unsafe { a.ib.get(peer, local, key, &remote, done) }
        };
        match begun {
            Ok(()) => break,
            Err(RdmaError::Full) => {
                a.poll();
                b.poll();
            }
            Err(error) => panic!("{error}"),
        }
        patience.tick("room");
    }
    while a.completed.len() == before {
        a.poll();
        b.poll();
        patience.tick("the end of an operation");
    }
    assert_eq!(a.completed.last(), Some(&Ok(())));
}

/// Long memory is registered for the operation, short memory staged, and what is registered used as it is; if no more may
/// be registered, long memory is staged, too. The bytes are the same.
#[test]
fn every_way_to_local_memory_moves_the_same_bytes() {
    const LEN: u64 = 3 << 20;
    // A busy machine that emulates another takes long over so many bytes.
    let patient = |end| IbConfig { notice: Duration::from_secs(30), ..config(end) };
    let mut few = patient(0);
    few.registrations_max = 1;
    for (config_a, refused) in [(patient(0), false), (few, true)] {
        let mut ends = joined(config_a, patient(1));
        let far = ground(LEN);
        let key = register(&mut ends[1], far, Access::Write).unwrap();
        let own = ground(LEN);
        let own_key = register(&mut ends[0], own, Access::Write).unwrap();
        let mut seen = ends[0].ib.one_sided.ways;
        for (round, (local, way)) in [
            (own, 0),
            (own.sub(5, 4097).unwrap(), 0),
            (ground(LEN), if refused { 2 } else { 1 }),
            (ground(40_001), 2),
        ]
        .into_iter()
        .enumerate()
        {
            for put in [false, true] {
                let (from, to) = if put { (local, far) } else { (far, local) };
                let seed = round as u64 * 2 + u64::from(put);
                fill(&to, 99);
                fill(&from, seed);
                operate(&mut ends, put, &[local], &key);
                let len = usize::try_from(local.len()).unwrap();
                assert!(bytes(&from)[..len] == bytes(&to)[..len], "round {round}, put {put}");
                let ways = ends[0].ib.one_sided.ways;
                seen[way] += local.len();
                assert_eq!(ways, seen, "round {round}, refused {refused}");
            }
        }
        ends[0].ib.deregister(&own_key);
        assert_eq!(ends[0].ib.one_sided.in_use(), 0);
        expect_health(&mut ends);
    }
}

/// The system refuses to register: peers get no key, and long memory of this end is staged. The bytes are the same.
#[test]
fn where_the_system_registers_nothing_memory_is_staged() {
    const LEN: u64 = 600_000;
    let mut ends = joined(config(0), config(1));
    let far = ground(LEN);
    let key = register(&mut ends[1], far, Access::Write).unwrap();
    REFUSES.set(true);
    let refused = register(&mut ends[1], ground(LEN), Access::Read);
    let Err(RdmaError::Unavailable { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("ibv_reg_mr"), "{reason}");
    for put in [false, true] {
        let local = ground(LEN);
        let (from, to) = if put { (local, far) } else { (far, local) };
        fill(&to, 99);
        fill(&from, 11 + u64::from(put));
        operate(&mut ends, put, &[local], &key);
        assert!(bytes(&from) == bytes(&to), "put {put}");
    }
    assert_eq!(ends[0].ib.one_sided.ways, [0, 0, 2 * LEN]);
    assert_eq!(ends[0].ib.one_sided.in_use(), 0);
    REFUSES.set(false);
    register(&mut ends[1], ground(LEN), Access::Read).unwrap();
    expect_health(&mut ends);
}

/// Registered pieces of unequal lengths: Soft-RoCE's provider takes all of a list to be as long as the first.
#[test]
fn pieces_of_all_lengths_are_moved_whole() {
    let mut ends = joined(config(0), config(1));
    let far = ground(60_000);
    let key = register(&mut ends[1], far, Access::Write).unwrap();
    let own = ground(70_000);
    register(&mut ends[0], own, Access::Write).unwrap();
    let pieces: Vec<Region> =
        [(0, 100), (1_000, 40_000), (50_000, 7), (50_007, 7), (60_000, 3_000)]
            .map(|(at, len)| own.sub(at, len).unwrap())
            .to_vec();
    let listed = || -> Vec<u8> { pieces.iter().flat_map(bytes).collect() };
    let len = listed().len();
    for put in [true, false] {
        fill(&own, 5);
        fill(&far, 6);
        let right = if put { listed() } else { bytes(&far)[..len].to_vec() };
        operate(&mut ends, put, &pieces, &key);
        let got = if put { bytes(&far)[..len].to_vec() } else { listed() };
        assert!(got == right, "put {put}");
    }
    expect_health(&mut ends);
}

/// A region too many, or too long, is refused, and there is room again when one is given back.
#[test]
fn registrations_are_bounded() {
    let mut few = config(1);
    (few.registrations_max, few.registered_bytes_max) = (2, 10_000);
    let mut ends = joined(config(0), few);
    let regions = [ground(4096), ground(4096), ground(1), ground(8192)];
    let owner = &mut ends[1];
    let keys = [0, 1].map(|i| register(owner, regions[i], Access::Write).unwrap());
    let refused = register(owner, regions[2], Access::Read);
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
    owner.ib.deregister(&keys[0]);
    let refused = register(owner, regions[3], Access::Read);
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
    register(owner, regions[2], Access::Read).unwrap();
    // What peers may not reach any more is not reached: the adapter ends the link.
    fill(&regions[0], 1);
    let local = ground(4096);
    fill(&local, 77);
    let before = bytes(&regions[0]);
    let [a, b] = &mut ends;
    let remote = [Extent { offset: 0, len: 4096 }];
    // SAFETY: `ground` is never freed, and nothing else touches it.
    unsafe { a.ib.put(a.peer, &[local], &keys[0], &remote, Token(6)) }.unwrap();
    let patience = Patience::new();
    while a.lost.is_none() || b.lost.is_none() {
        a.poll();
        b.poll();
        patience.tick("the loss");
    }
    assert_eq!(bytes(&regions[0]), before);
    let reason = a.lost.clone().unwrap().to_string();
    assert!(reason.contains("not registered any more"), "{reason}");
    assert_eq!(a.completed.len(), 1);
    assert!(a.completed[0].is_err());
}

/// What is registered for operations under way counts as well.
#[test]
fn registrations_for_operations_are_bounded() {
    const LEN: u64 = 1 << 20;
    let mut few = config(0);
    few.registrations_max = 1;
    let mut ends = joined(few, config(1));
    let key = register(&mut ends[1], ground(LEN), Access::Write).unwrap();
    let [a, b] = &mut ends;
    let remote = [Extent { offset: 0, len: LEN }];
    for (in_use, ways) in [(1, [0, LEN, 0]), (1, [0, LEN, LEN])] {
        // SAFETY: `ground` is never freed, and nothing else touches it.
        unsafe { a.ib.put(a.peer, &[ground(LEN)], &key, &remote, Token(6)) }.unwrap();
        assert_eq!((a.ib.one_sided.in_use(), a.ib.one_sided.ways), (in_use, ways));
    }
    // The one region is taken.
    let refused = register(a, ground(1), Access::Read);
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
    let patience = Patience::new();
    while a.completed.len() < 2 {
        a.poll();
        b.poll();
        patience.tick("the ends");
    }
    assert_eq!(a.ib.one_sided.in_use(), 0);
    register(a, ground(1), Access::Read).unwrap();
    expect_health(&mut ends);
}

/// Memory is taken back while operations work through it, of a link that ends meanwhile or is too slow: the process goes
/// on.
#[test]
fn memory_in_use_is_taken_back() {
    const LEN: u64 = 4 << 20;
    for fault in [false, true] {
        let mut hasty = config(0);
        hasty.notice = std::time::Duration::from_millis(if fault { 4000 } else { 500 });
        let mut ends = joined(hasty, config(1));
        let key = register(&mut ends[1], ground(LEN), Access::Write).unwrap();
        let own = ground(LEN);
        let own_key = register(&mut ends[0], own, Access::Read).unwrap();
        let [a, b] = &mut ends;
        let remote = [Extent { offset: 0, len: LEN }];
        if fault {
            b.ib.deregister(&key);
        }
        let mut begun = 0;
        for _ in 0..20 {
            // SAFETY: `ground` is never freed, and nothing else touches it.
            match unsafe { a.ib.put(a.peer, &[own], &key, &remote, Token(6)) } {
                Ok(()) => begun += 1,
                Err(error) => panic!("{error}"),
            }
        }
        a.ib.deregister(&own_key);
        a.poll();
        assert_eq!(a.completed.len(), begun);
        let failed = a.completed.iter().any(Result::is_err);
        assert_eq!(failed, a.lost.is_some());
        assert!(failed || !fault, "the peer's memory was taken back before");
    }
}

/// Memory of `World::alloc`, which says when it is freed how many registrations had ended by then.
struct Long(HostDevice, Region, Arc<std::sync::Mutex<u32>>);

impl Drop for Long {
    fn drop(&mut self) {
        *self.2.lock().unwrap() = COUNTS.get().1;
        // SAFETY: `long` allocated it with this device; leases, and so registrations, keep this.
        unsafe { self.0.free(self.1) }.unwrap();
    }
}

fn long(len: u64) -> (Arc<Lasting>, Arc<std::sync::Mutex<u32>>) {
    let (device, ended) = (HostDevice::new(), Arc::default());
    let region = device.allocate(len).unwrap();
    let owner = Arc::new(Long(device, region, Arc::clone(&ended)));
    // SAFETY: the owner frees it when it is dropped.
    (Lasting::new(unsafe { Lease::new(region, owner) }), ended)
}

/// Two messages out of one allocation, and two into one, are one registration at either end, which ends before the memory
/// goes.
#[test]
fn memory_that_lives_long_is_registered_once() {
    const LEN: u64 = 600_000;
    let mut ends = joined(config(0), config(1));
    let ((far, far_ended), (own, own_ended)) = (long(LEN), long(LEN));
    ends[1].ib.remember(&far);
    ends[0].ib.remember(&own);
    let made = COUNTS.get().0;
    for (round, part) in [(0, LEN), (1, LEN), (2, 400_000), (3, 5)] {
        let there = far.region().sub(LEN - part, part).unwrap();
        let here = own.region().sub(0, part).unwrap();
        fill(&far.region(), round);
        fill(&own.region(), 99);
        let key = register(&mut ends[1], there, Access::Read).unwrap();
        operate(&mut ends, false, &[here], &key);
        assert!(bytes(&here) == bytes(&there), "round {round}");
        ends[1].ib.deregister(&key);
    }
    assert_eq!(COUNTS.get().0 - made, 2, "one at either end");
    assert_eq!(ends[0].ib.one_sided.ways, [LEN + LEN + 400_005, 0, 0]);
    // For writing it is registered by itself, and a part is not enough to have the whole registered.
    let key = register(&mut ends[1], far.region(), Access::Write).unwrap();
    ends[1].ib.deregister(&key);
    let (other, _) = long(4 * LEN);
    ends[0].ib.remember(&other);
    let key = register(&mut ends[0], other.region().sub(5, LEN).unwrap(), Access::Read).unwrap();
    ends[0].ib.deregister(&key);
    assert_eq!(COUNTS.get().0 - made, 4);
    for (memory, ended) in [(far, far_ended), (own, own_ended)] {
        let before = COUNTS.get().1;
        let lease = memory.lease();
        drop(memory);
        assert_eq!(COUNTS.get().1, before, "somebody uses it");
        drop(lease);
        assert_eq!((*ended.lock().unwrap(), COUNTS.get().1), (before + 1, before + 1));
    }
    expect_health(&mut ends);
}

/// Memory is registered for each message if it is refused as a whole; the least used is let go if there are too many, but
/// not while a peer has a key.
#[test]
fn memory_that_lives_long_is_bounded_and_may_be_refused() {
    const LEN: u64 = 300_000;
    let mut few = config(1);
    few.registrations_max = 2;
    let mut ends = joined(config(0), few);
    let all: Vec<_> = (0..3).map(|_| long(LEN).0).collect();
    let local = ground(LEN);
    REFUSES.set(true);
    ends[1].ib.remember(&all[0]);
    assert!(register(&mut ends[1], all[0].region(), Access::Read).is_err());
    REFUSES.set(false);
    let made = COUNTS.get().0;
    for round in 1..3 {
        fill(&all[0].region(), u64::from(round));
        let key = register(&mut ends[1], all[0].region(), Access::Read).unwrap();
        operate(&mut ends, false, &[local], &key);
        assert!(bytes(&local) == bytes(&all[0].region()), "round {round}");
        ends[1].ib.deregister(&key);
        // The reader registers what it reads into, too.
        assert_eq!(COUNTS.get().0 - made, 2 * round, "for each message");
    }
    // Two others find room beside it only when one of them has gone.
    all.iter().for_each(|memory| ends[1].ib.remember(memory));
    let key = register(&mut ends[1], all[0].region(), Access::Read).unwrap();
    for round in 3..6 {
        for memory in &all[1..] {
            fill(&memory.region(), round);
            let key = register(&mut ends[1], memory.region(), Access::Read).unwrap();
            operate(&mut ends, false, &[local], &key);
            assert!(bytes(&local) == bytes(&memory.region()), "round {round}");
            ends[1].ib.deregister(&key);
        }
    }
    operate(&mut ends, false, &[local], &key);
    assert!(bytes(&local) == bytes(&all[0].region()), "a peer had its key");
    let more = register(&mut ends[1], all[1].region(), Access::Read).unwrap();
    let refused = register(&mut ends[1], all[2].region(), Access::Read);
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
    for key in [key, more] {
        ends[1].ib.deregister(&key);
    }
    register(&mut ends[1], ground(10), Access::Write).unwrap();
    expect_health(&mut ends);
}
