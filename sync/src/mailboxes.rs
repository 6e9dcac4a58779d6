//! Mailboxes in memory that the ranks of one host share. Each rank has one: it alone writes short entries there, and
//! all others read them. Loads and stores only; no rank waits for another unless it needs what that one writes.
//!
//! Time goes in *rounds*, which all ranks count alike: two for each thing that they do together, and they may leave out
//! any. In a round a rank may publish one entry, of up to [`ENTRY_BYTES`], and read the entries of others:
//!
//! ```text
//! head: 128 bytes    sleep: a word a rank    then a mailbox a rank: 128 bytes or more, and entries
//!
//!   done, report, excused │ entry of round 5, 8, 13 … │ 2, 7, 10, 15 … │ 4, 9, 12 … │ 3, 6, 11, 14 … │
//!
//! an entry, 18 cache lines:
//!  word 0                                  words 1 … 7, or of more than 56 bytes 8 … 143
//! ┌────────────┬───────────┬─────────────┐┌──────────────────┐
//! │ length: 11 │ kind: 5   │ round: 48   ││ payload          │
//! └────────────┴───────────┴─────────────┘└──────────────────┘
//!  bits 0 … 10   11 … 15     16 … 63
//! ```
//!
//! Word 0 is stored last, with release: an entry of up to 56 bytes costs one cache line's journey, and a reader knows
//! by the round that it is the entry it awaits. Longer ones begin with a line, so that a part of one is as few lines as
//! can be. Rounds begin at 2, so fresh mailboxes, full of zeros, have no entries.
//!
//! # When an entry may be overwritten
//! When all that were to read it have. A rank that publishes in a round, or says that it is [done](Mailbox::finish),
//! has read what it wanted of all rounds before. So ranks that hear of each other in every round never ask, and others
//! look at `done`, once in a few rounds. [`Mailbox::blocked_by`] says for whom a rank has to wait.
//!
//! # Reports
//! What the ranks do together may take many steps, with data that lies elsewhere. Then each reports how far it is: a
//! [`Moment`], the number of a step in a round. Reports only grow, and a rank that waits for one is content with any
//! later one. Whoever reports a round's [last](Moment::last) step is done with that round's entries, too.
//!
//! # Who is lost
//! A rank waits no more for the reading of one that is lost to it ([`Mailbox::excuse`]). That one may live all the
//! same, and read what is overwritten now. So it is named in `excused` first, a bit for each rank, and asks after it
//! has read whether it is ([`Mailbox::was_excused`]): what it has read is not to be used then. The second word of the
//! head says whether any bit is set.
//!
//! # Sleep
//! A rank that falls asleep writes into its word of `sleep` whose entry it awaits, or who is to be done reading.
//! That one takes the word back to 0, and is told by [`Mailbox::wake`] to wake it by other means. [`Fences`] has the
//! handshake.
//!
//! # Who is trusted
//! The ranks may be processes that need not trust each other. Whatever is in the mailboxes, nothing here panics, hangs,
//! or touches other memory: a reader gets wrong bytes, or [`Broken`], of whoever broke the rules. One that waits for
//! what somebody has written over may wait for ever; whoever wrote it [finds that out](Mailbox::overwritten).

use crate::Fences;
use moment::STEP_BITS;
use primitive::{AtomicU64, Ordering, fence};
use std::cell::Cell;
use std::fmt;

mod moment;
mod reading;
#[allow(unsafe_code, reason = "moves many words at a time")]
mod words;

pub use moment::{Moment, STEP_MAX};

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Entries of a rank that are there at once.
const DEPTH: usize = if cfg!(loom) { 2 } else { 4 };
/// Words of an entry.
const ENTRY_WORDS: usize = if cfg!(loom) { 2 } else { 18 * LINE_WORDS };
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// What different ranks write lies so many words apart: processors fetch cache lines in pairs.
const APART: usize = if cfg!(loom) { 1 } else { 2 * LINE_WORDS };

/// Words of the head.
const HEAD_WORDS: usize = if cfg!(loom) { 2 } else { APART };
/// Of the words of a rank before its entries, the first that says whom it has excused.
const EXCUSED: usize = 2;

/// The most payload bytes of an entry.
pub const ENTRY_BYTES: usize = if cfg!(loom) { 8 } else { 1024 };

/// The longest payload that lies in the cache line of its flag. Longer ones begin with the next.
const BESIDE_FLAG: usize = (LINE_WORDS - 1) * 8;
/// The word that they begin with.
const FIRST_LONG: usize = if cfg!(loom) { 1 } else { LINE_WORDS };

