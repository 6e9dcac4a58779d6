//! What kernels report of indices that they check: for either side, the first position of one that is too large.
//! Whoever asks for the end of the work hears of it.

use crate::accelerator::Lane;
use crate::memory::DeviceBlock;
use crate::shared::Shared;
use crate::staging::StagingPiece;
use gapless_engine::EngineError;
use gapless_mem::{Completion, DeviceError, Pending, Region, read};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// A position for the source, and one for the target.
const BYTES: u64 = 8;

/// Memory that kernels report to.
pub(crate) struct IndexReport {
    /// Of the host.
    memory: Region,
    /// What kernels write, if that is not the host's memory.
    block: Option<DeviceBlock>,
    /// The kernels' pointer.
    pointer: Region,
    last: [u64; 2],
    _memory: StagingPiece,
}

impl IndexReport {
    /// Of sides whose largest indices are `last`.
    pub(crate) fn new(shared: &Shared, last: [u64; 2]) -> Result<IndexReport, EngineError> {
        let mut piece = shared.rings.short(&*shared.accelerator, BYTES)?;
        piece.bytes().fill(0xff);
        let memory = piece.region().sub(0, BYTES)?;
        let (block, pointer) = match shared.accelerator.packed(memory)? {
            // A whole piece begins where its memory does.
            Some(spot) => (None, spot.base),
            None => {
                let block = shared.memory.take(BYTES)?;
                let pointer = block.region();
                (Some(block), pointer)
            }
        };
        Ok(IndexReport { memory, block, pointer, last, _memory: piece })
    }

    /// The kernels' pointer.
    pub(crate) fn pointer(&self) -> Region {
        self.pointer
    }

    /// Before the first kernel that checks.
    ///
    /// # Errors
    /// The device refuses.
    pub(crate) fn open(&self, lane: &dyn Lane) -> Result<(), EngineError> {
        let Some(block) = &self.block else { return Ok(()) };
        // SAFETY: both are memory of this report, which is held until the lane has passed the copy.
        unsafe { lane.copy(block.region().sub(0, BYTES)?, self.memory) }
    }

    /// After the last one.
    ///
    /// # Errors
    /// The device refuses.
    pub(crate) fn close(&self, lane: &dyn Lane) -> Result<(), EngineError> {
        let Some(block) = &self.block else { return Ok(()) };
        // SAFETY: as for `open`.
        unsafe { lane.copy(self.memory, block.region().sub(0, BYTES)?) }
    }

    /// What was reported by work that is over.
    fn verdict(&self) -> Result<(), DeviceError> {
        let mut told = [0; 8];
        // SAFETY: the memory is the report's, and readable; who wrote it is done.
        unsafe { read(&self.memory, 0, &mut told) }?;
        let sides = told.chunks_exact(4).zip(["source", "target"]).zip(self.last);
        for ((bytes, side), last) in sides {
            let position = bytes.try_into().map_or(u32::MAX, u32::from_ne_bytes);
            if position != u32::MAX {
                return Err(DeviceError::PageOutside { side, position: position.into(), last });
            }
        }
        Ok(())
    }
}

/// Reports on one piece of work.
pub(crate) type Reports = SmallVec<[Arc<IndexReport>; 1]>;

/// Work whose end tells what was reported.
struct CheckedWork {
    work: Arc<dyn Pending>,
    reports: Reports,
}

/// The same work, whose end tells what was reported.
pub(crate) fn checked(work: Completion, reports: Reports) -> Completion {
    match work {
        Completion::Pending(work) if !reports.is_empty() => {
            Completion::Pending(Arc::new(CheckedWork { work, reports }))
        }
        other => other,
    }
}

// SAFETY: the numbers are those of the contract.
// 1. to 3. Those of the work itself; the report is looked at once that is over, and then always says the same.
// 4. `as_any` gives `self`.
// 5. The work's own export.
// 7. The work itself, or what orders that.
unsafe impl Pending for CheckedWork {
    fn poll(&self) -> Result<bool, DeviceError> {
        let ended = self.work.poll()?;
        if ended {
            self.reports.iter().try_for_each(|report| report.verdict())?;
        }
        Ok(ended)
    }

    fn is_known_over(&self) -> bool {
        self.work.is_known_over()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn ordered_by(&self) -> Option<&dyn Pending> {
        Some(self.work.ordered_by().unwrap_or(&*self.work))
    }

    fn export(&self) -> Result<Vec<u8>, DeviceError> {
        self.work.export()
    }
}
