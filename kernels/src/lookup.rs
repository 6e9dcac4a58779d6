//! Where a word of the stream lies: what `lookup.h` computes, for checking tables without a device.

use crate::args::{
    Affine, Divide, Listed, Mapped, SIDE_AFFINE, SIDE_LISTED, SIDE_STRIDED, Side, Strided,
};
use crate::divide;

/// A number in a plan: its address and its bytes, 4 or 8; signed.
pub type Plan<'a> = &'a dyn Fn(u64, u32) -> i64;

/// Bytes from displacement 0 to word `word` of `w` bytes.
#[must_use]
pub fn side_at(side: &Side, plan: Plan<'_>, word: u32, w: u32) -> i64 {
    match side.kind {
        SIDE_STRIDED => strided(&side.strided, word, w),
        SIDE_AFFINE => affine(&side.affine, word, w),
        SIDE_LISTED => listed(&side.listed, plan, word, w),
        _ => mapped(&side.mapped, plan, word, w),
    }
}

/// Quotient and rest.
fn split(n: u32, by: Divide, divisor: u32) -> (u32, u32) {
    let quotient = divide(n, by);
    (quotient, n.wrapping_sub(quotient.wrapping_mul(divisor)))
}

fn strided(shape: &Strided, word: u32, w: u32) -> i64 {
    let (mut row, rest) = split(word, shape.by_len, shape.len);
    let mut at = i64::from(rest) * i64::from(w);
    let dims = shape.dim.iter().take(shape.dims as usize);
    for (number, dim) in dims.enumerate().rev() {
        let (outer, index) = if number > 0 { split(row, dim.by, dim.count) } else { (0, row) };
        at += i64::from(index) * dim.stride;
        row = outer;
    }
    at
}

fn affine(shape: &Affine, word: u32, w: u32) -> i64 {
    let (instance, rest) = split(word, shape.by_size, shape.size);
    let before = |run: u32| {
        let (run, len, grow) = (i64::from(run), i64::from(shape.len), i64::from(shape.grow));
        run * len + grow * (run * (run - 1) / 2)
    };
    let last = (0..shape.count).take_while(|run| before(*run) <= i64::from(rest)).last();
    let run = last.unwrap_or(0);
    i64::from(instance) * shape.extent
        + i64::from(run) * shape.step
        + (i64::from(rest) - before(run)) * i64::from(w)
}

fn entry(plan: Plan<'_>, list: u64, wide: u32, index: u32) -> i64 {
    let bytes = if wide == 0 { 4 } else { 8 };
    plan(list + u64::from(index) * u64::from(bytes), bytes)
}

fn listed(shape: &Listed, plan: Plan<'_>, word: u32, w: u32) -> i64 {
    let (row, rest) = split(word, shape.by_len, shape.len);
    let (instance, block) = split(row, shape.by_blocks, shape.blocks);
    i64::from(instance) * shape.extent
        + entry(plan, shape.list, shape.wide, block) * shape.scale
        + i64::from(rest) * i64::from(w)
}

fn mapped(shape: &Mapped, plan: Plan<'_>, word: u32, w: u32) -> i64 {
    let (instance, rest) = split(word, shape.by_size, shape.size);
    let unit = shape.units + u64::from(rest >> shape.finer >> 5) * 8;
    let number = |at: u64| {
        let [a, b, c, d, ..] = plan(at, 4).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    };
    let begins = number(unit + 4) & (u32::MAX >> (31 - (rest >> shape.finer & 31)));
    let block = number(unit) + begins.count_ones();
    i64::from(instance) * shape.extent
        + entry(plan, shape.shifts, shape.wide, block) * shape.scale
        + i64::from(rest) * i64::from(w)
}
