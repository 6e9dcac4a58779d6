//! Maps between the indices of an axis, as lists of intervals, and what they are in memory.

use super::sharding::Placement;
use gapless_dtype::{Datatype, TypeError};

/// Indices that follow each other, and what they are mapped to, which do as well.
///
/// A map is a list of them in which both sides ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: u64,
}

fn push(map: &mut Vec<Interval>, next: Interval) {
    match map.last_mut() {
        Some(last) if last.from + last.len == next.from && last.to + last.len == next.to => {
            last.len += next.len;
        }
        _ => map.push(next),
    }
}

/// One map after the other. Takes as long as both are, and gives no more intervals than both have.
pub(super) fn compose(first: &[Interval], second: &[Interval]) -> Vec<Interval> {
    let (mut firsts, mut seconds) = (first.iter().peekable(), second.iter().peekable());
    let mut map = Vec::new();
    while let (Some(a), Some(b)) = (firsts.peek(), seconds.peek()) {
        let (a_end, b_end) = (a.to + a.len, b.from + b.len);
        let (start, end) = (a.to.max(b.from), a_end.min(b_end));
        if start < end {
            let (from, to) = (a.from + (start - a.to), b.to + (start - b.from));
            push(&mut map, Interval { from, to, len: end - start });
        }
        if a_end <= b_end {
            firsts.next();
        } else {
            seconds.next();
        }
    }
    map
}

/// The map in the other direction.
pub(super) fn inverse(map: &[Interval]) -> Vec<Interval> {
    map.iter().map(|&Interval { from, to, len }| Interval { from: to, to: from, len }).collect()
}

/// The intervals of the indices from `rows.start` to `rows.end` of a map, counted along it.
pub(super) fn cut(map: &[Interval], rows: &std::ops::Range<u64>) -> Vec<Interval> {
    let mut before = 0;
    let numbered = map.iter().map(|it| {
        let from = before;
        before += it.len;
        (from, it)
    });
    let part = numbered.filter_map(|(at, it)| {
        let (start, end) = (rows.start.max(at), rows.end.min(at + it.len));
        let skip = start.saturating_sub(at);
        (start < end).then(|| Interval { from: it.from + skip, to: it.to + skip, len: end - start })
    });
    part.collect()
}

/// What rank `index` of `count` along a dimension of the mesh gets of `len` indices: old indices to new ones. `None` if
/// that takes more than `most` intervals.
pub(super) fn share_of(
    len: u64,
    placement: Placement,
    count: u64,
    index: u64,
    most: usize,
) -> Option<Vec<Interval>> {
    let (block, step) = match placement {
        _ if count == 1 => (len, 0),
        Placement::Replicate => (len, 0),
        Placement::Block { .. } => (len.div_ceil(count), 0),
        Placement::Cyclic { block, .. } => (block, block.saturating_mul(count)),
    };
    let mut map = Vec::new();
    let (mut start, mut to) = (block.saturating_mul(index), 0);
    while start < len {
        if map.len() == most {
            return None;
        }
        let taken = block.min(len - start);
        map.push(Interval { from: start, to, len: taken });
        to += taken;
        match step {
            0 => break,
            _ => start = start.saturating_add(step),
        }
    }
    Some(map)
}

/// Copies of `old` at the positions of an axis that are `stride` bytes apart, and how many bytes the first one is away
/// from position 0. Equal blocks at equal distances are a vector, others a list.
pub(super) fn along(
    old: &Datatype,
    stride: i64,
    positions: impl Iterator<Item = (u64, u64)>,
) -> Result<(Datatype, i64), TypeError> {
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for (at, len) in positions {
        match blocks.last_mut() {
            Some(last) if last.0 + last.1 == at => last.1 += len,
            _ => blocks.push((at, len)),
        }
    }
    let Some(&(first, len)) = blocks.first() else { return Ok((Datatype::contiguous(0, old)?, 0)) };
    // All of it lies in a local array, of which the bytes have 63 bits.
    let bytes = |positions: u64| positions.cast_signed().saturating_mul(stride);
    let list = || blocks.iter().map(|(at, _)| bytes(at - first)).collect::<Vec<i64>>();
    let repeated = |count, stride, old: &Datatype| match count {
        1 => Ok(old.clone()),
        _ => Datatype::hvector(count, 1, stride, old),
    };
    let step = blocks.get(1).map_or(0, |next| next.0 - first);
    let datatype = if blocks.iter().any(|block| block.1 != len) {
        let lens: Vec<u64> = blocks.iter().map(|block| block.1).collect();
        Datatype::hindexed(&lens, &list(), &Datatype::resized(0, stride, old)?)?
    } else if blocks.windows(2).all(|pair| pair[1].0 - pair[0].0 == step) {
        repeated(blocks.len() as u64, bytes(step), &repeated(len, stride, old)?)?
    } else {
        Datatype::hindexed_block(1, &list(), &repeated(len, stride, old)?)?
    };
    Ok((datatype, bytes(first)))
}
