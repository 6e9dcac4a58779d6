//! Work that engines have not ended yet, and what follows when they have. Whatever the work reads
//! or writes (slots, fragments, mappings, users' buffers) is held until then. The host's engine ends
//! at once and leaves nothing here.
//!
//! Engines and completions are not ours, and may panic. So work is asked where it lies, and leaves the table
//! when it is over: whatever unwinds, [`Pml::take_back`](crate::Pml::take_back) finds all that goes on.

use crate::drive::core::Core;
use crate::matching::body::Body;
use crate::request::RequestId;
use crate::request::recv::Matched;
use gapless_bml::{Bml, RailSlot};
use gapless_engine::EngineError;
use gapless_mem::{Completion, DeviceError};
use smallvec::SmallVec;

/// Messages whose order is remembered while in-flight work is checked.
const WAITING_MAX: usize = 16;

/// Work in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) completion: Completion,
    pub(crate) work: Flight,
}

/// What the work is, and what it needs.
#[derive(Debug)]
pub(crate) enum Flight {
    /// A part of a rendezvous, which holds what the work needs.
    Part { id: RequestId, part: u64 },
    /// An eager message to a lost peer is packed into its slot, without use.
    Wasted { id: RequestId, slot: RailSlot },
    /// The data of an offer that nobody answers is packed into its slot.
    Payload { id: RequestId, slot: RailSlot },
    /// An eager message is unpacked.
    Unpack { id: RequestId, body: Body, matched: Matched },
    /// Work of the caller's, which a send waits for; the work in `left` comes after.
    Await { id: RequestId, left: Vec<Completion> },
}

impl InFlight {
    /// How it has ended, if it has, as far as that is asked: of a rendezvous' parts only the oldest is, which is
    /// noted in `waiting` if it goes on.
    fn ended(
        &self,
        waiting: &mut SmallVec<[RequestId; WAITING_MAX]>,
    ) -> Option<Result<(), DeviceError>> {
        let part = match self.work {
            Flight::Part { id, .. } => Some(id),
            _ => None,
        };
        if part.is_some_and(|id| waiting.contains(&id)) {
            return None;
        }
        let ended = self.completion.poll();
        if let (Ok(false), Some(id)) = (&ended, part)
            && waiting.len() < WAITING_MAX
        {
            waiting.push(id);
        }
        ended.map(|over| over.then_some(())).transpose()
    }
}

impl Core {
    /// Checks which work has ended; returns how much.
    ///
    /// Asking a device costs a microsecond, and the parts of a message end one after the other: only the oldest part
    /// of each message is checked. While it goes on, the next part is started.
    pub(crate) fn poll_in_flight(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut waiting: SmallVec<[RequestId; WAITING_MAX]> = SmallVec::new();
        // Work started meanwhile is appended, and not checked yet.
        let (mut at, mut end) = (0, self.in_flight.len());
        while at < end {
            let Some(result) = self.in_flight[at].ended(&mut waiting) else {
                at += 1;
                continue;
            };
            let InFlight { completion, work } = self.in_flight.remove(at);
            end -= 1;
            if matches!(work, Flight::Await { .. }) {
                self.requests.lay_down(completion);
            }
            self.work_ended(bml, work, result.map_err(EngineError::from));
            done += 1;
        }
        done
    }

    fn work_ended(&mut self, bml: &mut Bml, work: Flight, result: Result<(), EngineError>) {
        match work {
            Flight::Part { id, part } => self.landed(bml, id, part, result),
            Flight::Wasted { id, slot } => {
                drop(slot);
                self.drained(id);
            }
            Flight::Payload { id, slot } => self.payload_packed(bml, id, slot, result),
            Flight::Unpack { id, body, mut matched } => {
                if let Err(error) = result {
                    matched.failure = Some(error.into());
                }
                self.finish_recv(id, matched);
                self.pool.give(body);
            }
            Flight::Await { id, left } => self.awaited(bml, id, left, result),
        }
    }
}
