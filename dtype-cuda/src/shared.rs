//! What all handles of an engine share, and how one piece of work gets onto a lane: closed form or plan,
//! launches, and whatever the work keeps alive.

use crate::accelerator::{Accelerator, Lane, Spot, unfit};
use crate::between::{Between, LayoutPairs};
use crate::cache::{Cache, CacheLookup};
use crate::config::Config;
use crate::form::Form;
use crate::gathered::Gathered;
use crate::index_report::{Reports, checked};
use crate::lanes::{Elsewhere, Hold, Holds, InFlight, Lanes, PATIENCE, Track};
use crate::memory::{DeviceBlock, PlanMemory};
use crate::plan::PlanSpec;
use crate::plans::DevicePlan;
use crate::prepare::{OnReady, prepare};
use crate::recent::{LayoutPair, Placed, Recent};
use crate::staging::StagingRings;
use crate::triangle::Shares;
use crate::writers::Writers;
use gapless_dtype::Layout;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::launch::{
    Budget, Launches, Move, TransferSide, Unfit, affine, contiguous, from_afar, listed, mapped,
    strided,
};
use gapless_kernels::{Direction, Family};
use gapless_mem::{Completion, Region, Space};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

/// Bytes that one call moves at most: more than any machine has, and few enough launches to be listed.
pub(crate) const CALL_BYTES_MAX: u64 = 1 << 48;

/// What all handles share. Fields are dropped in order, and before them the work that uses them is waited
/// for.
pub(crate) struct Shared {
    pub(crate) elsewhere: Elsewhere,
    pub(crate) gathered: Gathered,
    pub(crate) lanes: Lanes,
    pub(crate) cache: Cache<DevicePlan>,
    pub(crate) layout_pairs: LayoutPairs,
    /// What copy engines were to do.
    pub(crate) shared_out: Recent<LayoutPair, Option<Arc<Shares>>>,
    /// What kernels were to do, without plans.
    pub(crate) laid_out: Recent<Placed, Option<Arc<Launches>>>,
    /// What they were to do beside copy engines.
    pub(crate) left_over: Recent<Placed, Result<Arc<Launches>, Unfit>>,
    pub(crate) rings: StagingRings,
    pub(crate) writers: Writers,
    pub(crate) memory: Arc<PlanMemory>,
    pub(crate) config: Config,
    pub(crate) accelerator: Arc<dyn Accelerator>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        self.elsewhere.settle(deadline);
        self.lanes.settle(deadline);
    }
}

/// One side of a move, and the pointer to its plan; any pointer, if it has none.
pub(crate) struct Side {
    pub(crate) shape: TransferSide,
    pub(crate) plan: Region,
}

/// A pack or an unpack whose numbers have been checked.
#[derive(Clone, Copy)]
pub(crate) struct PackJob<'a> {
    pub(crate) direction: Direction,
    pub(crate) typed: &'a Typed,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) budget: Option<Budget>,
}

/// What a call does, checked.
pub(crate) enum Task<'a> {
    /// A pack or an unpack.
    Packed {
        /// What.
        job: PackJob<'a>,
        /// Where kernels find the typed side.
        typed: Spot,
        /// Where they find the packed one, unless only copies are to reach it.
        direct: Option<Spot>,
        /// The packed side.
        packed: Region,
    },
    /// From layout to layout.
    Transfer {
        /// The source, and where kernels find it.
        from: (&'a Typed, Spot),
        /// The destination, likewise.
        to: (&'a Typed, Spot),
        /// Bytes of both streams.
        range: Range<u64>,
        /// Blocks at most.
        budget: Option<Budget>,
    },
}

impl Task<'_> {
    /// Whether a side is pages at indices.
    pub(crate) fn is_paged(&self) -> bool {
        match self {
            Task::Packed { job, .. } => job.typed.as_pages().is_some(),
            Task::Transfer { from, to, .. } => {
                from.0.as_pages().is_some() || to.0.as_pages().is_some()
            }
        }
    }

    /// Bytes to move.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Task::Packed { job, .. } => job.len(),
            Task::Transfer { range, .. } => range.end - range.start,
        }
    }

    /// Whether there is no byte to move.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> PackJob<'a> {
    /// # Errors
    /// A range outside the stream, or a packed region of another length.
    pub(crate) fn new(
        direction: Direction,
        typed: &'a Typed,
        range: &Range<u64>,
        packed: Region,
        budget: Option<Budget>,
    ) -> Result<PackJob<'a>, EngineError> {
        typed.check_range(range)?;
        let len = range.end - range.start;
        if packed.len() != len {
            return Err(EngineError::LengthMismatch { region: packed.len(), range: len });
        }
        Ok(PackJob { direction, typed, start: range.start, end: range.end, budget })
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Its bytes of the stream.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// The same of other instances with the same stream.
    pub(crate) fn of(self, typed: &Typed) -> PackJob<'_> {
        PackJob { typed, ..self }
    }

    /// A part of it: bytes `start..end` of the stream.
    pub(crate) fn part(self, start: u64, end: u64) -> PackJob<'a> {
        debug_assert!(self.start <= start && start <= end && end <= self.end);
        PackJob { start, end, ..self }
    }

    /// As the kernels' arithmetic wants it.
    pub(crate) fn what(&self, typed: Spot, packed: Spot) -> Move {
        Move {
            direction: self.direction,
            range: self.start..self.end,
            typed: typed.place,
            packed: packed.place,
            budget: self.budget,
        }
    }
}

