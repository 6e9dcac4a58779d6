//! What each rank does in a long collective, fragment by fragment: which bytes it puts into its slot, which slice of
//! all slots it combines, and what it reads from whose slot. Pure.

use std::ops::Range;

use gapless_sync::mailboxes::{Readers, STEP_MAX};

use crate::schedule::{Buffer, Row, SCRATCH_ALIGN};
use crate::{Call, Operation};
use gapless_bml::digest;

use super::short_plan::RANKS_MAX;

/// Slots of a rank: it fills one while others still read the one before.
pub(super) const SLOTS: usize = 2;

/// The most bytes of a slot. All of them are used where processors are few only (`lengthen`).
const SLOT_MAX: u64 = 4 << 20;

/// The most bytes of all ranks' slots.
const SLOTS_MAX: u64 = 32 << 20;

/// The most bytes that one rank reads of another's slot, if there is a piece for each: with longer ones ranks wait less
/// often for each other, but less stays in the caches.
const PIECE_MAX: u64 = 64 << 10;

/// The most bytes of a slot that are used so.
const PIECES_MAX: u64 = 512 << 10;

/// The most bytes of a slot that are used if all read all of it, or combine slices of all of it: these stay in the
/// cache of the core that fills the slot, and of the cores that read it.
const WHOLE_MAX: u64 = 128 << 10;

/// The most bytes of all ranks' slots that are used so.
const WHOLES_MAX: u64 = 8 << 20;

/// Two ranks combine vectors of up to this many bytes whole, each for itself if both need the result: that reads no
/// more of the other's slot than a slice of each vector and of the result, and takes a step less. Longer ones are
/// shared out.
const VECTORS_MAX: u64 = 128 << 10;

/// What goes from one rank to others is cut into this many fragments, so that readers read one while the writer fills
/// the next.
const FRAGMENTS: u64 = 4;

/// The fewest bytes of a fragment that goes from one rank to others.
const FRAGMENT_MIN: u64 = 4 << 10;

/// The most bytes of a fragment that goes from one rank to others.
const FRAGMENT_MAX: u64 = 64 << 10;

/// The most bytes of a fragment that goes from one rank to one other, if that makes no more than 4096 fragments.
const FRAGMENT_PAIR: u64 = 16 << 10;

/// Bytes of a slot, if `ranks` ranks share memory.
pub(super) fn slot_bytes(ranks: usize) -> u64 {
    (SLOTS_MAX / (SLOTS * ranks.max(1)) as u64).min(SLOT_MAX) / 4096 * 4096
}

/// Bytes of a slot that are used if there is a piece in it for each rank.
pub(super) fn pieces_bytes(ranks: usize) -> u64 {
    slot_bytes(ranks).min(PIECE_MAX * ranks as u64).min(PIECES_MAX)
}

/// Bytes of a slot that are used if all ranks read all of it.
fn whole_bytes(ranks: usize) -> u64 {
    (WHOLES_MAX / (SLOTS * ranks.max(1)) as u64).min(WHOLE_MAX) / 4096 * 4096
}

/// Bytes of a user's buffer, and where they lie in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotPiece {
    pub(super) buffer: Buffer,
    /// The block that they lie in, and where they begin there.
    pub(super) block: usize,
    pub(super) start: u64,
    /// Where they lie in the packed stream of the buffer.
    pub(super) range: Range<u64>,
    /// Where they begin in the slot.
    pub(super) at: u64,
}

impl SlotPiece {
    pub(super) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where they lie in the slot.
    pub(super) fn in_slot(&self) -> Range<u64> {
        self.at..self.at + self.len()
    }
}

/// How the bytes of a rank's slot belong to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotShape {
    /// Everybody who reads it reads all of it.
    Whole,
    /// A piece for each rank.
    Pieces,
    /// A vector, of which each rank combines a slice.
    Slices,
    /// A vector of one of two ranks, of which the other reads all, to combine it with its own.
    Vectors,
}

impl SlotShape {
    /// Bytes of a slot that are used.
    fn slot(self, ranks: usize) -> u64 {
        match self {
            SlotShape::Pieces => pieces_bytes(ranks),
            SlotShape::Whole | SlotShape::Slices | SlotShape::Vectors => whole_bytes(ranks),
        }
    }
}

