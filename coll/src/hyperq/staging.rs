//! How host-staged copies are cut, and where they lie in the leader's staging memory.
//!
//! ```text
//! gather: an area for each rank              scatter: what the others get of the leader's buffer, once for all of them
//! ┌─────────────┬─────────────┬───────────┐ ┌──────────────────────────────┐
//! │ rank 0      │ rank 1      │ …         │ │ mirror                       │
//! └─────────────┴─────────────┴───────────┘ └──────────────────────────────┘
//! ```
//!
//! Behind the mirror there is room for it once more, if what a rank gets in one piece is short ([`QUICK_BYTES`]).
//!
//! What is short lies in its area as it will in the buffer, so that the leader moves neighbours by one copy. Of what is
//! long, the area has some chunks at a time; the rest of it can be dropped within one.

use std::ops::Range;

use super::{Frame, Take};

/// Chunks of an area, at most.
pub const RING: u32 = 4;

/// A shorter copy from the host waits until it is the process's turn on the GPU: drivers put it among the commands. (On
/// an H100 and driver 580, copies of up to 24 KiB do, and those of 28 KiB do not; copies to the host never do.) One of
/// two rows with a gap between them does not wait, however short: so what is mirrored is there twice, one behind the
/// other, and the first half is taken from the first, the second from the second.
pub const QUICK_BYTES: u64 = 32 << 10;

/// A copy is cut from so many bytes on,
const WHOLE: u64 = 128 << 10;
/// into chunks of at least so many,
const CHUNK_MIN: u64 = 64 << 10;
/// and at most so many.
const CHUNK_MAX: u64 = 512 << 10;
/// The mirror is filled by so many copies,
const MIRROR_CHUNKS: u64 = 8;
/// of at most so many bytes.
const MIRROR_CHUNK_MAX: u64 = 2 << 20;

/// The longest mirror: what is longer is scattered by IPC.
pub const MIRROR_MAX: u64 = 64 << 20;

/// How the data of one collective is cut into chunks that go through shared memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    given: u64,
    chunk: u64,
    area: u64,
    areas: u64,
    /// What is mirrored of the leader's buffer.
    mirrored: Range<u64>,
    mirror_chunk: u64,
    /// Whether there is room for it twice.
    twice: bool,
}

impl Staging {
    /// The cut of a call among so many ranks.
    #[must_use]
    pub fn new(frame: &Frame, ranks: usize) -> Staging {
        let gathers = frame.copies(super::HyperQStep::Gather) > 0;
        let given = if gathers { frame.gather_bytes() } else { 0 };
        let cut = given.div_ceil(u64::from(RING)).next_multiple_of(CHUNK_MIN).min(CHUNK_MAX);
        let chunk = if given <= WHOLE { given.max(1) } else { cut };
        let ring = u64::from(RING) * chunk;
        let area = if given <= ring { frame.stride() } else { ring };
        let areas = if gathers { area * ranks as u64 } else { 0 };
        let takes = (0..ranks).filter(|rank| *rank != frame.leader);
        let takes: Vec<Take> = takes.filter_map(|rank| frame.take(rank)).collect();
        let twice = takes.iter().any(|take| take.len < QUICK_BYTES);
        let takes = takes.iter().map(Take::range);
        let all =
            |one: Range<u64>, other: Range<u64>| one.start.min(other.start)..one.end.max(other.end);
        let mirrored = takes.reduce(all).unwrap_or(0..0);
        let len = mirrored.end - mirrored.start;
        let mirror_chunk =
            len.div_ceil(MIRROR_CHUNKS).next_multiple_of(CHUNK_MIN).min(MIRROR_CHUNK_MAX);
        let mirror_chunk = if len <= WHOLE { len.max(1) } else { mirror_chunk };
        Staging {
            given,
            chunk,
            area,
            areas: areas.next_multiple_of(4096),
            mirrored,
            mirror_chunk,
            twice,
        }
    }

    /// Bytes of staging memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let mirror = self.mirrored.end - self.mirrored.start;
        self.areas + if self.can_mirror() { mirror + self.apart().unwrap_or(0) } else { 0 }
    }

    /// How far behind the mirror there is room for it once more, if there is.
    #[must_use]
    pub fn apart(&self) -> Option<u64> {
        self.twice.then_some(self.mirrored.end - self.mirrored.start)
    }

    /// Chunks of a rank's copy.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.given.div_ceil(self.chunk)).unwrap_or(u32::MAX)
    }

    /// Whether a rank's copy is one chunk, which lies in its area as in the buffer.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.given <= self.chunk
    }

    /// The bytes of a chunk in what a rank gives.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> Range<u64> {
        let start = (u64::from(chunk) * self.chunk).min(self.given);
        start..(start + self.chunk).min(self.given)
    }

    /// Where a chunk of a rank's lies in staging memory.
    #[must_use]
    pub fn place(&self, rank: usize, chunk: u32) -> Range<u64> {
        let Range { start, end } = self.chunk(chunk);
        let at = rank as u64 * self.area + u64::from(chunk % RING) * self.chunk;
        at..at + (end - start)
    }

    /// Whether the scatter can be host-staged.
    #[must_use]
    pub fn can_mirror(&self) -> bool {
        self.mirrored.end - self.mirrored.start <= MIRROR_MAX
    }

    /// Pieces of the mirror: of the leader's buffer, and where they go in staging memory.
    pub fn mirror(&self) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let Range { start, end } = self.mirrored.clone();
        let pieces = (start..end).step_by(usize::try_from(self.mirror_chunk).unwrap_or(usize::MAX));
        pieces.map(move |at| (at..(at + self.mirror_chunk).min(end), self.mirror_place(at)))
    }

    /// Up to where the leader's buffer is mirrored, after so many pieces.
    #[must_use]
    pub fn mirrored(&self, pieces: u32) -> u64 {
        (self.mirrored.start + u64::from(pieces) * self.mirror_chunk).min(self.mirrored.end)
    }

    /// Where a byte of the leader's buffer is mirrored.
    #[must_use]
    pub fn mirror_place(&self, at: u64) -> u64 {
        self.areas + (at - self.mirrored.start)
    }
}
