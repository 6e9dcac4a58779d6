//! Whether short messages out of device memory are worth offering to a peer (`drive/unanswered.rs`).

use crate::protocol::Protocol;
use crate::status::RequestId;

/// Offers in a row that were not moved by one kernel, before messages to that peer are eager again for a while.
const VAIN_MAX: u8 = 8;

/// How long that is, in messages that would have been offered.
const REST: u8 = 64;

/// What is known of offering short messages to a peer.
#[derive(Debug, Default)]
pub(crate) struct Offering {
    /// Offers in a row that were not better than eager.
    vain: u8,
    /// Messages that are eager before another is offered.
    resting: u8,
    /// Whether the last buffer that the peer granted lies in host memory. Offering gains nothing then: an eager message
    /// also takes one kernel, and no rendezvous.
    pub(crate) puts_into_host: bool,
}

impl Offering {
    /// An offer has ended, by this protocol.
    pub(crate) fn ended(&mut self, by: Protocol) {
        let well = match by {
            Protocol::Mapped => true,
            Protocol::MappedPut => !self.puts_into_host,
            _ => false,
        };
        self.vain = if well { 0 } else { self.vain + 1 };
        if self.vain >= VAIN_MAX {
            // One more in vain, and it rests again.
            (self.vain, self.resting) = (VAIN_MAX - 1, REST);
        }
    }

    /// Whether the next message is to be offered.
    pub(crate) fn is_wanted(&mut self) -> bool {
        let rests = self.resting > 0;
        self.resting = self.resting.saturating_sub(1);
        !rests
    }
}

/// An offer whose data follows if nobody answers.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) id: RequestId,
    /// When it was made, in nanoseconds.
    pub(crate) since: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_in_vain_rest_for_a_while_and_one_that_pays_counts_anew() {
        let mut offering = Offering::default();
        for _ in 0..3 * u32::from(VAIN_MAX) {
            assert!(offering.is_wanted());
            offering.ended(Protocol::Eager);
            offering.ended(Protocol::Mapped);
        }
        (0..VAIN_MAX).for_each(|_| offering.ended(Protocol::StagedPut));
        assert!((0..REST).all(|_| !offering.is_wanted()));
        assert!(offering.is_wanted());
        offering.ended(Protocol::StagedPut);
        assert!((0..REST).all(|_| !offering.is_wanted()), "one more in vain, and it rests again");
        offering.ended(Protocol::MappedPut);
        assert!(offering.is_wanted());
    }

    #[test]
    fn a_put_into_memory_of_the_host_is_no_better_than_eager() {
        let mut offering = Offering { puts_into_host: true, ..Offering::default() };
        (0..VAIN_MAX).for_each(|_| offering.ended(Protocol::MappedPut));
        assert!(!offering.is_wanted());
    }
}
