//! Lists whose neighbours lie far from each other.

use super::*;
use crate::cost::weight_of_blocks;

#[test]
fn what_is_scattered_is_begun_with_little() {
    let weight = |len: u64, at: fn(i64) -> i64| {
        let places: Vec<i64> = (0..1000).map(at).collect();
        let blocks = Datatype::hindexed_block(len, &places, &Primitive::Byte.into()).unwrap();
        weight_of_blocks(&blocks.commit().unwrap())
    };
    let shuffled = |i: i64| i * 387 % 1009 * 1000;
    assert_eq!(weight(24, shuffled), 4);
    assert_eq!(weight(500, shuffled), 1, "whole sectors");
    assert_eq!(weight(24, |i| 32 * i + i % 3 * 8), 1, "side by side");
    let v = Datatype::vector(1000, 1, 1000, &Primitive::Double.into()).unwrap().commit().unwrap();
    assert_eq!(weight_of_blocks(&v), 1);
    // The receiver is the slowest then, and has soon something to do.
    let s = Situation { receiver_blocks: 4 * super::list().receiver_blocks, ..super::list() };
    let first = |s: &Situation| {
        let range = cut(Protocol::StagedPut, s, &Tuning::default()).range(0);
        range.end - range.start
    };
    assert!(first(&s) < 8 << 20 && first(&s) < first(&list()), "{}", first(&s));
}

/// A list of doubles far apart: what is read of it by lines of which an eighth is wanted is not worth an offer.
#[test]
fn what_wastes_lines_is_not_offered_to_be_mapped() {
    let sent = |sender_span| {
        let s = Situation { bytes: 12 << 10, sender_blocks: 3 << 9, sender_span, ..node() };
        winner(&Situation { receiver_blocks: 3 << 9, link_eager_bytes: 1 << 15, mapped: true, ..s })
    };
    assert_eq!(sent(12 << 10), Protocol::Mapped);
    assert_eq!(sent(96 << 10), Protocol::Eager);
}

/// A list of `blocks` blocks of `len` bytes in no order, with gaps of one to three times `gap`.
fn scattered(blocks: i64, len: i64, gap: i64) -> Layout {
    let place = |i: i64| i * (len + 2 * gap) + i % 3 * gap / 2;
    let places: Vec<i64> = (0..blocks).map(|i| place(i * 77_777 % blocks)).collect();
    let list = Datatype::hindexed_block(len.unsigned_abs(), &places, &Primitive::Byte.into());
    list.unwrap().commit().unwrap()
}

/// One kernel moves lists, whoever knows their layouts: a layout is fetched for its first message.
#[test]
fn lists_go_from_layout_to_layout() {
    let lengths: Vec<u64> = (0..30_000).map(|i| 8 + i % 5 * 8).collect();
    let places: Vec<i64> = (0..30_000).map(|i| i * 64 + i % 3 * 8).collect();
    let varied = Datatype::hindexed(&lengths, &places, &Primitive::Byte.into()).unwrap();
    let irregular = Datatype::structure(
        &[1, 700, 3],
        &[0, 4_000_000, 9_000_000],
        &[varied.clone(), Datatype::vector(9, 2, 5, &Primitive::Int.into()).unwrap(), varied],
    );
    let irregular = irregular.unwrap().commit().unwrap();
    let grid = Datatype::vector(irregular.size() / 4, 1, 2, &Primitive::Int.into()).unwrap();
    let pages = scattered(20_000, 4096, 4096);
    let pairs = [
        (scattered(174_763, 24, 8), scattered(174_763, 24, 8)),
        (scattered(10_000, 24, 8), scattered(10_000, 24, 8)),
        // Whole sectors, whatever their number.
        (scattered(1 << 20, 64, 64), scattered(1 << 20, 64, 64)),
        (pages.clone(), pages.clone()),
        (
            pages,
            Datatype::contiguous(20_000 << 12, &Primitive::Byte.into()).unwrap().commit().unwrap(),
        ),
        (irregular.clone(), irregular.clone()),
        (irregular, grid.commit().unwrap()),
    ];
    let at_once = |s: &Situation| matches!(winner(s), Protocol::Mapped | Protocol::MappedPut);
    for (one, other) in &pairs {
        for (from, to) in [(one, other), (other, one)] {
            let s = between(from, to);
            let offered = (s.bytes, s.sender_blocks, from.true_extent().unsigned_abs());
            let touched = Some(Touched::unseen(offered, (to, 1)));
            let unknown = Situation { layout_fetch_bytes: 1 << 20, layout_uses: 1, touched, ..s };
            let host = |sender| {
                let ends = s.devices.map(|ends| DeviceEnds { sender, receiver: !sender, ..ends });
                let staged = s.staged.map(|staging| Staging {
                    sender_device: sender,
                    receiver_device: !sender,
                    direct: false,
                    ..staging
                });
                Situation { devices: ends, staged, ..s }
            };
            for s in [s, unknown] {
                assert!(at_once(&s), "two devices, {}: {s:?}", winner(&s));
                for s in [together(s, false), together(s, true)] {
                    assert!(at_once(&s), "one device, {}: {s:?}", winner(&s));
                }
            }
            for s in [host(true), host(false)] {
                assert!(at_once(&s), "the host and a device, {}: {s:?}", winner(&s));
            }
        }
    }
}

/// Whole sectors cross a link. Of many short blocks that fill theirs in part, at both ends, an H200 reads 64 MiB of
/// another's memory in 404 µs, or 470 in no order; staged, 245 or 296 µs pass.
#[test]
fn short_blocks_that_waste_a_link_are_packed_first() {
    let list = scattered(1 << 22, 24, 8);
    let s = between(&list, &list);
    assert!(winner(&s).is_staged(), "{}", winner(&s));
    assert_eq!(winner(&together(s, false)), Protocol::Mapped, "no link");
    // 6 and 24 MiB.
    for (blocks, staged) in [(1 << 18, false), (1 << 20, true)] {
        let list = scattered(blocks, 24, 8);
        assert_eq!(winner(&between(&list, &list)).is_staged(), staged, "{blocks} blocks");
    }
    // A side that is packed crosses it.
    let packed = Datatype::contiguous(list.size(), &Primitive::Byte.into()).unwrap();
    let packed = packed.commit().unwrap();
    assert_eq!(winner(&between(&list, &packed)), Protocol::MappedPut);
    assert_eq!(winner(&between(&packed, &list)), Protocol::Mapped);
}
