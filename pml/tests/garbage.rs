//! Peers that break the protocol: they are lost, nobody panics, nothing outside is touched.

use crate::common::{Buffer, bytes};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, LinkError, Token};
use gapless_dtype::testkit::Rng;
use gapless_engine::HostEngine;
use gapless_pml::{AM_TAG, Config, Pml, PmlError, RequestId, Source, TagSel};
use std::sync::Arc;

/// Keeps what arrives, and whether the link was ended.
#[derive(Default)]
struct Inbox(Vec<Vec<u8>>, bool);

impl Handler for Inbox {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { fragment, .. } => self.0.push(fragment.to_vec().unwrap()),
            RankEvent::Lost { .. } => self.1 = true,
            _ => {}
        }
    }
}

/// An honest endpoint, rank 0 unless said otherwise, and a bare transport behind the other rank.
struct Pair {
    pml: Pml,
    honest: Rank,
    rogue: Bml,
    inbox: Inbox,
}

impl Pair {
    fn new() -> Pair {
        Pair::with_honest(0)
    }

    fn with_honest(rank: u32) -> Pair {
        let (honest_rank, rogue_rank) = (Rank(rank), Rank(1 - rank));
        let hub = Hub::new();
        let (honest, rogue) = (Loopback::new(&hub), Loopback::new(&hub));
        let mut bmls = [Bml::new(honest_rank, 2), Bml::new(rogue_rank, 2)];
        for (bml, rail) in bmls.iter_mut().zip([honest, rogue]) {
            bml.add(Box::new(rail) as Box<dyn Btl>);
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        let [mut honest, mut rogue] = bmls;
        honest.connect(rogue_rank, &addresses[1]).unwrap();
        rogue.connect(honest_rank, &addresses[0]).unwrap();
        let pml = Pml::new(honest, vec![Arc::new(HostEngine)], Config::default());
        Pair { pml, honest: honest_rank, rogue, inbox: Inbox::default() }
    }

    fn inject(&mut self, message: &[u8]) {
        // Once it was given up, it can say no more.
        if let Ok(mut slot) = self.rogue.reserve(self.honest, message.len()) {
            slot.write(0, message).unwrap();
            self.rogue.send(slot, AM_TAG, Token::NONE);
        }
        self.turn();
    }

    fn turn(&mut self) {
        for _ in 0..4 {
            self.pml.progress();
            self.rogue.poll(&mut self.inbox);
        }
    }

    fn recv(&mut self, to: &Buffer) -> RequestId {
        let world = self.pml.world();
        // SAFETY: the buffer outlives the endpoint's use of it in each test.
        unsafe { self.pml.irecv(&world, &to.typed(), Source::Rank(1), TagSel::Any) }.unwrap()
    }

    fn send(&mut self, from: &Buffer) -> RequestId {
        let world = self.pml.world();
        // SAFETY: as above.
        unsafe { self.pml.isend(&world, &from.typed(), 1, 0) }.unwrap()
    }

    /// The peer is lost, and so is the request.
    fn assert_lost(&mut self, id: RequestId, what: &str) {
        match self.pml.test(id).map_err(PmlError::from) {
            Err(PmlError::PeerLost { rank: 1, error: LinkError::Corrupt { .. } }) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// What is spoken.
const VERSION: u8 = 12;

fn word(message: &mut [u8], at: usize, value: u64) {
    message[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// An eager message of `data`, untyped.
fn eager(sequence: u32, context: u32, data: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 32];
    message[0] = 1;
    message[1] = VERSION;
    message[4..8].copy_from_slice(&context.to_le_bytes());
    message[12..16].copy_from_slice(&sequence.to_le_bytes());
    let hash = 1u64 << 61;
    word(&mut message, 16, hash);
    word(&mut message, 24, data.len() as u64);
    message.extend_from_slice(data);
    message
}

/// An offer of `bytes` untyped bytes without gaps or keys.
fn rts(sequence: u32, bytes: u64) -> Vec<u8> {
    let mut message = eager(sequence, 0, &[]);
    message[0] = 2;
    word(&mut message, 24, bytes);
    message.resize(128, 0);
    word(&mut message, 32, bytes);
    word(&mut message, 40, 77); // serial
    word(&mut message, 48, 1); // count
    word(&mut message, 64, bytes); // span
    word(&mut message, 72, 1); // blocks
    message[96..100].copy_from_slice(&4096u32.to_le_bytes());
    message[100] = 4;
    message
}

/// A note that revokes a communicator, as it is called here.
fn revoke(id: u32) -> Vec<u8> {
    let mut message = vec![0; 24];
    message[..3].copy_from_slice(&[9, VERSION, 6]);
    message[4..8].copy_from_slice(&id.to_le_bytes());
    message
}

/// Only members revoke a communicator: the forger is one of the world, and of nothing else.
#[test]
fn non_members_revoke_nothing() {
    let to = Buffer::target(&bytes(40), 1);
    let mut pair = Pair::new();
    let recv = pair.recv(&to);
    pair.inject(&revoke(0));
    assert_eq!(pair.pml.test(recv).map_err(PmlError::from), Err(PmlError::Revoked));
    assert!(pair.pml.world().is_revoked() && !pair.inbox.1, "a member may");
    // This process's own, one that is not there, and what no communicator is called.
    for id in [1, 2, 77, (1 << 31) - 1, 1 << 31, u32::MAX] {
        let mut pair = Pair::new();
        let recv = pair.recv(&to);
        pair.inject(&revoke(id));
        pair.assert_lost(recv, &format!("communicator {id}"));
        assert!(!pair.pml.world().is_revoked() && !pair.pml.self_comm().is_revoked());
    }
    let mut serial = revoke(0);
    word(&mut serial, 16, 1);
    let mut pair = Pair::new();
    let recv = pair.recv(&to);
    pair.inject(&serial);
    pair.assert_lost(recv, "a serial that means nothing");
    // One that is being made: until then nobody knows who its members are, and saying so twice changes nothing.
    let mut pair = Pair::new();
    let world = pair.pml.world();
    let made = pair.pml.start_dup(&world).unwrap();
    let recv = pair.recv(&to);
    for sequence in 0..2 {
        let mut early = revoke(2);
        early[12] = sequence;
        pair.inject(&early);
    }
    assert_eq!(pair.pml.test(recv), Ok(None));
    assert!(matches!(pair.pml.test_comm(made), Ok(None)));
}

#[test]
fn the_forger_can_speak_the_protocol() {
    let mut pair = Pair::new();
    let to = Buffer::target(&bytes(5000), 1);
    let recv = pair.recv(&to);
    pair.inject(&eager(0, 0, &[7; 100]));
    assert_eq!(pair.pml.test(recv).unwrap().unwrap().bytes, 100);
    let recv = pair.recv(&to);
    pair.inject(&rts(1, 5000));
    let cts = pair.inbox.0.pop().expect("an answer");
    assert_eq!((cts[0], cts.len()), (3, 48));
    let mut data = vec![0; 32];
    data[..2].copy_from_slice(&[4, VERSION]);
    data[8..16].copy_from_slice(&cts[24..32]);
    let mut last = data.clone();
    data.resize(32 + 4096, 1);
    word(&mut last, 16, 4096);
    last.resize(32 + 904, 2);
    pair.inject(&last);
    assert_eq!(pair.pml.test(recv), Ok(None));
    pair.inject(&data);
    assert_eq!(pair.pml.test(recv).unwrap().unwrap().bytes, 5000);
}

#[test]
fn every_broken_rule_loses_the_peer() {
    let wrong_version = {
        let mut m = eager(0, 0, &[1]);
        m[1] = VERSION + 1;
        m
    };
    let no_kind = {
        let mut m = eager(0, 0, &[1]);
        m[0] = 200;
        m
    };
    let flags = {
        let mut m = eager(0, 0, &[1]);
        m[2] = 1;
        m
    };
    let digest = {
        let mut m = eager(0, 0, &[1]);
        word(&mut m, 24, 2);
        m
    };
    let leap = eager(1_000_000, 0, &[1]);
    let empty = Vec::new();
    let fin = {
        let mut m = vec![0; 16];
        m[..2].copy_from_slice(&[5, VERSION]);
        word(&mut m, 8, 1);
        m
    };
    let data = {
        let mut m = vec![0; 40];
        m[..2].copy_from_slice(&[4, VERSION]);
        word(&mut m, 8, 1);
        m
    };
    let cts = {
        let mut m = vec![0; 48];
        m[..2].copy_from_slice(&[3, VERSION]);
        m[4] = 1;
        m[8..12].copy_from_slice(&4096u32.to_le_bytes());
        word(&mut m, 16, 12);
        word(&mut m, 40, 10);
        m
    };
    let ask = {
        let mut m = vec![0; 32];
        m[..2].copy_from_slice(&[6, VERSION]);
        word(&mut m, 24, 9);
        m
    };
    let layout = {
        let mut m = vec![0; 40];
        m[..2].copy_from_slice(&[7, VERSION]);
        m
    };
    let short_rts = rts(0, 5000)[..100].to_vec();
    let tiny_fragments = {
        let mut m = rts(0, 5000);
        m[96..100].fill(0);
        m[96] = 1;
        m
    };
    let gapless_lie = {
        let mut m = rts(0, 5000);
        word(&mut m, 64, 6000);
        m
    };
    let long = {
        let mut m = rts(0, 5000);
        m.resize(5000, 0);
        m
    };
    let all = [
        wrong_version,
        no_kind,
        flags,
        digest,
        leap,
        empty,
        fin,
        data,
        cts,
        ask,
        layout,
        short_rts,
        tiny_fragments,
        gapless_lie,
        long,
    ];
    for (number, message) in all.iter().enumerate() {
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(5000), 1);
        let recv = pair.recv(&to);
        if number == 4 {
            // Early messages are kept; only a leap beyond the window is wrong.
            pair.inject(&eager(2, 0, &[1]));
            assert_eq!(pair.pml.test(recv), Ok(None));
        }
        pair.inject(message);
        pair.assert_lost(recv, &format!("message {number}"));
        assert!(pair.inbox.1, "message {number}: the sender was not told");
        to.assert_received(&[], "garbage");
    }
}

#[test]
fn repeated_and_stray_fragments_lose_the_peer_and_touch_nothing() {
    for case in 0..5 {
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(5000), 1);
        let recv = pair.recv(&to);
        pair.inject(&rts(0, 5000));
        let cts = pair.inbox.0.pop().expect("an answer");
        let mut data = vec![9; 32 + 4096];
        data[..32].fill(0);
        data[..2].copy_from_slice(&[4, VERSION]);
        data[8..16].copy_from_slice(&cts[24..32]);
        let received = match case {
            0 => {
                pair.inject(&data);
                pair.inject(&data); // twice
                vec![9; 4096]
            }
            1 => {
                word(&mut data, 16, 1); // not where a fragment starts
                pair.inject(&data);
                Vec::new()
            }
            2 => {
                word(&mut data, 16, 4096); // longer than what is left
                pair.inject(&data);
                Vec::new()
            }
            3 => {
                word(&mut data, 16, u64::MAX - 100);
                pair.inject(&data);
                Vec::new()
            }
            _ => {
                word(&mut data, 8, 1 << 40); // another receive
                pair.inject(&data);
                Vec::new()
            }
        };
        pair.assert_lost(recv, &format!("case {case}"));
        to.assert_received(&received, &format!("case {case}"));
    }
}

#[test]
fn answers_to_an_offer_are_checked() {
    for case in 0..4 {
        let mut pair = Pair::new();
        let from = Buffer::source(&bytes(50_000), 1, 1);
        let send = pair.send(&from);
        pair.turn();
        let offer = pair.inbox.0.pop().expect("an offer");
        assert_eq!(offer[0], 2);
        let mut cts = vec![0; 48];
        cts[..2].copy_from_slice(&[3, VERSION]);
        cts[4] = 1;
        cts[8..12].copy_from_slice(&1000u32.to_le_bytes());
        cts[16..24].copy_from_slice(&offer[40..48]);
        word(&mut cts, 24, 5);
        word(&mut cts, 40, 50_000);
        match case {
            0 => word(&mut cts, 40, 50_001),
            1 => cts[8..12].copy_from_slice(&(1u32 << 30).to_le_bytes()),
            2 => word(&mut cts, 32, 50_000),
            _ => {
                let mut ask = vec![0; 32]; // a layout that was not offered
                ask[..2].copy_from_slice(&[6, VERSION]);
                ask[8..16].copy_from_slice(&offer[40..48]);
                word(&mut ask, 24, 100);
                cts = ask;
            }
        }
        pair.inject(&cts);
        pair.assert_lost(send, &format!("case {case}"));
    }
}

#[test]
fn a_message_for_a_communicator_that_never_was_loses_the_peer() {
    // Beyond the table, and a generation to come of one that is there.
    for context in [50, 2 << 14, u32::MAX] {
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(8), 1);
        let recv = pair.recv(&to);
        pair.inject(&eager(0, context, &[1]));
        pair.assert_lost(recv, "a context that was made up");
    }
}

#[test]
fn huge_numbers_in_an_offer_are_only_numbers() {
    let mut pair = Pair::new();
    let to = Buffer::target(&bytes(5000), 1);
    let recv = pair.recv(&to);
    let mut offer = rts(0, 5000);
    for at in [48, 72, 80] {
        word(&mut offer, at, u64::MAX); // instances, blocks, the layout's name
    }
    pair.inject(&offer);
    let cts = pair.inbox.0.pop().expect("an answer");
    assert_eq!(cts[0], 3, "without keys there is only the pipeline");
    assert_eq!(pair.pml.test(recv), Ok(None));
}

#[test]
fn a_layout_that_is_damaged_loses_the_peer_and_one_that_is_too_large_does_not() {
    let offer = |ops: u32| {
        let mut layout = vec![0; 64];
        layout[..5].copy_from_slice(b"GLAY\x01");
        layout[8] = 64; // its length
        layout[48..52].copy_from_slice(&ops.to_le_bytes());
        let mut offer = rts(0, 5000);
        word(&mut offer, 64, 9000); // span
        word(&mut offer, 72, 100); // blocks
        word(&mut offer, 80, 1); // the layout's name
        word(&mut offer, 88, 64); // and length
        offer[104] = 64; // all of it follows
        offer.extend(layout);
        offer
    };
    for (ops, too_large) in [(u32::MAX, true), (1, false)] {
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(5000), 1);
        let recv = pair.recv(&to);
        pair.inject(&offer(ops));
        if too_large {
            let cts = pair.inbox.0.pop().expect("an answer");
            assert_eq!(cts[0], 3, "it goes through the pipeline");
            assert_eq!(pair.pml.test(recv), Ok(None));
        } else {
            pair.assert_lost(recv, "a layout that ends in the middle");
        }
    }
}

#[test]
fn messages_of_non_members_to_a_communicator_lose_the_peer() {
    // Context 2 is each process's communicator with itself.
    for non_member in [eager(0, 2, &[1]), {
        let mut m = rts(0, 9);
        m[4] = 2;
        m
    }] {
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(8), 1);
        let recv = pair.recv(&to);
        let alone = pair.pml.self_comm();
        let mine = Buffer::target(&bytes(8), 1);
        // SAFETY: the buffer outlives the endpoint's use of it.
        let from_myself =
            unsafe { pair.pml.irecv(&alone, &mine.typed(), Source::Any, TagSel::Any) }.unwrap();
        pair.inject(&non_member);
        pair.assert_lost(recv, "a non-member's message");
        assert_eq!(pair.pml.test(from_myself), Ok(None));
        mine.assert_received(&[], "a non-member's message");
    }
}

