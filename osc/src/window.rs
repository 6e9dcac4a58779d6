//! A window, as one rank has it: who its members are, which of them it maps, and synchronisation (MPI 4.1 §12.5).
//!
//! Calls that begin or end epochs take `&mut self`, operations `&self`. So no thread can be in an operation while another
//! ends its epoch, and operations need no lock of their own.

use crate::core::{Osc, Seat};
use crate::epoch::Epochs;
use crate::wire::{Head, Kind};
use crate::{Exposure, Fault, Lock, WindowError};
use gapless_bml::Bml;
use gapless_mem::Atomics;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// How often a lock is tried before the caller makes progress in between.
const TRIES: usize = 64;
/// How often a lock is tried before the holders are looked at.
const TRIES_PER_LOOK: u32 = 16;
/// One in so many calls that need no message makes progress, so that a program that calls nothing else serves its peers
/// and hears of deaths.
const CALLS_PER_PROGRESS: u32 = 32;

/// Who makes progress: whoever owns the transports.
pub trait Driver {
    /// Why it cannot.
    type Error: From<WindowError>;

    /// Makes progress until `step` gives something. `polled`: what `step` looks at changes without a message, so nobody
    /// wakes a sleeper for it.
    ///
    /// # Errors
    /// No progress is possible any more.
    fn until<T>(
        &self,
        polled: bool,
        step: impl FnMut(&mut Bml) -> Option<T>,
    ) -> Result<T, Self::Error>;

    /// Makes progress once.
    fn progress(&self);
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
}

impl Flavor {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flavor::Plain => "an ordinary window",
            Flavor::Shared => "a shared window",
            Flavor::Dynamic => "a dynamic window",
        }
    }
}

/// What the other ranks have to know of one.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its process.
    pub process: u32,
    /// The window's number there: [`Seat::id`].
    pub window: u32,
    /// Bytes of the window there.
    pub bytes: u64,
    /// Bytes of a unit of displacements there.
    pub unit: u64,
    /// The address of its memory, modulo 64.
    pub misalignment: u64,
    /// Its memory and lock, if this process maps them.
    pub direct: Option<Exposure>,
}

/// Messages to a target that only a later answer confirms. Threads count and flush at the same time: an answer confirms
/// what had left when it was asked for.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    left: AtomicU64,
    confirmed: AtomicU64,
}

impl Sent {
    /// One has left.
    pub(crate) fn one_more(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// How many have left, if some of them are not confirmed.
    fn unconfirmed(&self) -> Option<u64> {
        let left = self.left.load(Ordering::Acquire);
        (self.confirmed.load(Ordering::Acquire) < left).then_some(left)
    }

    /// As many have arrived.
    fn confirm(&self, left: u64) {
        self.confirmed.fetch_max(left, Ordering::AcqRel);
    }

    /// The end of an epoch confirms all: no operation is under way.
    pub(crate) fn all_confirmed(&self) {
        self.confirm(self.left.load(Ordering::Acquire));
    }
}

/// A window.
#[derive(Debug)]
pub struct Window {
    pub(crate) seat: Seat,
    pub(crate) rank: u32,
    pub(crate) flavor: Flavor,
    pub(crate) members: Box<[Member]>,
    pub(crate) own: Exposure,
    pub(crate) epochs: Epochs,
    /// By rank: messages that have left.
    pub(crate) sent: Box<[Sent]>,
    calls: AtomicU32,
}

impl Window {
    /// The window that `seat` is a place of, in which this process is `rank`.
    #[must_use]
    pub fn new(
        seat: Seat,
        rank: u32,
        flavor: Flavor,
        own: Exposure,
        members: Vec<Member>,
    ) -> Window {
        if flavor == Flavor::Dynamic
            && let Some(hosted) = seat.osc.core().windows.get_mut(&seat.id)
        {
            hosted.make_dynamic();
        }
        Window {
            rank,
            flavor,
            own,
            epochs: Epochs::new(members.len()),
            sent: members.iter().map(|_| Sent::default()).collect(),
            members: members.into(),
            seat,
            calls: AtomicU32::new(0),
        }
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
        &self.seat.osc
    }

    /// This rank's own memory.
    #[must_use]
    pub fn memory(&self) -> &Atomics {
        &self.own.memory
    }

