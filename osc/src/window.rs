//! A window, as one rank has it: who its members are, which of them it maps, and synchronisation (MPI 4.1 §12.5).
//!
//! Threads share a window: all calls take `&self`. Whoever ends an epoch while another thread is in an operation of it has
//! broken MPI's rules (MPI 4.1 §11.6): then it is unknown which of the two the operation belongs to, and nothing worse.

use crate::core::{Osc, WindowHandle};
use crate::device::DeviceExposure;
use crate::doubt::{self, Doubt, Mine};
use crate::epoch::{Epochs, LockedTarget};
use crate::error::{Fault, WindowError};
use crate::exposure::{Exposure, WindowPart};
use crate::header::{Header, Lock, Patience};
use crate::landing::Landing;
use crate::notices::Notices;
use crate::reads::PendingReads;
use crate::tasks::Carried;
use crate::unconfirmed::Unconfirmed;
use crate::wire::{Head, WindowMessage};
use gapless_bml::{Bml, RdmaRail, RemoteKey};
use gapless_engine::{Engine, EngineError};
use gapless_mem::DeviceError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// How often a lock is tried before the caller makes progress in between.
const TRIES: usize = 64;
/// How often a lock is tried before the holders are looked at.
const TRIES_PER_LOOK: u32 = 16;
/// One in so many short calls that need no message makes progress, so that a program that calls nothing else serves its peers
/// and hears of deaths.
const CALLS_PER_PROGRESS: u32 = 256;

/// What `lock_all` takes of each rank.
const SHARED: LockedTarget = LockedTarget { kind: Lock::Shared, checked: true };

/// What the errors of those who call operations can hold.
pub trait CallError: From<WindowError> + From<EngineError> + From<DeviceError> {}

impl<E: From<WindowError> + From<EngineError> + From<DeviceError>> CallError for E {}

/// Who makes progress: whoever owns the transports.
pub trait Driver {
    /// Why it cannot.
    type Error: CallError;

    /// Makes progress until `step` gives something. `polled`: what `step` looks at changes without a message, so nobody
    /// wakes a sleeper for it. `whom`: the process that is waited for, if it is one; for whoever asks why it takes long.
    ///
    /// # Errors
    /// No progress is possible any more.
    fn until<T>(
        &self,
        polled: bool,
        whom: impl Fn() -> Option<u32>,
        step: impl FnMut(&mut Bml) -> Option<T>,
    ) -> Result<T, Self::Error>;

    /// Makes progress once.
    fn progress(&self);
}

/// The process that is waited for, where it is none in particular.
pub(crate) fn nobody() -> Option<u32> {
    None
}

/// What kind of window it is (MPI 4.1 §12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Of memory that was allocated for it, or given to it.
    Plain,
    /// Of memory that all ranks map, and access in epochs or out of them.
    Shared,
    /// Of memory that is attached.
    Dynamic,
    /// Of memory in which only numbers of 64 bits are accumulated: then adapters may do that.
    Numbers,
}

impl Flavor {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flavor::Plain => "an ordinary window",
            Flavor::Shared => "a shared window",
            Flavor::Dynamic => "a dynamic window",
            Flavor::Numbers => "a window of numbers",
        }
    }
}

/// What the other ranks have to know of one.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its process.
    pub process: u32,
    /// The window's number there: [`WindowHandle::id`].
    pub window: u32,
    /// Bytes of the window there.
    pub bytes: u64,
    /// Bytes of a unit of displacements there.
    pub unit: u64,
    /// The address of its memory, modulo 64.
    pub misalignment: u64,
    /// Its memory and lock, if this process maps them.
    pub mapped: Option<Exposure>,
    /// Its memory of a device and its lock, if this process maps them.
    pub device: Option<DeviceExposure>,
    /// In a window of numbers, this process's rail by which adapters change those of its memory, and the key to that; of
    /// all ranks, or of none. The memory stays registered as long as a process may use the key.
    pub numbers: Option<(RdmaRail, RemoteKey)>,
    /// The kernel there that does accumulations, if a worker does: [`KernelHandle::index`](crate::KernelHandle::index).
    pub kernel: u8,
}

