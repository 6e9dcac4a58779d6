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

use crate::error::WindowError;
use crate::header::Lock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What gives access.
#[derive(Debug)]
enum Access {
    None,
    /// `used`: an operation was begun since the fence.
    Fenced {
        used: AtomicBool,
    },
    Started(Box<[u32]>),
    Locked {
        held: usize,
    },
    AllLocked {
        checked: bool,
    },
}

/// A target that is locked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockedTarget {
    pub(crate) kind: Lock,
    /// The lock was taken. If not, the program says that nobody needs it (`MPI_MODE_NOCHECK`).
    pub(crate) checked: bool,
}

impl Access {
    fn open(&self) -> &'static str {
        match self {
            Access::None => "no epoch is open",
            Access::Fenced { .. } => "an epoch between fences is open",
            Access::Started(_) => "an epoch of start is open",
            Access::Locked { .. } => "a target is locked",
            Access::AllLocked { .. } => "all targets are locked",
        }
    }
}

/// The epochs of one rank.
#[derive(Debug)]
pub(crate) struct Epochs {
    access: Access,
    /// By target: whether operations are allowed.
    allowed: Box<[bool]>,
    /// By target: how it is locked.
    locks: Box<[Option<LockedTarget>]>,
    /// The group that this rank's window is posted to.
    posted: Option<Box<[u32]>>,
    /// Others may be in an epoch between fences: the last fence was not a last one.
    fenced: bool,
    /// A synchronisation of all failed.
    broken: bool,
}

