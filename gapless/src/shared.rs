//! What all handles of a world share: the message layer behind a lock, and how threads wait.
//!
//! The lock is held while messages are handled, never while a thread yields or sleeps. Of the threads that wait one
//! polls (`waiting.rs`). A thread that handled events wakes threads whose requests have ended, and threads that sleep
//! on the alarm (an event descriptor beside the transports' own).
//!
//! - `held`, `guard`: the lock, and panics of what users have given us;
//! - `waiting`, `asleep`, `wakeups`: how threads wait, sleep and are woken; `attend`: a progress thread;
//! - `short`, `shared_memory`: short messages under one lock, blocking collectives that look at shared memory;
//! - `seldom`, `prefetch`: calls that do not wait, memory fetched meanwhile;
//! - `tasks`: the ends of XTQ;
//! - `devices`: those that are opened on demand, and given up; `settings`, `stuck`: what new collectives go by; calls
//!   that hang.

#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod short;

mod asleep;
mod attend;
mod devices;
pub(crate) mod guard;
mod held;
mod prefetch;
mod seldom;
mod settings;
mod shared_memory;
pub(crate) mod stuck;
mod tasks;
mod waiting;
mod wakeups;

#[cfg(not(any(feature = "cuda", feature = "opencl")))]
use crate::accelerators::Accelerators;
use crate::collective::Carrier;
use crate::device_buf::Owned;
use crate::error::Error;
use crate::owned::Parked;
use crate::raw::Work;
use crate::scope::Scopes;
use crate::window::KeptRegistrations;
use crate::xtq::typed::Calls;
use gapless_bml::{Patience, Spin, now_ns};
use gapless_boot::places::Places;
use gapless_coll::runtime::{AllEngines, Component, InFlight};
#[cfg(any(feature = "cuda", feature = "opencl"))]
use gapless_gpu::Accelerators;
use gapless_osc::Osc;
use gapless_pml::{Pml, RequestId, Status};
use gapless_sync::{Asleep, Followers, Gate, Pass};
use gapless_tuning::coll::Table;
use gapless_xtq::Xtq;
use guard::{give_up, wake};
pub(crate) use held::{Started, StateGuard};
pub(crate) use prefetch::Prefetch;
use seldom::Looked;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Poll, Waker};
use stuck::Stuck;
pub(crate) use waiting::Look;
pub(crate) use wakeups::Wakeups;

/// One of this many calls that need not wait makes progress.
const CALLS_PER_POLL: u32 = 32;

/// What a function is told that calls the library where it must not.
const WITHIN: &str = "a user operation or a quick function has called the world that runs it: it would wait for itself";

/// The state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldStage {
    /// Messages are exchanged.
    Open,
    /// It is being left: nothing new starts, operations in flight go on.
    Closed,
    /// It has been left: no byte moves any more.
    Left,
}