/// One rank's part of a long collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LongPlan {
    operation: Operation,
    /// The call, with blocks that are all as long as the longest.
    call: Call<'static>,
    me: usize,
    ranks: usize,
    shape: SlotShape,
    /// Bytes of the vector, or of the longest block.
    len: u64,
    /// The blocks of all ranks. Vectors are as long as a block.
    blocks: Row,
    /// Bytes of each block, or of the vector, in a fragment.
    fragment_bytes: u64,
    /// The first fragment of this length, and bytes in all fragments before it.
    lengthened: (u64, u64),
    /// How long a slice is, in a fragment and in the last one.
    slices: (u64, u64),
    /// How many fragments there are.
    pub(super) fragments: u64,
    /// Where what this rank contributes lies: which buffer, and which range of its packed stream. `None`: it
    /// contributes nothing, or what it receives may replace what others have not read yet, or it is needed in the slot.
    pub(super) own_input: Option<(Buffer, Range<u64>)>,
    /// How many pieces this rank reads in each fragment.
    outputs: usize,
}

/// The step of a round of the mailboxes that a rank reports once its slot has a fragment's bytes.
pub(super) fn exposed_step(fragment: u64) -> u32 {
    step(3 * fragment + 1)
}

/// The step that a rank reports once it has combined its slice of a fragment.
pub(super) fn combined_step(fragment: u64) -> u32 {
    step(3 * fragment + 2)
}

/// The step that a rank reports once it has read a fragment.
pub(super) fn done_step(fragment: u64) -> u32 {
    step(3 * fragment + 3)
}

fn step(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(STEP_MAX)
}

/// The least common multiple.
pub(super) fn lcm(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one.checked_div(a).unwrap_or(0).saturating_mul(other)
}

/// Slices and pieces are multiples of this many bytes.
fn grain(call: &Call<'_>) -> u64 {
    lcm(call.reduction().map_or(1, |of| of.unit.max(1)), SCRATCH_ALIGN)
}

/// The blocks of all ranks, if all know how long these are.
fn blocks(call: &Call<'_>, ranks: usize) -> Option<Row> {
    let Some(lens) = call.known_lens() else {
        return Some(Row::Equal { blocks: ranks, len: call.bytes()? });
    };
    lens.iter().try_fold(0u64, |sum, len| sum.checked_add(*len))?;
    (lens.len() == ranks).then(|| Row::each(lens))
}

impl LongPlan {
    /// What rank `me` does in a call that goes through slots; `None`: it does not. All ranks agree, because they agree
    /// on what this depends on.
    pub(super) fn new(call: &Call<'_>, me: usize, ranks: usize) -> Option<LongPlan> {
        let (operation, blocks) = (call.operation(), blocks(call, ranks)?);
        let call = call.evened()?;
        let shape = match call {
            Call::Bcast { .. } | Call::Gather { .. } | Call::Allgather { .. } => SlotShape::Whole,
            Call::Scatter { .. } | Call::Alltoall { .. } | Call::ReduceScatterBlock { .. } => {
                SlotShape::Pieces
            }
            Call::Reduce { len, .. } | Call::Allreduce { len, .. }
                if ranks == 2 && len <= VECTORS_MAX =>
            {
                SlotShape::Vectors
            }
            Call::Reduce { .. }
            | Call::Allreduce { .. }
            | Call::Scan { .. }
            | Call::Exscan { .. } => SlotShape::Slices,
            _ => return None,
        };
        let len = call.bytes().filter(|len| *len > 0)?;
        if !(2..=RANKS_MAX).contains(&ranks) {
            return None;
        }
        let slot = shape.slot(ranks);
        let grain = grain(&call);
        let share = len.div_ceil(FRAGMENTS).next_multiple_of(4096);
        let is_pair = ranks == 2 && len <= FRAGMENT_PAIR << 12;
        let share_max = if is_pair { FRAGMENT_PAIR } else { FRAGMENT_MAX };
        let share = share.clamp(FRAGMENT_MIN, share_max).min(slot);
        let most = match (shape, &call) {
            (SlotShape::Whole, Call::Bcast { .. }) => share,
            (SlotShape::Whole, _) => slot,
            (SlotShape::Vectors, Call::Reduce { .. }) => share.max(grain) / grain * grain,
            (SlotShape::Vectors, _) => slot / grain * grain,
            (SlotShape::Pieces, _) => slot / ranks as u64 / grain * grain,
            (SlotShape::Slices, _) => {
                (slot / ranks as u64 / grain).checked_mul(ranks as u64 * grain)?
            }
        };
        let whole = len.checked_next_multiple_of(grain)?;
        let fragment_bytes = if shape == SlotShape::Pieces { whole.min(most) } else { most };
        let fragments =
            len.checked_div(fragment_bytes)? + u64::from(!len.is_multiple_of(fragment_bytes));
        if fragment_bytes > slot {
            return None;
        }
        let fits = fragments.checked_mul(3)? < u64::from(STEP_MAX);
        let mut plan = LongPlan {
            operation,
            call,
            me,
            ranks,
            shape,
            len,
            blocks,
            fragment_bytes,
            lengthened: (0, 0),
            slices: (0, 0),
            fragments,
            own_input: None,
            outputs: 0,
        };
        plan.slices = plan.slices_of(len - fragments.saturating_sub(1) * fragment_bytes);
        plan.own_input = plan.find_own_input();
        plan.outputs = plan.count_outputs();
        fits.then_some(plan)
    }

