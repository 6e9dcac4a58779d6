//! Short work that waits goes in one launch.
//!
//! A launch takes the processor some microseconds, whatever it moves. So what comes while [`AT_ONCE`] pieces of short
//! work go on waits, and is launched together ([`fused`]): when one of these has ended, or as soon as it is
//! [`TOGETHER`] pieces. Nothing runs by itself: whoever asks for the end of work that waits launches it, if it is time,
//! and whoever stops asking, or wants to put other work behind it, launches it at once.
//!
//! Where pointers are buffers (OpenCL) a kernel reaches few of them, and nothing is gathered.

use crate::batch::closed_part;
use crate::shared::{Shared, Task, launch_all};
use gapless_engine::EngineError;
use gapless_kernels::Direction;
use gapless_kernels::args::PARTS_MAX;
use gapless_kernels::launch::{MovePart, fused};
use gapless_mem::{Completion, DeviceError, Pending, Region, Space};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of short work, at most: longer work is worth a launch.
pub(crate) const SHORT_MAX: u64 = 16 << 10;

/// Launches of short work that go on at a time before more of it waits.
const AT_ONCE: usize = 2;

/// Pieces that are launched together at most.
const TOGETHER: usize = 2 * PARTS_MAX;

/// Short work of an engine.
#[derive(Default)]
pub(crate) struct Gathered(Mutex<GatherState>);

#[derive(Default)]
struct GatherState {
    /// What was launched, oldest first; some of it may be over.
    flying: VecDeque<Completion>,
    waiting: Option<WaitingParts>,
}

/// Work that waits.
struct WaitingParts {
    launch: Arc<SharedLaunch>,
    /// To be packed, and to be unpacked.
    parts: [Vec<MovePart>; 2],
}

/// Work that is launched together.
#[derive(Default)]
struct SharedLaunch {
    /// Set once it is launched, or cannot be.
    work: OnceLock<Result<Completion, DeviceError>>,
    pieces: AtomicU32,
    /// Questions that are answered without asking the device: each piece is asked about as often, and all end together.
    unasked: AtomicU32,
}

/// A piece of it, which is over when the launch is.
struct GatheredWork {
    shared: Arc<Shared>,
    launch: Arc<SharedLaunch>,
}

impl GatherState {
    /// Whether as much short work goes on as is launched at once.
    fn is_busy(&mut self) -> bool {
        let is_over = |work: &Completion| !matches!(work.poll(), Ok(false));
        while self.flying.len() >= AT_ONCE && self.flying.front().is_some_and(is_over) {
            self.flying.pop_front();
        }
        self.flying.len() >= AT_ONCE
    }

    /// Launches what waits, if that is `launch`, or whatever it is.
    fn launch(&mut self, shared: &Shared, launch: Option<&Arc<SharedLaunch>>) {
        let meant =
            |waiting: &mut WaitingParts| launch.is_none_or(|it| Arc::ptr_eq(it, &waiting.launch));
        let Some(WaitingParts { launch, parts }) = self.waiting.take_if(meant) else { return };
        let _answers = Answers(&launch);
        // SAFETY: whoever gave a part promised its memory until the end of its piece, which is over no sooner than this.
        let work = unsafe { shared.launch_together(&parts) };
        if let Ok(work) = &work {
            self.flying.push_back(work.clone());
        }
        let work = work.map_err(|error| match error {
            EngineError::Device(error) => error,
            other => DeviceError::Failed {
                device: shared.accelerator.device().properties().name.clone(),
                operation: "launching short work",
                reason: other.to_string(),
            },
        });
        let _ = launch.work.set(work);
    }
}

/// Work whose launch unwinds is over: nothing was enqueued, or the lane was drained.
struct Answers<'a>(&'a SharedLaunch);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        let what = "a launch of short work that was broken off";
        let _ = self.0.work.set(Err(DeviceError::Unsupported { what }));
    }
}

impl Gathered {
    fn lock(&self) -> MutexGuard<'_, GatherState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a part wait for company, if as much short work goes on as is launched at once; `None`: it is to go now.
    ///
    /// # Safety
    /// The part's memory stays valid, and free of races, until the completion.
    pub(crate) unsafe fn join(
        &self,
        shared: &Arc<Shared>,
        direction: Direction,
        part: MovePart,
    ) -> Option<Completion> {
        let mut state = self.lock();
        if state.waiting.is_none() {
            if !state.is_busy() {
                return None;
            }
            state.waiting =
                Some(WaitingParts { launch: Arc::default(), parts: Default::default() });
        }
        let WaitingParts { launch, parts } = state.waiting.as_mut()?;
        let launch = Arc::clone(launch);
        parts[usize::from(direction == Direction::Unpack)].push(part);
        launch.pieces.fetch_add(1, Ordering::Relaxed);
        if parts.iter().map(Vec::len).sum::<usize>() >= TOGETHER {
            state.launch(shared, None);
        }
        Some(Completion::Pending(Arc::new(GatheredWork { shared: Arc::clone(shared), launch })))
    }

    /// Short work was launched by itself.
    pub(crate) fn went(&self, work: &Completion) {
        let mut state = self.lock();
        state.flying.retain(|earlier| !earlier.is_known_over());
        if !work.is_known_over() {
            state.flying.push_back(work.clone());
        }
    }
}

