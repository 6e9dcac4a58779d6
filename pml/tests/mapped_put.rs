//! Memory that a receiver grants to its sender: every pair of memories and layouts, long layouts, what is
//! refused, engines that fail, peers that die at every stage, and peers that lie.

use crate::common::lab::{Lab, config, layout};
use crate::common::rogue::{Pair, offer, ready, serial_of, short, word, words};
use crate::common::{Buffer, CANARY, Home, bytes, lease_of, link, strided};
use gapless_bml::Rank;
use gapless_btl::loopback::Loopback;
use gapless_btl::{Btl, RemoteKey};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_mem::Device;
use gapless_pml::{Bounds, Config, PmlError, Protocol, Source, TagSel};
use std::sync::atomic::Ordering;

const PUT: Protocol = Protocol::MappedPut;
const SIZE: u64 = 30_000;

/// Messages are put wherever that is possible.
fn puts() -> Config {
    let mut config = Config { share_device_buffers: true, ..config(PUT, 3) };
    config.tuning.copy_bytes_min = 10_000;
    config
}

/// `size` bytes in blocks of irregular places: a layout that is long when it is flattened.
fn list(size: u64) -> Layout {
    let blocks: Vec<i64> = (0..i64::try_from(size).unwrap()).map(|i| 3 * i + i % 2).collect();
    let byte: Datatype = Primitive::UnsignedChar.into();
    Datatype::indexed_block(1, &blocks, &byte).unwrap().commit().unwrap()
}

/// Memory of the receiver's that is on the device, or that peers can map.
fn grantable(lab: &mut Lab, on_device: bool, layout: &Layout) -> Home {
    if on_device { lab.home(true) } else { lab.job.mappable(1, layout, 1) }
}

#[test]
fn every_memory_and_layout() {
    for polls in [0, 3] {
        for size in [2000, SIZE] {
            for places in 0..4 {
                for shapes in 0..9 {
                    let (device, to_device) = (places & 1 == 1, places & 2 == 2);
                    let shape = |which| match which {
                        0 => bytes(size),
                        1 => strided(size / 4, 4, 9),
                        _ => list(size),
                    };
                    let (ours, theirs) = (shape(shapes % 3), shape(shapes / 3));
                    let what = format!("{size} bytes, {places:b}, shapes {shapes}, {polls} polls");
                    let mut lab = Lab::new(puts(), polls);
                    // What went eagerly would prove nothing.
                    lab.job.pml(0).config_mut().tuning.eager_bytes_max = 1000;
                    let from = Buffer::source_in(&ours, 1, size, lab.home(device));
                    let home = grantable(&mut lab, to_device, &theirs);
                    let possible = device || !to_device;
                    for round in 0..2 {
                        let to = Buffer::target_in(&theirs, 1, home.clone());
                        let status = lab.carry(&from, &to, &what);
                        assert_eq!(status.protocol == PUT, possible, "{what}: {status:?}");
                        assert_eq!(status.bytes, size, "{what}, round {round}");
                    }
                    let copied = device && to_device && shapes == 0 && size == SIZE;
                    let copies = lab.job.pml(0).counters().of(PUT).copies;
                    assert_eq!(copies, if copied { 2 } else { 0 }, "{what}");
                }
            }
        }
    }
}

#[test]
fn ordinary_memory_is_not_granted() {
    let mut lab = Lab::new(puts(), 1);
    for device in [false, true] {
        let from = Buffer::source_in(&bytes(SIZE), 1, 1, lab.home(device));
        let to = Buffer::target(&bytes(SIZE), 1);
        assert_ne!(lab.carry(&from, &to, "heap").protocol, PUT);
    }
    // Nor is memory of devices whose users do not share it.
    let mut lab = Lab::new(Config { share_device_buffers: false, ..puts() }, 1);
    let from = Buffer::source_in(&bytes(SIZE), 1, 1, lab.home(true));
    let to = Buffer::target_in(&bytes(SIZE), 1, lab.home(true));
    assert_ne!(lab.carry(&from, &to, "unshared").protocol, PUT);
}