/// What a thread does for a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    Nothing,
    /// It runs a task.
    Task,
    /// It has the lock.
    Lock,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct WorldState {
    pub(crate) pml: Pml,
    /// Tasks that are put at other processes, and here.
    pub(crate) xtq: Xtq,
    /// Tasks of collectives.
    pub(crate) carried: Xtq,
    /// Calls of users' functions at other processes, and here.
    pub(crate) calls: Arc<Calls>,
    pub(crate) parked: Parked,
    /// Collectives in flight.
    pub(crate) collectives: InFlight,
    /// Engines of collectives.
    pub(crate) tools: Arc<AllEngines>,
    /// Who carries tasks of collectives.
    carrier: Arc<Carrier>,
    /// One-sided windows.
    windows: Osc,
    /// Tasks of windows' accumulations.
    pub(crate) window_tasks: Xtq,
    /// Blocking collectives that have borrowed their modules: they are not in `collectives`.
    blocking: u32,
    /// Collectives that get on only by polling: nobody wakes a thread that waits for one of these collectives.
    pub(crate) polled: u32,
    stage: WorldStage,
    /// A panic has left the state in disorder: the message layer is not to be asked for anything.
    pub(crate) torn: bool,
    /// Which of the threads that wait leads, and so polls.
    followers: Followers,
    /// How long the leader spins.
    spin: Spin,
    /// Threads that are asleep on the alarm, or about to be.
    sleepers: u32,
    /// Whether the progress thread is asleep, or about to be.
    progress_thread_sleeps: bool,
    /// Calls that did not have to wait.
    unpolled: u32,
    looked: Looked,
    /// The operations of scopes in flight.
    pub(crate) scopes: Scopes,
    /// Devices that are opened on demand.
    accelerators: Arc<Accelerators>,
    /// Dropped memory of devices that peers may have mapped. This field is below `pml`: what is left here is freed
    /// after the transports.
    pub(crate) dropped_device_memory: Vec<Arc<Owned>>,
    /// Dropped memory of windows whose numbers peers' adapters may change.
    pub(crate) kept: KeptRegistrations,
    /// Work of requests whose end no message tells of.
    pub(crate) works: Vec<(RequestId, Arc<dyn Work>)>,
    /// Values to drop once the lock is released: their `Drop` may call us.
    pub(crate) spent: Vec<Box<dyn Any + Send>>,
}

/// The part of a world that communicators, scopes and requests hold.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Gate<WorldState>,
    /// Threads that want the lock.
    wanting: AtomicU32,
    asleep: Asleep,
    wakeups: Wakeups,
    /// Threads that wait for something, and so poll; counted only if there is a progress thread.
    waiting: AtomicU32,
    has_thread: AtomicBool,
    /// How to wait, and how many processors this process may use; determined once, because counting processors takes
    /// system calls.
    patience: Patience,
    cores: usize,
    /// After how long calls that wait say so.
    stuck: Stuck,
    /// By which collectives of new communicators choose their algorithms: all ranks have the same.
    table: RwLock<Arc<Table>>,
    /// On which host each process is.
    pub(crate) places: Places,
    /// Engines of collectives.
    pub(crate) tools: Arc<AllEngines>,
    /// Who carries tasks of collectives.
    pub(crate) carrier: Arc<Carrier>,
    /// One-sided windows.
    pub(crate) windows: Osc,
    /// Tasks of windows' accumulations.
    pub(crate) window_tasks: gapless_osc::Tasks,
    /// Whether ranks compare what they give to collectives of new communicators: all ranks say the same.
    checks_collectives: AtomicBool,
    /// What makes modules for collectives of new communicators, asked before the modules of `gapless-coll`.
    components: RwLock<Arc<[Arc<dyn Component>]>>,
}

impl WorldState {
    /// Starts something new, unless the world was finalized.
    #[inline]
    pub(crate) fn open(&mut self) -> Result<&mut Pml, Error> {
        if self.stage != WorldStage::Open {
            return Err(Error::Finalized);
        }
        if self.accelerators.has_changes() {
            self.tell_of_devices();
        }
        Ok(&mut self.pml)
    }

    /// From now on nothing new starts.
    pub(crate) fn close(&mut self) {
        if self.stage == WorldStage::Open {
            self.stage = WorldStage::Closed;
            self.close_tasks();
        }
    }

