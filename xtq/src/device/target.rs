//! The target's end: what its worker may run, where, and whether it lives.
//!
//! The control block is written by the target and read by the worker while it runs: table rows by their sequence locks,
//! everything behind a counter of changes, odd while something is written, which the worker answers. So when a
//! registration has returned, the worker has it; what it has replaced is kept until then, or until no worker runs.
//! The same count covers the list of rings. Memory that must be made reachable is named between two lives: accelerators
//! may wait for all their work then, and a worker would never end. For rings there is a stock of memory that the worker
//! reaches already.

mod code;
mod end;
mod grants;
mod rings;
mod said;

pub use said::WorkerCount;

use super::layout::{
    BUFFERS_MAX, CONTROL_BUFFER_LIST, CONTROL_BUFFERS, CONTROL_BYTES, CONTROL_CHANGED,
    CONTROL_IDLE, CONTROL_KERNELS, CONTROL_LIFE, CONTROL_ORDERS, CONTROL_QUEUES, CONTROL_SEEN,
    CONTROL_STATE, GONE, LAYOUTS_MAX, ORDER_ABORT, ORDER_LEAVE, RING_STATE, ROW_WORDS, RUNNING,
    STARTING,
};
use super::state;
use super::terms::{DeviceKernel, Life, TargetError};
use crate::packet::ENTRIES;
use crate::tables::NoSuchIndex;
use code::Code;
use gapless_mem::{DeviceError, Lease, Words, Worker};
pub use grants::RingParts;
use rings::Ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The target's end of a worker. Initiators have [`Lane`](super::Lane)s.
///
/// Nothing restarts a worker that has left but [`advance`](WorkerTarget::advance). Dropping it stops the worker, and
/// waits.
pub struct WorkerTarget {
    worker: Arc<dyn Worker>,
    words: Words,
    control: u64,
    rings: Vec<Ring>,
    outs: Vec<Lease>,
    /// What rings lie in whose parts lie apart, as far as the worker was given it.
    parts: Vec<Lease>,
    /// Memory that the worker reaches, and that is no ring's yet.
    stocked: Vec<Lease>,
    /// Some rings are accelerators'.
    has_granted: bool,
    /// What table rows name, layouts, and receive buffers.
    kept: Vec<Option<Lease>>,
    layouts: Vec<Option<Lease>>,
    code: Code,
    posted: Vec<Lease>,
    /// What rows and lists have named, and a worker may still use.
    spare: Vec<Lease>,
    /// A worker had to leave for a change, and is to come back.
    sent_away: bool,
    /// Somebody who cannot say so in a ring wants a worker.
    wished: bool,
    refusals_taken: u64,
    starts: u64,
    /// The last life is known to be over: `start_claimed` alone starts one.
    over: bool,
    /// The application has it to itself: no worker is started.
    paused: bool,
    patience: Duration,
}

/// How long the worker may take to answer, unless the user says otherwise.
const PATIENCE: Duration = Duration::from_secs(2);

impl WorkerTarget {
    /// A target without rings; nothing is started yet.
    ///
    /// # Errors
    /// No memory for the control block.
    pub fn new(worker: Arc<dyn Worker>, life: Life) -> Result<WorkerTarget, TargetError> {
        let (lease, control) = worker.control(CONTROL_BYTES as u64)?;
        // SAFETY: `control` gives zeroed memory for this alone; CPU and worker touch it as words.
        let words = unsafe { Words::new(lease) }?;
        let target = WorkerTarget {
            worker,
            words,
            control,
            rings: Vec::new(),
            outs: Vec::new(),
            parts: Vec::new(),
            stocked: Vec::new(),
            has_granted: false,
            kept: vec![None; ENTRIES],
            layouts: vec![None; LAYOUTS_MAX],
            code: Code::default(),
            posted: Vec::new(),
            spare: Vec::new(),
            sent_away: false,
            wished: false,
            refusals_taken: 0,
            starts: 0,
            over: false,
            paused: false,
            patience: PATIENCE,
        };
        target.set_life(life);
        Ok(target)
    }

    pub(in crate::device) fn word(&self, byte: usize) -> &AtomicU64 {
        // Control blocks are as long as `new` asked for.
        &self.words.all()[byte / 8]
    }

