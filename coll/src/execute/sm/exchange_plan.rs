//! What each rank does in an exchange: a collective of which only the sender and the receiver of bytes know how many
//! there are. Which bytes go to which rank, where they lie in an entry or in slots, and in which fragments. Pure.
//!
//! Each rank cuts its slots into cells, one for each rank that it sends to, so that all are through after the same
//! number of fragments. What it sends to whom, and where that lies, stands in a directory: in the first bytes of its
//! first slot, or in its entry, if the bytes are few enough to go with that ([`ExchangePlan::is_inline`]). Readers
//! believe nothing of it that does not fit ([`DirectoryEntry::read`]).

use std::ops::Range;

use gapless_sync::mailboxes::{ENTRY_BYTES, Readers, STEP_MAX};

use crate::schedule::{Buffer, Row};
use crate::topologies::Edge;
use crate::{Call, Operation};

use super::long_plan::{SlotPiece, pieces_bytes, slot_bytes};
use super::short_plan::RANKS_MAX;

/// Bytes that an entry begins with: the operation, which slot comes first, whether data follows, and the root.
pub(super) const HEAD_BYTES: usize = 8;

/// Bytes of a directory's entry in a slot.
pub(super) const DIRECTORY_ENTRY_BYTES: usize = 16;

/// Bytes of a rank's end in a mailbox entry: where, behind the directory, the bytes for that rank end.
const END_BYTES: usize = 2;

/// A block that goes to a rank, or comes from it: its number in the buffer, and where it lies in the packed stream of
/// that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StreamPart {
    block: usize,
    range: Range<u64>,
}

/// What goes from a buffer to each rank, or comes into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    buffer: Buffer,
    /// In the order of the ranks. What goes between two ranks is one stream.
    parts: Vec<StreamPart>,
    /// Where the parts of each rank end.
    ends: Vec<usize>,
    /// Bytes for each rank.
    bytes: Vec<u64>,
}

impl Flow {
    /// `named`: the rank, the lane and the block of each part; lanes order the parts of one rank.
    fn new(
        buffer: Buffer,
        row: &Row,
        ranks: usize,
        named: impl Iterator<Item = (usize, u32, usize)>,
    ) -> Flow {
        let mut named: Vec<(usize, u32, usize)> = named.collect();
        if !named.is_sorted() {
            named.sort_unstable();
        }
        let (mut bytes, mut ends) = (vec![0; ranks], Vec::with_capacity(ranks));
        let part =
            |&(_, _, block): &(usize, u32, usize)| StreamPart { block, range: row.range(block) };
        let parts: Vec<StreamPart> = named.iter().map(part).collect();
        for ((rank, ..), part) in named.iter().zip(&parts) {
            bytes[*rank] += part.range.end - part.range.start;
        }
        let mut end = 0;
        for rank in 0..ranks {
            end += named[end..].iter().take_while(|it| it.0 == rank).count();
            ends.push(end);
        }
        Flow { buffer, parts, ends, bytes }
    }

    fn parts(&self, rank: usize) -> &[StreamPart] {
        let start = rank.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.parts[start..self.ends[rank]]
    }

    /// How many bytes go to a rank, or are expected of it.
    pub(super) fn bytes(&self, rank: usize) -> u64 {
        self.bytes[rank]
    }

    /// The pieces of the buffer that a window of a rank's stream is; they lie at `at`, one behind the other.
    fn pieces(
        &self,
        rank: usize,
        window: Range<u64>,
        at: u64,
    ) -> impl Iterator<Item = SlotPiece> + '_ {
        let mut begin = 0;
        self.parts(rank).iter().filter_map(move |StreamPart { block, range }| {
            let (start, end) = (begin, begin + range.end - range.start);
            begin = end;
            let (from, to) = (window.start.max(start), window.end.min(end));
            (from < to).then(|| SlotPiece {
                buffer: self.buffer,
                block: *block,
                start: from - start,
                range: range.start + from - start..range.start + to - start,
                at: at + from - window.start,
            })
        })
    }
}