impl SharedLaunch {
    /// Whether the next question is answered without asking the device.
    fn passes_over(&self) -> bool {
        let (order, fewer) = (Ordering::Relaxed, |left: u32| left.checked_sub(1));
        self.unasked.fetch_update(order, order, fewer).is_ok()
    }
}

impl GatheredWork {
    /// The launch that it is in, now.
    fn launched(&self) -> &Result<Completion, DeviceError> {
        if self.launch.work.get().is_none() {
            self.shared.gathered.lock().launch(&self.shared, Some(&self.launch));
        }
        // It waits, or was launched: under one lock.
        self.launch.work.get().expect("what does not wait was launched")
    }
}

/// Work behind which other work can be put: what waits is launched first.
pub(crate) fn launched(work: &Completion) -> Completion {
    let Completion::Pending(pending) = work else { return Completion::Ready };
    match pending.as_any().downcast_ref::<GatheredWork>().map(GatheredWork::launched) {
        Some(Ok(launched)) => launched.clone(),
        Some(Err(_)) | None => work.clone(),
    }
}

// SAFETY: the numbers are those of the contract.
// 1. What waits is not over. Once it is launched, the launch's completion answers, or the error of a call that has
//    drained its lane.
// 2. and 3. The same completion's.
// 4. `as_any` gives `self`.
// 5. The launch's own export is of work no shorter.
unsafe impl Pending for GatheredWork {
    fn poll(&self) -> Result<bool, DeviceError> {
        let launch = &self.launch;
        if !self.is_known_over() && launch.passes_over() {
            return Ok(false);
        }
        if launch.work.get().is_none() {
            let mut state = self.shared.gathered.lock();
            if launch.work.get().is_none() && !state.is_busy() {
                state.launch(&self.shared, Some(launch));
            }
        }
        let ended = match launch.work.get() {
            None => Ok(false),
            Some(Ok(work)) => work.poll(),
            Some(Err(error)) => Err(error.clone()),
        };
        if ended == Ok(false) {
            let others = launch.pieces.load(Ordering::Relaxed).saturating_sub(1);
            launch.unasked.store(others, Ordering::Relaxed);
        }
        ended
    }

    fn is_known_over(&self) -> bool {
        self.launch
            .work
            .get()
            .is_some_and(|work| work.as_ref().map_or(true, Completion::is_known_over))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn export(&self) -> Result<Vec<u8>, DeviceError> {
        match self.launched() {
            Ok(Completion::Pending(work)) => work.export(),
            Ok(Completion::Ready) => {
                Err(DeviceError::Unsupported { what: "exporting work that is over" })
            }
            Err(error) => Err(error.clone()),
        }
    }
}

impl Drop for GatheredWork {
    fn drop(&mut self) {
        let _ = self.launched();
    }
}

impl Shared {
    /// A task as a part of a launch, if it is short and needs no plan.
    pub(crate) fn short_part(&self, task: &Task<'_>) -> Option<(Direction, MovePart)> {
        let &Task::Packed { job, typed, direct: Some(packed), .. } = task else { return None };
        let may = self.config.gathers && job.budget.is_none();
        if !may || job.len() > SHORT_MAX || !self.accelerator.one_address_space() {
            return None;
        }
        Some((job.direction, closed_part(&job, typed, packed)?))
    }

    /// Copies a short task that has no gaps to or from page-locked memory. That is as quick as a kernel, and does not wait
    /// for this process's turn on a shared device.
    ///
    /// # Safety
    /// The task's memory stays valid, and free of races, until the completion.
    pub(crate) unsafe fn copy_short(
        &self,
        task: &Task<'_>,
    ) -> Option<Result<Completion, EngineError>> {
        let &Task::Packed { job, packed, .. } = task else { return None };
        let device = self.accelerator.device();
        let whole = job.typed.as_contiguous().filter(|whole| whole.space() == device.space())?;
        if packed.space() != Space::Pinned {
            return None;
        }
        let place = whole.sub(job.start, job.len()).ok()?;
        let (dst, src) = match job.direction {
            Direction::Pack => (packed, place),
            Direction::Unpack => (place, packed),
        };
        // SAFETY: the caller's own promise.
        Some(unsafe { device.copy(dst, src, &[]) }.map_err(EngineError::from))
    }

    /// Launches parts on a lane of our own.
    ///
    /// # Safety
    /// The parts' memory stays valid, and free of races, until the completion; no part's destination overlaps another's
    /// memory.
    unsafe fn launch_together(
        &self,
        parts: &[Vec<MovePart>; 2],
    ) -> Result<Completion, EngineError> {
        let ((), work) = self.on_lane(&[], |lane, _, _| {
            for (direction, parts) in [Direction::Pack, Direction::Unpack].into_iter().zip(parts) {
                let launches = fused(direction, parts, None).map_err(|why| self.unfit(why))?;
                let nowhere = Region::new(self.accelerator.device().space(), 0, 0, 0);
                // SAFETY: every part moves a range of a layout that `Typed` found inside its region, and of a packed
                // region of that length. Their addresses are in the parts, and these are 0. The caller vouches for the
                // rest.
                unsafe { launch_all(lane, &launches, &[nowhere; 4]) }?;
            }
            Ok(())
        })?;
        Ok(work)
    }
}
