//! What touches memory: private memory of the segment, slots, the user's buffers, and messages that only wake.
//!
//! The private memory is lent to engines only by functions here, as work of the collective under way. That goes from
//! one stage to the next when the work is over, and the functions that make slices are called when nothing was lent
//! since: they are for entries, which are published and read between pieces of work.
//!
//! What is said below of the caller of `SharedSegment::begin`, who grants the user's memory until the collective has
//! ended, holds for that of `SharedSegment::attempt` until that returns: what an attempt began keeps no region of it
//! that it would touch afterwards.
//!
//! Slots are memory of several processes, which is valid for reads and writes as long as it is mapped, and which no
//! reference of this process covers. A rank fills its own slots only, when all that read them are done; others read
//! them when it has reported that they are filled, and in scans write the slice there that they combine (`long`). A
//! rank that does otherwise spoils bytes in them, and no more.

use std::ops::Range;

use gapless_bml::Mapping;
use gapless_engine::{EngineError, PackedFold, Typed};
use gapless_mem::Region;
use gapless_pml::{Comm, Pml, RequestId, TagSel};
use gapless_sync::mailboxes::ENTRY_BYTES;

use super::buffers::{Described, Lies, UserBuffers};
use super::exchange_plan::DIRECTORY_ENTRY_BYTES;
use super::long_plan::{SLOTS, SlotPiece};
use super::short_plan::{Content, Round, Span, Then};
use super::slots::LAST_BYTES;
use super::subgroup::Subgroup;
use super::{Memory, PrivateMemory, SegmentMemory};
use crate::execute::act::{EngineWork, Tools};
use crate::execute::call_buffers::Combine;
use crate::execute::run::nothing;
use crate::schedule::SCRATCH_ALIGN;

/// Where the result of combining lies. What this rank contributes lies at 0.
const RESULT: usize = ENTRY_BYTES;
/// Where the blocks begin.
const BLOCKS: usize = 2 * ENTRY_BYTES;

fn len(region: &Region) -> usize {
    usize::try_from(region.len()).unwrap_or(usize::MAX)
}

fn start(content: Content) -> usize {
    match content {
        Content::Input => 0,
        Content::Result => RESULT,
    }
}

/// Bytes of what is combined, and how far apart the blocks of them lie.
fn combined_size(round: &Round) -> (usize, usize) {
    let bytes = round.part(round.sources.start).len();
    (bytes, bytes.next_multiple_of(usize::try_from(SCRATCH_ALIGN).unwrap_or(64)))
}

/// Where the block of a source lies among the blocks.
#[inline]
fn block(source: usize, round: &Round) -> usize {
    match round.then {
        Then::Join => round.joined_at(source),
        Then::Combine => (source - round.sources.start) * combined_size(round).1,
    }
}

impl PrivateMemory {
    /// Private memory in a segment of `ranks` ranks; `None` if there is no memory.
    pub(super) fn new(ranks: usize) -> Option<PrivateMemory> {
        let bytes = ranks.checked_mul(ENTRY_BYTES)?.checked_add(BLOCKS)?;
        Some(PrivateMemory { memory: Memory::new(bytes as u64)?, result: 0 })
    }

