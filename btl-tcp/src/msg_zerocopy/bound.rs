//! How many sends may be without a notice: as many as the system has memory for. Pure.
//!
//! A refusal lowers the bound to what is under way at that moment. Memory that others took may come back, so the bound
//! rises again, one by one and slowly, because each try that fails costs a call: after 16 acknowledged sends for each
//! that may be under way; from none to one after 256 long messages that were copied.

/// So often as many sends as may be under way are acknowledged before there may be one more.
const ROUNDS: usize = 16;
/// So many long messages are copied before one is tried again.
const COPIES: usize = 256;

/// The bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    most: usize,
    /// As it was before any refusal.
    limit: usize,
    /// Sends that were acknowledged, or long messages that were copied, since it changed.
    since: usize,
}

impl Bound {
    /// So many as long as nothing is refused.
    pub(super) fn new(limit: usize) -> Bound {
        Bound { most: limit, limit, since: 0 }
    }

    /// How many there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The system has refused one more than so many.
    pub(super) fn refused(&mut self, outstanding: usize) {
        *self = Bound { most: self.most.min(outstanding), since: 0, ..*self };
    }

    /// So many sends were acknowledged.
    pub(super) fn acknowledged(&mut self, count: u64) {
        if self.most > 0 {
            self.rise(usize::try_from(count).unwrap_or(usize::MAX), self.most * ROUNDS);
        }
    }

    /// A long message was copied.
    pub(super) fn copied(&mut self) {
        if self.most == 0 {
            self.rise(1, COPIES);
        }
    }

    fn rise(&mut self, count: usize, due: usize) {
        self.since = self.since.saturating_add(count);
        if self.most < self.limit && self.since >= due {
            *self = Bound { most: self.most + 1, since: 0, ..*self };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_took_comes_back() {
        let mut bound = Bound::new(4);
        bound.copied();
        assert_eq!(bound.most(), 4);
        bound.refused(2);
        for most in 2..4 {
            for _ in 0..ROUNDS {
                assert_eq!(bound.most(), most);
                bound.acknowledged(most as u64);
            }
        }
        assert_eq!(bound.most(), 4);
        bound.acknowledged(u64::MAX);
        assert_eq!(bound.most(), 4, "it is no higher than it was");
        // One that was under way before the bound was lowered.
        bound.refused(1);
        bound.refused(3);
        assert_eq!(bound.most(), 1);
    }

    #[test]
    fn one_is_tried_again_after_many_that_were_copied() {
        let mut bound = Bound::new(4);
        for _ in 0..2 {
            bound.refused(0);
            bound.acknowledged(u64::MAX);
            for _ in 0..COPIES {
                assert_eq!(bound.most(), 0);
                bound.copied();
            }
            assert_eq!(bound.most(), 1);
            (0..10 * COPIES).for_each(|_| bound.copied());
            assert_eq!(bound.most(), 1, "more than one only if that is acknowledged");
        }
    }
}
