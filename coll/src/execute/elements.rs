//! The elements of buffers as words that ranks compare: a digest of their signature, and what they are, for people. The word
//! 0 stands for anything: bytes, nothing, or what is cut within an instance of a layout.
use std::ops::Range;

use gapless_dtype::{Layout, Primitive, SignatureKind};

use super::rows::{Blocks, Rows};
use crate::Operation;
use crate::schedule::{Buffer, Place};
use crate::terms::digest;

/// Blocks of several signatures where an operation of MPI's has blocks of one. All such collectives fit.
pub(super) const MIXED: u64 = u64::MAX;

/// The last byte says what the elements are: the code of their basic type, from 1 on, or this.
const SEVERAL: u64 = 0xFE;

/// `count` instances of a layout.
fn of(layout: &Layout, count: u64) -> u64 {
    let signature = layout.signature();
    let all = signature.digest(count);
    if signature.kind() != SignatureKind::Typed || all.bytes == 0 {
        return 0;
    }
    let code = signature.uniform().map_or(SEVERAL, |basic| basic as u64 + 1);
    digest(&[all.elements, all.bytes, all.hash]) & !0xFF | code
}

/// Several messages, one after the other.
pub(super) fn of_all(words: &[u64]) -> u64 {
    match words {
        [one] => *one,
        [first, ..] if !words.contains(&0) => {
            let alike = words.iter().all(|word| word & 0xFF == first & 0xFF);
            digest(words) & !0xFF | if alike { first & 0xFF } else { SEVERAL }
        }
        _ => 0,
    }
}

/// What the elements are.
pub(super) fn name(word: u64) -> String {
    let code = u8::try_from(word & 0xFF).ok().and_then(|code| code.checked_sub(1));
    let several = || "elements of several types".to_owned();
    code.and_then(Primitive::from_code).map_or_else(several, |basic| basic.name().to_owned())
}

/// What the send buffer and the receive buffer of an operation have that is of one signature at all ranks: the whole, or
/// each of `ranks` blocks.
pub(super) fn of_rows(operation: Operation, Rows { send, recv }: &Rows, ranks: u64) -> [u64; 2] {
    use Operation as O;
    match operation {
        O::Gather | O::Allgather => [whole(send), block(recv, ranks)],
        O::Scatter => [block(send, ranks), whole(recv)],
        O::Alltoall => [block(send, ranks), block(recv, ranks)],
        O::Bcast | O::Reduce | O::Allreduce | O::Scan | O::Exscan => [whole(send), whole(recv)],
        // Blocks that are received have lengths of their own, and the elements of the vector.
        O::ReduceScatter | O::ReduceScatterBlock => match send {
            Blocks::None => [0, whole(recv)],
            send => [whole(send), 0],
        },
        O::Allgatherv => [0, whole(recv)],
        _ => [0, 0],
    }
}

/// A place of a schedule; `range`: its range in the packed stream of the buffer.
pub(super) fn of_place(rows: &Rows, place: &Place, range: Range<u64>) -> u64 {
    let blocks = match place.buffer {
        Buffer::Send => &rows.send,
        Buffer::Recv => &rows.recv,
        Buffer::Scratch => return 0,
    };
    let (typed, range) = match blocks {
        Blocks::None => return 0,
        Blocks::Whole(typed) => (typed, range),
        Blocks::Each(each) => match each.get(place.block) {
            Some(typed) => (typed, place.start..place.start.saturating_add(place.len)),
            None => return 0,
        },
    };
    let size = typed.layout().size();
    let whole = |bytes: u64| size > 0 && bytes.is_multiple_of(size);
    if !whole(range.start) || !whole(range.end) || range.end > typed.packed_bytes() {
        return 0;
    }
    of(typed.layout(), (range.end - range.start) / size)
}

fn whole(blocks: &Blocks) -> u64 {
    match blocks {
        Blocks::None => 0,
        Blocks::Whole(typed) => of(typed.layout(), typed.count()),
        Blocks::Each(each) => {
            let Some(first) = each.first() else { return 0 };
            let alike = each.iter().all(|typed| typed.layout().id() == first.layout().id());
            let count = each.iter().fold(0u64, |all, typed| all.saturating_add(typed.count()));
            if alike { of(first.layout(), count) } else { 0 }
        }
    }
}

/// One of so many blocks.
fn block(blocks: &Blocks, ranks: u64) -> u64 {
    match blocks {
        Blocks::None => 0,
        Blocks::Whole(typed) if typed.count().is_multiple_of(ranks) => {
            of(typed.layout(), typed.count() / ranks)
        }
        Blocks::Whole(_) => 0,
        Blocks::Each(each) => {
            let mut words = each.iter().map(|typed| of(typed.layout(), typed.count()));
            let first = words.next().unwrap_or(0);
            if words.all(|word| word == first) { first } else { MIXED }
        }
    }
}