    fn slice(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: no work on this memory is under way (the module's text).
        unsafe { self.memory.slice(at, len) }
    }

    fn region(&self, at: usize, len: usize) -> Result<Region, EngineError> {
        Ok(self.memory.region().sub(at as u64, len as u64)?)
    }

    /// The bytes of an entry.
    pub(super) fn entry(&mut self, content: Content, len: usize) -> &[u8] {
        if content == Content::Result && self.result < len {
            let end = std::mem::replace(&mut self.result, len);
            self.slice(RESULT + end, len - end).fill(0);
        }
        self.slice(start(content), len)
    }

    /// There is no result: this rank combines nothing.
    pub(super) fn no_result(&mut self) {
        self.result = 0;
    }

    /// Where the block of a source goes, and where in its entry it begins.
    pub(super) fn block(&mut self, source: usize, round: &Round) -> (&mut [u8], usize) {
        let (at, part) = (BLOCKS + block(source, round), round.part(source));
        (self.slice(at, part.len()), part.start)
    }

    /// Copies what this rank contributes to where the block of an entry of its own would go.
    ///
    /// # Safety
    /// `input` is valid for reads, and nothing writes it meanwhile.
    pub(super) unsafe fn keep_own(
        &self,
        own: usize,
        round: &Round,
        input: &Region,
    ) -> Result<(), EngineError> {
        let part = round.part(own);
        let into = self.region(BLOCKS + block(own, round), part.len())?;
        let own = input.sub(part.start as u64, into.len())?;
        // SAFETY: the caller's promise; the private memory is not lent (the module's text).
        Ok(unsafe { gapless_mem::copy(&into, &own) }?)
    }

    /// Combines the blocks that were read, into bytes that are as long as one.
    pub(super) fn fold_into(&mut self, fold: &PackedFold, round: &Round, into: &mut [u8]) {
        let (_, stride) = combined_size(round);
        fold.blocks(self.slice(BLOCKS, stride * round.sources.len()), stride, into);
    }

    /// As if this rank had read an entry of its own.
    pub(super) fn take_own(&mut self, own: usize, round: &Round) {
        let content = round.publish.map_or(Content::Input, |(content, _)| content);
        let (at, part) = (block(own, round), round.part(own));
        let all = self.slice(0, BLOCKS + at + part.len());
        let (own, blocks) = all.split_at_mut(BLOCKS);
        blocks[at..].copy_from_slice(&own[start(content)..][part]);
    }

    /// Starts to pack bytes of a user's buffer into the entry. Lends both until `work` is over.
    pub(super) fn fill_entry(
        &self,
        buffers: &UserBuffers<impl Described>,
        piece: &SlotPiece,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let into = self.region(0, ENTRY_BYTES)?.sub(piece.at, piece.len())?;
        pack(buffers, piece, into, tools, work)
    }

    /// The entry, of `len` bytes, with `head` before what was packed.
    pub(super) fn headed(&mut self, head: impl Iterator<Item = u8>, len: usize) -> &[u8] {
        let entry = self.slice(0, len);
        entry.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
        entry
    }

    /// Where the bytes of a rank's entry are kept, as many as an entry has at most.
    pub(super) fn kept(&mut self, rank: usize, len: usize) -> &mut [u8] {
        self.slice(BLOCKS + rank * ENTRY_BYTES, len)
    }

    /// Copies plain memory to where what this rank contributes lies.
    ///
    /// # Safety
    /// `from` is valid for reads, and nothing writes it meanwhile.
    pub(super) unsafe fn fill(&self, from: &Region) -> Result<(), EngineError> {
        // SAFETY: the caller's promise; the private memory is not lent (the module's text).
        Ok(unsafe { gapless_mem::copy(&self.region(0, len(from))?, from) }?)
    }

    /// Copies what was combined, or the blocks, to plain memory.
    ///
    /// # Safety
    /// `into` is valid for writes, and nothing else touches it meanwhile.
    pub(super) unsafe fn take(&self, into: &Region, combined: bool) -> Result<(), EngineError> {
        let from = self.region(if combined { RESULT } else { BLOCKS }, len(into))?;
        // SAFETY: as above.
        Ok(unsafe { gapless_mem::copy(into, &from) }?)
    }

    /// Combines the blocks that were read.
    pub(super) fn fold(&mut self, fold: &PackedFold, round: &Round) {
        let (len, stride) = combined_size(round);
        self.result = len;
        let all = self.slice(RESULT, BLOCKS - RESULT + stride * round.sources.len());
        let (result, blocks) = all.split_at_mut(BLOCKS - RESULT);
        fold.blocks(blocks, stride, &mut result[..len]);
    }

    /// Starts to pack what this rank contributes. Lends both until `work` is over.
    pub(super) fn pack(
        &self,
        buffers: &UserBuffers<impl Described>,
        span: &Span,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let into = self.region(0, span.range.len())?;
        match buffers.span(span) {
            Lies::Plain(region) => {
                // SAFETY: the caller of `SharedSegment::begin` grants the user's memory for reading; the private memory
                // is not lent to anybody else.
                Ok(unsafe { gapless_mem::copy(&into, &region) }?)
            }
            Lies::Pieces(pieces) => tools.pack(&pieces, into, work),
        }
    }

    /// Starts to combine the blocks that were read. Lends them until `work` is over.
    pub(super) fn combine(
        &mut self,
        combine: &Combine,
        round: &Round,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let ((len, stride), sources) = (combined_size(round), round.sources.len());
        if let Some(fold) = combine.fold() {
            self.fold(&fold, round);
            return Ok(());
        }
        self.result = len;
        let block = |index| self.region(BLOCKS + index * stride, len).map(Typed::contiguous);
        let sources = (0..sources).map(block).collect::<Result<Vec<_>, _>>()?;
        let into = combine.elements(self.region(RESULT, len)?)?;
        tools.reduce(combine, &sources, &into, work)
    }

    /// Starts to unpack what was combined, or the blocks. Lends both until `work` is over.
    pub(super) fn unpack(
        &self,
        buffers: &UserBuffers<impl Described>,
        span: &Span,
        combined: bool,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let from = self.region(if combined { RESULT } else { BLOCKS }, span.range.len())?;
        match buffers.span(span) {
            Lies::Plain(region) => {
                // SAFETY: the caller of `SharedSegment::begin` grants the user's memory for writing, and nothing else
                // touches it.
                Ok(unsafe { gapless_mem::copy(&region, &from) }?)
            }
            Lies::Pieces(pieces) => tools.unpack(from, &pieces, work),
        }
    }
}

impl SegmentMemory {
    /// A rank's slot, or its first bytes.
    fn slot(&self, rank: usize, slot: usize) -> Result<Region, EngineError> {
        let number = (rank * SLOTS + slot) as u64;
        let region = self.slots.region().sub(number * self.slot_bytes, self.slot_bytes)?;
        Ok(region)
    }