/// A closed form as a side of a move; `None` where that takes a plan.
pub(crate) fn closed(form: Form) -> Option<TransferSide> {
    match form {
        Form::Contiguous { displacement } => Some(TransferSide::Contiguous(displacement)),
        Form::Strided(grid) => Some(TransferSide::Strided(grid)),
        Form::Affine(runs) => Some(TransferSide::Affine(runs)),
        // Who asks has found that there are bytes to move.
        Form::Empty | Form::Spans(_) | Form::Listed(_) | Form::Mapped(_) => None,
    }
}

/// The launches of one side's shape against a packed side.
pub(crate) fn lay_out(shape: &TransferSide, what: &Move) -> Result<Launches, Unfit> {
    match shape {
        TransferSide::Contiguous(displacement) => contiguous(what, *displacement),
        TransferSide::Strided(grid) => strided(what, grid),
        TransferSide::Affine(runs) => affine(what, runs),
        TransferSide::Listed(blocks) => listed(what, blocks),
        TransferSide::Mapped(planned) => mapped(what, planned),
    }
}

/// What work that holds this reports to.
pub(crate) fn reports(held: &Holds) -> Reports {
    let report = |hold: &Hold| match hold {
        Hold::Report(report) => Some(Arc::clone(report)),
        _ => None,
    };
    held.iter().filter_map(report).collect()
}

/// Enqueues launches whose pointers are `pointers`, as many as each kernel takes.
///
/// # Safety
/// As for [`Lane::launch`], for every one.
pub(crate) unsafe fn launch_all(
    lane: &dyn Lane,
    launches: &Launches,
    pointers: &[Region; 4],
) -> Result<(), EngineError> {
    for launch in launches {
        let pointers = &pointers[..2 + launch.kernel.family.plans()];
        // SAFETY: the caller's own promise.
        unsafe { lane.launch(launch, pointers) }?;
    }
    Ok(())
}

impl Shared {
    /// Enqueues work on a lane of our own, after `after`, and records its end.
    pub(crate) fn on_lane<T>(
        &self,
        after: &[Completion],
        work: impl FnOnce(&dyn Lane, &mut Track, &mut Holds) -> Result<T, EngineError>,
    ) -> Result<(T, Completion), EngineError> {
        // Not while we hold a lane, which whoever ends that work may need.
        for earlier in after.iter().filter(|work| !self.accelerator.orders(work)) {
            earlier.wait()?;
        }
        // On the lane of what it comes after it follows at once; from another lane that takes microseconds.
        let lanes = self.accelerator.lanes();
        let follows = |&at: &usize| after.iter().any(|work| lanes[at].recorded(work));
        let preferred = (0..lanes.len()).find(follows);
        let (number, mut track) = self.lanes.take(preferred);
        let lane = &*lanes[number];
        lane.begin();
        lane.wait_for(after)?;
        let mut flight = InFlight::new(lane);
        let value = work(lane, &mut track, flight.held())?;
        let reports = reports(flight.held());
        let completion = lane.record()?;
        flight.land(&mut track.retired, &completion);
        track.last = completion.clone();
        Ok((value, checked(completion, reports)))
    }

