//! What transports are told of a buffer: keys, registrations, the pieces that they read into.

use super::Buffer;
use gapless_bml::{
    Access, AmTag, Bml, Extent, PeerId, Rank, Rdma, RdmaError, RdmaRail, ReceiveTarget, RemoteKey,
    Token, ZeroCopyMessage, ZeroCopyResult,
};
use gapless_dtype::Run;
use gapless_engine::{EngineError, PagesOf};
use gapless_mem::{Lease, Region};
use std::ops::Range;

/// Most pieces that a transport reads or writes of one message.
const PIECES_MAX: usize = 60;
/// Packing shorter runs is quicker than listing them.
const RUN_MIN: u64 = 2048;

impl Buffer {
    /// A key with which `peer` can map what this buffer touches; of a device's memory only if users `share` it, who
    /// must invalidate it before they free it.
    pub(crate) fn key(&self, bml: &mut Bml, peer: u32, share: bool) -> Option<RemoteKey> {
        let (_, touched) = self.touched()?;
        self.key_of(bml, peer, touched, share)
    }

    /// Likewise, of the first `len` bytes of a buffer without gaps.
    pub(crate) fn start_key(
        &self,
        bml: &mut Bml,
        peer: u32,
        len: u64,
        share: bool,
    ) -> Option<RemoteKey> {
        let start = self.typed.contiguous_start().filter(|_| len <= self.bytes())?;
        self.key_of(bml, peer, self.typed.region().sub(start, len).ok()?, share)
    }

    /// Likewise, of the indices of its pages, if these lie in memory of a device.
    pub(crate) fn indices_key(&self, bml: &mut Bml, peer: u32, share: bool) -> Option<RemoteKey> {
        let Some(PagesOf::Device(pages)) = self.typed.as_pages() else { return None };
        self.key_of(bml, peer, pages.indices(), share)
    }

    /// Likewise, of a part of its region, or of its indices.
    fn key_of(&self, bml: &mut Bml, peer: u32, part: Region, share: bool) -> Option<RemoteKey> {
        let anywhere = self.typed.region() == Region::bottom();
        if (!part.space().cpu_accessible() && !share) || anywhere {
            return None;
        }
        let (id, mapped) = bml.mapped(Rank(peer))?;
        // SAFETY: it is a part of the region of this buffer, or its indices: both are promised to stay while it lives.
        // The buffer is borrowed over the call, and nothing keeps a clone of the lease after it (rule 2 of `Mapped`).
        let lease = unsafe { Lease::kept_by_caller(part) };
        mapped.key(id, &lease)
    }

    /// Lets peers read what this buffer touches, until deregistered. `None`: nothing is touched, or no rail reads
    /// memory.
    pub(crate) fn register(
        &self,
        bml: &mut Bml,
        peer: Rank,
    ) -> Result<Option<(RdmaRail, RemoteKey)>, RdmaError> {
        let Some((_, touched)) = self.touched() else { return Ok(None) };
        let Some((rail, _, rdma)) = bml.rdma_and_rail(peer) else { return Ok(None) };
        // SAFETY: the memory is promised for reads, without a writer, while a buffer of the request lives. The key is
        // for reading only; `Offered::registered` has it, and `end_offer`, the one end of an offer, gives it back.
        unsafe { rdma.register(touched, Access::Read) }.map(|key| Some((rail, key)))
    }

    /// Sends `head` and `range` of this buffer straight out of it, if its runs are long and the transport does that.
    pub(crate) fn send_zero_copy(
        &self,
        bml: &mut Bml,
        (peer, tag): (Rank, AmTag),
        list: &mut RegionList,
        head: &[u8],
        range: Range<u64>,
    ) -> ZeroCopyResult {
        let Some(body) = self.regions(list, range) else { return ZeroCopyResult::Never };
        // SAFETY: the convertor of this buffer made the pieces. It is promised for reads, without a writer, while it
        // lives, and is borrowed over the call.
        match unsafe { ZeroCopyMessage::new(head, body) } {
            Some(message) => bml.send_zero_copy(peer, tag, &message),
            None => ZeroCopyResult::Never,
        }
    }