    /// Starts to pack bytes of a user's buffer into a slot. Lends both until `work` is over.
    pub(super) fn fill(
        &self,
        buffers: &UserBuffers<impl Described>,
        piece: &SlotPiece,
        (rank, slot): (usize, usize),
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        let into = self.slot(rank, slot)?.sub(piece.at, piece.len())?;
        pack(buffers, piece, into, tools, work)
    }

    /// Says with a fragment of this rank's whether it has slept for one that had begun.
    pub(super) fn say_slept(
        &self,
        (rank, slot): (usize, usize),
        slept: bool,
    ) -> Result<(), EngineError> {
        // SAFETY: as in `write_directory`.
        Ok(unsafe { gapless_mem::write(&self.last_bytes(rank, slot)?, 0, &[u8::from(slept)]) }?)
    }

    /// Whether a rank says so.
    pub(super) fn has_slept(&self, (rank, slot): (usize, usize)) -> Result<bool, EngineError> {
        let mut slept = [0];
        // SAFETY: as in `read_directory_entry`.
        unsafe { gapless_mem::read(&self.last_bytes(rank, slot)?, 0, &mut slept) }?;
        Ok(slept != [0])
    }

    fn last_bytes(&self, rank: usize, slot: usize) -> Result<Region, EngineError> {
        Ok(self.slot(rank, slot)?.sub(self.slot_bytes.saturating_sub(LAST_BYTES), LAST_BYTES)?)
    }

    /// Writes the directory of an exchange into this rank's own slot.
    pub(super) fn write_directory(
        &self,
        (rank, slot): (usize, usize),
        entries: &[u8],
    ) -> Result<(), EngineError> {
        // SAFETY: the slot is this rank's own, and nothing reads it; no reference covers it.
        Ok(unsafe { gapless_mem::write(&self.slot(rank, slot)?, 0, entries) }?)
    }

    /// What the directory in a rank's slot says of another.
    pub(super) fn read_directory_entry(
        &self,
        (rank, slot): (usize, usize),
        of: usize,
    ) -> Result<[u8; DIRECTORY_ENTRY_BYTES], EngineError> {
        let mut entry = [0; DIRECTORY_ENTRY_BYTES];
        let at = (of * DIRECTORY_ENTRY_BYTES) as u64;
        // SAFETY: slots are valid for reads (the module's text); if the rank writes meanwhile, the bytes are arbitrary.
        unsafe { gapless_mem::read(&self.slot(rank, slot)?, at, &mut entry) }?;
        Ok(entry)
    }