/// Where what goes to a rank lies in each slot of the sender's: fragment `n` is bytes `n * step …` of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) at: u64,
    pub(super) step: u64,
}

/// How many bytes a rank sends to another, and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryEntry {
    pub(super) bytes: u64,
    pub(super) cell: Cell,
}

impl DirectoryEntry {
    /// As it lies in a slot.
    pub(super) fn write(self) -> [u8; DIRECTORY_ENTRY_BYTES] {
        pair(self.bytes, self.cell.at | self.cell.step << 32)
    }

    /// What another rank has written. `None`: no rank writes that; its cell is in its slot, and not empty, and there
    /// are not more fragments than can be.
    pub(super) fn read(entry: [u8; DIRECTORY_ENTRY_BYTES], ranks: usize) -> Option<DirectoryEntry> {
        let [bytes, place] = numbers(entry);
        let cell = Cell { at: place & u64::from(u32::MAX), step: place >> 32 };
        let inside = cell.step > 0 && cell.at + cell.step <= slot_bytes(ranks);
        let fits = inside && may_be(bytes.div_ceil(cell.step));
        (fits || bytes == 0).then_some(DirectoryEntry { bytes, cell })
    }
}

/// Whether this number of fragments has steps that can be told apart.
fn may_be(fragments: u64) -> bool {
    fragments.checked_mul(3).is_some_and(|steps| steps < u64::from(STEP_MAX))
}

/// Two numbers as an entry.
fn pair(first: u64, second: u64) -> [u8; DIRECTORY_ENTRY_BYTES] {
    let mut entry = [0; DIRECTORY_ENTRY_BYTES];
    entry[..8].copy_from_slice(&first.to_le_bytes());
    entry[8..].copy_from_slice(&second.to_le_bytes());
    entry
}

/// An entry as two numbers: how many bytes, and where they lie.
pub(super) fn numbers(entry: [u8; DIRECTORY_ENTRY_BYTES]) -> [u64; 2] {
    let (mut first, mut second) = ([0; 8], [0; 8]);
    first.copy_from_slice(&entry[..8]);
    second.copy_from_slice(&entry[8..]);
    [u64::from_le_bytes(first), u64::from_le_bytes(second)]
}

/// Which bytes of a stream a fragment has.
pub(super) fn window(fragment: u64, step: u64, bytes: u64) -> Range<u64> {
    let start = fragment.saturating_mul(step);
    start.min(bytes)..start.saturating_add(step).min(bytes)
}

/// One rank's part of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExchangePlan {
    pub(super) operation: Operation,
    root: Option<usize>,
    me: usize,
    pub(super) out: Flow,
    pub(super) into: Flow,
    cells: Vec<Cell>,
    /// Fragments of what this rank sends; 0 if it goes with the entry.
    pub(super) sends: u64,
    is_inline: bool,
    /// Bytes of a stream that may come at once: what comes takes the place of what is still to be sent.
    most: Option<u64>,
}

/// Whether a call is an exchange that goes through shared memory: all ranks agree.
pub(super) fn fits(call: &Call<'_>, ranks: usize) -> bool {
    use Operation::{Alltoallv, Gatherv, NeighborAllgather, NeighborAlltoall, Scatterv};
    let exchanges = [Alltoallv, Gatherv, Scatterv, NeighborAllgather, NeighborAlltoall];
    exchanges.contains(&call.operation()) && (2..=RANKS_MAX).contains(&ranks)
}

