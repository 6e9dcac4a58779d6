//! The back end *host*: works over any transport. The progress engine plays the NIC, threads play the command
//! processor.
//!
//! | file | has |
//! |---|---|
//! | `initiator.rs`, `sequence.rs` | puts on their way, retries, order: what to send |
//! | `flush.rs`, `link.rs` | sending it; messages in order and once each |
//! | `target.rs` | receive buffers, the rewrite, refusals |
//! | `queue.rs`, `run.rs` | queues of tasks, threads, running one |
//! | `nic.rs` | what arrives, and losses |
//! | `register.rs` | the API's registrations |
//! | `grant.rs` | rings that accelerators of other processes put into |
//! | `heap.rs` | memory for rings |
//! | `serve.rs`, `serve/{own,far,offers,stock}.rs`, `rings.rs` | the worker of this process's accelerator, and the rings that initiators have of it |
//!
//! One lock guards the state of both sides. No code of users runs, or is dropped, while it is held, but sources of
//! payloads ([`Gather`](crate::Gather), which says what they must not do). Signals are counted and the world's wake-up
//! is rung after it is released. Queues, signals and buffers have locks of their own, which are taken last.

mod config;
mod flush;
#[allow(unsafe_code, reason = "passes on what memory of rings needs")]
mod grant;
#[allow(unsafe_code, reason = "frees what it has allocated")]
mod heap;
mod initiator;
mod names;
mod nic;
mod ordered_link;
mod own;
mod queue;
#[allow(unsafe_code, reason = "registers kernels, for whom the caller vouches")]
mod register;
mod rings;
mod run;
mod sequence;
#[allow(
    unsafe_code,
    reason = "makes rings, and tells a worker of memory for which the caller vouches"
)]
mod serve;
mod target;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use grant::{FarRing, Granted};
pub use initiator::{ANSWER_MAX, DirectPut, PutAnswer};
pub use initiator::{DOUBLINGS, PAUSE_NS};
pub use queue::QueueOptions;
#[doc(hidden)]
pub use run::failing;
pub use target::REFUSALS_MAX;
pub use target::RefusedTask;

use crate::error::{TaskError, XtqError};
use crate::put::{Put, PutHandle};
use crate::signal::{Signal, Wakeup, Weak};
use crate::tables::Tables;
use crate::wire::{Head, TEXT_MAX};
use gapless_bml::{AmTag, Bml, BmlError, Fragment, LinkError, Rank, Registered};
use gapless_mem::Lease;
use initiator::{Initiator, SharedRings};
use ordered_link::OrderedLink;
use queue::Pool;
use run::{Ready, contain, lay_down};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use target::TargetState;

/// The number of the next end of this process; 0 is nobody's.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Messages of a peer, with what they say at their beginning.
type PeerLink = OrderedLink<(Head, Fragment)>;

/// What the lock guards.
#[derive(Default)]
struct XtqState {
    /// Of all messages of this end.
    tag: u8,
    initiator: Initiator,
    target: TargetState,
    /// By rank.
    links: HashMap<u32, PeerLink>,
    /// Signals that end when a rank is lost, by name: those of [`Xtq::signal_from`] and of kernels.
    watched: BTreeMap<u64, Weak>,
    lost: BTreeMap<u32, Blamed>,
    /// Nothing that arrives is looked at.
    left: bool,
}

impl XtqState {
    /// From now on the signal ends when a rank is lost that was to count it down, or when this process has left; now,
    /// if that has happened.
    fn watch(&mut self, signal: &Signal) {
        self.watched.retain(|_, watched| watched.upgrade().is_some());
        self.watched.insert(signal.name(), signal.downgrade());
        let lost = self.lost.iter().filter(|(rank, _)| signal.counts(Rank(**rank)));
        let lost = lost.map(|(_, blamed)| lost_error(blamed));
        let over = lost.chain(self.left.then_some(XtqError::Closed)).next();
        if let Some(error) = over {
            self.forsake(signal.clone(), error);
        }
    }

    fn forsake(&mut self, signal: Signal, error: XtqError) {
        signal.forsake(&error);
        self.initiator.effects.push((signal, Err(error)));
    }

    /// Ends the watched signals that are concerned.
    fn forsake_all(&mut self, error: &XtqError, concerned: impl Fn(&Signal) -> bool) {
        let watched: Vec<Signal> = self.watched.values().filter_map(Weak::upgrade).collect();
        for signal in watched.into_iter().filter(concerned) {
            self.forsake(signal, error.clone());
        }
    }
}