#[test]
fn host_memory_is_granted_to_devices_and_to_hosts_where_that_is_forced() {
    for force in [None, puts().force] {
        let mut lab = Lab::new(Config { force, ..puts() }, 1);
        let shape = strided(50_000, 4, 9);
        let mapped = lab.job.mappable(1, &shape, 1);
        let from = Buffer::source(&shape, 1, 1);
        let to = Buffer::target_in(&shape, 1, mapped);
        assert_eq!(lab.carry(&from, &to, "host to host").protocol == PUT, force.is_some());
        let from = Buffer::source_in(&shape, 1, 1, lab.home(true));
        let mapped = lab.job.mappable(1, &shape, 1);
        let to = Buffer::target_in(&shape, 1, mapped);
        assert_eq!(lab.carry(&from, &to, "device to host").protocol, PUT);
    }
}

#[test]
fn a_long_layout_travels_once_or_not_at_all() {
    let size = 5000;
    let flat = list(size).flatten().len() as u64;
    assert!(flat > 1024, "{flat} bytes are not long");
    let mut lab = Lab::new(puts(), 1);
    let theirs = list(size);
    let sent = |lab: &mut Lab| {
        let from = Buffer::source(&bytes(size), 1, 4);
        let home = grantable(lab, false, &theirs);
        let to = Buffer::target_in(&theirs, 1, home);
        lab.carry(&from, &to, "a list").protocol
    };
    lab.job.pml(0).config_mut().tuning.eager_bytes_max = 1000;
    for _ in 0..3 {
        assert_eq!(sent(&mut lab), PUT);
    }
    // Longer than either keeps.
    for narrow in [0, 1] {
        let mut lab = Lab::new(puts(), 1);
        lab.job.pml(0).config_mut().tuning.eager_bytes_max = 1000;
        let bounds = Bounds { layout_cache_bytes: flat - 1, ..Bounds::default() };
        lab.job.pml(narrow).config_mut().bounds = bounds;
        for _ in 0..2 {
            assert_ne!(sent(&mut lab), PUT, "rank {narrow} keeps less");
        }
    }
}

#[test]
fn a_short_receive_is_truncated() {
    for on_device in [false, true] {
        for gaps in [false, true] {
            let mut lab = Lab::new(puts(), 2);
            let from = Buffer::source_in(&layout(SIZE, gaps), 1, 1, lab.home(on_device));
            let shape = layout(SIZE - 700, gaps);
            let home = grantable(&mut lab, on_device, &shape);
            let to = Buffer::target_in(&shape, 1, home);
            let send = lab.job.isend(0, &from, 1, 0);
            let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
            let received = lab.job.finish(1, recv);
            let truncated = PmlError::Truncated { sent: SIZE, room: SIZE - 700 };
            assert_eq!(received, Err(truncated));
            assert_eq!(lab.job.finish(0, send).map(|status| status.protocol), Ok(PUT));
            let room = usize::try_from(SIZE - 700).unwrap();
            to.assert_received(&from.packed()[..room], "truncated");
            lab.assert_idle("truncated");
        }
    }
}

#[test]
fn what_a_transport_refuses_is_done_another_way() {
    for per_mille in [1000, 500, 100] {
        let mut rail = |rank: u32, hub: &gapless_btl::loopback::Hub| {
            let seed = 91 + u64::from(rank);
            let plan = Plan { mapped_refused_per_mille: per_mille, seed, ..Plan::default() };
            Box::new(Fault::new(Loopback::with(hub, link()), plan)) as Box<dyn Btl>
        };
        let mut lab = Lab::over(puts(), 1, &mut rail);
        let mut put = 0;
        for round in 0..60 {
            let (device, to_device) = (round % 2 == 0, round % 4 == 0);
            let from = Buffer::source_in(&layout(20_000, true), 1, round, lab.home(device));
            let shape = layout(20_000, round % 3 == 0);
            let home = grantable(&mut lab, to_device, &shape);
            let to = Buffer::target_in(&shape, 1, home);
            let what = format!("{per_mille} in 1000, round {round}");
            put += u32::from(lab.carry(&from, &to, &what).protocol == PUT);
        }
        assert_eq!(put == 0, per_mille == 1000, "{put} at {per_mille}");
    }
}

