//! Where fragments lie between two engines, and what is done with them there.

use super::{Buffer, Engines, RegionList, Transfer};
use gapless_bml::{AmTag, Bml, Mapping, RailSlot, Rank, ZeroCopyMessage, ZeroCopyResult};
use gapless_engine::EngineError;
use gapless_mem::{Completion, Device, Lease, OutOfRange, Outstanding, Region};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Staging memory of ours, a mapping of the other end's, or a part of either. While it lives, its region is valid for
/// reads and writes, and no reference of this process covers it. The other end may use it at the same time, and so may
/// other work of ours if the other end names one memory for two messages: then bytes of these messages are mixed.
#[derive(Clone, Debug)]
pub(crate) struct StagingMemory(Lease);

impl StagingMemory {
    /// Takes memory that is staging memory from now on.
    ///
    /// # Safety
    /// While the lease or a part of it lives, its region is valid for reads and writes, and no reference of this
    /// process covers it.
    pub(crate) unsafe fn new(lease: Lease) -> StagingMemory {
        StagingMemory(lease)
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.0
    }

    pub(crate) fn region(&self) -> Region {
        self.0.region()
    }

    /// The `len` bytes from `offset` on.
    pub(crate) fn sub(&self, offset: u64, len: u64) -> Result<StagingMemory, OutOfRange> {
        self.0.sub(offset, len).map(StagingMemory)
    }
}

/// What a gather that is over has put into staging memory. Whoever has it has nothing more gathered into it until it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Packed(StagingMemory);

impl Packed {
    /// The memory of a [gather](Buffer::gather) that is over.
    pub(crate) fn of(staging: SmallVec<[StagingMemory; 2]>) -> Option<Packed> {
        staging.into_iter().next().map(Packed)
    }

    /// Sends `head` and `len` bytes from `offset` on straight from here, if the transport does that.
    pub(crate) fn send_zero_copy(
        &self,
        bml: &mut Bml,
        (peer, tag): (Rank, AmTag),
        head: &[u8],
        (offset, len): (u64, u64),
    ) -> Result<ZeroCopyResult, OutOfRange> {
        let body = [self.0.region().sub(offset, len)?];
        // SAFETY: staging memory is valid for reads, and borrowed over the call. The gather that wrote it is over, and
        // whoever has this value starts no other one there.
        let message = unsafe { ZeroCopyMessage::new(head, &body) };
        Ok(message.map_or(ZeroCopyResult::Never, |message| bml.send_zero_copy(peer, tag, &message)))
    }

    /// Copies `len` bytes from `offset` on into a slot, behind its first `head` bytes.
    pub(crate) fn copy_to(
        &self,
        slot: &mut RailSlot,
        head: usize,
        (offset, len): (u64, u64),
    ) -> Result<(), EngineError> {
        let source = self.0.region().sub(offset, len)?;
        let target = slot.region().sub(head as u64, len)?;
        // SAFETY: staging memory is valid for reads while it lives. The target lies in the slot, whose memory is valid
        // while that lives, and `&mut` shows that nobody else works on it; so they do not overlap.
        Ok(unsafe { gapless_mem::copy(&target, &source) }?)
    }
}

impl StagingMemory {
    /// The target for a transport that puts a message here, whose head has `skip` bytes; parts of it may stay.
    pub(crate) fn receive_target<'r>(
        &'r self,
        list: &'r mut RegionList,
        skip: usize,
    ) -> Option<gapless_bml::ReceiveTarget<'r>> {
        let body = std::slice::from_ref(list.one_of(self.region()));
        // SAFETY: it is valid for reads and writes, and no reference covers it, while `self` lives, which is borrowed
        // as long as the result. It is one region, which does not overlap with itself. Work that a device still did
        // here would make its bytes arbitrary, as the contract of staging memory allows.
        unsafe { gapless_bml::ReceiveTarget::new(skip, body, true) }
    }
}

impl From<&Mapping> for StagingMemory {
    fn from(mapping: &Mapping) -> StagingMemory {
        // A mapping is just such memory: `Mapping::new` demands it of who makes one.
        StagingMemory(mapping.lease().clone())
    }
}

/// Two pieces of work on a fragment, one after the other.
pub(crate) struct Chain {
    /// Both, or the first if the second could not be started.
    pub(crate) transfer: Transfer<SmallVec<[StagingMemory; 2]>>,
    /// The first.
    pub(crate) first: Completion,
    /// Why the second could not be started.
    pub(crate) failed: Option<EngineError>,
}

impl Buffer {
    /// Gathers `range` into `staging`, once all of `after` have ended.
    pub(crate) fn gather(
        &self,
        engines: &Engines,
        range: Range<u64>,
        staging: StagingMemory,
        after: &[Completion],
    ) -> Result<Transfer<SmallVec<[StagingMemory; 2]>>, EngineError> {
        // SAFETY: the source is this buffer, promised while the transfer has a clone of it. The target is staging
        // memory, which is valid for writes, and no reference's, while the transfer has it.
        let work =
            unsafe { engines[self.engine].pack(&self.typed, range, staging.region(), after) }?;
        Ok(Transfer::new(Outstanding::new(work), self, SmallVec::from_iter([staging])))
    }

