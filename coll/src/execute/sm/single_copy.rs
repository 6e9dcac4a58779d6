//! Memory that cannot be mapped, but that the kernel lets other ranks read
//! ([`Rdma::single_copy_read`](gapless_bml::Rdma::single_copy_read)): the kernel copies once what goes through slots in
//! two copies.
//!
//! Whether a rank can read another's memory so, it alone knows. It tells the other, by a byte in a record of its own in
//! the key table, once the links are there: so the first collectives that could be read so go through slots.

use gapless_bml::{Bml, LinkError, Rank, RdmaError, RemoteKey};
use gapless_engine::EngineError;
use gapless_mem::Region;
use gapless_pml::{Pml, PmlError};

use super::buffers::{Described, Lies, UserBuffers};
use super::long_plan::SlotPiece;
use super::read_in_place::{self, DirectBuffer};
use super::state_machine::LongProgress;
use super::{AT_ONCE_MAX, Memory, SmContext};
use crate::execute::act::{EngineWork, Tools};
use crate::execute::error::CollError;

/// From this many bytes on, a block is worth the system call.
pub(super) const BYTES_MIN: u64 = 64 << 10;

/// With more sources than these a rank reads, and all others read at the same time: there slots are quicker for longer.
const SOURCES_MANY: usize = 16;

/// From this many bytes on, blocks are worth the system calls if a rank gets one of each of `sources` ranks.
pub(super) fn least(sources: usize) -> u64 {
    if sources > SOURCES_MANY { 2 * BYTES_MIN } else { BYTES_MIN }
}

/// Tells others that this rank can read their memory by the kernel, as far as it has not told them.
pub(super) fn announce_reads(cx: &mut SmContext<'_>, bml: &mut Bml) {
    let (me, ranks) = (cx.local_rank(), cx.shared.ranks);
    if ranks > read_in_place::RANKS_MAX {
        return;
    }
    for local_rank in (0..ranks).filter(|local_rank| *local_rank != me) {
        let bit = 1u64 << local_rank;
        if *cx.announced_reads & bit != 0 {
            continue;
        }
        let process = cx.subgroup.process(local_rank);
        let sees = process
            .and_then(|process| bml.rdma(Rank(process)))
            .is_some_and(|(peer, rdma)| rdma.has_single_copy_reads(peer));
        if sees && let Some(record) = cx.shared.key_record(me, DirectBuffer::Input, local_rank) {
            // SAFETY: as in `read_in_place::store_key`; it is never anything else afterwards.
            let written =
                unsafe { gapless_mem::write(&record, read_in_place::KEY_BYTES as u64, &[1]) };
            if written.is_ok() {
                *cx.announced_reads |= bit;
            }
        }
    }
}

/// Whether a rank has told this one that it can read its memory by the kernel.
pub(super) fn can_read_us(reader: usize, cx: &SmContext<'_>) -> bool {
    let mut told = [0];
    let record = cx.shared.key_record(reader, DirectBuffer::Input, cx.local_rank());
    // SAFETY: as in `read_in_place::load_key`; the byte is 0 until the rank has told.
    let read = record.map(|record| unsafe {
        gapless_mem::read(&record, read_in_place::KEY_BYTES as u64, &mut told)
    });
    read.is_some_and(|read| read.is_ok()) && told == [1]
}

/// Writes a key by which one reader reads what this rank contributes by the kernel; `None`: there is none.
pub(super) fn write_key(
    region: Region,
    reader: usize,
    cx: &SmContext<'_>,
    bml: &mut Bml,
) -> Option<()> {
    let (peer, rdma) = bml.rdma(Rank(cx.subgroup.process(reader)?))?;
    let key = rdma.single_copy_key(peer, region)?;
    read_in_place::store_key(&key, (DirectBuffer::Input, reader), cx)
}

/// Most bytes that are read by the kernel at a time, if they go to several places.
const BOUNCE: u64 = 64 << 10;

/// Why bytes of another rank's could not be read by the kernel.
#[derive(Debug)]
pub(super) enum Unread {
    NoMemory { bytes: u64 },
    Engine(EngineError),
    Refused(RdmaError),
}

