//! The word that two processes share while both copy one message: which pieces are left, and whether the sender is
//! at work on one. The receiver takes pieces from the front, the sender from the back, until they meet.
//!
//! ```text
//!  bits 0 … 15   16 … 31   32 … 61   62       63
//! ┌────────────┬─────────┬─────────┬────────┬────────┐
//! │ front      │ back    │ turn    │ busy   │ closed │
//! └────────────┴─────────┴─────────┴────────┴────────┘
//! ```
//!
//! Pieces `front..back` are nobody's yet. `busy`: the sender works on what it took last. `closed`: the receiver wants no more
//! help. `turn` numbers the messages over one word, so that a sender that comes late takes nothing of the next.

use gapless_bml::{Allocation, Mapping};
use gapless_mem::{DeviceError, Region, exchange_word, load_word};
use std::ops::Range;

const TURN_BITS: u32 = 30;
const BUSY: u64 = 1 << 62;
const CLOSED: u64 = 1 << 63;

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) front: u16,
    pub(super) back: u16,
    pub(super) turn: u32,
    pub(super) busy: bool,
    pub(super) closed: bool,
}

impl State {
    /// All of `pieces` are left.
    pub(super) fn new(pieces: u16, turn: u32) -> State {
        State { front: 0, back: pieces, turn: turn_of(turn), busy: false, closed: false }
    }

    pub(super) fn encode(self) -> u64 {
        let flag = |set, bit| if set { bit } else { 0 };
        u64::from(self.front)
            | u64::from(self.back) << 16
            | u64::from(self.turn) << 32
            | flag(self.busy, BUSY)
            | flag(self.closed, CLOSED)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each part is cut out")]
    pub(super) fn decode(word: u64) -> State {
        State {
            front: word as u16,
            back: (word >> 16) as u16,
            turn: turn_of((word >> 32) as u32),
            busy: word & BUSY != 0,
            closed: word & CLOSED != 0,
        }
    }

    /// How many pieces to take at once: of many, several, so that neither end asks often; of few, one, so that
    /// neither waits long for the other.
    fn share(self, most: u16) -> u16 {
        ((self.back - self.front) / 4).clamp(1, most.max(1))
    }

    /// The receiver takes from the front.
    pub(super) fn take_front(self, most: u16) -> Option<(State, Range<u16>)> {
        if self.front >= self.back {
            return None;
        }
        let end = self.front + self.share(most);
        Some((State { front: end, ..self }, self.front..end))
    }

    /// The sender takes from the back; `None` if nothing is left for it.
    pub(super) fn take_back(self, most: u16) -> Option<(State, Range<u16>)> {
        if self.front >= self.back || self.closed {
            return None;
        }
        let start = self.back - self.share(most);
        Some((State { back: start, busy: true, ..self }, start..self.back))
    }

    /// Whether it can have come from `earlier`, by what the sender may do.
    pub(super) fn follows(self, earlier: State) -> bool {
        let back = self.back == earlier.back
            || (!earlier.closed && (earlier.front..earlier.back).contains(&self.back));
        let kept = (self.front, self.turn, self.closed);
        // It is at work only after it took something.
        let busy = !self.busy || earlier.busy || self.back < earlier.back;
        back && busy && kept == (earlier.front, earlier.turn, earlier.closed)
    }
}

fn turn_of(number: u32) -> u32 {
    number & ((1 << TURN_BITS) - 1)
}

/// What keeps a word's memory.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "held for what they keep")]
enum Hold {
    Ours(Allocation),
    Theirs(Mapping),
}

/// The word itself: the first one of its region.
#[derive(Clone, Debug)]
pub(super) struct Word {
    region: Region,
    _hold: Hold,
}

impl Word {
    /// In memory of ours, which was allocated for it alone.
    pub(super) fn ours(allocation: &Allocation) -> Word {
        Word { region: allocation.region(), _hold: Hold::Ours(allocation.clone()) }
    }

    /// In memory of the peer's, which it gave the key of for this.
    pub(super) fn theirs(mapping: Mapping) -> Word {
        Word { region: mapping.region(), _hold: Hold::Theirs(mapping) }
    }

    pub(super) fn load(&self) -> Result<State, DeviceError> {
        // SAFETY: the hold keeps the memory, which this process touches through here alone, `reset` included.
        unsafe { load_word(&self.region, 0) }.map(State::decode)
    }

    /// Puts `new` in the place of `old`, if that is still there; gives what was found.
    pub(super) fn exchange(&self, old: State, new: State) -> Result<State, DeviceError> {
        // SAFETY: as in `load`.
        let found = unsafe { exchange_word(&self.region, 0, old.encode(), new.encode()) };
        found.map(State::decode)
    }

    /// Puts `new` in the place of whatever is there.
    pub(super) fn reset(&self, new: State) -> Result<(), DeviceError> {
        let mut old = self.load()?;
        // A peer that goes on writing spoils its own message.
        for _ in 0..1000 {
            let found = self.exchange(old, new)?;
            if found == old {
                break;
            }
            old = found;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::testkit::Rng;

    #[test]
    fn a_word_is_read_as_it_was_written() {
        for word in [0, u64::MAX, 0x1234_5678_9abc_def0, BUSY, CLOSED, 0xffff, 0xffff << 16] {
            assert_eq!(State::decode(word).encode(), word);
        }
        let state = State::new(7, u32::MAX);
        assert_eq!(State::decode(state.encode()), state);
    }

    #[test]
    fn every_piece_is_taken_once_and_states_follow_each_other() {
        let mut rng = Rng::new(1);
        for pieces in (1..100).chain([1000, u16::MAX]) {
            let (mut state, mut seen) = (State::new(pieces, 3), vec![false; usize::from(pieces)]);
            let mut last = state;
            loop {
                let most = 1 + u16::try_from(rng.below(20)).unwrap();
                let front = rng.below(2) == 0;
                let took = if front { state.take_front(most) } else { state.take_back(most) };
                let Some((next, range)) = took else { break };
                assert!(!range.is_empty() && range.len() <= usize::from(most));
                if front {
                    assert!(state.follows(last));
                    last = next;
                } else {
                    assert!(next.follows(last) && next.busy);
                }
                for piece in range {
                    assert!(!std::mem::replace(&mut seen[usize::from(piece)], true));
                }
                state = next;
            }
            assert!(seen.iter().all(|seen| *seen), "{pieces}");
            assert!(State { busy: false, ..state }.follows(last));
        }
    }

    #[test]
    fn what_a_sender_may_not_do_is_noticed() {
        let state = State { front: 3, ..State::new(10, 5) };
        let busy = State { busy: true, back: 8, ..state };
        for wrong in [
            State { front: 4, ..state },
            State { back: 2, ..state },
            State { back: 11, ..state },
            State { turn: 6, ..state },
            State { closed: true, ..state },
            State { busy: true, ..state },
        ] {
            assert!(!wrong.follows(state), "{wrong:?}");
        }
        let closed = State { closed: true, ..busy };
        assert!(!State { back: 7, ..closed }.follows(closed));
        assert!(State { busy: false, ..closed }.follows(closed));
        assert!(closed.take_back(1).is_none());
    }
}
