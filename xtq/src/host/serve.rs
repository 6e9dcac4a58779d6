//! The worker of this process's accelerator, behind the API of all back ends (*device*): what it runs is registered here,
//! initiators get rings of it, and tasks that came by messages go into a ring of this process's own.
//!
//! The worker's lock is taken before that of the state, and never the other way round. What is dropped under it is memory
//! that the worker was given: whoever keeps that does not call this crate when it goes.

mod far;
mod offers;
mod own;
mod stock;

use super::heap::heap;
use super::rings::Wishes;
use super::run::lay_down;
use super::target::RefusedTask;
use super::{Inner, Xtq, XtqState};
use crate::device::{self, DeviceKernel, Lane, Life, PutOutcome, RingShape, TargetError};
use crate::error::{Refusal, XtqError};
use crate::launcher::Kernel;
use crate::signal::Signal;
use crate::wire::{Head, Ring, kernel_bit};
use gapless_bml::{Bml, Rank};
use gapless_mem::{Lease, Worker};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

/// How long the worker is left alone, unless somebody wants something.
const LOOK_NS: u64 = 100_000;
/// Numbers of workers.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A signal of a kernel, which the worker counts in one of its places.
struct Counted {
    place: u8,
    index: u8,
    signal: Signal,
    /// How often, as far as the signal was told.
    seen: u64,
}

/// A worker, and what it serves.
pub(super) struct Served {
    /// No other has it.
    number: u64,
    pub(super) target: device::WorkerTarget,
    /// The ring of this process, for tasks that came by messages.
    own: Lane,
    /// What became of those, until their threads look.
    ended: HashMap<u64, PutOutcome>,
    /// By ring, whose it is; the first is this process's own.
    pub(super) initiators: Vec<Option<Rank>>,
    signals: Vec<Counted>,
    /// Kernels whose tasks are counted without a signal, by index, and the place of each: for good, as whoever has such a
    /// count may look at it for ever.
    counts: BTreeMap<u8, u8>,
    /// It is to leave, so that there is memory for more.
    changes: bool,
    looked_ns: u64,
    /// Ranks that have asked for rings, and whose links are not known yet.
    links: far::Waiting,
}

/// What the worker has said.
#[derive(Default)]
struct Heard {
    counted: Vec<(Signal, u64)>,
    failed: Vec<(Signal, XtqError)>,
    refused: Vec<RefusedTask>,
    forgotten: u64,
}

impl Served {
    fn new(worker: Arc<dyn Worker>, life: Life) -> Result<Served, TargetError> {
        let mut target = device::WorkerTarget::new(worker, life)?;
        let (shape, memory) = (RingShape::default(), heap(RingShape::default().bytes())?);
        // SAFETY: the memory is new, and the ring's alone.
        unsafe { target.add_ring(memory.clone(), shape) }?;
        // SAFETY: likewise.
        let own = unsafe { Lane::new(memory, shape) }?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (ended, initiators, signals) = (HashMap::new(), vec![None], Vec::new());
        let (counts, changes, looked_ns) = (BTreeMap::new(), false, 0);
        Ok(Served {
            number,
            target,
            own,
            ended,
            initiators,
            signals,
            counts,
            changes,
            looked_ns,
            links: far::Waiting::default(),
        })
    }

    /// Tells the worker to leave, and does not wait for that.
    pub(super) fn send_off(&mut self) {
        if let Err(error) = self.target.is_away() {
            tracing::debug!(%error, "a worker that cannot be told to leave");
        }
    }

    /// A place for this signal: the one that it has with this kernel, or one that no kernel's tasks count.
    fn place(&self, index: u8, signal: &Signal) -> Result<u8, TargetError> {
        let same = |one: &&Counted| one.index == index && one.signal.name() == signal.name();
        let known = self.signals.iter().find(same).map(|one| one.place);
        known.map_or_else(|| self.free_place(), Ok)
    }

    /// A place that nothing is counted in.
    fn free_place(&self) -> Result<u8, TargetError> {
        let is_free = |place: &u8| {
            self.signals.iter().all(|one| one.place != *place)
                && self.counts.values().all(|taken| taken != place)
        };
        let place = (0..).take(device::SIGNALS_MAX).find(is_free);
        place.ok_or(TargetError::TooMany { what: "signals", max: device::SIGNALS_MAX })
    }

