//! Tasks of schedules: what runs when one comes, and who carries them between processes.
//!
//! ```text
//! initiator                              target
//!                                        expects its tasks (all of its schedule, before it sends anything)
//!             ◄─ message without bytes ─ ready: opens those that may come now
//! put ─ name, payload ─────────────────► whoever carries tasks finds the work of that name, and runs it:
//!                                        place = place op payload
//!                                        the step has ended
//! ```
//!
//! No thread of the target has to be in a call for a task to run, as far as its carrier needs none. One that comes
//! before it is open touches nothing: what another process puts, and when, is not trusted.
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use gapless_bml::LinkError;
use gapless_engine::{EngineError, HostEngine, Op, Reducer};
use gapless_mem::Region;

use super::call_buffers::Combine;

/// The name of a task: no other that is put at its target has it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    /// What the target's process calls the communicator.
    pub context: u32,
    /// Which task of its initiator in the collective.
    pub slot: u32,
    /// The collective, among those of the communicator.
    pub collective: u64,
}

impl TaskName {
    /// It in two words.
    #[must_use]
    pub fn words(self) -> [u64; 2] {
        [u64::from(self.context) << 32 | u64::from(self.slot), self.collective]
    }

    /// The name that two words are.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "each half of a word")]
    pub fn from_words([first, collective]: [u64; 2]) -> Self {
        Self { context: (first >> 32) as u32, slot: first as u32, collective }
    }
}

/// Carries tasks from process to process. Processes are numbered as in the job.
///
/// Whoever implements this runs a [`TaskWork`] that is expected, once, when a task of its name has come from its
/// initiator, on any thread; and wakes who waits for progress then, and when an initiator is lost.
pub trait Tasks: Send + Sync + fmt::Debug {
    /// From now on, until what it gives is dropped, a task of this name that `from` puts here does this. Its payload
    /// has [`TaskWork::bytes`], or none.
    ///
    /// # Errors
    /// Tasks cannot come here.
    fn expect(
        &self,
        from: u32,
        name: TaskName,
        work: TaskWork,
    ) -> Result<Box<dyn Awaited>, TaskFault>;

    /// Puts a task. Never waits.
    ///
    /// # Errors
    /// Nothing was put.
    fn put(&self, to: u32, name: TaskName, payload: Vec<u8>)
    -> Result<Box<dyn Leaving>, TaskFault>;
}

/// A task that is expected. Dropped: it is no more.
pub trait Awaited: Send + fmt::Debug {
    /// Why it will not come, if that is known.
    fn failed(&self) -> Option<TaskFault>;
}

/// A task that was put. Dropping it changes nothing.
pub trait Leaving: Send + fmt::Debug {
    /// Whether the target has taken it, as soon as that is known.
    fn taken(&self) -> Option<Result<(), TaskFault>>;
}

