//! Who gives and takes what: each operation as a gather into a buffer of the leader, and a scatter out of it.
//!
//! The root leads, or rank 0 if there is none. What rank `r` gives lies in the leader's buffer from `r` times the stride
//! on. A result of a reduction takes the place of what the leader gives.
//!
//! With several leaders each has a frame of its own, with a slice of the data ([`Frame::slices`]):
//!
//! ```text
//! bcast, reduce, allreduce            bytes of the vector: all ranks give and take a part in each frame
//! gather, allgather                   what some ranks give, which all take
//! scatter, alltoall, reduce_scatter   what all give to some ranks
//! ```

use std::ops::Range;

use crate::schedule::Buffer;
use crate::{Call, Operation};

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
    /// Where they go, one behind the other, in the packed stream of the receive buffer.
    pub to: u64,
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

/// The frame of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    operation: Operation,
    /// Who gathers and scatters.
    pub leader: usize,
    /// The root of an operation that has one.
    root: usize,
    ranks: usize,
    /// The part of the vector, or one rank's block.
    len: u64,
    /// Where the part begins in the vector.
    from: u64,
    /// Whose blocks these are: so many ranks from this one on. Of a vector, all.
    first: usize,
    count: usize,
    /// Bytes that a rank gives that gives anything.
    given: u64,
    stride: u64,
    /// Whether what a rank gives is in its receive buffer; of rooted operations, whether that is so at the root.
    in_place: bool,
}

impl Frame {
    /// The frame of a call among so many ranks; `None`: it has none. All ranks agree, but for `in_place` of rooted ones.
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
        let (root, from, first, count) = (leader, 0, 0, ranks);
        Some(Frame {
            operation,
            leader,
            root,
            ranks,
            len,
            from,
            first,
            count,
            given,
            stride,
            in_place,
        })
    }

    /// The frames of a call among so many ranks, one for each leader; none: it has none. There are fewer leaders than asked
    /// for if there are fewer ranks, or bytes. In place an all-to-all and a reduce-scatter have one leader, as what a rank
    /// gets from one would overwrite what it still gives to another. All ranks agree.
    #[must_use]
    pub fn slices(call: &Call<'_>, ranks: usize, leaders: usize) -> Vec<Frame> {
        let Some(whole) = Frame::new(call, ranks) else { return Vec::new() };
        let leaders = leaders.min(ranks);
        let is_whole = matches!(
            whole.operation,
            Operation::Alltoall | Operation::ReduceScatterBlock if whole.in_place
        );
        if leaders < 2 || is_whole {
            return vec![whole];
        }
        let unit = call.reduction().map_or(1, |of| of.unit.max(1));
        let slice = |at: usize| whole.slice(at, leaders, unit);
        let slices: Vec<Frame> = (0..leaders).filter_map(slice).collect();
        if slices.len() < 2 { vec![whole] } else { slices }
    }

    /// The slice of one of the leaders, if there is anything in it.
    fn slice(&self, at: usize, leaders: usize, unit: u64) -> Option<Frame> {
        use Operation as O;
        let edge = |at: usize| at * self.ranks / leaders;
        let blocks = edge(at)..edge(at + 1);
        let leader = if blocks.contains(&self.root) { self.root } else { blocks.start };
        let whole = Frame { leader, ..*self };
        let (first, count) = (blocks.start, blocks.len());
        match self.operation {
            O::Bcast | O::Reduce | O::Allreduce => {
                let grain = unit * (ALIGN / greatest_common_divisor(unit, ALIGN));
                let share = self.len.div_ceil(leaders as u64).checked_next_multiple_of(grain);
                let share = share.unwrap_or(self.len);
                let from = share.checked_mul(at as u64).filter(|from| *from < self.len)?;
                let len = share.min(self.len - from);
                let stride = len.next_multiple_of(ALIGN);
                Some(Frame { len, from, given: len, stride, ..whole })
            }
            O::Gather | O::Allgather => Some(Frame { first, count, ..whole }),
            _ => {
                let given = self.len * count as u64;
                let stride = given.next_multiple_of(ALIGN);
                Some(Frame { first, count, given, stride, ..whole })
            }
        }
    }

    /// Whose blocks they are.
    fn blocks(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// Which ranks may give something.
    pub(super) fn givers(&self) -> Range<usize> {
        match self.operation {
            Operation::Bcast | Operation::Scatter => self.root..self.root + 1,
            Operation::Gather | Operation::Allgather => self.blocks(),
            _ => 0..self.ranks,
        }
    }

    /// Whether nothing lies behind what a rank gives in the leader's buffer.
    #[must_use]
    pub fn is_last(&self, rank: usize) -> bool {
        rank + 1 == self.givers().end
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
        self.givers().len()
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

    /// Whether heads need memory of their own, even if there is one GPU: results would go where others still give.
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
            _ => self.stride * rank.saturating_sub(self.givers().start) as u64,
        }
    }

    /// What a rank gives, if it does.
    #[must_use]
    pub fn give(&self, rank: usize) -> Option<Give> {
        use Operation as O;
        let (is_root, len) = (rank == self.root, self.len);
        let rooted = matches!(self.operation, O::Gather | O::Reduce | O::Scatter);
        let in_place = self.in_place && (is_root || !rooted);
        // Of a vector, or of a block for each rank.
        let part = self.from + self.first as u64 * len;
        if !self.givers().contains(&rank) {
            return None;
        }
        let (buffer, start) = match self.operation {
            O::Bcast => (Buffer::Recv, part),
            O::Scatter => (Buffer::Send, part),
            O::Gather | O::Allgather if in_place => (Buffer::Recv, rank as u64 * len),
            O::Gather | O::Allgather => (Buffer::Send, 0),
            _ if in_place => (Buffer::Recv, part),
            _ => (Buffer::Send, part),
        };
        Some(Give { buffer, range: start..start + self.given, at: self.slot(rank) })
    }

    /// What a rank gets, if it does.
    #[must_use]
    pub fn take(&self, rank: usize) -> Option<Take> {
        use Operation as O;
        let (is_root, len) = (rank == self.root, self.len);
        let own = rank.saturating_sub(self.first) as u64;
        let one = |at| Take { at, to: self.from, blocks: 1, len, pitch: len };
        let result = self.slot(self.leader);
        let take = match self.operation {
            // Its buffers have it already.
            O::Bcast if is_root => return None,
            // It leads the slice with its own block.
            O::Scatter if is_root && self.in_place => return None,
            O::Gather | O::Reduce if !is_root => return None,
            O::Scatter | O::Alltoall | O::ReduceScatterBlock if !self.blocks().contains(&rank) => {
                return None;
            }
            O::Bcast => one(0),
            O::Scatter => one(own * len),
            O::Reduce | O::Allreduce => one(result),
            O::ReduceScatterBlock => one(result + own * len),
            O::Gather | O::Allgather => {
                let (to, blocks) = (self.first as u64 * len, self.count as u64);
                Take { at: 0, to, blocks, len, pitch: self.stride }
            }
            _ => {
                let blocks = self.ranks as u64;
                Take { at: own * len, to: 0, blocks, len, pitch: self.stride }
            }
        };
        Some(take)
    }

    /// How many ranks other than the leader copy in a step.
    #[must_use]
    pub fn copies(&self, step: super::Step) -> usize {
        let others = (0..self.ranks).filter(|rank| *rank != self.leader);
        match step {
            super::Step::Gather => others.filter(|rank| self.give(*rank).is_some()).count(),
            super::Step::Scatter => others.filter(|rank| self.take(*rank).is_some()).count(),
        }
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
