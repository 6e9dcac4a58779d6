//! The engine as its users see it: checks, the choice of a lane, and completions.

use crate::accelerator::{Accelerator, Lane};
use crate::batch::{BatchItem, FUSED_MAX};
use crate::between::LayoutPairs;
use crate::cache::{Cache, PlanStatistics};
use crate::config::{Config, Launched};
use crate::gathered::{Gathered, launched};
use crate::lanes::{Elsewhere, Holds, Lanes, Track};
use crate::memory::PlanMemory;
#[cfg(feature = "cuda")]
use crate::prepare::pieces;
use crate::recent::Recent;
use crate::shared::{Shared, Task};
use crate::staging::StagingRings;
use crate::writers::Writers;
use gapless_dtype::Layout;
use gapless_engine::{Engine, EngineError, Reducer, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::Budget;
use gapless_mem::{Completion, Device, Region, Space};
use smallvec::SmallVec;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

/// Packs and unpacks device memory by layout, on the device.
///
/// A value is a handle: clones share streams, plans and buffers. Calls may come from any thread at a time.
/// They enqueue work and return its completion; only work of others (`after`) that the device cannot order
/// itself is waited for, and copies to and from host memory that is not page-locked may be.
///
/// A handle that is dropped last waits for its work, up to five seconds.
#[derive(Clone)]
pub struct GpuEngine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) budget: Option<Budget>,
    #[cfg(feature = "cuda")]
    pub(crate) cuda: Option<Arc<crate::cuda::CudaAccelerator>>,
}

impl GpuEngine {
    /// The engine of a CUDA device: loads the kernels and makes streams.
    ///
    /// # Errors
    /// No image for the device, or the driver refuses.
    #[cfg(feature = "cuda")]
    pub fn cuda(device: Arc<gapless_mem_cuda::CudaDevice>) -> Result<GpuEngine, EngineError> {
        GpuEngine::cuda_with(device, Config::default())
    }

    /// The same, told more.
    ///
    /// # Errors
    /// As for [`cuda`](GpuEngine::cuda).
    #[cfg(feature = "cuda")]
    pub fn cuda_with(
        device: Arc<gapless_mem_cuda::CudaDevice>,
        config: Config,
    ) -> Result<GpuEngine, EngineError> {
        let config = config.bounded();
        let accelerator =
            crate::cuda::CudaAccelerator::new(device, config.streams, config.workers)?;
        let accelerator = Arc::new(accelerator);
        let mut engine = GpuEngine::over(Arc::clone(&accelerator) as Arc<dyn Accelerator>, config);
        engine.cuda = Some(accelerator);
        // Page-locking takes milliseconds: not at the first use of a layout. If there is no memory for it
        // now, there may be then.
        let shared = &*engine.shared;
        match shared.rings.take(&*shared.accelerator, pieces(&shared.config)) {
            Ok(ring) => shared.rings.give(ring, pieces(&shared.config)),
            Err(error) => tracing::warn!(%error, "no page-locked memory for plans yet"),
        }
        Ok(engine)
    }

    /// The engine of an OpenCL device. Kernels are built when they are first needed, which takes seconds
    /// with some drivers.
    ///
    /// # Errors
    /// A device whose work-groups have fewer than 256 work-items.
    #[cfg(feature = "opencl")]
    pub fn opencl(device: Arc<gapless_mem_opencl::OpenClDevice>) -> Result<GpuEngine, EngineError> {
        GpuEngine::opencl_with(device, Config::default())
    }

    /// The same, told more.
    ///
    /// # Errors
    /// As for [`opencl`](GpuEngine::opencl).
    #[cfg(feature = "opencl")]
    pub fn opencl_with(
        device: Arc<gapless_mem_opencl::OpenClDevice>,
        config: Config,
    ) -> Result<GpuEngine, EngineError> {
        let config = config.bounded();
        let accelerator = crate::opencl::OpenClAccelerator::new(device, &config)?;
        Ok(GpuEngine::over(Arc::new(accelerator), config))
    }

    pub(crate) fn over(accelerator: Arc<dyn Accelerator>, config: Config) -> GpuEngine {
        let blocks = config.budget;
        let shared = Shared {
            elsewhere: Elsewhere::default(),
            gathered: Gathered::default(),
            lanes: Lanes::new(accelerator.lanes().len()),
            cache: Cache::new(config.plan_bytes),
            layout_pairs: LayoutPairs::default(),
            shared_out: Recent::default(),
            laid_out: Recent::default(),
            left_over: Recent::default(),
            rings: StagingRings::new(config.piece_bytes),
            writers: Writers::new(config.writers),
            memory: PlanMemory::new(accelerator.device(), config.plan_bytes / 2),
            config,
            accelerator,
        };
        let engine = GpuEngine {
            shared: Arc::new(shared),
            budget: None,
            #[cfg(feature = "cuda")]
            cuda: None,
        };
        engine.with_budget(blocks)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        self.shared.accelerator.device()
    }

