//! The link to a rendezvous' other end, as a protocol may use it: room for messages, keys of memory of ours, mappings
//! of the other end's. It reaches no other peer, and neither polls nor changes the rails.

use crate::buffer::{Buffer, Listed, OneSidedRead, Packed, RegionList, StagingMemory};
use crate::links::{AM_TAG, WireLayout, fragment_max, reserve};
use crate::rndv::staged::lasts;
use crate::rndv::staging::{StagingBlock, StagingPool, device_of};
use gapless_bml::{
    Bml, Extent, LinkError, MapError, Mapping, RailSlot, Rank, RdmaError, RdmaRail, RemoteKey,
    Token, ZeroCopyResult,
};
use gapless_mem::{Device, Lease, OutOfRange, Space};
use std::sync::Arc;

/// The link to one peer.
pub(crate) struct RndvLink<'a> {
    bml: &'a mut Bml,
    peer: u32,
}

impl<'a> RndvLink<'a> {
    pub(crate) fn new(bml: &'a mut Bml, peer: u32) -> RndvLink<'a> {
        RndvLink { bml, peer }
    }

    /// Most bytes that a message can have.
    pub(crate) fn fragment_max(&self) -> usize {
        fragment_max(self.bml, self.peer)
    }

    /// Room for a message whose bytes lie in `space`; `None` if there is none now. An error says whether the link is up all
    /// the same.
    pub(crate) fn reserve(
        &mut self,
        len: usize,
        space: Space,
    ) -> Result<Option<RailSlot>, (LinkError, bool)> {
        reserve(self.bml, self.peer, len, Some(space))
    }

    /// Sends what was reserved and filled.
    pub(crate) fn send(&mut self, slot: RailSlot) {
        self.bml.send(slot, AM_TAG, Token::NONE);
    }

    /// Sends `head` and `range` of a buffer, as [`Buffer::send_zero_copy`] does.
    pub(crate) fn send_zero_copy(
        &mut self,
        buffer: &Buffer,
        list: &mut RegionList,
        head: &[u8],
        range: std::ops::Range<u64>,
    ) -> ZeroCopyResult {
        buffer.send_zero_copy(self.bml, (Rank(self.peer), AM_TAG), list, head, range)
    }

    /// Sends `head` and a part of what is packed, as [`Packed::send_zero_copy`] does.
    pub(crate) fn send_packed_zero_copy(
        &mut self,
        packed: &Packed,
        head: &[u8],
        part: (u64, u64),
    ) -> Result<ZeroCopyResult, OutOfRange> {
        packed.send_zero_copy(self.bml, (Rank(self.peer), AM_TAG), head, part)
    }

    /// Whether long messages need no buffers of the transport.
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.bml.has_zero_copy(Rank(self.peer))
    }

    /// Whether the peer's network, or this process, is far from a device's memory.
    pub(crate) fn is_far(&self, device: &dyn Device) -> bool {
        self.bml.is_far_from(Rank(self.peer), device.space())
    }

    /// The attached device that a buffer in `space` belongs to.
    pub(crate) fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        device_of(self.bml, space)
    }

    /// Whether memory can be mapped, as far as is known.
    pub(crate) fn maps(&mut self) -> bool {
        self.bml.mapped(Rank(self.peer)).is_some()
    }

    /// Maps memory of the peer for work on a buffer in `user`.
    pub(crate) fn map(&mut self, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let none = || MapError::Unavailable { reason: "no rail maps memory".to_owned() };
        // The space of the device that works on it, by the name that it is attached under.
        let user = self.device(user).map_or(Space::Host, |device| device.space());
        let (peer, mapped) = self.bml.mapped(Rank(self.peer)).ok_or_else(none)?;
        mapped.map_for(peer, key, user)
    }

    /// The same, and the indices of the pages that lie there, if a key stands for them. An error says whether other
    /// buffers could not be mapped either, which indices say nothing of.
    pub(crate) fn map_buffer(
        &mut self,
        key: &RemoteKey,
        layout: Option<&WireLayout>,
        user: Space,
    ) -> Result<(Mapping, Option<Mapping>), (MapError, bool)> {
        let indices = match layout {
            Some(WireLayout::RemoteIndices(pages)) => {
                Some(self.map(pages.key(), user).map_err(|error| (error, false))?)
            }
            _ => None,
        };
        let buffer = self.map(key, user).map_err(|error| {
            let lasts = lasts(&error);
            (error, lasts)
        })?;
        Ok((buffer, indices))
    }

    /// A key for what a buffer touches, as [`Buffer::key`] gives it.
    pub(crate) fn key(&mut self, buffer: &Buffer, share: bool) -> Option<RemoteKey> {
        buffer.key(self.bml, self.peer, share)
    }

    /// A key for the indices of its pages, as [`Buffer::indices_key`] gives it.
    pub(crate) fn indices_key(&mut self, buffer: &Buffer, share: bool) -> Option<RemoteKey> {
        buffer.indices_key(self.bml, self.peer, share)
    }

    /// A key for the first `len` bytes of a buffer without gaps, as [`Buffer::start_key`] gives it.
    pub(crate) fn start_key(
        &mut self,
        buffer: &Buffer,
        len: u64,
        share: bool,
    ) -> Option<RemoteKey> {
        buffer.start_key(self.bml, self.peer, len, share)
    }

    /// A key for memory of ours.
    pub(crate) fn lease_key(&mut self, memory: &Lease) -> Option<RemoteKey> {
        let (peer, mapped) = self.bml.mapped(Rank(self.peer))?;
        mapped.key(peer, memory)
    }

    /// A block of staging memory, as [`StagingPool::take`] gives it.
    pub(crate) fn stage(
        &mut self,
        staging: &mut StagingPool,
        device: Option<&Arc<dyn Device>>,
        len: u64,
        bound: u64,
    ) -> Option<StagingBlock> {
        staging.take(self.bml, device, len, bound)
    }

    /// Most pieces of a one-sided read; `None` if no rail reads memory of the peer.
    pub(crate) fn pieces_max(&mut self) -> Option<usize> {
        let (_, rdma) = self.bml.rdma(Rank(self.peer))?;
        Some(rdma.rdma_limits().max_pieces)
    }

    /// Reads memory of the peer, as [`Listed::get`] does.
    pub(crate) fn get(
        &mut self,
        into: &Listed<'_>,
        from: (&RemoteKey, &[Extent]),
        done: Token,
        read: &mut OneSidedRead,
    ) -> Result<(), RdmaError> {
        into.get(self.bml, Rank(self.peer), from, done, read)
    }

    /// Reads memory of the peer into staging memory, as [`OneSidedRead::get`] does.
    pub(crate) fn get_into(
        &mut self,
        into: &StagingMemory,
        from: (&RemoteKey, &[Extent]),
        done: Token,
        read: &mut OneSidedRead,
    ) -> Result<(), RdmaError> {
        read.get(self.bml, Rank(self.peer), into, from, done)
    }

    /// A key by which the peer may read a block of staging memory, as [`StagingPool::read_key`] gives it.
    pub(crate) fn read_key(
        &mut self,
        staging: &mut StagingPool,
        block: &StagingBlock,
    ) -> Option<RemoteKey> {
        staging.read_key(self.bml, Rank(self.peer), block)
    }

    /// Undoes a registration.
    pub(crate) fn deregister(&mut self, rail: RdmaRail, key: &RemoteKey) {
        self.bml.deregister(rail, key);
    }
}
