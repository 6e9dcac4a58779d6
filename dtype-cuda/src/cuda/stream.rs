//! Work on the caller's own stream: enqueued, and no more. The stream's order is the completion.

use super::CudaAccelerator;
use super::lane::StreamLane;
use crate::accelerator::Lane;
use crate::batch::BatchItem;
use crate::engine::GpuEngine;
use crate::index_report::checked;
use crate::lanes::{Hold, Holds};
use crate::memory::DeviceBlock;
use crate::shared::{Shared, Task, reports};
use gapless_engine::{EngineError, Op, Typed};
use gapless_kernels::Direction;
use gapless_mem::{Completion, DeviceError, Region};
use gapless_mem_cuda::Stream;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Plans, buffers and reports in use before an event is recorded on the stream, after which they are let go of.
const HELD_MAX: usize = 16;

/// An engine's calls on a stream of the caller's: they cost no more than the launch and its arithmetic, and
/// nothing is recorded. Made by [`GpuEngine::on`]; keep it for many calls.
///
/// What a call enqueues is over when the stream has passed it. If a call fails, some of its work may be on
/// the stream: memory is the caller's again when the stream has passed that.
///
/// Plans that the work uses are kept until the stream has passed their last use. For that, an event is
/// recorded when this value is dropped (or its [`completion`](OnStream::completion) is asked for), if plans
/// were used at all, and they are let go of in that order: a stream that does not get on keeps the plans of
/// streams that came after it.
///
/// Not for a stream that is being captured into a graph: a replay would use plans that may be gone.
pub struct OnStream<'a> {
    pub(super) engine: &'a GpuEngine,
    pub(super) lane: StreamLane<'a>,
    /// What work on the stream uses, each once.
    used: RefCell<Holds>,
    /// A chunk between device and host; the stream's order keeps calls from sharing it.
    chunk: RefCell<Option<Arc<DeviceBlock>>>,
}

impl GpuEngine {
    /// This engine on the caller's stream.
    ///
    /// # Errors
    /// Not an engine of a CUDA device, or a stream of another one.
    pub fn on<'a>(&'a self, stream: &'a Stream) -> Result<OnStream<'a>, EngineError> {
        let refused = |what| EngineError::Device(DeviceError::Unsupported { what });
        let cuda: &CudaAccelerator =
            self.cuda.as_deref().ok_or_else(|| refused("work on a CUDA stream"))?;
        let device = cuda.cuda_device();
        if stream.device() != device.ordinal() {
            return Err(refused("work on another device's stream"));
        }
        let lane = StreamLane { device, functions: cuda.functions(), stream };
        Ok(OnStream { engine: self, lane, used: RefCell::default(), chunk: RefCell::default() })
    }
}

