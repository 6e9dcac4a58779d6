//! Tasks of collectives that the worker of this process's accelerator combines: where they may lie, and by which of its
//! kernels each goes.
//!
//! Sums of collectives lie in one contiguous span of host memory that the worker reaches. Each task that is expected
//! there has one of the worker's kernels for itself. The worker counts the tasks of each kernel, so this process learns
//! by one load that the task has ended, whatever else runs. All kernels are the same function over that span. The ready
//! message tells the task's initiator the kernel, and where in the span its operand goes.
//!
//! Ranks of the job are trusted to put only where they were told, as those are that map each other's memory: one that
//! does otherwise makes sums wrong, and touches nothing but sums.
//!
//! A kernel whose task may still come when nobody waits for it any more is given up, with its place: after as many
//! failures as there are kernels, tasks are run by threads, as without a worker.

use gapless_bml::Rank;
use gapless_coll::{Lender, TaskKernel, TaskWork};
use gapless_mem::{Lease, Region, Worker};
use gapless_osc::worker_word;
use gapless_xtq::device::{DeviceFunction, Life, WorkerCount};
use gapless_xtq::packet::Launch;
use gapless_xtq::{Kernel, Put, QueueOptions, Xtq, XtqError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kernels of the worker: so many tasks are combined by it at a time.
const KERNELS: u8 = 48;
/// The queue of these kernels, and how many tasks of it run side by side, if they are short.
const QUEUE: u8 = 1;
const WIDTH: u32 = 32;
/// The longest payload: a ring has room for one and its like.
pub(crate) const PAYLOAD_MAX: u32 = 512 << 10;
/// Bytes of the span.
pub(crate) const ROOM: usize = 32 << 20;
/// Bytes of the function's arguments.
const ARGUMENTS: u16 = 32;
/// What is lent is a multiple of this.
const GRAIN: u64 = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The span of memory in which sums lie, and what of it is free.
#[derive(Debug)]
struct Room {
    memory: Lease,
    /// Where, and how long, in order; no two touch.
    free: Mutex<Vec<(u64, u64)>>,
}

// SAFETY: what is free is in the list, and what is lent is not. The lease is kept by the world, and by the worker's
// kernels as long as they are registered, which is until the world's end.
unsafe impl Lender for Room {
    fn lend(&self, bytes: u64) -> Option<Region> {
        let bytes = bytes.checked_next_multiple_of(GRAIN)?;
        let mut free = lock(&self.free);
        let at = free.iter().position(|(_, len)| *len >= bytes)?;
        let (start, len) = free[at];
        match len - bytes {
            0 => _ = free.remove(at),
            left => free[at] = (start + bytes, left),
        }
        self.memory.region().sub(start, bytes).ok()
    }

    unsafe fn take_back(&self, region: Region) {
        let start = region.start() - self.memory.region().start();
        let len = region.len().next_multiple_of(GRAIN);
        let mut free = lock(&self.free);
        let at = free.partition_point(|(other, _)| *other < start);
        free.insert(at, (start, len));
        for first in [at, at.saturating_sub(1)] {
            let end = free[first].0 + free[first].1;
            if let Some((_, more)) = free.get(first + 1).copied().filter(|next| next.0 == end) {
                free[first].1 += more;
                free.remove(first + 1);
            }
        }
    }
}

/// The kernels of this process.
#[derive(Debug)]
pub(super) struct TaskKernels {
    room: Arc<Room>,
    counts: Vec<WorkerCount>,
    /// Kernels that no task has.
    free: Mutex<Vec<u8>>,
}

impl TaskKernels {
    /// Gives an end a worker, receive buffers, and the kernels. If that fails half way, the worker is kept away.
    ///
    /// # Safety
    /// As long as this process has not left, nobody else touches the buffers, or the memory.
    pub(super) unsafe fn new(
        xtq: &Xtq,
        (worker, life): (Arc<dyn Worker>, Life),
        (buffers, memory): (Vec<Lease>, Lease),
    ) -> Result<TaskKernels, XtqError> {
        xtq.attach_worker(worker, life)?;
        // Each registration of memory of the host would send it away.
        xtq.keep_worker(false)?;
        for buffer in buffers {
            // SAFETY: the caller's promise.
            unsafe { xtq.post_to_worker(buffer) }?;
        }
        xtq.register_queue(QUEUE, QueueOptions { capacity: u32::MAX, width: WIDTH })?;
        let mut counts = Vec::new();
        for index in 0..KERNELS {
            let kernel = Kernel::of_worker(DeviceFunction::Combine, PAYLOAD_MAX);
            let kernel = kernel.buffer(memory.clone()).counted();
            // SAFETY: the worker's function stays inside its buffer, of which no reference exists, and which the lease
            // keeps. What lies there is what ranks of the job put: they are trusted to put where they were told, as
            // those are that map memory.
            unsafe { xtq.register_kernel(index, kernel) }?;
            counts.push(xtq.count_of(index).ok_or(XtqError::Worker { has: false })?);
        }
        xtq.keep_worker(true)?;
        let free = Mutex::new(vec![(0, memory.region().len())]);
        let room = Arc::new(Room { memory, free });
        Ok(TaskKernels { room, counts, free: Mutex::new((0..KERNELS).rev().collect()) })
    }

    pub(super) fn lender(&self) -> Arc<dyn Lender> {
        Arc::clone(&self.room) as Arc<dyn Lender>
    }

    /// A kernel for a task, if the worker can combine it.
    pub(super) fn take(self: &Arc<Self>, work: &TaskWork) -> Option<TakenKernel> {
        let (place, op, element) = work.place()?;
        let (room, what) = (self.room.memory.region(), worker_word(op, element)?);
        let at = place.start().checked_sub(room.start())?;
        let is_inside = at.checked_add(place.len()).is_some_and(|end| end <= room.len());
        let is_aligned = at.is_multiple_of(element.size_bytes());
        let fits = place.space() == room.space() && place.len() <= PAYLOAD_MAX.into();
        if !(is_inside && is_aligned && fits) || place.is_empty() {
            return None;
        }
        let index = lock(&self.free).pop()?;
        let count = self.counts.get(usize::from(index))?.clone();
        let kernel = TaskKernel { words: [index.into(), at, what], bytes: place.len() };
        Some(TakenKernel { kernels: Arc::clone(self), kernel, index, before: count.now(), count })
    }
}

/// A kernel that a task has.
#[derive(Debug)]
pub(super) struct TakenKernel {
    kernels: Arc<TaskKernels>,
    pub(super) kernel: TaskKernel,
    index: u8,
    count: WorkerCount,
    before: u64,
}

impl TakenKernel {
    /// Whether its task has ended.
    pub(super) fn is_done(&self) -> bool {
        self.count.now() != self.before
    }

    /// Nobody waits for the task any more. `told`: its initiator may have put it.
    pub(super) fn leave(&self, told: bool) {
        if !told || self.is_done() {
            lock(&self.kernels.free).push(self.index);
        } else {
            tracing::debug!(
                kernel = self.index,
                "a task that may still come keeps its kernel for ever"
            );
        }
    }
}

/// A task for a kernel of another process.
pub(super) fn put(to: Rank, kernel: TaskKernel, payload: Vec<u8>) -> Option<Put> {
    let [index, at, what] = kernel.words;
    let index = u8::try_from(index).ok()?;
    // A thread for 16 bytes, as the worker has.
    let items = payload.len().div_ceil(16).next_multiple_of(16).min(512);
    let launch = Launch::linear(1, u16::try_from(items).ok()?, ARGUMENTS);
    let arguments = [0, 0, at, what].map(u64::to_le_bytes).concat();
    // Who waits is told of its failure.
    Some(Put::kernel(to, index, QUEUE, launch, arguments).payload(payload).acknowledged())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::{Device as _, HostDevice};

    #[test]
    fn what_is_given_back_in_any_order_is_whole_again() {
        let region = HostDevice::new().allocate(16 * GRAIN).unwrap();
        // SAFETY: it is never freed.
        let memory = unsafe { Lease::kept_by_caller(region) };
        let room = Room { memory, free: Mutex::new(vec![(0, 16 * GRAIN)]) };
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let lent: Vec<Region> = (0..4).map(|_| room.lend(4 * GRAIN - 1).unwrap()).collect();
            assert!(room.lend(1).is_none());
            for at in order {
                let exact = lent[at].sub(0, 4 * GRAIN - 1).unwrap();
                // SAFETY: it was lent, and nothing uses it.
                unsafe { room.take_back(exact) };
            }
            assert_eq!(*lock(&room.free), [(0, 16 * GRAIN)], "{order:?}");
        }
        assert!(room.lend(16 * GRAIN + 1).is_none() && room.lend(u64::MAX).is_none());
    }
}