    /// Starts to unpack a source into a user's buffer. Lends both until `work` is over.
    pub(super) fn take(
        buffers: &UserBuffers<impl Described>,
        piece: &SlotPiece,
        Source { region: from }: Source,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        match buffers.piece(piece) {
            Lies::Plain(region) if region == from => Ok(()),
            Lies::Plain(region) => match buffers.long() {
                // The engine asks whether the target is in the caches, and stores around them if not.
                Some(whole) => tools.unpack(from, &[(whole.clone(), piece.range.clone())], work),
                // SAFETY: the caller of `SharedSegment::begin` grants the user's memory for writing, and nothing else
                // touches it. The source is valid for reads (`Source`).
                None => Ok(unsafe { gapless_mem::copy(&region, &from) }?),
            },
            Lies::Pieces(pieces) => tools.unpack(from, &pieces, work),
        }
    }

    /// Has the cache fetch the first bytes of where a piece goes, `most` at most; how many, if that is plain memory.
    pub(super) fn prefetch(
        buffers: &UserBuffers<impl Described>,
        piece: &SlotPiece,
        most: u64,
    ) -> u64 {
        let Lies::Plain(region) = buffers.piece(piece) else { return 0 };
        let first = region.sub(0, most.min(region.len())).unwrap_or(region);
        gapless_mem::prefetch_to_write(&first);
        first.len()
    }

    /// Starts to combine sources, in their order. Lends them and the target until `work` is over.
    pub(super) fn reduce(
        combine: &Combine,
        sources: &[Source],
        into: Region,
        tools: &Tools<'_>,
        work: &mut EngineWork,
    ) -> Result<(), EngineError> {
        if SegmentMemory::fold(combine, sources.iter().copied().map(Ok), into) {
            return Ok(());
        }
        let elements = |source: &Source| combine.elements(source.region);
        let sources = sources.iter().map(elements).collect::<Result<Vec<_>, _>>()?;
        tools.reduce(combine, &sources, &combine.elements(into)?, work)
    }

    /// Combines packed sources, in their order, at once; `false`: nothing was done.
    pub(super) fn fold(
        combine: &Combine,
        sources: impl ExactSizeIterator<Item = Result<Source, EngineError>>,
        into: Region,
    ) -> bool {
        let as_long = |source: Result<Source, EngineError>| {
            let region = source.ok()?.region;
            region.as_ptr().filter(|_| region.len() == into.len())
        };
        // SAFETY: all regions are as long, and valid (`Source`; `into` is a slot, or this rank's user's memory, which
        // nothing else of this process touches now).
        combine.fold().is_some_and(|by| unsafe { fold(&by, sources.map(as_long), into) })
    }
}

/// Combines packed elements, in the order of the sources, into as many bytes, if all lie in memory that the CPU may
/// touch, as far as a source says where it lies; `false`: nothing was done, because one does not, or because of what is
/// shared.
///
/// # Safety
/// The sources are valid for reads of as many bytes as `into` has, and `into` for writes; nothing else of this process
/// writes them meanwhile, or touches `into`.
#[inline]
pub(super) unsafe fn fold(
    fold: &PackedFold,
    sources: impl ExactSizeIterator<Item = Option<*mut u8>>,
    into: Region,
) -> bool {
    /// More are left to the reducer.
    const MOST: usize = 64;
    let (mut pointers, count) = ([std::ptr::null(); MOST], sources.len());
    let Some(to) = into.as_ptr().filter(|_| (2..=MOST).contains(&count)) else {
        return false;
    };
    for (index, (place, source)) in pointers.iter_mut().zip(sources).enumerate() {
        let Some(from) = source else { return false };
        let shares = from.addr() < to.addr() + len(&into) && to.addr() < from.addr() + len(&into);
        if shares && (from != to || index >= PackedFold::FIRST) {
            return false;
        }
        *place = from.cast_const();
    }
    // SAFETY: the caller's promise; what the sources share with the target was looked at.
    unsafe { fold.pointers(&pointers[..count], to, len(&into)) };
    true
}

/// Starts to pack bytes of a user's buffer into a slot of this rank's own, or its entry. Lends both until `work` is
/// over.
fn pack(
    buffers: &UserBuffers<impl Described>,
    piece: &SlotPiece,
    into: Region,
    tools: &Tools<'_>,
    work: &mut EngineWork,
) -> Result<(), EngineError> {
    match buffers.piece(piece) {
        Lies::Plain(region) => {
            // SAFETY: the caller of `SharedSegment::begin` grants the user's memory for reading. What is packed into is
            // this rank's own, and nothing reads it; it is no user's memory, so the two do not overlap.
            Ok(unsafe { gapless_mem::copy(&into, &region) }?)
        }
        Lies::Pieces(pieces) => tools.pack(&pieces, into, work),
    }
}

/// Bytes that stay valid for reads while the collective is under way: of a rank's slot, of its buffer in a mapping, of
/// this rank's own buffer, or of private memory. The collective keeps slots and mappings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    region: Region,
}