    pub(super) fn operation(&self) -> Operation {
        self.operation
    }

    /// Bytes of all ranks' vectors, or of blocks for all.
    pub(super) fn volume(&self) -> u64 {
        self.len.saturating_mul(self.ranks as u64)
    }

    /// Bytes of the vector: all ranks know.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What a rank says of its lengths in its first entry: bytes of the vector, of a block, of its own block if they
    /// differ, or of all that it contributes, if these are blocks that differ.
    pub(super) fn told_bytes(&self, rank: usize) -> u64 {
        match (&self.blocks, self.shape) {
            (Row::Each { .. }, SlotShape::Pieces) => self.blocks.len(),
            _ => self.block_bytes(rank),
        }
    }

    /// Stands for the lengths of blocks, if each rank contributes blocks that differ.
    pub(super) fn digest(&self) -> u64 {
        match (&self.blocks, self.shape) {
            (Row::Each { ends }, SlotShape::Pieces) => digest(ends),
            _ => 0,
        }
    }

    /// Bytes of a rank's block, or of the vector.
    fn block_bytes(&self, rank: usize) -> u64 {
        let Range { start, end } = self.blocks.range(rank);
        end - start
    }

    /// The root, if it has one.
    pub(super) fn root(&self) -> Option<usize> {
        match self.call {
            Call::Bcast { root, .. }
            | Call::Gather { root, .. }
            | Call::Scatter { root, .. }
            | Call::Reduce { root, .. } => Some(root),
            _ => None,
        }
    }

    fn in_place(&self) -> bool {
        match self.call {
            Call::Gather { in_place, .. }
            | Call::Scatter { in_place, .. }
            | Call::Allgather { in_place, .. }
            | Call::Alltoall { in_place, .. }
            | Call::Reduce { in_place, .. }
            | Call::Allreduce { in_place, .. }
            | Call::Scan { in_place, .. }
            | Call::Exscan { in_place, .. }
            | Call::ReduceScatterBlock { in_place, .. } => {
                in_place && self.root().is_none_or(|root| root == self.me)
            }
            _ => false,
        }
    }

    /// Whether the results take the place of what ranks contribute, in all slots: each rank combines its slice of the
    /// first slot and of each further one there, so that each slot has in the end what the ranks up to its own have
    /// together.
    pub(super) fn is_scan(&self) -> bool {
        matches!(self.call, Call::Scan { .. } | Call::Exscan { .. })
    }

    /// Whose slot has the slice of the result that a rank has combined, for this one.
    pub(super) fn holder(&self, rank: usize) -> usize {
        match self.call {
            Call::Scan { .. } => self.me,
            Call::Exscan { .. } => self.me.saturating_sub(1),
            _ => rank,
        }
    }

    /// Whether this rank fills its slot.
    pub(super) fn exposes(&self) -> bool {
        let is_root = self.root() == Some(self.me);
        match self.call {
            Call::Bcast { .. } | Call::Scatter { .. } => is_root,
            Call::Gather { .. } => !(is_root && self.in_place()),
            Call::Reduce { .. } if self.shape == SlotShape::Vectors => !is_root,
            _ => true,
        }
    }