/// The largest kind of an entry.
pub const KIND_MAX: u8 = 31;

const LEN_BITS: u32 = 11;
const ROUND_SHIFT: u32 = 16;
const _: () = assert!(ENTRY_BYTES < 1 << LEN_BITS && ENTRY_BYTES <= (ENTRY_WORDS - FIRST_LONG) * 8);
const _: () = assert!(STEP_BITS >= ROUND_SHIFT);
const _: () = assert!(KIND_MAX as u64 == (1 << (ROUND_SHIFT - LEN_BITS)) - 1);

/// What an entry is, beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The caller's own, up to [`KIND_MAX`].
    pub kind: u8,
    /// Payload bytes. A flag that was read may claim more than there can be.
    pub len: u16,
}

impl Flag {
    fn word(self, round: u64) -> u64 {
        round << ROUND_SHIFT | u64::from(self.kind & KIND_MAX) << LEN_BITS | u64::from(self.len)
    }

    fn of(word: u64) -> Flag {
        let [low, high, ..] = word.to_le_bytes();
        let [len_low, len_high] = [low, high & 0b111];
        Flag { kind: high >> 3, len: u16::from_le_bytes([len_low, len_high]) }
    }
}

/// Who reads an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All other ranks.
    All,
    /// This one.
    One(usize),
}

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// An entry or a report of this rank.
    Entry(usize),
    /// That this rank has read.
    Reader(usize),
}

impl Awaited {
    /// Never 0.
    fn word(self) -> u64 {
        match self {
            Awaited::Entry(rank) => (rank as u64 + 1) << 1,
            Awaited::Reader(rank) => (rank as u64 + 1) << 1 | 1,
        }
    }
}

/// A rank has written into the mailboxes what no rank writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rank.
    pub rank: usize,
    /// The round that was awaited.
    pub expected: u64,
    /// The round that was found.
    pub found: u64,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { rank, expected, found } = self;
        write!(
            f,
            "rank {rank} has written an entry of round {found} in the place of round {expected}"
        )
    }
}

impl std::error::Error for Broken {}

/// Shared memory as mailboxes for so many ranks.
#[derive(Clone, Copy, Debug)]
pub struct Mailboxes<'w> {
    words: &'w [AtomicU64],
    ranks: usize,
    own_words: usize,
}

impl<'w> Mailboxes<'w> {
    /// How many words it takes, zero at first.
    #[must_use]
    #[inline]
    pub fn words(ranks: usize) -> usize {
        let each = Self::own_words(ranks) + DEPTH * ENTRY_WORDS;
        ranks.saturating_mul(each).saturating_add(Self::first(ranks))
    }

    /// `None`: there are fewer words than [`words`](Mailboxes::words) asks for.
    #[must_use]
    pub fn new(words: &'w [AtomicU64], ranks: usize) -> Option<Mailboxes<'w>> {
        let mailboxes = Mailboxes { words, ranks, own_words: Self::own_words(ranks) };
        (words.len() >= Self::words(ranks)).then_some(mailboxes)
    }

    /// Words of a rank before its entries: a bit for each rank is among them.
    #[inline]
    fn own_words(ranks: usize) -> usize {
        (EXCUSED + ranks.div_ceil(64).max(1)).next_multiple_of(APART)
    }

    /// Where what belongs to a rank begins.
    #[inline]
    fn own(&self, local_rank: usize) -> usize {
        Self::first(self.ranks) + local_rank * (self.own_words + DEPTH * ENTRY_WORDS)
    }

    /// Where what belongs to rank 0 begins.
    #[inline]
    fn first(ranks: usize) -> usize {
        ranks.checked_next_multiple_of(APART).unwrap_or(usize::MAX).saturating_add(HEAD_WORDS)
    }

    /// A word for the caller's own use, zero at first.
    #[must_use]
    pub fn head(&self) -> &'w AtomicU64 {
        &self.words[0]
    }

