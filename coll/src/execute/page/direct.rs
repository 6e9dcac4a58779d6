//! Buffers in memory that peers can map: in long collectives they read these where they lie, and no slot is filled.
//!
//! Each rank decides for its own buffers. It writes a key for every reader on its cards, which lie behind the slots, and
//! then the note that says so. Its collective ends when nobody reads its memory any more.

use std::ops::Range;

use gapless_bml::{Bml, Mapping, Rank, RemoteKey};
use gapless_engine::Typed;
use gapless_mem::{Lease, Region};

use super::pieces::Plan;
use super::slots::among;
use super::{Place, Shared};
use crate::execute::error::CollError;
use crate::execute::rows::{Blocks, Rows};
use crate::schedule::Buffer;

/// With more ranks there are no cards: to write and to map so many keys takes longer than to fill slots.
pub(super) const RANKS_MAX: usize = 64;

/// From so many bytes a rank on a buffer is worth its keys.
pub(super) const BYTES_MIN: u64 = 16 << 10;

/// Bytes of a key on a card: how long it is, and the key.
const KEY_BYTES: usize = 1 + RemoteKey::MAX_BYTES;

/// Which of its buffers a rank lets others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// What it contributes.
    Input,
    /// What it receives into: its slices of results.
    Output,
}

/// Of each side, something.
#[derive(Clone, Debug)]
pub(super) struct Both<T> {
    pub(super) input: Option<T>,
    pub(super) output: Option<T>,
}

impl<T> Default for Both<T> {
    fn default() -> Both<T> {
        Both { input: None, output: None }
    }
}

impl<T> Both<T> {
    /// One bit for each side that there is.
    pub(super) fn flags(&self) -> u8 {
        u8::from(self.input.is_some()) | u8::from(self.output.is_some()) << 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flags() == 0
    }
}

/// Bytes of all cards.
pub(super) fn cards_bytes(ranks: usize) -> u64 {
    if ranks > RANKS_MAX { 0 } else { (2 * ranks * ranks * KEY_BYTES) as u64 }
}

impl Shared {
    /// The place of the key with which `reader` maps a buffer of `rank`'s.
    fn card(&self, rank: usize, side: Side, reader: usize) -> Option<Region> {
        let sides = 2 * rank + usize::from(side == Side::Output);
        let at = (sides * self.ranks + reader) * KEY_BYTES;
        let cards = self.slots.region();
        let first = self.slot_bytes.checked_mul((self.ranks * super::pieces::SLOTS) as u64)?;
        cards.sub(first.checked_add(at as u64)?, KEY_BYTES as u64).ok()
    }
}

/// The whole of a buffer, if it is plain memory that the CPU may touch.
pub(super) fn whole(rows: &Rows, buffer: Buffer) -> Option<Region> {
    let blocks = if buffer == Buffer::Send { &rows.send } else { &rows.recv };
    let Blocks::Whole(typed) = blocks else { return None };
    plain(typed)
}

/// A block of what is sent, if that is plain memory that the CPU may touch; `range`: where it lies in the packed stream.
pub(super) fn block(rows: &Rows, block: usize, range: Range<u64>) -> Option<Region> {
    match &rows.send {
        Blocks::None => None,
        Blocks::Whole(_) => {
            whole(rows, Buffer::Send)?.sub(range.start, range.end - range.start).ok()
        }
        Blocks::Each(blocks) => plain(blocks.get(block)?),
    }
}

fn plain(typed: &Typed) -> Option<Region> {
    typed.as_contiguous().filter(|region| region.space().cpu_accessible())
}

/// Whether all that is sent is plain memory, in one piece or in one for each block.
pub(super) fn sends_plain(rows: &Rows) -> bool {
    match &rows.send {
        Blocks::None => false,
        Blocks::Whole(_) => whole(rows, Buffer::Send).is_some(),
        Blocks::Each(blocks) => {
            blocks.iter().all(|block| block.packed_bytes() == 0 || plain(block).is_some())
        }
    }
}

/// What this rank contributes, if that is plain memory and stays as it is while others read it.
pub(super) fn contributed(plan: &Plan, rows: &Rows) -> Option<Region> {
    let (buffer, range) = plan.own_input()?;
    whole(rows, buffer)?.sub(range.start, range.end - range.start).ok()
}

