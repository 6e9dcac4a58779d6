//! The engine's own lanes, taken in turn, and what work on them still uses.
//!
//! A call has a lane to itself while it enqueues. Plans and buffers that the work uses are kept, with the
//! call's completion, until the lane has passed it; whoever comes next lets go of them. Nothing is freed
//! under a running kernel.

use crate::accelerator::Lane;
use crate::index_report::IndexReport;
use crate::memory::DeviceBlock;
use crate::plans::DevicePlan;
use crate::staging::StagingPiece;
use gapless_mem::Completion;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long an engine that is dropped waits for its work, on all lanes together. What takes longer keeps its
/// memory, which is left to the process's end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What enqueued work uses.
pub(crate) enum Hold {
    /// A plan.
    Plan(Arc<DevicePlan>),
    /// A buffer.
    Block(
        #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "it is held, not looked at"))]
        Arc<DeviceBlock>,
    ),
    /// Memory of the host.
    Staging(#[expect(dead_code, reason = "it is held, not looked at")] StagingPiece),
    /// What kernels report of indices.
    Report(Arc<IndexReport>),
}

/// What one call's work uses.
pub(crate) type Holds = SmallVec<[Hold; 2]>;

/// Work that may not have ended, oldest first, with what it uses. Where it is of several streams, what is
/// over may be kept until what came before is.
#[derive(Default)]
pub(crate) struct Retired(VecDeque<(Completion, Holds)>);

/// What belongs to a lane.
#[derive(Default)]
pub(crate) struct Track {
    pub(crate) retired: Retired,
    /// A chunk between device and host; the lane's order keeps calls from sharing it.
    pub(crate) chunk: Option<Arc<DeviceBlock>>,
    /// The end of what the lane was used for last.
    pub(crate) last: Completion,
}

/// The lanes' tracks, in their order.
pub(crate) struct Lanes {
    tracks: Vec<Mutex<Track>>,
    /// The one that was taken last.
    recent: AtomicUsize,
}

impl Retired {
    /// Keeps `held` until `work` has ended.
    pub(crate) fn push(&mut self, work: &Completion, held: Holds) {
        self.collect();
        if !held.is_empty() && !matches!(work, Completion::Ready) {
            self.0.push_back((work.clone(), held));
        }
    }

    /// Lets go of what is over, up to the first that is not. What failed is over as well.
    pub(crate) fn collect(&mut self) {
        while let Some((work, _)) = self.0.front() {
            if matches!(work.poll(), Ok(false)) {
                return;
            }
            self.0.pop_front();
        }
    }

