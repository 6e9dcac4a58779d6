//! Many requests in one call: the small ones fused into as few launches as there are widths of words
//! (Wu et al. 2016, §3 has one kernel for all of a datatype; this is one for all of a halo).
//!
//! Where pointers are numbers, one launch reaches any memory. Where they are buffers, those requests are fused that lie
//! in the same ones. Large requests, pages, and those whose packed side only copies reach, go one by one.

use crate::accelerator::{Lane, Spot};
use crate::config::Launched;
use crate::engine::GpuEngine;
use crate::form::Form;
use crate::lanes::Holds;
use crate::memory::DeviceBlock;
use crate::plan::PlanSpec;
use crate::plans::DevicePlan;
use crate::report::told;
use crate::shared::{PackJob, Shared, Task, closed, launch_all};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{Budget, Launches, MovePart, TransferSide, fused};
use gapless_mem::{Completion, Region};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Requests of more bytes gain nothing from company.
pub(crate) const FUSED_MAX: u64 = 16 << 20;

/// One item of a batch: bytes `range` of `typed`'s packed stream go to or come from `packed`.
#[derive(Clone, Debug)]
pub struct BatchItem {
    /// The user's buffer.
    pub typed: Typed,
    /// Which bytes of its packed stream.
    pub range: Range<u64>,
    /// Where they lie packed; as long as the range.
    pub packed: Region,
}

/// A request that is to be fused.
struct Small<'a> {
    job: PackJob<'a>,
    typed: Spot,
    packed: Spot,
    shape: TransferSide,
    /// Its plan, if it takes one and that is made.
    plan: Option<Arc<DevicePlan>>,
    plan_bytes: u64,
}

/// Requests that one launch may hold, by the buffers they lie in.
type Groups<'a> = BTreeMap<[u64; 3], Vec<Small<'a>>>;

impl Small<'_> {
    /// Which buffers its kernel needs.
    fn key(&self, one_address_space: bool) -> [u64; 3] {
        if one_address_space {
            return [0; 3];
        }
        let plan = self.plan.as_ref().map_or(0, |plan| plan.region().address());
        [self.typed.base.address(), self.packed.base.address(), plan]
    }

    fn part(&self, one_address_space: bool) -> MovePart {
        let place = |spot: Spot| if one_address_space { spot.absolute() } else { spot.place };
        MovePart {
            range: self.job.start..self.job.end,
            side: self.shape.clone(),
            typed: place(self.typed),
            packed: place(self.packed),
        }
    }
}

/// A job as a part of a launch that needs no plan, where pointers are numbers.
pub(crate) fn closed_part(job: &PackJob<'_>, typed: Spot, packed: Spot) -> Option<MovePart> {
    if job.typed.as_pages().is_some() {
        return None;
    }
    let shape = closed(Form::of(job.typed.layout(), job.typed.count()))?;
    let small = Small { job: *job, typed, packed, shape, plan: None, plan_bytes: 0 };
    Some(small.part(true))
}

/// Whether to fuse a task, which has bytes: its parts then, without a shape if that takes a plan.
fn small<'a>(task: &Task<'a>) -> Option<(PackJob<'a>, Spot, Spot, Option<TransferSide>)> {
    let &Task::Packed { job, typed, direct: Some(packed), .. } = task else { return None };
    if job.len() > FUSED_MAX || job.typed.as_pages().is_some() {
        return None;
    }
    match Form::of(job.typed.layout(), job.typed.count()) {
        Form::Spans(_) => None,
        form => Some((job, typed, packed, closed(form))),
    }
}

