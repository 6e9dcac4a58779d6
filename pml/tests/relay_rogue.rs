//! Peers that break the rules of messages that are begun before their receivers are asked, and words of honest ones
//! that cross.

mod common;

use common::Buffer;
use common::lab::layout;
use common::relay::{FRAGMENT, RelayEngine};
use common::rogue::{Pair, offer, serial_of, short};
use gapless_engine::Engine;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{PmlError, Protocol};
use std::sync::Arc;

fn relaying(device: &Arc<FakeDevice>) -> Arc<dyn Engine> {
    use common::engine::FakeEngine;
    Arc::new(RelayEngine::new(&Arc::new(FakeEngine::new(device, 1)), 3))
}

/// An offer of a message that was begun.
fn begun(bytes: u64, ring: u64, turn: u64) -> Vec<u8> {
    let mut message = offer(bytes);
    message[109] = 0;
    message[110] = 2;
    message[112..120].fill(0);
    message.extend(ring.to_le_bytes());
    message.extend(turn.to_le_bytes());
    message
}

/// The rogue wishes for a ring and gets it: the pair, and the ring's number and its loan's name.
fn lent() -> (Pair, u64, u64) {
    let mut pair = Pair::with(Protocol::Relay, relaying);
    pair.inject(&short(20, 3, 77));
    let to = Buffer::target_in(&layout(64, false), 1, pair.home());
    let recv = pair.recv(&to);
    pair.turn();
    let loan = pair.heard(16);
    let word = |at: usize| u64::from_le_bytes(loan[at..at + 8].try_into().unwrap());
    assert_eq!((word(32), word(48), word(24)), (0, 77, 0), "no message, that device, a new ring");
    assert!(pair.pml.cancel_recv(recv).unwrap());
    pair.pml.release(recv).unwrap();
    let (ring, name) = (word(16), word(40));
    (pair, ring, name)
}

fn go(pair: &mut Pair, name: u64, len: u64) {
    let key = pair.rogue_key(len);
    let mut message = short(17, u8::try_from(key.as_bytes().len()).unwrap(), name);
    message.extend(key.as_bytes());
    pair.inject(&message);
}

#[test]
fn a_loan_may_be_answered_after_its_owner_has_left() {
    let (mut pair, _, name) = lent();
    let to = Buffer::target_in(&layout(64, false), 1, pair.home());
    let id = pair.recv(&to);
    pair.pml.refuse_unreceived();
    assert_eq!(pair.pml.relay_rings(), (0, 0));
    // GO, where the LOAN had been under way.
    go(&mut pair, name, 3 * 64);
    assert_eq!((pair.pml.test(id), pair.inbox.1), (Ok(None), false));
    go(&mut pair, 1 << 40, 3 * 64);
    pair.assert_lost(id, "the answer to a loan that never was");
}

#[test]
fn a_rogue_cannot_begin_what_it_has_no_ring_for() {
    for case in 0..8 {
        let what = format!("case {case}");
        let (mut pair, ring, name) = lent();
        let to = Buffer::target_in(&layout(64, false), 1, pair.home());
        let id = pair.recv(&to);
        if case > 0 {
            go(&mut pair, name, if case == 1 { 8 } else { 3 * 64 });
        }
        match case {
            // Twice the answer to a loan.
            0 => {
                go(&mut pair, name, 3 * 64);
                go(&mut pair, name, 3 * 64);
            }
            1 => {}
            // A ring that never was, another turn, more than it holds.
            2 => pair.inject(&begun(64, ring + 1, 0)),
            3 => pair.inject(&begun(64, ring, 1)),
            4 => pair.inject(&begun(3 * FRAGMENT + 1, ring, 0)),
            // Two messages at a time.
            5 => {
                pair.inject(&begun(64, ring, 0));
                let mut second = begun(64, ring, 0);
                second[12] = 1;
                second[40] = 78;
                let other = pair.recv(&to);
                pair.inject(&second);
                pair.assert_lost(other, &what);
            }
            // What was begun, and can be had otherwise.
            6 => {
                let mut both = begun(64, ring, 0);
                both[109] = 3;
                pair.inject(&both);
            }
            // A wish without lanes.
            _ => pair.inject(&short(20, 0, 1)),
        }
        pair.assert_lost(id, &what);
    }
}