    /// Cancels a receive that has no message yet; whether it was cancelled.
    ///
    /// # Errors
    /// The world has been left; there is no such request.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<bool, Error> {
        if self.stage == WorldStage::Left {
            return Err(Error::Finalized);
        }
        Ok(self.pml.cancel_recv(id)?)
    }

    /// Cancels a receive that has no message yet, or a send. Whether it was cancelled by the time this returns.
    pub(crate) fn cancel_request(&mut self, id: RequestId) -> Result<bool, Error> {
        Ok(self.cancel(id)? || self.pml.cancel_send(id)?)
    }

    /// Whether work remains for when the lock is released.
    #[inline]
    fn owes(&self) -> bool {
        self.pml.has_woken() || !self.spent.is_empty()
    }

    /// Whether work that remains is, or calls, code of users: such code may take long, and may use the world.
    fn owes_users(&self) -> bool {
        self.pml.has_woken_others() || !self.spent.is_empty()
    }

    /// Whether [`progress`](WorldState::progress) would do nothing, as far as a quick check tells.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.pml.is_quiet()
            && !self.collectives.is_busy()
            && !self.carrier.has_news()
            && self.collectives.is_quiet()
            && self.are_tasks_quiet()
            && !self.parked.has_abandoned()
            && self.dropped_device_memory.is_empty()
            && !self.windows.is_busy()
            && self.works.is_empty()
    }

    /// Whether this process has work of its own to finish, so that a waiting caller should poll and not sleep.
    #[inline]
    fn is_busy(&self) -> bool {
        self.polled > 0
            || self.pml.is_busy()
            || self.collectives.is_busy()
            || self.carrier.has_news()
            || self.windows.is_busy()
            || !self.are_tasks_quiet()
    }

    /// Prepares for sleep: whoever this process waits for in memory is to wake it. `false`: there is more to do.
    #[inline]
    fn arm_collectives(&mut self) -> bool {
        self.stage == WorldStage::Left || self.collectives.arm(&mut self.pml, &mut self.spent)
    }

    /// Whether all that was started here has left, and all collectives have ended.
    pub(crate) fn has_settled(&self) -> bool {
        !self.pml.is_busy()
            && self.collectives.is_idle()
            && self.blocking == 0
            && self.have_tasks_settled()
            && !self.windows.is_busy()
    }

    /// Whether the world has been left: the message layer is to be asked for nothing but results.
    pub(crate) fn has_left(&self) -> bool {
        self.stage == WorldStage::Left
    }

    /// Whether the world is being left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stage == WorldStage::Closed
    }

    /// Goes on with collectives; gives how many have ended.
    fn advance_collectives(&mut self) -> usize {
        let ended = self.collectives.advance(&mut self.pml, &mut self.spent);
        if ended > 0 {
            self.spent.extend(self.tools.surplus());
        }
        ended
    }

    /// Goes on with work of requests; gives how much has ended.
    fn advance_works(&mut self) -> usize {
        let WorldState { works, pml, spent, .. } = self;
        let over = |(id, work): &mut (RequestId, Arc<dyn Work>)| {
            let is_over = work.advance(pml);
            if is_over {
                // It is there, unless its request was dropped.
                let _ = pml.end_general(*id);
            }
            is_over
        };
        let ended = works.extract_if(.., over).map(|(_, work)| Box::new(work) as _);
        let before = spent.len();
        spent.extend(ended);
        spent.len() - before
    }

    /// Handles arrivals; does nothing once the world has been left.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        if self.stage == WorldStage::Left {
            return 0;
        }
        let mut handled = self.pml.progress();
        self.carrier.hear();
        if !self.collectives.is_empty() {
            handled += self.advance_collectives();
        }
        if !self.xtq.is_quiet() || self.xtq.is_timed() {
            handled += self.xtq.advance(self.pml.bml_mut(), now_ns());
        }
        if !self.carried.is_quiet() {
            handled += self.carried.advance(self.pml.bml_mut(), now_ns());
        }
        handled += self.windows.advance(self.pml.bml_mut());
        if !self.window_tasks.is_quiet() {
            handled += self.window_tasks.advance(self.pml.bml_mut(), now_ns());
        }
        handled += self.calls.advance(&mut self.pml);
        if !self.works.is_empty() {
            handled += self.advance_works();
        }
        if self.parked.has_abandoned() {
            self.parked.reap(&mut self.pml, &mut self.spent);
        }
        // A release by peers is no counted event.
        if !self.dropped_device_memory.is_empty() {
            self.free_dropped_device_memory();
        }
        handled
    }
}

