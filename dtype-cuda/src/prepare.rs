//! Writing a plan, uploading it and using it, piece by piece: three stages that go on at once. Several threads
//! write (`writers.rs`); this one uploads what is written, in order, and enqueues the kernel for what is
//! uploaded behind that, an eighth of the plan at a time.
//!
//! Uploads have a lane of their own where there is one, so that they do not wait for the user's work before
//! and for the kernels between; the lane of the kernels waits for each upload, as every other lane that uses
//! the plan does while the upload has not ended.

use crate::accelerator::Lane;
use crate::config::Config;
use crate::plan::{MapWriter, Patch, Patches, Pieces, PlanKind, PlanSpec};
use crate::plans::DevicePlan;
use crate::shared::Shared;
use crate::staging::StagingRing;
use crate::writers::{Broken, PlanBuild, Written};
use gapless_dtype::Layout;
use gapless_engine::EngineError;
use gapless_mem::{Completion, DeviceError, Region};
use std::sync::Arc;

/// Parts end at multiples of this many bytes of the stream, so that words and lines stay whole.
const PART_BYTES: u64 = 512;

/// Kernels that a plan's first use is launched in, about. More of them leave less to do when the last piece is
/// up, and each costs this thread microseconds.
const PARTS: u64 = 8;

/// Pieces are at least so long, if they may be: shorter ones cost more to upload than to write …
const PIECE_MIN: u64 = 256 << 10;

/// … and a plan has about so many of them for each writer.
const ROUNDS: u64 = 2;

/// What is told of a plan being written: how many bytes of the stream it covers so far; `u64::MAX` of a
/// whole plan, which covers any number of instances. Returning `false` says that no more of it is needed.
pub(crate) type OnReady<'a> = &'a mut dyn FnMut(&DevicePlan, u64) -> Result<bool, EngineError>;

/// Pieces of staging memory in a ring: each writer has one, and some are in flight.
pub(crate) fn pieces(config: &Config) -> usize {
    config.writers + 3
}

/// Bytes of the pieces that a plan of `bytes` is written in.
pub(crate) fn piece_bytes(config: &Config, bytes: u64) -> usize {
    let parts = PARTS.max(ROUNDS * config.writers as u64);
    let share = (bytes / parts).max(PIECE_MIN).next_multiple_of(4096);
    usize::try_from(share).map_or(config.piece_bytes, |share| share.min(config.piece_bytes))
}

/// The plan's pieces, if they are to be written in any order.
pub(crate) fn in_any_order(layout: &Layout, spec: &PlanSpec, config: &Config) -> Option<Pieces> {
    let pieces = Pieces::of(layout, spec, piece_bytes(config, spec.bytes))?;
    // One thread alone is done sooner if it needs not look where its pieces begin.
    (config.writers > 1 || !pieces.are_walks()).then_some(pieces)
}

/// Where written pieces come from.
enum Source {
    /// Several threads, this one among them, and how many pieces were picked up.
    Threads(Arc<PlanBuild>, usize),
    /// This thread.
    InOrder(Box<MapWriter>),
}

impl Drop for Source {
    /// Nobody waits for memory that nobody gives back.
    fn drop(&mut self) {
        if let Source::Threads(build, _) = self {
            build.give_up();
        }
    }
}

/// A plan that is being written, and its lanes. Dropped before its end, it waits for what is in flight to
/// it, and for kernels that use it already.
struct Draft<'a> {
    shared: &'a Shared,
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
    let config = &shared.config;
    let mut source = Source::of(layout, &spec, config);
    let staging = match &source {
        // All of it is written before any is uploaded.
        Source::Threads(build, _) if !config.pipelined => build.count(),
        _ => pieces(config),
    };
    let mut ring = shared.rings.take(&*shared.accelerator, staging)?;
    let uploads = shared.accelerator.uploads().unwrap_or(lane);
    // After the ring: if writing fails, the ring is dropped when nothing from it is in flight.
    let mut draft = Draft { shared, lane, uploads, plan: Some(DevicePlan::new(spec, block)) };
    source.open(shared, &mut ring);
    let done = draft.write(&mut source, &mut ring, on_ready);
    source.close(&mut ring);
    done?;
    let plan = draft.plan.take().expect("it is taken here alone");
    shared.rings.give(ring, pieces(config));
    Ok(plan)
}

impl Source {
    fn of(layout: &Layout, spec: &PlanSpec, config: &Config) -> Source {
        if let Some(pieces) = in_any_order(layout, spec, config) {
            return Source::Threads(PlanBuild::new(pieces), 0);
        }
        match spec.kind {
            PlanKind::Mapped(map) => Source::InOrder(Box::new(MapWriter::new(layout, spec, map))),
            PlanKind::Listed(_) => unreachable!("a list is written in any order"),
        }
    }