/// Reads bytes of another process's by the kernel, from byte `at` of what the key stands for on, to where a part of a
/// piece goes, which begins `skipped` bytes behind the piece's start; how many, `most` at most. If these are several
/// places, by a little memory of the segment's own, which an engine may work on until this returns.
pub(super) fn read_to(
    buffers: &UserBuffers<impl Described>,
    (piece, skipped, most): (&SlotPiece, u64, u64),
    (process, key, at): (u32, &RemoteKey, u64),
    (bounce, work): (&mut Option<Memory>, &mut EngineWork),
    tools: &mut Tools<'_>,
) -> Result<u64, Unread> {
    let from = piece.range.start + skipped;
    let bytes = most.min(piece.range.end.saturating_sub(from));
    let start = (piece.block, piece.start + skipped);
    let place = |bytes| buffers.part(piece.buffer, start, from..from + bytes);
    let bml = tools.pml.bml_mut();
    if let Lies::Plain(region) = place(bytes) {
        // SAFETY: the caller of `SharedSegment::begin` grants the user's memory for writing, and nothing else touches
        // it.
        unsafe { read(process, (key, at + skipped), region, bml) }.map_err(Unread::Refused)?;
        return Ok(bytes);
    }
    let bytes = bytes.min(BOUNCE);
    let memory = match bounce {
        Some(memory) => memory,
        None => {
            let memory = Memory::new(BOUNCE).ok_or(Unread::NoMemory { bytes: BOUNCE })?;
            bounce.insert(memory)
        }
    };
    let part = memory.region().sub(0, bytes).map_err(|error| Unread::Engine(error.into()))?;
    // SAFETY: no engine works on it: what was started is over, below.
    unsafe { read(process, (key, at + skipped), part, bml) }.map_err(Unread::Refused)?;
    let started = match place(bytes) {
        // SAFETY: as above.
        Lies::Plain(region) => unsafe { gapless_mem::copy(&region, &part) }.map_err(Into::into),
        Lies::Pieces(pieces) => tools.unpack(part, &pieces, work),
    };
    work.started(started);
    // The host's engine has ended already; a device's ends 64 KiB by itself.
    loop {
        match work.result() {
            Some(result) => break result.map_err(Unread::Engine)?,
            None => std::hint::spin_loop(),
        }
    }
    Ok(bytes)
}

impl LongProgress {
    /// Reads what this rank gets of another by the kernel, [so much](AT_ONCE_MAX) at a time; whether that is all.
    pub(super) fn read_single_copy(
        &mut self,
        buffers: &UserBuffers<impl Described>,
        pieces: impl Iterator<Item = SlotPiece>,
        (process, key, at): (u32, &RemoteKey, impl Fn(&SlotPiece) -> u64),
        tools: &mut Tools<'_>,
    ) -> Result<bool, Unread> {
        let (mut start, mut left) = (0, AT_ONCE_MAX);
        for piece in pieces {
            let end = start + piece.len();
            while self.read < end {
                if left == 0 {
                    return Ok(false);
                }
                let from = (process, key, at(&piece));
                let work = (&mut self.bounce, &mut self.work);
                let read = read_to(buffers, (&piece, self.read - start, left), from, work, tools)?;
                (self.read, left) = (self.read + read, left - read);
            }
            start = end;
        }
        self.read = 0;
        Ok(true)
    }
}

/// Reads what a rank contributes by the kernel, from byte `at` on.
///
/// # Safety
/// `into` is valid for writes, and nothing else touches it meanwhile.
///
/// # Errors
/// Why it cannot be read.
unsafe fn read(
    process: u32,
    (key, at): (&RemoteKey, u64),
    into: Region,
    bml: &mut Bml,
) -> Result<(), RdmaError> {
    let Some((peer, rdma)) = bml.rdma(Rank(process)) else {
        let reason = "it cannot be read any more".to_owned();
        return Err(RdmaError::Unavailable { reason });
    };
    // SAFETY: the caller's promise. A rank of this process grants its buffer until this one has read it
    // (`SharedSegment::begin`). If it has given up before, transports that read by the kernel do not mind; a loopback
    // reads only if whoever made it has promised that this does not happen (`Loopback::with_single_copy_reads`).
    unsafe { rdma.single_copy_read(peer, key, at, into) }
}

impl SmContext<'_> {
    /// Why memory of a rank could not be read; `invalid_reads`: why what was read of other ranks
    /// is not to be used, if that is so.
    pub(super) fn unread(
        &self,
        local_rank: usize,
        unread: Unread,
        invalid_reads: Option<CollError>,
        pml: &mut Pml,
    ) -> CollError {
        let (own, other) = (self.subgroup.own(), self.subgroup.rank(local_rank));
        let error = match unread {
            Unread::NoMemory { bytes } => return CollError::NoMemory { rank: own, bytes },
            Unread::Engine(error) => return CollError::Engine { rank: own, error },
            Unread::Refused(error) => error,
        };
        // It may have given up, or be gone: perhaps nobody else has noticed so far.
        if let Some(known) = invalid_reads.or_else(|| self.loss(pml, local_rank)) {
            return known;
        }
        match (error, self.subgroup.process(local_rank)) {
            (RdmaError::Link(error @ LinkError::PeerGone { .. }), Some(process)) => {
                let error = PmlError::PeerLost { rank: process, error };
                CollError::Lost { rank: other, error }
            }
            (error, _) => CollError::NotMapped { rank: other, reason: error.to_string() },
        }
    }
}