    pub(crate) fn head(&self, kind: Kind, rank: u32) -> Head {
        Head::new(kind, self.members[rank as usize].window, self.rank)
    }

    /// The error of a target's answer.
    pub(crate) fn refused(&self, rank: u32, why: Fault) -> WindowError {
        match why {
            Fault::NoWindow => WindowError::Freed { rank },
            Fault::Holder(process) => self.osc().loss(process),
            why => WindowError::Refused { rank, why },
        }
    }

    /// Serves peers now and then, from calls that need no message.
    #[inline]
    pub(crate) fn now_and_then<D: Driver>(&self, driver: &D) {
        // Threads may count over each other: then it is some other number of calls.
        let calls = self.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        if calls.is_multiple_of(CALLS_PER_PROGRESS) {
            driver.progress();
        }
    }

    fn check_alive(&self, rank: u32) -> Result<(), WindowError> {
        let process = self.members[rank as usize].process;
        if self.osc().is_lost(process) { Err(self.osc().loss(process)) } else { Ok(()) }
    }

    /// Asks something that is answered without bytes; gives the question's number.
    fn question<D: Driver>(&self, driver: &D, rank: u32, head: Head) -> Result<u64, D::Error> {
        let process = self.members[rank as usize].process;
        let asked = driver.until(false, |bml| {
            let mut core = self.osc().core();
            let token = core.ask(process, 0, 0);
            core.expect(token, 1, false);
            drop(core);
            // In its turn: at once, or when there is room.
            Some(match self.osc().post(bml, process, Head { token, ..head }) {
                Ok(()) => Ok(token),
                Err(error) => {
                    self.osc().core().drop_question(token);
                    Err(error)
                }
            })
        })?;
        Ok(asked?)
    }

    /// Waits for the answer.
    fn answer<D: Driver>(&self, driver: &D, rank: u32, token: u64) -> Result<(), D::Error> {
        let answered = driver.until(false, |_| self.osc().core().answered(token))?;
        match answered?.fault {
            None => Ok(()),
            Some(fault) => Err(self.refused(rank, fault).into()),
        }
    }

    fn all_ranks(&self) -> std::ops::Range<u32> {
        0..self.size()
    }

    /// Whether a target is reached by messages.
    fn is_remote(&self, rank: u32) -> bool {
        self.members[rank as usize].direct.is_none()
    }

