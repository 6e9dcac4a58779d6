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