    /// How long workers that are started from now on stay.
    pub fn set_life(&self, life: Life) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.word(CONTROL_IDLE).store(life.idle.map_or(u64::MAX, nanoseconds), Ordering::Relaxed);
        self.word(CONTROL_LIFE).store(nanoseconds(life.longest), Ordering::Relaxed);
    }

    /// How long calls wait for the worker at most; 2 s at first.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Lets others put tasks of this kernel, in the place of what was there; `None`: refuses them. A put that arrives
    /// meanwhile gets the old one or the new one, as a whole. The buffer of what it replaces is given back. Memory of the
    /// host that has to be registered for that, or is not registered any more, sends the worker away for a moment.
    ///
    /// # Errors
    /// There is no such index or signal; arguments of a length that no packet has; the worker does not answer: then it
    /// will find the new one, and both buffers are kept until no worker runs.
    ///
    /// # Safety
    /// As long as the kernel is registered, or a task of it runs, tasks read and write its buffer, whatever initiators
    /// put: no reference covers it, and nothing else relies on what is there.
    pub unsafe fn register_kernel(
        &mut self,
        index: u8,
        kernel: Option<DeviceKernel>,
    ) -> Result<(), TargetError> {
        let at = usize::from(index);
        if at >= ENTRIES {
            return Err(NoSuchIndex { index }.into());
        }
        let (words, function) = match &kernel {
            None => ([0; ROW_WORDS - 1], None),
            Some(kernel) => self.row(at, kernel)?,
        };
        // From here on a worker may find either.
        let old = std::mem::replace(&mut self.kept[at], kernel.and_then(|kernel| kernel.buffer));
        self.spare.extend(old);
        self.code.set(at, function);
        self.change(|target| target.write_row(CONTROL_KERNELS, at, words))?;
        self.settle();
        Ok(())
    }

    /// Where the worker finds it. The worker leaves if the accelerator may wait for all its work now.
    fn reach(&mut self, memory: &Lease) -> Result<u64, TargetError> {
        if let Some(address) = self.worker.reach_now(memory)? {
            return Ok(address);
        }
        self.send_away()?;
        Ok(self.worker.reach(memory)?)
    }

    /// Undoes one [`reach`](WorkerTarget::reach) of this target's, while no worker runs.
    fn forget(&self, memory: &Lease) {
        // SAFETY: this target reached it, and each lease that was is in one list, out of which it goes for this.
        // Nothing names it: it was replaced, or refused, or this target ends.
        if let Err(error) = unsafe { self.worker.forget(memory) } {
            tracing::debug!(%error, "a worker's memory was not given back");
        }
    }

    /// The same while a worker may run that does not use it; later, if that would wait for it.
    fn give_back(&mut self, memory: Lease) {
        // SAFETY: as in `forget`; a worker that runs has answered what replaced it, or was never told of it, or finds
        // it by another call still.
        match unsafe { self.worker.forget_now(&memory) } {
            Ok(true) => {}
            Ok(false) => self.spare.push(memory),
            Err(error) => tracing::debug!(%error, "a worker's memory was not given back"),
        }
    }

    /// No worker uses what is spare: all changes were answered, or none runs.
    fn settle(&mut self) {
        for memory in std::mem::take(&mut self.spare) {
            self.give_back(memory);
        }
        if !self.spare.is_empty() {
            // That forgets them. Who is busy gives them back later.
            let _ = self.send_away();
        }
    }

    fn forget_spare(&mut self) {
        for memory in std::mem::take(&mut self.spare) {
            self.forget(&memory);
        }
    }

    /// The worker leaves for a change; [`advance`](WorkerTarget::advance) starts the next one.
    fn send_away(&mut self) -> Result<(), TargetError> {
        self.sent_away |= self.state() != GONE;
        self.order(ORDER_LEAVE).map_err(|error| match error {
            TargetError::Busy(time) => TargetError::Stays(time),
            error => error,
        })?;
        self.forget_spare();
        Ok(())
    }

    /// Makes a queue for tasks of others. At most `width` of its tasks run at a time; at width 1 they run in the order
    /// in which they came. Width 0 takes it away.
    ///
    /// # Errors
    /// There is no such index; the worker does not answer.
    pub fn register_queue(&mut self, index: u8, width: u32) -> Result<(), TargetError> {
        if usize::from(index) >= ENTRIES {
            return Err(NoSuchIndex { index }.into());
        }
        let base = if width == 0 { 0 } else { u64::from(index) + 1 };
        let words = [base, u64::from(u32::MAX), width.into(), 0, 0, 0, 0];
        self.change(|target| target.write_row(CONTROL_QUEUES, usize::from(index), words))
    }

    /// A row's sequence lock, as in `tables.rs`; this is the only writer.
    fn write_row(&self, table: usize, index: usize, words: [u64; ROW_WORDS - 1]) {
        let at = table + 8 * ROW_WORDS * index;
        let sequence = self.word(at).load(Ordering::Relaxed);
        self.word(at).store(sequence.wrapping_add(1), Ordering::Relaxed);
        for (place, word) in (at + 8..).step_by(8).zip(words) {
            self.word(place).store(word, Ordering::Release);
        }
        self.word(at).store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Writes something that the worker may read meanwhile; it is told, and waited for if there is one. The count of
    /// changes is a sequence lock over all of them.
    fn change(&self, write: impl FnOnce(&WorkerTarget)) -> Result<(), TargetError> {
        let changes = self.publish(write);
        self.wait(|target| {
            target.word(CONTROL_SEEN).load(Ordering::Acquire) == changes || target.state() == GONE
        })
    }

    /// The same, and nobody waits. The number of changes then.
    fn publish(&self, write: impl FnOnce(&WorkerTarget)) -> u64 {
        let before = self.word(CONTROL_CHANGED).load(Ordering::Relaxed);
        self.word(CONTROL_CHANGED).store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        write(self);
        let changes = before.wrapping_add(2);
        self.word(CONTROL_CHANGED).store(changes, Ordering::Release);
        // As of packets: a worker that we do not see begin will see this.
        fence(Ordering::SeqCst);
        changes
    }

    fn wait(&self, ready: impl Fn(&WorkerTarget) -> bool) -> Result<(), TargetError> {
        let start = Instant::now();
        while !ready(self) {
            self.look()?;
            if start.elapsed() > self.patience {
                return Err(TargetError::Busy(self.patience));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A worker that failed says nothing more: this says it, to initiators and once to the caller.
    fn look(&self) -> Result<(), TargetError> {
        if self.state() == GONE {
            return Ok(());
        }
        let over = self.worker.is_over();
        // It says that it leaves before it is over.
        if over == Ok(false) || self.state() == GONE {
            return Ok(());
        }
        self.say(GONE);
        self.word(CONTROL_STATE).store(GONE, Ordering::Release);
        Err(over.map_or_else(TargetError::from, |_| TargetError::Died))
    }

    /// Posts a receive buffer: memory of the accelerator's for payloads of up to its length. A payload takes the
    /// shortest that is long enough, and its task has it alone; then it is posted again.
    ///
    /// # Errors
    /// There are too many; the worker cannot reach it, or does not answer.
    ///
    /// # Safety
    /// Until it is [taken back](WorkerTarget::take_posted), nobody but tasks touches it.
    pub unsafe fn post(&mut self, buffer: Lease) -> Result<(), TargetError> {
        let at = self.posted.len();
        if at >= BUFFERS_MAX {
            return Err(TargetError::TooMany { what: "receive buffers", max: BUFFERS_MAX });
        }
        let address = self.reach(&buffer)?;
        if !address.is_multiple_of(16) {
            self.give_back(buffer);
            let what = "a receive buffer at such an address";
            return Err(DeviceError::Unsupported { what }.into());
        }
        let len = buffer.region().len();
        self.posted.push(buffer);
        self.change(|target| {
            target.word(CONTROL_BUFFER_LIST + 16 * at).store(address, Ordering::Relaxed);
            target.word(CONTROL_BUFFER_LIST + 16 * at + 8).store(len, Ordering::Relaxed);
            target.word(CONTROL_BUFFERS).store(at as u64 + 1, Ordering::Relaxed);
        })
    }

    /// Takes all receive buffers back: puts with payloads are refused from now on. If one was registered for this, the
    /// worker leaves for a moment.
    ///
    /// # Errors
    /// The worker does not answer; then it may still use them, and they are kept.
    pub fn take_posted(&mut self) -> Result<Vec<Lease>, TargetError> {
        self.change(|target| target.word(CONTROL_BUFFERS).store(0, Ordering::Relaxed))?;
        let posted = std::mem::take(&mut self.posted);
        self.spare.extend(posted.iter().cloned());
        self.settle();
        Ok(posted)
    }

    #[cfg(test)]
    pub(crate) fn is_gone(&self) -> bool {
        self.state() == GONE
    }

    fn state(&self) -> u64 {
        self.word(CONTROL_STATE).load(Ordering::Acquire)
    }

    /// Whether the worker runs now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state() == RUNNING
    }

    /// Starts the worker, if there is none.
    ///
    /// # Errors
    /// The accelerator refuses; the last worker has failed.
    pub fn start(&mut self) -> Result<(), TargetError> {
        self.look()?;
        if self.paused || self.rings.is_empty() || !state::claim(self.word(CONTROL_STATE)) {
            return Ok(());
        }
        let started = self.start_claimed();
        if started.is_err() {
            self.say(GONE);
            self.word(CONTROL_STATE).store(GONE, Ordering::Release);
        }
        started
    }

    fn start_claimed(&mut self) -> Result<(), TargetError> {
        // GONE is the last that it says: its end is near.
        let begun = Instant::now();
        while !self.over && !self.worker.is_over()? {
            if begun.elapsed() > self.patience {
                return Err(TargetError::Busy(self.patience));
            }
            std::thread::yield_now();
        }
        self.forget_spare();
        (self.sent_away, self.wished) = (false, false);
        self.word(CONTROL_ORDERS).store(0, Ordering::Relaxed);
        self.take_first();
        self.say(STARTING);
        fence(Ordering::SeqCst);
        self.starts += 1;
        self.over = false;
        // SAFETY: `self` keeps the control block and all that it names until the worker is over (`drop` waits for that,
        // or leaks); the last one is over.
        unsafe { self.worker.start(self.control) }?;
        Ok(())
    }

    /// Tells initiators.
    fn say(&self, state: u64) {
        for head in self.rings.iter().filter_map(|ring| ring.head.as_ref()) {
            head.all()[RING_STATE / 8].store(state, Ordering::Release);
        }
    }

    /// Starts the worker if it has left and an initiator wants one, or if it had to leave for a change: once, however
    /// many want it. Call it now and then; the target's CPU does nothing else. Whether it has started one.
    ///
    /// # Errors
    /// As [`start`](WorkerTarget::start); the worker has ended, and has not said so: once, then the next call starts
    /// another.
    pub fn advance(&mut self) -> Result<bool, TargetError> {
        self.look()?;
        let away = self.state() == GONE;
        // A worker that runs finds what the wish was for.
        self.wished &= !self.is_running();
        // Asked while there is time: an accelerator takes some to answer, and a full one may take long to end what is
        // gone.
        self.over = away && (self.over || self.starts == 0 || self.worker.is_over()?);
        if !self.over || !(self.sent_away || self.wished || self.rings.iter().any(Ring::is_wanted))
        {
            return Ok(false);
        }
        let before = self.starts;
        self.start()?;
        Ok(self.starts != before)
    }

    /// The worker leaves now, after what it runs. Puts that it has not taken wait for the next one.
    ///
    /// # Errors
    /// What it runs takes too long: [`abort`](WorkerTarget::abort) ends that.
    pub fn leave(&mut self) -> Result<(), TargetError> {
        self.sent_away = false;
        self.order(ORDER_LEAVE)
    }

    /// The worker leaves now, and what it runs is stopped.
    ///
    /// # Errors
    /// It does not: the accelerator is broken.
    pub fn abort(&mut self) -> Result<(), TargetError> {
        self.sent_away = false;
        self.order(ORDER_ABORT)
    }

    /// As [`leave`](WorkerTarget::leave), and none is started, whoever wants one, until
    /// [`resume`](WorkerTarget::resume): the application has the accelerator to itself.
    ///
    /// # Errors
    /// As [`leave`](WorkerTarget::leave); it is paused all the same.
    pub fn pause(&mut self) -> Result<(), TargetError> {
        self.paused = true;
        self.leave()
    }

    /// Ends a [`pause`](WorkerTarget::pause).
    pub fn resume(&mut self) {
        self.paused = false;
    }

    fn order(&self, order: u64) -> Result<(), TargetError> {
        if self.state() == GONE && self.worker.is_over()? {
            return Ok(());
        }
        self.word(CONTROL_ORDERS).fetch_or(order, Ordering::AcqRel);
        self.wait(|target| target.state() == GONE)?;
        let start = Instant::now();
        while !self.worker.is_over()? {
            if start.elapsed() > self.patience {
                return Err(TargetError::Busy(self.patience));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
