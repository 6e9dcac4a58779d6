//! Users' buffers, and the only code of this crate that has bytes moved in and out of them.
//!
//! A [`Buffer`] stands for its caller's promise: the memory is valid, and nothing else touches it, while the buffer or
//! a clone of it lives. Everything else that engines touch has an owner: a slot, a message's [`Body`], a
//! [`StagingMemory`] in staging memory or a mapping, a [`Remote`] buffer in a mapping. What starts work takes the
//! owner, and gives a [`Transfer`], which has it, and a clone of the buffer, until the work is over. That is the proof
//! behind the `unsafe` blocks here; there is none that callers of safe functions would have to add to.

mod access;
mod cached;
mod remote;
pub(crate) mod span;
mod staging_memory;
mod transfer;

pub(crate) use access::{Listed, OneSidedRead, RegionList};
pub(crate) use cached::CachedBuffers;
pub(crate) use remote::{Mover, Remote, RemoteShape, packed_size};
pub(crate) use staging_memory::{Packed, StagingMemory, after};
pub(crate) use transfer::{HeldMemory, Transfer};

use crate::arrival::Body;
use crate::error::PmlError;
use gapless_bml::{Fragment, RailSlot};
use gapless_engine::{Engine, EngineError, REACHED_BYTES_MIN, Typed, first_willing};
use gapless_mem::{Completion, Device, DeviceError, Outstanding, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// Engines, in the order in which they are asked.
pub(crate) type Engines = Vec<Arc<dyn Engine>>;

/// A user's buffer, promised while it or a clone of it lives.
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
    found.ok_or_else(|| no_engine(engines, space))
}

/// Why nothing works on memory of this space.
#[cold]
pub(crate) fn no_engine(engines: &Engines, space: Space) -> PmlError {
    match engines.iter().find_map(|engine| engine.refusal(space)) {
        Some(reason) => PmlError::Refused { space, reason },
        None => PmlError::NoEngine { space },
    }
}

/// Which of `engines` works on ordinary memory.
pub(crate) fn host_engine(engines: &Engines) -> Option<usize> {
    engines.iter().position(|engine| engine.serves(Space::Host))
}

/// Copies `range` of `typed` into `slot`, from `offset` on, if the CPU reaches both and there are no gaps; `None`, with
/// nothing done, otherwise.
///
/// # Safety
/// For the time of this call, `typed` describes memory valid for reads, which nothing writes.
#[inline(always)] // on short messages' path
pub(crate) unsafe fn copy_in(
    typed: &Typed,
    range: Range<u64>,
    slot: &mut RailSlot,
    offset: usize,
) -> Option<Result<(), EngineError>> {
    let whole = typed.as_contiguous().filter(|whole| whole.space().cpu_accessible())?;
    let place = slot.region();
    if !place.space().cpu_accessible() {
        return None;
    }
    let parts = place
        .sub(offset as u64, range.end - range.start)
        .and_then(|target| Ok((target, whole.sub(range.start, target.len())?)));
    let (target, source) = match parts {
        Ok(parts) => parts,
        Err(error) => return Some(Err(error.into())),
    };
    // SAFETY: the caller vouches for the source. The target lies in the slot, whose memory is valid while it lives, and
    // `&mut` shows that nobody else works on it; so they do not overlap.
    let copied = unsafe { gapless_mem::copy(&target, &source) };
    Some(copied.map_err(EngineError::from))
}

/// Gathers `range` of `typed` into `slot`, from `offset` on.
///
/// # Safety
/// Until the work is over, `typed` describes memory valid for reads, which nothing writes, and nobody else gets the slot.
pub(crate) unsafe fn pack(
    engines: &Engines,
    engine: usize,
    typed: &Typed,
    range: Range<u64>,
    slot: &mut RailSlot,
    offset: usize,
) -> Result<Outstanding, EngineError> {
    // SAFETY: the caller vouches for the source.
    if let Some(copied) = unsafe { copy_in(typed, range.clone(), slot, offset) } {
        return copied.map(|()| Outstanding::new(Completion::Ready));
    }
    let engine = &engines[engine];
    let target = slot.region().sub(offset as u64, range.end - range.start)?;
    // SAFETY: the caller vouches for the source until the work is over, and for the slot, in which the target lies.
    Ok(Outstanding::new(unsafe { engine.pack(typed, range, target, &[]) }?))
}

/// Copies a fragment from `offset` on to `target`, if that is as long as the rest of the fragment and the CPU reaches
/// both; gives whether it has.
///
/// # Safety
/// For the time of this call, `target` describes memory valid for writes, which nothing else touches.
#[inline(always)] // on short messages' path
pub(crate) unsafe fn copy_from(fragment: &Fragment, offset: u64, target: &Region) -> bool {
    let Ok(data) = fragment.region().sub(offset, target.len()) else { return false };
    // SAFETY: the caller vouches for the target. The data lies in the fragment, whose memory is valid for reads while
    // it lives (its sender may write it: then these are arbitrary bytes).
    unsafe { gapless_mem::copy(target, &data) }.is_ok()
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
        let packed =
            Outstanding::new(unsafe { engines[engine].pack(typed, 0..bytes, target, &[]) }?);
        packed.wait()?;
    }
    Ok(copy)
}

