//! The staged protocols, where something goes wrong: engines that fail at either end, a peer that dies
//! at every stage, a peer that lies. Requests end, nothing is overrun, and staging memory is back.

use crate::common::lab::{FRAGMENT, Lab, config, layout};
use crate::common::rogue::{
    GET, HOST, PUT, Pair, free, offer, open, ready, reply_of, ring, serial_of,
};
use crate::common::rogue::{short, words};
use crate::common::{Buffer, Job};
use gapless_bml::Rank;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, RemoteKey};
use gapless_dtype::testkit::Rng;
use gapless_engine::testkit::FakeEngine;
use gapless_engine::{Engine, HostEngine};
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Config, PmlError, Protocol, RequestId, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many of a message's fragments there are here.
const FRAGMENTS: u64 = 9;
const SIZE: u64 = FRAGMENTS * FRAGMENT as u64 - 11;

#[test]
fn an_engine_that_fails_midway_ends_both_requests() {
    for protocol in Protocol::STAGED {
        for pieces in 0..8 {
            for broken in [0, 1] {
                let what = format!("{protocol}: rank {broken} fails after {pieces}");
                let mut lab = Lab::new(config(protocol, 3), 2);
                lab.break_after(broken, pieces);
                let from = Buffer::source_in(&layout(SIZE, true), 1, 1, lab.home(true));
                let to = Buffer::target_in(&layout(SIZE, true), 1, lab.home(true));
                let send = lab.job.isend(0, &from, 1, 0);
                let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
                let (sent, received) = (lab.job.finish(0, send), lab.job.finish(1, recv));
                if broken == 0 {
                    assert!(matches!(sent, Err(PmlError::Engine(_))), "{what}: {sent:?}");
                    assert_eq!(received, Err(PmlError::SenderFailed { rank: 0 }), "{what}");
                } else {
                    assert!(matches!(received, Err(PmlError::Engine(_))), "{what}: {received:?}");
                    assert_eq!(sent.map(|status| status.protocol), Ok(protocol), "{what}");
                }
                lab.assert_idle(&what);
                // The link is as good as before.
                lab.break_after(broken, -1);
                let to = Buffer::target_in(&layout(SIZE, true), 1, lab.home(true));
                assert_eq!(lab.carry(&from, &to, &what).protocol, protocol, "{what}");
            }
        }
    }
}

#[test]
fn a_copy_that_cannot_be_begun_ends_both_requests() {
    // Where there are gaps, a kernel has been launched by then.
    for (protocol, broken) in [
        (Protocol::StagedPutCopy, 0),
        (Protocol::StagedGetCopy, 1),
        (Protocol::CopyInOut, 0),
        (Protocol::CopyInOut, 1),
    ] {
        let mut lab = Lab::new(config(protocol, 3), 2);
        let non_member = Arc::new(FakeDevice::new(3));
        // Same space, other memory: it refuses all of ours.
        let engine = FakeEngine { attaches: false, ..FakeEngine::new(&lab.device, 2) };
        let mut rail = |_, hub: &Hub| Box::new(Loopback::new(hub)) as Box<dyn Btl>;
        let engines: [Arc<dyn Engine>; 2] = [Arc::new(HostEngine), Arc::new(engine)];
        lab.job = Job::with_engines(2, config(protocol, 3), &mut rail, &engines);
        for rank in 0..2 {
            let device =
                if rank == broken { Arc::clone(&non_member) } else { Arc::clone(&lab.device) };
            lab.job.pml(rank).bml_mut().attach(&(device as Arc<dyn Device>)).unwrap();
        }
        let from = Buffer::source_in(&layout(SIZE, true), 1, 1, lab.home(true));
        let to = Buffer::target_in(&layout(SIZE, true), 1, lab.home(true));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        let (sent, received) = (lab.job.finish(0, send), lab.job.finish(1, recv));
        match broken {
            0 => assert!(sent.is_err() && received.is_err(), "{protocol}: {sent:?}, {received:?}"),
            _ => assert!(received.is_err(), "{protocol}: {received:?}"),
        }
        lab.assert_idle(protocol.name());
    }
}