/// What goes out and comes in: buffer, and rank, lane and block of each part.
fn flows(call: &Call<'_>, me: usize, ranks: usize) -> [Flow; 2] {
    let (send, recv) = crate::build::rows(call, me, ranks);
    let flow = |buffer: Buffer, named: Vec<(usize, u32, usize)>| {
        let row = if buffer == Buffer::Send { &send } else { &recv };
        Flow::new(buffer, row, ranks, named.into_iter())
    };
    // A block for each rank, but perhaps the own, which is in its place.
    let all = |in_place: bool| {
        let others = (0..ranks).filter(move |rank| !(in_place && *rank == me));
        others.map(|rank| (rank, 0, rank)).collect::<Vec<_>>()
    };
    let one = |rank: usize, is_there: bool| if is_there { vec![(rank, 0, 0)] } else { Vec::new() };
    let along = |edges: &[Option<Edge>], block: &dyn Fn(usize) -> usize| {
        let part = |(index, edge): (usize, &Option<Edge>)| {
            edge.map(|edge| (edge.rank as usize, edge.lane, block(index)))
        };
        edges.iter().enumerate().filter_map(part).collect::<Vec<_>>()
    };
    let (out, into) = match *call {
        Call::Gatherv { root, in_place, .. } => {
            let is_root = me == root;
            let blocks = if is_root { all(in_place) } else { Vec::new() };
            (one(root, !(is_root && in_place)), blocks)
        }
        Call::Scatterv { root, in_place, .. } => {
            let is_root = me == root;
            let blocks = if is_root { all(in_place) } else { Vec::new() };
            (blocks, one(root, !(is_root && in_place)))
        }
        Call::Alltoallv { in_place, .. } => (all(in_place), all(in_place)),
        Call::NeighborAllgather { sources, destinations, .. } => {
            (along(destinations, &|_| 0), along(sources, &|index| index))
        }
        Call::NeighborAlltoall { sources, destinations, .. } => {
            (along(destinations, &|index| index), along(sources, &|index| index))
        }
        _ => (Vec::new(), Vec::new()),
    };
    let from = match call {
        Call::Alltoallv { in_place: true, .. } => Buffer::Recv,
        _ => Buffer::Send,
    };
    [flow(from, out), flow(Buffer::Recv, into)]
}

impl ExchangePlan {
    /// What rank `me` does in a call that [`fits`], and was checked. `own_apart`: what it sends to itself needs no
    /// cell. `None`: it would need more fragments than there can be.
    pub(super) fn new(
        call: &Call<'_>,
        me: usize,
        ranks: usize,
        own_apart: bool,
    ) -> Option<ExchangePlan> {
        let [out, into] = flows(call, me, ranks);
        let (root, replaced) = match *call {
            Call::Gatherv { root, .. } | Call::Scatterv { root, .. } => (Some(root), false),
            Call::Alltoallv { in_place, .. } => (None, in_place),
            _ => (None, false),
        };
        let mut bytes = out.bytes.clone();
        if own_apart {
            bytes[me] = 0;
        }
        let (cells, sends) = if replaced { alike(&bytes) } else { cells(&bytes) };
        let all = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        // In place, what comes with one entry must not replace what goes out with the next fragment.
        let whole = !replaced || sends <= 1;
        let is_inline = whole && all.saturating_add(data_at(ranks) as u64) <= ENTRY_BYTES as u64;
        let sends = if is_inline { 0 } else { sends };
        let operation = call.operation();
        let most = cells.iter().map(|cell| cell.step).max().filter(|_| !whole);
        may_be(sends).then_some(ExchangePlan {
            operation,
            root,
            me,
            out,
            into,
            cells,
            sends,
            is_inline,
            most,
        })
    }

    fn ranks(&self) -> usize {
        self.cells.len()
    }

    /// The root, or a rank that there is not.
    pub(super) fn root(&self) -> u32 {
        self.root.and_then(|root| u32::try_from(root).ok()).unwrap_or(u32::MAX)
    }

