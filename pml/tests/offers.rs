//! What peers tell of their buffers in RTS and GRANT: a key that reaches less far than the layout is not used, and
//! numbers that contradict each other lose the peer.

use crate::common::forged::{self, BY_MAPPED, REPLY, Told, word_at};
use crate::common::lab::{FRAGMENT, layout};
use crate::common::rogue::{Pair, offer, serial_of, word};
use crate::common::{Buffer, CANARY, Home, bytes, needs};
use gapless_bml::Rank;
use gapless_btl::RemoteKey;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_mem::Lease;
use gapless_pml::{Protocol, RequestId};

/// So few that a list of them goes with the message that tells of it.
const BLOCKS: u64 = 60;
const SIZE: u64 = 100 * BLOCKS;

/// Blocks with gaps whose first byte is at displacement `low`.
fn gaps(low: i64) -> Layout {
    let places: Vec<i64> =
        (0..BLOCKS).map(|i| low + i64::try_from(150 * i + i % 3).unwrap()).collect();
    let byte: Datatype = Primitive::UnsignedChar.into();
    Datatype::indexed_block(100, &places, &byte).unwrap().commit().unwrap()
}

/// Where a layout may begin: displacement 0 is in its first byte, before it or behind it.
const LOWS: [i64; 4] = [0, 1, 5000, -300];

/// The bytes of a buffer that its layout touches, cut short by `missing`.
fn touched(buffer: &Buffer, shape: &Layout, missing: u64) -> Lease {
    let told = Told::of(shape);
    let (_, origin) = needs(shape, 1);
    let start = origin.checked_add_signed(told.low).unwrap();
    buffer.lease(start, told.span - missing)
}

fn key_of(pair: &mut Pair, memory: &Lease) -> RemoteKey {
    let (peer, mapped) = pair.rogue.mapped(Rank(0)).unwrap();
    mapped.key(peer, memory).unwrap()
}

#[test]
fn nothing_is_read_through_a_key_that_is_shorter_than_the_buffer() {
    for low in LOWS {
        // One without gaps is as long as its message.
        for shape in [gaps(low), bytes(SIZE)] {
            for missing in [0, 1, 100] {
                let what = format!("from {low}, {missing} bytes are missing");
                let mut pair = Pair::new(Protocol::Mapped);
                let allocation = pair.rogue.allocate(needs(&shape, 1).0).unwrap().unwrap();
                let from =
                    Buffer::source_in(&shape, 1, 5, Home::Mapped(allocation.lease().clone()));
                let key = key_of(&mut pair, &touched(&from, &shape, missing));
                let to = Buffer::target(&bytes(SIZE), 1);
                let recv = pair.recv(&to);
                pair.inject(&Told::of(&shape).rts(0, Some(&key)));
                if missing == 0 {
                    assert_eq!(pair.heard(forged::FIN)[2], BY_MAPPED, "{what}");
                    to.assert_received(&from.packed(), &what);
                    continue;
                }
                let moved = pair.inbox.0.iter().any(|message| message[0] == forged::FIN);
                assert!(!moved, "{what}: it was read");
                to.assert_received(&[], &what);
                // Another protocol can move it.
                let cts = pair.heard(forged::CTS);
                let fragment = u32::from_le_bytes(cts[8..12].try_into().unwrap());
                let packed = from.packed();
                for (at, part) in (0..).zip(packed.chunks(fragment as usize)) {
                    let offset = at * u64::from(fragment);
                    pair.inject(&forged::data(word_at(&cts, 24), offset, part));
                }
                assert_eq!(pair.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE));
                to.assert_received(&from.packed(), &what);
            }
        }
    }
}

#[test]
fn nothing_is_written_through_a_key_that_is_shorter_than_the_buffer() {
    for low in LOWS {
        for shape in [gaps(low), bytes(SIZE)] {
            for missing in [0, 1, 100] {
                let what = format!("from {low}, {missing} bytes are missing");
                let mut pair = Pair::new(Protocol::MappedPut);
                let from = Buffer::source_in(&layout(SIZE, true), 1, 5, pair.home());
                let send = pair.send(&from);
                pair.turn();
                let serial = serial_of(&pair.heard(forged::RTS));
                let to = Buffer::target_in(&shape, 1, pair.home());
                let key = key_of(&mut pair, &touched(&to, &shape, missing));
                pair.inject(&Told::of(&shape).grant(serial, SIZE, &key));
                if missing == 0 {
                    assert_eq!(word_at(&pair.heard(forged::READY), 8), REPLY, "{what}");
                    assert!(pair.pml.test(send).unwrap().is_some(), "{what}");
                    to.assert_received(&from.packed(), &what);
                    continue;
                }
                pair.assert_lost(send, &what);
                assert!(to.bytes().iter().all(|byte| *byte == CANARY), "{what}: it was written");
            }
        }
    }
}

/// An endpoint that has posted a receive, and heard one offer.
fn offered(message: &[u8]) -> (Pair, Buffer, RequestId) {
    let mut pair = Pair::new(Protocol::Pipeline);
    let to = Buffer::target(&bytes(SIZE), 1);
    let recv = pair.recv(&to);
    pair.inject(message);
    (pair, to, recv)
}