impl Epochs {
    pub(crate) fn new(ranks: usize) -> Epochs {
        Epochs {
            access: Access::None,
            allowed: vec![false; ranks].into(),
            locks: vec![None; ranks].into(),
            posted: None,
            fenced: false,
            broken: false,
        }
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.allowed.len()).unwrap_or(u32::MAX)
    }

    #[cold]
    fn refuse(&self, call: &'static str, rank: u32) -> WindowError {
        let size = self.size();
        match () {
            () if self.broken => WindowError::Broken,
            () if rank >= size => WindowError::NoSuchRank { rank, size },
            () => WindowError::NoEpoch { call, rank },
        }
    }

    /// An operation on this target begins.
    #[inline]
    pub(crate) fn operate(&self, call: &'static str, rank: u32) -> Result<(), WindowError> {
        if !self.allowed.get(rank as usize).is_some_and(|allowed| *allowed) {
            return Err(self.refuse(call, rank));
        }
        if let Access::Fenced { used } = &self.access {
            used.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_rank(&self, rank: u32) -> Result<(), WindowError> {
        let size = self.size();
        if rank < size { Ok(()) } else { Err(WindowError::NoSuchRank { rank, size }) }
    }

    #[inline]
    fn whole(&self) -> Result<(), WindowError> {
        if self.broken { Err(WindowError::Broken) } else { Ok(()) }
    }

    /// A fence after which nothing was done gives way to another kind of epoch.
    #[inline]
    fn settle(&mut self) {
        if let Access::Fenced { used } = &self.access
            && !used.load(Ordering::Relaxed)
        {
            self.access = Access::None;
            self.allowed.fill(false);
        }
    }

    fn mixed<T>(&self, call: &'static str) -> Result<T, WindowError> {
        Err(WindowError::Mixed { call, open: self.access.open() })
    }

    /// Whether a fence may be called.
    pub(crate) fn may_fence(&self, call: &'static str) -> Result<(), WindowError> {
        self.whole()?;
        if self.posted.is_some() {
            return Err(WindowError::Mixed { call, open: "the window is posted" });
        }
        match self.access {
            Access::None | Access::Fenced { .. } => Ok(()),
            _ => self.mixed(call),
        }
    }

    /// All ranks have fenced.
    pub(crate) fn fenced(&mut self, last: bool) {
        self.fenced = !last;
        self.access = match last {
            true => Access::None,
            false => Access::Fenced { used: AtomicBool::new(false) },
        };
        self.allowed.fill(!last);
    }

    /// A fence, a post or a wait failed: nobody knows which epochs others have open.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.posted = None;
        self.access = Access::None;
        self.allowed.fill(false);
    }

    /// Each rank is one of the window's, and is named once.
    fn check_group(&self, group: &[u32]) -> Result<(), WindowError> {
        let mut named = vec![false; self.allowed.len()];
        group.iter().try_for_each(|rank| {
            self.check_rank(*rank)?;
            match std::mem::replace(&mut named[*rank as usize], true) {
                true => Err(WindowError::NamedTwice { rank: *rank }),
                false => Ok(()),
            }
        })
    }

    pub(crate) fn may_start(&mut self, group: &[u32]) -> Result<(), WindowError> {
        self.whole()?;
        self.check_group(group)?;
        self.settle();
        if matches!(self.access, Access::None) { Ok(()) } else { self.mixed("start") }
    }

    pub(crate) fn started(&mut self, group: &[u32]) {
        self.access = Access::Started(group.into());
        for rank in group {
            self.allowed[*rank as usize] = true;
        }
    }

    /// The group that an epoch of start was for.
    pub(crate) fn group(&self) -> Result<&[u32], WindowError> {
        match &self.access {
            Access::Started(group) => Ok(group),
            _ => Err(WindowError::NotOpen { call: "complete" }),
        }
    }

    pub(crate) fn completed(&mut self) {
        self.access = Access::None;
        self.allowed.fill(false);
    }

    pub(crate) fn may_post(&mut self, group: &[u32]) -> Result<(), WindowError> {
        self.whole()?;
        self.check_group(group)?;
        if self.posted.is_some() {
            return Err(WindowError::Mixed { call: "post", open: "the window is posted" });
        }
        self.settle();
        match self.access {
            Access::Fenced { .. } => self.mixed("post"),
            _ => Ok(()),
        }
    }

    pub(crate) fn post(&mut self, group: &[u32]) {
        self.posted = Some(group.into());
    }

    /// The group that this rank's window is posted to.
    pub(crate) fn posted(&self) -> Result<&[u32], WindowError> {
        self.posted.as_deref().ok_or(WindowError::NotOpen { call: "wait" })
    }

    pub(crate) fn close_exposure(&mut self) {
        self.posted = None;
    }

    #[inline]
    pub(crate) fn may_lock(&mut self, rank: u32) -> Result<(), WindowError> {
        self.whole()?;
        self.check_rank(rank)?;
        self.settle();
        match self.access {
            Access::None => Ok(()),
            Access::Locked { .. } if self.locks[rank as usize].is_none() => Ok(()),
            _ => self.mixed("lock"),
        }
    }

    #[inline]
    pub(crate) fn locked(&mut self, rank: u32, kind: Lock, checked: bool) {
        let held = match self.access {
            Access::Locked { held } => held,
            _ => 0,
        };
        self.access = Access::Locked { held: held + 1 };
        self.locks[rank as usize] = Some(LockedTarget { kind, checked });
        self.allowed[rank as usize] = true;
    }

    /// How this target is locked by itself.
    #[inline]
    pub(crate) fn lock_of(
        &self,
        rank: u32,
        call: &'static str,
    ) -> Result<LockedTarget, WindowError> {
        self.check_rank(rank)?;
        match (&self.access, self.locks[rank as usize]) {
            (Access::Locked { .. }, Some(held)) => Ok(held),
            _ => Err(WindowError::NotOpen { call }),
        }
    }

    #[inline]
    pub(crate) fn unlocked(&mut self, rank: u32) {
        self.locks[rank as usize] = None;
        self.allowed[rank as usize] = false;
        self.access = match self.access {
            Access::Locked { held } if held > 1 => Access::Locked { held: held - 1 },
            _ => Access::None,
        };
    }

    pub(crate) fn may_lock_all(&mut self) -> Result<(), WindowError> {
        self.whole()?;
        self.settle();
        if matches!(self.access, Access::None) { Ok(()) } else { self.mixed("lock_all") }
    }

    pub(crate) fn all_locked(&mut self, checked: bool) {
        self.access = Access::AllLocked { checked };
        self.allowed.fill(true);
    }

    /// The locks that this rank has taken: of which ranks, and of what kind.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u32, Lock)> + '_ {
        let all = match self.access {
            Access::AllLocked { checked } => Some(LockedTarget { kind: Lock::Shared, checked }),
            _ => None,
        };
        (0u32..).zip(&self.locks).filter_map(move |(rank, lock)| {
            all.or(*lock).filter(|held| held.checked).map(|held| (rank, held.kind))
        })
    }

    /// Whether all targets are locked together; and whether those locks were taken.
    pub(crate) fn is_all_locked(&self) -> Result<bool, WindowError> {
        match self.access {
            Access::AllLocked { checked } => Ok(checked),
            _ => Err(WindowError::NotOpen { call: "unlock_all" }),
        }
    }

    pub(crate) fn all_unlocked(&mut self) {
        self.access = Access::None;
        self.allowed.fill(false);
    }

    /// Whether a flush of this target is possible: in epochs of locks alone.
    #[inline]
    pub(crate) fn may_flush(&self, rank: u32, call: &'static str) -> Result<(), WindowError> {
        match self.access {
            Access::Locked { .. } | Access::AllLocked { .. }
                if self.allowed.get(rank as usize).is_some_and(|allowed| *allowed) =>
            {
                Ok(())
            }
            Access::Fenced { .. } | Access::Started(_) => self.mixed(call),
            _ => Err(self.refuse(call, rank)),
        }
    }

    /// Whether there is an epoch of locks, in which all targets can be flushed.
    pub(crate) fn may_flush_all(&self, call: &'static str) -> Result<(), WindowError> {
        match self.access {
            Access::Locked { .. } | Access::AllLocked { .. } => Ok(()),
            _ => Err(WindowError::NotOpen { call }),
        }
    }

    /// Whether the window may be freed: not after operations that no fence has ended (MPI 4.1 §12.2.5).
    pub(crate) fn may_free(&self) -> Result<(), WindowError> {
        if self.posted.is_some() {
            return Err(WindowError::Mixed { call: "free", open: "the window is posted" });
        }
        match &self.access {
            Access::None => Ok(()),
            Access::Fenced { used } if !used.load(Ordering::Relaxed) => Ok(()),
            _ => self.mixed("free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_together_and_what_does_not() {
        let mut epochs = Epochs::new(3);
        assert!(matches!(epochs.operate("put", 1), Err(WindowError::NoEpoch { rank: 1, .. })));
        assert!(matches!(epochs.operate("put", 3), Err(WindowError::NoSuchRank { size: 3, .. })));
        epochs.may_fence("fence").unwrap();
        epochs.fenced(false);
        // Nothing was done since the fence.
        epochs.may_lock(1).unwrap();
        epochs.locked(1, Lock::Shared, true);
        assert!(matches!(epochs.operate("put", 0), Err(WindowError::NoEpoch { .. })));
        epochs.operate("put", 1).unwrap();
        assert!(matches!(epochs.may_lock(1), Err(WindowError::Mixed { .. })));
        assert!(matches!(epochs.may_fence("fence"), Err(WindowError::Mixed { .. })));
        assert!(matches!(epochs.may_start(&[0]), Err(WindowError::Mixed { .. })));
        assert_eq!(epochs.may_start(&[0, 2, 0]), Err(WindowError::NamedTwice { rank: 0 }));
        epochs.may_lock(2).unwrap();
        epochs.locked(2, Lock::Exclusive, false);
        assert!(epochs.held().eq([(1, Lock::Shared)]), "nobody has taken the other one");
        epochs.post(&[0]);
        assert!(matches!(epochs.may_free(), Err(WindowError::Mixed { .. })));
        epochs.close_exposure();
        epochs.unlocked(1);
        epochs.may_flush(2, "flush").unwrap();
        assert!(epochs.may_flush(1, "flush").is_err());
        epochs.unlocked(2);
        assert!(epochs.may_flush_all("flush").is_err());
        epochs.fenced(false);
        epochs.may_free().unwrap();
        epochs.operate("put", 0).unwrap();
        assert!(matches!(epochs.may_free(), Err(WindowError::Mixed { .. })));
        assert!(matches!(epochs.may_lock_all(), Err(WindowError::Mixed { .. })));
        epochs.fenced(true);
        epochs.may_start(&[2, 0]).unwrap();
        epochs.started(&[2, 0]);
        assert!(epochs.operate("put", 1).is_err() && epochs.operate("put", 2).is_ok());
        assert!(epochs.may_flush(2, "flush").is_err());
        assert_eq!(epochs.group(), Ok(&[2, 0][..]));
        epochs.completed();
        epochs.may_lock(2).unwrap();
        epochs.locked(2, Lock::Exclusive, true);
        epochs.unlocked(2);
        epochs.break_off();
        assert_eq!(epochs.may_lock_all(), Err(WindowError::Broken));
        assert_eq!(epochs.operate("put", 0), Err(WindowError::Broken));
    }
}