    /// Who reads this rank's slot.
    pub(super) fn readers(&self) -> Readers {
        match self.call {
            Call::Gather { root, .. } => Readers::One(root),
            Call::Reduce { root, .. } if self.shape == SlotShape::Vectors => Readers::One(root),
            _ => Readers::All,
        }
    }

    /// Whether what ranks contribute is copied to others as it is, each byte to one of them only, and reading it by the
    /// kernel is worth it. Of a bcast to one rank it is not: while the root fills a slot the other reads the one
    /// before, so that both are at work.
    pub(super) fn has_own_readers(&self) -> bool {
        match self.call {
            Call::Bcast { .. } => false,
            _ => !self.reduces() && (self.shape == SlotShape::Pieces || self.ranks == 2),
        }
    }

    /// How many ranks this one gets something of, itself among them.
    pub(super) fn sources(&self) -> usize {
        match self.call {
            Call::Bcast { .. } | Call::Scatter { .. } => 1,
            _ => self.ranks,
        }
    }

    /// Bytes of a slot that are used.
    pub(super) fn slot(&self) -> u64 {
        self.shape.slot(self.ranks)
    }

    /// Whether all ranks combine slices.
    pub(super) fn reduces(&self) -> bool {
        self.call.reduction().is_some()
    }

    /// Whether this rank hears of all others before it ends.
    pub(super) fn together(&self) -> bool {
        match self.call {
            Call::Bcast { .. } | Call::Scatter { .. } | Call::Gather { .. } => false,
            Call::Reduce { .. } => self.shape != SlotShape::Vectors,
            _ => true,
        }
    }

    /// How many bytes went in the fragments before this one, which is not a fragment before the first of `lengthened`.
    fn begun(&self, fragment: u64) -> u64 {
        let (first, before) = self.lengthened;
        before + fragment.saturating_sub(first) * self.fragment_bytes
    }

    /// Which bytes of the vector, or of a rank's block, a fragment has.
    fn window(&self, fragment: u64, rank: usize) -> Range<u64> {
        let (start, len) = (self.begun(fragment), self.block_bytes(rank));
        start.min(len)..(start + self.fragment_bytes).min(len)
    }

    /// The slice of a slot that a rank combines.
    fn slice(&self, fragment: u64, rank: usize) -> Range<u64> {
        let window = self.window(fragment, rank);
        let bytes = window.end - window.start;
        match self.shape {
            SlotShape::Pieces => {
                let at = rank as u64 * self.fragment_bytes;
                return at..at + bytes;
            }
            SlotShape::Vectors => return 0..bytes,
            SlotShape::Whole | SlotShape::Slices => {}
        }
        let each = if bytes == self.fragment_bytes { self.slices.0 } else { self.slices.1 };
        let at = |rank: u64| (rank * each).min(bytes);
        at(rank as u64)..at(rank as u64 + 1)
    }

    /// Bytes that a rank contributes, if it does.
    pub(super) fn input_bytes(&self, rank: usize) -> u64 {
        match self.shape {
            SlotShape::Pieces => self.blocks.checked_len().unwrap_or(u64::MAX),
            SlotShape::Whole | SlotShape::Slices | SlotShape::Vectors => self.block_bytes(rank),
        }
    }

    fn find_own_input(&self) -> Option<(Buffer, Range<u64>)> {
        let replaced = match self.shape {
            SlotShape::Pieces => self.root().is_none(),
            // The other rank reads it while this one writes results.
            SlotShape::Vectors => self.exposes(),
            SlotShape::Whole | SlotShape::Slices => false,
        };
        let needed = self.exposes() || self.combines(0).is_some();
        if !needed || self.in_place() && replaced || self.is_scan() {
            return None;
        }
        let first = self.input(0, true).next()?;
        let start = first.range.start;
        Some((first.buffer, start..start + self.input_bytes(self.me)))
    }