#[test]
fn a_half_that_never_comes_is_told_of_and_done_without() {
    let (mut pair, ring, name) = lent();
    go(&mut pair, name, 3 * 64);
    let to = Buffer::target_in(&layout(64, false), 1, pair.home());
    let id = pair.recv(&to);
    pair.inject(&begun(64, ring, 0));
    assert_eq!(pair.pml.test(id), Ok(None));
    // NOTE: what was begun of message 77 has failed.
    let mut note = short(9, 6, 0);
    note[12] = 1;
    note.extend(77u64.to_le_bytes());
    pair.inject(&note);
    // It asks by CTS, and has given the ring up.
    let cts = pair.heard(3);
    assert_eq!(u64::from_le_bytes(cts[16..24].try_into().unwrap()), 77);
    assert_eq!(pair.pml.relay_rings(), (0, 0));
    let reply = u64::from_le_bytes(cts[24..32].try_into().unwrap());
    let mut data = common::rogue::words(4, reply, 0);
    data.extend([9; 64]);
    pair.inject(&data);
    assert_eq!(pair.pml.test(id).unwrap().unwrap().protocol, Protocol::Pipeline);
    to.assert_received(&[9; 64], "by the pipeline");
    // The end of what is over may have crossed our word on it, and means nothing.
    pair.inject(&short(19, 3, reply));
    let next = pair.recv(&to);
    assert_eq!((pair.pml.test(next), pair.inbox.1), (Ok(None), false));
    pair.inject(&short(19, 3, 1 << 40));
    pair.assert_lost(next, "the end of what never was");
}

#[test]
fn a_rogue_receiver_cannot_answer_twice() {
    for case in 0..6 {
        let what = format!("case {case}");
        let mut pair = Pair::with(Protocol::Relay, relaying);
        let from = Buffer::source_in(&layout(64, true), 1, 3, pair.home());
        // An offer, and a wish, which the rogue grants.
        let first = pair.send(&from);
        pair.turn();
        let wish = pair.heard(20);
        let key = pair.rogue_key(1 << 20);
        let lanes = if case == 0 { 4 } else { 3 };
        let mark = u64::from_le_bytes(wish[8..16].try_into().unwrap());
        let loan = |mark: u64| {
            let mut loan = short(16, u8::try_from(key.as_bytes().len()).unwrap(), 0);
            loan.resize(56, 0);
            (loan[3], loan[4]) = (2, lanes);
            for at in [8, 12] {
                loan[at..at + 4].copy_from_slice(&16384u32.to_le_bytes());
            }
            (loan[16], loan[40]) = (1, 5);
            loan[48..56].copy_from_slice(&mark.to_le_bytes());
            loan.extend(key.as_bytes());
            loan
        };
        match case {
            1 => pair.inject(&loan(mark + 1)),
            2 => {
                pair.inject(&loan(mark));
                pair.inject(&loan(mark));
            }
            _ => pair.inject(&loan(mark)),
        }
        if case < 3 {
            pair.assert_lost(first, &what);
            continue;
        }
        pair.turn();
        let go = pair.heard(17);
        assert_eq!(go[8], 5, "{what}: {go:?}");
        let id = pair.send(&from);
        pair.turn();
        let rts = pair.heard(2);
        assert_eq!((rts.len(), rts[110]), (144, 2), "{what}");
        let serial = serial_of(&rts);
        match case {
            // A way that was not offered, a STOP, two answers.
            3 => pair.inject(&short(5, 3, serial)),
            4 => pair.inject(&short(18, 0, serial)),
            _ => {
                pair.inject(&short(5, 13, serial));
                pair.inject(&short(5, 13, serial));
            }
        }
        // It is short: it may have ended before.
        pair.turn();
        match pair.pml.test(id) {
            Ok(Some(_)) | Err(PmlError::PeerLost { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        pair.assert_lost(first, &what);
    }
}

#[test]
fn rings_that_a_rogue_wishes_away_are_counted() {
    let mut pair = Pair::with(Protocol::Relay, relaying);
    for round in 0..40u64 {
        // In the name of one device again and again, or of others.
        pair.inject(&short(20, 3, 77 + round % 2));
        let to = Buffer::target_in(&layout(64, false), 1, pair.home());
        let recv = pair.recv(&to);
        pair.turn();
        assert!(pair.pml.cancel_recv(recv).unwrap());
        pair.pml.release(recv).unwrap();
    }
    // Two that are lent when as many as may be were lost; then none is.
    let loans = pair.inbox.0.iter().filter(|message| message[0] == 16).count();
    assert!((8..=10).contains(&loans), "{loans}");
    assert!(!pair.inbox.1 && pair.pml.relay_rings().0 <= 2);
}