/// One rank's end of a window: operations on the memory of all its ranks, and their synchronisation.
#[derive(Debug)]
pub struct Window {
    pub(crate) handle: WindowHandle,
    pub(crate) rank: u32,
    pub(crate) flavor: Flavor,
    pub(crate) members: Box<[Member]>,
    pub(crate) own: WindowPart,
    pub(crate) epochs: Epochs,
    /// By rank: messages that have left.
    pub(crate) sent: Box<[Unconfirmed]>,
    /// Reads that end at a flush.
    pub(crate) reads: Arc<PendingReads>,
    /// If accumulations are tasks.
    pub(crate) tasks: Option<Box<Carried>>,
    pub(crate) notices: Notices,
    /// By target: whether its lock is this rank's.
    pub(crate) mine: Mine,
    calls: AtomicU32,
}

impl Window {
    /// The window that `handle` is a place of, in which this process is `rank`.
    #[must_use]
    pub fn new(
        handle: WindowHandle,
        rank: u32,
        flavor: Flavor,
        own: impl Into<WindowPart>,
        (members, engine): (Vec<Member>, Arc<dyn Engine>),
    ) -> Window {
        let mine = doubt::nobodys(members.len());
        if let Some(hosted) = handle.osc.core().windows.get_mut(&handle.id) {
            hosted.mine = Arc::clone(&mine);
            hosted.numbers = members.iter().map(|member| member.window).collect();
            if flavor == Flavor::Dynamic {
                hosted.make_dynamic();
            }
        }
        Window {
            rank,
            flavor,
            own: own.into(),
            epochs: Epochs::new(members.len()),
            reads: PendingReads::new(members.len(), engine),
            sent: members.iter().map(|_| Unconfirmed::default()).collect(),
            members: members.into(),
            handle,
            tasks: None,
            notices: Notices::default(),
            mine,
            calls: AtomicU32::new(0),
        }
    }

    /// What packs and unpacks what origins have.
    pub(crate) fn engine(&self) -> &dyn Engine {
        self.reads.engine()
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.epochs.size()
    }

    /// What kind of window it is.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// What is known of a rank.
    ///
    /// # Errors
    /// [`WindowError::NoSuchRank`].
    pub fn member(&self, rank: u32) -> Result<&Member, WindowError> {
        self.epochs.check_rank(rank)?;
        Ok(&self.members[rank as usize])
    }

    pub(crate) fn osc(&self) -> &Osc {
        &self.handle.osc
    }

    /// This rank's own memory, and its lock.
    #[must_use]
    pub fn own(&self) -> &WindowPart {
        &self.own
    }

    pub(crate) fn head(&self, kind: WindowMessage, rank: u32) -> Head {
        Head::new(kind, self.members[rank as usize].window, self.rank)
    }

    /// The error of a target's answer.
    pub(crate) fn refused(&self, rank: u32, why: Fault) -> WindowError {
        self.osc().refused(rank, why)
    }

    /// Serves peers now and then, from calls that need no message. `weight`: how many short calls it took as long as.
    #[inline]
    pub(crate) fn progress_now_and_then<D: Driver>(&self, driver: &D, weight: u32) {
        // Threads may count over each other: then it is some other number of calls.
        let before = self.calls.load(Ordering::Relaxed);
        let now = before.wrapping_add(weight);
        self.calls.store(now, Ordering::Relaxed);
        if before / CALLS_PER_PROGRESS != now / CALLS_PER_PROGRESS {
            driver.progress();
        }
    }

    /// The same, and what was written before is seen by all before anything is read that comes after.
    #[inline]
    pub(crate) fn in_order<D: Driver>(&self, driver: &D) {
        if cfg!(target_arch = "x86_64") {
            // An instruction that is a fence, and quicker than the one of that name.
            let now = self.calls.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
            if now.is_multiple_of(CALLS_PER_PROGRESS) {
                driver.progress();
            }
        } else {
            fence(Ordering::SeqCst);
            self.progress_now_and_then(driver, 1);
        }
    }