#[test]
fn an_engine_that_fails_ends_both_requests_and_may_recover() {
    for to_device in [false, true] {
        let mut lab = Lab::new(puts(), 2);
        let shape = layout(SIZE, true);
        let from = Buffer::source_in(&shape, 1, 1, lab.home(true));
        let home = grantable(&mut lab, to_device, &shape);
        let to = Buffer::target_in(&shape, 1, home.clone());
        lab.break_after(0, 0);
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        let (sent, received) = (lab.job.finish(0, send), lab.job.finish(1, recv));
        if to_device {
            // The receiver's engine works.
            assert_eq!(received.map(|status| status.protocol), Ok(Protocol::Mapped));
            assert_eq!(sent.map(|status| status.protocol), Ok(Protocol::Mapped));
            to.assert_received(&from.packed(), "another protocol");
        } else {
            assert!(matches!(sent, Err(PmlError::Engine(_))), "{sent:?}");
            assert_eq!(received, Err(PmlError::SenderFailed { rank: 0 }));
        }
        lab.assert_idle("broken");
        lab.break_after(0, -1);
        let to = Buffer::target_in(&shape, 1, home.clone());
        assert_eq!(lab.carry(&from, &to, "mended").protocol, PUT);
        // Mended as soon as it has failed once: the message goes by another protocol.
        lab.break_after(0, 0);
        let to = Buffer::target_in(&shape, 1, home);
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        let engine = lab.engines[0].clone();
        lab.job.until("work of the engine", |_| {
            (engine.under_way.load(Ordering::Relaxed) > 0).then_some(())
        });
        lab.job.pml(1).config_mut().force = Some(Protocol::Pipeline);
        lab.break_after(0, -1);
        let (sent, received) = (lab.job.finish(0, send), lab.job.finish(1, recv));
        assert_ne!(received.as_ref().map(|status| status.protocol), Ok(PUT));
        assert!(sent.is_ok() && received.is_ok(), "{sent:?}, {received:?}");
        to.assert_received(&from.packed(), "another protocol");
        lab.assert_idle("another protocol");
    }
}