/// Who is to blame for the loss of a rank: itself, or the one whose loss made it leave. And what became of that one.
type Blamed = (Rank, LinkError);

fn lost_error((rank, error): &Blamed) -> XtqError {
    XtqError::Lost { rank: *rank, error: error.clone() }
}

pub(crate) struct Inner {
    me: Rank,
    size: u32,
    config: Config,
    /// The wake-up that this end's signals call.
    wakeup: Wakeup,
    tables: Tables,
    state: Mutex<XtqState>,
    /// The initiator's rings. Their lock is taken after that of the state.
    rings: Arc<SharedRings>,
    /// What runs tasks on this process's accelerator. Its lock is taken before that of the state.
    worker: Mutex<Option<serve::Served>>,
    /// Whether there is one.
    has_worker: AtomicBool,
    /// Memory for rings of the next one.
    prepared: Mutex<Vec<Lease>>,
    /// One registration at a time, if there is a worker: it and the tables are to say the same. Taken first.
    registering: Mutex<()>,
    pool: Pool,
    /// There may be something to send, or a held put to release.
    owing: AtomicBool,
    /// A signal of this end's has ended that puts wait for.
    rang: AtomicBool,
    /// When the time of the next put is over.
    due_ns: AtomicU64,
    /// This end's number in this process.
    number: u32,
    /// Tasks in queues, and running.
    live: AtomicUsize,
    /// Memory of this process's that ranks on other hosts reach.
    reached: Mutex<Vec<Registered>>,
}

/// A task has come; dropping it, when it is over, says so.
struct Live<'i>(&'i Inner);

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Release);
        self.0.ring();
    }
}

/// Whether a put was taken, or given back because there is no room ([`Xtq::try_put`](crate::Xtq::try_put)).
#[derive(Debug)]
#[must_use = "a put that has no room is given back"]
pub enum Tried {
    /// It is under way; what becomes of it.
    Put(PutHandle),
    /// There is no room: here it is again.
    Full {
        /// The put.
        put: Put,
        /// Puts to its target that have not ended.
        puts: usize,
        /// Bytes of their bodies.
        bytes: u64,
    },
}

/// This process's end: it puts tasks at other processes, and lets them put tasks here. Clones are the same end.
///
/// Nothing is sent or received unless [`advance`](Xtq::advance) is called, and the [`Bml`] polled.
#[derive(Clone)]
pub struct Xtq {
    inner: Arc<Inner>,
}

// All that changes lies behind mutexes, which a panic poisons or leaves whole, and the wake-up is only called.
impl std::panic::UnwindSafe for Xtq {}
impl std::panic::RefUnwindSafe for Xtq {}