#[test]
fn answers_about_a_communicator_are_checked() {
    let answer = |fields: [u32; 4]| fields.map(u32::to_le_bytes).concat();
    let entry =
        |process: u32, id: u32| [process, id, u32::MAX, 0, 0, 0].map(u32::to_le_bytes).concat();
    let table = |entries: [Vec<u8>; 2]| Some(entries.concat());
    let two = || answer([0, 0, 2, 0]);
    let cases: [(Vec<u8>, Option<Vec<u8>>); 9] = [
        (answer([2, 0, 0, 0]), None),
        (answer([0, 0, 3, 0]), None),
        (answer([1, 9, 0, 0]), None),
        (vec![0; 7], None),
        (Vec::new(), None),
        // Identifiers: mine is not what I said, one that nobody can have.
        (two(), table([entry(0, 2), entry(1, 3)])),
        (two(), table([entry(0, 1 << 31), entry(1, 2)])),
        // Members: exchanged, one twice.
        (two(), table([entry(1, 2), entry(0, 2)])),
        (two(), table([entry(1, 2), entry(1, 2)])),
    ];
    for (at, (preface, table)) in cases.into_iter().enumerate() {
        let mut pair = Pair::with_honest(1);
        let world = pair.pml.world();
        let dup = pair.pml.start_dup(&world).unwrap();
        for (sequence, message) in (0u32..).zip([Some(preface), table].into_iter().flatten()) {
            let mut message = eager(sequence, 1, &message);
            message[8..12].copy_from_slice(&(1i32 << 30).to_le_bytes());
            pair.inject(&message);
        }
        match pair.pml.test_comm(dup) {
            Err(PmlError::PeerLost { rank: 0, error: LinkError::Corrupt { .. } }) => {}
            other => panic!("case {at}: {other:?}"),
        }
        // The world still is what it was.
        pair.pml.iprobe(&world, Source::Rank(1), TagSel::Any).unwrap();
    }
}

