//! The lock of a window at one rank, and its notice counters: words in memory that the ranks of its host share. The
//! owner's progress engine takes the same lock, and raises the same counters, for ranks that cannot map them.
//!
//! ```text
//! word 0      bits 0..24: 0 | 1 + r | bits 24..26: 0: it is rank r's turn | 1: rank r claims the lock: it will have it
//!             alone when those that share it have left | 2: rank r has it alone | bits 26..64: another number after each
//!             change
//! words 8..   every eighth word is the mutex of a stripe: 0: free | 1 + r: rank r changes elements there
//! words 520.. of rank r: bits 0..2: 0 nothing | 1 waits to share the lock | 2 waits to have it alone | 3 shares it, and
//!             in bits 2..40 the number of word 0 when it began to
//! behind      at the next multiple of 8 words: one word for each notice counter (`notices.rs`)
//! ```
//!
//! **Who enters.** A rank that wants to share the lock says so in its own word, and then looks at word 0: if that is
//! empty it is in. A rank that wants the lock alone writes into word 0 that it has it, and then looks at the ranks'
//! words. If none shares the lock, it is in, after one locked instruction. Otherwise it turns what it wrote into a
//! claim. When no word says any more that its rank shares the lock, it turns the claim back, and is in. Each rank
//! writes before it looks, in one order of all ranks (`SeqCst`), so they cannot miss each other: of a rank that shares
//! the lock and one that has written word 0, one sees the other, and steps back.
//!
//! **Fairness.** From a claim on, nobody enters but the one who claimed: those who share the lock cannot keep it away.
//! Who gives back what it had alone gives the turn to the next rank that waits, counted round from its own; so does a
//! rank that enters because it is its turn to share. While it is a rank's turn nobody else enters. So as long as turns
//! are given, each other rank has one before whoever waits. Where it is nobody's turn, who looks first enters: the
//! model sees a rank passed up to seven times by another in 700 seeds, and in 653 of them no more than three times.
//!
//! Whose turn it is without waiting for it any more, or dead, is passed over by whoever waits. So is, after some time,
//! who does not take it: a rank that waits by messages needs the owner's progress for that, and ranks that map the
//! memory do not wait for an owner that calls nothing.
//!
//! **Deaths.** The words say who is to blame if a rank dies that has the lock, or has written so and not looked yet.
//! One that dies while it waits is not: whoever waits takes its turn, or its claim, away. If it lives nevertheless, it
//! finds that out when it is about to enter.
//!
//! **Stripes.** Whoever changes elements has the mutex of each stripe that they lie in: that makes accumulations
//! atomic. A locked instruction a stripe costs what one costs that changes an element, and many elements are changed at
//! once. The numbers are changed in place, by ordinary loads and stores: nobody else writes them meanwhile, but `put`.
//! Stripes are 4 KiB of the window; every 64th has the same mutex. Nobody has a mutex for longer than it takes to
//! change 4 KiB, to add numbers to 32 KiB, or to change the elements of one message. A mutex of a rank whose process
//! has died is taken over, and so is one with the number of no rank. One of a rank that is lost otherwise is not: it
//! may live, and be in the middle of a change. Then the call fails.

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

const LOCK: usize = 0;
/// Where mutexes begin, and how far apart they are: each has a cache line for itself.
const STRIPES: usize = 8;
const APART: usize = 8;
/// How many there are.
const STRIPES_ALL: u32 = 64;
/// Bytes of a stripe, as a power of two.
const STRIPE_BITS: u32 = 12;
/// Where the words of the ranks begin.
const RANKS: usize = STRIPES + APART * STRIPES_ALL as usize;

const NOTHING: u64 = 0;
const WAITS_TO_SHARE: u64 = 1;
const WAITS_ALONE: u64 = 2;
const SHARES: u64 = 3;
/// Bits of what a rank says, and where the number begins of the word 0 that it has seen.
const SAYS: u64 = 3;
const SINCE: u32 = 2;

/// How often a claim is tried against others'.
const TRIES: u32 = 4;

/// How often a rank that waits looks at a turn that nobody takes.
const LOOKS: u32 = 256;