    /// What a rank sleeps for.
    #[inline]
    fn sleep(&self, local_rank: usize) -> &'w AtomicU64 {
        &self.words[HEAD_WORDS + local_rank]
    }

    /// Not zero: some rank has excused another.
    #[inline]
    fn any_excused(&self) -> &'w AtomicU64 {
        &self.words[1]
    }

    /// The word in which a rank says whether it has excused `other`, and the bit.
    fn excused(&self, local_rank: usize, other: usize) -> (&'w AtomicU64, u64) {
        let bit = other.min(self.ranks.saturating_sub(1));
        (&self.words[self.own(local_rank) + EXCUSED + bit / 64], 1 << (bit % 64))
    }

    /// How many rounds a rank is done with, as it last said.
    #[inline]
    fn done(&self, local_rank: usize) -> &'w AtomicU64 {
        &self.words[self.own(local_rank)]
    }

    /// How far a rank is, as it last said.
    #[inline]
    fn report(&self, local_rank: usize) -> &'w AtomicU64 {
        &self.words[self.own(local_rank) + 1]
    }

    /// The place of a rank's entry.
    #[inline]
    fn entry(&self, local_rank: usize, round: u64) -> &'w [AtomicU64] {
        let at = self.own(local_rank) + self.own_words;
        let place = at + place(round) * ENTRY_WORDS;
        &self.words[place..place + ENTRY_WORDS]
    }
}

/// Which of a rank's places the entry of a round has. All places serve where only the first of two rounds is used.
#[inline]
fn place(round: u64) -> usize {
    let half = DEPTH as u64 / 2;
    usize::try_from((round / 2 + round % 2 * half) % DEPTH as u64).unwrap_or(0)
}

/// One rank's mailbox, as that rank has it: what it has written there, and what it knows of the others'.
#[derive(Debug)]
pub struct Mailbox {
    local_rank: usize,
    fences: Fences,
    /// This round.
    round: u64,
    /// What is in the places of this rank's entries: the round, and who reads it.
    written: [(u64, Option<Readers>); DEPTH],
    /// What it has said last that it is done with, and reported.
    said: Cell<[u64; 2]>,
    /// The rounds that each rank is done with, all below this, as far as is known.
    done: Box<[u64]>,
    /// How far each rank is, as far as is known.
    reported: Box<[Moment]>,
    /// The rounds that all ranks are done with, as far as is known without asking.
    floor: u64,
}

impl Mailbox {
    /// The mailbox of local rank `local_rank` of `ranks`, in fresh memory. All ranks have the same fences.
    #[must_use]
    pub fn new(local_rank: usize, ranks: usize, fences: Fences) -> Mailbox {
        let mut done = vec![1; ranks];
        if let Some(own) = done.get_mut(local_rank) {
            *own = u64::MAX;
        }
        let written = [(0, None); DEPTH];
        let reported = vec![Moment::NEVER; ranks].into();
        let said = Cell::new([0; 2]);
        Mailbox {
            local_rank,
            fences,
            round: 2,
            written,
            said,
            done: done.into(),
            reported,
            floor: 1,
        }
    }

    /// This round.
    #[must_use]
    #[inline]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The rank whose reading has to be waited for before this rank can [publish](Mailbox::publish) in this round.
    #[inline]
    pub fn blocked_by(&mut self, mailboxes: &Mailboxes<'_>) -> Option<usize> {
        let (round, readers) = self.written[place(self.round)];
        match readers {
            None => None,
            Some(_) if round < self.floor => None,
            Some(Readers::One(rank)) => self.is_behind(mailboxes, rank, round).then_some(rank),
            Some(Readers::All) => {
                let behind =
                    (0..self.done.len()).find(|rank| self.is_behind(mailboxes, *rank, round));
                if behind.is_none() {
                    self.floor = round + 1;
                }
                behind
            }
        }
    }

    /// Whether a rank is not known to be done with `round`: to have read what it wanted of it.
    #[inline]
    pub fn is_behind(&mut self, mailboxes: &Mailboxes<'_>, local_rank: usize, round: u64) -> bool {
        let Some(known) = self.done.get_mut(local_rank) else { return false };
        if *known <= round {
            // Acquire: it has read before what is stored next.
            let reported = Moment::of(mailboxes.report(local_rank).load(Ordering::Acquire)).done();
            let said = mailboxes.done(local_rank).load(Ordering::Acquire);
            *known = (*known).max(said).max(reported);
        }
        if *known <= round {
            // Whoever has written an entry is done with earlier rounds.
            let entries = (0..DEPTH as u64).map(|each| {
                mailboxes.entry(local_rank, 2 * each)[0].load(Ordering::Acquire) >> ROUND_SHIFT
            });
            *known = entries.fold(*known, u64::max);
        }
        *known <= round
    }

    /// Whether a rank is known to be done with `round`, without asking.
    #[inline]
    #[must_use]
    pub fn has_passed(&self, local_rank: usize, round: u64) -> bool {
        self.done.get(local_rank).is_some_and(|done| *done > round)
    }

