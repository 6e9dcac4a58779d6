//! The lock of a window at one rank: words in memory that the ranks of its host share. The owner's progress engine takes
//! the same lock for ranks that cannot map it.
//!
//! ```text
//! word 0      0: free | n: n ranks share it | 2^63 + r: rank r has it alone
//! word 1      0: free | 1 + r: rank r changes elements that the processor cannot change atomically
//! words 8..   of rank r: 0 nothing | 1 wants or shares the lock | 2 wants it or has it alone
//! ```
//!
//! The words of the ranks say who is to blame if a rank dies that has the lock. They are written before the lock is
//! taken (the exchange that takes it releases them), and cleared after it was given back.

use gapless_mem::Words;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a window is locked (MPI 4.1 §12.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// `MPI_LOCK_SHARED`: together with others that share it.
    Shared,
    /// `MPI_LOCK_EXCLUSIVE`: alone.
    Exclusive,
}

const ALONE: u64 = 1 << 63;
const LOCK: usize = 0;
const MUTEX: usize = 1;
/// Where the words of the ranks begin: on a cache line of their own.
const RANKS: usize = 8;

/// The words.
#[derive(Clone, Debug)]
pub struct Header {
    words: Words,
    ranks: usize,
}

impl Header {
    /// Bytes of the memory of a window of so many ranks.
    #[must_use]
    pub fn bytes(ranks: usize) -> u64 {
        8 * (RANKS + ranks) as u64
    }

    /// `None`: there are too few words.
    #[must_use]
    pub fn new(words: Words, ranks: usize) -> Option<Header> {
        (words.all().len() >= RANKS + ranks).then_some(Header { words, ranks })
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.all()[at]
    }

    fn mark(&self, rank: u32, kind: u64) {
        if (rank as usize) < self.ranks {
            self.word(RANKS + rank as usize).store(kind, Ordering::Relaxed);
        }
    }

    /// Takes the lock, if it is free. If not, the rank's word says that it wants it: ask again, or [`cancel`].
    ///
    /// [`cancel`]: Header::cancel
    #[inline]
    pub(crate) fn try_lock(&self, rank: u32, kind: Lock) -> bool {
        let lock = self.word(LOCK);
        let word = match kind {
            Lock::Shared => 1,
            Lock::Exclusive => 2,
        };
        self.mark(rank, word);
        match kind {
            Lock::Exclusive => lock
                .compare_exchange(0, ALONE | u64::from(rank), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok(),
            Lock::Shared => {
                let share = |old: u64| (old & ALONE == 0).then_some(old.wrapping_add(1));
                lock.fetch_update(Ordering::AcqRel, Ordering::Relaxed, share).is_ok()
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    pub(crate) fn unlock(&self, rank: u32, kind: Lock) {
        let lock = self.word(LOCK);
        match kind {
            Lock::Exclusive => lock.store(0, Ordering::Release),
            Lock::Shared => {
                lock.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.mark(rank, 0);
    }

    /// The rank does not want the lock any more.
    pub(crate) fn cancel(&self, rank: u32) {
        self.mark(rank, 0);
    }

    /// A rank that has the lock, or wants it, and is one of those that `is_lost` says.
    pub(crate) fn lost_holder(&self, mut is_lost: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.word(LOCK).load(Ordering::Acquire) == 0 {
            return None;
        }
        let has = |rank: &u32| self.word(RANKS + *rank as usize).load(Ordering::Acquire) != 0;
        (0..u32::try_from(self.ranks).unwrap_or(u32::MAX)).filter(has).find(|rank| is_lost(*rank))
    }

    /// Takes the mutex of elements, if it is free, or if its holder is lost: what that one has left half done are elements
    /// of its own accumulation.
    #[inline]
    pub(crate) fn try_mutex(&self, rank: u32, is_lost: impl FnOnce(u32) -> bool) -> bool {
        let mutex = self.word(MUTEX);
        let own = u64::from(rank) + 1;
        match mutex.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => true,
            Err(holder) => {
                let number = u32::try_from(holder - 1).unwrap_or(u32::MAX);
                is_lost(number)
                    && mutex
                        .compare_exchange(holder, own, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            }
        }
    }

    #[inline]
    pub(crate) fn release_mutex(&self) {
        self.word(MUTEX).store(0, Ordering::Release);
    }
}