impl OnStream<'_> {
    /// Enqueues gathering bytes `range` of `src`'s packed stream into `dst`, which is as long as the range.
    ///
    /// # Safety
    /// As for [`Engine::pack`](gapless_engine::Engine::pack), until the stream has passed the work.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
    ) -> Result<(), EngineError> {
        let task = self.shared().pack(Direction::Pack, src, &range, dst, self.engine.budget)?;
        // SAFETY: the caller's own promise.
        unsafe { self.run(&task) }
    }

    /// Enqueues scattering `src`, which is as long as the range, to bytes `range` of `dst`'s packed stream.
    ///
    /// # Safety
    /// As for [`Engine::unpack`](gapless_engine::Engine::unpack), until the stream has passed the work.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
    ) -> Result<(), EngineError> {
        let task = self.shared().pack(Direction::Unpack, dst, &range, src, self.engine.budget)?;
        // SAFETY: the caller's own promise.
        unsafe { self.run(&task) }
    }

    /// Enqueues moving bytes `range` of `src`'s packed stream to the same range of `dst`'s.
    ///
    /// # Safety
    /// As for [`Engine::transfer`](gapless_engine::Engine::transfer), until the stream has passed the work.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
    ) -> Result<(), EngineError> {
        let task = self.shared().move_between(src, dst, &range, self.engine.budget)?;
        // SAFETY: the caller's own promise.
        unsafe { self.run(&task) }
    }

    /// Enqueues combining the same range of all sources, from left to right, into `dst`.
    ///
    /// # Safety
    /// As for [`Reducer::reduce_into`](gapless_engine::Reducer::reduce_into), until the stream has passed the work.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn reduce(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
    ) -> Result<(), EngineError> {
        let reducing = self.shared().reduction(op, srcs, dst, &range, self.engine.budget)?;
        let mut held = Holds::new();
        let chunk = &mut self.chunk.borrow_mut();
        let shared = self.shared();
        // SAFETY: the caller's own promise.
        let done = unsafe { shared.run_reduction(&self.lane, chunk, &reducing, &mut held, None) };
        self.keep(held);
        done
    }

    /// Enqueues many requests, as [`GpuEngine::batch`] does.
    ///
    /// # Safety
    /// As there, until the stream has passed the work.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn batch(
        &self,
        direction: Direction,
        requests: &[BatchItem],
    ) -> Result<(), EngineError> {
        let tasks = self.shared().tasks(direction, requests, self.engine.budget)?;
        let mut held = Holds::new();
        let chunk = &mut self.chunk.borrow_mut();
        // SAFETY: the caller's own promise.
        let done = unsafe { self.shared().batch(&self.lane, chunk, &tasks, &mut held) };
        self.keep(held);
        done
    }

    /// The completion of everything that is on the stream now.
    ///
    /// Once that is over, the completion tells [`DeviceError::PageOutside`] if a call was given pages with a bad index
    /// in memory of a device. It covers the calls since the last completion, but not those that were let go of
    /// meanwhile: a call after which more than 16 plans, buffers and reports are kept lets go of all of them, its own
    /// too. The errors of calls that no completion covers are lost; no byte outside is touched all the same. Ask after
    /// each call with such indices, or use the engine's own calls.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn completion(&self) -> Result<Completion, EngineError> {
        let completion = self.lane.record()?;
        let used = self.used.take();
        let reports = reports(&used);
        self.shared().elsewhere.push(&completion, used);
        Ok(checked(completion, reports))
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.engine.shared
    }

    /// # Safety
    /// The task's memory stays valid, and free of races, until the stream has passed the work.
    unsafe fn run(&self, task: &Task<'_>) -> Result<(), EngineError> {
        let mut held = Holds::new();
        let chunk = &mut self.chunk.borrow_mut();
        // SAFETY: the caller's own promise.
        let done = unsafe { self.shared().run(&self.lane, chunk, task, &mut held, None) };
        self.keep(held);
        done
    }

    /// Keeps what a call used, whether it ended well or not.
    pub(super) fn keep(&self, held: Holds) {
        if held.is_empty() {
            return;
        }
        let mut used = self.used.borrow_mut();
        for hold in held {
            let same = |other: &Hold| match (&hold, other) {
                (Hold::Plan(one), Hold::Plan(other)) => Arc::ptr_eq(one, other),
                (Hold::Block(one), Hold::Block(other)) => Arc::ptr_eq(one, other),
                _ => false,
            };
            if !used.iter().any(same) {
                used.push(hold);
            }
        }
        if used.len() > HELD_MAX {
            self.let_go(std::mem::take(&mut *used));
        }
    }

    /// Lets go of what the stream's work uses, once the stream has passed it.
    fn let_go(&self, used: SmallVec<[Hold; 2]>) {
        if used.is_empty() {
            return;
        }
        match self.lane.record() {
            Ok(completion) => self.shared().elsewhere.push(&completion, used),
            Err(error) => {
                tracing::debug!(%error, "waiting for a stream that no event could be recorded on");
                self.lane.drain();
            }
        }
    }
}

impl Drop for OnStream<'_> {
    fn drop(&mut self) {
        let used = self.used.take();
        self.let_go(used);
    }
}

impl std::fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnStream")
            .field("engine", self.engine)
            .field("stream", self.lane.stream)
            .finish_non_exhaustive()
    }
}