    /// Takes the lock of a rank that is mapped.
    fn lock_direct<D: Driver>(
        &self,
        driver: &D,
        exposure: &Exposure,
        kind: Lock,
    ) -> Result<(), D::Error> {
        let header = &exposure.header;
        for _ in 0..TRIES {
            if header.try_lock(self.rank, kind) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut tries = 0u32;
        let locked = driver.until(true, |_| {
            if header.try_lock(self.rank, kind) {
                return Some(Ok(()));
            }
            tries = tries.wrapping_add(1);
            if !tries.is_multiple_of(TRIES_PER_LOOK) {
                return None;
            }
            let process = |rank: u32| self.members[rank as usize].process;
            let holder = header.lost_holder(|rank| self.osc().is_lost(process(rank)))?;
            Some(Err(self.osc().loss(process(holder))))
        });
        let locked = match locked {
            Ok(locked) => locked.map_err(D::Error::from),
            Err(error) => Err(error),
        };
        if locked.is_err() {
            header.cancel(self.rank);
        }
        locked
    }

    /// Locks the window of a rank (`MPI_Win_lock`, MPI 4.1 §12.5.3). Waits until it is locked.
    ///
    /// # Errors
    /// Epochs that do not go with it; a holder of the lock, or the target, is lost.
    pub fn lock<D: Driver>(&mut self, driver: &D, rank: u32, kind: Lock) -> Result<(), D::Error> {
        self.epochs.may_lock(rank)?;
        match &self.members[rank as usize].direct {
            Some(exposure) => {
                self.lock_direct(driver, exposure, kind)?;
                self.now_and_then(driver);
            }
            None => {
                let flag = u8::from(kind == Lock::Exclusive);
                let head = Head { flag, ..self.head(Kind::Lock, rank) };
                let token = self.question(driver, rank, head)?;
                self.answer(driver, rank, token)?;
            }
        }
        self.epochs.locked(rank, kind);
        Ok(())
    }

    fn unlock_one<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> Result<(), D::Error> {
        match &self.members[rank as usize].direct {
            Some(exposure) => {
                exposure.header.unlock(self.rank, kind);
                self.now_and_then(driver);
                Ok(self.check_alive(rank)?)
            }
            None => {
                let token = self.ask_unlock(driver, rank, kind)?;
                self.answer(driver, rank, token)
            }
        }
    }

    fn ask_unlock<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> Result<u64, D::Error> {
        self.sent[rank as usize].all_confirmed();
        let flag = u8::from(kind == Lock::Exclusive);
        self.question(driver, rank, Head { flag, ..self.head(Kind::Unlock, rank) })
    }

    /// Ends the epoch that [`lock`](Window::lock) began (`MPI_Win_unlock`): all operations have ended here and at the
    /// target.
    ///
    /// # Errors
    /// There is no such epoch; the target is lost, or has refused an operation: the epoch has ended nevertheless.
    pub fn unlock<D: Driver>(&mut self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let kind = self.epochs.lock_of(rank, "unlock")?;
        let unlocked = self.unlock_one(driver, rank, kind);
        self.epochs.unlocked(rank);
        unlocked
    }

    /// Locks the windows of all ranks, shared (`MPI_Win_lock_all`).
    ///
    /// # Errors
    /// As [`lock`](Window::lock): then none is locked.
    pub fn lock_all<D: Driver>(&mut self, driver: &D) -> Result<(), D::Error> {
        self.epochs.may_lock_all()?;
        let mut asked = Vec::new();
        let mut failed = None;
        for rank in self.all_ranks().filter(|rank| self.is_remote(*rank)) {
            match self.question(driver, rank, self.head(Kind::Lock, rank)) {
                Ok(token) => asked.push((rank, token)),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        let mut locked = Vec::new();
        for (rank, member) in self.all_ranks().zip(&self.members) {
            let Some(exposure) = &member.direct else { continue };
            if failed.is_some() {
                break;
            }
            match self.lock_direct(driver, exposure, Lock::Shared) {
                Ok(()) => locked.push(rank),
                Err(error) => failed = Some(error),
            }
        }
        for (rank, token) in asked {
            match self.answer(driver, rank, token) {
                Ok(()) => locked.push(rank),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failed {
            for rank in locked {
                // What has failed first is told.
                let _ = self.unlock_one(driver, rank, Lock::Shared);
            }
            return Err(error);
        }
        self.now_and_then(driver);
        self.epochs.all_locked();
        Ok(())
    }

    /// Ends the epoch that [`lock_all`](Window::lock_all) began (`MPI_Win_unlock_all`).
    ///
    /// # Errors
    /// As [`unlock`](Window::unlock); the first failure of several.
    pub fn unlock_all<D: Driver>(&mut self, driver: &D) -> Result<(), D::Error> {
        self.epochs.is_all_locked()?;
        let mut result = Ok(());
        let mut asked = Vec::new();
        for rank in self.all_ranks() {
            let one = match self.is_remote(rank) {
                true => self.ask_unlock(driver, rank, Lock::Shared).map(|token| {
                    asked.push((rank, token));
                }),
                false => self.unlock_one(driver, rank, Lock::Shared),
            };
            result = result.and(one);
        }
        for (rank, token) in asked {
            result = result.and(self.answer(driver, rank, token));
        }
        self.epochs.all_unlocked();
        result
    }

    /// Asks a target whether all is done, if anything was sent to it: the question, and how much it is about.
    fn ask_flush<D: Driver>(&self, driver: &D, rank: u32) -> Result<Option<(u64, u64)>, D::Error> {
        let Some(left) = self.sent[rank as usize].unconfirmed() else { return Ok(None) };
        let token = self.question(driver, rank, self.head(Kind::Flush, rank))?;
        Ok(Some((token, left)))
    }

    /// Waits for the answer. A fault is told once: what was sent is over.
    fn flushed<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        (token, left): (u64, u64),
    ) -> Result<(), D::Error> {
        let answer = self.answer(driver, rank, token);
        self.sent[rank as usize].confirm(left);
        answer
    }

    /// Ends all operations on a target, here and there (`MPI_Win_flush`, MPI 4.1 §12.5.4).
    ///
    /// # Errors
    /// No epoch of a lock is open for the target; it is lost, or has refused an operation.
    #[inline]
    pub fn flush<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        self.epochs.may_flush(rank, "flush")?;
        if self.is_remote(rank) {
            if let Some(asked) = self.ask_flush(driver, rank)? {
                self.flushed(driver, rank, asked)?;
            }
        } else {
            fence(Ordering::SeqCst);
            self.now_and_then(driver);
        }
        Ok(self.check_alive(rank)?)
    }

    /// The same for all targets (`MPI_Win_flush_all`).
    ///
    /// # Errors
    /// As [`flush`](Window::flush); the first failure of several.
    pub fn flush_all<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.epochs.may_flush_all("flush_all")?;
        self.flush_everything(driver)
    }

    /// Operations have ended here when they return: nothing is left to do but to check (`MPI_Win_flush_local`).
    ///
    /// # Errors
    /// No epoch of a lock is open for the target.
    pub fn flush_local(&self, rank: u32) -> Result<(), WindowError> {
        self.epochs.may_flush(rank, "flush_local")
    }

    /// The same for all targets (`MPI_Win_flush_local_all`).
    ///
    /// # Errors
    /// No epoch of locks is open.
    pub fn flush_local_all(&self) -> Result<(), WindowError> {
        self.epochs.may_flush_all("flush_local_all")
    }

    /// Orders this rank's accesses to its own memory and others' (`MPI_Win_sync`), and serves peers.
    pub fn sync<D: Driver>(&self, driver: &D) {
        fence(Ordering::SeqCst);
        match self.members.iter().any(|member| member.direct.is_none()) {
            true => driver.progress(),
            false => self.now_and_then(driver),
        }
    }

    fn flush_everything<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        fence(Ordering::SeqCst);
        let mut result = Ok(());
        let mut asked = Vec::new();
        for rank in self.all_ranks() {
            match self.ask_flush(driver, rank) {
                Ok(one) => asked.extend(one.map(|one| (rank, one))),
                Err(error) => result = result.and(Err(error)),
            }
        }
        for (rank, one) in asked {
            result = result.and(self.flushed(driver, rank, one));
        }
        self.now_and_then(driver);
        result
    }

    /// The first half of a fence (`MPI_Win_fence`, MPI 4.1 §12.5.1): all operations of this rank have ended. Then the ranks
    /// meet in a collective of the caller's, and each calls [`fenced`](Window::fenced).
    ///
    /// # Errors
    /// Epochs that do not go with it; a target is lost, or has refused an operation. Meet nevertheless.
    pub fn before_fence<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        self.epochs.may_fence("fence")?;
        self.flush_everything(driver)
    }

