//! Work that engines have not ended yet, and what follows when they have. Whatever the work reads
//! or writes (slots, fragments, mappings, users' buffers) is held until then. The host's engine ends
//! at once and leaves nothing here.

use crate::drive::core::Core;
use crate::drive::peer::Outgoing;
use crate::matching::body::Body;
use crate::request::RequestId;
use crate::request::recv::Matched;
use gapless_bml::{Bml, RailSlot};
use gapless_engine::EngineError;
use gapless_mem::Completion;
use smallvec::SmallVec;

/// Messages whose order is kept in mind while in-flight work is looked at.
const WAITING_MAX: usize = 16;

/// Work under way.
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
    /// An eager message whose peer is lost is packed into its slot, for nothing.
    Wasted { id: RequestId, slot: RailSlot },
    /// The data of an offer that nobody answers is packed into its slot.
    Payload { id: RequestId, slot: RailSlot },
    /// An eager message is unpacked.
    Unpack { id: RequestId, body: Body, matched: Matched },
    /// Work of the caller's, which a send waits for; what is `left` comes after.
    Await { id: RequestId, left: Vec<Completion> },
}

impl InFlight {
    /// Whether it has ended, as far as that is asked: of a rendezvous' parts only the oldest is, which is noted in
    /// `waiting` if it goes on.
    fn has_ended(&self, waiting: &mut SmallVec<[RequestId; WAITING_MAX]>) -> bool {
        let Flight::Part { id, .. } = self.work else {
            return !matches!(self.completion.poll(), Ok(false));
        };
        if waiting.contains(&id) {
            return false;
        }
        let ended = !matches!(self.completion.poll(), Ok(false));
        if !ended && waiting.len() < WAITING_MAX {
            waiting.push(id);
        }
        ended
    }
}

impl Core {
    /// Looks which work has ended; gives how much.
    ///
    /// To ask a device costs a microsecond, and the parts of a message end one after the
    /// other: only the oldest of each is asked about. While it goes on, the next part is begun.
    pub(crate) fn poll_in_flight(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut waiting: SmallVec<[RequestId; WAITING_MAX]> = SmallVec::new();
        // What is begun meanwhile comes behind, and is not asked about yet.
        let (mut at, mut end) = (0, self.in_flight.len());
        while at < end {
            if !self.in_flight[at].has_ended(&mut waiting) {
                at += 1;
                continue;
            }
            let entry = self.in_flight.remove(at);
            end -= 1;
            // What has ended, or failed, says so again.
            let result = entry.completion.poll().map(drop).map_err(EngineError::from);
            self.work_ended(bml, entry.work, result);
            done += 1;
        }
        done
    }

    /// Waits until no engine works on anything of ours any more.
    pub(crate) fn drain_engines(&mut self) {
        // Nothing is begun any more.
        self.again.clear();
        self.unanswered.clear();
        for peer in &mut self.peers {
            peer.streams.clear();
        }
        let packing = self.peers.iter_mut().flat_map(|peer| peer.outbox.drain(..));
        let packing = packing.filter_map(|item| match item {
            Outgoing::Packing { slot, packed, .. } => Some((packed, slot)),
            _ => None,
        });
        for (completion, _slot) in packing {
            if let Err(error) = completion.wait() {
                tracing::debug!(%error, "an engine failed at the end");
            }
        }
        for InFlight { completion, work } in self.in_flight.drain(..) {
            // No engine has anything to do with it, and it may need this thread to go on.
            if let Flight::Await { .. } = work {
                continue;
            }
            if let Err(error) = completion.wait() {
                tracing::debug!(%error, "an engine failed at the end");
            }
            drop(work);
        }
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
