//! The engine: the three kernels of the toy are those of the host's engine, run by the queue on the toy's memory.

use crate::device::Toy;
use crate::queue::failed;
use gapless_engine::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::{Completion, Device, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// Packs, unpacks and moves by layout in a toy's memory, and between that and the host's.
pub struct ToyEngine(Arc<Toy>);

impl ToyEngine {
    /// The engine of a toy.
    #[must_use]
    pub fn new(toy: &Arc<Toy>) -> ToyEngine {
        ToyEngine(Arc::clone(toy))
    }

    /// A side of work, where it really is, once the range is known to fit.
    fn resident(&self, typed: &Typed, range: &Range<u64>) -> Result<Typed, EngineError> {
        typed.check_range(range)?;
        let region = self.0.resident(typed.region())?;
        typed.moved(region, typed.origin())
    }

    fn packed(&self, region: Region, range: &Range<u64>) -> Result<Region, EngineError> {
        let bytes = range.end.saturating_sub(range.start);
        if region.len() != bytes {
            return Err(EngineError::LengthMismatch { region: region.len(), range: bytes });
        }
        Ok(self.0.resident(region)?)
    }

    fn put(
        &self,
        after: &[Completion],
        kernel: impl FnOnce() -> Result<Completion, EngineError> + Send + 'static,
    ) -> Result<Completion, EngineError> {
        let told = |error| match error {
            EngineError::Device(error) => error,
            other => failed(other),
        };
        // The host's engine is done when it returns.
        Ok(self.0.queue.put(after, move || kernel().map(drop).map_err(told))?)
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The host's engine keeps the rule; it gets the same bytes, where they really are.
// 2. A job of the queue runs it after all of `after`, and the completion is that job's.
// 3. `resident` and `packed` come first.
// 4. A call puts a job as the last thing that it does.
unsafe impl Engine for ToyEngine {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.0.space()
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        self.serves(space).then(|| Arc::clone(&self.0) as _)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (dst, src) = (self.packed(dst, &range)?, self.resident(src, &range)?);
        // SAFETY: the caller keeps both sides until the completion, which comes after this.
        self.put(after, move || unsafe { HostEngine.pack(&src, range, dst, &[]) })
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.packed(src, &range)?, self.resident(dst, &range)?);
        // SAFETY: as in `pack`.
        self.put(after, move || unsafe { HostEngine.unpack(src, &dst, range, &[]) })
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.resident(src, &range)?, self.resident(dst, &range)?);
        // SAFETY: as in `pack`.
        self.put(after, move || unsafe { HostEngine.transfer(&src, &dst, range, &[]) })
    }
}
