//! Messages that two devices hand on to each other, on a fake device whose halves do a step when they are
//! polled: any layout, ring after ring, and whatever may go wrong at either end.

mod common;

use common::engine::FakeEngine;
use common::lab::{config, layout};
use common::relay::{FRAGMENT, LANES, RelayEngine, RelayLab as Lab};
use common::rogue::{Pair, offer, reply_of, serial_of, short};
use common::{Buffer, link};
use gapless_btl::loopback;
use gapless_dtype::testkit::Rng;
use gapless_engine::Engine;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Bounds, Config, PmlError, Protocol, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: u64 = 9 * FRAGMENT - 11;

#[test]
fn any_layout_and_length_is_relayed() {
    let mut lab = Lab::forced();
    let (mut messages, mut total) = (0, 0);
    for size in [1, 7, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, 5 * FRAGMENT, 40 * FRAGMENT + 3] {
        for gaps in 0..4 {
            let what = format!("{size} bytes, gaps {gaps}");
            let (from, to) =
                (lab.source(size, gaps & 1 == 1, size), lab.target(size, gaps & 2 == 2));
            let status = lab.carry(gaps % 2, &from, &to, &what);
            assert_eq!((status.protocol, status.bytes), (Protocol::Relay, size), "{what}");
            messages += 1;
            total += size;
        }
    }
    // Two rings each way, whatever the messages: one stands for the short ones.
    assert_eq!(lab.rings(), [(2, 2), (2, 2)]);
    let [out, back] = [0, 1].map(|rank| lab.job.pml(rank).counters().of(Protocol::Relay));
    for tally in [out, back] {
        assert_eq!((tally.messages, tally.bytes), (messages, total), "{tally:?}");
        assert_eq!(tally.packs + tally.unpacks, messages, "{tally:?}");
        assert!(tally.depth_max >= 2, "{tally:?}");
    }
}

#[test]
fn random_types_are_relayed() {
    let mut lab = Lab::forced();
    let mut rng = Rng::new(0x7e1a);
    for round in 0..60 {
        let (block, count) = (1 + rng.below(40), 1 + rng.below(3000));
        let stride = i64::try_from(block + rng.below(9)).unwrap();
        let stride = if rng.below(4) == 0 { -stride } else { stride };
        let (sparse, dense) = (common::strided(count, block, stride), common::bytes(count * block));
        let sides = [&sparse, &dense];
        let (a, b) = (sides[round % 2], sides[round / 2 % 2]);
        let what = format!("{count} blocks of {block} by {stride}, round {round}");
        let from = Buffer::source_in(a, 1, rng.next_u64(), lab.home());
        let to = Buffer::target_in(b, 1, lab.home());
        assert_eq!(lab.carry(0, &from, &to, &what).protocol, Protocol::Relay, "{what}");
    }
}

#[test]
fn a_ring_serves_a_hundred_messages() {
    let mut lab = Lab::forced();
    for round in 0..100usize {
        let seed = round as u64;
        // Of fewer fragments than lanes, of more, and back.
        let size = [1, 100, FRAGMENT * 2, FRAGMENT * 3 + 1, 50, FRAGMENT * 17][round % 6];
        let (from, to) = (lab.source(size, round % 3 == 0, seed), lab.target(size, true));
        let status = lab.carry(0, &from, &to, &format!("message {round}"));
        assert_eq!(status.protocol, Protocol::Relay, "message {round}");
    }
    assert_eq!(lab.rings(), [(0, 2), (2, 0)]);
    assert_eq!(lab.begun(), [100, 100]);
}

#[test]
fn both_send_many_before_either_waits() {
    let mut lab = Lab::forced();
    let count = 9;
    for round in 0..4 {
        let make = |lab: &Lab, seed| lab.source(SIZE + seed * 5000, true, seed);
        let out: Vec<Vec<Buffer>> = (0..2u64)
            .map(|rank| (0..count).map(|k| make(&lab, round * 100 + rank * 50 + k)).collect())
            .collect();
        let into: Vec<Vec<Buffer>> = out
            .iter()
            .map(|all| all.iter().map(|b| lab.target(b.packed().len() as u64, false)).collect())
            .collect();
        let mut requests = Vec::new();
        for rank in 0..2u32 {
            for (tag, from) in (0..).zip(&out[rank as usize]) {
                requests.push((rank, lab.job.isend(rank, from, 1 - rank, tag)));
            }
        }
        for rank in 0..2u32 {
            for (tag, to) in (0..).zip(&into[rank as usize]) {
                let source = Source::Rank(rank);
                requests.push((1 - rank, lab.job.irecv(1 - rank, to, source, TagSel::Is(tag))));
            }
        }
        for (rank, id) in requests {
            lab.job.finish(rank, id).unwrap();
        }
        for (from, to) in out.iter().flatten().zip(into.iter().flatten()) {
            to.assert_received(&from.packed(), "both ways");
        }
        lab.assert_idle("both ways");
    }
    let relayed = lab.job.pml(0).counters().of(Protocol::Relay).messages;
    assert!(relayed >= 8, "a device relays some at a time: {relayed}");
}

