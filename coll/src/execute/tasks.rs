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
//! If the target has an accelerator that combines the task where it lies, its ready message says where
//! ([`TaskKernel`]), and the task is put there: the target's processor has no part in it. What goes wrong goes by the
//! way above, without bytes.
//!
//! No thread of the target has to be in a call for a task to run, as far as its carrier needs none. One that comes
//! before it is open touches nothing: what another process puts, and when, is not trusted, unless an accelerator takes
//! it.
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use gapless_bml::LinkError;
use gapless_dtype::Primitive;
use gapless_engine::{EngineError, HostEngine, Op, ReduceOp, Reducer};
use gapless_mem::Region;

use super::Lender;
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

/// Where an accelerator of a task's target combines it. Only those who carry tasks know what its words mean; what they
/// say goes from the target's to the initiator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKernel {
    /// The place, and how elements are combined.
    pub words: [u64; 3],
    /// Bytes of the payload.
    pub bytes: u64,
}

/// Words of a kernel in a message: the task's slot, then the kernel.
pub(super) const KERNEL_WORDS: usize = 5;
/// Bytes of them.
pub(super) const KERNEL_BYTES: u64 = 8 * KERNEL_WORDS as u64;
/// How many kernels a message has at most. Other tasks have none.
pub(super) const KERNELS_MAX: usize = 64;

impl TaskKernel {
    pub(super) fn to_words(self, slot: u32) -> [u64; KERNEL_WORDS] {
        let [first, second, third] = self.words;
        [slot.into(), first, second, third, self.bytes]
    }

    pub(super) fn of_words(
        [slot, words @ .., bytes]: [u64; KERNEL_WORDS],
    ) -> Option<(u32, TaskKernel)> {
        Some((u32::try_from(slot).ok()?, TaskKernel { words, bytes }))
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

    /// Puts a task that its target's accelerator combines, where the target's carrier has [said](Awaited::kernel).
    /// Never waits.
    ///
    /// # Errors
    /// Nothing was put.
    fn put_at(
        &self,
        to: u32,
        name: TaskName,
        kernel: TaskKernel,
        payload: Vec<u8>,
    ) -> Result<Box<dyn Leaving>, TaskFault> {
        let _ = kernel;
        self.put(to, name, payload)
    }

    /// Memory of the host for what tasks are combined into, if an accelerator that combines them needs it to be of its
    /// own choice.
    fn lender(&self) -> Option<Arc<dyn Lender>> {
        None
    }
}

/// A task that is expected. Dropped: it is no more.
pub trait Awaited: Send + fmt::Debug {
    /// Why it will not come, if that is known.
    fn failed(&self) -> Option<TaskFault>;

    /// Where an accelerator of this process combines it, if one does. Asked once, when the task may come; its initiator
    /// is told. From then on until [`is_done`](Awaited::is_done) the accelerator may touch the place that the work
    /// [has](TaskWork::place), also if this value is dropped, or the work is withdrawn: then the place is never used
    /// again.
    fn kernel(&self) -> Option<TaskKernel> {
        None
    }

    /// Its initiator says that it does not come: none was put, or what was put is over. Whether the accelerator does
    /// not touch the place any more.
    fn comes_not(&self) -> bool {
        true
    }

    /// Whether the accelerator has done it. What it wrote can be seen then.
    fn is_done(&self) -> bool {
        false
    }
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

    /// Where it combines which elements, and how; `None`: it only notes its coming, it has come, or its operation is no
    /// predefined one on numbers that lie packed.
    #[must_use]
    pub fn place(&self) -> Option<(Region, ReduceOp, Primitive)> {
        match &*self.lock() {
            State::Closed(place) | State::Open(Some(place)) => {
                let Op::Predefined(op) = place.combine.op() else { return None };
                Some((place.region, *op, place.combine.element()?))
            }
            State::Open(None) | State::Over(_) | State::Withdrawn => None,
        }
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
    /// An accelerator may combine it.
    pub(super) given_to_device: bool,
}

impl Expected {
    /// What has become of it.
    pub(super) fn came(&self) -> Option<Came> {
        let is_done = || self.given_to_device && self.awaited.is_done();
        self.work.came().or_else(|| is_done().then_some(Came::Done))
    }

    /// Its initiator says that it does not come.
    pub(super) fn comes_not(&mut self) {
        self.given_to_device &= !self.awaited.comes_not();
    }

    /// Whether an accelerator may still touch its place.
    pub(super) fn is_touched(&self) -> bool {
        self.given_to_device && !self.awaited.is_done()
    }
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
    fn kernels_are_words_and_works_say_what_they_combine() {
        let kernel = TaskKernel { words: [1, u64::MAX, 3], bytes: 1 << 40 };
        assert_eq!(TaskKernel::of_words(kernel.to_words(u32::MAX)), Some((u32::MAX, kernel)));
        assert_eq!(TaskKernel::of_words([1 << 32, 0, 0, 0, 0]), None);
        let mut place = [0; 8];
        let region = Region::of_mut(&mut place);
        let work = summing(&mut place);
        assert_eq!(work.place(), Some((region, ReduceOp::Sum, Primitive::Int32)));
        work.withdraw();
        assert!(work.place().is_none() && TaskWork::noting(8).place().is_none());
    }

    #[test]
    fn names_are_two_words() {
        let name = TaskName { context: 0xFEDC_BA98, slot: 0x8765_4321, collective: 1 << 63 | 5 };
        assert_eq!(TaskName::from_words(name.words()), name);
    }
}