    /// A call that copies so many bytes takes as long as so many short calls. At least as one: a program may call nothing
    /// else, until another rank changes what it reads.
    #[inline]
    pub(crate) fn weight(bytes: usize) -> u32 {
        u32::try_from(bytes >> 12).unwrap_or(CALLS_PER_PROGRESS).max(1)
    }

    #[inline]
    pub(crate) fn check_alive(&self, rank: u32) -> Result<(), WindowError> {
        let process = self.members[rank as usize].process;
        if self.osc().departed().is_lost(process) { Err(self.osc().loss(process)) } else { Ok(()) }
    }

    /// Asks something that is answered without bytes; gives the question's number.
    pub(crate) fn question<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        head: Head,
    ) -> Result<u64, D::Error> {
        let process = self.members[rank as usize].process;
        let whom = || Some(process);
        let asked = driver.until(false, whom, |bml| {
            let mut core = self.osc().core();
            let token = core.questions.ask(process, 0, Landing::kept(0));
            core.questions.expect(token, 1, false);
            drop(core);
            // In its turn: at once, or when there is room.
            Some(match self.osc().post(bml, process, Head { token, ..head }) {
                Ok(()) => Ok(token),
                Err(error) => {
                    self.osc().core().questions.forget(token);
                    Err(error)
                }
            })
        })?;
        Ok(asked?)
    }

    /// Waits for the answer.
    pub(crate) fn answer<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        token: u64,
    ) -> Result<(), D::Error> {
        let process = self.members[rank as usize].process;
        let answered =
            driver.until(false, || Some(process), |_| self.osc().core().answered(token))?;
        match answered?.fault {
            None => Ok(()),
            Some(fault) => Err(self.refused(rank, fault).into()),
        }
    }

    pub(crate) fn all_ranks(&self) -> std::ops::Range<u32> {
        0..self.size()
    }

    /// Whether a target is reached by messages.
    #[inline]
    pub(crate) fn is_remote(&self, rank: u32) -> bool {
        self.header(rank).is_none()
    }

    /// The lock of a rank, if this process has it mapped.
    #[inline]
    pub(crate) fn header(&self, rank: u32) -> Option<&Header> {
        let member = &self.members[rank as usize];
        let device = || member.device.as_ref().map(|near| &near.header);
        member.mapped.as_ref().map(|near| &near.header).or_else(device)
    }

    /// Waits for the lock of a rank that is mapped.
    #[cold]
    fn wait_for_lock<D: Driver>(
        &self,
        driver: &D,
        (header, rank): (&Header, u32),
        kind: Lock,
    ) -> Result<(), D::Error> {
        let process = |rank: u32| self.members.get(rank as usize).map(|member| member.process);
        let is_lost =
            |rank: u32| process(rank).is_some_and(|process| self.osc().departed().is_lost(process));
        for _ in 0..TRIES {
            if header.try_lock(self.rank, kind, false, is_lost) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut tries = 0u32;
        let mut patience = Patience::default();
        let mut doubt = Doubt::new(rank);
        let members = |rank: u32| {
            let member = self.members.get(rank as usize)?;
            Some((member.process, member.window))
        };
        let lost = || {
            let processes = self.members.iter().map(|member| member.process);
            { processes }.find(|process| self.osc().departed().is_lost(*process))
        };
        let whom = || process(header.named(self.rank)?.rank);
        let locked = driver.until(true, whom, |bml| {
            if header.try_lock(self.rank, kind, true, is_lost) {
                return Some(Ok(()));
            }
            tries = tries.wrapping_add(1);
            if !tries.is_multiple_of(TRIES_PER_LOOK) {
                return None;
            }
            header.look(self.rank, &mut patience);
            if let Some(holder) = header.lost_holder(is_lost) {
                return Some(Err(self.osc().loss(process(holder)?)));
            }
            let held = (header, self.rank, self.rank);
            let lost = {
                let mut core = self.osc().core();
                let lost = core.look_at(bml, &mut doubt, held, members, lost);
                self.osc().note(&core);
                lost
            };
            lost.map(|process| Err(self.osc().loss(process)))
        });
        doubt.forget(&mut self.osc().core().questions);
        let locked = match locked {
            Ok(locked) => locked.map_err(D::Error::from),
            Err(error) => Err(error),
        };
        if locked.is_err() {
            header.cancel(self.rank);
        }
        locked
    }

    /// Takes the lock of a rank that is mapped.
    #[inline]
    fn lock_direct<D: Driver>(
        &self,
        driver: &D,
        (header, rank): (&Header, u32),
        kind: Lock,
    ) -> Result<(), D::Error> {
        if header.try_lock(self.rank, kind, false, |_| false) {
            return Ok(());
        }
        self.wait_for_lock(driver, (header, rank), kind)
    }

    #[inline]
    fn lock_one<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> Result<(), D::Error> {
        // Before: who sees the lock taken, and asks, is told so.
        self.say_mine(rank, true);
        let locked = match self.header(rank) {
            Some(header) => {
                let locked = self.lock_direct(driver, (header, rank), kind);
                self.progress_now_and_then(driver, u32::from(locked.is_ok()));
                locked
            }
            None => {
                let flag = u8::from(kind == Lock::Exclusive);
                let head = Head { flag, ..self.head(WindowMessage::Lock, rank) };
                let token = self.question(driver, rank, head);
                token.and_then(|token| self.answer(driver, rank, token))
            }
        };
        if locked.is_err() {
            self.say_mine(rank, false);
        }
        locked
    }

    /// Whether the lock of a rank is this one's, or may become so or end to be so.
    #[inline]
    pub(crate) fn say_mine(&self, rank: u32, yes: bool) {
        // Whoever asks has seen the lock taken behind this store, or free before it.
        if let Some(mine) = self.mine.get(rank as usize) {
            mine.store(yes, Ordering::Release);
        }
    }

    /// Locks the window of a rank (`MPI_Win_lock`, MPI 4.1 §12.5.3). Waits until it is locked.
    ///
    /// # Errors
    /// Epochs that do not go with it; a holder of the lock, or the target, is lost.
    pub fn lock<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> Result<(), D::Error> {
        self.epochs.open().begin_lock(rank)?;
        let locked = self.lock_one(driver, rank, kind);
        let mut epochs = self.epochs.open();
        match locked {
            Ok(()) => epochs.locked(rank, kind, true),
            Err(_) => epochs.unlocked(rank),
        }
        locked
    }

    /// The same, without taking the lock (`MPI_MODE_NOCHECK`): the program sees to it that nobody has one that excludes this
    /// one, nor takes one before [`unlock`](Window::unlock).
    ///
    /// # Errors
    /// Epochs that do not go with it.
    pub fn lock_unchecked(&self, rank: u32, kind: Lock) -> Result<(), WindowError> {
        let mut epochs = self.epochs.open();
        epochs.may_lock(rank)?;
        // What the program knows it by may be ordered less.
        fence(Ordering::SeqCst);
        epochs.locked(rank, kind, false);
        Ok(())
    }

    fn unlock_one<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        held: LockedTarget,
    ) -> Result<(), D::Error> {
        let ended = self.end_tasks(driver, rank).and(self.end_transfers(driver, rank));
        let kind = held.kind;
        let unlocked = if !held.checked {
            // Nothing is to be given back.
            self.in_order(driver);
            self.confirm(driver, rank).and(self.check_alive(rank).map_err(D::Error::from))
        } else if let Some(header) = self.header(rank) {
            header.unlock(self.rank, kind);
            self.progress_now_and_then(driver, 1);
            self.say_mine(rank, false);
            self.check_alive(rank).map_err(D::Error::from)
        } else {
            let asked = self.ask_unlock(driver, rank, kind);
            let unlocked = asked.and_then(|token| self.answer(driver, rank, token));
            self.say_mine(rank, false);
            unlocked
        };
        // The target has answered what it was asked before.
        ended.and(unlocked).and(self.end_reads(driver, rank))
    }

    fn ask_unlock<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> Result<u64, D::Error> {
        self.sent[rank as usize].all_confirmed();
        let flag = u8::from(kind == Lock::Exclusive);
        self.question(driver, rank, Head { flag, ..self.head(WindowMessage::Unlock, rank) })
    }

    /// Ends the epoch that [`lock`](Window::lock) began (`MPI_Win_unlock`): all operations have ended here and at the
    /// target.
    ///
    /// # Errors
    /// There is no such epoch; the target is lost, or has refused an operation: the epoch has ended nevertheless.
    pub fn unlock<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let held = self.epochs.open().begin_unlock(rank)?;
        let unlocked = self.unlock_one(driver, rank, held);
        self.epochs.open().unlocked(rank);
        unlocked
    }

    /// Locks the windows of all ranks, shared (`MPI_Win_lock_all`).
    ///
    /// # Errors
    /// As [`lock`](Window::lock): then none is locked.
    pub fn lock_all<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.epochs.open().begin_lock_all()?;
        for rank in self.all_ranks() {
            // In the order of ranks, and each lock is there before the next is asked for: else two ranks could have what the
            // other one waits for.
            if let Err(error) = self.lock_one(driver, rank, Lock::Shared) {
                for rank in 0..rank {
                    // What has failed first is told.
                    let _ = self.unlock_one(driver, rank, SHARED);
                }
                self.epochs.open().stay();
                return Err(error);
            }
        }
        self.progress_now_and_then(driver, 1);
        self.epochs.open().all_locked(true);
        Ok(())
    }

    /// The same, without taking the locks; as [`lock_unchecked`](Window::lock_unchecked).
    ///
    /// # Errors
    /// As there.
    pub fn lock_all_unchecked(&self) -> Result<(), WindowError> {
        let mut epochs = self.epochs.open();
        epochs.begin_lock_all()?;
        fence(Ordering::SeqCst);
        epochs.all_locked(false);
        Ok(())
    }

    /// Ends the epoch that [`lock_all`](Window::lock_all) began (`MPI_Win_unlock_all`).
    ///
    /// # Errors
    /// As [`unlock`](Window::unlock); the first failure of several.
    pub fn unlock_all<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let checked = self.epochs.open().begin_unlock_all()?;
        let mut result = Ok(());
        let mut asked = Vec::new();
        for rank in self.all_ranks() {
            result = result.and(self.end_tasks(driver, rank)).and(self.end_transfers(driver, rank));
            let one = match self.is_remote(rank) && checked {
                true => self.ask_unlock(driver, rank, Lock::Shared).map(|token| {
                    asked.push((rank, token));
                }),
                false => self.unlock_one(driver, rank, LockedTarget { checked, ..SHARED }),
            };
            result = result.and(one);
        }
        for (rank, token) in asked {
            result = result.and(self.answer(driver, rank, token));
            self.say_mine(rank, false);
            result = result.and(self.end_reads(driver, rank));
        }
        self.epochs.open().closed();
        result
    }
}

impl Drop for Window {
    /// Reads are given up, and what devices do is waited for. Locks that the rank still has are given back: nobody else
    /// could.
    fn drop(&mut self) {
        self.reads.give_up();
        self.drop_transfers();
        for (rank, kind) in self.epochs.held() {
            match self.header(rank) {
                Some(header) => header.unlock(self.rank, kind),
                None => {
                    let flag = u8::from(kind == Lock::Exclusive);
                    let head = Head { flag, ..self.head(WindowMessage::Unlock, rank) };
                    let mut core = self.osc().core();
                    core.queue(self.members[rank as usize].process, head, &[]);
                    self.osc().note(&core);
                }
            }
        }
    }
}
