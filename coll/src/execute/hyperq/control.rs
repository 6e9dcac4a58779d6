//! Words in memory that all ranks share, by which a leader and the others tell each other what to do and what is done.
//!
//! ```text
//! for each rank, 16 words, in which it alone writes          for each pair of leader and rank, 64 words, in which
//!  0      arrived: number of the call, here or elsewhere     the leader alone writes
//!  1, 2   its GPU                                             0      orders
//!  3      whether its buffers are plain                       1      chunks taken         ┐ tagged likewise
//!  4      chunks staged        ┐ low half of the call's       2      bytes mirrored       ┘
//!  5      reports              ┘ number, and a value          3      who is to blame
//!                                                             4      generation of the keys
//!                                                             5, 6   the first and the last failed call
//!                                                             8..20  key of the leader's buffer
//!                                                             20..32 key of its staging memory
//! for each pair of ranks, in which the first alone writes for its GPU leader, the second
//!                                                             32     lent: number of the call, and 1
//!                                                             33..45 key of what it gives
//!                                                             45..57 key of what it receives into
//! ```
//!
//! A word that is tagged with another call's number says nothing. What stands behind a word was written before it.

use std::sync::atomic::{AtomicU64, Ordering};

use gapless_bml::RemoteKey;
use gapless_mem::Words;

/// Words in which a rank writes.
const OWN_WORDS: usize = 16;
/// Words in which a leader writes for a rank.
const PAIR_WORDS: usize = 64;

/// With more ranks there is no control memory.
pub(in crate::execute) const RANKS_MAX: usize = 64;

/// Orders, by bits: copy by IPC into the leader's buffer,
pub(super) const GATHER_IPC: u32 = 1;
/// or through staging memory;
pub(super) const GATHER_STAGED: u32 = 1 << 1;
/// do not stage what is left;
pub(super) const GATHER_DROP: u32 = 1 << 2;
/// all ranks are here, and all was gathered;
pub(super) const GO: u32 = 1 << 3;
/// copy out of the leader's buffer by IPC,
pub(super) const SCATTER_IPC: u32 = 1 << 4;
/// or through staging memory;
pub(super) const SCATTER_STAGED: u32 = 1 << 5;
/// the collective is done by other means;
pub(super) const ELSEWHERE: u32 = 1 << 6;
/// what is mirrored for it is there twice;
pub(super) const SCATTER_TWICE: u32 = 1 << 8;
/// GPU leaders work for all: lend yours what you give and what you receive into;
pub(super) const LEND: u32 = 1 << 9;
/// all GPU leaders have combined what their GPUs have: go on with what the others have;
pub(super) const JOIN: u32 = 1 << 10;
/// a GPU leader starts nothing more, and says when all that it has started is over;
pub(super) const HALT: u32 = 1 << 11;
/// it has failed; the word of blame says who, and whether that rank is lost.
pub(super) const FAILED: u32 = 1 << 7;
/// All ranks' buffers are on devices: the collective is done by messages.
pub(super) const MESSAGES: u32 = 1 << 12;

/// Reports, by bits: the IPC copy of the gather has ended,
pub(super) const GATHERED: u32 = 1;
/// the copy of the scatter has ended,
pub(super) const SCATTERED: u32 = 1 << 1;
/// this rank has failed,
pub(super) const BROKEN: u32 = 1 << 2;
/// this rank cannot map what it was given keys of.
pub(super) const CANNOT: u32 = 1 << 3;
/// this rank knows that all was gathered, or that it goes by messages: the leader may write orders of later calls.
pub(super) const SEEN: u32 = 1 << 4;
/// What this GPU leader's GPU has is combined, and others may read it;
pub(super) const COMBINED: u32 = 1 << 5;
/// all on this GPU leader's GPU have what they get;
pub(super) const SPREAD: u32 = 1 << 6;
/// this GPU leader has started nothing that is not over.
pub(super) const SETTLED: u32 = 1 << 7;

/// What a rank says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has not come so far.
    Away,
    /// It is there, with buffers on this GPU.
    Here(u128),
    /// It does the call by other means, or is past it.
    Elsewhere,
}

/// Which key.
#[derive(Clone, Copy, Debug)]
pub(super) enum WhichKey {
    Buffer,
    Staging,
    Given,
    Received,
}

/// The words.
#[derive(Debug)]
pub(in crate::execute) struct Control {
    words: Words,
    ranks: usize,
}

/// A value of a call.
fn tagged(number: u64, value: u32) -> u64 {
    number << 32 | u64::from(value)
}

