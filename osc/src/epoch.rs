//! Which epochs are open, and what may be called meanwhile (MPI 4.1 §12.5): pure, without memory or messages.
//!
//! Two things are open independently of each other: access of this rank to others' windows, and exposure of its own.
//!
//! | access | opened by | closed by | targets |
//! |---|---|---|---|
//! | fenced | a fence that is not the last | a last fence; or, before the first operation, any of the others | all |
//! | started | start | complete | a group |
//! | locked | lock, of any number of targets | unlock, of each | those |
//! | all locked | lock_all | unlock_all | all |
//!
//! Threads share a window. Operations look at one byte of their target ([`Epochs::operate`]); whoever begins or ends an epoch
//! has the [state](Open), for a short time, and never while it waits: it says first what it is about to do, and then what came
//! of that. Meanwhile a target that is being locked or unlocked is nobody else's, and other targets are as they were.

use crate::error::WindowError;
use crate::header::Lock;
use crate::tasks::unpoisoned;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What gives access.
#[derive(Clone, Debug)]
enum Access {
    None,
    Fenced,
    Started(Arc<[u32]>),
    Locked { held: usize },
    AllLocked { checked: bool },
}

/// What gives access to a target, as operations see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Allowed {
    No,
    Started,
    Fenced,
    Locked,
}

/// A target that is locked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockedTarget {
    pub(crate) kind: Lock,
    /// The lock was taken. If not, the program says that nobody needs it (`MPI_MODE_NOCHECK`).
    pub(crate) checked: bool,
}

/// The lock of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetLock {
    None,
    /// A call takes it, or gives it back.
    Turning,
    Held(LockedTarget),
}

impl Access {
    fn open(&self) -> &'static str {
        match self {
            Access::None => "no epoch is open",
            Access::Fenced => "an epoch between fences is open",
            Access::Started(_) => "an epoch of start is open",
            Access::Locked { .. } => "a target is locked",
            Access::AllLocked { .. } => "all targets are locked",
        }
    }
}

/// The epochs of one rank.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// By target: an [`Allowed`].
    allowed: Box<[AtomicU8]>,
    /// An operation was begun since the fence.
    used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    access: Access,
    /// By target.
    locks: Box<[TargetLock]>,
    /// A call that begins or ends access to several targets is under way.
    turning: Option<&'static str>,
    /// The group that this rank's window is posted to.
    posted: Option<Arc<[u32]>>,
    /// A call looks whether the group has completed.
    is_heard: bool,
    /// A synchronisation of all failed.
    broken: bool,
}

/// The epochs, while nobody else begins or ends one.
pub(crate) struct Open<'e> {
    epochs: &'e Epochs,
    state: MutexGuard<'e, State>,
}

impl Epochs {
    pub(crate) fn new(ranks: usize) -> Epochs {
        let state = State {
            access: Access::None,
            locks: vec![TargetLock::None; ranks].into(),
            turning: None,
            posted: None,
            is_heard: false,
            broken: false,
        };
        Epochs {
            allowed: (0..ranks).map(|_| AtomicU8::new(Allowed::No as u8)).collect(),
            used: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.allowed.len()).unwrap_or(u32::MAX)
    }