impl Shared {
    /// Checked requests; those without bytes are left out.
    ///
    /// # Errors
    /// The first misfit's.
    pub(crate) fn tasks<'a>(
        &self,
        direction: Direction,
        requests: &'a [BatchItem],
        budget: Option<Budget>,
    ) -> Result<Vec<Task<'a>>, EngineError> {
        let tasks = requests.iter().map(|request| {
            self.pack(direction, &request.typed, &request.range, request.packed, budget)
        });
        tasks.filter(|task| !matches!(task, Ok(task) if task.is_empty())).collect()
    }

    /// The launches of a group, if they can be fused.
    fn fuse(&self, group: &[Small<'_>]) -> Option<Launches> {
        let (first, flat) = (group.first()?, self.accelerator.one_address_space());
        let parts: Vec<MovePart> = group.iter().map(|small| small.part(flat)).collect();
        // One alone has a kernel of its own, and so have shapes that do not fit here.
        (group.len() > 1).then(|| fused(first.job.direction, &parts, first.job.budget).ok())?
    }

    /// The kernel's pointers for a group.
    fn pointers(&self, group: &[Small<'_>]) -> Option<[Region; 4]> {
        let first = group.first()?;
        if self.accelerator.one_address_space() {
            return Some([Region::new(first.typed.base.space(), 0, 0, 0); 4]);
        }
        let plan = first.plan.as_ref().map_or(first.typed.base, |plan| plan.region());
        Some([first.typed.base, first.packed.base, plan, plan])
    }

    /// Enqueues requests.
    ///
    /// # Safety
    /// The tasks' memory stays valid, and free of races, until the lane has passed the work; no
    /// destination overlaps another request's memory.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    pub(crate) unsafe fn batch(
        &self,
        lane: &dyn Lane,
        chunk: &mut Option<Arc<DeviceBlock>>,
        tasks: &[Task<'_>],
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let flat = self.accelerator.one_address_space();
        let mut groups = Groups::new();
        for task in tasks {
            let Some((job, typed, packed, shape)) = small(task) else {
                // SAFETY: the caller's own promise.
                unsafe { self.run(lane, chunk, task, held, None) }?;
                continue;
            };
            let (shape, plan) = match shape {
                Some(shape) => (shape, None),
                None => {
                    let plan = self.whole_plan(lane, job.typed.layout(), held)?;
                    let at = if flat { plan.region().start() } else { 0 };
                    let shape = plan.spec().side(job.typed.layout(), job.typed.count(), at);
                    (shape, Some(plan))
                }
            };
            let small = Small { job, typed, packed, shape, plan, plan_bytes: 0 };
            groups.entry(small.key(flat)).or_default().push(small);
        }
        for group in groups.values() {
            if let (Some(launches), Some(pointers)) = (self.fuse(group), self.pointers(group)) {
                // SAFETY: every part moves a request's range of a layout that `Typed` found inside its
                // region, and of a packed region of that length, by a plan that the lane finds; where
                // pointers are numbers, the parts have them, and these are 0. The caller vouches for
                // the rest.
                unsafe { launch_all(lane, &launches, &pointers) }?;
                continue;
            }
            for Small { job, typed, packed, plan, .. } in group {
                match plan {
                    // SAFETY: the caller's own promise; the lane finds the plan.
                    Some(plan) => unsafe {
                        self.enqueue_by(lane, job, *typed, *packed, Some(plan))
                    },
                    // SAFETY: the caller's own promise.
                    None => unsafe { self.enqueue(lane, job, *typed, *packed, held) },
                }?;
            }
        }
        Ok(())
    }

    /// What a batch would launch.
    fn batch_launches(&self, tasks: &[Task<'_>]) -> Result<Vec<Launched>, EngineError> {
        let flat = self.accelerator.one_address_space();
        let (mut groups, mut all) = (Groups::new(), Vec::new());
        for (number, task) in (0u64..).zip(tasks) {
            let Some((job, typed, packed, shape)) = small(task) else {
                all.extend(self.launches(task)?);
                continue;
            };
            let spec = PlanSpec::of(job.typed.layout());
            let planned = shape.is_none();
            let shape =
                shape.unwrap_or_else(|| spec.side(job.typed.layout(), job.typed.count(), 0));
            let plan_bytes = if planned { spec.bytes } else { 0 };
            let small = Small { job, typed, packed, shape, plan: None, plan_bytes };
            let mut key = small.key(flat);
            if planned && !flat {
                // Each layout's plan is a buffer.
                let same = |task: &Task<'_>| {
                    matches!(task, Task::Packed { job: other, .. }
                    if other.typed.layout().id() == job.typed.layout().id())
                };
                key[2] = 1 + tasks.iter().position(same).map_or(number, |first| first as u64);
            }
            groups.entry(key).or_default().push(small);
        }
        for group in groups.values() {
            match self.fuse(group) {
                Some(launches) => {
                    let plans =
                        group.iter().fold(0u64, |sum, small| sum.saturating_add(small.plan_bytes));
                    all.extend(told(&launches, plans));
                }
                None => {
                    for &Small { job, typed, packed, .. } in group {
                        let packed_at = packed.base;
                        let task =
                            Task::Packed { job, typed, direct: Some(packed), packed: packed_at };
                        all.extend(self.launches(&task)?);
                    }
                }
            }
        }
        Ok(all)
    }
}

impl GpuEngine {
    /// Packs or unpacks many requests at once: small ones (up to 16 MiB) are fused, up to 32 into one
    /// launch for each width of words, mostly one. If one does not fit, nothing is done.
    ///
    /// On OpenCL, where a kernel reaches only the buffers it is given, those are fused that lie in the same
    /// buffers and share a layout or need no plan.
    ///
    /// # Safety
    /// As for [`Engine::pack`](gapless_engine::Engine::pack) of every request; no request's destination
    /// overlaps another's memory.
    ///
    /// # Errors
    /// As for [`Engine::pack`](gapless_engine::Engine::pack): the first misfit's.
    pub unsafe fn batch(
        &self,
        direction: Direction,
        requests: &[BatchItem],
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let shared = &*self.shared;
        let regions = requests.iter().flat_map(|item| [item.typed.region(), item.packed]);
        // SAFETY: the caller's own promise.
        unsafe { self.learn_alignment(regions) };
        let tasks = shared.tasks(direction, requests, self.budget)?;
        if tasks.is_empty() {
            return self.nothing(after);
        }
        let ((), completion) = self.on_lane(after, |lane, track, held| {
            // SAFETY: the caller's own promise; the lane's end is what is returned.
            unsafe { shared.batch(lane, &mut track.chunk, &tasks, held) }
        })?;
        Ok(completion)
    }

    /// What [`batch`](GpuEngine::batch) would launch, for reports. Nothing is launched or prepared.
    ///
    /// # Errors
    /// As there.
    pub fn batch_launches(
        &self,
        direction: Direction,
        requests: &[BatchItem],
    ) -> Result<Vec<Launched>, EngineError> {
        let tasks = self.shared.tasks(direction, requests, self.budget)?;
        self.shared.batch_launches(&tasks)
    }
}