/// The value, if it is of this call.
fn value(word: u64, number: u64) -> u32 {
    match word >> 32 == number & 0xFFFF_FFFF {
        true => low(word),
        false => 0,
    }
}

fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl Control {
    /// Bytes for so many ranks; 0: they have none.
    pub(in crate::execute) fn bytes(ranks: usize) -> u64 {
        match ranks {
            2..=RANKS_MAX => 8 * (OWN_WORDS * ranks + PAIR_WORDS * ranks * ranks) as u64,
            _ => 0,
        }
    }

    /// `None`: there are too few.
    pub(in crate::execute) fn new(words: Words, ranks: usize) -> Option<Control> {
        let bytes = Control::bytes(ranks);
        (bytes > 0 && 8 * words.all().len() as u64 >= bytes).then_some(Control { words, ranks })
    }

    fn own(&self, rank: usize, at: usize) -> &AtomicU64 {
        &self.words.all()[rank * OWN_WORDS + at]
    }

    fn pair(&self, leader: usize, rank: usize, at: usize) -> &AtomicU64 {
        let first = self.ranks * OWN_WORDS + (leader * self.ranks + rank) * PAIR_WORDS;
        &self.words.all()[first + at]
    }

    /// This rank has come to a call with buffers on a GPU, or does it by other means. `plain`: whether they are.
    pub(super) fn arrive(&self, me: usize, number: u64, gpu: Option<u128>, plain: bool) {
        if let Some(gpu) = gpu {
            let half = |half: u128| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0);
            let [first, second] = [half(gpu), half(gpu >> 64)];
            self.own(me, 1).store(first, Ordering::Relaxed);
            self.own(me, 2).store(second, Ordering::Relaxed);
            self.own(me, 3).store(u64::from(plain), Ordering::Relaxed);
        }
        let word = (number + 1) << 1 | u64::from(gpu.is_some());
        self.own(me, 0).store(word, Ordering::Release);
    }

    /// Whether a rank has come to a call.
    pub(super) fn presence(&self, rank: usize, number: u64) -> Presence {
        let word = self.own(rank, 0).load(Ordering::Acquire);
        match (word >> 1).cmp(&(number + 1)) {
            std::cmp::Ordering::Less => Presence::Away,
            std::cmp::Ordering::Equal if word & 1 == 1 => {
                let half = |at| u128::from(self.own(rank, at).load(Ordering::Relaxed));
                Presence::Here(half(1) | half(2) << 64)
            }
            _ => Presence::Elsewhere,
        }
    }

    /// Whether the buffers of a rank that is here are plain memory.
    pub(super) fn is_plain(&self, rank: usize) -> bool {
        self.own(rank, 3).load(Ordering::Relaxed) == 1
    }

    /// A call has failed. A rank that is late finds that even if orders of a later call stand where this one's did. Of
    /// the failures since the rank was last seen, the first and the last are kept: what lies between is taken for
    /// failed, too.
    pub(super) fn fail(&self, me: usize, rank: usize, number: u64) {
        let [first, last] = [5, 6].map(|at| self.pair(me, rank, at));
        let known = last.load(Ordering::Relaxed);
        let is_past = |last: u64| self.presence(rank, last - 1) == Presence::Elsewhere;
        if known == 0 || is_past(known) {
            last.store(0, Ordering::Release);
            first.store(number + 1, Ordering::Release);
        }
        last.store(number + 1, Ordering::Release);
    }

    /// Whether a leader has said that a call failed.
    pub(super) fn failed(&self, leader: usize, me: usize, number: u64) -> bool {
        let [first, last] = [5, 6].map(|at| self.pair(leader, me, at));
        // In this order: the first is that of this last one, or of a later one.
        let last = last.load(Ordering::Acquire);
        let first = first.load(Ordering::Acquire);
        (first..=last).contains(&(number + 1))
    }

    pub(super) fn report_staged(&self, me: usize, number: u64, chunks: u32) {
        self.own(me, 4).store(tagged(number, chunks), Ordering::Release);
    }

    pub(super) fn staged(&self, rank: usize, number: u64) -> u32 {
        value(self.own(rank, 4).load(Ordering::Acquire), number)
    }

    pub(super) fn report(&self, me: usize, number: u64, bits: u32) {
        self.own(me, 5).store(tagged(number, bits), Ordering::Release);
    }

    pub(super) fn reports(&self, rank: usize, number: u64) -> u32 {
        value(self.own(rank, 5).load(Ordering::Acquire), number)
    }

    pub(super) fn order(&self, leader: usize, rank: usize, number: u64, bits: u32) {
        self.pair(leader, rank, 0).store(tagged(number, bits), Ordering::Release);
    }

    pub(super) fn orders(&self, leader: usize, rank: usize, number: u64) -> u32 {
        value(self.pair(leader, rank, 0).load(Ordering::Acquire), number)
    }

    pub(super) fn report_taken(&self, leader: usize, rank: usize, number: u64, chunks: u32) {
        self.pair(leader, rank, 1).store(tagged(number, chunks), Ordering::Release);
    }

    pub(super) fn taken(&self, leader: usize, rank: usize, number: u64) -> u32 {
        value(self.pair(leader, rank, 1).load(Ordering::Acquire), number)
    }

    /// `pieces`: of `mirror_chunk` bytes ([`Staging::mirrored`](crate::hyperq::Staging::mirrored)).
    pub(super) fn report_mirrored(&self, leader: usize, rank: usize, number: u64, pieces: u32) {
        self.pair(leader, rank, 2).store(tagged(number, pieces), Ordering::Release);
    }

    pub(super) fn mirrored(&self, leader: usize, rank: usize, number: u64) -> u32 {
        value(self.pair(leader, rank, 2).load(Ordering::Acquire), number)
    }

    /// Written before [`FAILED`].
    pub(super) fn blame(&self, leader: usize, rank: usize, culprit: u32, is_lost: bool) {
        let word = u64::from(culprit) << 1 | u64::from(is_lost);
        self.pair(leader, rank, 3).store(word, Ordering::Relaxed);
    }

    /// Who is to blame, and whether that rank is lost.
    pub(super) fn blamed(&self, leader: usize, rank: usize) -> (u32, bool) {
        let word = self.pair(leader, rank, 3).load(Ordering::Relaxed);
        (low(word >> 1), word & 1 == 1)
    }

    /// Writes the keys of a generation, before the orders that need them.
    pub(super) fn give_keys(
        &self,
        leader: usize,
        rank: usize,
        generation: u64,
        keys: [(WhichKey, &RemoteKey); 2],
    ) {
        for (which, key) in keys {
            self.write_key((leader, rank), which, key);
        }
        self.pair(leader, rank, 4).store(generation, Ordering::Release);
    }

    fn write_key(&self, (from, to): (usize, usize), which: WhichKey, key: &RemoteKey) {
        let first = Control::key_at(which);
        let bytes = key.as_bytes();
        self.pair(from, to, first).store(bytes.len() as u64, Ordering::Relaxed);
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let place = self.pair(from, to, first + 1 + at);
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// A rank lends its GPU leader buffers, or one GPU leader another what it has given keys of.
    pub(super) fn lend(
        &self,
        (me, gpu_leader): (usize, usize),
        number: u64,
        keys: impl IntoIterator<Item = (WhichKey, RemoteKey)>,
    ) {
        for (which, key) in keys {
            self.write_key((me, gpu_leader), which, &key);
        }
        self.pair(me, gpu_leader, 32).store(tagged(number, 1), Ordering::Release);
    }

    /// Whether a rank has lent its GPU leader buffers.
    pub(super) fn has_lent(&self, rank: usize, gpu_leader: usize, number: u64) -> bool {
        value(self.pair(rank, gpu_leader, 32).load(Ordering::Acquire), number) == 1
    }

    fn key_at(which: WhichKey) -> usize {
        match which {
            WhichKey::Buffer => 8,
            WhichKey::Staging => 20,
            WhichKey::Given => 33,
            WhichKey::Received => 45,
        }
    }

    pub(super) fn generation(&self, leader: usize, rank: usize) -> u64 {
        self.pair(leader, rank, 4).load(Ordering::Acquire)
    }

    pub(super) fn key(&self, leader: usize, rank: usize, which: WhichKey) -> Option<RemoteKey> {
        let first = Control::key_at(which);
        let len = self.pair(leader, rank, first).load(Ordering::Relaxed);
        let len = usize::try_from(len).ok().filter(|len| *len <= RemoteKey::MAX_BYTES)?;
        let words = 0..RemoteKey::MAX_BYTES.div_ceil(8);
        let word = |at| self.pair(leader, rank, first + 1 + at).load(Ordering::Relaxed);
        let bytes: Vec<u8> = words.flat_map(|at| word(at).to_le_bytes()).collect();
        RemoteKey::new(bytes.get(..len)?)
    }
}

