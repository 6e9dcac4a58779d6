//! Plans in device memory.

use crate::accelerator::Lane;
use crate::memory::DeviceBlock;
use crate::plan::PlanSpec;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Region};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A layout's plan on the device. It holds one instance, relative to displacement 0; so any buffer and
/// any count can use it.
pub(crate) struct DevicePlan {
    spec: PlanSpec,
    block: DeviceBlock,
    /// The end of the last upload, once that is enqueued.
    uploaded: OnceLock<Completion>,
    /// The upload has been seen to end.
    settled: AtomicBool,
}

impl DevicePlan {
    /// Memory for a plan that is yet to be written.
    pub(crate) fn new(spec: PlanSpec, block: DeviceBlock) -> DevicePlan {
        DevicePlan { spec, block, uploaded: OnceLock::new(), settled: AtomicBool::new(false) }
    }

    pub(crate) fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// What kernels' plan pointer gets.
    pub(crate) fn region(&self) -> Region {
        self.block.region()
    }

    /// Everything is written or being uploaded; `upload` is the end of that.
    pub(crate) fn uploaded_by(&self, upload: Completion) {
        // A plan is written once.
        let _ = self.uploaded.set(upload);
    }

    /// The end of its upload.
    pub(crate) fn upload(&self) -> Completion {
        self.uploaded.get().cloned().unwrap_or_default()
    }

    /// What is enqueued on `lane` from now on finds the whole plan: the upload may have been enqueued on
    /// another lane, and still be in flight.
    ///
    /// # Errors
    /// The upload failed, or the device refuses.
    pub(crate) fn ready_on(&self, lane: &dyn Lane) -> Result<(), EngineError> {
        if self.settled.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(upload) = self.uploaded.get() else { return Ok(()) };
        if upload.poll()? {
            self.settled.store(true, Ordering::Release);
            return Ok(());
        }
        lane.wait_for(std::slice::from_ref(upload))
    }
}
