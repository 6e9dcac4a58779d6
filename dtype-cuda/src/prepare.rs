//! Writing a plan and uploading it, piece by piece, on the lane whose kernels are to use it: the kernel
//! for what a piece completes is enqueued behind the piece's upload, while the next piece is written.

use crate::accelerator::Lane;
use crate::plan::{Patch, Patches, PlanSpec, Writer};
use crate::plans::DevicePlan;
use crate::shared::Shared;
use crate::staging::{Piece, Ring};
use gapless_dtype::Layout;
use gapless_engine::EngineError;

/// Parts end at multiples of this many bytes of the stream, so that words and lines stay whole.
const PART_BYTES: u64 = 512;

/// What is told of a plan being written: how many bytes of the stream it covers so far; `u64::MAX` of a
/// whole plan, which covers any number of instances. Returning `false` says that no more of it is needed.
pub(crate) type OnReady<'a> = &'a mut dyn FnMut(&DevicePlan, u64) -> Result<bool, EngineError>;

/// A plan that is being written. Dropped before its end, it waits for what is on its way to it, and for
/// kernels that use it already.
struct Draft<'a> {
    lane: &'a dyn Lane,
    /// `None` once it is whole.
    plan: Option<DevicePlan>,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.plan.is_some() {
            self.lane.drain();
        }
    }
}

/// Writes a layout's plan and enqueues its upload on `lane`, which from then on finds it. The caller keeps
/// the plan until the lane has passed what it enqueues.
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
    let block = shared.memory.take(spec.bytes)?;
    let mut ring = shared.rings.take(&*shared.accelerator)?;
    let mut writer = Writer::new(layout, &spec);
    let mut draft = Draft { lane, plan: Some(DevicePlan::new(spec, block)) };
    if let Some(plan) = &draft.plan {
        if let Err(error) = write(shared, lane, plan, &mut writer, &mut ring, on_ready) {
            // The last piece may be on its way without a completion.
            lane.drain();
            return Err(error);
        }
        shared.rings.give(ring);
        plan.uploaded_by(lane.record()?);
    }
    Ok(draft.plan.take().expect("it is taken here alone"))
}

fn write(
    shared: &Shared,
    lane: &dyn Lane,
    plan: &DevicePlan,
    writer: &mut Writer,
    ring: &mut Ring,
    on_ready: OnReady<'_>,
) -> Result<(), EngineError> {
    let pipelined = shared.config.pipelined;
    let size = plan.spec().size;
    let mut patches = Patches::new();
    loop {
        let piece = ring.next()?;
        patches.clear();
        let Some(ready) = writer.next(piece.bytes(), &mut patches) else { break };
        upload(lane, plan, piece, &patches)?;
        if !pipelined {
            lane.record()?.wait()?;
            continue;
        }
        if ready >= size {
            continue;
        }
        let ready = ready / PART_BYTES * PART_BYTES;
        if ready > 0 && !on_ready(plan, ready)? {
            return Ok(());
        }
    }
    on_ready(plan, u64::MAX).map(|_| ())
}

/// Enqueues the upload of a piece.
fn upload(
    lane: &dyn Lane,
    plan: &DevicePlan,
    piece: &mut Piece,
    patches: &[Patch],
) -> Result<(), EngineError> {
    let staged = piece.region();
    for patch in patches {
        let len = patch.staged.len() as u64;
        let from = staged.sub(patch.staged.start as u64, len)?;
        let to = plan.region().sub(patch.at, len)?;
        // SAFETY: both pieces lie inside memory of ours (`sub`). The plan's is held by the call until
        // the lane has passed it; nobody else has seen the plan, whose kernels of this call come behind
        // on this lane. The staging is written again after the completion below, or, if that cannot be
        // had, after the lane was drained (`prepare`).
        unsafe { lane.copy(to, from) }?;
    }
    piece.used_by(lane.record()?);
    Ok(())
}