impl Inner {
    /// Looks at the state, or changes it; what others are to learn of that, they learn after.
    fn with<T>(&self, act: impl FnOnce(&mut XtqState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let value = act(&mut state);
        let mut effects = std::mem::take(&mut state.initiator.effects);
        effects.append(&mut state.target.effects);
        let busy = state.initiator.is_busy() || state.target.rings.is_busy();
        self.due_ns.store(state.initiator.due_ns(), Ordering::Relaxed);
        drop(state);
        if busy {
            self.owing.store(true, Ordering::Release);
        }
        for (signal, result) in effects {
            signal.end(result);
        }
        value
    }

    /// Wakes the user's threads, as [`Config::wakeup`] says.
    fn ring(&self) {
        contain("the wake-up panicked", || (self.config.wakeup)());
    }

    fn begin_task(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    /// A task has run: its receive buffer is posted again, its signal counted down, its initiator told.
    fn ended(&self, mut task: Ready, result: Result<(), TaskError>) {
        let over = Live(self);
        let payload = std::mem::take(&mut task.payload);
        let (private, counts) = (task.private, task.counts);
        let acknowledged = task.command.flags.contains(crate::packet::Flags::ACKNOWLEDGE);
        let signal = task.registered_signal().cloned();
        self.with(|state| {
            if counts {
                state.target.rings.end(task.from);
            }
            state.target.take_back(payload, private);
            if acknowledged && !state.left {
                state.initiator.send(task.from, TargetState::end(&mut task, &result));
            }
        });
        if let Some(error) = result.as_ref().err().filter(|_| !acknowledged && signal.is_none()) {
            let (initiator, index) = (task.from, task.command.index);
            let said = || tracing::warn!(%initiator, index, %error, "a task failed, and nobody waits for it");
            contain("the log panicked", said);
        }
        lay_down(task);
        if let Some(signal) = signal {
            let failed = |TaskError(reason)| XtqError::Failed { target: self.me, reason };
            signal.end(result.map_err(failed));
        }
        drop(over);
    }
}

/// As much of a text as a message carries.
#[doc(hidden)]
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Xtq {
    /// Makes the end of the process of `bml`, which from now on hands it the messages with tag 32. When `bml` is
    /// dropped this end is [abandoned](Xtq::abandon), and what users have registered is dropped: so a function may have
    /// its own `Xtq`.
    ///
    /// # Errors
    /// The tag is taken.
    pub fn attach(bml: &mut Bml, config: Config) -> Result<Xtq, BmlError> {
        Xtq::attach_at(bml, flush::TAG, config)
    }

    /// The same, of messages with another tag: an end beside the first, which knows nothing of it. A layer above has
    /// its own so, and indices, queues and receive buffers that are not its users'.
    ///
    /// # Errors
    /// The tag is taken.
    pub fn attach_at(bml: &mut Bml, tag: AmTag, config: Config) -> Result<Xtq, BmlError> {
        let ringing = |inner: &std::sync::Weak<Inner>| -> Wakeup {
            let inner = inner.clone();
            Arc::new(move |is_awaited| {
                if let Some(inner) = inner.upgrade() {
                    // A put waits for the signal.
                    if is_awaited {
                        inner.rang.store(true, Ordering::Release);
                    }
                    inner.owing.store(true, Ordering::Release);
                    inner.ring();
                }
            })
        };
        let mut state = XtqState { tag: tag.0, ..XtqState::default() };
        state.initiator.limit_room(config.puts_max, config.put_bytes_max);
        let inner = Arc::new_cyclic(|inner| Inner {
            me: bml.me(),
            size: bml.size(),
            config,
            wakeup: ringing(inner),
            tables: Tables::new(),
            rings: Arc::clone(&state.initiator.rings),
            state: Mutex::new(state),
            worker: Mutex::default(),
            has_worker: AtomicBool::new(false),
            prepared: Mutex::default(),
            registering: Mutex::default(),
            pool: Pool::default(),
            owing: AtomicBool::new(false),
            rang: AtomicBool::new(false),
            due_ns: AtomicU64::new(u64::MAX),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            live: AtomicUsize::new(0),
            reached: Mutex::default(),
        });
        let xtq = Xtq { inner };
        bml.register(tag.0..=tag.0, Box::new(nic::Nic::new(xtq.clone())))?;
        Ok(xtq)
    }

    /// This process.
    #[must_use]
    pub fn me(&self) -> Rank {
        self.inner.me
    }

    /// How many processes the job has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// A signal that ends when it was counted down so often; 0 has ended.
    #[must_use]
    pub fn signal(&self, count: u64) -> Signal {
        Signal::new(count, Vec::new(), Arc::clone(&self.inner.wakeup))
    }

    /// As [`signal`](Xtq::signal), counted down by tasks of these ranks (of all, if none are named): if one of them is
    /// lost, or was lost before, the signal ends with an error that names it. For a signal that is registered with a
    /// kernel, or that a function counts down.
    #[must_use]
    pub fn signal_from(&self, count: u64, ranks: &[Rank]) -> Signal {
        let signal = Signal::new(count, ranks.to_vec(), Arc::clone(&self.inner.wakeup));
        self.inner.with(|state| state.watch(&signal));
        signal
    }

    /// Puts a task: it is sent with the next [`advance`](Xtq::advance), which whoever calls this sees to. May be called
    /// from any thread; tasks use [`Task::put`](crate::Task::put).
    ///
    /// # Errors
    /// Nothing was put: no such rank; a command that no packet can express; a signal of another `Xtq`; no
    /// [room](Config::puts_max) for more puts to that target; this process is leaving.
    pub fn put(&self, put: Put) -> Result<PutHandle, XtqError> {
        let put = match self.put_direct(put) {
            Ok(put) => return Ok(put.handle),
            Err(put) => put,
        };
        let target = put.order.target;
        match self.try_put(put)? {
            Tried::Put(handle) => Ok(handle),
            Tried::Full { puts, bytes, .. } => Err(XtqError::Full { target, puts, bytes }),
        }
    }

    /// As [`put`](Xtq::put), for a put that does not go [directly](Xtq::put_direct) into a ring. If there is no room
    /// for it, gives it back.
    ///
    /// # Errors
    /// As [`put`](Xtq::put), otherwise.
    pub fn try_put(&self, put: Put) -> Result<Tried, XtqError> {
        let rank = put.order.target;
        if rank.0 >= self.inner.size {
            return Err(XtqError::NoSuchRank { rank, size: self.inner.size });
        }
        if !self.are_ours(&put) {
            return Err(XtqError::ForeignSignal);
        }
        let packet = put.order.packet()?;
        let (target, bytes) = (rank.0, put.order.body_bytes());
        let tried = self.inner.with(|state| {
            if state.initiator.closed {
                return Err(XtqError::Closed);
            }
            if let Err((puts, bytes)) = state.initiator.has_room(target, bytes) {
                return Ok(Tried::Full { put, puts, bytes });
            }
            let handle = state.initiator.put(put, packet);
            handle.belong_to(self.inner.number);
            Ok(Tried::Put(handle))
        })?;
        self.inner.owing.store(true, Ordering::Release);
        Ok(tried)
    }

    /// Puts a task into the ring of a worker that is there, if nothing is in the way. Then nothing has to be sent:
    /// [`take_outcomes`](Xtq::take_outcomes) sees its end, and the next [`advance`](Xtq::advance) may come later.
    /// It takes one lock, which is held for some tens of nanoseconds.
    ///
    /// It makes this end not [quiet](Xtq::is_quiet), and then executes a sequentially consistent fence. So whoever says
    /// that it falls asleep, fences, and finds this end quiet, is seen by the caller.
    ///
    /// # Errors
    /// The put, as it was: [`try_put`](Xtq::try_put) sends it, or says what is wrong with it.
    #[inline]
    pub fn put_direct(&self, put: Put) -> Result<DirectPut, Put> {
        if !put.order.is_plain() || !self.are_ours(&put) || put.order.check().is_err() {
            return Err(put);
        }
        let put = self.inner.rings.put(put, &self.inner.owing)?;
        put.handle.belong_to(self.inner.number);
        Ok(put)
    }

    /// Whether the signals of a put are this end's.
    #[inline]
    fn are_ours(&self, put: &Put) -> bool {
        let signals = put.order.signal().into_iter().chain(&put.order.after);
        signals.into_iter().all(|signal| signal.rings(&self.inner.wakeup))
    }

    /// Whether there is [room](Config::puts_max) for this put now.
    #[must_use]
    pub fn has_room(&self, put: &Put) -> bool {
        let (target, bytes) = (put.order.target.0, put.order.body_bytes());
        self.inner.with(|state| state.initiator.has_room(target, bytes).is_ok())
    }

    /// Takes the outcomes of puts that lie in rings, and ends their signals: the quick part of
    /// [`advance`](Xtq::advance), which has to be called now and then all the same. Gives how many; `None`: nothing
    /// lies in a ring.
    pub fn take_outcomes(&self) -> Option<usize> {
        let drain = self.inner.rings.drain_completions();
        let (done, is_any, is_left) = (drain.done, drain.is_any, drain.is_left);
        drain.tell();
        if !is_left {
            return is_any.then_some(done);
        }
        let more = self.inner.with(|state| state.initiator.take_outcomes());
        Some(done + more.unwrap_or(0))
    }

    /// As [`put`](Xtq::put), from a task: whoever sleeps is to send it.
    pub(crate) fn put_on(&self, put: Put) -> Result<PutHandle, XtqError> {
        let handle = self.put(put)?;
        self.inner.ring();
        Ok(handle)
    }

    /// Whether puts of the worker's kernels of this target, in no sequence, go into its ring: they begin in the order
    /// in which they were put, and of those none is refused for now but for want of a receive buffer.
    #[must_use]
    pub fn has_ring(&self, target: Rank) -> bool {
        self.inner.with(|state| state.initiator.has_ring(target))
    }

    /// Posts a receive buffer, for payloads up to its capacity: one that was [taken](crate::Task::take_payload) with a
    /// short payload in it has not shrunk. The next payload that it is the shortest for goes into it; when that task
    /// has ended, the buffer is posted again.
    pub fn post(&self, mut buffer: Vec<u8>) {
        buffer.resize(buffer.capacity(), 0);
        self.inner.with(|state| state.target.posted.post(buffer));
    }

    /// Takes back the receive buffers that no task has now.
    #[must_use]
    pub fn take_posted(&self) -> Vec<Vec<u8>> {
        self.inner.with(|state| state.target.posted.take_all())
    }

    /// Takes back a receive buffer that no task has now: the shortest for payloads of so many bytes.
    #[must_use]
    pub fn take_posted_for(&self, bytes: usize) -> Option<Vec<u8>> {
        let claimed = self.inner.with(|state| state.target.posted.claim(bytes));
        claimed.ok().map(|received| received.memory).filter(|memory| !memory.is_empty())
    }

    /// Whether tasks that are refused here are noted for [`take_refusals`](Xtq::take_refusals), the last 256 of them.
    pub fn watch_refusals(&self, yes: bool) {
        self.inner.with(|state| state.target.watch_refusals(yes));
    }

    /// How many refusals were forgotten before they were [taken](Xtq::take_refusals), since the watch began.
    #[must_use]
    pub fn forgotten_refusals(&self) -> u64 {
        self.inner.with(|state| state.target.forgotten_refusals)
    }

    /// The tasks that were refused here since the last call.
    #[must_use]
    pub fn take_refusals(&self) -> Vec<RefusedTask> {
        self.inner.look_at_worker();
        self.inner.with(|state| state.target.take_refusals())
    }

    /// Sends what is to be sent, as far as there is room, and lets time pass for puts that were refused. `now_ns` comes
    /// from a clock that does not go back. Gives how many messages have left. Not to be called from a handler of `bml`.
    pub fn advance(&self, bml: &mut Bml, now_ns: u64) -> usize {
        let inner = &self.inner;
        let due = now_ns >= inner.due_ns.load(Ordering::Relaxed);
        if !inner.owing.swap(false, Ordering::AcqRel) && !due {
            return 0;
        }
        let served = self.serve(bml, now_ns);
        served
            + inner.with(|state| {
                state.initiator.advance(now_ns, inner.rang.swap(false, Ordering::AcqRel));
                state.initiator.map_rings(bml);
                let put = state.initiator.pump_rings(now_ns);
                state.initiator.expire(now_ns);
                let space = bml.token_space(AmTag(state.tag));
                let carried = state.initiator.carry_rings((bml, space), now_ns);
                state.let_go();
                put + carried + state.flush(bml)
            })
    }

    /// Whether a put has to end in [time](Put::within): then [`advance`](Xtq::advance) is to be called now and then,
    /// though it is [quiet](Xtq::is_quiet). One load.
    #[inline]
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.inner.due_ns.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether [`advance`](Xtq::advance) would do nothing before a put's [time](Put::within) is over: one load.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        !self.inner.owing.load(Ordering::Relaxed)
    }

    /// Whether all is over that was put from here, and all that was put here has run. After
    /// [`abandon`](Xtq::abandon): whether no task runs any more, so that what kernels were registered with may be
    /// freed.
    #[must_use]
    pub fn has_settled(&self) -> bool {
        // In this order: a task that ends has something to say.
        self.inner.live.load(Ordering::Acquire) == 0
            && self
                .inner
                .with(|state| state.initiator.puts.is_empty() && !state.initiator.is_busy())
    }

    /// The process leaves: nothing new can be put from here, puts that were refused or are held back end, and what is
    /// on its way is [waited for](Xtq::has_settled). Others may still put here.
    pub fn close(&self) {
        self.inner.with(|state| state.initiator.close());
    }

    /// Whether this process has left: [`abandon`](Xtq::abandon) was called. A task that waits for something may look.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.inner.with(|state| state.left)
    }