/// Bits of a rank in word 0, and of what it is there.
const BITS: u32 = 24;
const MASK: u64 = (1 << BITS) - 1;
const STATE: u64 = 3 << BITS;
const CLAIMS: u64 = 1 << BITS;
const INSIDE: u64 = 2 << BITS;
/// Where the number begins.
const NUMBER: u32 = BITS + 2;

/// Word 0. The number in it changes with it, so that whoever has looked round meanwhile does not take it for the old
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate(u64);

impl Gate {
    /// After this one.
    #[inline]
    fn next(self, state: u64, rank: Option<u32>) -> Gate {
        let number = (self.0 >> NUMBER).wrapping_add(1) << NUMBER;
        Gate(number | state | rank.map_or(0, |rank| u64::from(rank) + 1))
    }

    /// After this one: it is the turn of a rank, or of all.
    #[inline]
    fn to(self, rank: Option<u32>) -> Gate {
        self.next(0, rank)
    }

    /// The rank that it is about.
    #[inline]
    fn rank(self) -> Option<u32> {
        u32::try_from(self.0 & MASK).unwrap_or(0).checked_sub(1)
    }

    /// Whose turn it is.
    #[inline]
    fn turn(self) -> Option<u32> {
        self.rank().filter(|_| self.0 & STATE == 0)
    }

    /// Who has it alone, or claims that.
    #[inline]
    fn holder(self) -> Option<u32> {
        self.rank().filter(|_| self.0 & STATE != 0)
    }

    /// Whether its holder has it.
    #[inline]
    fn is_inside(self) -> bool {
        self.0 & STATE == INSIDE
    }

    /// Whether this rank may enter.
    #[inline]
    fn lets_in(self, rank: u32) -> bool {
        self.holder().is_none() && self.turn().is_none_or(|turn| turn == rank)
    }
}

/// Whether a rank's word says that it shares the lock.
#[inline]
fn shares(said: u64) -> bool {
    said & SAYS == SHARES
}

/// What a rank that waits has seen of word 0, and how often.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    gate: u64,
    looks: u32,
}

/// A rank that word 0 or its own word says has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) rank: u32,
    /// Word 0, whose number changes.
    gate: u64,
    /// What it says, if it shares the lock: another number whenever it begins to.
    shares: Option<u64>,
}

/// The shared words of a window at one rank: its lock, the mutexes of stripes, the counters of notices.
#[derive(Clone, Debug)]
pub struct Header {
    words: Words,
    ranks: u32,
    notices: u32,
}

/// Where the notice counters begin.
fn first_notice(ranks: usize) -> usize {
    (RANKS + ranks).next_multiple_of(APART)
}

impl Header {
    /// Bytes of the memory of a window of so many ranks, and with so many notice counters.
    #[must_use]
    pub fn bytes(ranks: usize, notices: u32) -> u64 {
        8 * (first_notice(ranks) as u64 + u64::from(notices))
    }

    /// `None`: there are too few words, or too many ranks.
    #[must_use]
    pub fn new(words: Words, ranks: usize, notices: u32) -> Option<Header> {
        let fits = 8 * words.all().len() as u64 >= Header::bytes(ranks, notices);
        let fits = fits && (ranks as u64) < MASK;
        Some(Header { words, ranks: u32::try_from(ranks).ok().filter(|_| fits)?, notices })
    }

    /// A notice counter, if there is one of that number.
    #[inline]
    pub(crate) fn notice(&self, counter: u32) -> Option<&AtomicU64> {
        let at = first_notice(self.ranks as usize) + counter as usize;
        if counter < self.notices { self.words.all().get(at) } else { None }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        #[cfg(test)]
        model::step();
        &self.words.all()[at]
    }

    #[inline]
    fn gate(&self) -> Gate {
        Gate(self.word(LOCK).load(Ordering::SeqCst))
    }