/// Why a task does not come, or does not leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskFault {
    /// The process at its other end is lost.
    #[error("process {process} {}", error.fate())]
    Lost {
        /// Its number in the job.
        process: u32,
        /// How that was noticed.
        error: LinkError,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// What a task does when it has come. Clones are the same.
#[derive(Clone, Debug)]
pub struct TaskWork(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// It has not come, and may not yet: something else may touch its place.
    Closed(TaskMemory),
    /// It has not come. Without a place, its coming is only noted.
    Open(Option<TaskMemory>),
    Over(Came),
    /// Nothing may touch the place any more.
    Withdrawn,
}

/// What a task works on: plain memory of the host, granted until the work is withdrawn.
#[derive(Debug)]
struct TaskMemory {
    region: Region,
    combine: Combine,
}

/// What has become of a task.
#[derive(Clone, Debug)]
pub(super) enum Came {
    /// It is done, or was only to be noted.
    Done,
    /// It came with so many bytes instead of those that are expected, and has touched nothing.
    Odd(u64),
    /// It came before it was open, and has touched nothing.
    Early,
    Failed(EngineError),
}

impl TaskWork {
    /// That of `bytes` bytes, which only notes its coming.
    pub(super) fn noting(bytes: u64) -> Self {
        Self::of(bytes, State::Open(None))
    }

    fn of(bytes: u64, state: State) -> Self {
        Self(Arc::new(Inner { bytes, state: Mutex::new(state) }))
    }

    /// Combines the payload into memory, from when it is [opened](Self::open).
    ///
    /// # Safety
    /// From then until the work is [withdrawn](Self::withdraw), or has been seen to be over, the region is plain memory
    /// of the host, valid for reads and writes, that nothing else touches while the task may run.
    pub(super) unsafe fn combining(region: Region, combine: Combine) -> Self {
        Self::of(region.len(), State::Closed(TaskMemory { region, combine }))
    }

    /// From now on its task may come.
    pub(super) fn open(&self) {
        let mut state = self.lock();
        *state = match std::mem::replace(&mut *state, State::Withdrawn) {
            State::Closed(place) => State::Open(Some(place)),
            other => other,
        };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held: reducers contain users' functions.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Whether [`run`](Self::run) calls no function of a user's.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        match &*self.lock() {
            State::Closed(place) | State::Open(Some(place)) => {
                matches!(place.combine.op(), Op::Predefined(_))
            }
            State::Open(None) | State::Over(_) | State::Withdrawn => true,
        }
    }

    /// Does it, with what has come. Once: afterwards, and when nobody wants it any more, nothing happens.
    pub fn run(&self, payload: &[u8]) {
        let mut state = self.lock();
        let fits = payload.len() as u64 == self.0.bytes;
        let came = match &*state {
            State::Over(_) | State::Withdrawn => return,
            _ if !fits => Came::Odd(payload.len() as u64),
            State::Closed(_) => Came::Early,
            State::Open(None) => Came::Done,
            State::Open(Some(place)) => {
                place.combine(payload).map_or_else(Came::Failed, |()| Came::Done)
            }
        };
        *state = State::Over(came);
    }

    /// What has become of it; none while it runs, too.
    pub(super) fn came(&self) -> Option<Came> {
        let state = match self.0.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match &*state {
            State::Over(came) => Some(came.clone()),
            State::Closed(_) | State::Open(_) | State::Withdrawn => None,
        }
    }

    /// Whether it runs now.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.0.state.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// From now on nothing touches its place; waits for it if it runs.
    pub(super) fn withdraw(&self) {
        *self.lock() = State::Withdrawn;
    }
}

impl TaskMemory {
    fn combine(&self, payload: &[u8]) -> Result<(), EngineError> {
        let own = self.combine.elements(self.region)?;
        let came = self.combine.elements(Region::of(payload))?;
        let sources = [own.clone(), came];
        let range = 0..own.packed_bytes();
        // SAFETY: the place was granted by the caller of `TaskWork::combining`; the payload is borrowed until this
        // returns, which is after the host's work. A source that is the target is the same description.
        let work =
            unsafe { HostEngine.reduce_into(self.combine.op(), &sources, &own, range, &[]) }?;
        Ok(work.wait()?)
    }
}

/// A task that is expected, as a run has it. Dropped: nothing touches its place any more.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) work: TaskWork,
    pub(super) awaited: Box<dyn Awaited>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.work.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_engine::{Op, ReduceOp};

    fn summing(place: &mut [u8]) -> TaskWork {
        let int = Datatype::from(Primitive::Int32).commit().expect("a basic type");
        let combine = Combine::new(&Op::from(ReduceOp::Sum), &int).expect("a sum of numbers");
        // SAFETY: the tests keep the place, and look at it when its work is over.
        unsafe { TaskWork::combining(Region::of_mut(place), combine) }
    }

    #[test]
    fn a_task_is_done_once_and_not_with_other_lengths_or_when_withdrawn() {
        let mut place = [1, 0, 0, 0, 2, 0, 0, 0];
        let work = summing(&mut place);
        assert!(work.came().is_none());
        work.open();
        // At an odd address.
        work.run(&[9, 5, 0, 0, 0, 6, 0, 0, 0][1..]);
        work.run(&[7; 8]);
        assert!(matches!(work.came(), Some(Came::Done)));
        assert_eq!(place, [6, 0, 0, 0, 8, 0, 0, 0]);
        let work = summing(&mut place);
        work.run(&[]);
        assert!(matches!(work.came(), Some(Came::Odd(0))));
        let work = summing(&mut place);
        work.run(&[7; 8]);
        work.open();
        assert!(matches!(work.came(), Some(Came::Early)));
        let work = summing(&mut place);
        work.open();
        let other = work.clone();
        work.withdraw();
        other.run(&[7; 8]);
        assert!(work.came().is_none());
        let noted = TaskWork::noting(8);
        noted.run(&[7; 8]);
        assert!(matches!(noted.came(), Some(Came::Done)));
        assert_eq!(place, [6, 0, 0, 0, 8, 0, 0, 0]);
    }

    #[test]
    fn names_are_two_words() {
        let name = TaskName { context: 0xFEDC_BA98, slot: 0x8765_4321, collective: 1 << 63 | 5 };
        assert_eq!(TaskName::from_words(name.words()), name);
    }
}
