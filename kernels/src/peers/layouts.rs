//! Collectives with layouts: the table that a launch works through, and how its work is divided among blocks.
//!
//! A table has *pieces*, each from one layout to another, and for each block a list of *jobs*: ranges of pieces. What
//! goes from one rank to another is divided among all blocks that meet ([`share`]), by numbers that both ends know: of
//! what goes through staging memory, the block that packs a range at the source has the number of the one that unpacks
//! it. Short pieces are not cut, and count as if they were longer, because a block spends as long on each.

use super::{BLOCKS_MAX, PeersArgs};
use crate::Width;
use crate::args::{Args, TransferArgs, structures};
use crate::launch::{KernelAddress, TransferSide, Unfit, transfer};
use std::ops::Range;
use zerocopy::IntoBytes;

structures! {
    /// What a launch is given.
    LayoutsArgs: 504 {
        /// As of other kernels; only windows, words of the host and numbers count.
        common: PeersArgs,
        /// Address of the numbers of the job that each block's list begins with.
        begins: u64,
        /// Address of the jobs.
        jobs: u64,
        /// Address of the pieces.
        pieces: u64,
        /// Blocks that meet their likes; those after them move what stays within a rank.
        meeting: u32,
        /// 1, or 2 if something goes through staging memory.
        steps: u32,
    }
    /// What a block moves: whole words of a piece.
    Job: 16 {
        /// Which piece.
        piece: u32,
        /// The first of the words.
        first: u32,
        /// How many.
        words: u32,
        /// Whether the bytes of words that the piece covers in part are this job's, too.
        edges: u32,
    }
    /// Bytes that go from one layout to another.
    Piece: 784 {
        /// How they lie. Pointers are 0: offsets are addresses.
        transfer: TransferArgs,
        /// The exponent of a word's bytes.
        width: u32,
        /// Nothing.
        unused: [u32; 3],
    }
}

/// Bytes that a piece counts for at least.
const LEAST: u64 = 4 << 10;

/// Bytes that a block takes at least, where there are so many.
const CHUNK: u64 = 8 << 10;

/// Where pieces may be cut: at multiples of the widest word of all threads of a warp.
const CUT: u64 = 512;

/// Where one piece of staging memory begins after another.
const APART: u64 = 256;

/// Bytes between begins of what is staged, for a piece of so many bytes.
#[must_use]
pub fn staged(bytes: u64) -> u64 {
    bytes.next_multiple_of(APART)
}

/// Which step of a launch a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutStep {
    /// Everything but unpacking.
    First,
    /// Unpacking of what peers have staged.
    Second,
}

/// Bytes that go from one layout to another, on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// How many.
    pub bytes: u64,
    /// Where they lie; offsets of places and plans are addresses.
    pub from: (TransferSide, KernelAddress),
    /// Where they go, likewise.
    pub to: (TransferSide, KernelAddress),
}

/// Pieces that are divided together: all of the same kind between two ranks, in an order that both know.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// When.
    pub step: LayoutStep,
    /// How far the peer is, counted in ranks upwards; 0 is this rank itself. Both ends of a transfer give the same.
    pub distance: u32,
    /// The pieces.
    pub moved: Vec<Moved>,
}

/// A launch's table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayoutTable {
    /// Blocks that meet.
    pub meeting: u32,
    /// Blocks after those.
    pub further: u32,
    /// 1 or 2. A block has a list of jobs in each step, and the kernel finds it by the step's number.
    steps: u32,
    begins: Vec<u32>,
    jobs: Vec<Job>,
    pieces: Vec<Piece>,
}

/// A range of one of several lengths, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutPart {
    /// The block.
    pub block: u32,
    /// Which of the lengths.
    pub of: usize,
    /// Bytes of it.
    pub range: Range<u64>,
}

/// Divides pieces of so many bytes among `blocks` blocks; the first part is that of block `start`. All parts of a block
/// follow each other, and cuts are at multiples of 512 bytes of a piece.
pub fn share(lens: &[u64], blocks: u32, start: u32) -> Vec<LayoutPart> {
    let blocks = u64::from(blocks.max(1));
    let weight = |len: u64| len.max(LEAST).next_multiple_of(CUT);
    let total: u64 = lens.iter().filter(|&&len| len > 0).map(|&len| weight(len)).sum();
    let chunk = total.div_ceil(blocks).max(CHUNK).next_multiple_of(CUT);
    let block = |number: u64| u32::try_from((number + u64::from(start)) % blocks).unwrap_or(0);
    let mut parts = Vec::new();
    let mut begin = 0u64;
    for (of, &len) in lens.iter().enumerate().filter(|(_, len)| **len > 0) {
        let mut from = 0;
        while from < len {
            let number = (begin + from) / chunk;
            // What counts for more than it is, is not cut.
            let to = if len <= LEAST { len } else { ((number + 1) * chunk - begin).min(len) };
            parts.push(LayoutPart { block: block(number), of, range: from..to });
            from = to;
        }
        begin += weight(len);
    }
    parts
}