/// The memory of this rank's buffers that the others read where they lie, with keys for all of them. `input`: what it
/// contributes.
pub(super) fn offer(
    plan: &Plan,
    rows: &Rows,
    input: Option<Region>,
    place: &Place<'_>,
    bml: &mut Bml,
) -> Both<Region> {
    let ranks = place.shared.ranks;
    if ranks > RANKS_MAX || plan.input_bytes(place.rank()) < BYTES_MIN.saturating_mul(ranks as u64)
    {
        return Both::default();
    }
    let mut shared = |region: Option<Region>, side: Side| {
        let region = region?;
        let mut readers = among(plan.readers(), ranks).filter(|reader| *reader != place.rank());
        readers
            .all(|reader| write_key(region, (side, reader), place, bml).is_some())
            .then_some(region)
    };
    let output = if plan.shares_results() { whole(rows, Buffer::Recv) } else { None };
    Both { input: shared(input, Side::Input), output: shared(output, Side::Output) }
}

/// Writes a key for one reader; `None`: there is none.
pub(super) fn write_key(
    region: Region,
    (side, reader): (Side, usize),
    place: &Place<'_>,
    bml: &mut Bml,
) -> Option<()> {
    let card = place.shared.card(place.rank(), side, reader)?;
    let process = place.circle.process(reader)?;
    let (peer, mapped) = bml.mapped(Rank(process))?;
    // SAFETY: the region is of a buffer that the caller of `Page::begin` grants until the collective has ended; nothing
    // keeps a clone of the lease after the call (rule 2 of `Mapped`).
    let lease = unsafe { Lease::kept_by_caller(region) };
    let key = mapped.key(peer, &lease)?;
    let bytes = key.as_bytes();
    let mut written = [0; KEY_BYTES];
    written[0] = u8::try_from(bytes.len()).ok()?;
    written[1..].get_mut(..bytes.len())?.copy_from_slice(bytes);
    // SAFETY: cards are mapped memory, which no reference of this process covers. This rank alone writes its own, and
    // whoever read an earlier key there has done so: that collective has ended, here and there, or has failed.
    unsafe { gapless_mem::write(&card, 0, &written) }.ok()
}

/// Maps the buffers of a rank that its flags name.
pub(super) fn accept(
    plan: &Plan,
    (rank, flags): (usize, u8),
    place: &Place<'_>,
    bml: &mut Bml,
) -> Result<Both<Mapping>, CollError> {
    let mut map = |side, expected| map(rank, side, expected, place, bml);
    let input = (flags & 1 != 0).then(|| map(Side::Input, plan.input_bytes(rank))).transpose()?;
    // No other operation's results are shared, whatever a rank says.
    let output = (flags & 2 != 0 && plan.shares_results()).then(|| map(Side::Output, plan.len()));
    Ok(Both { input, output: output.transpose()? })
}

/// Maps a buffer of a rank, of so many bytes at least.
pub(super) fn map(
    rank: usize,
    side: Side,
    expected: u64,
    place: &Place<'_>,
    bml: &mut Bml,
) -> Result<Mapping, CollError> {
    let refused = |reason| CollError::NotMapped { rank: place.circle.rank(rank), reason };
    let mapping = read_key(rank, side, place, bml).map_err(refused)?;
    let region = mapping.region();
    match region.len() {
        len if len < expected => Err(refused(format!("{len} bytes instead of {expected}"))),
        _ if !region.space().cpu_accessible() => Err(refused("it is not the host's".to_owned())),
        _ => Ok(mapping),
    }
}

fn read_key(rank: usize, side: Side, place: &Place<'_>, bml: &mut Bml) -> Result<Mapping, String> {
    let nothing = || "there is no key".to_owned();
    let card = place.shared.card(rank, side, place.rank()).ok_or_else(nothing)?;
    let mut written = [0; KEY_BYTES];
    // SAFETY: as in `write_key`; the rank wrote its key before its note, and if it writes meanwhile, the bytes are
    // arbitrary.
    unsafe { gapless_mem::read(&card, 0, &mut written) }.map_err(|error| error.to_string())?;
    let [len, key @ ..] = &written;
    let key = key.get(..usize::from(*len)).and_then(RemoteKey::new).ok_or_else(nothing)?;
    let process = place.circle.process(rank);
    let (peer, mapped) =
        process.and_then(|process| bml.mapped(Rank(process))).ok_or_else(nothing)?;
    mapped.map(peer, &key).map_err(|error| error.to_string())
}