impl Buffer {
    /// Takes the promise.
    ///
    /// # Safety
    /// While this buffer or a clone of it lives, `typed` describes memory that is valid for reads and, for a receive,
    /// writes; meanwhile nothing else writes to it (but work that a send waits for before it reads) and, for a receive,
    /// nothing else touches it. Its region is memory that stays allocated, unless it is [`Region::bottom`]; so is the
    /// memory of its pages' indices.
    ///
    /// A request keeps its buffer until it has ended. Clones are made for the time of a call, and for [`Transfer`]s of
    /// the request, all of which are over before it ends. So who promises the memory until a request has ended may make
    /// the buffer for that request.
    pub(crate) unsafe fn promised(typed: &Typed, engine: usize) -> Buffer {
        Buffer { typed: typed.clone(), engine }
    }

    pub(crate) fn typed(&self) -> &Typed {
        &self.typed
    }

    /// Its engine's number.
    pub(crate) fn engine(&self) -> usize {
        self.engine
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.typed.packed_bytes()
    }

    /// The bytes it touches, relative to displacement 0, and where they are.
    pub(crate) fn touched(&self) -> Option<(i64, Region)> {
        self.typed.touched()
    }

    /// The engine's number, and its device, that reach this buffer of the host where it lies, if it is long and
    /// page-locked.
    pub(crate) fn reached_by(&self, engines: &Engines) -> Option<(usize, Arc<dyn Device>)> {
        if self.bytes() < REACHED_BYTES_MIN || !self.typed.space().cpu_accessible() {
            return None;
        }
        let (_, touched) = self.touched()?;
        let mut engines = engines.iter().enumerate();
        engines.find_map(|(number, engine)| Some((number, engine.reaches(touched, None)?.1)))
    }

    /// Gathers `range` into `slot`, from `offset` on.
    pub(crate) fn pack(
        &self,
        engines: &Engines,
        range: Range<u64>,
        mut slot: RailSlot,
        offset: usize,
    ) -> Result<Transfer<RailSlot>, EngineError> {
        // SAFETY: this buffer is promised while the transfer has a clone of it, and the transfer has the slot.
        let work = unsafe { pack(engines, self.engine, &self.typed, range, &mut slot, offset) }?;
        Ok(self.packing(work, slot))
    }

    /// Work that packs this buffer into `slot`.
    pub(crate) fn packing(&self, work: Outstanding, slot: RailSlot) -> Transfer<RailSlot> {
        Transfer::new(work, self, slot)
    }

    /// Scatters what lies in `body` from `offset` on to `range`.
    pub(crate) fn unpack(
        &self,
        engines: &Engines,
        body: Body,
        offset: u64,
        range: Range<u64>,
    ) -> Result<Transfer<Body>, EngineError> {
        let engine = &engines[self.engine];
        let source = body.region().sub(offset, range.end - range.start)?;
        if let Some(whole) = self.typed.as_contiguous() {
            let target = whole.sub(range.start, source.len())?;
            if whole.space().cpu_accessible() && source.space().cpu_accessible() {
                // SAFETY: this buffer's promise covers the target; the source lies in `body`, which is held here.
                unsafe { gapless_mem::copy(&target, &source) }?;
                return Ok(Transfer::over(body));
            }
        }
        // SAFETY: the target is this buffer, promised while the transfer has a clone of it. The source lies in `body`,
        // whose memory is valid for reads while the transfer has it. A peer that writes it changes its own message.
        let work = unsafe { engine.unpack(source, &self.typed, range, &[]) }?;
        Ok(Transfer::new(Outstanding::new(work), self, body))
    }

    /// Moves `range` of another buffer of this process to the same range of this one.
    pub(crate) fn fetch_local(
        &self,
        engines: &Engines,
        source: Buffer,
        range: Range<u64>,
    ) -> Result<Transfer<Buffer>, EngineError> {
        // Of two devices' engines, the receiver's comes first.
        let near = if self.typed.space().cpu_accessible() { source.engine } else { self.engine };
        let far = if source.typed.space().cpu_accessible() { near } else { source.engine };
        let either = [Some(near), (far != near).then_some(far)].into_iter().flatten();
        let tries = either.map(|engine| {
            // SAFETY: both buffers are promised while the transfer has them; that they do not overlap follows from
            // the receive's promise that nothing else touches its memory.
            unsafe { engines[engine].transfer(&source.typed, &self.typed, range.clone(), &[]) }
        });
        let work = first_willing(tries).expect("there is one to try")?;
        Ok(Transfer::new(Outstanding::new(work), self, source))
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