    /// Waits for what is not over, until `deadline`; what goes on then keeps what it uses, for good.
    fn settle(&mut self, deadline: Instant) {
        loop {
            self.collect();
            if self.0.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!("work of a dropped engine goes on; its plans stay in device memory");
                self.0.drain(..).for_each(std::mem::forget);
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Work on the callers' streams that may not have ended, with what it uses.
#[derive(Default)]
pub(crate) struct Elsewhere(Mutex<Retired>);

impl Elsewhere {
    /// Keeps `held` until `work` has ended.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "CUDA's callers have streams"))]
    pub(crate) fn push(&self, work: &Completion, held: Holds) {
        self.lock().push(work, held);
    }

    /// Lets go of what is over.
    pub(crate) fn collect(&self) {
        self.lock().collect();
    }

    /// Waits until `deadline` at most; what is not over then keeps what it uses.
    pub(crate) fn settle(&self, deadline: Instant) {
        self.lock().settle(deadline);
    }

    fn lock(&self) -> MutexGuard<'_, Retired> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    pub(crate) fn new(lanes: usize) -> Lanes {
        let tracks = (0..lanes).map(|_| Mutex::default()).collect();
        Lanes { tracks, recent: AtomicUsize::new(0) }
    }

    /// A lane, and its number: the one of this number, or the one that was taken last, if it is known to have
    /// nothing to do, or else the next; always one that no other thread is busy with, if there is one.
    ///
    /// A driver may launch a little sooner on a stream that it has just used, and there is nothing to gain from
    /// another one where nothing is in flight.
    pub(crate) fn take(&self, preferred: Option<usize>) -> (usize, MutexGuard<'_, Track>) {
        let free = |number: usize| Some((number, self.tracks[number].try_lock().ok()?));
        let idle = || {
            let recent = free(self.recent.load(Ordering::Relaxed))?;
            recent.1.last.is_known_over().then_some(recent)
        };
        let taken = preferred.and_then(free).or_else(idle).unwrap_or_else(|| self.take_next());
        self.recent.store(taken.0, Ordering::Relaxed);
        taken
    }

    /// The next lane, and its number; one that no other thread is busy with, if there is one.
    fn take_next(&self) -> (usize, MutexGuard<'_, Track>) {
        let turn = self.recent.load(Ordering::Relaxed) + 1;
        let count = self.tracks.len();
        for number in (0..count).map(|i| (turn + i) % count) {
            match self.tracks[number].try_lock() {
                Ok(track) => return (number, track),
                Err(TryLockError::Poisoned(track)) => return (number, track.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let number = turn % count;
        (number, self.tracks[number].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another lane, if one is free: rather one that is known to have nothing to do.
    pub(crate) fn take_another(&self) -> Option<(usize, MutexGuard<'_, Track>)> {
        let mut free = None;
        for (number, track) in self.tracks.iter().enumerate() {
            let Ok(track) = track.try_lock() else { continue };
            if track.last.is_known_over() {
                return Some((number, track));
            }
            free = free.or(Some((number, track)));
        }
        free
    }

    /// Waits until `deadline` at most; what is not over then keeps what it uses.
    pub(crate) fn settle(&self, deadline: Instant) {
        for track in &self.tracks {
            track.lock().unwrap_or_else(PoisonError::into_inner).retired.settle(deadline);
        }
    }

    /// Lets go of what is over, on all lanes that no one is busy with.
    pub(crate) fn collect(&self) {
        for track in &self.tracks {
            if let Ok(mut track) = track.try_lock() {
                track.retired.collect();
            }
        }
    }
}

/// A call's work on a lane while it is being enqueued. Dropped, and not [landed](InFlight::land), it is of
/// a call that failed half-way: what was enqueued is waited for, so that nothing is freed under it, and the
/// caller's memory is the caller's again.
pub(crate) struct InFlight<'a> {
    lane: &'a dyn Lane,
    held: Holds,
    landed: bool,
}

impl<'a> InFlight<'a> {
    pub(crate) fn new(lane: &'a dyn Lane) -> InFlight<'a> {
        InFlight { lane, held: Holds::new(), landed: false }
    }

    /// Where the call puts what its work uses.
    pub(crate) fn held(&mut self) -> &mut Holds {
        &mut self.held
    }

    /// Everything is enqueued; `work` is its end.
    pub(crate) fn land(mut self, retired: &mut Retired, work: &Completion) {
        self.landed = true;
        retired.push(work, std::mem::take(&mut self.held));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.lane.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::{DeviceError, Pending};
    use std::any::Any;
    use std::sync::atomic::AtomicBool;

    /// Work that is over once somebody says so.
    #[derive(Default)]
    struct Work(AtomicBool);

    #[expect(unsafe_code, reason = "work that is over when the test says so")]
    // SAFETY: it was granted no memory.
    unsafe impl Pending for Work {
        fn poll(&self) -> Result<bool, DeviceError> {
            panic!("whoever chooses a lane does not ask the device")
        }

        fn is_known_over(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn a_lane_is_taken_again_once_its_work_is_known_to_be_over() {
        let lanes = Lanes::new(3);
        let work = Arc::new(Work::default());
        let first = {
            let (number, mut track) = lanes.take(None);
            track.last = Completion::Pending(Arc::clone(&work) as Arc<dyn Pending>);
            number
        };
        work.0.store(true, Ordering::Relaxed);
        assert_eq!(lanes.take(None).0, first);
        work.0.store(false, Ordering::Relaxed);
        let (second, held) = lanes.take(None);
        assert_ne!(second, first, "it may still be busy");
        // Another thread would find that one taken.
        assert_ne!(lanes.take(None).0, second);
        drop(held);
        assert_eq!(lanes.take(Some(first)).0, first, "what follows its work goes there");
    }
}