    /// Who reads this rank's entry and slots; `None`: it sends nothing to others, and publishes no entry.
    pub(super) fn readers(&self) -> Option<Readers> {
        let is_root = self.root == Some(self.me);
        match self.operation {
            Operation::Gatherv if is_root => None,
            Operation::Gatherv => self.root.map(Readers::One),
            Operation::Scatterv if !is_root => None,
            _ => Some(Readers::All),
        }
    }

    /// Whether what this rank sends goes with its entry.
    pub(super) fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// Whether `bytes` bytes of a stream can come at once, and replace nothing that is still to be sent.
    pub(super) fn keeps_up(&self, bytes: u64) -> bool {
        self.most.is_none_or(|most| bytes <= most)
    }

    /// This rank's cell for itself, if it sends itself something there.
    pub(super) fn own_cell(&self) -> Option<Cell> {
        let cell = self.cells[self.me];
        (cell.step > 0).then_some(cell)
    }

    /// Where the bytes for this rank itself begin in its entry.
    pub(super) fn own_in_entry(&self) -> usize {
        data_at(self.ranks()) + self.end(self.me)
    }

    /// Bytes of the entry.
    pub(super) fn entry_bytes(&self) -> usize {
        match self.is_inline {
            true => data_at(self.ranks()) + self.end(self.ranks()),
            false => HEAD_BYTES,
        }
    }

    /// Where the bytes of the ranks before one end, in an entry.
    fn end(&self, rank: usize) -> usize {
        let bytes: u64 = (0..rank).map(|rank| self.celled(rank)).sum();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Bytes for a rank that lie in its cell, or in the entry.
    fn celled(&self, rank: usize) -> u64 {
        // What needs no cell has none.
        if self.cells[rank].step == 0 { 0 } else { self.out.bytes(rank) }
    }

    /// The directory of an entry.
    pub(super) fn ends(&self) -> impl Iterator<Item = [u8; END_BYTES]> + '_ {
        (0..self.ranks()).scan(0u64, |end, rank| {
            *end += self.celled(rank);
            Some(u16::try_from(*end).unwrap_or(u16::MAX).to_le_bytes())
        })
    }

    /// A rank's entry in the directory of slots.
    pub(super) fn entry(&self, rank: usize) -> DirectoryEntry {
        DirectoryEntry { bytes: self.celled(rank), cell: self.cells[rank] }
    }

    /// The ranks that this one sends something to.
    pub(super) fn receivers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks()).filter(|rank| self.is_receiver(*rank))
    }

    /// Whether a rank is one of them.
    pub(super) fn is_receiver(&self, rank: usize) -> bool {
        rank != self.me && self.out.bytes(rank) > 0
    }

    /// The block that goes to a rank, and where it lies in what is sent; `None`: there are several.
    pub(super) fn only_block(&self, rank: usize) -> Option<(usize, Range<u64>)> {
        match self.out.parts(rank) {
            [StreamPart { block, range }] => Some((*block, range.clone())),
            _ => None,
        }
    }

    /// A rank's entry, if it reads what this rank sends where that lies.
    pub(super) fn direct_entry(&self, rank: usize) -> [u8; DIRECTORY_ENTRY_BYTES] {
        pair(self.out.bytes(rank), 0)
    }

    /// What lies in the entry, behind its directory.
    pub(super) fn inline_pieces(&self) -> impl Iterator<Item = SlotPiece> + '_ {
        (0..self.ranks()).flat_map(|rank| {
            let at = data_at(self.ranks()) + self.end(rank);
            self.out.pieces(rank, 0..self.celled(rank), at as u64)
        })
    }

    /// What this rank puts into its slot.
    pub(super) fn input(&self, fragment: u64) -> impl Iterator<Item = SlotPiece> + '_ {
        (0..self.ranks()).flat_map(move |rank| {
            let Cell { at, step } = self.cells[rank];
            self.out.pieces(rank, window(fragment, step, self.celled(rank)), at)
        })
    }

    /// Where bytes go that come from a rank: a window of its stream, which lies at `at`.
    pub(super) fn output(
        &self,
        rank: usize,
        window: Range<u64>,
        at: u64,
    ) -> impl Iterator<Item = SlotPiece> + '_ {
        self.into.pieces(rank, window, at)
    }

    /// What this rank sends to itself, if that has no cell: each block, where it lies in what is sent, and where it
    /// goes.
    pub(super) fn own(&self) -> impl Iterator<Item = (usize, Range<u64>, SlotPiece)> + '_ {
        let apart = self.celled(self.me) == 0;
        let parts = self.out.parts(self.me).iter().zip(self.into.parts(self.me));
        parts.filter(move |_| apart).filter(|(from, _)| !from.range.is_empty()).map(|(from, to)| {
            let StreamPart { block, range } = to.clone();
            let piece = SlotPiece { buffer: Buffer::Recv, block, start: 0, range, at: 0 };
            (from.block, from.range.clone(), piece)
        })
    }
}