    /// The same engine, whose launches through this handle have `blocks` blocks (work-groups) at most, or
    /// as many as they like (Wu et al. 2016, §5.3). Few blocks are large: up to 1,024 threads, or 256 work-items of OpenCL.
    #[must_use]
    pub fn with_budget(&self, blocks: Option<NonZeroU32>) -> GpuEngine {
        let threads = self.shared.accelerator.threads_max();
        GpuEngine { budget: blocks.map(|blocks| Budget { blocks, threads }), ..self.clone() }
    }

    /// Makes a layout's plan now (when a datatype is committed, say), if it needs one and would be kept.
    ///
    /// # Errors
    /// No memory, or the device's failure.
    pub fn prepare(&self, layout: &Layout) -> Result<Completion, EngineError> {
        let shared = &*self.shared;
        if !shared.wants_plan(layout) {
            return Ok(Completion::Ready);
        }
        let (plan, _) = self.on_lane(&[], |lane, _, held| shared.whole_plan(lane, layout, held))?;
        Ok(plan.upload())
    }

    /// Gives up a layout's plan. Work in flight keeps it until it has ended; one that another thread is
    /// making meanwhile is kept.
    pub fn forget(&self, layout: &Layout) {
        self.shared.cache.forget(layout);
        self.shared.collect();
    }

    /// What is kept of plans.
    #[must_use]
    pub fn plans(&self) -> PlanStatistics {
        self.shared.cache.statistics()
    }

    /// Copies that the copy worker was given ([`Config::workers`]).
    #[must_use]
    pub fn copies_by_worker(&self) -> u64 {
        self.shared.accelerator.copies_by_worker()
    }

    /// What a pack or an unpack would launch, for reports. Nothing is launched or prepared. Memory that
    /// only copies reach is packed through the device's memory, in parts; the report shows one launch for all.
    ///
    /// # Errors
    /// As for [`pack`](Engine::pack).
    pub fn launches(
        &self,
        direction: Direction,
        typed: &Typed,
        range: Range<u64>,
        packed: Region,
    ) -> Result<Vec<Launched>, EngineError> {
        let budget = self.budget;
        let task = self.shared.pack(direction, typed, &range, packed, budget)?;
        self.shared.launches(&task)
    }

    /// Enqueues work on a lane of our own, after `after`, and records its end.
    pub(crate) fn on_lane<T>(
        &self,
        after: &[Completion],
        work: impl FnOnce(&dyn Lane, &mut Track, &mut Holds) -> Result<T, EngineError>,
    ) -> Result<(T, Completion), EngineError> {
        self.shared.on_lane(after, work)
    }

    /// Enqueues a task on a lane of our own.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the completion.
    unsafe fn run(
        &self,
        task: Result<Task<'_>, EngineError>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let task = task?;
        if task.is_empty() {
            return self.nothing(after);
        }
        let shared = &self.shared;
        let alone = after.iter().all(|work| matches!(work, Completion::Ready));
        let command = if alone { shared.worker_command(&task) } else { None };
        if let Some(command) = &command {
            // SAFETY: the command moves a range of two layouts that `Typed` found inside their regions, or of a packed
            // region of that length; neither has a plan. The caller vouches for the rest.
            if let Some(copied) = unsafe { shared.accelerator.copy_by_worker(command) } {
                return Ok(copied);
            }
        }
        // SAFETY: the caller's own promise.
        let work = unsafe { self.run_by_launch(&task, alone, after) };
        if command.is_some() {
            // Behind the launch, which is not to wait for it.
            shared.accelerator.wake_copy_worker();
        }
        work
    }

    /// Enqueues a task on a lane of our own, or with others that wait; `alone`: behind nothing.
    ///
    /// # Safety
    /// As for [`run`](GpuEngine::run).
    unsafe fn run_by_launch(
        &self,
        task: &Task<'_>,
        alone: bool,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let shared = &self.shared;
        let short = if alone { shared.short_part(task) } else { None };
        let gathers = short.is_some();
        if let Some((direction, part)) = short {
            // SAFETY: the caller's own promise.
            if let Some(waiting) = unsafe { shared.gathered.join(shared, direction, part) } {
                return Ok(waiting);
            }
            // SAFETY: the caller's own promise.
            if let Some(copied) = unsafe { shared.copy_short(task) } {
                let copied = copied?;
                shared.gathered.went(&copied);
                return Ok(copied);
            }
        }
        let after: SmallVec<[Completion; 4]> = after.iter().map(launched).collect();
        let ((), completion) = self.on_lane(&after, |lane, track, held| {
            // SAFETY: the caller's own promise; the lane's end is what is returned.
            unsafe { shared.run(lane, &mut track.chunk, task, held, Some(&after)) }
        })?;
        if gathers {
            shared.gathered.went(&completion);
        }
        Ok(completion)
    }

