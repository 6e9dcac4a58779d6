//! Users' buffers, and the only code of this crate that has bytes moved in and out of them.
//!
//! A [`Buffer`] stands for its caller's promise: the memory is valid, and nothing else touches it, until the request
//! ends. A request ends only when no engine works on its buffer any more, and its buffer is used through its request
//! alone. That is the proof behind every `unsafe` block here.

use crate::error::PmlError;
use gapless_bml::{
    Access, Bml, Extent, Mapping, RailSlot, Rank, RdmaError, RdmaRail, RemoteKey, Token,
};
use gapless_engine::{Engine, EngineError, Typed};
use gapless_mem::{Begun, Completion, Device, DeviceError, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// Engines, in the order in which they are asked.
pub(crate) type Engines = Vec<Arc<dyn Engine>>;

/// A user's buffer, promised until its request ends.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    typed: Typed,
    engine: usize,
}

/// Which of `engines` works on the memory of `typed`. For device memory, that device's own engine comes before one
/// that only reaches the memory, because peers map memory for the device that it is on.
#[inline]
pub(crate) fn engine_for(engines: &Engines, typed: &Typed) -> Result<usize, PmlError> {
    let space = typed.space();
    let own = match space.cpu_accessible() {
        true => None,
        false => engines.iter().position(|engine| engine.device(space).is_some()),
    };
    let found = own.or_else(|| engines.iter().position(|engine| engine.serves(space)));
    found.ok_or(PmlError::NoEngine { space })
}

/// Which of `engines` works on ordinary memory.
pub(crate) fn host_engine(engines: &Engines) -> Option<usize> {
    engines.iter().position(|engine| engine.serves(Space::Host))
}

/// Up to this length, data is copied even if a kernel could move it.
const COPIED_MAX: u64 = 16 << 10;

/// The device whose copy engine moves short data without gaps (`whole`) to or from a slot. That is as quick as a
/// kernel, and does not wait for this process's turn on a shared device.
fn copier(engine: &dyn Engine, whole: Region, slot: Region) -> Option<Arc<dyn Device>> {
    let short = slot.len() <= COPIED_MAX && slot.space() == Space::Pinned;
    if !short || whole.space().cpu_accessible() {
        return None;
    }
    engine.device(whole.space()).filter(|device| device.space() == whole.space())
}

/// Gathers `range` of `typed` into `slot`, from `offset` on.
///
/// # Safety
/// `typed` describes memory valid for reads until the completion, which nothing writes.
pub(crate) unsafe fn pack(
    engines: &Engines,
    engine: usize,
    typed: &Typed,
    range: Range<u64>,
    slot: &RailSlot,
    offset: usize,
) -> Result<Completion, EngineError> {
    let target = slot.region().sub(offset as u64, range.end - range.start)?;
    if let Some(whole) = typed.as_contiguous()
        && whole.space().cpu_accessible()
        && target.space().cpu_accessible()
    {
        let source = whole.sub(range.start, target.len())?;
        // SAFETY: the caller vouches for `source`; `target` is the slot's, which is ours alone
        // while we hold it, and which our caller holds until the completion: now.
        unsafe { gapless_mem::copy(&target, &source) }?;
        return Ok(Completion::Ready);
    }
    if let Some(whole) = typed.as_contiguous()
        && let Some(device) = copier(&*engines[engine], whole, target)
    {
        let source = whole.sub(range.start, target.len())?;
        // SAFETY: as for the engine below.
        return Ok(unsafe { device.copy(target, source, &[]) }?);
    }
    // SAFETY: the caller vouches for the source; the target is the slot's, which our caller holds
    // until the completion.
    unsafe { engines[engine].pack(typed, range, target, &[]) }
}

/// All of `typed`, packed, in memory of the host. Waits for the engine.
///
/// # Safety
/// For the time of this call, `typed` describes memory valid for reads, which nothing writes.
pub(crate) unsafe fn copy_out(
    engines: &Engines,
    engine: usize,
    typed: &Typed,
) -> Result<Vec<u8>, EngineError> {
    let bytes = typed.packed_bytes();
    let refused = || DeviceError::OutOfMemory {
        device: "host".to_owned(),
        len: bytes,
        reason: "a message's copy does not fit".to_owned(),
    };
    let len = usize::try_from(bytes).map_err(|_| refused())?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(len).map_err(|_| refused())?;
    copy.resize(len, 0);
    if len > 0 {
        let target = Region::of_mut(&mut copy);
        // SAFETY: the caller vouches for `typed`; `target` is the copy, which stays where it is until
        // the completion, waited for here.
        let packed = Begun::new(unsafe { engines[engine].pack(typed, 0..bytes, target, &[]) }?);
        packed.wait()?;
    }
    Ok(copy)
}

