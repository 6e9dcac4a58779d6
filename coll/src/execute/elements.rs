//! The elements of buffers as words that ranks compare: a digest of their signature, and what they are, for people. The
//! word 0 stands for anything: bytes, nothing, or what is cut within an instance of a layout.
use std::ops::Range;

use gapless_bml::digest;
use gapless_dtype::{Layout, Primitive, SignatureKind};
use gapless_engine::Typed;

use super::call_buffers::{BufferBlocks, CallBuffers};
use crate::operation::Operation;
use crate::schedule::{Buffer, Place};

/// The last byte says what the elements are: the code of their basic type, from 1 on, or this. Then the two bytes
/// before it have the codes of the first two.
const SEVERAL: u64 = 0xFE;

/// A range of the packed bytes of a buffer.
fn of(layout: &Layout, count: u64, bytes: Range<u64>) -> u64 {
    let signature = layout.signature();
    if signature.kind() != SignatureKind::Typed || bytes.is_empty() {
        return 0;
    }
    let Some((before, all)) = signature.part(count, bytes) else { return 0 };
    let code = |basic: Primitive| basic as u64 + 1;
    let one = signature.uniform().filter(|basic| !basic.is_pair()).or_else(|| all.uniform());
    let (kept, what) = match one {
        Some(basic) => (8, code(basic)),
        None => {
            let at = |place: u64| signature.basic_at(place % signature.elements()).map_or(0, code);
            (24, SEVERAL | at(before) << 8 | at(before + 1) << 16)
        }
    };
    digest(&[all.elements, all.bytes, all.hash]) >> kept << kept | what
}

/// All of a buffer.
fn all_of(typed: &Typed) -> u64 {
    of(typed.layout(), typed.count(), 0..typed.packed_bytes())
}

/// Several messages, one after the other.
pub(super) fn of_all(words: &[u64]) -> u64 {
    match words {
        [one] => *one,
        [first, ..] if !words.contains(&0) => {
            let alike = words.iter().all(|word| word & 0xFF == first & 0xFF);
            digest(words) & !0xFF_FFFF | if alike { first & 0xFF } else { SEVERAL }
        }
        _ => 0,
    }
}

/// What the elements are.
pub(super) fn name(word: u64) -> String {
    let basic = |byte: usize| {
        let code = word.to_le_bytes()[byte].checked_sub(1)?;
        Primitive::from_code(code).map(Primitive::name)
    };
    match (basic(0), basic(1), basic(2)) {
        (Some(one), ..) => one.to_owned(),
        (None, Some(first), Some(second)) if word & 0xFF == SEVERAL => {
            format!("elements of several types ({first}, {second}, ...)")
        }
        _ => "elements of several types".to_owned(),
    }
}

/// What the send buffer and the receive buffer of an operation have that is of one signature at all ranks.
pub(super) fn of_buffers(
    operation: Operation,
    CallBuffers { send, recv }: &CallBuffers,
) -> [u64; 2] {
    use Operation as O;
    match operation {
        O::Bcast | O::Reduce | O::Allreduce | O::Scan | O::Exscan => [whole(send), whole(recv)],
        // Blocks that are received have lengths of their own, and the elements of the vector.
        O::ReduceScatter | O::ReduceScatterBlock => match send {
            BufferBlocks::None => [0, whole(recv)],
            send => [whole(send), 0],
        },
        _ => [0, 0],
    }
}

/// What a rank sends to each rank, and expects of each, in an operation whose blocks have lengths that all know; `None`
/// in others.
pub(super) fn of_pairs(
    operation: Operation,
    buffers: &CallBuffers,
    root: Option<usize>,
    ranks: usize,
) -> Option<[Vec<u64>; 2]> {
    use Operation as O;
    let CallBuffers { send, recv } = buffers;
    let all = |side: &BufferBlocks| vec![whole(side); ranks];
    let each =
        |side: &BufferBlocks| (0..ranks).map(|of| nth(side, of, ranks)).collect::<Vec<u64>>();
    // Who is no root has no blocks.
    let with_root = |side: &BufferBlocks| {
        let word = whole(side);
        (0..ranks).map(|of| if root == Some(of) { word } else { 0 }).collect::<Vec<u64>>()
    };
    Some(match operation {
        O::Gather => [with_root(send), each(recv)],
        O::Scatter => [each(send), with_root(recv)],
        // Where the blocks lie in one description is not known here; others may have one for each block.
        O::Allgatherv if matches!(recv, BufferBlocks::Whole(_)) => [all(send), vec![0; ranks]],
        O::Allgather | O::Allgatherv => [all(send), each(recv)],
        O::Alltoall => [each(send), each(recv)],
        _ => return None,
    })
}

/// A place of a schedule; `range`: its range in the packed stream of the buffer.
pub(super) fn of_place(buffers: &CallBuffers, place: &Place, range: Range<u64>) -> u64 {
    let blocks = match place.buffer {
        Buffer::Send => &buffers.send,
        Buffer::Recv => &buffers.recv,
        Buffer::Scratch => return 0,
    };
    let (typed, range) = match blocks {
        BufferBlocks::None => return 0,
        BufferBlocks::Whole(typed) => (typed, range),
        BufferBlocks::Each(each) => match each.get(place.block) {
            Some(typed) => (typed, place.start..place.start.saturating_add(place.len)),
            None => return 0,
        },
    };
    if range.end > typed.packed_bytes() {
        return 0;
    }
    of(typed.layout(), typed.count(), range)
}

/// All of a buffer.
fn whole(blocks: &BufferBlocks) -> u64 {
    match blocks {
        BufferBlocks::None => 0,
        BufferBlocks::Whole(typed) => all_of(typed),
        BufferBlocks::Each(each) => {
            let Some(first) = each.first() else { return 0 };
            let alike = each.iter().all(|typed| typed.layout().id() == first.layout().id());
            let count = each.iter().fold(0u64, |all, typed| all.saturating_add(typed.count()));
            let bytes = count.saturating_mul(first.layout().size());
            if alike { of(first.layout(), count, 0..bytes) } else { 0 }
        }
    }
}

/// The block of a rank.
fn nth(blocks: &BufferBlocks, rank: usize, ranks: usize) -> u64 {
    match blocks {
        BufferBlocks::None => 0,
        BufferBlocks::Whole(typed) => {
            let (rank, bytes) = (rank as u64, typed.packed_bytes() / ranks as u64);
            of(typed.layout(), typed.count(), rank * bytes..(rank + 1) * bytes)
        }
        BufferBlocks::Each(each) => each.get(rank).map_or(0, all_of),
    }
}