#[test]
fn a_peer_that_dies_at_any_stage() {
    for protocol in Protocol::STAGED {
        for share_device_buffers in [false, true] {
            if share_device_buffers && protocol != Protocol::StagedPut {
                continue;
            }
            for steps in 0..70 {
                for dead in [0u32, 1] {
                    let what = format!("{protocol}: {dead} dies after {steps} steps");
                    let config = Config { share_device_buffers, ..config(protocol, 3) };
                    let mut lab = Lab::new(config, 3);
                    let from = Buffer::source_in(&layout(SIZE, true), 1, 1, lab.home(true));
                    let gaps = !share_device_buffers;
                    let to = Buffer::target_in(&layout(SIZE, gaps), 1, lab.home(true));
                    let ids = [
                        lab.job.isend(0, &from, 1, 0),
                        lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any),
                    ];
                    for step in 0..steps {
                        lab.job.pml(step % 2).progress();
                    }
                    lab.job.kill(dead);
                    let alive = 1 - dead;
                    match lab.job.finish(alive, ids[alive as usize]) {
                        Ok(_) if alive == 1 => to.assert_received(&from.packed(), &what),
                        Ok(_) => {}
                        Err(PmlError::PeerLost { rank, .. }) => assert_eq!(rank, dead, "{what}"),
                        Err(error) => panic!("{what}: {error}"),
                    }
                    lab.engines[dead as usize].under_way.store(0, Ordering::Relaxed);
                    lab.assert_idle(&what);
                }
            }
        }
    }
}

#[test]
fn a_sender_that_lies_is_lost_and_overruns_nothing() {
    type Lie = fn(u64) -> Vec<Vec<u8>>;
    let lies: [(&str, Protocol, Lie); 9] = [
        ("no such fragment", Protocol::StagedPut, |reply| vec![ready(reply, FRAGMENTS)]),
        ("not its turn", Protocol::StagedPut, |reply| vec![ready(reply, 3)]),
        ("a huge one", Protocol::StagedPut, |reply| vec![ready(reply, u64::MAX)]),
        ("twice", Protocol::StagedPut, |reply| vec![ready(reply, 2), ready(reply, 2)]),
        ("refused late", Protocol::StagedPut, |reply| vec![ready(reply, 1), short(14, 1, reply)]),
        ("a ring for a put", Protocol::StagedPut, |reply| {
            vec![ring(reply, 3, &RemoteKey::new(&[1; 40]).unwrap())]
        }),
        ("ready before the ring", Protocol::StagedGet, |reply| vec![ready(reply, 0)]),
        ("an end before the ring", Protocol::CopyInOut, |reply| vec![short(8, 0, reply)]),
        ("data for a staged one", Protocol::StagedGet, |reply| vec![words(4, reply, 0)]),
    ];
    for (what, protocol, lie) in lies {
        let mut pair = Pair::new(protocol);
        let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
        let recv = pair.recv(&to);
        pair.inject(&offer(SIZE));
        let reply = reply_of(&pair.heard(10));
        for message in lie(reply) {
            pair.inject(&message);
        }
        pair.assert_lost(recv, what);
        assert!(pair.inbox.1, "{what}: the sender was not told");
    }
}

#[test]
fn a_buffer_that_a_lost_peer_may_still_write_is_not_given_back() {
    let mut pair = Pair::new(Protocol::StagedPut);
    pair.pml.config_mut().share_device_buffers = true;
    let to = Buffer::target_in(&layout(SIZE, false), 1, pair.home());
    let recv = pair.recv(&to);
    pair.inject(&offer(SIZE));
    let open = pair.heard(10);
    assert_eq!(open[3], 1, "its own buffer: {open:?}");
    let key = RemoteKey::new(&open[40..]).unwrap();
    let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
    let mapping = mapped.map_for(peer, &key, pair.device.space()).unwrap();
    assert_eq!(mapping.region().len(), SIZE);
    pair.inject(&ready(reply_of(&open), u64::MAX));
    for _ in 0..10 {
        pair.turn();
        assert_eq!(pair.pml.test(recv), Ok(None), "the peer has it mapped");
        assert!(pair.pml.is_busy());
    }
    drop(mapping);
    pair.assert_lost(recv, "it has let go");
}

#[test]
fn a_ring_that_is_too_short_or_too_deep_is_no_ring() {
    for (what, depth, len) in [("short", 3, 2999), ("deep", 4, 9000), ("empty", 1, 1)] {
        let mut pair = Pair::new(Protocol::StagedGet);
        let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
        let recv = pair.recv(&to);
        pair.inject(&offer(SIZE));
        let reply = reply_of(&pair.heard(10));
        let key = pair.rogue_key(len);
        pair.inject(&ring(reply, depth, &key));
        pair.assert_lost(recv, what);
        to.assert_received(&[], what);
    }
    // One that cannot be mapped is no lie: the receiver asks for the data by another protocol.
    let mut pair = Pair::new(Protocol::StagedGet);
    let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
    pair.recv(&to);
    pair.inject(&offer(SIZE));
    let reply = reply_of(&pair.heard(10));
    pair.inject(&ring(reply, 3, &RemoteKey::new(&[1; 40]).unwrap()));
    let next = pair.inbox.0.pop().expect("another decision");
    assert!(next[0] == 3 || (next[0] == 10 && next[2] != GET), "{next:?}");
}

