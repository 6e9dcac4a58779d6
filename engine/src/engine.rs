//! The trait of what moves bytes by layout.

use crate::{EngineError, Reducer, Typed};
use gapless_mem::{Completion, Device, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// From this length on, in bytes, what lies in memory of the host is moved by a device that reaches it: engines are
/// [asked](Engine::reaches). Registering shorter memory with a device is of no use.
pub const REACHED_BYTES_MIN: u64 = 64 << 10;

/// Packs, unpacks and moves data by layout. Object-safe; callable from any thread.
///
/// Ranges are of the packed stream, in bytes; they may start and end inside an element. Every call
/// does its work once all of `after` have ended, and returns the completion of its own.
///
/// # Safety
/// Message layers grant an engine users' memory, and give it back when a completion says so. So an
/// implementation keeps these rules:
///
/// 1. A call writes the bytes of its range and no others: `dst`, or those bytes of `dst`'s packed stream.
///    It reads nothing outside the two regions.
/// 2. It touches them not before all of `after` have ended, and not once its completion has. An error means
///    that nothing was started, or that all that was started is over.
/// 3. What does not fit is refused before anything is touched: a range outside the packed stream, a region
///    that is not as long as the range, memory of a space that it cannot work on.
/// 4. A call that panics has started nothing, or all that it has started is over.
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_engine::{Engine, EngineError, Typed};
/// # use gapless_mem::{Completion, Region, Space};
/// # use std::ops::Range;
/// struct Idle;
/// impl Engine for Idle {
/// #   fn name(&self) -> &'static str { "idle" }
/// #   fn serves(&self, _: Space) -> bool { true }
///     unsafe fn pack(
///         &self,
///         src: &Typed,
///         range: Range<u64>,
///         dst: Region,
///         after: &[Completion],
///     ) -> Result<Completion, EngineError> {
///         Ok(Completion::Ready) // although a thread may have just started
///     }
/// #   unsafe fn unpack(
/// #       &self, _: Region, _: &Typed, _: Range<u64>, _: &[Completion],
/// #   ) -> Result<Completion, EngineError> { Ok(Completion::Ready) }
/// #   unsafe fn transfer(
/// #       &self, _: &Typed, _: &Typed, _: Range<u64>, _: &[Completion],
/// #   ) -> Result<Completion, EngineError> { Ok(Completion::Ready) }
/// }
/// ```
pub unsafe trait Engine: Send + Sync {
    /// A short name for reports.
    fn name(&self) -> &'static str;

    /// Whether it works on memory of this space. Packed regions may also lie in host memory.
    fn serves(&self, space: Space) -> bool;

    /// The device that owns the memory of `space`, if the engine knows one: message layers attach it
    /// to their transports before the first message that involves it.
    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        let _ = space;
        None
    }

    /// Why it does not [serve](Engine::serves) a space that it might serve, where it has tried: for errors.
    fn refusal(&self, space: Space) -> Option<String> {
        let _ = space;
        None
    }

    /// The device of this engine that reaches all of `host` by itself: memory of the host that is page-locked for it.
    /// Only the device with memory of space `from` counts, if that is given. Beside it, an engine that has the device
    /// alone access `host` when it works between the two, or refuses. Asking costs calls of a driver, so message layers
    /// ask for [long](REACHED_BYTES_MIN) buffers only. The memory stays page-locked while work on it is in flight.
    fn reaches(&self, host: Region, from: Option<Space>) -> Option<(&dyn Engine, Arc<dyn Device>)> {
        let _ = (host, from);
        None
    }

    /// What combines elements where they lie in memory of `space`, if the engine's device does that.
    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        let _ = space;
        None
    }

    /// Gathers bytes `range` of `src`'s packed stream into `dst`, which is as long as the range.
    ///
    /// # Safety
    /// Until the completion, `src` describes memory valid for reads that nothing else writes, and `dst`
    /// memory valid for writes that nothing else touches and that does not overlap `src`. Memory that no reference
    /// covers may be touched meanwhile: by another process that shares it, by devices, and by other work on it here; by
    /// atomic accesses of this process, too, if a device alone does the work. Then bytes are arbitrary, nothing worse.
    ///
    /// # Errors
    /// Ranges and lengths that do not fit, spaces it does not serve, the device's failure.
    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError>;

    /// Scatters `src`, which is as long as the range, to bytes `range` of `dst`'s packed stream.
    /// Bytes of `dst` outside the range, gaps included, are not touched.
    ///
    /// # Safety
    /// As for [`pack`](Engine::pack), the other way round.
    ///
    /// # Errors
    /// As for [`pack`](Engine::pack).
    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError>;

    /// Moves bytes `range` of `src`'s packed stream to the same range of `dst`'s: from layout to
    /// layout, without packing it all in between. Pieces of it may pass through a small buffer where that is quicker.
    ///
    /// # Safety
    /// As for [`pack`](Engine::pack), with `dst` a layout as well.
    ///
    /// # Errors
    /// As for [`pack`](Engine::pack).
    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError>;

    /// Copies plain memory by many pairs at once: where to, and where from, of equal length. `None`: nothing was done,
    /// and the caller copies one pair after the other. Engines that start one kernel for all pairs are quicker.
    ///
    /// # Safety
    /// As for [`pack`](Engine::pack) of each pair; no pair's destination overlaps memory of another's.
    ///
    /// # Errors
    /// As for [`pack`](Engine::pack). Some copies may have begun then; they are over when this returns.
    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        let _ = (pairs, after);
        Ok(None)
    }
}