    /// Lets go of what is over, wherever nobody is busy.
    pub(crate) fn collect(&self) {
        self.lanes.collect();
        self.elsewhere.collect();
    }

    /// A lane for part of a call's work on `lane`, if one is free. It begins a call, too.
    ///
    /// None beside a caller's stream: a lane of ours would wait for that, which may wait for anything (a gate, that
    /// a message opens), and so would all messages that come onto the lane later.
    pub(crate) fn another(&self, lane: &dyn Lane) -> Option<(&dyn Lane, MutexGuard<'_, Track>)> {
        let (number, track) = if lane.is_ours() { self.lanes.take_another() } else { None }?;
        let other = &*self.accelerator.lanes()[number];
        other.begin();
        Some((other, track))
    }

    pub(crate) fn unfit(&self, reason: Unfit) -> EngineError {
        unfit(&self.accelerator.device(), reason)
    }

    /// # Errors
    /// More bytes than a call moves.
    pub(crate) fn check_len(&self, len: u64) -> Result<(), EngineError> {
        if len > CALL_BYTES_MAX { Err(self.unfit(Unfit::Numbers)) } else { Ok(()) }
    }

    /// Launches, fitted to where their source lies.
    pub(crate) fn fitted<'l>(
        &self,
        mut launches: Cow<'l, Launches>,
        src: Region,
        dst: Region,
        budget: Option<Budget>,
    ) -> Cow<'l, Launches> {
        // Only these can do something about it.
        let fits = |family| matches!(family, Family::Transposed | Family::Listed);
        if launches.iter().any(|one| fits(one.kernel.family))
            && self.accelerator.reads_afar(src, dst)
        {
            from_afar(launches.to_mut(), budget);
        }
        launches
    }

    /// The same of a job's launches.
    pub(crate) fn fitted_to(
        &self,
        job: &PackJob<'_>,
        packed: Spot,
        launches: Launches,
    ) -> Launches {
        let (src, dst) = match job.direction {
            Direction::Pack => (job.typed.region(), packed.base),
            Direction::Unpack => (packed.base, job.typed.region()),
        };
        self.fitted(Cow::Owned(launches), src, dst, job.budget).into_owned()
    }

    /// The launches of a job without a plan, if it can do without.
    pub(crate) fn by_form(&self, job: &PackJob<'_>, typed: Spot, packed: Spot) -> Option<Launches> {
        let (layout, count) = (job.typed.layout(), job.typed.count());
        let what = job.what(typed, packed);
        match Form::of(layout, count) {
            Form::Contiguous { displacement } => contiguous(&what, displacement).ok(),
            Form::Strided(grid) => {
                let launches = strided(&what, &grid).ok()?;
                Some(self.fitted_to(job, packed, launches))
            }
            Form::Affine(runs) => affine(&what, &runs).ok(),
            Form::Spans(spans) => {
                let mut launches = Launches::new();
                for span in &spans {
                    let start = span.at.max(job.start);
                    let end = (span.at + span.len).min(job.end);
                    if start < end {
                        let packed = packed.advanced(start - job.start);
                        let what = job.part(start, end).what(typed, packed);
                        launches.extend(contiguous(&what, span.origin()).ok()?);
                    }
                }
                Some(launches)
            }
            Form::Empty | Form::Listed(_) | Form::Mapped(_) => None,
        }
    }

    /// Where kernels find both sides; `None` for a packed side that only copies are to reach.
    ///
    /// # Errors
    /// Memory that this engine cannot work on.
    pub(crate) fn spots(
        &self,
        job: &PackJob<'_>,
        packed: Region,
    ) -> Result<(Spot, Option<Spot>), EngineError> {
        let typed = self.accelerator.typed(job.typed)?;
        let host = matches!(packed.space(), Space::Host | Space::Pinned);
        let direct = self.accelerator.packed(packed)?;
        Ok((typed, direct.filter(|_| !(host && self.config.staged_host))))
    }

    /// A pack or unpack, checked.
    ///
    /// # Errors
    /// Numbers that do not fit, or memory that this engine cannot work on.
    pub(crate) fn pack<'a>(
        &self,
        direction: Direction,
        typed: &'a Typed,
        range: &Range<u64>,
        packed: Region,
        budget: Option<Budget>,
    ) -> Result<Task<'a>, EngineError> {
        let job = PackJob::new(direction, typed, range, packed, budget)?;
        self.check_len(job.len())?;
        let (typed, direct) = self.spots(&job, packed)?;
        Ok(Task::Packed { job, typed, direct, packed })
    }

    /// A move from layout to layout, checked. A side without gaps is a packed one.
    ///
    /// # Errors
    /// As for [`pack`](Shared::pack).
    pub(crate) fn move_between<'a>(
        &self,
        src: &'a Typed,
        dst: &'a Typed,
        range: &Range<u64>,
        budget: Option<Budget>,
    ) -> Result<Task<'a>, EngineError> {
        src.check_range(range)?;
        dst.check_range(range)?;
        let len = range.end - range.start;
        self.check_len(len)?;
        let (source, target) = (src.as_contiguous(), dst.as_contiguous());
        // If neither has gaps, the typed side is one that kernels reach.
        let reached = source.is_none() || self.accelerator.serves(src.space());
        if let Some(span) = target.filter(|_| reached) {
            let packed = span.sub(range.start, len)?;
            return self.pack(Direction::Pack, src, range, packed, budget);
        }
        if let Some(span) = source {
            let packed = span.sub(range.start, len)?;
            return self.pack(Direction::Unpack, dst, range, packed, budget);
        }
        let from = (src, self.accelerator.typed(src)?);
        let to = (dst, self.accelerator.typed(dst)?);
        Ok(Task::Transfer { from, to, range: range.clone(), budget })
    }

    /// Enqueues a task. It comes after `after`, for which the lane waits already; `None` for all that comes
    /// before on the lane. `chunk` is the lane's.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the lane has passed the work.
    ///
    /// # Errors
    /// The device's failure. Some of the work may be enqueued then.
    pub(crate) unsafe fn run(
        &self,
        lane: &dyn Lane,
        chunk: &mut Option<Arc<DeviceBlock>>,
        task: &Task<'_>,
        held: &mut Holds,
        after: Option<&[Completion]>,
    ) -> Result<(), EngineError> {
        if task.is_empty() {
            return Ok(());
        }
        if let Some(shares) = self.copies(task) {
            // SAFETY: the caller's own promise; the shares are the task's.
            return unsafe { self.enqueue_shares(lane, task, &shares, after) };
        }
        match task {
            &Task::Packed { ref job, typed, direct: Some(packed), .. } => {
                // SAFETY: the caller's own promise.
                unsafe { self.enqueue(lane, job, typed, packed, held) }
            }
            &Task::Packed { ref job, typed, direct: None, packed } => {
                // SAFETY: the caller's own promise.
                unsafe { self.staged(lane, chunk, job, typed, packed, held) }
            }
            Task::Transfer { from, to, range, budget } => {
                let what = Between { from: *from, to: *to, range, budget: *budget };
                // SAFETY: the caller's own promise.
                unsafe { self.transfer(lane, chunk, what, held) }
            }
        }
    }

    /// Enqueues a pack or unpack between memories that kernels reach.
    ///
    /// # Safety
    /// `typed` and `packed` lead to what the job says; both stay valid, and free of races, until the lane
    /// has passed the work.
    ///
    /// # Errors
    /// As for [`run`](Shared::run).
    pub(crate) unsafe fn enqueue(
        &self,
        lane: &dyn Lane,
        job: &PackJob<'_>,
        typed: Spot,
        packed: Spot,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        if job.typed.as_pages().is_some() {
            // SAFETY: the caller's own promise.
            return unsafe { self.enqueue_pages(lane, job, typed, packed, held) };
        }
        if let Some(launches) = self.by_form(job, typed, packed) {
            let sides = [typed.base, packed.base, typed.base, typed.base];
            // SAFETY: the launches move the job's range of a layout that `Typed` found inside its
            // region, and of a packed region of that length; the caller vouches for both.
            return unsafe { launch_all(lane, &launches, &sides) };
        }
        // Of a plan that is being written, parts are enqueued as they become ready.
        let mut next = job.start;
        let mut on_ready = |plan: &DevicePlan, ready: u64| {
            let end = ready.min(job.end);
            if end > next {
                let part = job.part(next, end);
                let packed = packed.advanced(next - job.start);
                // SAFETY: the caller's own promise; what the part needs of the plan lies before it on
                // the lane.
                unsafe { self.enqueue_by(lane, &part, typed, packed, Some(plan)) }?;
                next = end;
            }
            Ok(next < job.end)
        };
        match self.plan(lane, job.typed.layout(), held, &mut on_ready)? {
            Some(plan) => on_ready(&plan, u64::MAX).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The same by a plan that the lane finds, or by the closed form.
    ///
    /// # Safety
    /// As for [`enqueue`](Shared::enqueue); what the job needs of the plan lies before on the lane.
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn enqueue_by(
        &self,
        lane: &dyn Lane,
        job: &PackJob<'_>,
        typed: Spot,
        packed: Spot,
        plan: Option<&DevicePlan>,
    ) -> Result<(), EngineError> {
        let launches = match plan {
            Some(plan) => {
                let shape = plan.spec().side(job.typed.layout(), job.typed.count(), 0);
                lay_out(&shape, &job.what(typed, packed))
                    .map(|launches| self.fitted_to(job, packed, launches))
            }
            None => self.by_form(job, typed, packed).ok_or(Unfit::Numbers),
        };
        let launches = launches.map_err(|reason| self.unfit(reason))?;
        let plan = plan.map_or(typed.base, DevicePlan::region);
        let sides = [typed.base, packed.base, plan, plan];
        // SAFETY: the launches move the job's range of a layout that `Typed` found inside its region,
        // and of packed memory of that length, by a plan of that layout; the caller vouches for all.
        unsafe { launch_all(lane, &launches, &sides) }
    }

    /// One side of a move whose plan, if it takes one, is whole.
    pub(crate) fn side(
        &self,
        lane: &dyn Lane,
        typed: &Typed,
        spot: Spot,
        planned: bool,
        held: &mut Holds,
    ) -> Result<Side, EngineError> {
        let (layout, count) = (typed.layout(), typed.count());
        if !planned && let Some(shape) = closed(Form::of(layout, count)) {
            return Ok(Side { shape, plan: spot.base });
        }
        let plan = self.whole_plan(lane, layout, held)?;
        Ok(Side { shape: plan.spec().side(layout, count, 0), plan: plan.region() })
    }

    /// A layout's plan, all of it, which `lane` finds from then on.
    ///
    /// # Errors
    /// No memory, or the device's failure.
    pub(crate) fn whole_plan(
        &self,
        lane: &dyn Lane,
        layout: &Layout,
        held: &mut Holds,
    ) -> Result<Arc<DevicePlan>, EngineError> {
        let before = held.len();
        let found = self.plan(lane, layout, held, &mut |_, _| Ok(true))?;
        let made = held[before..].iter().find_map(|hold| match hold {
            Hold::Plan(plan) => Some(Arc::clone(plan)),
            _ => None,
        });
        Ok(found.or(made).expect("a plan that was made is held"))
    }

    /// A layout's plan, which `lane` finds from then on, if it was made before. If not, it is made;
    /// `on_ready` hears of that, and nothing is returned.
    fn plan(
        &self,
        lane: &dyn Lane,
        layout: &Layout,
        held: &mut Holds,
        on_ready: OnReady<'_>,
    ) -> Result<Option<Arc<DevicePlan>>, EngineError> {
        let spec = PlanSpec::of(layout);
        if !self.cache.keeps(spec.bytes) {
            // What is needed of it is made, for this call alone.
            let plan = prepare(self, lane, layout, spec, on_ready)?;
            held.push(Hold::Plan(Arc::new(plan)));
            return Ok(None);
        }
        match self.cache.get_or_begin(layout) {
            CacheLookup::Ready(plan) => {
                held.push(Hold::Plan(Arc::clone(&plan)));
                if let Err(error) = plan.ready_on(lane) {
                    // Its upload failed: the next call makes it anew.
                    self.cache.forget(layout);
                    return Err(error);
                }
                Ok(Some(plan))
            }
            CacheLookup::Begin(building) => {
                // Others will want what this call does not.
                let mut all = |plan: &DevicePlan, ready| on_ready(plan, ready).map(|_| true);
                let plan = Arc::new(prepare(self, lane, layout, spec, &mut all)?);
                held.push(Hold::Plan(Arc::clone(&plan)));
                building.finish(plan, spec.bytes);
                Ok(None)
            }
        }
    }
}