    /// Writing begins: the ring's blank pieces are the writers'.
    fn open(&self, shared: &Shared, ring: &mut StagingRing) {
        let Source::Threads(build, _) = self else { return };
        while let Some(piece) = ring.blank() {
            build.give(piece);
        }
        // The first piece is this thread's.
        let others = build.count().saturating_sub(1).min(shared.writers.most());
        shared.writers.call(build, others);
    }

    /// No more is written; the ring has its pieces back.
    fn close(&self, ring: &mut StagingRing) {
        if let Source::Threads(build, _) = self {
            build.stop().into_iter().for_each(|piece| ring.give(piece));
        }
    }

    /// The next piece, once it is written; `None` when there is no more.
    fn next(
        &mut self,
        shared: &Shared,
        ring: &mut StagingRing,
    ) -> Result<Option<Written>, EngineError> {
        match self {
            Source::InOrder(writer) => {
                let blank = match ring.blank() {
                    Some(piece) => piece,
                    None => match ring.landed(true)? {
                        Some(piece) => piece,
                        // All of it is written before any is uploaded.
                        None => shared.rings.piece(&*shared.accelerator)?,
                    },
                };
                let (mut piece, mut patches) = (blank, Patches::new());
                match writer.next(piece.bytes(), &mut patches) {
                    Some(ready) => Ok(Some(Written::whole(piece, patches, ready))),
                    None => {
                        ring.give(piece);
                        Ok(None)
                    }
                }
            }
            Source::Threads(build, taken) => {
                let number = *taken;
                if number >= build.count() {
                    return Ok(None);
                }
                loop {
                    while let Some(piece) = ring.landed(false)? {
                        build.give(piece);
                    }
                    let put = build.put();
                    let broken = |why| broken(shared, why);
                    if let Some(written) = build.take(number).map_err(broken)? {
                        *taken += 1;
                        return Ok(Some(written));
                    }
                    if build.write_one() {
                        continue;
                    }
                    if build.lacks_memory(number)
                        && let Some(piece) = ring.landed(true)?
                    {
                        build.give(piece);
                    } else {
                        build.wait_beyond(put);
                    }
                }
            }
        }
    }
}

/// A writer's panic as engines tell it.
fn broken(shared: &Shared, Broken(reason): Broken) -> EngineError {
    let device = shared.accelerator.device().properties().name.clone();
    EngineError::Device(DeviceError::Failed { device, operation: "writing a plan", reason })
}

impl Draft<'_> {
    fn write(
        &self,
        source: &mut Source,
        ring: &mut StagingRing,
        on_ready: OnReady<'_>,
    ) -> Result<(), EngineError> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let last = if self.shared.config.pipelined {
            let size = plan.spec().size;
            let (mut last, mut used) = (Completion::Ready, 0);
            while let Some(written) = source.next(self.shared, ring)? {
                let ready = written.ready;
                last = self.upload(plan, written, ring)?;
                let part = ready / PART_BYTES * PART_BYTES;
                if part <= used || part - used < size / PARTS || ready >= size {
                    continue;
                }
                used = part;
                self.lane.wait_for(std::slice::from_ref(&last))?;
                if !on_ready(plan, part)? {
                    plan.uploaded_by(last);
                    return Ok(());
                }
            }
            last
        } else {
            let mut all = Vec::new();
            while let Some(written) = source.next(self.shared, ring)? {
                all.push(written);
            }
            let mut last = Completion::Ready;
            for written in all {
                last = self.upload(plan, written, ring)?;
            }
            last.wait()?;
            last
        };
        plan.uploaded_by(last);
        plan.ready_on(self.lane)?;
        on_ready(plan, u64::MAX).map(|_| ())
    }

    /// Enqueues the upload of a piece, and tells its end. The piece is the ring's.
    fn upload(
        &self,
        plan: &DevicePlan,
        Written { mut piece, patches, .. }: Written,
        ring: &mut StagingRing,
    ) -> Result<Completion, EngineError> {
        let end = self.send(plan, piece.region(), &patches);
        if let Ok(end) = &end {
            piece.used_by(end.clone());
        }
        // If that failed, some of it may be in flight: the ring lives until the lane is drained (`drop`).
        ring.sent(piece);
        end
    }

    fn send(
        &self,
        plan: &DevicePlan,
        staged: Region,
        patches: &[Patch],
    ) -> Result<Completion, EngineError> {
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
        self.uploads.record()
    }
}