    /// Reports that this rank has come so far; it [wakes sleepers](Mailbox::wake) afterwards.
    #[inline]
    pub fn report(&self, mailboxes: &Mailboxes<'_>, moment: Moment) {
        // Release: what it has written and read until now, wherever that is.
        mailboxes.report(self.local_rank).store(moment.word(), Ordering::Release);
        self.said.set([self.said.get()[0], moment.word()]);
    }

    /// Whether a rank has reported this moment, or a later one. What it did before, it has done.
    #[inline]
    pub fn reached(
        &mut self,
        mailboxes: &Mailboxes<'_>,
        local_rank: usize,
        moment: Moment,
    ) -> bool {
        let Some(known) = self.reported.get_mut(local_rank) else { return false };
        if *known < moment {
            *known = Moment::of(mailboxes.report(local_rank).load(Ordering::Acquire));
        }
        *known >= moment
    }

    /// Whether the steps of this round have ended for a rank that has [reached](Mailbox::reached) one of them, as far
    /// as is known: it has failed, or is beyond the round.
    #[inline]
    #[must_use]
    pub fn has_left(&self, local_rank: usize) -> bool {
        self.reported.get(local_rank).is_some_and(|known| *known > Moment::last(self.round))
    }

    /// Whether a rank has reported that it has given up in `round`.
    #[must_use]
    pub fn has_given_up(&self, mailboxes: &Mailboxes<'_>, local_rank: usize, round: u64) -> bool {
        Moment::of(mailboxes.report(local_rank).load(Ordering::Acquire)) == Moment::given_up(round)
    }

    /// Whether a rank's entry of the round after `round` is there, and of this kind.
    #[must_use]
    pub fn foretells(
        &self,
        mailboxes: &Mailboxes<'_>,
        local_rank: usize,
        round: u64,
        kind: u8,
    ) -> bool {
        let word = mailboxes.entry(local_rank, round + 1)[0].load(Ordering::Acquire);
        word >> ROUND_SHIFT == round + 1 && Flag::of(word).kind == kind
    }

    /// Publishes this rank's entry of this round: the first [`ENTRY_BYTES`] of `data`. The caller has asked
    /// [`blocked_by`](Mailbox::blocked_by), and [wakes sleepers](Mailbox::wake) afterwards.
    #[inline]
    pub fn publish(&mut self, mailboxes: &Mailboxes<'_>, kind: u8, data: &[u8], readers: Readers) {
        let data = &data[..data.len().min(ENTRY_BYTES)];
        let (flag, payload) = split(mailboxes.entry(self.local_rank, self.round), data.len());
        words::store(payload, data, mailboxes.ranks == 2);
        let len = u16::try_from(data.len()).unwrap_or(0);
        flag.store(Flag { kind, len }.word(self.round), Ordering::Release);
        self.written[place(self.round)] = (self.round, Some(readers));
    }

    /// The entry of this round of another rank, if it is there. It never comes if one of a later round has its place:
    /// the rank has left out this one.
    ///
    /// # Errors
    /// There is one that has another place.
    #[inline]
    pub fn look(
        &mut self,
        mailboxes: &Mailboxes<'_>,
        local_rank: usize,
    ) -> Result<Option<Flag>, Broken> {
        let word = mailboxes.entry(local_rank, self.round)[0].load(Ordering::Acquire);
        let found = word >> ROUND_SHIFT;
        if found == self.round {
            if let Some(done) = self.done.get_mut(local_rank) {
                *done = found.max(*done);
            }
            return Ok(Some(Flag::of(word)));
        }
        match found > self.round && place(found) != place(self.round) {
            true => Err(Broken { rank: local_rank, expected: self.round, found }),
            false => Ok(None),
        }
    }

    /// Begins the first of the two rounds of what the ranks do together for the `number`th time, counted from 0, unless
    /// that is over.
    #[inline]
    pub fn begin(&mut self, number: u64) {
        self.round =
            self.round.max(number.saturating_mul(2).saturating_add(2) & (u64::MAX >> STEP_BITS));
    }

    /// This rank has read what it wanted of this round: the next one begins.
    #[inline]
    pub fn next_round(&mut self) {
        self.round += 1;
    }

    /// All ranks have begun `round`, as is known from entries that were read: they are done with those before.
    #[inline]
    pub fn all_began(&mut self, round: u64) {
        self.floor = self.floor.max(round);
    }

    /// Tells the others that this rank is done with all rounds before this one. It [wakes sleepers](Mailbox::wake)
    /// afterwards.
    #[inline]
    pub fn finish(&self, mailboxes: &Mailboxes<'_>) {
        mailboxes.done(self.local_rank).store(self.round, Ordering::Release);
        self.said.set([self.round, self.said.get()[1]]);
    }