#[test]
fn who_cannot_relay_goes_another_way() {
    // No lanes at either end, no memory for rings, memory without keys; a message to host memory.
    for (what, sabotage) in [
        ("the sender has no lanes", 0),
        ("the receiver has no lanes", 1),
        ("nothing can be begun at the sender", 2),
        ("nothing can be begun at the receiver", 3),
        ("no memory for rings", 4),
        ("nothing can be mapped", 5),
    ] {
        let bounds = Bounds { staging_bytes: 4 << 20, ..Bounds::default() };
        let forced = config(Protocol::Relay, 3);
        let mut lab = match sabotage {
            4 => Lab::new(Config { bounds, ..forced }),
            5 => Lab::over(forced, loopback::Config { mapped: false, ..link() }),
            _ => Lab::new(forced),
        };
        match sabotage {
            0 | 1 => lab.whims[sabotage].lanes.store(0, Ordering::Relaxed),
            2 | 3 => lab.whims[sabotage - 2].refuses.store(true, Ordering::Relaxed),
            _ => {}
        }
        for round in 0..5 {
            let (from, to) = (lab.source(SIZE, true, round), lab.target(SIZE, round % 2 == 0));
            let status = lab.carry(0, &from, &to, what);
            assert_ne!(status.protocol, Protocol::Relay, "{what}");
        }
    }
}

#[test]
fn without_a_word_nothing_is_relayed() {
    for (relay, forced) in [(false, None), (true, None), (true, Some(Protocol::StagedPut))] {
        let share_device_buffers = false;
        let mut lab =
            Lab::new(Config { relay, force: forced, share_device_buffers, ..Config::default() });
        let size = 6 << 20;
        let (from, to) = (lab.source(size, true, 1), lab.target(size, true));
        let status = lab.carry(0, &from, &to, "by choice");
        let relays = relay && forced.is_none();
        assert_eq!(status.protocol == Protocol::Relay, relays, "{relay}, {forced:?}: {status:?}");
    }
}

#[test]
fn a_half_that_is_not_resident_is_not_waited_for() {
    for absent in [0, 1] {
        let mut lab = Lab::forced();
        lab.whims[absent].absent.store(true, Ordering::Relaxed);
        for round in 0..6 {
            let what = format!("rank {absent}'s half does not come, message {round}");
            // More than the ring holds, so that both ends need each other.
            let size = 5 << 20;
            let (from, to) = (lab.source(size, true, round), lab.target(size, true));
            let status = lab.carry(0, &from, &to, &what);
            assert_ne!(status.protocol, Protocol::Relay, "{what}");
            assert_eq!(lab.rings(), [(0, 0), (0, 0)], "{what}: the ring is of no use");
        }
        // After some in a row it is tried no more.
        assert_eq!(lab.begun(), [3, 3], "rank {absent}");
    }
}

#[test]
fn a_receiver_that_comes_late_finds_all_of_a_short_message() {
    let mut lab = Lab::forced();
    lab.whims[1].absent.store(true, Ordering::Relaxed);
    let (from, to) = (lab.source(SIZE, true, 1), lab.target(SIZE, true));
    let send = lab.job.isend(0, &from, 1, 0);
    let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
    for _ in 0..1000 {
        lab.job.progress();
    }
    lab.whims[1].absent.store(false, Ordering::Relaxed);
    let status = lab.job.finish(1, recv).unwrap();
    lab.job.finish(0, send).unwrap();
    assert_eq!(status.protocol, Protocol::Relay);
    to.assert_received(&from.packed(), "late");
    lab.assert_idle("late");
}

#[test]
fn a_device_that_fails_spoils_one_message() {
    for broken in [0, 1] {
        for after in [0, 2] {
            let mut lab = Lab::forced();
            lab.whims[broken].fails_after.store(after, Ordering::Relaxed);
            for round in 0..5 {
                let what = format!("rank {broken} fails after {after}, message {round}");
                let (from, to) = (lab.source(SIZE, true, 9), lab.target(SIZE, true));
                let way = lab.carry(0, &from, &to, &what).protocol;
                assert_eq!(way == Protocol::Relay, i64::from(round) != after, "{what}: {way}");
                if i64::from(round) == after {
                    lab.whims[broken].fails_after.store(-1, Ordering::Relaxed);
                }
            }
        }
    }
}