#[test]
fn a_way_that_a_peer_cannot_go_is_not_tried_again() {
    let mut pair = Pair::new(Protocol::StagedPut);
    let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
    for (sequence, why) in [(0u32, 1), (1, 2), (2, 0)] {
        pair.recv(&to);
        let mut offer = offer(SIZE);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        pair.inject(&offer);
        let puts = |message: &Vec<u8>| message[0] == 10 && matches!(message[2], 6 | 7);
        let tried = pair.inbox.0.iter().any(puts);
        assert_eq!(tried, why != 0, "refusal {why}");
        if tried {
            let reply = reply_of(&pair.heard(10));
            pair.inject(&short(14, why, reply));
            let next = pair.inbox.0.pop().expect("another decision");
            assert!(!puts(&next), "it was refused: {next:?}");
            assert_eq!(pair.pml.staging_bytes().1, 0);
        }
        pair.inbox.0.clear();
    }
    assert!(!pair.inbox.1);
}

#[test]
fn keys_that_never_come_are_not_asked_for_for_ever() {
    let mut pair = Pair::new(Protocol::StagedGet);
    let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
    for sequence in 0u32..12 {
        pair.recv(&to);
        let mut offer = offer(SIZE);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        pair.inject(&offer);
        let gets = |message: &Vec<u8>| message[0] == 10 && matches!(message[2], 8 | 9);
        let tried = pair.inbox.0.iter().any(gets);
        assert_eq!(tried, sequence < 8, "message {sequence}");
        if tried {
            let reply = reply_of(&pair.heard(10));
            pair.inject(&short(14, 3, reply));
        }
        pair.inbox.0.clear();
    }
    assert!(!pair.inbox.1);
}

#[test]
fn a_receiver_that_lies_is_lost_and_overruns_nothing() {
    type Lie = fn(u64, &RemoteKey) -> Vec<Vec<u8>>;
    let lies: [(&str, Lie); 12] = [
        ("too much", |serial, key| vec![open(PUT, serial, SIZE + 1, 3, Some(key))]),
        ("a short key", |serial, key| vec![open(PUT, serial, SIZE, 4, Some(key))]),
        ("too deep", |serial, key| vec![open(PUT, serial, SIZE, 65, Some(key))]),
        ("no key", |serial, _| vec![open(PUT, serial, SIZE, 3, None)]),
        ("a key to get", |serial, key| vec![open(GET, serial, SIZE, 3, Some(key))]),
        ("no such protocol", |serial, _| vec![open(3, serial, SIZE, 3, None)]),
        ("freed unasked", |serial, _| vec![free(serial, 1)]),
        ("freed twice", |serial, key| {
            vec![open(PUT, serial, SIZE, 3, Some(key)), free(serial, 4), free(serial, 4)]
        }),
        ("freed too far", |serial, _| vec![open(GET, serial, SIZE, 3, None), free(serial, 4)]),
        ("freed nothing", |serial, _| vec![open(HOST, serial, SIZE, 3, None), free(serial, 0)]),
        ("ended early", |serial, _| {
            vec![open(GET, serial, SIZE, 3, None), free(serial, 3), short(5, 8, serial)]
        }),
        ("opened twice", |serial, key| {
            vec![open(PUT, serial, SIZE, 3, Some(key)), open(PUT, serial, SIZE, 3, Some(key))]
        }),
    ];
    for (what, lie) in lies {
        let mut pair = Pair::new(Protocol::StagedPut);
        let from = Buffer::source_in(&layout(SIZE, true), 1, 1, pair.home());
        let send = pair.send(&from);
        pair.turn();
        let serial = serial_of(&pair.heard(2));
        let key = pair.rogue_key(3 * u64::from(FRAGMENT));
        for message in lie(serial, &key) {
            pair.inject(&message);
        }
        pair.assert_lost(send, what);
        assert!(pair.inbox.1, "{what}: the receiver was not told");
        assert_eq!(pair.pml.staging_bytes().1, 0, "{what}");
    }
}

