//! Whether short messages out of device memory are worth offering to a peer (`drive/unanswered.rs`).

use crate::choose::Lately;
use crate::protocol::{Protocol, Protocols};
use crate::status::RequestId;
use std::collections::VecDeque;
use std::time::Duration;

/// How long an offer waits for an answer before its data is packed.
///
/// This is no key of the tuning. Those are costs, which `gapless tune` measures and a protocol is chosen by; this predicts
/// nothing. It is a promise (RELIABILITY.md, "Device memory and progress"): with a longer time in some file, sends that
/// nobody receives yet would end later than documented. A shorter one packs what a posted receive is about to answer:
/// between two H200s that takes 15 to 30 µs.
const PATIENCE: Duration = Duration::from_micros(50);

/// Offers whose data is packed at a time: each takes a slot of the link.
const PACKING_MAX: u32 = 16;

/// Offers that wait for an answer before more messages are eager.
const CROWD: usize = 32;

/// Offers in a row that were not moved by one kernel, before messages to that peer are eager again for a while.
const VAIN_MAX: u8 = 8;

/// How long that is, in messages that would have been offered.
const REST: u8 = 64;

/// What is known of offering short messages to a peer.
#[derive(Debug, Default)]
pub(crate) struct Offering {
    /// Whether buffers are offered if one of the protocols can carry them, or are eager.
    pub(crate) pays: Lately<Protocols, bool>,
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

/// Offers whose data follows if nobody answers, in order of age.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    /// And when they were made, in nanoseconds.
    offers: VecDeque<(RequestId, u64)>,
    /// How many messages' data an engine packs.
    packing: u32,
}

impl Unanswered {
    pub(crate) fn push(&mut self, id: RequestId, now: u64) {
        self.offers.push_back((id, now));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.offers.len()
    }

    /// Whether so many wait that messages are eager.
    pub(crate) fn is_crowded(&self) -> bool {
        self.offers.len() >= CROWD
    }

    pub(crate) fn get(&self, at: usize) -> Option<RequestId> {
        self.offers.get(at).map(|(id, _)| *id)
    }

    /// Whether the data of one is to be packed now, if nobody has answered.
    pub(crate) fn is_due(&self, at: usize, now: u64) -> bool {
        let age = self.offers.get(at).map(|(_, since)| now.saturating_sub(*since));
        age.is_some_and(|age| Duration::from_nanos(age) >= PATIENCE) && self.packing < PACKING_MAX
    }

    /// It waits no more.
    pub(crate) fn remove(&mut self, at: usize) {
        self.offers.remove(at);
    }

    /// An engine packs the data of one.
    pub(crate) fn packs(&mut self) {
        self.packing += 1;
    }

    /// It is packed.
    pub(crate) fn packed(&mut self) {
        self.packing = self.packing.saturating_sub(1);
    }

    pub(crate) fn clear(&mut self) {
        self.offers.clear();
    }
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

    #[test]
    fn data_follows_in_order_of_age_and_a_bounded_number_at_a_time() {
        let mut unanswered = Unanswered::default();
        let patience = u64::try_from(PATIENCE.as_nanos()).unwrap();
        let ids = [0, 1].map(|index| RequestId::new(index, 7));
        unanswered.push(ids[0], 0);
        unanswered.push(ids[1], 1);
        assert!(!unanswered.is_due(0, patience - 1) && unanswered.is_due(0, patience));
        assert!(!unanswered.is_due(1, patience) && !unanswered.is_due(2, u64::MAX));
        (0..PACKING_MAX).for_each(|_| unanswered.packs());
        assert!(!unanswered.is_due(0, patience), "enough are packed");
        unanswered.packed();
        assert!(unanswered.is_due(0, patience));
        unanswered.remove(0);
        assert_eq!((unanswered.get(0), unanswered.len()), (Some(ids[1]), 1));
        (1..CROWD).for_each(|_| unanswered.push(ids[0], 2));
        assert!(unanswered.is_crowded());
    }
}
