//! What a rank reads in each fragment of a long collective.

use std::ops::Range;

use super::{LongPlan, SlotPiece, SlotShape, combined_step, exposed_step};
use crate::Call;
use crate::schedule::Buffer;

impl LongPlan {
    /// How many pieces this rank reads in each fragment.
    pub(super) fn count_outputs(&self) -> usize {
        let is_root = self.root() == Some(self.me);
        match self.call {
            Call::Bcast { .. } => usize::from(!is_root),
            Call::Scatter { .. } => usize::from(!self.in_place()),
            Call::ReduceScatterBlock { .. } => 1,
            Call::Gather { .. } | Call::Reduce { .. } if !is_root => 0,
            Call::Reduce { .. } | Call::Allreduce { .. } if self.shape == SlotShape::Vectors => 1,
            Call::Exscan { .. } if self.me == 0 => 0,
            _ => self.ranks,
        }
    }

    /// The `index`th that this rank reads: whose slot, after which step, and what goes where; `None`: there are fewer.
    /// If these are no bytes, there is nothing to wait for.
    #[inline]
    pub(in crate::execute::sm) fn output(
        &self,
        fragment: u64,
        index: usize,
    ) -> Option<(usize, u32, SlotPiece)> {
        (index < self.outputs).then(|| self.output_at(fragment, index))
    }

    fn output_at(&self, fragment: u64, index: usize) -> (usize, u32, SlotPiece) {
        let LongPlan { me, ranks, .. } = *self;
        let begun = self.begun(fragment);
        let piece = |block: usize, skipped: u64, bytes: Range<u64>| {
            let start = begun + skipped;
            let first = self.blocks.range(block).start + start;
            let range = first..first + (bytes.end - bytes.start);
            SlotPiece { buffer: Buffer::Recv, block, start, range, at: bytes.start }
        };
        let all = |rank: usize| {
            let window = self.window(fragment, rank);
            0..window.end - window.start
        };
        // Beginning with its own, so that not all read the same slot at once.
        let from = (me + index) % ranks;
        match self.call {
            Call::Bcast { root, .. } => (root, exposed_step(fragment), piece(0, 0, all(root))),
            Call::Scatter { root, .. } => {
                (root, exposed_step(fragment), piece(0, 0, self.slice(fragment, me)))
            }
            Call::ReduceScatterBlock { .. } => {
                let mut piece = piece(0, 0, self.slice(fragment, me));
                if self.in_place() && !piece.is_empty() {
                    // It begins at the first block, and may be longer than that.
                    (piece.block, piece.start) = self.blocks.locate(piece.range.start);
                }
                (me, combined_step(fragment), piece)
            }
            Call::Gather { .. } | Call::Allgather { .. } | Call::Alltoall { .. } => {
                // Of an all-to-all in place, all is read again: it was taken from there.
                let is_there = from == me && self.shape == SlotShape::Whole && self.in_place();
                let piece = match self.shape {
                    _ if is_there => piece(0, 0, 0..0),
                    SlotShape::Pieces => piece(from, 0, self.slice(fragment, me)),
                    _ => piece(from, 0, all(from)),
                };
                (from, exposed_step(fragment), piece)
            }
            Call::Reduce { .. } | Call::Allreduce { .. } if self.shape == SlotShape::Vectors => {
                (me, combined_step(fragment), piece(0, 0, all(me)))
            }
            _ => {
                let slice = self.slice(fragment, from);
                (from, combined_step(fragment), piece(0, slice.start, slice))
            }
        }
    }

    /// All that is read of what a rank contributes: `first` is its part in the first fragment.
    pub(in crate::execute::sm) fn whole(&self, rank: usize, first: SlotPiece) -> SlotPiece {
        let of = if self.shape == SlotShape::Pieces { self.me } else { rank };
        let start = first.range.start;
        SlotPiece { range: start..start + self.block_bytes(of), ..first }
    }
}
