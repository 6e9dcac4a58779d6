//! The user's buffers in one collective, and where bytes of them lie.

use std::ops::Range;

use gapless_engine::Typed;
use gapless_mem::Region;

use super::long_plan::{LongPlan, SlotPiece};
use super::short_plan::Span;
use crate::execute::call_buffers::{BufferBlocks, CallBuffers, Spot};
use crate::schedule::{Buffer, Place};

/// Both buffers of the user's. What is plain memory is found out once. `R`: what describes the rest; `()`: there is
/// none.
#[derive(Debug)]
pub(super) struct UserBuffers<R = CallBuffers> {
    described: R,
    /// The whole of what is sent, if that is plain memory that the CPU may touch.
    pub(super) send: Option<Region>,
    /// The whole of what is received into, if that is plain memory that the CPU may touch.
    pub(super) recv: Option<Region>,
}

/// What describes buffers that are not plain memory.
pub(super) trait Described {
    fn call_buffers(&self) -> Option<&CallBuffers>;
}

impl Described for CallBuffers {
    fn call_buffers(&self) -> Option<&CallBuffers> {
        Some(self)
    }
}

impl Described for () {
    fn call_buffers(&self) -> Option<&CallBuffers> {
        None
    }
}

/// Where bytes of a user's buffer lie.
pub(super) enum Lies {
    /// There, in memory that the CPU may touch.
    Plain(Region),
    Pieces(Vec<(Typed, Range<u64>)>),
}

fn plain(typed: &Typed) -> Option<Region> {
    typed.as_contiguous().filter(|region| region.space().cpu_accessible())
}

fn whole(blocks: &BufferBlocks) -> Option<Region> {
    let BufferBlocks::Whole(typed) = blocks else { return None };
    plain(typed)
}

fn bytes(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Whether all that is sent is plain memory, in one piece or in one for each block.
pub(super) fn sends_plain(buffers: &CallBuffers) -> bool {
    match &buffers.send {
        BufferBlocks::None => false,
        BufferBlocks::Whole(typed) => plain(typed).is_some(),
        BufferBlocks::Each(blocks) => {
            blocks.iter().all(|block| block.packed_bytes() == 0 || plain(block).is_some())
        }
    }
}

impl UserBuffers {
    pub(super) fn new(buffers: CallBuffers) -> UserBuffers {
        let (send, recv) = (whole(&buffers.send), whole(&buffers.recv));
        UserBuffers { described: buffers, send, recv }
    }

    /// A block of what is sent, if that is plain memory that the CPU may touch; `range`: where it lies in the packed
    /// stream.
    pub(super) fn block(&self, block: usize, range: Range<u64>) -> Option<Region> {
        match &self.described.send {
            BufferBlocks::Each(blocks) => plain(blocks.get(block)?),
            _ => self.send?.sub(range.start, bytes(&range)).ok(),
        }
    }
}

impl UserBuffers<()> {
    /// Buffers that are plain memory; `None`: there is no such buffer.
    #[inline]
    pub(super) fn plain(send: Option<Region>, recv: Option<Region>) -> UserBuffers<()> {
        UserBuffers { described: (), send, recv }
    }
}

impl<R: Described> UserBuffers<R> {
    #[inline]
    fn whole(&self, buffer: Buffer) -> Option<Region> {
        if buffer == Buffer::Send { self.send } else { self.recv }
    }

    /// Where a piece lies.
    #[inline]
    pub(super) fn piece(&self, piece: &SlotPiece) -> Lies {
        self.part(piece.buffer, (piece.block, piece.start), piece.range.clone())
    }

    /// Where a span lies.
    pub(super) fn span(&self, span: &Span) -> Lies {
        let range = span.range.start as u64..span.range.end as u64;
        self.part(span.buffer, (span.block, 0), range)
    }

    /// Where a range of a buffer's packed stream lies, which begins in a block.
    #[inline]
    pub(super) fn part(&self, buffer: Buffer, from: (usize, u64), range: Range<u64>) -> Lies {
        match self.whole(buffer).map(|whole| whole.sub(range.start, bytes(&range))) {
            Some(Ok(region)) => Lies::Plain(region),
            _ => self.pieces(buffer, from, range),
        }
    }

    #[cold]
    fn pieces(&self, buffer: Buffer, (block, start): (usize, u64), range: Range<u64>) -> Lies {
        let len = bytes(&range);
        if len == 0 {
            return Lies::Pieces(Vec::new());
        }
        let Some(buffers) = self.described.call_buffers() else {
            debug_assert!(false, "plain memory, as long as the plan says");
            return Lies::Pieces(Vec::new());
        };
        let blocks = if buffer == Buffer::Send { &buffers.send } else { &buffers.recv };
        match blocks.spot(&Place { buffer, block, start, len }, range) {
            Spot::Direct(typed) => {
                let bytes = typed.packed_bytes();
                Lies::Pieces(vec![(typed, 0..bytes)])
            }
            Spot::Pieces(pieces) => Lies::Pieces(pieces),
        }
    }

    /// What this rank contributes, if that is plain memory and stays as it is while others read it.
    pub(super) fn contributed(&self, plan: &LongPlan) -> Option<Region> {
        let (buffer, range) = plan.own_input.as_ref()?;
        self.whole(*buffer)?.sub(range.start, bytes(range)).ok()
    }

    /// What is received, if it is so long that stores around the caches pay.
    ///
    /// Among 4 and 16 ranks of a Xeon (2 MiB of second-level cache each), all-gathers and gathers in which a rank
    /// receives 8 MiB and more take 0.43 to 0.73 of the time so; whatever receives 4 MiB, 0.68 to 1.02. Of 2 MiB and
    /// less, most take longer, up to 1.7 times as long (`bench/results/cpu/coll/README.md`). All-reduces, reductions
    /// and bcasts were measured up to 4 MiB only.
    pub(super) fn long(&self) -> Option<&Typed> {
        /// The same bytes as `PART_OF` in `dtype/src/copy/method.rs`.
        const LONG: u64 = 4 << 20;
        let BufferBlocks::Whole(typed) = &self.described.call_buffers()?.recv else { return None };
        (typed.packed_bytes() >= LONG).then_some(typed)
    }
}