#[test]
fn a_peer_that_dies_at_any_stage() {
    for (device, to_device) in [(true, true), (true, false), (false, false)] {
        for long in [false, true] {
            for steps in 0..40 {
                for dead in [0u32, 1] {
                    let what = format!("{device}, {to_device}, {long}: {dead} after {steps}");
                    let mut lab = Lab::new(puts(), 3);
                    let size = 12_000;
                    let theirs = if long { list(size) } else { layout(size, true) };
                    let from = Buffer::source_in(&layout(size, true), 1, 1, lab.home(device));
                    let home = grantable(&mut lab, to_device, &theirs);
                    let to = Buffer::target_in(&theirs, 1, home);
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

/// What the honest end grants.
struct Said(Vec<u8>);

impl Said {
    fn reply(&self) -> u64 {
        u64::from_le_bytes(self.0[16..24].try_into().unwrap())
    }

    fn key(&self) -> RemoteKey {
        RemoteKey::new(&self.0[72..72 + usize::from(self.0[2])]).unwrap()
    }
}

/// An honest receiver that has granted its buffer, of a device or of the host, to a rogue.
fn granted(on_device: bool) -> (Pair, Buffer, gapless_pml::RequestId, Said) {
    let mut pair = Pair::new(PUT);
    pair.pml.config_mut().share_device_buffers = true;
    let shape = layout(SIZE, true);
    let home = match on_device {
        true => pair.home(),
        false => {
            Home::Mapped(pair.pml.bml_mut().allocate(4 * SIZE).unwrap().unwrap().lease().clone())
        }
    };
    let to = Buffer::target_in(&shape, 1, home);
    let recv = pair.recv(&to);
    pair.inject(&offer(SIZE));
    let said = Said(pair.heard(15));
    (pair, to, recv, said)
}

#[test]
fn a_sender_that_lies_is_lost() {
    type Lie = fn(u64) -> Vec<Vec<u8>>;
    let lies: [(&str, Lie); 8] = [
        ("another fragment", |reply| vec![ready(reply, 1)]),
        ("a huge one", |reply| vec![ready(reply, u64::MAX)]),
        ("another receive", |reply| vec![ready(reply + 1, 0)]),
        ("an end", |reply| vec![short(8, 0, reply)]),
        ("data", |reply| vec![words(4, reply, 0)]),
        ("a layout for another send", |reply| vec![asks(reply, 78, 200)]),
        ("a layout in long pieces", |reply| vec![asks(reply, 77, 1 << 40)]),
        ("a layout twice", |reply| vec![asks(reply, 77, 200), asks(reply, 77, 200)]),
    ];
    for (what, lie) in lies {
        let (mut pair, to, recv, said) = granted(true);
        for message in lie(said.reply()) {
            pair.inject(&message);
        }
        pair.assert_lost(recv, what);
        to.assert_received(&[], what);
    }
}

fn asks(reply: u64, serial: u64, piece: u64) -> Vec<u8> {
    let mut message = words(6, reply, serial);
    word(&mut message, 24, piece);
    message
}

#[test]
fn what_was_granted_to_a_lost_peer_is_not_given_back_while_it_has_it() {
    for on_device in [true, false] {
        let (mut pair, _to, recv, said) = granted(on_device);
        let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
        let mapping = mapped.map_for(peer, &said.key(), pair.device.space()).unwrap();
        pair.inject(&ready(said.reply(), u64::MAX));
        for _ in 0..10 {
            pair.turn();
            assert_eq!(pair.pml.test(recv), Ok(None), "the peer has it mapped");
            assert!(pair.pml.is_busy() && pair.pml.fears_the_lost());
        }
        drop(mapping);
        pair.assert_lost(recv, "it has let go");
        assert!(!pair.pml.fears_the_lost());
    }
}

#[test]
fn a_way_that_is_refused_for_good_is_not_gone_again() {
    let mut pair = Pair::new(PUT);
    pair.pml.config_mut().share_device_buffers = true;
    let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
    for (sequence, why) in [(0u32, 1), (1, 2), (2, 0)] {
        pair.recv(&to);
        let mut offer = offer(SIZE);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        pair.inject(&offer);
        let granted = pair.inbox.0.iter().any(|message| message[0] == 15);
        assert_eq!(granted, why != 0, "refusal {why}");
        if granted {
            let reply = Said(pair.heard(15)).reply();
            pair.inject(&short(14, why, reply));
            let next = pair.inbox.0.pop().expect("another decision");
            assert_ne!(next[0], 15, "it was refused: {next:?}");
        }
        pair.inbox.0.clear();
    }
    assert!(!pair.inbox.1);
}

/// A peer without memory, or whose engine is out of order, is not asked for every message.
#[test]
fn a_sender_that_is_exhausted_again_and_again_is_left_alone_for_a_while() {
    let mut pair = Pair::new(PUT);
    pair.pml.config_mut().share_device_buffers = true;
    let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
    let mut sequence = 0u32;
    // Whether the next message is granted a buffer, which is refused or written.
    let mut grants = |written: bool| {
        let recv = pair.recv(&to);
        let mut offer = offer(SIZE);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        sequence += 1;
        pair.inject(&offer);
        let granted = pair.inbox.0.iter().any(|message| message[0] == 15);
        if granted {
            let reply = Said(pair.heard(15)).reply();
            match written {
                true => pair.inject(&ready(reply, 0)),
                false => pair.inject(&short(14, 1, reply)),
            }
            assert_eq!(pair.pml.test(recv).unwrap().is_some(), written);
        }
        pair.inbox.0.clear();
        assert!(!pair.inbox.1, "to be exhausted is no lie");
        granted
    };
    assert!((0..7).all(|_| grants(false)), "that may happen");
    assert!(grants(true), "and pass");
    assert!((0..8).all(|_| grants(false)), "what was before counts for nothing");
    for _ in 0..2 {
        // Then it is asked once, and refuses.
        let rest = (0..200).take_while(|_| !grants(false)).count();
        assert!((50..=64).contains(&rest), "left alone for {rest} messages");
    }
    assert!((50..=64).contains(&(0..200).take_while(|_| !grants(true)).count()));
    assert!((0..20).all(|_| grants(true)), "until it can");
}

/// An answer of a rogue receiver, which grants memory of its own.
fn grant(
    serial: u64,
    end: u64,
    span: u64,
    layout: Option<(&[u8], u64)>,
    key: &RemoteKey,
) -> Vec<u8> {
    let mut message = vec![0; 72];
    let key = key.as_bytes();
    message[..4].copy_from_slice(&[
        15,
        crate::common::rogue::VERSION,
        u8::try_from(key.len()).unwrap(),
        0,
    ]);
    message[4..8].copy_from_slice(&1000u32.to_le_bytes());
    let (flat, length) = layout.unwrap_or((&[], 0));
    let id = u64::from(length > 0) * 9;
    for (at, value) in
        [(8, serial), (16, 55), (24, end), (32, 1), (48, span), (56, id), (64, length)]
    {
        word(&mut message, at, value);
    }
    [&message[..], key, flat].concat()
}

#[test]
fn a_receiver_that_lies_is_lost_and_one_that_is_short_of_memory_overrun() {
    let flat = layout(SIZE, true).flatten();
    let other = layout(SIZE / 2, true).flatten();
    let spans = 3 * (SIZE - 1) + 1;
    type Lie<'a> = (&'a str, u64, u64, Option<(&'a [u8], u64)>);
    let length = |flat: &[u8]| flat.len() as u64;
    let lies: [Lie<'_>; 6] = [
        ("more than was offered", SIZE + 1, SIZE + 1, None),
        ("more than the key is for", SIZE, SIZE, None),
        ("another span", SIZE, spans + 1, Some((&flat, length(&flat)))),
        ("more than the layout has", SIZE, 3 * (SIZE / 2 - 1) + 1, Some((&other, length(&other)))),
        ("no layout", SIZE, spans, Some((&[3; 40], 40))),
        ("a layout that never comes right", SIZE, spans, Some((&[], 2000))),
    ];
    for (what, end, span, layout_sent) in lies {
        let mut pair = Pair::new(PUT);
        let from = Buffer::source_in(&layout(SIZE, true), 1, 5, pair.home());
        let send = pair.send(&from);
        pair.turn();
        let serial = serial_of(&pair.heard(2));
        let room = if what.starts_with("more than the key") { SIZE - 1 } else { 4 * SIZE };
        let key = pair.rogue_key(room);
        pair.inject(&grant(serial, end, span, layout_sent, &key));
        if what.starts_with("a layout that never") {
            let asked = pair.heard(6);
            assert_eq!(asked[8..24], [&55u64.to_le_bytes()[..], &serial.to_le_bytes()].concat());
            let mut piece = words(7, serial, 0);
            word(&mut piece, 24, 2000);
            pair.inject(&[&piece[..], &[1; 1000]].concat());
            word(&mut piece, 16, 1000);
            pair.inject(&[&piece[..], &[1; 1000]].concat());
        }
        pair.assert_lost(send, what);
    }
}

#[test]
fn a_receiver_that_answers_twice_is_lost_and_the_engine_ends_first() {
    for second in [3u8, 5, 6, 10, 15] {
        let mut pair = Pair::new(PUT);
        let from = Buffer::source_in(&layout(SIZE, false), 1, 5, pair.home());
        let send = pair.send(&from);
        pair.turn();
        let serial = serial_of(&pair.heard(2));
        let around = pair.device.allocate(SIZE + 200).unwrap();
        let inner = around.sub(100, SIZE).unwrap();
        let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
        let key = mapped.key(peer, &lease_of(inner)).unwrap();
        let first = grant(serial, SIZE, SIZE, None, &key);
        let again = match second {
            5 => short(5, 0, serial),
            6 => asks(serial, 55, 100),
            10 => crate::common::rogue::open(crate::common::rogue::GET, serial, SIZE, 2, None),
            15 => first.clone(),
            _ => {
                let mut cts = vec![0; 48];
                cts[..2].copy_from_slice(&[3, crate::common::rogue::VERSION]);
                cts[4..8].copy_from_slice(&2u32.to_le_bytes());
                cts[8..12].copy_from_slice(&500u32.to_le_bytes());
                word(&mut cts, 16, serial);
                word(&mut cts, 24, 55);
                word(&mut cts, 40, SIZE);
                cts
            }
        };
        for message in [&first, &again] {
            let mut slot = pair.rogue.reserve(Rank(0), message.len()).unwrap();
            slot.write(0, message).unwrap();
            pair.rogue.send(slot, gapless_pml::AM_TAG, gapless_btl::Token::NONE);
        }
        pair.assert_lost(send, &format!("kind {second}"));
    }
}

#[test]
fn what_is_granted_is_written_and_nothing_around_it() {
    let mut pair = Pair::new(PUT);
    let from = Buffer::source_in(&layout(SIZE, true), 1, 5, pair.home());
    let send = pair.send(&from);
    pair.turn();
    let serial = serial_of(&pair.heard(2));
    let to = Buffer::target_in(&bytes(SIZE), 1, pair.home());
    // All but the first and the last 24 bytes of it.
    let inner = to.lease(24, SIZE);
    let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
    let key = mapped.key(peer, &inner).unwrap();
    pair.inject(&grant(serial, SIZE - 5, SIZE, None, &key));
    assert_eq!(pair.pml.test(send).unwrap().map(|status| status.protocol), Some(PUT));
    let done = pair.heard(12);
    assert_eq!(done[8..24], [&55u64.to_le_bytes()[..], &[0; 8]].concat());
    let memory = to.bytes();
    let wanted = usize::try_from(SIZE).unwrap() - 5;
    assert_eq!(memory[24..24 + wanted], from.packed()[..wanted]);
    assert!(memory[..24].iter().chain(&memory[24 + wanted..]).all(|byte| *byte == CANARY));
}

#[test]
fn random_words_never_panic() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(PUT);
        pair.pml.config_mut().share_device_buffers = true;
        let to = Buffer::target_in(&layout(SIZE, true), 1, pair.home());
        let from = Buffer::source_in(&layout(SIZE, true), 1, 5, pair.home());
        let ids = [pair.recv(&to), pair.send(&from)];
        pair.inject(&offer(SIZE));
        let serial = serial_of(&pair.heard(2));
        let reply = Said(pair.heard(15)).reply();
        let key = pair.rogue_key(1 << rng.below(18));
        for _ in 0..8 {
            let mut message = match rng.below(5) {
                0 => grant(serial, 1 + rng.below(2 * SIZE), rng.below(4 * SIZE), None, &key),
                1 => ready(reply, rng.below(2)),
                2 => short(14, u8::try_from(rng.below(5)).unwrap(), reply),
                3 => asks(reply, serial, rng.below(4000)),
                _ => words(7, serial, rng.below(3000)),
            };
            for _ in 0..rng.below(3) {
                let at = usize::try_from(rng.below(message.len() as u64)).unwrap();
                message[at] = rng.below(256).to_le_bytes()[0];
            }
            pair.inject(&message);
        }
        for id in ids {
            let _ = pair.pml.test(id);
        }
        let memory = to.bytes();
        assert_eq!(memory[..24], [CANARY; 24], "seed {seed}");
    }
}

#[test]
fn hundreds_of_ways_without_a_key_are_counted() {
    let mut pair = Pair::new(Protocol::StagedGet);
    let to = Buffer::target_in(&layout(100, true), 1, pair.home());
    let mut replies = Vec::new();
    for sequence in 0u32..300 {
        pair.recv(&to);
        let mut offer = offer(100);
        offer[12..16].copy_from_slice(&sequence.to_le_bytes());
        pair.inject(&offer);
        let open = pair.heard(10);
        replies.push(u64::from_le_bytes(open[24..32].try_into().unwrap()));
    }
    for reply in replies {
        pair.inject(&short(14, 3, reply));
        assert!(!pair.inbox.1, "a refusal is no lie");
    }
}