impl LayoutTable {
    /// The table of a rank's groups. `blocks` meet; at most `further` may have what stays within the rank. With
    /// `second` there is a second step, even if this rank has nothing to do in it: ranks that unpack meet all.
    ///
    /// # Errors
    /// A layout that arguments have no room for.
    pub fn new(
        groups: &[Group],
        (blocks, further): (u32, u32),
        ranks: u32,
        second: bool,
    ) -> Result<LayoutTable, Unfit> {
        let blocks = blocks.clamp(1, BLOCKS_MAX);
        let second = second || groups.iter().any(|group| group.step == LayoutStep::Second);
        let local = |group: &&Group| group.distance == 0;
        let stays: u64 = groups
            .iter()
            .filter(local)
            .flat_map(|group| group.moved.iter().map(|moved| moved.bytes.max(LEAST)))
            .sum();
        let wanted = u32::try_from(stays.div_ceil(CHUNK)).unwrap_or(u32::MAX);
        let further = wanted.min(further);
        let all = (blocks + further) as usize;
        let steps = if second { 2 } else { 1 };
        let mut lists: Vec<Vec<Job>> = vec![Vec::new(); all * steps as usize];
        let mut table = LayoutTable { meeting: blocks, further, steps, ..LayoutTable::default() };
        let mut order: Vec<&Group> = groups.iter().collect();
        order.sort_by_key(|group| group.distance);
        // Peers first, and this rank last where blocks that meet have to move that, too.
        let here = order.iter().take_while(|group| group.distance == 0).count();
        order.rotate_left(here);
        for group in order {
            let apart = group.distance == 0 && further > 0;
            let (first, among) = if apart { (blocks, further) } else { (0, blocks) };
            // Short groups of several peers go to different blocks.
            let start = u64::from(group.distance) * u64::from(among) / u64::from(ranks.max(1));
            let start = u32::try_from(start).unwrap_or(0);
            let lens: Vec<u64> = group.moved.iter().map(|moved| moved.bytes).collect();
            let mut made = Vec::with_capacity(lens.len());
            for moved in &group.moved {
                made.push(table.pieces_of(moved)?);
            }
            let step = if group.step == LayoutStep::Second { all } else { 0 };
            for part in share(&lens, among, start) {
                let list = &mut lists[step + (first + part.block) as usize];
                for (number, range) in &made[part.of] {
                    list.extend(table.job(*number, range, &part.range));
                }
            }
        }
        for list in lists {
            table.begins.push(u32::try_from(table.jobs.len()).unwrap_or(u32::MAX));
            table.jobs.extend(list);
        }
        table.begins.push(u32::try_from(table.jobs.len()).unwrap_or(u32::MAX));
        Ok(table)
    }

    /// Appends the pieces of what is moved, one, or more where words cannot be numbered otherwise: their numbers, and
    /// which bytes of the stream they are.
    fn pieces_of(&mut self, moved: &Moved) -> Result<Vec<(u32, Range<u64>)>, Unfit> {
        let (from, to) = (&moved.from, &moved.to);
        let launches = transfer(&(0..moved.bytes), (&from.0, from.1), (&to.0, to.1), None)?;
        let mut at = 0;
        let mut pieces = Vec::with_capacity(launches.len());
        for launch in launches {
            let Args::Transfer(transfer) = launch.args else { continue };
            let width = launch.kernel.width;
            let number = u32::try_from(self.pieces.len()).map_err(|_| Unfit::Numbers)?;
            self.pieces.push(Piece { transfer: *transfer, width: width.log2(), unused: [0; 3] });
            let len = covered(&transfer, width);
            pieces.push((number, at..at + len));
            at += len;
        }
        Ok(pieces)
    }

    /// The job of a piece that is bytes `piece` of a stream, for bytes `part` of it.
    fn job(&self, number: u32, piece: &Range<u64>, part: &Range<u64>) -> Option<Job> {
        let (from, to) = (part.start.max(piece.start), part.end.min(piece.end));
        if from >= to {
            return None;
        }
        let log2 = self.pieces[number as usize].width;
        let word = |byte: u64| u32::try_from((byte - piece.start) >> log2).unwrap_or(u32::MAX);
        let (first, last) = (word(from), word(to));
        let edges = u32::from(to == piece.end);
        Some(Job { piece: number, first, words: last - first, edges })
    }

    /// 1, or 2 if there is a second step.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Blocks of the launch.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.meeting + self.further
    }

    /// Pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The jobs of a block in a step, and the piece of each.
    pub fn jobs(&self, step: LayoutStep, block: u32) -> impl Iterator<Item = (Job, &Piece)> {
        let before = if step == LayoutStep::Second { self.blocks() } else { 0 };
        let list = (before + block) as usize;
        let bounds = self.begins.get(list).zip(self.begins.get(list + 1));
        let jobs = bounds.and_then(|(from, to)| self.jobs.get(*from as usize..*to as usize));
        jobs.unwrap_or_default().iter().map(|job| (*job, &self.pieces[job.piece as usize]))
    }

    /// All of it as bytes, and where the begins, the jobs and the pieces lie in them.
    #[must_use]
    pub fn to_bytes(&self) -> (Vec<u8>, [u64; 3]) {
        let mut bytes = Vec::new();
        let mut at = [0; 3];
        let parts = [self.pieces.as_bytes(), self.jobs.as_bytes(), self.begins.as_bytes()];
        for (part, at) in parts.into_iter().zip(at.iter_mut().rev()) {
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            *at = bytes.len() as u64;
            bytes.extend_from_slice(part);
        }
        (bytes, at)
    }
}

/// Bytes that a piece covers.
fn covered(transfer: &TransferArgs, width: Width) -> u64 {
    let edges = transfer.span.edges;
    (u64::from(transfer.span.words) << width.log2())
        + u64::from(edges & 255)
        + u64::from(edges >> 8 & 255)
}

#[cfg(test)]
mod tests;
