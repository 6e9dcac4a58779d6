//! Who gives and takes what: each operation as a gather into a buffer of the leader, and a scatter out of it.
//!
//! The root leads, or rank 0 if there is none. What rank `r` gives lies in the leader's buffer from `r` times the
//! stride on. A result of a reduction takes the place of what the leader gives.

use std::ops::Range;

use crate::call::Call;
use crate::operation::Operation;
use crate::schedule::Buffer;

/// What each rank gives begins at a multiple of this.
const ALIGN: u64 = 256;

/// Bytes that a rank gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Give {
    /// Where they are: a buffer of the rank's, and a range of its packed stream.
    pub buffer: Buffer,
    /// See there.
    pub range: Range<u64>,
    /// Where they go in the leader's buffer.
    pub at: u64,
}

/// Bytes that a rank gets: `blocks` blocks of `len` bytes, each `pitch` bytes behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Where the first begins in the leader's buffer.
    pub at: u64,
    /// How many there are.
    pub blocks: u64,
    /// Bytes of each.
    pub len: u64,
    /// From the beginning of one to that of the next.
    pub pitch: u64,
}

impl Take {
    /// Bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * self.len
    }

    /// From the first byte to the last, with what lies between the blocks.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let last = self.at + self.blocks.saturating_sub(1) * self.pitch;
        self.at..last + self.len
    }
}

/// What each rank gives to the leader's buffer and takes from it in one collective, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    operation: Operation,
    /// Who gathers and scatters.
    pub leader: usize,
    ranks: usize,
    /// The vector, or one rank's block.
    len: u64,
    /// Bytes that a rank gives that gives anything.
    given: u64,
    stride: u64,
    /// Whether what a rank gives is in its receive buffer; of rooted operations, whether that is so at the root.
    in_place: bool,
}

impl Frame {
    /// The frame of a call among so many ranks; `None`: it has none. All ranks agree, but for `in_place` of rooted
    /// ones.
    #[must_use]
    pub fn new(call: &Call<'_>, ranks: usize) -> Option<Frame> {
        let (leader, len, blocks, in_place) = match *call {
            Call::Bcast { root, len } => (root, len, 1, false),
            Call::Gather { root, len, in_place } => (root, len, 1, in_place),
            Call::Scatter { root, len, in_place } => (root, len, ranks as u64, in_place),
            Call::Reduce { root, len, in_place, .. } => (root, len, 1, in_place),
            Call::Allgather { len, in_place } => (0, len, 1, in_place),
            Call::Allreduce { len, in_place, .. } => (0, len, 1, in_place),
            Call::Alltoall { len, in_place } => (0, len, ranks as u64, in_place),
            Call::ReduceScatterBlock { len, in_place, .. } => (0, len, ranks as u64, in_place),
            _ => return None,
        };
        if ranks < 2 || leader >= ranks || len == 0 {
            return None;
        }
        let given = len.checked_mul(blocks)?;
        let stride = given.checked_next_multiple_of(ALIGN)?;
        // All of them fit.
        stride.checked_mul(ranks as u64)?;
        let operation = call.operation();
        Some(Frame { operation, leader, ranks, len, given, stride, in_place })
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// From what one rank gives to what the next one does, in the leader's buffer.
    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// How many slots of ranks the leader's buffer has.
    #[must_use]
    pub fn slots(&self) -> usize {
        match self.operation {
            Operation::Bcast | Operation::Scatter => 1,
            _ => self.ranks,
        }
    }

    /// Bytes of one copy of the gather.
    #[must_use]
    pub fn gather_bytes(&self) -> u64 {
        self.given
    }

    /// Bytes of one copy of the scatter.
    #[must_use]
    pub fn scatter_bytes(&self) -> u64 {
        (0..self.ranks)
            .filter_map(|rank| self.take(rank))
            .map(|take| take.bytes())
            .max()
            .unwrap_or(0)
    }

    /// Bytes of the leader's buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stride * self.slots() as u64
    }

    /// Whether the leader combines what was given.
    #[must_use]
    pub fn reduces(&self) -> bool {
        use Operation as O;
        matches!(self.operation, O::Reduce | O::Allreduce | O::ReduceScatterBlock)
    }

    /// Whether GPU leaders need memory of their own, even if there is one GPU: results would go where others still
    /// give.
    #[must_use]
    pub fn is_led_through_memory(&self) -> bool {
        match self.operation {
            Operation::ReduceScatterBlock => true,
            Operation::Alltoall => self.in_place,
            _ => false,
        }
    }

    /// Where what a rank gives lies in the leader's buffer.
    #[must_use]
    pub fn slot(&self, rank: usize) -> u64 {
        match self.operation {
            Operation::Bcast | Operation::Scatter => 0,
            _ => self.stride * rank as u64,
        }
    }

    /// What a rank gives, if it does.
    #[must_use]
    pub fn give(&self, rank: usize) -> Option<Give> {
        use Operation as O;
        let (is_leader, len) = (rank == self.leader, self.len);
        let rooted = matches!(self.operation, O::Gather | O::Reduce | O::Scatter);
        let in_place = self.in_place && (is_leader || !rooted);
        let (buffer, range) = match self.operation {
            O::Bcast if is_leader => (Buffer::Recv, 0..len),
            O::Scatter if is_leader => (Buffer::Send, 0..self.given),
            O::Bcast | O::Scatter => return None,
            O::Gather | O::Allgather if in_place => {
                let at = rank as u64 * len;
                (Buffer::Recv, at..at + len)
            }
            _ if in_place => (Buffer::Recv, 0..self.given),
            _ => (Buffer::Send, 0..self.given),
        };
        Some(Give { buffer, range, at: self.slot(rank) })
    }

    /// What a rank gets, if it does. It goes to the beginning of its receive buffer.
    #[must_use]
    pub fn take(&self, rank: usize) -> Option<Take> {
        use Operation as O;
        let (is_leader, len, own) = (rank == self.leader, self.len, rank as u64);
        let one = |at| Take { at, blocks: 1, len, pitch: len };
        let result = self.slot(self.leader);
        let take = match self.operation {
            // Its buffers have it already.
            O::Bcast if is_leader => return None,
            O::Scatter if is_leader && self.in_place => return None,
            O::Gather | O::Reduce if !is_leader => return None,
            O::Bcast => one(0),
            O::Scatter => one(own * len),
            O::Reduce | O::Allreduce => one(result),
            O::ReduceScatterBlock => one(result + own * len),
            O::Gather | O::Allgather => {
                Take { at: 0, blocks: self.ranks as u64, len, pitch: self.stride }
            }
            _ => Take { at: own * len, blocks: self.ranks as u64, len, pitch: self.stride },
        };
        Some(take)
    }

    /// How many ranks other than the leader copy in a step.
    #[must_use]
    pub fn copies(&self, step: super::HyperQStep) -> usize {
        let others = (0..self.ranks).filter(|rank| *rank != self.leader);
        match step {
            super::HyperQStep::Gather => others.filter(|rank| self.give(*rank).is_some()).count(),
            super::HyperQStep::Scatter => others.filter(|rank| self.take(*rank).is_some()).count(),
        }
    }
}