#[test]
fn a_peer_killed_at_any_stage_leaves_no_half_behind() {
    let mut stages = 0;
    for killed in 0..2u32 {
        for vanishes in [false, true] {
            for steps in (0..60).chain([80, 100, 150]) {
                let what = format!("rank {killed} dies after {steps} steps, {vanishes}");
                let mut lab = Lab::forced();
                // A ring that is there already, in half of the cases.
                if steps % 2 == 0 {
                    let (from, to) = (lab.source(SIZE, true, 5), lab.target(SIZE, true));
                    lab.carry(0, &from, &to, &what);
                }
                let (from, to) = (lab.source(SIZE, true, 5), lab.target(SIZE, false));
                let send = lab.job.isend(0, &from, 1, 0);
                let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
                for _ in 0..steps {
                    lab.job.progress();
                }
                let halves = &lab.whims[1 - killed as usize].under_way;
                stages |= 1 << halves.load(Ordering::Relaxed);
                lab.whims[killed as usize].vanishes.store(vanishes, Ordering::Relaxed);
                lab.job.kill(killed);
                let (rank, id) = if killed == 0 { (1, recv) } else { (0, send) };
                match lab.job.finish(rank, id) {
                    Ok(status) => {
                        assert_eq!(status.bytes, SIZE, "{what}");
                        if killed == 0 {
                            to.assert_received(&from.packed(), &what);
                        }
                    }
                    Err(PmlError::PeerLost { rank, .. }) => assert_eq!(rank, killed, "{what}"),
                    Err(other) => panic!("{what}: {other}"),
                }
                lab.assert_idle(&what);
                assert_eq!(lab.job.pml(1 - killed).relay_rings(), (0, 0), "{what}");
            }
        }
    }
    assert_eq!(stages, 0b11, "some died while a half was at work, and some did not");
}

/// A LOAN of a ring of one lane.
fn loan(serial: u64, lanes: u16, end: u64, key: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 56];
    message[..4].copy_from_slice(&[
        16,
        common::rogue::VERSION,
        u8::try_from(key.len()).unwrap(),
        2,
    ]);
    message[4..6].copy_from_slice(&lanes.to_le_bytes());
    message[8..12].copy_from_slice(&4096u32.to_le_bytes());
    message[12..16].copy_from_slice(&4096u32.to_le_bytes());
    for (at, value) in [(16, 1u64), (24, 0), (32, serial), (40, 5), (48, end)] {
        message[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    message.extend(key);
    message
}

#[test]
fn a_rogue_cannot_have_more_than_was_offered() {
    for case in 0..7 {
        let what = format!("case {case}");
        let relaying = |device: &Arc<FakeDevice>| -> Arc<dyn Engine> {
            Arc::new(RelayEngine::new(&Arc::new(FakeEngine::new(device, 1)), LANES))
        };
        let mut pair = Pair::with(Protocol::Relay, relaying);
        let from = Buffer::source_in(&layout(SIZE, true), 1, 3, pair.home());
        let id = pair.send(&from);
        pair.turn();
        let serial = serial_of(&pair.heard(2));
        let key = |pair: &mut Pair, len| pair.rogue_key(len).as_bytes().to_vec();
        let whole = 2 * 4096 + 64;
        let messages = match case {
            0 => vec![loan(serial, 1, SIZE + 1, &key(&mut pair, whole))],
            1 => vec![loan(serial, 4, SIZE, &key(&mut pair, 1 << 20))],
            2 => vec![loan(serial, 1, SIZE, &key(&mut pair, whole - 1))],
            3 => vec![loan(serial + 1, 1, SIZE, &key(&mut pair, whole))],
            // The end of a message that was not begun, and of one that is under way another way.
            4 => vec![short(19, 1, serial)],
            5 => vec![loan(serial, 1, SIZE, &key(&mut pair, whole)), short(5, 6, serial)],
            _ => {
                let loan = loan(serial, 1, SIZE, &key(&mut pair, whole));
                vec![loan.clone(), loan]
            }
        };
        for message in messages {
            pair.inject(&message);
        }
        // The half that was begun is told to end.
        for _ in 0..20 {
            pair.turn();
        }
        pair.assert_lost(id, &what);
    }
}

#[test]
fn words_on_what_is_not_relayed_end_the_link() {
    for kind in [17, 18, 19] {
        // To a receive that is staged.
        let mut pair = Pair::new(Protocol::StagedGet);
        let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
        let id = pair.recv(&to);
        pair.inject(&offer(SIZE));
        let reply = reply_of(&pair.heard(10));
        pair.inject(&short(kind, u8::from(kind == 19), reply));
        pair.assert_lost(id, &format!("kind {kind}"));
    }
    // Where an offer stands, a ring with as many lanes as were offered: none.
    let mut pair = Pair::new(Protocol::StagedGet);
    let from = Buffer::source_in(&layout(SIZE, true), 1, 3, pair.home());
    let id = pair.send(&from);
    pair.turn();
    let serial = serial_of(&pair.heard(2));
    let key = pair.rogue_key(1 << 20);
    pair.inject(&loan(serial, 1, SIZE, key.as_bytes()));
    pair.assert_lost(id, "no lanes");
}