const _: () = assert!(RemoteKey::MAX_BYTES.div_ceil(8) < 12);

#[cfg(test)]
#[allow(unsafe_code, reason = "makes words of memory of its own")]
mod tests {
    use super::*;
    use crate::execute::memory::Memory;
    use gapless_mem::Lease;

    /// The memory outlives the words: it is leaked.
    fn control(ranks: usize) -> Option<Control> {
        let memory: &'static Memory =
            Box::leak(Box::new(Memory::new(Control::bytes(ranks).max(8))?));
        // SAFETY: it is never freed.
        let lease = unsafe { Lease::kept_by_caller(memory.region()) };
        // SAFETY: it is zeroed, and nothing else touches it.
        Control::new(unsafe { Words::new(lease) }.ok()?, ranks)
    }

    #[test]
    fn what_is_said_of_one_call_says_nothing_of_another() {
        let control = control(3).unwrap();
        assert_eq!(control.presence(1, 0), Presence::Away);
        control.arrive(1, 0, Some(7 | 9 << 64), true);
        assert!(control.is_plain(1));
        assert_eq!(control.presence(1, 0), Presence::Here(7 | 9 << 64));
        assert_eq!(control.presence(1, 1), Presence::Away);
        control.arrive(1, 5, None, false);
        assert_eq!(
            [4, 5, 6].map(|number| control.presence(1, number)),
            [Presence::Elsewhere, Presence::Elsewhere, Presence::Away]
        );
        control.order(0, 1, 5, GO | GATHER_IPC);
        assert_eq!([4, 5, 6].map(|number| control.orders(0, 1, number)), [0, GO | GATHER_IPC, 0]);
        assert_eq!((control.orders(1, 0, 5), control.orders(0, 2, 5)), (0, 0));
        control.report_staged(2, 8, 3);
        control.report(2, 8, GATHERED);
        control.report_taken(0, 2, 8, 2);
        control.report_mirrored(0, 2, 8, 1);
        let all = |number| {
            let own = [control.staged(2, number), control.reports(2, number)];
            (own, control.taken(0, 2, number), control.mirrored(0, 2, number))
        };
        assert_eq!((all(8), all(9)), (([3, GATHERED], 2, 1), ([0, 0], 0, 0)));
        let failed = |numbers: [u64; 4]| numbers.map(|number| control.failed(0, 2, number));
        assert_eq!(failed([0, 7, 8, 9]), [false; 4]);
        control.arrive(2, 6, None, false);
        control.fail(0, 2, 8);
        control.fail(0, 2, 11);
        // Nothing has been seen of the rank since.
        assert_eq!(failed([7, 8, 11, 12]), [false, true, true, false]);
        control.arrive(2, 12, None, false);
        control.fail(0, 2, 14);
        assert_eq!(failed([8, 12, 13, 14]), [false, false, false, true]);
        assert!(!control.failed(0, 1, 14) && !control.failed(1, 2, 14));
        control.blame(0, 2, 41, true);
        assert_eq!(control.blamed(0, 2), (41, true));
    }