    /// Tells the device of memory, before places in it are asked for.
    ///
    /// # Safety
    /// The regions describe memory that exists.
    pub(crate) unsafe fn learn_alignment(&self, regions: impl IntoIterator<Item = Region>) {
        for region in regions {
            // SAFETY: the caller's own promise.
            unsafe { self.shared.accelerator.learn_alignment(region) };
        }
    }

    /// The end of `after`: no byte is to be moved.
    pub(crate) fn nothing(&self, after: &[Completion]) -> Result<Completion, EngineError> {
        let mut pending = after.iter().filter(|work| matches!(work, Completion::Pending(_)));
        match (pending.next(), pending.next()) {
            (None, _) => Ok(Completion::Ready),
            (Some(one), None) => Ok(one.clone()),
            _ => Ok(self.on_lane(after, |_, _, _| Ok(()))?.1),
        }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Launches and copies are made from the layout, cut to the range, that `Typed` found inside its region; kernels
//    load and store the words of blocks (`gapless-kernels`; the oracle tests look at all bytes around them).
// 2. The lane waits for `after` before it is given anything; its record, behind all of it, is the completion. After an
//    error `InFlight` drains the lane, and others that had a part.
// 3. `shared.pack` and `shared.move_between` check ranges, lengths and spaces before a lane is taken.
// 4. Work of others, whose completions may panic, is asked before a lane is taken; what unwinds after that drops
//    `InFlight`, as an error does.
unsafe impl Engine for GpuEngine {
    fn name(&self) -> &'static str {
        self.shared.accelerator.name()
    }

    fn serves(&self, space: Space) -> bool {
        self.shared.accelerator.serves(space)
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        let device = self.shared.accelerator.device();
        // Another GPU's memory may be reached, but is that GPU's.
        let others = matches!(space, Space::Cuda { .. }) && space != device.space();
        (Engine::serves(self, space) && !others).then_some(device)
    }

    fn reaches(&self, host: Region, from: Option<Space>) -> Option<(&dyn Engine, Arc<dyn Device>)> {
        let device = self.shared.accelerator.device();
        let asked = matches!(host.space(), Space::Host | Space::Pinned)
            && from.is_none_or(|from| from == device.space());
        let found = asked && matches!(self.shared.accelerator.packed(host), Ok(Some(_)));
        found.then_some((self as &dyn Engine, device))
    }

    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        Engine::device(self, space).map(|_| Arc::new(self.clone()) as Arc<dyn Reducer>)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.learn_alignment([src.region(), dst]) };
        let task = self.shared.pack(Direction::Pack, src, &range, dst, self.budget);
        // SAFETY: the caller's own promise.
        unsafe { self.run(task, after) }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.learn_alignment([src, dst.region()]) };
        let task = self.shared.pack(Direction::Unpack, dst, &range, src, self.budget);
        // SAFETY: the caller's own promise.
        unsafe { self.run(task, after) }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.learn_alignment([src.region(), dst.region()]) };
        let task = self.shared.move_between(src, dst, &range, self.budget);
        // SAFETY: the caller's own promise.
        unsafe { self.run(task, after) }
    }

    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        // A kernel of OpenCL reaches few buffers.
        let flat = self.shared.accelerator.one_address_space();
        if !flat || pairs.len() < 2 || pairs.iter().any(|(into, _)| into.len() > FUSED_MAX) {
            return Ok(None);
        }
        let item = |&(packed, from): &(Region, Region)| {
            let typed = Typed::contiguous(from);
            BatchItem { range: 0..typed.packed_bytes(), typed, packed }
        };
        let items: Vec<BatchItem> = pairs.iter().map(item).collect();
        // SAFETY: the caller's own promise.
        unsafe { self.batch(Direction::Pack, &items, after) }.map(Some)
    }
}

impl std::fmt::Debug for GpuEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuEngine")
            .field("engine", &self.shared.accelerator.name())
            .field("device", &self.shared.accelerator.device().properties().name)
            .field("budget", &self.budget)
            .field("plans", &self.plans())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
