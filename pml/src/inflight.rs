//! Work that engines have not ended yet, and what follows when they have. Whatever the work reads
//! or writes (slots, fragments, mappings, users' buffers) is held until then. The host's engine ends
//! at once and leaves nothing here.

use crate::body::Body;
use crate::choose::Protocol;
use crate::core::Core;
use crate::peer::Outgoing;
use crate::recv::Matched;
use crate::request::RequestId;
use gapless_bml::{Bml, Fragment, Mapping, RailSlot};
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
    /// A fragment of the pipeline is packed into its slot.
    Pack { id: RequestId, peer: u32, slot: RailSlot },
    /// An eager message whose peer is lost is packed into its slot, for nothing.
    Wasted { id: RequestId, slot: RailSlot },
    /// An eager message is unpacked.
    Unpack { id: RequestId, body: Body, matched: Matched },
    /// A fragment of the pipeline is unpacked.
    Scatter { id: RequestId, fragment: Fragment },
    /// Work of the caller's, which a send waits for; what is `left` comes after.
    Await { id: RequestId, left: Vec<Completion> },
    /// A whole message is moved, out of a mapping, or out of a send of ours that waits for FIN.
    Move { id: RequestId, way: Protocol, mapping: Option<Mapping> },
    /// A whole message is moved into memory of its receiver.
    Put { id: RequestId, mapping: Mapping },
    /// A fragment of a staged message is laid into its place (`out`), or taken out. Its request has
    /// all that the work needs. `failed` is what could not even be begun after it.
    Staged { id: RequestId, index: u64, out: bool, failed: Option<EngineError> },
}

impl InFlight {
    /// Whether it has ended, as far as that is asked: of a staged message's fragments only the first that
    /// goes on is, which is noted in `waiting`.
    fn has_ended(&self, waiting: &mut SmallVec<[(RequestId, bool); WAITING_MAX]>) -> bool {
        let message = match self.work {
            Flight::Staged { id, out, .. } => Some((id, out)),
            _ => None,
        };
        if message.is_some_and(|message| waiting.contains(&message)) {
            return false;
        }
        let ended = !matches!(self.completion.poll(), Ok(false));
        if !ended && waiting.len() < WAITING_MAX {
            waiting.extend(message);
        }
        ended
    }
}

impl Core {
    /// Looks which work has ended; gives how much.
    ///
    /// To ask a device costs a microsecond, and the fragments of a staged message end one after the
    /// other: only the first of each is asked about. While it goes on, the next fragment is begun.
    pub(crate) fn poll_in_flight(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut waiting: SmallVec<[(RequestId, bool); WAITING_MAX]> = SmallVec::new();
        let mut entries = std::mem::take(&mut self.in_flight);
        for entry in entries.extract_if(.., |entry| entry.has_ended(&mut waiting)) {
            // What has ended, or failed, says so again.
            let result = entry.completion.poll().map(drop).map_err(EngineError::from);
            self.landed(bml, entry.work, result);
            done += 1;
        }
        // What was begun meanwhile comes behind.
        entries.append(&mut self.in_flight);
        self.in_flight = entries;
        for (id, out) in waiting {
            if out {
                self.advance_send(bml, id);
            }
        }
        done
    }

    /// Waits until no engine works on anything of ours any more.
    pub(crate) fn drain_engines(&mut self) {
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

    fn landed(&mut self, bml: &mut Bml, work: Flight, result: Result<(), EngineError>) {
        match work {
            Flight::Pack { id, peer, slot } => self.packed(bml, (id, peer, slot), result),
            Flight::Wasted { id, slot } => {
                drop(slot);
                self.drained(id);
            }
            Flight::Unpack { id, body, mut matched } => {
                if let Err(error) = result {
                    matched.failure = Some(error.into());
                }
                self.finish_recv(id, matched);
                self.pool.give(body);
            }
            Flight::Scatter { id, fragment } => {
                drop(fragment);
                self.scattered(id, result);
            }
            Flight::Await { id, left } => self.awaited(bml, id, left, result),
            Flight::Move { id, way, mapping } => {
                drop(mapping);
                self.moved(bml, id, way, result);
            }
            Flight::Put { id, mapping } => {
                drop(mapping);
                self.put(bml, id, result);
            }
            Flight::Staged { id, index, out, failed } => {
                let result = result.and(failed.map_or(Ok(()), Err));
                self.staged_landed(bml, (id, index, out), result);
            }
        }
    }
}