/// Where the data begins in an entry with a directory.
pub(super) fn data_at(ranks: usize) -> usize {
    HEAD_BYTES + END_BYTES * ranks
}

/// Where the ends of a rank, and of the rank before it, stand in an entry with a directory; of the first rank, only its
/// own.
pub(super) fn ends_at(rank: usize) -> Range<usize> {
    HEAD_BYTES + END_BYTES * rank.saturating_sub(1)..HEAD_BYTES + END_BYTES * (rank + 1)
}

/// Where bytes for a rank lie behind the directory, as its entries say. `None`: they say what no rank says.
pub(super) fn ends_read(entries: &[u8], ranks: usize) -> Option<Range<usize>> {
    let mut ends = entries.as_chunks::<END_BYTES>().0.iter().map(|end| u16::from_le_bytes(*end));
    let first = usize::from(ends.next()?);
    let range = ends.next().map_or(0..first, |second| first..usize::from(second));
    (range.start <= range.end && data_at(ranks) + range.end <= ENTRY_BYTES).then_some(range)
}

/// Bytes of a slot behind the directory, where they begin, and what cells are multiples of.
fn room(ranks: usize) -> (u64, u64, u64) {
    let align = if ranks > 64 { 16 } else { 64 };
    let first = ((DIRECTORY_ENTRY_BYTES * ranks) as u64).next_multiple_of(align);
    (pieces_bytes(ranks).saturating_sub(first), first, align)
}

/// A cell for the bytes to each rank, and how many fragments these take: as few as can be.
fn cells(bytes: &[u64]) -> (Vec<Cell>, u64) {
    let (room, first, align) = room(bytes.len());
    let step = |bytes: u64, fragments: u64| bytes.div_ceil(fragments).next_multiple_of(align);
    let all = |fragments: u64| {
        bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(step(*bytes, fragments)))
    };
    let total = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let mut fragments = total.div_ceil(room.max(1)).max(1);
    // It ends: cells of the least length fit.
    while all(fragments) > room {
        fragments += 1 + fragments / 8;
    }
    let mut at = first;
    let cell = |bytes: &u64| {
        let cell = Cell { at, step: step(*bytes, fragments) };
        at += cell.step;
        cell
    };
    let cells = bytes.iter().map(cell).collect();
    (cells, if total == 0 { 0 } else { fragments })
}

/// Cells of one length for all: both ends of a stream cut it alike, whatever else they send.
fn alike(bytes: &[u64]) -> (Vec<Cell>, u64) {
    let (room, first, align) = room(bytes.len());
    let step = room / bytes.len() as u64 / align * align;
    let cell = |(rank, bytes): (usize, &u64)| match bytes {
        0 => Cell { at: 0, step: 0 },
        _ => Cell { at: first + rank as u64 * step, step },
    };
    let most = bytes.iter().copied().max().unwrap_or(0);
    (bytes.iter().enumerate().map(cell).collect(), most.div_ceil(step.max(1)))
}

#[cfg(test)]
mod tests;