impl Shared {
    pub(crate) fn new(
        (pml, windows, window_tasks): (Pml, Osc, gapless_osc::Tasks),
        (xtq, calls, wakeups): (Xtq, Arc<Calls>, Wakeups),
        (local_ranks, places, stuck): (usize, Places, Stuck),
        accelerators: Arc<Accelerators>,
        (tools, carrier): (Arc<AllEngines>, Arc<Carrier>),
    ) -> Shared {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = Patience::new(local_ranks, cores);
        let state = WorldState {
            pml,
            xtq,
            carried: carrier.end(),
            calls,
            parked: Parked::default(),
            collectives: InFlight::new(Arc::clone(&tools) as _),
            tools: Arc::clone(&tools),
            carrier: Arc::clone(&carrier),
            windows: windows.clone(),
            window_tasks: window_tasks.xtq().clone(),
            blocking: 0,
            polled: 0,
            stage: WorldStage::Open,
            torn: false,
            followers: Followers::default(),
            spin: Spin::new(patience.spin),
            sleepers: 0,
            progress_thread_sleeps: false,
            unpolled: 0,
            looked: Looked::now(),
            scopes: Scopes::default(),
            accelerators,
            dropped_device_memory: Vec::new(),
            kept: KeptRegistrations::default(),
            works: Vec::new(),
            spent: Vec::new(),
        };
        Shared {
            state: Gate::new(state),
            wanting: AtomicU32::new(0),
            asleep: Asleep::default(),
            wakeups,
            waiting: AtomicU32::new(0),
            has_thread: AtomicBool::new(false),
            patience,
            stuck,
            cores,
            table: RwLock::default(),
            places,
            tools,
            carrier,
            windows,
            window_tasks,
            checks_collectives: AtomicBool::new(false),
            components: RwLock::default(),
        }
    }