    /// The place in which tasks of this kernel are counted without a signal.
    fn count_place(&mut self, index: u8) -> Result<u8, TargetError> {
        if let Some(place) = self.counts.get(&index) {
            return Ok(*place);
        }
        let place = self.free_place()?;
        self.counts.insert(index, place);
        Ok(place)
    }

    /// Tells the worker of a kernel, or that there is none, and which signal its tasks count.
    ///
    /// # Safety
    /// As [`device::WorkerTarget::register_kernel`].
    unsafe fn register(
        &mut self,
        index: u8,
        kernel: Option<DeviceKernel>,
        (signal, counted): (Option<&Signal>, bool),
    ) -> Result<(), TargetError> {
        let place = match signal {
            Some(signal) => Some(self.place(index, signal)?),
            None if counted => Some(self.count_place(index)?),
            None => None,
        };
        // Before a task of it can count.
        let seen = place.map_or(0, |place| self.target.counted(place));
        let kernel = kernel.map(|kernel| match place {
            Some(place) => kernel.signal(place),
            None => kernel,
        });
        // SAFETY: the caller's promise.
        let done = unsafe { self.target.register_kernel(index, kernel) };
        // Who is busy will have it.
        if matches!(done, Ok(()) | Err(TargetError::Busy(_)))
            && let Some((place, signal)) = place.zip(signal)
            && self.signals.iter().all(|one| one.place != place)
        {
            self.signals.push(Counted { place, index, signal: signal.clone(), seen });
        }
        done
    }

    /// The worker has answered: no task counts the signals any more that this kernel had.
    fn forget_signals(&mut self, index: u8, but: Option<&Signal>) {
        let now = but.map(Signal::name);
        self.signals.retain(|one| one.index != index || Some(one.signal.name()) == now);
    }

    /// What the worker has counted and refused since. `me` is this process.
    fn hear(&mut self, me: Rank) -> Heard {
        let mut heard = Heard::default();
        for one in &mut self.signals {
            let now = self.target.counted(one.place);
            if now != one.seen {
                heard.counted.push((one.signal.clone(), now.wrapping_sub(one.seen)));
                one.seen = now;
            }
        }
        let (puts, forgotten) = self.target.take_refusals();
        heard.forgotten = forgotten;
        for put in puts {
            let (index, queue) = (put.index, put.queue);
            let initiator = self.initiators.get(usize::from(put.ring)).copied().flatten();
            let error = match put.outcome {
                // Its initiator asks this process, which says it.
                PutOutcome::Refused(Refusal::NotRegistered) => continue,
                PutOutcome::Refused(refusal) => {
                    let task =
                        initiator.map(|initiator| RefusedTask { initiator, index, queue, refusal });
                    heard.refused.extend(task);
                    if refusal.may_pass() {
                        continue;
                    }
                    XtqError::Refused { target: me, refusal }
                }
                PutOutcome::Failed(why) => XtqError::Failed { target: me, reason: why.to_string() },
                PutOutcome::Ended | PutOutcome::Malformed => continue,
            };
            let concerned = self.signals.iter().filter(|one| one.index == index);
            heard.failed.extend(concerned.map(|one| (one.signal.clone(), error.clone())));
        }
        heard
    }