/// Has a device copy between a buffer or staging memory and a place of a ring, once all of `after`
/// have ended.
///
/// Both are parts of what our callers hold until the completion: promised buffers, staging memory,
/// mappings.
pub(crate) fn copy(
    device: &Arc<dyn Device>,
    to: Region,
    from: Region,
    after: &[Completion],
) -> Result<Completion, DeviceError> {
    // SAFETY: both are valid until the completion, as said above; one is of a buffer or of staging
    // memory that is not part of the ring, so they do not overlap; a place of a ring, of staging
    // memory or of a buffer is one fragment's alone until its work has ended.
    unsafe { device.copy(to, from, after) }
}

impl Buffer {
    /// Takes the promise.
    ///
    /// # Safety
    /// Until the request that this buffer is given to has ended, `typed` describes memory that is
    /// valid for reads and, for a receive, writes; until then nothing else writes to it and, for a
    /// receive, nothing else touches it.
    pub(crate) unsafe fn promised(typed: &Typed, engine: usize) -> Buffer {
        Buffer { typed: typed.clone(), engine }
    }

    pub(crate) fn typed(&self) -> &Typed {
        &self.typed
    }

    /// Its engine's number.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> usize {
        self.engine
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.typed.packed_bytes()
    }

    /// Runs of bytes that it consists of.
    pub(crate) fn blocks(&self) -> u64 {
        self.typed.layout().blocks_of(self.typed.count()).unwrap_or(u64::MAX)
    }

    /// The bytes it touches, relative to displacement 0, and where they are.
    pub(crate) fn touched(&self) -> Option<(i64, Region)> {
        let (low, high) = self.typed.convertor().ok()?.bounds()?;
        let start = i128::from(self.typed.origin()) + i128::from(low);
        let span = u64::try_from(i128::from(high) - i128::from(low)).ok()?;
        let region = self.typed.region().sub(u64::try_from(start).ok()?, span).ok()?;
        Some((low, region))
    }

    /// Gathers `range` into `slot`, from `offset` on. The slot is held until the completion.
    pub(crate) fn pack(
        &self,
        engines: &Engines,
        range: Range<u64>,
        slot: &RailSlot,
        offset: usize,
    ) -> Result<Completion, EngineError> {
        // SAFETY: the promise this buffer stands for; its request has not ended.
        unsafe { pack(engines, self.engine, &self.typed, range, slot, offset) }
    }

    /// Scatters `source` to `range`. Whatever `source` lies in is held until the completion.
    pub(crate) fn unpack(
        &self,
        engines: &Engines,
        source: Region,
        range: Range<u64>,
    ) -> Result<Completion, EngineError> {
        if let Some(whole) = self.typed.as_contiguous()
            && whole.space().cpu_accessible()
            && source.space().cpu_accessible()
        {
            let target = whole.sub(range.start, range.end - range.start)?;
            // SAFETY: the promise this buffer stands for covers `target`; `source` lies in a
            // fragment or a message of ours.
            unsafe { gapless_mem::copy(&target, &source) }?;
            return Ok(Completion::Ready);
        }
        if let Some(whole) = self.typed.as_contiguous()
            && let Some(device) = copier(&*engines[self.engine], whole, source)
        {
            let target = whole.sub(range.start, range.end - range.start)?;
            // SAFETY: as for the engine below.
            return Ok(unsafe { device.copy(target, source, &[]) }?);
        }
        // SAFETY: the promise this buffer stands for; our callers hold what `source` lies in until
        // the completion.
        unsafe { engines[self.engine].unpack(source, &self.typed, range, &[]) }
    }

    /// Gathers `range` into `target`, once all of `after` have ended: staging memory, a mapping of
    /// the peer's or a ring, which our callers hold until the completion, and which no other fragment
    /// has meanwhile.
    pub(crate) fn pack_to(
        &self,
        engines: &Engines,
        range: Range<u64>,
        target: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the promise this buffer stands for; its request has not ended. Staging memory is
        // nobody's but ours, and a place of a ring is given to one fragment at a time: the peer reads
        // it when it was told to, and whatever a peer writes there regardless, it spoils its own
        // message.
        unsafe { engines[self.engine].pack(&self.typed, range, target, after) }
    }

    /// Scatters `source` to `range`, once all of `after` have ended; `source` as the target above.
    pub(crate) fn unpack_after(
        &self,
        engines: &Engines,
        source: Region,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the promise this buffer stands for; our callers hold what `source` lies in until
        // the completion. A peer that writes it meanwhile changes what its own message says.
        unsafe { engines[self.engine].unpack(source, &self.typed, range, after) }
    }

    /// Moves `range` of `remote`, which lies in `mapping`, to the same range of this buffer. Our caller
    /// holds the mapping until the completion.
    pub(crate) fn fetch_mapped(
        &self,
        engines: &Engines,
        mapping: &Mapping,
        remote: &Typed,
        range: Range<u64>,
    ) -> Result<Completion, EngineError> {
        debug_assert_eq!(mapping.region().space(), remote.space(), "where it is mapped");
        // SAFETY: `remote` lies in the mapping, which our caller holds until the completion (its
        // owner may write it: arbitrary bytes, nothing worse); this buffer is promised.
        unsafe { engines[self.engine].transfer(remote, &self.typed, range, &[]) }
    }

    /// Has a device copy the first `len` bytes of `from` to `into`: one is this buffer, which has no gaps, the
    /// other memory in a mapping, which our caller holds until the completion.
    pub(crate) fn copy_mapped(
        &self,
        device: &Arc<dyn Device>,
        (into, from): (Region, Region),
        len: u64,
    ) -> Result<Completion, EngineError> {
        debug_assert!(self.typed.as_contiguous().is_some_and(|own| [into, from].contains(&own)));
        Ok(copy(device, into.sub(0, len)?, from.sub(0, len)?, &[])?)
    }

    /// Moves `range` of this buffer to the same range of `remote`, which lies in `mapping`. Our caller holds
    /// the mapping until the completion.
    pub(crate) fn put_mapped(
        &self,
        engines: &Engines,
        mapping: &Mapping,
        remote: &Typed,
        range: Range<u64>,
    ) -> Result<Completion, EngineError> {
        debug_assert_eq!(mapping.region().space(), remote.space(), "where it is mapped");
        // SAFETY: this buffer is promised; `remote` lies in the mapping, which our caller holds until the
        // completion, and of which this range is granted for writing: no reference of this process covers it, and
        // its owner leaves it alone until it hears of the end. What an owner does regardless changes what it
        // receives, nothing else.
        unsafe { engines[self.engine].transfer(&self.typed, remote, range, &[]) }
    }

    /// Moves `range` of another buffer of this process to the same range of this one.
    pub(crate) fn fetch_local(
        &self,
        engines: &Engines,
        source: &Buffer,
        range: Range<u64>,
    ) -> Result<Completion, EngineError> {
        let engine = if self.typed.space().cpu_accessible() { source.engine } else { self.engine };
        // SAFETY: both buffers are promised until their requests end, which is after the
        // completion; that they do not overlap follows from the receive's promise that nothing
        // else touches its memory.
        unsafe { engines[engine].transfer(&source.typed, &self.typed, range, &[]) }
    }

    /// Lets peers read what this buffer touches, until deregistered.
    pub(crate) fn register(&self, bml: &mut Bml, peer: Rank) -> Option<(RdmaRail, RemoteKey)> {
        let (_, touched) = self.touched()?;
        let rail = bml.rdma_rail(peer)?;
        let (id, rdma) = bml.rdma(peer)?;
        if rdma.reaches(id) != Some(true) {
            return None;
        }
        // SAFETY: the memory is promised for reads, without a writer, until the request ends, and
        // the key, which is for reading only, is given back before that.
        unsafe { rdma.register(touched, Access::Read) }.ok().map(|key| (rail, key))
    }

    /// Reads `remote` of the memory behind `key` at `peer` into the pieces `local` of this buffer.
    pub(crate) fn get(
        &self,
        bml: &mut Bml,
        peer: Rank,
        local: &[Region],
        (key, remote): (&RemoteKey, &[Extent]),
        done: Token,
    ) -> Result<(), RdmaError> {
        let unavailable = || RdmaError::Unavailable { reason: "no rail reads memory".to_owned() };
        let (id, rdma) = bml.rdma(peer).ok_or_else(unavailable)?;
        // SAFETY: `local` are pieces of this buffer (its convertor made them), which is promised
        // until its request ends: after the event.
        unsafe { rdma.get(id, local, key, remote, done) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_engine::testkit::{Work, Wrapper};
    use gapless_mem::fake::FakeDevice;

    /// The engine of a device that reaches the memory of others.
    struct Reaching(Arc<FakeDevice>);

    // SAFETY: it refuses everything.
    unsafe impl Wrapper for Reaching {
        fn name(&self) -> &'static str {
            "reaching"
        }

        fn serves(&self, space: Space) -> bool {
            !space.cpu_accessible()
        }

        fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
            (space == self.0.space()).then(|| Arc::clone(&self.0) as Arc<dyn Device>)
        }

        unsafe fn work(&self, work: Work, _: &[Completion]) -> Result<Completion, EngineError> {
            Err(EngineError::WrongSpace { engine: "reaching", space: work.space() })
        }
    }

    #[test]
    fn memory_of_a_device_is_its_own_engines() {
        let devices: Vec<_> = (0..3).map(|number| Arc::new(FakeDevice::new(number))).collect();
        let engine = |device: &Arc<FakeDevice>| Arc::new(Reaching(Arc::clone(device)));
        let engines: Engines = vec![engine(&devices[0]), engine(&devices[1])];
        // The third has none: one that reaches it has to do.
        for (device, expected) in devices.iter().zip([0, 1, 0]) {
            let memory = Region::new(device.space(), 0x1000, 0, 64);
            assert_eq!(engine_for(&engines, &Typed::contiguous(memory)).unwrap(), expected);
        }
        let host = Typed::contiguous(Region::new(Space::Host, 0x1000, 0, 64));
        assert!(matches!(engine_for(&engines, &host), Err(PmlError::NoEngine { .. })));
    }
}
