//! Work that engines have not ended yet, and what follows when they have. Each is a [`Transfer`], which holds whatever
//! the work reads or writes (slots, fragments, mappings, users' buffers) until then. The host's engine ends at once and
//! leaves nothing here.
//!
//! Engines and completions are not ours, and may panic. So work is asked where it lies, and leaves the table
//! when it is over: whatever unwinds, `Pml::take_back` finds all that goes on.

use crate::arrival::{Body, Matched};
use crate::buffer::{HeldMemory, Transfer};
use crate::status::RequestId;
use gapless_bml::RailSlot;
use gapless_mem::{Completion, DeviceError};
use smallvec::SmallVec;

/// Messages whose order is remembered while in-flight work is checked.
const WAITING_MAX: usize = 16;

/// Work in flight.
#[derive(Debug)]
pub(crate) enum InFlight {
    /// A part of a rendezvous.
    Part { id: RequestId, part: u64, transfer: Transfer<HeldMemory> },
    /// An eager message to a lost peer is packed into its slot, without use.
    Wasted { id: RequestId, packing: Transfer<RailSlot> },
    /// The data of an offer that nobody answers is packed into its slot.
    Payload { id: RequestId, packing: Transfer<RailSlot> },
    /// An eager message is unpacked.
    Unpack { id: RequestId, unpacking: Transfer<Body>, matched: Matched },
    /// Work of the caller's, which a send waits for; the work in `left` comes after.
    Await { id: RequestId, completion: Completion, left: Vec<Completion> },
    /// It is over, and was taken out; the table is tidied once for all of these.
    Over,
}

impl InFlight {
    /// Whether it is over. Never blocks.
    fn poll(&mut self) -> Result<bool, DeviceError> {
        match self {
            InFlight::Part { transfer, .. } => transfer.poll(),
            InFlight::Wasted { packing, .. } | InFlight::Payload { packing, .. } => packing.poll(),
            InFlight::Unpack { unpacking, .. } => unpacking.poll(),
            InFlight::Await { completion, .. } => completion.poll(),
            InFlight::Over => Ok(false),
        }
    }

    /// Waits until engines and devices touch nothing for it any more; never unwinds.
    fn drain(&self) {
        match self {
            InFlight::Part { transfer, .. } => transfer.drain(),
            InFlight::Wasted { packing, .. } | InFlight::Payload { packing, .. } => packing.drain(),
            InFlight::Unpack { unpacking, .. } => unpacking.drain(),
            // It touches nothing of ours, and may need this thread to go on.
            InFlight::Await { .. } | InFlight::Over => {}
        }
    }

    /// Whether it is a part of this rendezvous.
    fn is_part_of(&self, request: RequestId) -> bool {
        matches!(self, InFlight::Part { id, .. } if *id == request)
    }

    /// How it has ended, if it has, as far as that is asked: of a rendezvous' parts only the oldest is, which is
    /// noted in `waiting` if it goes on.
    fn ended(
        &mut self,
        waiting: &mut SmallVec<[RequestId; WAITING_MAX]>,
    ) -> Option<Result<(), DeviceError>> {
        let part = match self {
            InFlight::Part { id, .. } => Some(*id),
            _ => None,
        };
        if part.is_some_and(|id| waiting.contains(&id)) {
            return None;
        }
        let ended = self.poll();
        if let (Ok(false), Some(id)) = (&ended, part)
            && waiting.len() < WAITING_MAX
        {
            waiting.push(id);
        }
        ended.map(|over| over.then_some(())).transpose()
    }
}

/// All work in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlights(Vec<InFlight>);

/// A round of checks.
#[derive(Debug)]
pub(crate) struct Round {
    at: usize,
    /// Work started meanwhile is appended, and not checked yet.
    end: usize,
    /// Rendezvous whose oldest part goes on.
    waiting: SmallVec<[RequestId; WAITING_MAX]>,
}

impl InFlights {
    pub(crate) fn push(&mut self, work: InFlight) {
        self.0.push(work);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a part of this rendezvous goes on.
    pub(crate) fn has_part_of(&self, request: RequestId) -> bool {
        self.0.iter().any(|work| work.is_part_of(request))
    }

    /// Begins to check which work has ended.
    pub(crate) fn round(&self) -> Round {
        Round { at: 0, end: self.0.len(), waiting: SmallVec::new() }
    }

    /// Takes the next work that has ended, and how it has.
    pub(crate) fn next(
        &mut self,
        round: &mut Round,
    ) -> Option<(InFlight, Result<(), DeviceError>)> {
        while round.at < round.end {
            let work = &mut self.0[round.at];
            round.at += 1;
            if let Some(result) = work.ended(&mut round.waiting) {
                return Some((std::mem::replace(work, InFlight::Over), result));
            }
        }
        None
    }

    /// Forgets what was taken.
    pub(crate) fn tidy(&mut self) {
        self.0.retain(|work| !matches!(work, InFlight::Over));
    }

    /// Waits until engines touch nothing of ours any more, and gives what is left of work of the caller's.
    pub(crate) fn drain(&mut self) -> Vec<Completion> {
        self.0.iter().for_each(InFlight::drain);
        // Only now: what goes with them may be anybody's, and panic.
        let awaited = self.0.drain(..).filter_map(|work| match work {
            InFlight::Await { completion, left, .. } => Some([completion].into_iter().chain(left)),
            _ => None,
        });
        awaited.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaits(index: u32, left: usize) -> InFlight {
        let left = vec![Completion::Ready; left];
        InFlight::Await { id: RequestId::new(index, 7), completion: Completion::Ready, left }
    }

    #[test]
    fn a_round_takes_what_was_there_when_it_began() {
        let mut all = InFlights::default();
        (0..2).for_each(|index| all.push(awaits(index, 0)));
        let mut round = all.round();
        let mut taken = 0;
        while let Some((work, result)) = all.next(&mut round) {
            assert!(matches!(work, InFlight::Await { .. }) && result.is_ok());
            all.push(awaits(9, 0));
            taken += 1;
        }
        assert_eq!(taken, 2);
        all.tidy();
        assert_eq!(all.0.len(), 2, "what was started meanwhile stays");
    }

    #[test]
    fn draining_gives_back_all_work_of_the_callers() {
        let mut all = InFlights::default();
        (0..3).for_each(|left| all.push(awaits(0, left)));
        assert!(!all.is_empty() && !all.has_part_of(RequestId::new(0, 7)));
        assert_eq!((all.drain().len(), all.is_empty()), (6, true));
    }
}