    /// Starts the worker, if it is wanted. What has not left yet is no failure.
    fn go_on(&mut self) -> Result<(), TargetError> {
        match self.target.advance() {
            Ok(_) | Err(TargetError::Busy(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether somebody may wait for a signal that the worker counts, or want the worker without a message.
    fn is_watched(&self) -> bool {
        self.target.has_granted() || self.signals.iter().any(|one| one.signal.poll().is_none())
    }
}

impl Inner {
    pub(super) fn served(&self) -> MutexGuard<'_, Option<Served>> {
        // What a panic leaves is in order: the worker's memory is words.
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the worker, which then goes on if it had to leave for that.
    pub(super) fn with_worker<T>(
        &self,
        act: impl FnOnce(&mut Served) -> Result<T, TargetError>,
    ) -> Result<T, XtqError> {
        let mut held = self.served();
        let served = held.as_mut().ok_or(XtqError::Worker { has: false })?;
        let done = act(served);
        // One that has died says so once, and what it had ends with it.
        let lost = match &done {
            Err(error @ TargetError::Died) => Some(error.clone()),
            _ => served.go_on().err(),
        };
        if let Some(error) = lost {
            self.lose_worker(held, &error);
            return Err(error.into());
        }
        Ok(done?)
    }

    /// There is no worker any more: initiators are told, and what waits for it ends.
    fn lose_worker(&self, mut held: MutexGuard<'_, Option<Served>>, error: &TargetError) {
        tracing::warn!(%error, "the worker of this process's accelerator is given up");
        let lost = held.take();
        self.has_worker.store(false, Ordering::Release);
        drop(held);
        self.with(|state| {
            for rank in state.target.rings.over() {
                state.initiator.say(rank, Head::Ring { what: Ring::Over, kernels: 0 }, Vec::new());
            }
        });
        for one in lost.iter().flat_map(|served| &served.signals) {
            one.signal.fail(error.clone().into());
        }
        // That may take seconds: what the accelerator does is to end first.
        let goes = std::thread::Builder::new().name("gapless-worker".to_owned());
        if let Err(error) = goes.spawn(move || lay_down(lost)) {
            tracing::debug!(%error, "no thread takes a lost worker down");
        }
        self.ring();
    }

    /// A registration's turn, if there is a worker.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let is_needed = self.has_worker.load(Ordering::Acquire);
        is_needed.then(|| self.registering.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the worker of a kernel, if that is one of its functions. Gives it back, with the worker's limits; and that the
    /// worker has not answered, if so: it will have the kernel.
    ///
    /// # Safety
    /// As [`Xtq::register_kernel`].
    pub(super) unsafe fn tell_worker(
        &self,
        index: u8,
        mut kernel: Kernel,
    ) -> Result<(Kernel, Option<TargetError>), XtqError> {
        let Some(told) = kernel.for_worker() else { return Ok((kernel, None)) };
        let payload = kernel.payload_max;
        let most = usize::try_from(payload).unwrap_or(usize::MAX);
        if !RingShape::default().holds(kernel.argument_bytes.into(), most) {
            return Err(TargetError::Body { payload }.into());
        }
        let signal = kernel.signal.clone();
        if signal.as_ref().is_some_and(|signal| !signal.rings(&self.wakeup)) {
            return Err(XtqError::ForeignSignal);
        }
        let counted = kernel.counted;
        let limits = &mut kernel.limits;
        let done = self.with_worker(|served| {
            limits.items_max = served.target.items_max();
            // SAFETY: the caller promises that nobody but tasks touches the buffer, or relies on what is there.
            unsafe { served.register(index, Some(told), (signal.as_ref(), counted)) }
        });
        let busy = match done {
            Ok(()) => None,
            Err(XtqError::Target(busy @ TargetError::Busy(_))) => Some(busy),
            Err(error) => return Err(error),
        };
        if busy.is_none() {
            self.leave_signals(index, signal.as_ref())?;
        }
        self.owing.store(true, Ordering::Release);
        Ok((kernel, busy))
    }

    /// The worker has answered: what tasks have counted until now is told, and no more of them count the signals that this
    /// kernel had, but this one.
    fn leave_signals(&self, index: u8, but: Option<&Signal>) -> Result<(), XtqError> {
        self.look_at_worker();
        self.with_worker(|served| {
            served.forget_signals(index, but);
            Ok(())
        })
    }

    /// Tells initiators whether the kernel of this index is the worker's now. If it was, the worker forgets it.
    pub(super) fn tell_initiators(&self, index: u8, of_worker: bool) -> Result<(), XtqError> {
        let was = self.with(|state| {
            let was = state.target.rings.kernels() & kernel_bit(index) != 0;
            for rank in state.target.rings.set_kernel(index, of_worker) {
                let kernels = state.target.rings.kernels();
                state.initiator.say(rank, Head::Ring { what: Ring::Kernels, kernels }, Vec::new());
            }
            was
        });
        if was != of_worker {
            self.ring();
        }
        if was && !of_worker && self.has_worker.load(Ordering::Acquire) {
            // SAFETY: there is no kernel, and no buffer.
            self.with_worker(|served| unsafe { served.register(index, None, (None, false)) })?;
            self.leave_signals(index, None)?;
        }
        Ok(())
    }

    /// Tells the worker of a queue; of width 0: there is none.
    pub(super) fn tell_worker_of_queue(&self, index: u8, width: u32) -> Result<(), XtqError> {
        match self.has_worker.load(Ordering::Acquire) {
            true => self.with_worker(|served| served.target.register_queue(index, width)),
            false => Ok(()),
        }
    }

    /// What the worker has counted and refused since it was last looked at.
    pub(super) fn look_at_worker(&self) {
        if self.has_worker.load(Ordering::Acquire) {
            let mut held = self.served();
            let heard = held.as_mut().map(|served| served.hear(self.me));
            drop(held);
            self.tell(heard.unwrap_or_default());
        }
    }

    fn tell(&self, heard: Heard) {
        if !heard.refused.is_empty() || heard.forgotten > 0 {
            self.with(|state| {
                state.target.forgotten_refusals += heard.forgotten;
                heard.refused.iter().for_each(|task| state.target.note(*task));
            });
        }
        for (signal, times) in heard.counted {
            // What ends it here is told once.
            (0..times.min(signal.value())).for_each(|_| signal.count_down());
        }
        heard.failed.into_iter().for_each(|(signal, error)| signal.fail(error));
    }
}

impl XtqState {
    /// Lets the puts of initiators go into their rings that have nothing left that came by messages.
    pub(super) fn let_go(&mut self) {
        for rank in self.target.let_go() {
            self.initiator.say(rank, Head::Ring { what: Ring::Go, kernels: 0 }, Vec::new());
        }
    }
}

impl Xtq {
    /// Gives this process a worker: from now on kernels [of the worker](Kernel::of_worker) can be registered. An initiator
    /// on this host gets a ring of it with its first put of one, and from then on puts them without this process's CPU, as
    /// long as the worker stays (`life`). What comes otherwise (from other hosts, in a sequence, while the worker is
    /// away) takes this process's progress. [Receive buffers](Xtq::post_to_worker) of such kernels are the worker's.
    ///
    /// # Errors
    /// There is one already; the accelerator refuses; this process has left.
    pub fn attach_worker(&self, worker: Arc<dyn Worker>, life: Life) -> Result<(), XtqError> {
        let (mut held, prepared) = (self.inner.served(), self.take_prepared());
        if held.is_some() {
            return Err(XtqError::Worker { has: true });
        }
        let mut served = Served::new(worker, life)?;
        served.stock(prepared);
        let (left, queues) = self.inner.with(|state| {
            let queues = (0u8..).zip(&state.target.queues).filter_map(|(index, queue)| {
                queue.as_ref().map(|(_, queue)| (index, queue.options.width))
            });
            (state.left, queues.collect::<Vec<_>>())
        });
        if left {
            return Err(XtqError::Closed);
        }
        for (index, width) in queues {
            served.target.register_queue(index, width)?;
        }
        if life.idle.is_none() {
            served.target.start()?;
        }
        *held = Some(served);
        self.inner.with(|state| state.target.rings.attach());
        self.inner.has_worker.store(true, Ordering::Release);
        Ok(())
    }

    /// Posts a receive buffer for payloads of the worker's kernels: memory that the worker reaches. A payload needs one that
    /// is as long; it is the task's while that runs.
    ///
    /// # Errors
    /// There is no worker; it has too many, or cannot reach the memory. After [`Busy`](TargetError::Busy) it is posted all
    /// the same.
    ///
    /// # Safety
    /// Until it is [taken back](Xtq::take_from_worker), or this process has left, nobody but tasks touches it.
    pub unsafe fn post_to_worker(&self, buffer: Lease) -> Result<(), XtqError> {
        let bytes = buffer.region().len();
        let _turn = self.inner.turn();
        // SAFETY: the caller's promise.
        let posted = self.inner.with_worker(|served| unsafe { served.target.post(buffer) });
        if matches!(posted, Ok(()) | Err(XtqError::Target(TargetError::Busy(_)))) {
            self.inner.with(|state| state.target.rings.post(bytes));
        }
        posted
    }

    /// Whether this process has a worker: one that was attached, and is not given up.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.inner.has_worker.load(Ordering::Acquire)
    }

    /// How often tasks of this kernel have ended on the worker, if it is registered as one that is
    /// [counted](Kernel::counted).
    #[must_use]
    pub fn count_of(&self, index: u8) -> Option<device::WorkerCount> {
        let held = self.inner.served();
        let served = held.as_ref()?;
        Some(served.target.count(*served.counts.get(&index)?))
    }

    /// Takes back all receive buffers of the worker.
    ///
    /// # Errors
    /// There is no worker; it does not answer, and may still use them.
    pub fn take_from_worker(&self) -> Result<Vec<Lease>, XtqError> {
        let _turn = self.inner.turn();
        self.inner.with(|state| state.target.rings.take_posted());
        self.inner.with_worker(|served| served.target.take_posted())
    }

    /// Whether the worker stays on its accelerator, so that it can be told to leave: the application has the accelerator to
    /// itself until `true`. Meanwhile puts wait.
    ///
    /// # Errors
    /// There is no worker; what it runs takes too long.
    pub fn keep_worker(&self, stays: bool) -> Result<(), XtqError> {
        self.inner.with_worker(|served| {
            if !stays {
                return served.target.pause();
            }
            served.target.resume();
            Ok(())
        })
    }

    /// Whether the worker is there now: then no instruction of this process runs between a put into a ring and its task.
    #[must_use]
    pub fn has_resident_worker(&self) -> bool {
        self.inner.served().as_ref().is_some_and(|served| served.target.is_running())
    }

    /// The worker's part of [`advance`](Xtq::advance): rings for those who have asked, a worker for those who want one.
    pub(super) fn serve(&self, bml: &mut Bml, now_ns: u64) -> usize {
        let inner = &self.inner;
        if !inner.has_worker.load(Ordering::Acquire) {
            return 0;
        }
        // A registration may have it for as long as the worker takes to answer.
        let mut held = match inner.worker.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => {
                inner.owing.store(true, Ordering::Release);
                return 0;
            }
        };
        let Some(served) = held.as_mut() else { return 0 };
        let wishes = inner.with(|state| state.target.rings.take_wishes());
        let looked = served.look(bml, (inner, now_ns), &wishes);
        if let Err(error) = looked {
            inner.lose_worker(held, &error);
            return 1;
        }
        if wishes.wanted && !served.target.is_served() {
            // It is about to leave.
            inner.with(|state| state.target.rings.want());
        }
        let heard = served.hear(inner.me);
        if served.is_watched() {
            inner.owing.store(true, Ordering::Release);
        }
        drop(held);
        inner.tell(heard);
        wishes.asked.len()
    }
}

impl Served {
    /// Makes rings for those who have asked, if there is memory that the worker reaches; else when it has left for that.
    /// Starts it, if it is wanted.
    fn look(
        &mut self,
        bml: &mut Bml,
        (inner, now_ns): (&Inner, u64),
        wishes: &Wishes,
    ) -> Result<(), TargetError> {
        let Wishes { asked, wanted } = wishes;
        let links = asked.iter().map(|rank| (*rank, self.links.link(bml, *rank, now_ns)));
        let asked: Vec<_> = links.filter(|(_, link)| *link != far::RingReach::Coming).collect();
        if *wanted {
            self.target.want();
        }
        let any = !asked.is_empty();
        self.changes = false;
        for &(rank, link) in &asked {
            if self.target.rings_left() == 0 {
                // No memory is made for a ring that there cannot be.
                inner.with(|state| state.target.rings.offer(rank, false));
                continue;
            }
            if self.target.stocked().is_none() {
                // It is not waited for: a task may need what this process does next.
                self.changes = !self.target.is_away()?;
                if self.changes {
                    return Ok(());
                }
                self.fill_stock(bml);
            }
            let (what, key) = match link {
                far::RingReach::Reaches => (Ring::Reach, self.offer_far(bml, inner, rank)),
                _ => (Ring::Offer, self.offer(bml, rank)),
            };
            inner.with(|state| {
                state.target.rings.offer(rank, key.is_some());
                let kernels = state.target.rings.kernels();
                if let Some(key) = key {
                    state.initiator.say(
                        rank,
                        Head::Ring { what, kernels },
                        key.as_bytes().to_vec(),
                    );
                }
            });
        }
        let due = now_ns >= self.looked_ns.saturating_add(LOOK_NS);
        if due || *wanted || any {
            self.looked_ns = now_ns;
            self.go_on()?;
        }
        Ok(())
    }
}