    /// Whether a fence is possible.
    ///
    /// # Errors
    /// Epochs that do not go with it.
    pub fn may_fence(&self) -> Result<(), WindowError> {
        self.epochs.may_fence("fence")
    }

    /// The second half of a fence: all ranks have met, and this is the last fence of its kind for all, or for none.
    /// `None`: they have not met.
    pub fn fenced(&mut self, last: Option<bool>) {
        match last {
            Some(last) => self.epochs.fenced(last),
            None => self.epochs.break_off(),
        }
    }

    /// Whether the window may be freed now, by all ranks together.
    ///
    /// # Errors
    /// An epoch is open.
    pub fn may_free(&self) -> Result<(), WindowError> {
        self.epochs.may_free()
    }
}

impl Drop for Window {
    /// Locks that the rank still has are given back: nobody else could.
    fn drop(&mut self) {
        let held: Vec<(u32, Lock)> = self.epochs.held().collect();
        for (rank, kind) in held {
            match &self.members[rank as usize].direct {
                Some(exposure) => exposure.header.unlock(self.rank, kind),
                None => {
                    let flag = u8::from(kind == Lock::Exclusive);
                    let head = Head { flag, ..self.head(Kind::Unlock, rank) };
                    let mut core = self.osc().core();
                    core.queue(self.members[rank as usize].process, head, &[]);
                    self.osc().note(&core);
                }
            }
        }
    }
}
