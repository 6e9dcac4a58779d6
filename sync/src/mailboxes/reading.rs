//! Reading others' entries.

use super::primitive::AtomicU64;
use super::primitive::Ordering;
use super::{
    BESIDE_FLAG, FIRST_LONG, Flag, LINE_WORDS, Mailbox, Mailboxes, ROUND_SHIFT, split, words,
};
use std::ops::Range;

impl Mailbox {
    /// Whether all of these ranks have written entries of this round; not this rank itself. The loads do not wait for
    /// each other, so it takes no longer than the slowest.
    #[inline]
    #[must_use]
    pub fn all_there(&self, mailboxes: &Mailboxes<'_>, ranks: Range<usize>) -> bool {
        let there = |rank: usize| {
            let word = mailboxes.entry(rank, self.round)[0].load(Ordering::Acquire);
            word >> ROUND_SHIFT >= self.round || rank == self.local_rank
        };
        ranks.fold(true, |all, rank| all & there(rank))
    }

    /// Whether the entries of this round of all of these ranks have this flag; `None`: not all are there. This rank's
    /// own is not looked at. `ahead`: words of a longer entry's payload that will be [read](Mailbox::read); of each
    /// entry that is there they are fetched, while others are awaited.
    #[inline]
    pub fn all_like(
        &mut self,
        mailboxes: &Mailboxes<'_>,
        ranks: Range<usize>,
        flag: Flag,
        ahead: Range<usize>,
    ) -> Option<bool> {
        let expected = flag.word(self.round);
        let (mut there, mut like, mut fetched) = (true, true, 0);
        for rank in ranks.clone().filter(|rank| *rank != self.local_rank) {
            let entry = mailboxes.entry(rank, self.round);
            let word = entry[0].load(Ordering::Acquire);
            there &= word >> ROUND_SHIFT >= self.round;
            like &= word == expected;
            if !ahead.is_empty() && word == expected {
                let words = entry[FIRST_LONG..].get(ahead.clone()).unwrap_or_default();
                for place in words.iter().step_by(LINE_WORDS) {
                    fetched ^= place.load(Ordering::Relaxed);
                }
            }
        }
        if !ahead.is_empty() {
            // Else the loads would be left out.
            std::hint::black_box(fetched);
        }
        if there && like {
            // Whoever has written an entry is done with earlier rounds.
            for done in self.done.get_mut(ranks).unwrap_or_default() {
                *done = self.round.max(*done);
            }
        }
        there.then_some(like)
    }

    /// The words of a payload of `len` bytes in which these bytes lie, to have them fetched
    /// [ahead](Mailbox::all_like); none if they lie in the line of the flag.
    #[inline]
    #[must_use]
    pub fn ahead(len: usize, bytes: &Range<usize>) -> Range<usize> {
        let first = bytes.start / (8 * LINE_WORDS) * LINE_WORDS;
        if len <= BESIDE_FLAG { 0..0 } else { first..bytes.end.div_ceil(8) }
    }

    /// The words in which `len` bytes lie, from byte `at` on, of the entry that [`look`](Mailbox::look) or
    /// [`all_like`](Mailbox::all_like) has seen: to use them where they are. `None`: they do not begin with a word,
    /// or no entry has them.
    #[inline]
    #[must_use]
    pub fn payload<'w>(
        &self,
        mailboxes: &Mailboxes<'w>,
        local_rank: usize,
        at: usize,
        len: usize,
    ) -> Option<&'w [AtomicU64]> {
        let entry = mailboxes.entry(local_rank, self.round);
        let len_in_flag = Flag::of(entry[0].load(Ordering::Relaxed)).len;
        let (_, payload) = split(entry, usize::from(len_in_flag));
        let end = at.checked_add(len)?.div_ceil(8);
        if at.is_multiple_of(8) { payload.get(at / 8..end) } else { None }
    }

    /// Copies bytes of the entry that [`look`](Mailbox::look) or [`all_like`](Mailbox::all_like) has seen, from byte
    /// `at` on, into private memory; what no entry can have is left as it is.
    #[inline]
    pub fn read(&self, mailboxes: &Mailboxes<'_>, local_rank: usize, at: usize, into: &mut [u8]) {
        let entry = mailboxes.entry(local_rank, self.round);
        let len = Flag::of(entry[0].load(Ordering::Relaxed)).len;
        let (_, payload) = split(entry, usize::from(len));
        let (skipped, mut within) = (at / 8, at % 8);
        let places = payload.get(skipped..).unwrap_or_default();
        if within == 0 {
            return words::load(places, into);
        }
        let mut left = into;
        for place in places {
            let bytes = place.load(Ordering::Relaxed).to_ne_bytes();
            let count = left.len().min(8 - within);
            let (now, later) = left.split_at_mut(count);
            now.copy_from_slice(&bytes[within..within + count]);
            (left, within) = (later, 0);
            if left.is_empty() {
                break;
            }
        }
    }
}