    /// Whether the gate was `old`, and is `new` now.
    #[inline]
    fn swap(&self, old: Gate, new: Gate) -> bool {
        let swapped =
            self.word(LOCK).compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst);
        swapped.is_ok()
    }

    #[inline]
    fn said(&self, rank: u32) -> u64 {
        if rank < self.ranks {
            self.word(RANKS + rank as usize).load(Ordering::SeqCst)
        } else {
            NOTHING
        }
    }

    #[inline]
    fn say(&self, rank: u32, what: u64) {
        if rank < self.ranks {
            self.word(RANKS + rank as usize).store(what, Ordering::SeqCst);
        }
    }

    /// The first rank behind this one, counted round, that waits.
    #[inline]
    fn next(&self, rank: u32) -> Option<u32> {
        let all = (rank.saturating_add(1)..self.ranks).chain(0..rank.min(self.ranks));
        all.into_iter().find(|rank| matches!(self.said(*rank), WAITS_TO_SHARE | WAITS_ALONE))
    }

    /// Takes the lock, if that is possible now. `waits`: if not, the rank waits for its turn: it asks again until it
    /// has the lock, or [`cancel`]s. Whoever wants it alone may wait in any case.
    ///
    /// [`cancel`]: Header::cancel
    #[inline]
    pub(crate) fn try_lock(
        &self,
        rank: u32,
        kind: Lock,
        waits: bool,
        is_lost: impl Fn(u32) -> bool,
    ) -> bool {
        let entered = match kind {
            Lock::Shared => self.share(rank),
            Lock::Exclusive => self.enter(rank) || self.claim(rank),
        };
        if !entered && waits {
            self.wait(rank, kind, is_lost);
        }
        entered
    }

    #[inline]
    fn share(&self, rank: u32) -> bool {
        // Not to be in the way of whoever waits until nobody shares it.
        let gate = self.gate();
        if !gate.lets_in(rank) {
            // It has not got the lock, nor claims it: somebody has written that.
            if gate.holder() == Some(rank) {
                self.pass(gate);
            }
            return false;
        }
        self.say(rank, SHARES | gate.0 >> NUMBER << SINCE);
        let gate = self.gate();
        if !gate.lets_in(rank) {
            self.say(rank, NOTHING);
            return false;
        }
        if gate.turn().is_some() {
            self.pass(gate);
        }
        true
    }

    /// Takes the lock alone, at once: nobody else has it, shares it or has its turn.
    #[inline]
    fn enter(&self, rank: u32) -> bool {
        let gate = self.gate();
        let inside = gate.next(INSIDE, Some(rank));
        if !gate.lets_in(rank) || !self.swap(gate, inside) {
            return false;
        }
        if self.is_shared() {
            // Nobody else changes it meanwhile.
            self.word(LOCK).store(inside.next(CLAIMS, Some(rank)).0, Ordering::SeqCst);
            return false;
        }
        if self.said(rank) != NOTHING {
            self.say(rank, NOTHING);
        }
        true
    }

    fn claim(&self, rank: u32) -> bool {
        for _ in 0..TRIES {
            let gate = self.gate();
            if gate.holder() == Some(rank) {
                // Others may have taken the claim away: then it is tried again.
                match self.sharer() {
                    // It does not: somebody has written that.
                    Some(it) if it == rank => {
                        self.say(rank, NOTHING);
                        continue;
                    }
                    Some(_) => return false,
                    None => {}
                }
                if self.swap(gate, gate.next(INSIDE, Some(rank))) {
                    return true;
                }
                continue;
            }
            if !gate.lets_in(rank) {
                return false;
            }
            if self.swap(gate, gate.next(CLAIMS, Some(rank))) && self.said(rank) != NOTHING {
                self.say(rank, NOTHING);
            }
        }
        false
    }

    /// Whether a rank says that it shares the lock.
    #[inline]
    fn is_shared(&self) -> bool {
        self.sharer().is_some()
    }

    /// The first rank that says so.
    #[inline]
    fn sharer(&self) -> Option<u32> {
        (0..self.ranks).find(|rank| shares(self.said(*rank)))
    }

    /// This rank waits; whose turn it is without reason is passed over.
    #[cold]
    fn wait(&self, rank: u32, kind: Lock, is_lost: impl Fn(u32) -> bool) {
        let gate = self.gate();
        if gate.holder() == Some(rank) {
            return;
        }
        let what = if kind == Lock::Shared { WAITS_TO_SHARE } else { WAITS_ALONE };
        if self.said(rank) != what {
            self.say(rank, what);
        }
        let Some(other) = gate.rank().filter(|other| *other != rank) else { return };
        // No rank of ours wrote that.
        let is_nobody = other >= self.ranks;
        if gate.is_inside() && !is_nobody {
            return;
        }
        if !is_nobody && !is_lost(other) {
            if gate.turn().is_some() && self.said(other) == NOTHING {
                self.pass(gate);
            }
        } else if self.pass(gate) && !is_nobody {
            // It has not entered. Nor does it wait any more, as far as that is known.
            let word = self.word(RANKS + other as usize);
            for waits in [WAITS_TO_SHARE, WAITS_ALONE] {
                let _ = word.compare_exchange(waits, NOTHING, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// A rank that waits looks, now and then. A turn or a claim that its rank does not take for [so many](LOOKS) looks,
    /// although it could, is passed over: the owner of the memory may take it for that rank, and call nothing. That
    /// rank still waits.
    pub(crate) fn look(&self, rank: u32, patience: &mut Patience) {
        let gate = self.gate();
        let could_enter = match gate.holder() {
            Some(_) => !gate.is_inside() && !self.is_shared(),
            None => gate.turn().is_some(),
        };
        if gate.0 != patience.gate || !could_enter || gate.rank() == Some(rank) {
            *patience = Patience { gate: gate.0, looks: 0 };
            return;
        }
        patience.looks += 1;
        if patience.looks >= LOOKS {
            self.pass(gate);
        }
    }

    /// Whosever turn or claim it is in this gate: it is the next one's turn now. `false`: the gate has changed.
    fn pass(&self, gate: Gate) -> bool {
        let next = self.next(gate.rank().unwrap_or(0));
        self.swap(gate, gate.to(next))
    }

    /// Gives the lock back.
    #[inline]
    pub(crate) fn unlock(&self, rank: u32, kind: Lock) {
        match kind {
            Lock::Exclusive => {
                // Nobody else changes it meanwhile.
                let next = self.gate().to(self.next(rank));
                self.word(LOCK).store(next.0, Ordering::Release);
            }
            Lock::Shared => {
                let word = self.word(RANKS + rank as usize);
                word.store(NOTHING, Ordering::Release);
            }
        }
    }

    /// The rank does not want the lock any more that it has waited for.
    pub(crate) fn cancel(&self, rank: u32) {
        self.say(rank, NOTHING);
        let mut gate = self.gate();
        // Others may take its claim away meanwhile, and then give it a turn.
        for _ in 0..TRIES {
            if gate.rank() != Some(rank) || self.pass(gate) {
                return;
            }
            gate = self.gate();
        }
    }

    /// A rank that keeps others from the lock, and is one of those that `is_lost` says.
    pub(crate) fn lost_holder(&self, is_lost: impl Fn(u32) -> bool) -> Option<u32> {
        let holder = self.gate();
        let alone = holder.rank().filter(|rank| holder.is_inside() && is_lost(*rank));
        let shares = |rank: &u32| shares(self.said(*rank)) && is_lost(*rank);
        alone.or_else(|| (0..self.ranks).find(shares))
    }

    /// Who keeps this rank, which waits, from the lock: who has it alone; or who shares it, while this rank claims it.
    pub(crate) fn named(&self, waits: u32) -> Option<Named> {
        let gate = self.gate();
        let of = |rank, shares| Named { rank, gate: gate.0, shares };
        let holder = gate.holder()?;
        if holder != waits {
            return gate.is_inside().then(|| of(holder, None));
        }
        let rank = self.sharer()?;
        let said = self.said(rank);
        shares(said).then(|| of(rank, Some(said)))
    }

    /// The rank that is named has not got the lock. Whether that was still said: it is not any more.
    pub(crate) fn disprove(&self, named: Named) -> bool {
        let Some(said) = named.shares else { return self.pass(Gate(named.gate)) };
        // If the claim has gone meanwhile, and the rank has begun to share the lock, it says so with another number.
        let word = self.word(RANKS + named.rank as usize);
        word.compare_exchange(said, NOTHING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the mutexes of these stripes, if all are free, or name nobody, or if their holders are dead: what those
    /// have left half done are elements of their own accumulations.
    #[inline]
    pub(crate) fn try_stripes(
        &self,
        rank: u32,
        stripes: Stripes,
        is_dead: impl Fn(u32) -> bool,
    ) -> bool {
        let own = u64::from(rank) + 1;
        let mut left = stripes.0;
        while left != 0 {
            let at = left.trailing_zeros();
            let mutex = self.mutex(at);
            let take = |old| mutex.compare_exchange(old, own, Ordering::Acquire, Ordering::Relaxed);
            let taken = take(0).or_else(|holder| {
                // No rank of ours wrote another number.
                let named = u32::try_from(holder - 1).ok().filter(|rank| *rank < self.ranks);
                if named.is_none_or(&is_dead) { take(holder) } else { Err(holder) }
            });
            if taken.is_err() {
                self.release_stripes(rank, Stripes(stripes.0 & ((1 << at) - 1)));
                return false;
            }
            left &= left - 1;
        }
        true
    }

    #[inline]
    fn mutex(&self, stripe: u32) -> &AtomicU64 {
        self.word(STRIPES + APART * stripe as usize)
    }

    /// Gives mutexes back, those that the rank still has: somebody who thinks it dead may have taken one over. That
    /// happens to a living one only if it has said that it leaves the job because of an error, while another thread of
    /// it is in a change: then changes of that stripe may be lost whatever is done here. So a look and a store are
    /// enough, and cost less than a locked instruction.
    #[inline]
    pub(crate) fn release_stripes(&self, rank: u32, stripes: Stripes) {
        let own = u64::from(rank) + 1;
        let mut left = stripes.0;
        while left != 0 {
            let mutex = self.mutex(left.trailing_zeros());
            if mutex.load(Ordering::Relaxed) == own {
                mutex.store(0, Ordering::Release);
            }
            left &= left - 1;
        }
    }

    /// A rank that has the mutex of one of these stripes, and is one of those that `is_lost` says.
    #[cold]
    pub(crate) fn lost_in_stripes(
        &self,
        stripes: Stripes,
        is_lost: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let some = (0..STRIPES_ALL).filter(|stripe| stripes.0 >> stripe & 1 != 0);
        let holder = |stripe| self.mutex(stripe).load(Ordering::Relaxed).checked_sub(1);
        some.filter_map(holder)
            .filter_map(|rank| u32::try_from(rank).ok())
            .find(|rank| is_lost(*rank))
    }
}

/// Some stripes of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stripes(u64);

impl Stripes {
    /// Those that bytes of the window lie in, too.
    #[inline]
    pub(crate) fn with(self, offset: u64, len: usize) -> Stripes {
        let Some(more) = (len as u64).checked_sub(1) else { return self };
        let first = offset >> STRIPE_BITS;
        let count = (offset.saturating_add(more) >> STRIPE_BITS) - first + 1;
        let some = if count < u64::from(STRIPES_ALL) { (1 << count) - 1 } else { u64::MAX };
        let turn = u32::try_from(first % u64::from(STRIPES_ALL)).unwrap_or(0);
        Stripes(self.0 | some.rotate_left(turn))
    }

    /// Bytes from this one to the end of its stripe.
    #[inline]
    pub(crate) fn rest(offset: u64) -> u64 {
        (1 << STRIPE_BITS) - (offset & ((1 << STRIPE_BITS) - 1))
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "vouches for memory of tests")]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_those_that_bytes_lie_in() {
        let of = |offset, len| Stripes::default().with(offset, len).0;
        assert_eq!([of(0, 0), of(0, 1), of(4095, 1), of(4095, 2)], [0, 1, 1, 3]);
        assert_eq!([of(4096, 4096), of(63 << 12, 1), of(64 << 12, 1)], [2, 1 << 63, 1]);
        assert_eq!(of((63 << 12) + 4095, 2), 1 << 63 | 1);
        assert_eq!([of(5, 63 << 12), of(0, 1 << 30)], [u64::MAX; 2]);
        assert_eq!(Stripes::default().with(0, 1).with(1 << 14, 8).0, 0b10001);
        assert_eq!(
            [Stripes::rest(0), Stripes::rest(4095), Stripes::rest(8192 + 96)],
            [4096, 1, 4000]
        );
    }
}