impl Source {
    /// A rank's slot.
    pub(super) fn slot(
        shared: &SegmentMemory,
        (rank, slot): (usize, usize),
        range: Range<u64>,
    ) -> Result<Source, EngineError> {
        let region = shared.slot(rank, slot)?.sub(range.start, range.end - range.start)?;
        Ok(Source { region })
    }

    /// A rank's buffer in a mapping, which the collective keeps.
    pub(super) fn mapped(mapping: &Mapping, range: Range<u64>) -> Result<Source, EngineError> {
        Ok(Source { region: mapping.region().sub(range.start, range.end - range.start)? })
    }

    /// The bytes from byte `start` of this rank's entry on.
    pub(super) fn in_entry(
        private: &PrivateMemory,
        start: usize,
        range: Range<u64>,
    ) -> Result<Source, EngineError> {
        let entry = private.region(start, ENTRY_BYTES - start.min(ENTRY_BYTES))?;
        Ok(Source { region: entry.sub(range.start, range.end - range.start)? })
    }

    /// The bytes of a rank's entry that were [kept](PrivateMemory::kept).
    pub(super) fn kept(
        private: &PrivateMemory,
        rank: usize,
        range: Range<u64>,
    ) -> Result<Source, EngineError> {
        let kept = private.region(BLOCKS + rank * ENTRY_BYTES, ENTRY_BYTES)?;
        Ok(Source { region: kept.sub(range.start, range.end - range.start)? })
    }

    /// This rank's own buffer, which the caller of `SharedSegment::begin` grants.
    pub(super) fn own(buffer: Region, range: Range<u64>) -> Result<Source, EngineError> {
        Ok(Source { region: buffer.sub(range.start, range.end - range.start)? })
    }

    pub(super) fn region(&self) -> Region {
        self.region
    }
}

/// Plain memory as bytes; no region: no bytes. `None`: the CPU must not touch it.
///
/// # Safety
/// As long as the bytes are used, the memory is valid for reads, and nothing writes it.
#[inline]
pub(super) unsafe fn bytes<'b>(region: Option<Region>) -> Option<&'b [u8]> {
    let Some(region) = region.filter(|region| !region.is_empty()) else { return Some(&[]) };
    let start = region.as_ptr()?;
    // SAFETY: the caller's promise; the region is not empty, so its start is no null pointer.
    Some(unsafe { std::slice::from_raw_parts(start, len(&region)) })
}

/// Plain memory as bytes to be written; no region: no bytes. `None`: the CPU must not touch it.
///
/// # Safety
/// As long as the bytes are used, the memory is valid for reads and writes, and nothing else touches it.
#[inline]
pub(super) unsafe fn bytes_mut<'b>(region: Option<Region>) -> Option<&'b mut [u8]> {
    let Some(region) = region.filter(|region| !region.is_empty()) else { return Some(&mut []) };
    let start = region.as_ptr()?;
    // SAFETY: as above.
    Some(unsafe { std::slice::from_raw_parts_mut(start, len(&region)) })
}

/// The receive of the message that wakes this rank: the one that there is, if it has not ended.
pub(super) fn wake_request(
    pml: &mut Pml,
    (comm, tag): (&Comm, i32),
    known: Option<RequestId>,
) -> Option<RequestId> {
    if let Some(known) = known
        && let Ok(None) = pml.collect(known)
    {
        return Some(known);
    }
    // SAFETY: no bytes.
    unsafe { pml.irecv(comm, &nothing(), gapless_pml::Source::Any, TagSel::Is(tag)) }.ok()
}

/// Sends the message that wakes the rank that has a local rank. If it is lost there is nobody to be woken.
pub(super) fn wake(pml: &mut Pml, (subgroup, tag): (&Subgroup, i32), local_rank: usize) {
    let (comm, rank) = (subgroup.comm(), subgroup.rank(local_rank));
    // SAFETY: no bytes.
    let sent = unsafe { pml.isend_copy(comm, &nothing(), rank, tag) };
    if let Ok(id) = sent {
        // The request is there, so it can be released.
        let _ = pml.release(id);
    }
}
