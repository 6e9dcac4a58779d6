//! How staged messages are cut into fragments, and what that costs.

use super::*;
use crate::cost::staged_shape;
use crate::wire::cut::{Cut, FragmentShape};

/// 64 MiB in blocks of three doubles, from and to one like it.
pub(super) fn list() -> Situation {
    unshared(64 << 20, (64 << 20) / 24)
}

/// The same cut into fragments of so many bytes.
fn forced(s: &Situation, fragment_bytes: u32) -> (Situation, Tuning) {
    let staged = s.staged.map(|staging| Staging { fragment_bytes, ..staging });
    let least = Tuning { staged_least_bytes: fragment_bytes, ..Tuning::default() };
    (Situation { staged, ..*s }, least)
}

pub(super) fn cut(protocol: Protocol, s: &Situation, tuning: &Tuning) -> Cut {
    let staging = s.staged.expect("it is staged");
    let shape = staged_shape(protocol, s, &staging, tuning);
    assert!(shape.fragment <= staging.fragment_bytes, "{protocol}: {shape:?} of {} bytes", s.bytes);
    Cut::new(s.bytes, shape).unwrap_or_else(|| panic!("{protocol}: {shape:?} of {} bytes", s.bytes))
}

#[test]
fn any_message_is_cut_into_fragments_that_cover_it() {
    let sizes = (0..62).flat_map(|shift| [1 << shift, (1u64 << shift) * 3 / 2 + 1]);
    for bytes in sizes.chain([0xFFFF_FFFF_FFFF]) {
        for (blocks, wish, depth) in [(1, 128, 1), (2, 1000, 64), (1 << 20, 16 << 20, 4)] {
            for (one_device, turns) in [(false, false), (true, false), (true, true)] {
                let s = unshared(bytes, blocks.min(bytes));
                let s = if one_device { together(s, turns) } else { s };
                let staged =
                    s.staged.map(|staging| Staging { fragment_bytes: wish, depth, ..staging });
                let s = Situation { staged, ..s };
                for protocol in Protocol::STAGED {
                    cut(protocol, &s, &Tuning::default());
                    let none =
                        Tuning { staged_least_bytes: 0, launch_wait_ns: 0.0, ..Tuning::default() };
                    cut(protocol, &s, &none);
                }
            }
        }
    }
}

#[test]
fn fragments_that_are_asked_for_are_had() {
    for protocol in Protocol::STAGED {
        for fragment in [1000, 1 << 20, 4 << 20] {
            let (s, tuning) = forced(&list(), fragment);
            assert_eq!(
                cut(protocol, &s, &tuning).shape(),
                FragmentShape::even(fragment),
                "{protocol}"
            );
        }
    }
}

#[test]
fn fragments_are_few_and_shorter_where_the_link_would_wait() {
    let tuning = Tuning::default();
    let ramps = |protocol| {
        let shape = cut(protocol, &list(), &tuning).shape();
        (shape.head > 0, shape.tail > 0)
    };
    assert_eq!(ramps(Protocol::StagedPut), (false, true));
    assert_eq!(ramps(Protocol::StagedGet), (true, false));
    assert_eq!(ramps(Protocol::StagedPutCopy), (true, true));
    assert_eq!(ramps(Protocol::StagedGetCopy), (true, true));
    for protocol in &Protocol::STAGED[..4] {
        let total = cut(*protocol, &list(), &tuning).total();
        assert!((3..=8).contains(&total), "{protocol}: {total} fragments");
        assert_eq!(cut(*protocol, &unshared(1 << 20, 1 << 16), &tuning).total(), 1, "{protocol}");
    }
    // To and from the host at once: the last fragment is alone as long as it takes.
    for (bytes, fragments) in [(64, 12..=32), (256, 24..=64)] {
        let cut = cut(Protocol::CopyInOut, &unshared(bytes << 20, 4096), &tuning);
        assert!(fragments.contains(&cut.total()), "{bytes} MiB: {} fragments", cut.total());
    }
}

#[test]
fn no_other_length_of_fragments_is_much_better() {
    for protocol in Protocol::STAGED {
        for shift in 16..=29 {
            for length in [24, 4096] {
                let s = unshared(1 << shift, (1 << shift) / length);
                let here = time(&s, protocol);
                let others = (14..=25).map(|shift| {
                    let (s, tuning) = forced(&s, 1 << shift);
                    candidates(&s, &tuning)[protocol.index()].predicted_ns
                });
                let best = others.fold(f64::INFINITY, f64::min);
                let what = format!("{protocol}, {} bytes in blocks of {length}", s.bytes);
                assert!(here <= 1.08 * best, "{what}: {here} ns, {best} in other fragments");
            }
        }
    }
}

#[test]
fn sparse_lists_come_near_what_is_asked_of_two_devices() {
    // 0.8 of a copy of 64 MiB, which takes 180 us; through the host 0.9 of 1.22 ms and 4.86 ms.
    let best = time(&list(), winner(&list()));
    assert!(winner(&list()).is_staged() && best <= 225_000.0, "{best}");
    for (bytes, most) in [(64u64, 1_365_000.0), (256, 5_390_000.0)] {
        let ns = time(&unshared(bytes << 20, 4096), Protocol::CopyInOut);
        assert!(ns <= most, "{bytes} MiB: {ns}");
    }
}

#[test]
fn kernels_beside_a_copier_take_longer_fragments() {
    // Unpacking is the slowest, and nothing before it differs: the links are of no account.
    let quick = Tuning { peer_copy_mb_s: 1e12, peer_store_mb_s: 1e12, ..Tuning::default() };
    let s = Situation { sender_blocks: 2, ..list() };
    let total = |protocol| cut(protocol, &s, &quick).total();
    let (beside, alone) = (total(Protocol::StagedGetCopy), total(Protocol::StagedPut));
    assert!(1 < beside && beside < alone, "{beside} beside a copier, {alone} without");
}

#[test]
fn a_gap_that_was_measured_as_none_does_not_shorten_fragments() {
    let s = unshared(64 << 20, 1);
    let staged = s.staged.map(|staging| Staging { direct: true, ..staging });
    let s = Situation { staged, ..s };
    let shape = |copy_gap_ns| {
        let tuning = Tuning { copy_gap_ns, ..Tuning::default() };
        cut(Protocol::StagedPutCopy, &s, &tuning).shape()
    };
    assert_eq!(shape(0.0), shape(1.0));
    assert_eq!(shape(0.0), shape(Tuning::default().copy_gap_ns));
}