    /// What somebody else has written over that this rank wrote, and others may wait for.
    #[must_use]
    pub fn overwritten(&self, mailboxes: &Mailboxes<'_>) -> Option<Broken> {
        let [done, report] = self.said.get();
        let words =
            [(mailboxes.done(self.local_rank), done), (mailboxes.report(self.local_rank), report)];
        let words = words.map(|(word, said)| (word.load(Ordering::Relaxed), said));
        let entries = self.written.iter().filter(|(_, readers)| readers.is_some());
        let entries = entries.map(|(round, _)| {
            (
                mailboxes.entry(self.local_rank, *round)[0].load(Ordering::Relaxed) >> ROUND_SHIFT,
                *round,
            )
        });
        let (found, expected) =
            words.into_iter().chain(entries).find(|(found, said)| found != said)?;
        Some(Broken { rank: self.local_rank, expected, found })
    }

    /// A rank is lost: nobody waits here for its reading any more. Should it still read, it [finds
    /// out](Mailbox::was_excused).
    pub fn excuse(&mut self, mailboxes: &Mailboxes<'_>, local_rank: usize) {
        let Some(done) = self.done.get_mut(local_rank) else { return };
        *done = u64::MAX;
        let (word, bit) = mailboxes.excused(self.local_rank, local_rank);
        // Nobody else writes it.
        word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        mailboxes.any_excused().store(1, Ordering::Relaxed);
        // Whoever sees what is written from now on, here or elsewhere, sees both.
        fence(Ordering::SeqCst);
    }

    /// The first of these ranks that has [excused](Mailbox::excuse) this one: what was read of it until now may be
    /// anything, in the mailboxes and elsewhere. Costs a load of a line that nobody writes, while nobody is lost.
    #[inline]
    #[must_use]
    pub fn was_excused(
        &self,
        mailboxes: &Mailboxes<'_>,
        mut by: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        // What was read was read before.
        fence(Ordering::Acquire);
        if mailboxes.any_excused().load(Ordering::Relaxed) == 0 {
            return None;
        }
        by.find(|rank| {
            let (word, bit) = mailboxes.excused(*rank, self.local_rank);
            *rank != self.local_rank && word.load(Ordering::Relaxed) & bit != 0
        })
    }

    /// After an entry was published, or this rank is done reading: gives the ranks to be woken, and takes their words
    /// back. Costs a load a rank, of lines that nobody writes, while all are awake.
    #[inline]
    pub fn wake(
        &self,
        mailboxes: &Mailboxes<'_>,
        readers: Readers,
        mut wake_up: impl FnMut(usize),
    ) {
        self.fences.hurried();
        let mut look = |rank: usize| {
            let word = mailboxes.sleep(rank);
            let asleep = word.load(Ordering::Relaxed);
            if asleep != 0 && self.wakes(asleep, word) {
                wake_up(rank);
            }
        };
        match readers {
            Readers::All => (0..self.done.len()).for_each(look),
            Readers::One(rank) if rank < self.done.len() => look(rank),
            Readers::One(_) => {}
        }
    }

    /// Whether a sleeper waits for this rank. Then its word is taken back, for it is woken.
    #[cold]
    fn wakes(&self, asleep: u64, word: &AtomicU64) -> bool {
        let mine =
            [Awaited::Entry(self.local_rank), Awaited::Reader(self.local_rank)].map(Awaited::word);
        let take = || word.compare_exchange(asleep, 0, Ordering::Relaxed, Ordering::Relaxed);
        mine.contains(&asleep) && take().is_ok()
    }

    /// Announces sleep. Afterwards this rank looks a last time for what it awaits, and sleeps until it is woken.
    /// `false`: it must not sleep.
    #[must_use]
    pub fn arm(&self, mailboxes: &Mailboxes<'_>, awaited: Awaited) -> bool {
        mailboxes.sleep(self.local_rank).store(awaited.word(), Ordering::Relaxed);
        self.fences.patient()
    }

    /// Takes the announcement back. A wake-up may be on its way all the same.
    pub fn disarm(&self, mailboxes: &Mailboxes<'_>) {
        mailboxes.sleep(self.local_rank).store(0, Ordering::Relaxed);
    }
}

/// An entry's flag, and the words of a payload of so many bytes.
#[inline]
fn split(entry: &[AtomicU64], len: usize) -> (&AtomicU64, &[AtomicU64]) {
    (&entry[0], if len <= BESIDE_FLAG { &entry[1..] } else { &entry[FIRST_LONG..] })
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