    /// Where byte `at` of the slot comes from, in what a rank contributes.
    pub(super) fn position(&self, fragment: u64, at: u64) -> u64 {
        let start = self.begun(fragment);
        match self.shape {
            SlotShape::Pieces => {
                let block = usize::try_from(at / self.fragment_bytes).unwrap_or(usize::MAX);
                self.blocks.range(block.min(self.ranks - 1)).start
                    + start
                    + at % self.fragment_bytes
            }
            SlotShape::Whole | SlotShape::Slices | SlotShape::Vectors => start + at,
        }
    }

    /// Where a slice of the result lies in the packed stream that is received.
    pub(super) fn result(&self, fragment: u64, slice: &Range<u64>) -> Range<u64> {
        let start = self.begun(fragment);
        start + slice.start..start + slice.end
    }

    /// Where in the packed stream that is received what this rank combines lies, if no other rank needs it.
    pub(super) fn own_result(&self, fragment: u64) -> Option<Range<u64>> {
        self.has_own_result().then(|| match self.call {
            Call::Reduce { .. } => self.result(fragment, &self.slice(fragment, self.me)),
            _ => self.window(fragment, self.me),
        })
    }

    /// Whether this rank combines a part of the result that no other rank needs.
    pub(super) fn has_own_result(&self) -> bool {
        match self.call {
            Call::ReduceScatterBlock { .. } => true,
            Call::Reduce { root, .. } => root == self.me,
            Call::Allreduce { .. } => self.shape == SlotShape::Vectors,
            _ => false,
        }
    }

    /// Whether each rank receives its slice of the result, which others get from it.
    pub(super) fn shares_results(&self) -> bool {
        matches!(self.call, Call::Allreduce { .. }) && self.shape != SlotShape::Vectors
    }

    /// Where in its slot a rank combines what it has no other place for.
    pub(super) fn in_slot(&self, slice: &Range<u64>) -> Range<u64> {
        // The other rank reads what lies before that.
        let skipped = if self.shape == SlotShape::Vectors { self.slot() } else { 0 };
        slice.start + skipped..slice.end + skipped
    }

    /// What this rank puts into its slot: `all`, or only what others read.
    pub(super) fn input(&self, fragment: u64, all: bool) -> impl Iterator<Item = SlotPiece> + '_ {
        let blocks = if self.shape == SlotShape::Pieces { self.ranks } else { 1 };
        let received = match self.call {
            // Its root has but one buffer.
            Call::Bcast { .. } => true,
            // In place is what its root would send to itself.
            Call::Scatter { .. } => false,
            _ => self.in_place(),
        };
        let buffer = if received { Buffer::Recv } else { Buffer::Send };
        let own = matches!(self.call, Call::Gather { .. } | Call::Allgather { .. }) && received;
        let left = if all { 0..0 } else { self.read_by_me(fragment) };
        // Of each block, what lies before that which others do not read, and what lies behind it.
        (0..2 * blocks).filter_map(move |half| {
            let index = half / 2;
            let block = if own { self.me } else { index };
            let first = self.blocks.range(block).start;
            let rank = if self.shape == SlotShape::Pieces { index } else { self.me };
            let (window, at) = (self.window(fragment, rank), index as u64 * self.fragment_bytes);
            let len = window.end - window.start;
            let cut = |at_slot: u64| at_slot.saturating_sub(at).min(len);
            let bytes = if half % 2 == 0 { 0..cut(left.start) } else { cut(left.end)..len };
            (!bytes.is_empty()).then(|| SlotPiece {
                buffer,
                block,
                start: window.start + bytes.start,
                range: first + window.start + bytes.start..first + window.start + bytes.end,
                at: at + bytes.start,
            })
        })
    }

    /// Which bytes of its slot nobody but this rank reads.
    fn read_by_me(&self, fragment: u64) -> Range<u64> {
        match self.shape {
            SlotShape::Whole | SlotShape::Vectors => 0..0,
            SlotShape::Pieces | SlotShape::Slices => self.slice(fragment, self.me),
        }
    }

    /// The slice of all slots that this rank combines, in its own.
    pub(super) fn combines(&self, fragment: u64) -> Option<Range<u64>> {
        if !self.reduces()
            || self.shape == SlotShape::Vectors && self.root().is_some_and(|root| root != self.me)
        {
            return None;
        }
        let slice = self.slice(fragment, self.me);
        (!slice.is_empty()).then_some(slice)
    }
}

mod lengthen;
mod output;

#[cfg(test)]
mod tests;