    /// Scatters what lies in `staging` to `range`, once all of `after` have ended.
    pub(crate) fn scatter(
        &self,
        engines: &Engines,
        staging: StagingMemory,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Transfer<SmallVec<[StagingMemory; 2]>>, EngineError> {
        let engine = &engines[self.engine];
        // SAFETY: the target is this buffer, promised while the transfer has a clone of it. The source is staging
        // memory, which is valid for reads while the transfer has it.
        let work = unsafe { engine.unpack(staging.region(), &self.typed, range, after) }?;
        Ok(Transfer::new(Outstanding::new(work), self, SmallVec::from_iter([staging])))
    }

    /// Gathers `range` into `local`, once all of the first list have ended; then has `device` copy it to `ring`, once
    /// all of the second have ended, too.
    pub(crate) fn gather_and_copy(
        &self,
        (engines, device): (&Engines, &Arc<dyn Device>),
        range: Range<u64>,
        (local, ring): (StagingMemory, StagingMemory),
        (packed_after, copied_after): (&[Completion], &[Completion]),
    ) -> Result<Chain, EngineError> {
        let engine = &engines[self.engine];
        // SAFETY: as in `gather`; `local` is in the transfer that `chain` makes.
        let packed = unsafe { engine.pack(&self.typed, range, local.region(), packed_after) }?;
        Ok(self.chain(packed, copied_after, [local, ring], |[local, ring], after| {
            // SAFETY: both are staging memory, valid for reads and writes, and no reference's, while the transfer has
            // them. A ring and a second stop are different memory.
            Ok(unsafe { device.copy(ring.region(), local.region(), after) }?)
        }))
    }

    /// Has `device` copy `ring` to `local`, once all of the first list have ended; then scatters that to `range`, once
    /// all of the second have ended, too.
    pub(crate) fn copy_and_scatter(
        &self,
        (engines, device): (&Engines, &Arc<dyn Device>),
        (ring, local): (StagingMemory, StagingMemory),
        range: Range<u64>,
        (copied_after, unpacked_after): (&[Completion], &[Completion]),
    ) -> Result<Chain, EngineError> {
        // SAFETY: both are staging memory, valid for reads and writes, and no reference's, while the transfer that
        // `chain` makes has them. A ring and a second stop are different memory.
        let copied = unsafe { device.copy(local.region(), ring.region(), copied_after) }?;
        let engine = &engines[self.engine];
        Ok(self.chain(copied, unpacked_after, [ring, local], |[_, local], after| {
            // SAFETY: as in `scatter`.
            unsafe { engine.unpack(local.region(), &self.typed, range, after) }
        }))
    }

    /// Starts work that comes after `first` and all of `others`; both touch this buffer and `staging` only.
    fn chain(
        &self,
        first: Completion,
        others: &[Completion],
        staging: [StagingMemory; 2],
        second: impl FnOnce(&[StagingMemory; 2], &[Completion]) -> Result<Completion, EngineError>,
    ) -> Chain {
        let outstanding = Outstanding::new(first.clone());
        let before = [&first].into_iter().chain(others);
        let after: SmallVec<[Completion; 2]> =
            before.filter(|it| is_pending(it)).cloned().collect();
        let (work, failed) = match second(&staging, &after) {
            Ok(second) => {
                // The second starts after the first, and so ends after it: waiting for the second waits for both. (If
                // these are empty, neither touches anything.)
                let _ = outstanding.hand_on();
                (Outstanding::new(second), None)
            }
            Err(error) => (outstanding, Some(error)),
        };
        Chain { transfer: Transfer::new(work, self, SmallVec::from(staging)), first, failed }
    }

    /// Has `device` copy `range` of this buffer, which has no gaps, to `staging`, once all of `after` have ended.
    pub(crate) fn copy_to(
        &self,
        device: &Arc<dyn Device>,
        range: Range<u64>,
        staging: StagingMemory,
        after: &[Completion],
    ) -> Result<Transfer<SmallVec<[StagingMemory; 2]>>, EngineError> {
        let source = self.gapless_part(range)?;
        // SAFETY: the source is of this buffer, promised while the transfer has a clone of it. The target is staging
        // memory, which is valid for writes, and no reference's, while the transfer has it; no buffer lies
        // in it.
        let work = unsafe { device.copy(staging.region(), source, after) }?;
        Ok(Transfer::new(Outstanding::new(work), self, SmallVec::from_iter([staging])))
    }

    /// Has `device` copy `staging` to `range` of this buffer, which has no gaps, once all of `after` have ended.
    pub(crate) fn copy_from(
        &self,
        device: &Arc<dyn Device>,
        staging: StagingMemory,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Transfer<SmallVec<[StagingMemory; 2]>>, EngineError> {
        let target = self.gapless_part(range)?;
        // SAFETY: as in `copy_to`, the other way round.
        let work = unsafe { device.copy(target, staging.region(), after) }?;
        Ok(Transfer::new(Outstanding::new(work), self, SmallVec::from_iter([staging])))
    }

    /// Where `range` lies, if there are no gaps.
    fn gapless_part(&self, range: Range<u64>) -> Result<Region, EngineError> {
        let whole = self.typed.as_contiguous();
        let whole = whole.unwrap_or(Region::new(self.typed.space(), 0, 0, 0));
        Ok(whole.sub(range.start, range.end - range.start)?)
    }
}

/// What work that is to follow `last` waits for.
pub(crate) fn after(last: &Completion) -> &[Completion] {
    if is_pending(last) { std::slice::from_ref(last) } else { &[] }
}

/// Whether work may go on.
fn is_pending(work: &Completion) -> bool {
    matches!(work, Completion::Pending(_))
}