#[test]
fn a_member_that_speaks_for_another_is_lost() {
    let mut pair = Pair::new();
    let world = pair.pml.world();
    let dup = pair.pml.start_dup(&world).unwrap();
    let entry = [0u32, 2, u32::MAX, 0, 0, 0].map(u32::to_le_bytes).concat();
    let mut message = eager(0, 1, &entry);
    message[8..12].copy_from_slice(&(1i32 << 30).to_le_bytes());
    pair.inject(&message);
    match pair.pml.test_comm(dup) {
        Err(PmlError::PeerLost { rank: 1, error: LinkError::Corrupt { .. } }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn random_bytes_never_panic() {
    for seed in 1..=400u64 {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new();
        let to = Buffer::target(&bytes(3000), 1);
        let from = Buffer::source(&bytes(40_000), 1, 1);
        let (recv, send) = (pair.recv(&to), pair.send(&from));
        for round in 0..40 {
            // Headers that are almost right.
            let mut message = match rng.below(3) {
                0 => eager(round, 0, &vec![1; usize::try_from(rng.below(64)).unwrap()]),
                1 => rts(round, rng.below(5000)),
                _ => vec![0; usize::try_from(rng.below(200)).unwrap()],
            };
            for _ in 0..rng.below(6) {
                if !message.is_empty() {
                    let at = usize::try_from(rng.below(message.len() as u64)).unwrap();
                    message[at] = rng.below(256).to_le_bytes()[0];
                }
            }
            if message.len() > 1 && rng.below(2) == 0 {
                message[0] = rng.below(10).to_le_bytes()[0];
                message[1] = VERSION;
            }
            pair.inject(&message);
        }
        for id in [recv, send] {
            match pair.pml.test(id).map_err(PmlError::from) {
                Ok(_) | Err(PmlError::PeerLost { .. } | PmlError::Truncated { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        // The margins are intact.
        let memory = to.bytes();
        assert_eq!(memory[..24], [crate::common::CANARY; 24], "seed {seed}");
        assert_eq!(memory[memory.len() - 24..], [crate::common::CANARY; 24], "seed {seed}");
    }
}
