//! How far a rank is, as it reports.

/// The number of the last step before a round's end.
pub const STEP_MAX: u32 = (1 << STEP_BITS) - 4;

/// Bits of a moment's step. The others are its round.
pub(super) const STEP_BITS: u32 = 20;

/// A step of a round. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Before everything.
    pub const NEVER: Moment = Moment(0);

    /// Step `step` of a round, at most [`STEP_MAX`].
    #[must_use]
    #[inline]
    pub fn new(round: u64, step: u32) -> Moment {
        Moment(round << STEP_BITS | u64::from(step.min(STEP_MAX)))
    }

    /// All steps of a round are over.
    #[must_use]
    #[inline]
    pub fn last(round: u64) -> Moment {
        Moment((round << STEP_BITS) | (u64::from(STEP_MAX) + 1))
    }

    /// The steps of a round end here: they cannot be done.
    #[must_use]
    #[inline]
    pub fn failed(round: u64) -> Moment {
        Moment((round << STEP_BITS) | (u64::from(STEP_MAX) + 2))
    }

    /// The rank has given up in a round: nothing of what it has shown in it is to be believed.
    #[must_use]
    #[inline]
    pub fn given_up(round: u64) -> Moment {
        Moment((round << STEP_BITS) | (u64::from(STEP_MAX) + 3))
    }

    /// As it is written into the mailboxes.
    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn of(word: u64) -> Moment {
        Moment(word)
    }

    /// The rounds whose entries are not needed any more: all below this. After the last step of a round, the second
    /// round of what the ranks do together is over, too.
    #[inline]
    pub(super) fn done(self) -> u64 {
        let over = self.0 & ((1 << STEP_BITS) - 1) > u64::from(STEP_MAX);
        (self.0 >> STEP_BITS) + 2 * u64::from(over)
    }
}