    /// The epochs, to be changed. Not to be kept while anything is waited for.
    #[inline]
    pub(crate) fn open(&self) -> Open<'_> {
        Open { epochs: self, state: unpoisoned(&self.state) }
    }

    #[cold]
    fn refuse(&self, call: &'static str, rank: u32) -> WindowError {
        let size = self.size();
        match () {
            () if unpoisoned(&self.state).broken => WindowError::Broken,
            () if rank >= size => WindowError::NoSuchRank { rank, size },
            () => WindowError::NoEpoch { call, rank },
        }
    }

    #[inline]
    fn allows(&self, rank: u32) -> u8 {
        let allowed = self.allowed.get(rank as usize);
        allowed.map_or(Allowed::No as u8, |allowed| allowed.load(Ordering::Acquire))
    }

    fn allow(&self, rank: u32, allowed: Allowed) {
        if let Some(place) = self.allowed.get(rank as usize) {
            place.store(allowed as u8, Ordering::Release);
        }
    }

    fn allow_all(&self, allowed: Allowed) {
        self.allowed.iter().for_each(|place| place.store(allowed as u8, Ordering::Release));
    }

    /// An operation on this target begins.
    #[inline]
    pub(crate) fn operate(&self, call: &'static str, rank: u32) -> Result<(), WindowError> {
        let allowed = self.allows(rank);
        if allowed == Allowed::No as u8 {
            return Err(self.refuse(call, rank));
        }
        if allowed == Allowed::Fenced as u8 {
            self.used.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_rank(&self, rank: u32) -> Result<(), WindowError> {
        let size = self.size();
        if rank < size { Ok(()) } else { Err(WindowError::NoSuchRank { rank, size }) }
    }

    /// Whether a flush of this target is possible: in epochs of locks alone.
    #[inline]
    pub(crate) fn may_flush(&self, rank: u32, call: &'static str) -> Result<(), WindowError> {
        match self.allows(rank) {
            allowed if allowed == Allowed::Locked as u8 => Ok(()),
            _ => self.may_not_flush(rank, call),
        }
    }

    #[cold]
    fn may_not_flush(&self, rank: u32, call: &'static str) -> Result<(), WindowError> {
        let access = unpoisoned(&self.state).access.clone();
        match access {
            Access::Fenced | Access::Started(_) => {
                Err(WindowError::Mixed { call, open: access.open() })
            }
            _ => Err(self.refuse(call, rank)),
        }
    }

    /// The locks that this rank has taken: of which ranks, and of what kind.
    pub(crate) fn held(&self) -> Vec<(u32, Lock)> {
        let state = unpoisoned(&self.state);
        let all = match state.access {
            Access::AllLocked { checked } => Some(LockedTarget { kind: Lock::Shared, checked }),
            _ => None,
        };
        let one = |lock: &TargetLock| match lock {
            TargetLock::Held(held) => Some(*held),
            _ => None,
        };
        let locks = (0u32..).zip(&state.locks).filter_map(|(rank, lock)| {
            all.or(one(lock)).filter(|held| held.checked).map(|held| (rank, held.kind))
        });
        locks.collect()
    }
}

impl Open<'_> {
    fn whole(&self, call: &'static str) -> Result<(), WindowError> {
        match self.state.turning {
            _ if self.state.broken => Err(WindowError::Broken),
            Some(_) => Err(WindowError::Mixed { call, open: "a thread begins or ends an epoch" }),
            None => Ok(()),
        }
    }

    /// A fence after which nothing was done gives way to another kind of epoch.
    #[inline]
    fn settle(&mut self) {
        if matches!(self.state.access, Access::Fenced) && !self.epochs.used.load(Ordering::Relaxed)
        {
            self.close();
        }
    }

    fn close(&mut self) {
        self.state.access = Access::None;
        self.epochs.allow_all(Allowed::No);
    }

    fn mixed<T>(&self, call: &'static str) -> Result<T, WindowError> {
        Err(WindowError::Mixed { call, open: self.state.access.open() })
    }

    /// A fence begins. It ends with [`fenced`](Open::fenced), [`break_off`](Open::break_off) or [`stay`](Open::stay).
    pub(crate) fn begin_fence(&mut self, call: &'static str) -> Result<(), WindowError> {
        self.whole(call)?;
        if self.state.posted.is_some() {
            return Err(WindowError::Mixed { call, open: "the window is posted" });
        }
        match self.state.access {
            Access::None | Access::Fenced => {
                self.state.turning = Some(call);
                Ok(())
            }
            _ => self.mixed(call),
        }
    }

    /// What was begun was not done: epochs are as they were.
    pub(crate) fn stay(&mut self) {
        self.state.turning = None;
    }

    /// All ranks have fenced.
    pub(crate) fn fenced(&mut self, last: bool) {
        self.state.turning = None;
        self.epochs.used.store(false, Ordering::Relaxed);
        match last {
            true => self.close(),
            false => {
                self.state.access = Access::Fenced;
                self.epochs.allow_all(Allowed::Fenced);
            }
        }
    }

    /// A fence, a post or a wait failed: nobody knows which epochs others have open.
    pub(crate) fn break_off(&mut self) {
        (self.state.broken, self.state.turning, self.state.posted) = (true, None, None);
        self.close();
    }

    /// Each rank is one of the window's, and is named once.
    fn check_group(&self, group: &[u32]) -> Result<(), WindowError> {
        let mut named = vec![false; self.state.locks.len()];
        group.iter().try_for_each(|rank| {
            self.epochs.check_rank(*rank)?;
            match std::mem::replace(&mut named[*rank as usize], true) {
                true => Err(WindowError::NamedTwice { rank: *rank }),
                false => Ok(()),
            }
        })
    }

    /// A start begins. It ends with [`started`](Open::started) or [`stay`](Open::stay).
    pub(crate) fn begin_start(&mut self, group: &[u32]) -> Result<(), WindowError> {
        self.whole("start")?;
        self.check_group(group)?;
        self.settle();
        if !matches!(self.state.access, Access::None) {
            return self.mixed("start");
        }
        self.state.turning = Some("start");
        Ok(())
    }

    pub(crate) fn started(&mut self, group: &[u32]) {
        self.state.turning = None;
        self.state.access = Access::Started(group.into());
        group.iter().for_each(|rank| self.epochs.allow(*rank, Allowed::Started));
    }

    /// An epoch of start ends: gives its group. Over with [`closed`](Open::closed).
    pub(crate) fn begin_complete(&mut self) -> Result<Arc<[u32]>, WindowError> {
        self.whole("complete")?;
        let Access::Started(group) = &self.state.access else {
            return Err(WindowError::NotOpen { call: "complete" });
        };
        let group = Arc::clone(group);
        self.state.turning = Some("complete");
        self.epochs.allow_all(Allowed::No);
        Ok(group)
    }

    /// An epoch of all targets, or of a group, has ended.
    pub(crate) fn closed(&mut self) {
        self.state.turning = None;
        self.close();
    }

    pub(crate) fn post(&mut self, group: &[u32]) -> Result<(), WindowError> {
        self.whole("post")?;
        self.check_group(group)?;
        if self.state.posted.is_some() {
            return Err(WindowError::Mixed { call: "post", open: "the window is posted" });
        }
        self.settle();
        if matches!(self.state.access, Access::Fenced) {
            return self.mixed("post");
        }
        self.state.posted = Some(group.into());
        Ok(())
    }

    /// The group that this rank's window is posted to, of which a call looks whether it has completed. That ends with
    /// [`heard`](Open::heard).
    pub(crate) fn begin_wait(&mut self) -> Result<Arc<[u32]>, WindowError> {
        match &self.state.posted {
            Some(_) if self.state.is_heard => {
                Err(WindowError::Mixed { call: "wait", open: "a thread waits" })
            }
            Some(group) => {
                let group = Arc::clone(group);
                self.state.is_heard = true;
                Ok(group)
            }
            None => Err(WindowError::NotOpen { call: "wait" }),
        }
    }

    /// Whether all of the group have completed.
    pub(crate) fn heard(&mut self, all: bool) {
        self.state.is_heard = false;
        if all {
            self.state.posted = None;
        }
    }

    /// Whether this target may be locked by itself.
    #[inline]
    pub(crate) fn may_lock(&mut self, rank: u32) -> Result<(), WindowError> {
        self.whole("lock")?;
        self.epochs.check_rank(rank)?;
        self.settle();
        match self.state.access {
            Access::None => Ok(()),
            Access::Locked { .. } if self.state.locks[rank as usize] == TargetLock::None => Ok(()),
            _ => self.mixed("lock"),
        }
    }

    /// A lock begins. It ends with [`locked`](Open::locked) or [`unlocked`](Open::unlocked).
    pub(crate) fn begin_lock(&mut self, rank: u32) -> Result<(), WindowError> {
        self.may_lock(rank)?;
        self.count_lock(rank);
        Ok(())
    }

    #[inline]
    fn count_lock(&mut self, rank: u32) {
        let held = match self.state.access {
            Access::Locked { held } => held,
            _ => 0,
        };
        self.state.access = Access::Locked { held: held + 1 };
        self.state.locks[rank as usize] = TargetLock::Turning;
    }

    /// What began is done; or all of it, where nothing was waited for.
    #[inline]
    pub(crate) fn locked(&mut self, rank: u32, kind: Lock, checked: bool) {
        if self.state.locks[rank as usize] == TargetLock::None {
            self.count_lock(rank);
        }
        self.state.locks[rank as usize] = TargetLock::Held(LockedTarget { kind, checked });
        self.epochs.allow(rank, Allowed::Locked);
    }

    /// How this target is locked by itself.
    #[inline]
    pub(crate) fn lock_of(
        &self,
        rank: u32,
        call: &'static str,
    ) -> Result<LockedTarget, WindowError> {
        self.epochs.check_rank(rank)?;
        match self.state.locks[rank as usize] {
            TargetLock::Held(held) => Ok(held),
            _ => Err(WindowError::NotOpen { call }),
        }
    }

    /// The end of a lock begins; it is over with [`unlocked`](Open::unlocked).
    pub(crate) fn begin_unlock(&mut self, rank: u32) -> Result<LockedTarget, WindowError> {
        let held = self.lock_of(rank, "unlock")?;
        self.state.locks[rank as usize] = TargetLock::Turning;
        self.epochs.allow(rank, Allowed::No);
        Ok(held)
    }

    #[inline]
    pub(crate) fn unlocked(&mut self, rank: u32) {
        self.state.locks[rank as usize] = TargetLock::None;
        self.epochs.allow(rank, Allowed::No);
        self.state.access = match self.state.access {
            Access::Locked { held } if held > 1 => Access::Locked { held: held - 1 },
            _ => Access::None,
        };
    }

    /// A lock of all begins. It ends with [`all_locked`](Open::all_locked) or [`stay`](Open::stay).
    pub(crate) fn begin_lock_all(&mut self) -> Result<(), WindowError> {
        self.whole("lock_all")?;
        self.settle();
        if !matches!(self.state.access, Access::None) {
            return self.mixed("lock_all");
        }
        self.state.turning = Some("lock_all");
        Ok(())
    }

    pub(crate) fn all_locked(&mut self, checked: bool) {
        self.state.turning = None;
        self.state.access = Access::AllLocked { checked };
        self.epochs.allow_all(Allowed::Locked);
    }

    /// The end of that begins: gives whether those locks were taken. Over with [`closed`](Open::closed).
    pub(crate) fn begin_unlock_all(&mut self) -> Result<bool, WindowError> {
        self.whole("unlock_all")?;
        let Access::AllLocked { checked } = self.state.access else {
            return Err(WindowError::NotOpen { call: "unlock_all" });
        };
        self.state.turning = Some("unlock_all");
        self.epochs.allow_all(Allowed::No);
        Ok(checked)
    }

    /// Whether there is an epoch of locks, in which all targets can be flushed.
    pub(crate) fn may_flush_all(&self, call: &'static str) -> Result<(), WindowError> {
        match self.state.access {
            Access::Locked { .. } | Access::AllLocked { .. } => Ok(()),
            _ => Err(WindowError::NotOpen { call }),
        }
    }

    /// Whether the window may be freed: not after operations that no fence has ended (MPI 4.1 §12.2.5).
    pub(crate) fn may_free(&self) -> Result<(), WindowError> {
        if self.state.posted.is_some() {
            return Err(WindowError::Mixed { call: "free", open: "the window is posted" });
        }
        match self.state.access {
            Access::None => Ok(()),
            Access::Fenced if !self.epochs.used.load(Ordering::Relaxed) => Ok(()),
            _ => self.mixed("free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_together_and_what_does_not() {
        let all = Epochs::new(3);
        let open = || all.open();
        assert!(matches!(all.operate("put", 1), Err(WindowError::NoEpoch { rank: 1, .. })));
        assert!(matches!(all.operate("put", 3), Err(WindowError::NoSuchRank { size: 3, .. })));
        open().begin_fence("fence").unwrap();
        open().fenced(false);
        // Nothing was done since the fence.
        open().begin_lock(1).unwrap();
        open().locked(1, Lock::Shared, true);
        assert!(matches!(all.operate("put", 0), Err(WindowError::NoEpoch { .. })));
        all.operate("put", 1).unwrap();
        assert!(matches!(open().may_lock(1), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_fence("fence"), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_start(&[0]), Err(WindowError::Mixed { .. })));
        assert_eq!(open().begin_start(&[0, 2, 0]), Err(WindowError::NamedTwice { rank: 0 }));
        open().locked(2, Lock::Exclusive, false);
        assert_eq!(all.held(), [(1, Lock::Shared)], "nobody has taken the other one");
        open().post(&[0]).unwrap();
        assert!(matches!(open().may_free(), Err(WindowError::Mixed { .. })));
        assert_eq!(open().begin_wait().as_deref(), Ok(&[0][..]));
        assert!(matches!(open().begin_wait(), Err(WindowError::Mixed { .. })));
        open().heard(false);
        open().begin_wait().unwrap();
        open().heard(true);
        open().begin_unlock(1).unwrap();
        open().unlocked(1);
        all.may_flush(2, "flush").unwrap();
        assert!(all.may_flush(1, "flush").is_err());
        open().begin_unlock(2).unwrap();
        open().unlocked(2);
        assert!(open().may_flush_all("flush").is_err());
        open().fenced(false);
        open().may_free().unwrap();
        all.operate("put", 0).unwrap();
        assert!(matches!(open().may_free(), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_lock_all(), Err(WindowError::Mixed { .. })));
        open().fenced(true);
        open().begin_start(&[2, 0]).unwrap();
        open().started(&[2, 0]);
        assert!(all.operate("put", 1).is_err() && all.operate("put", 2).is_ok());
        assert!(matches!(all.may_flush(2, "flush"), Err(WindowError::Mixed { .. })));
        assert_eq!(open().begin_complete().as_deref(), Ok(&[2, 0][..]));
        open().closed();
        open().begin_lock(2).unwrap();
        open().locked(2, Lock::Exclusive, true);
        open().unlocked(2);
        open().break_off();
        assert_eq!(open().begin_lock_all(), Err(WindowError::Broken));
        assert_eq!(all.operate("put", 0), Err(WindowError::Broken));
    }

    /// What one thread is about to do keeps others from what does not go with it, and from nothing else.
    #[test]
    fn while_a_call_is_under_way() {
        let all = Epochs::new(3);
        let open = || all.open();
        open().begin_lock(1).unwrap();
        assert!(matches!(open().may_lock(1), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_unlock(1), Err(WindowError::NotOpen { .. })));
        assert!(all.operate("put", 1).is_err() && all.held().is_empty());
        open().begin_lock(2).unwrap();
        open().locked(2, Lock::Shared, true);
        all.operate("put", 2).unwrap();
        open().begin_unlock(2).unwrap();
        assert!(all.operate("put", 2).is_err() && all.may_flush(2, "flush").is_err());
        assert!(matches!(open().begin_lock_all(), Err(WindowError::Mixed { .. })));
        open().unlocked(2);
        assert!(matches!(open().begin_lock_all(), Err(WindowError::Mixed { .. })));
        // It was not to be had.
        open().unlocked(1);
        open().begin_lock_all().unwrap();
        assert!(matches!(open().may_lock(0), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_start(&[0]), Err(WindowError::Mixed { .. })));
        assert!(matches!(open().begin_fence("fence"), Err(WindowError::Mixed { .. })));
        open().all_locked(true);
        all.may_flush(0, "flush").unwrap();
        assert_eq!(open().begin_unlock_all(), Ok(true));
        assert!(open().begin_unlock_all().is_err());
        assert!(all.operate("put", 0).is_err());
        open().closed();
        open().begin_fence("fence").unwrap();
        assert!(open().may_lock(0).is_err());
        open().stay();
        open().may_lock(0).unwrap();
    }
}
