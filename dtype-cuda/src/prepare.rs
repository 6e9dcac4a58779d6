//! Writing a plan and uploading it, piece by piece: the kernel for what a piece completes is enqueued behind
//! the piece's upload, while the next piece is written.
//!
//! Uploads have a lane of their own where there is one, so that they do not wait for the user's work before
//! and for the kernels between; the lane of the kernels waits for each upload, as every other lane that uses
//! the plan does while the upload has not ended.

use crate::accelerator::Lane;
use crate::plan::{Patch, Patches, PlanSpec, Writer};
use crate::plans::DevicePlan;
use crate::shared::Shared;
use crate::staging::{Piece, Ring};
use gapless_dtype::Layout;
use gapless_engine::EngineError;
use gapless_mem::Completion;

/// Parts end at multiples of this many bytes of the stream, so that words and lines stay whole.
const PART_BYTES: u64 = 512;

/// What is told of a plan being written: how many bytes of the stream it covers so far; `u64::MAX` of a
/// whole plan, which covers any number of instances. Returning `false` says that no more of it is needed.
pub(crate) type OnReady<'a> = &'a mut dyn FnMut(&DevicePlan, u64) -> Result<bool, EngineError>;

/// A plan that is being written, and its lanes. Dropped before its end, it waits for what is on its way to
/// it, and for kernels that use it already.
struct Draft<'a> {
    /// Where the plan is used.
    lane: &'a dyn Lane,
    /// Where it is uploaded; may be the same.
    uploads: &'a dyn Lane,
    /// `None` once it is whole.
    plan: Option<DevicePlan>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.plan.is_some() {
            self.uploads.drain();
            self.lane.drain();
        }
    }
}

/// Writes a layout's plan and enqueues its upload; `lane` finds it from then on. The caller keeps the plan
/// until the lane has passed what it enqueues.
///
/// # Errors
/// No memory, or the device's failure; what was enqueued has ended then.
pub(crate) fn prepare(
    shared: &Shared,
    lane: &dyn Lane,
    layout: &Layout,
    spec: PlanSpec,
    on_ready: OnReady<'_>,
) -> Result<DevicePlan, EngineError> {
    shared.collect();
    let block = shared.memory.take(spec.bytes)?;
    let mut ring = shared.rings.take(&*shared.accelerator)?;
    let mut writer = Writer::new(layout, &spec);
    let uploads = shared.accelerator.uploads().unwrap_or(lane);
    // After the ring: if writing fails, the ring is dropped when nothing is on its way from it.
    let mut draft = Draft { lane, uploads, plan: Some(DevicePlan::new(spec, block)) };
    draft.write(shared.config.pipelined, &mut writer, &mut ring, on_ready)?;
    let plan = draft.plan.take().expect("it is taken here alone");
    shared.rings.give(ring);
    Ok(plan)
}

impl Draft<'_> {
    fn write(
        &self,
        pipelined: bool,
        writer: &mut Writer,
        ring: &mut Ring,
        on_ready: OnReady<'_>,
    ) -> Result<(), EngineError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let mut patches = Patches::new();
        let mut last = Completion::Ready;
        loop {
            let piece = ring.next()?;
            patches.clear();
            let Some(ready) = writer.next(piece.bytes(), &mut patches) else { break };
            last = self.upload(plan, piece, &patches)?;
            if !pipelined {
                last.wait()?;
                continue;
            }
            let part = ready / PART_BYTES * PART_BYTES;
            if part == 0 || ready >= plan.spec().size {
                continue;
            }
            self.lane.wait_for(std::slice::from_ref(&last))?;
            if !on_ready(plan, part)? {
                plan.uploaded_by(last);
                return Ok(());
            }
        }
        plan.uploaded_by(last);
        plan.ready_on(self.lane)?;
        on_ready(plan, u64::MAX).map(|_| ())
    }

    /// Enqueues the upload of a piece, and tells its end.
    fn upload(
        &self,
        plan: &DevicePlan,
        piece: &mut Piece,
        patches: &[Patch],
    ) -> Result<Completion, EngineError> {
        let staged = piece.region();
        for patch in patches {
            let len = patch.staged.len() as u64;
            let from = staged.sub(patch.staged.start as u64, len)?;
            let to = plan.region().sub(patch.at, len)?;
            // SAFETY: both pieces lie inside memory of ours (`sub`). The plan's was free, and is kept until
            // its users' lanes have passed them, which wait for this; until its end, no kernel reads what
            // is written here. The staging is written again after the completion below; if that cannot be
            // had, the lane is drained before either is let go of (`drop`).
            unsafe { self.uploads.copy(to, from) }?;
        }
        let end = self.uploads.record()?;
        piece.used_by(end.clone());
        Ok(end)
    }
}