    #[test]
    fn keys_come_as_they_went() {
        let control = control(2).unwrap();
        assert_eq!(control.generation(0, 1), 0);
        let [one, other] = [80, 13].map(|len| RemoteKey::new(&vec![len; len.into()]).unwrap());
        control.give_keys(0, 1, 4, [(WhichKey::Buffer, &one), (WhichKey::Staging, &other)]);
        assert_eq!(control.generation(0, 1), 4);
        assert_eq!(control.key(0, 1, WhichKey::Buffer), Some(one));
        assert_eq!(control.key(0, 1, WhichKey::Staging), Some(other));
        control.lend((1, 0), 9, [(WhichKey::Given, other), (WhichKey::Received, one)]);
        assert_eq!([8, 9].map(|number| control.has_lent(1, 0, number)), [false, true]);
        assert_eq!(control.key(1, 0, WhichKey::Given), Some(other));
        assert_eq!(control.key(1, 0, WhichKey::Received), Some(one));
        assert_eq!(control.key(0, 1, WhichKey::Buffer), Some(one), "what it lent as a leader");
    }

    #[test]
    fn there_is_room_or_none() {
        assert!(control(RANKS_MAX).is_some());
        assert!([0, 1, RANKS_MAX + 1].iter().all(|ranks| Control::bytes(*ranks) == 0));
        assert!(control(1).is_none());
    }
}