#[test]
fn random_words_on_staged_messages_never_panic() {
    let seed = 0x5EED;
    let mut rng = Rng::new(seed);
    for round in 0..400 {
        let protocol = *rng.pick(&Protocol::STAGED);
        let mut pair = Pair::new(protocol);
        let keys = [pair.rogue_key(3000), pair.rogue_key(64)];
        let from = Buffer::source_in(&layout(SIZE, rng.chance(50)), 1, 1, pair.home());
        let to = Buffer::target_in(&layout(SIZE, rng.chance(50)), 1, pair.home());
        let requests = [pair.send(&from), pair.recv(&to)];
        pair.turn();
        if rng.chance(80) {
            pair.inject(&offer(SIZE));
        }
        let serial = serial_of(&pair.heard(2));
        let opened = pair.inbox.0.iter().find(|message| message[0] == 10);
        let reply = opened.map_or(1, |open| reply_of(open));
        for _ in 0..rng.below(12) {
            let number = *rng.pick(&[0, 1, 2, 3, 4, 5, FRAGMENTS, u64::MAX]);
            let key = rng.pick(&keys);
            let depth = *rng.pick(&[1, 2, 3, 64]);
            let code = *rng.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]);
            let mut message = match rng.below(8) {
                0 => open(code, serial, SIZE, depth, rng.chance(60).then_some(key)),
                1 => ring(reply, depth, key),
                2 | 3 => ready(reply, number),
                4 | 5 => free(serial, number),
                6 => short(14, code, reply),
                _ => short(*rng.pick(&[5, 8]), code, if rng.chance(50) { serial } else { reply }),
            };
            if rng.chance(5) {
                let at = rng.index(message.len());
                message[at] ^= 1 << rng.below(8);
            }
            pair.inject(&message);
        }
        // What goes on, ends with the peer.
        drop(pair.rogue);
        let mut left: Vec<RequestId> = requests.to_vec();
        for _ in 0..1000 {
            pair.pml.progress();
            left.retain(|id| matches!(pair.pml.test(*id), Ok(None)));
        }
        assert!(left.is_empty(), "seed {seed}, round {round}, {protocol}: {left:?}");
        assert_eq!(pair.pml.staging_bytes().1, 0, "seed {seed}, round {round}, {protocol}");
    }
}

#[test]
fn a_ring_that_is_not_wanted_goes_back() {
    let mut pair = Pair::new(Protocol::StagedGet);
    let from = Buffer::source_in(&layout(SIZE, true), 1, 1, pair.home());
    let send = pair.send(&from);
    pair.turn();
    let serial = serial_of(&pair.heard(2));
    for protocol in [GET, HOST, GET] {
        pair.inject(&open(protocol, serial, SIZE, 3, None));
        // Through host memory a kernel packs into memory of the device first.
        let slabs = if protocol == HOST { 2 } else { 1 };
        assert_eq!(pair.pml.staging_bytes().1, slabs << 21, "{protocol}");
        pair.heard(11);
    }
    // Nothing of it at all.
    pair.inject(&short(5, 0, serial));
    assert!(pair.pml.test(send).unwrap().is_some());
    assert_eq!(pair.pml.staging_bytes().1, 0);
    // A key that does not map is refused, and the offer stands.
    let send = pair.send(&from);
    pair.turn();
    let serial = serial_of(&pair.heard(2));
    let key = RemoteKey::new(&[9; 30]).unwrap();
    pair.inject(&open(PUT, serial, SIZE, 3, Some(&key)));
    assert_eq!(pair.heard(14)[8..16], 55u64.to_le_bytes());
    assert_eq!(pair.pml.test(send), Ok(None));
    pair.inject(&short(5, 0, serial));
    assert!(pair.pml.test(send).unwrap().is_some());
}

#[test]
fn a_staged_sender_writes_nothing_beyond_its_places() {
    // The rogue grants a ring in the middle of memory of its own, and looks what becomes of the rest.
    let mut pair = Pair::new(Protocol::StagedPut);
    let from = Buffer::source_in(&layout(SIZE, true), 1, 1, pair.home());
    let send = pair.send(&from);
    pair.turn();
    let serial = serial_of(&pair.heard(2));
    let around = 512;
    let len = 3 * u64::from(FRAGMENT);
    let to = Buffer::target_in(&layout(len + 2 * around, false), 1, pair.home());
    let inner = to.lease(around, len);
    let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
    let key = mapped.key(peer, &inner).unwrap();
    pair.inject(&open(PUT, serial, SIZE, 3, Some(&key)));
    for limit in 4..=FRAGMENTS {
        pair.inject(&free(serial, limit));
    }
    pair.turn();
    assert_eq!(pair.pml.test(send).unwrap().map(|status| status.bytes), Some(SIZE));
    let ready = pair.inbox.0.iter().filter(|message| message[0] == 12).count();
    assert_eq!(ready as u64, FRAGMENTS);
    let memory = to.bytes();
    let (before, rest) = memory.split_at(usize::try_from(around).unwrap());
    let (ring, after) = rest.split_at(usize::try_from(len).unwrap());
    let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == crate::common::CANARY);
    assert!(untouched(before) && untouched(after));
    // The last lap: 6, 7, 8.
    let packed = from.packed();
    let last = &packed[6 * FRAGMENT as usize..];
    assert_eq!(&ring[..last.len()], last);
}