    /// Where a transport may put a message for `range`, whose head has `skip` bytes; parts of it may stay. `None` if
    /// runs are short, or not for the CPU.
    pub(crate) fn receive_target<'b>(
        &'b self,
        list: &'b mut RegionList,
        range: Range<u64>,
        skip: usize,
    ) -> Option<ReceiveTarget<'b>> {
        let body = self.regions(list, range)?;
        // SAFETY: the convertor of this buffer made the pieces, which do not overlap in a receive. The buffer of a
        // receive is promised for writes, and to be nobody else's, while it lives, and is borrowed as long as the
        // target.
        unsafe { ReceiveTarget::new(skip, body, true) }
    }

    /// The pieces that `range` lies in, if they are few, long, and for the CPU.
    fn regions<'b>(&'b self, list: &'b mut RegionList, range: Range<u64>) -> Option<&'b [Region]> {
        if !self.typed.space().cpu_accessible() {
            return None;
        }
        let len = range.end - range.start;
        if let Some(whole) = self.typed.as_contiguous() {
            list.regions.clear();
            list.regions.push(whole.sub(range.start, len).ok()?);
            return Some(&list.regions);
        }
        if self.bytes() / RUN_MIN < self.typed.blocks() {
            return None;
        }
        list.resize(PIECES_MAX);
        let Listed { regions, bytes, .. } = self.list(list, range.start, len).ok()?;
        (bytes == len).then_some(regions)
    }

    /// Lists the pieces of memory that bytes from `position` on lie in: at most as many pieces as `list` was resized
    /// to, and at most `bytes` bytes.
    pub(crate) fn list<'b>(
        &'b self,
        list: &'b mut RegionList,
        position: u64,
        bytes: u64,
    ) -> Result<Listed<'b>, EngineError> {
        let RegionList { runs, regions } = list;
        regions.clear();
        let mut convertor = self.typed.convertor()?;
        convertor.seek(position)?;
        let (count, taken) = convertor.iov(runs, bytes);
        for run in &runs[..count] {
            let start = i128::from(self.typed.origin()) + i128::from(run.displacement);
            let whole = self.typed.region();
            // What is negative is not in the region either.
            regions.push(whole.sub(u64::try_from(start).unwrap_or(u64::MAX), run.len)?);
        }
        Ok(Listed { _buffer: self, regions, bytes: taken })
    }
}

/// Where a buffer's pieces are listed; used again and again.
#[derive(Debug, Default)]
pub(crate) struct RegionList {
    runs: Vec<Run>,
    regions: Vec<Region>,
}

impl RegionList {
    /// For one piece.
    pub(crate) fn one(&mut self) -> &mut Region {
        self.regions.truncate(1);
        if self.regions.is_empty() {
            self.regions.push(Region::of(&[]));
        }
        &mut self.regions[0]
    }

    /// This piece alone.
    pub(crate) fn one_of(&mut self, piece: Region) -> &Region {
        let one = self.one();
        *one = piece;
        one
    }

    /// For this many pieces.
    pub(crate) fn resize(&mut self, pieces: usize) {
        self.runs.resize(pieces, Run::default());
    }
}

/// Pieces of a buffer; [`Buffer::list`] alone makes them.
pub(crate) struct Listed<'b> {
    _buffer: &'b Buffer,
    regions: &'b [Region],
    bytes: u64,
}

impl Listed<'_> {
    /// Their length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads `remote` of the memory behind `key` at `peer` into the pieces. `read` is of the buffer's request, which
    /// does not end before the operation has.
    pub(crate) fn get(
        &self,
        bml: &mut Bml,
        peer: Rank,
        (key, remote): (&RemoteKey, &[Extent]),
        done: Token,
        read: &mut OneSidedRead,
    ) -> Result<(), RdmaError> {
        let (id, rdma) = read.next(bml, peer)?;
        // SAFETY: the convertor of the buffer made the pieces. The buffer is promised until its request ends, which
        // is after the event: `read` says so until then. So there is no other operation with this request's token.
        unsafe { rdma.get(id, self.regions, key, remote, done) }?;
        read.under_way = true;
        Ok(())
    }
}

/// The one-sided read of a receive: one at a time.
#[derive(Debug, Default)]
pub(crate) struct OneSidedRead {
    under_way: bool,
    /// The staging memory that it writes, if it does not write the receive's buffer.
    into: Option<crate::buffer::StagingMemory>,
}

impl OneSidedRead {
    /// Whether there is one.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// Who reads for the next one, if none is under way.
    fn next<'b>(
        &self,
        bml: &'b mut Bml,
        peer: Rank,
    ) -> Result<(PeerId, &'b mut dyn Rdma), RdmaError> {
        if self.under_way {
            return Err(RdmaError::Full);
        }
        let unavailable = || RdmaError::Unavailable { reason: "no rail reads memory".to_owned() };
        bml.rdma(peer).ok_or_else(unavailable)
    }

    /// It has ended.
    pub(crate) fn end(&mut self) {
        *self = OneSidedRead::default();
    }

    /// Reads `remote` of the memory behind `key` at `peer` into staging memory.
    pub(crate) fn get(
        &mut self,
        bml: &mut Bml,
        peer: Rank,
        into: &crate::buffer::StagingMemory,
        (key, remote): (&RemoteKey, &[Extent]),
        done: Token,
    ) -> Result<(), RdmaError> {
        let (id, rdma) = self.next(bml, peer)?;
        // SAFETY: staging memory is valid for writes, and no reference's, while it lives. This value keeps it until the
        // operation has ended; it is a part of the receive, which does not end before, or goes with the endpoint, whose
        // transports go first. There is no other operation with this receive's token.
        unsafe { rdma.get(id, &[into.region()], key, remote, done) }?;
        (self.under_way, self.into) = (true, Some(into.clone()));
        Ok(())
    }
}