    /// The state, to use the message layer.
    ///
    /// # Errors
    /// A panic has left it in disorder.
    #[inline(always)] // its result is large, and this is what every call begins with
    pub(crate) fn lock(&self) -> Result<StateGuard<'_>, Error> {
        match self.state.try_enter() {
            Some(guard) if !self.state.is_poisoned() => Ok(StateGuard::new(guard)),
            taken => {
                taken.into_iter().for_each(Pass::done);
                self.lock_patiently()
            }
        }
    }

    /// Takes the lock, and counts its caller meanwhile among those that want it.
    ///
    /// # Panics This thread has the lock: a function that the library calls under the lock has called the library. That
    /// ends the function, which is told to whoever waits for it. An error would not do: whoever waits for a request
    /// takes one for its end.
    #[cold]
    fn lock_patiently(&self) -> Result<StateGuard<'_>, Error> {
        assert!(!self.state.is_mine(), "{WITHIN}");
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.enter();
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        if self.state.is_poisoned() {
            // Whoever is told so takes its memory back, as it may: the world was given up first.
            guard.done();
            return Err(Error::Poisoned);
        }
        Ok(StateGuard::new(guard))
    }

    /// Makes sleeping threads check again.
    pub(crate) fn signal(&self) {
        self.wakeups.alarm.signal();
    }

    /// An operation was started: it may have ended a sleeping thread's wait (a message to this process itself).
    #[inline]
    pub(crate) fn rouse(&self, state: &WorldState) {
        // A sleeping progress thread need not know of messages that others handle, but of work that waits for a
        // thread to drive it.
        if state.sleepers > 0 {
            self.signal();
        }
        if state.progress_thread_sleeps && state.is_busy() {
            self.nudge();
        }
    }

    /// Makes progress in one of [`CALLS_PER_POLL`] calls that need not wait, so that a program that never has to wait
    /// still answers its peers, and learns of their end.
    #[inline]
    pub(crate) fn now_and_then(&self, state: &mut WorldState) {
        state.unpolled = state.unpolled.wrapping_add(1);
        if state.unpolled.is_multiple_of(CALLS_PER_POLL) {
            self.drive(state);
        }
    }

    /// Makes progress, and tells threads that sleep if there was any.
    pub(crate) fn drive(&self, state: &mut WorldState) -> usize {
        let handled = state.progress();
        if handled > 0 {
            self.rouse(state);
        }
        handled
    }

    /// A sleeper has woken: the alarm is cleared, unless other threads sleep on it.
    fn clear_alarm(&self, state: &WorldState) {
        if state.sleepers == 0 {
            self.wakeups.alarm.clear();
        }
    }

    /// Whether this thread runs a function of the user's for this world, which leaving the world waits for: under the
    /// lock, or a task.
    pub(crate) fn runs_here(&self) -> Within {
        let tasks = [self.carrier.end(), self.window_tasks.xtq().clone()];
        match self.state.is_mine() {
            true => Within::Lock,
            false if tasks.iter().any(Xtq::runs_here) => Within::Task,
            false => Within::Nothing,
        }
    }

    /// The world has been left: waiting callers are told so.
    pub(crate) fn abandon(&self) {
        // Whoever waits is about to take its memory back.
        let woken = self.with_anyway(give_up);
        self.signal();
        wake(woken);
        let _ = self.with(|state| {
            KeptRegistrations::end(state);
            Ok(())
        });
    }

    /// The result of a request if it has ended; otherwise `waker` is called when it has.
    pub(crate) fn poll(&self, id: RequestId, waker: &Waker) -> Poll<Result<Status, Error>> {
        // Cloned before the lock is taken, and the replaced one is dropped after: wakers may do anything.
        let mut waker = Some(waker.clone());
        let polled = self.with(|state| {
            let ended = state.pml.collect(id)?;
            if ended.is_none() && state.stage == WorldStage::Left {
                return Err(Error::Finalized);
            }
            if ended.is_none() {
                state.pml.notify(id, &mut waker)?;
            }
            Ok(ended)
        });
        match polled.transpose() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }

    /// Waits for one request and collects its result.
    ///
    /// Does not return, or unwind, before the request has ended, except when the world was given up
    /// ([`Error::Poisoned`], [`Error::Finalized`]): then all memory of the host was taken back.
    pub(crate) fn wait(&self, id: RequestId) -> Result<Status, Error> {
        let state = self.lock()?;
        self.wait_for(state, id, Prefetch::NOTHING)
    }

    /// As [`wait`](Shared::wait), if the caller has the lock already.
    pub(crate) fn wait_for<'s>(
        &'s self,
        mut state: StateGuard<'s>,
        id: RequestId,
        mut prefetch: Prefetch,
    ) -> Result<Status, Error> {
        self.now_and_then(&mut state);
        if let Some(result) = state.pml.collect(id).transpose() {
            state.done();
            return Ok(result?);
        }
        self.wait_held(state, |state| match state.pml.collect(id) {
            Ok(None) => {
                prefetch.some();
                Look::Until(id)
            }
            Ok(Some(status)) => Look::Found(Ok(status)),
            Err(error) => Look::Found(Err(Error::from(error))),
        })?
    }

    /// Makes progress once, and collects a request's result if it has ended.
    pub(crate) fn test(&self, id: RequestId) -> Result<Option<Status>, Error> {
        self.with(|state| {
            self.drive_once(state);
            match state.pml.collect(id)? {
                None if state.stage == WorldStage::Left => Err(Error::Finalized),
                result => Ok(result),
            }
        })
    }

    /// Makes progress once, and then looks at the message layer.
    ///
    /// # Errors
    /// A panic in another thread; the world has been left before.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Pml) -> T) -> Result<T, Error> {
        self.with(|state| {
            self.drive_once(state);
            match state.stage {
                WorldStage::Left => Err(Error::Finalized),
                WorldStage::Open | WorldStage::Closed => Ok(look(&state.pml)),
            }
        })
    }
}