/// What is wrong with an offer, and how it is made so.
type Lie = (&'static str, fn(&mut Vec<u8>));

/// Tells a word that is so much larger.
fn shift(message: &mut [u8], at: usize, by: i64) {
    let value = word_at(message, at).checked_add_signed(by).unwrap();
    word(message, at, value);
}

/// None of these may lose the peer before it lies.
fn assert_lies_are_found(honest: &[u8], lies: &[Lie]) {
    let (mut pair, _to, recv) = offered(honest);
    assert_eq!(pair.pml.test(recv), Ok(None));
    assert!(!pair.inbox.1 && pair.heard(forged::CTS)[0] == forged::CTS, "an honest offer");
    for (what, lie) in lies {
        let mut message = honest.to_vec();
        lie(&mut message);
        assert_ne!(message, honest, "{what}");
        let (mut pair, to, recv) = offered(&message);
        pair.assert_lost(recv, what);
        assert!(pair.inbox.1, "{what}: the sender was not told");
        to.assert_received(&[], what);
    }
}

#[test]
fn an_offer_that_contradicts_itself_loses_its_sender() {
    let shape = gaps(0);
    // A layout that is not known here and not inline: nothing but the header speaks of it.
    let absent = Told { inline: false, ..Told::of(&shape) }.rts(0, None);
    assert_lies_are_found(
        &absent,
        &[
            ("a span beyond all memory", |m| word(m, 64, u64::MAX)),
            ("a span beyond displacements", |m| word(m, 64, 1 << 63)),
            ("an end beyond displacements", |m| word(m, 56, i64::MAX.unsigned_abs())),
            ("an end just beyond", |m| {
                let span = word_at(m, 64);
                word(m, 56, i64::MAX.unsigned_abs() - span + 1);
            }),
            ("tiny fragments", |m| m[96..100].copy_from_slice(&127u32.to_le_bytes())),
            ("a space that nobody knows", |m| m[108] = 2),
            ("protocols that nobody knows", |m| m[109] = 4),
            ("data that comes nobody knows when", |m| m[110] = 4),
            ("a key that is not there", |m| m[106] = 1),
            ("a key that is not there to read", |m| m[107] = 1),
            ("a layout that is not there", |m| m[104] = 1),
            ("more than it says", |m| m.push(0)),
            ("too long a key", |m| {
                m[106] = 81;
                m.extend([1; 81]);
            }),
        ],
    );
}

#[test]
fn a_layout_that_comes_with_an_offer_is_as_long_as_was_told() {
    // A period, so that it is short when it is flattened.
    let shape = layout(SIZE, true);
    let inline = Told::of(&shape).rts(0, None);
    let length = word_at(&inline, 88);
    assert_eq!(inline.len() as u64, 128 + length);
    assert_lies_are_found(
        &inline,
        &[
            ("a longer one", |m| shift(m, 88, 1)),
            ("a shorter one", |m| shift(m, 88, -1)),
            ("none", |m| word(m, 88, 0)),
            ("a huge one", |m| word(m, 88, u64::MAX)),
            ("another span", |m| shift(m, 64, 1)),
            ("another place", |m| word(m, 56, 1)),
            ("another number of them", |m| word(m, 48, 2)),
        ],
    );
}

#[test]
fn a_layout_that_comes_with_an_offer_is_short() {
    let mut too_long = 0;
    for blocks in 1..200i64 {
        let places: Vec<i64> = (0..blocks).map(|i| 90 * i + i % 3).collect();
        let byte: Datatype = Primitive::UnsignedChar.into();
        let shape = Datatype::indexed_block(50, &places, &byte).unwrap().commit().unwrap();
        let message = Told::of(&shape).rts(0, None);
        let (flat, longest) = (shape.flatten().len(), 1024);
        // Longer ones are too long for any control message.
        if message.len() > 128 + 80 + 80 + longest {
            break;
        }
        let (mut pair, _to, recv) = offered(&message);
        if flat > longest {
            too_long += 1;
            pair.assert_lost(recv, &format!("{flat} bytes of layout"));
        } else {
            assert!(!pair.inbox.1, "{flat} bytes of layout");
        }
    }
    assert!(too_long > 1, "{too_long}");
}

#[test]
fn an_offer_of_device_memory_says_how_it_is_staged() {
    assert_lies_are_found(
        &offer(SIZE),
        &[
            // What is host memory is no device's.
            ("memory of the host on a device", |m| m[108] = 0),
            ("no fragments", |m| m[112..116].fill(0)),
            ("tiny fragments", |m| m[112..116].copy_from_slice(&127u32.to_le_bytes())),
            ("none at a time", |m| m[116..120].fill(0)),
        ],
    );
    // Without staging they mean nothing.
    let mut message = offer(SIZE);
    assert_eq!(message[112..116], FRAGMENT.to_le_bytes());
    message[108..120].fill(0);
    let (mut pair, _to, recv) = offered(&message);
    assert_eq!(pair.pml.test(recv), Ok(None));
    assert!(!pair.inbox.1);
}