    /// The process has left, or is given up: nothing that arrives is looked at, tasks that have not begun are dropped,
    /// all puts and signals of tasks end. A task that runs goes on, and no peer hears of its end;
    /// [`has_settled`](Xtq::has_settled) does.
    /// Gives what users have left here: dropping it may run their code. Its worker was told to leave: what others of
    /// the process give back of an accelerator meanwhile may wait for that.
    #[must_use = "it may be a user's, and should be dropped without a lock"]
    pub fn abandon(&self) -> Box<dyn Any + Send> {
        let (target, dropped) = self.inner.with(|state| {
            state.initiator.close();
            state.initiator.abandon();
            state.left = true;
            state.forsake_all(&XtqError::Closed, |_| true);
            let target = std::mem::take(&mut state.target);
            let dropped: Vec<Ready> =
                target.all_queues().iter().flat_map(|queue| queue.clear()).collect();
            (target, dropped)
        });
        self.inner.live.fetch_sub(dropped.len(), Ordering::Release);
        // When it is dropped, that is waited for.
        let mut worker = self.inner.served().take();
        worker.iter_mut().for_each(serve::Served::send_off);
        Box::new((target, dropped, worker))
    }
}

impl fmt::Debug for Xtq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { me, size, tables, .. } = &*self.inner;
        write!(f, "Xtq of {me} in {size}, {tables:?}")
    }
}
