//! Revoking a communicator (`MPIX_Comm_revoke`, which MPI's working group for fault tolerance has defined): one member
//! says that it is of no use any more, and whatever others do or wait for there ends.
//!
//! ```text
//! whoever revokes            another member                        all others
//!   | NOTE(revoke) -----------> | its receives end; refuses            |
//!   |                           | messages nobody has received         |
//!   |                           | NOTE(revoke), once ----------------> |
//! ```
//!
//! Each member passes the note on when it receives it, before it does anything else. So either all members that live
//! learn of the revocation, or none does: also if whoever revoked dies in the midst of telling.
//!
//! # What ends how
//! - Receives and probes that no message has matched end at once.
//! - Messages that have been matched go on: their buffers are in use, and both ends live, or one is lost.
//! - Sends that wait for a receive end by their receiver's answer, which the receiver gives when it learns of the
//!   revocation.
//! - Nothing can be started any more, but agreements among survivors, whose messages have tags of their own.

use crate::comm::{Comm, IDS_END, Lookup};
use crate::drive::core::Core;
use crate::drive::operation::{Operation, RecvStage};
use crate::error::PmlError;
use crate::links::Outgoing;
use crate::matching::PostedPlace;
use crate::status::RequestId;
use crate::wire::{NoteKind, Verdict};
use gapless_bml::Bml;

impl Core {
    /// Revokes a communicator here, and passes it on; nothing if it was revoked before.
    pub(crate) fn revoke(&mut self, bml: &mut Bml, comm: &Comm) {
        if !comm.mark_revoked() {
            return;
        }
        self.comms.routes = Default::default();
        self.pass_on(bml, comm);
        let ids = [comm.id(), comm.side().id()];
        let waiting = |work: &Operation| match work {
            Operation::Recv(recv) if ids.contains(&(recv.context / 2)) && !recv.survives => {
                match recv.stage {
                    RecvStage::Posted(place) => Some(place),
                    _ => None,
                }
            }
            _ => None,
        };
        let posted: Vec<(RequestId, PostedPlace)> = self
            .requests
            .under_way()
            .filter_map(|(id, work)| waiting(work).map(|place| (id, place)))
            .collect();
        for (id, place) in posted {
            self.matching.posted.remove(place);
            self.requests.finish(id, Err(PmlError::Revoked));
        }
        self.refuse_held(bml, Verdict::Revoked, |label, _| {
            ids.contains(&(label.context / 2)) && !label.is_survey()
        });
        // Claimed messages cannot be received any more, either.
        let claimed = self.matching.void_claims(|label, _| ids.contains(&(label.context / 2)));
        self.refuse_all(bml, claimed, Verdict::Revoked);
    }

    /// Tells all other members, of both groups, that are not lost.
    fn pass_on(&mut self, bml: &mut Bml, comm: &Comm) {
        let sides = if comm.is_inter() { vec![comm, comm.side()] } else { vec![comm] };
        for side in sides {
            let members: Vec<u32> = side.peers().processes().collect();
            for (rank, process) in (0..).zip(members) {
                let peer = &self.links[process];
                // Whoever was told farewell expects nothing more.
                if process == self.me || peer.lost.is_some() || peer.told {
                    continue;
                }
                let id = side.context_at(rank) / 2;
                self.links.enqueue(process, Outgoing::Note(NoteKind::Revoke { id }));
                self.flush_peer(bml, process);
            }
        }
    }

    /// A peer says that a communicator is revoked, by its identifier here. An error is the peer's fault.
    pub(crate) fn told_revoked(&mut self, bml: &mut Bml, from: u32, id: u32) -> Result<(), String> {
        if id >= IDS_END {
            return Err(format!("it revokes communicator {id}, which cannot be"));
        }
        let Some(part) = self.comms.of_context(2 * id).cloned() else {
            return match self.comms.lookup(2 * id) {
                // Its making has not ended here: whether the peer is a member will be known then.
                Lookup::Here if self.comms.early_revokes.contains(&(id, from)) => Ok(()),
                Lookup::Here => {
                    self.comms.early_revokes.push((id, from));
                    Ok(())
                }
                Lookup::Gone => Ok(()),
                Lookup::Never => Err(format!("it revokes communicator {id}, which never was")),
            };
        };
        if part.rank_of(from).is_none() {
            return Err(format!("it revokes communicator {id}, whose group it is not in"));
        }
        let whole = self.comms.whole(&part);
        self.revoke(bml, &whole);
        Ok(())
    }

    /// A communicator has become known: it may have been revoked already.
    pub(crate) fn look_for_early_revokes(&mut self, bml: &mut Bml, id: u32) {
        if self.comms.early_revokes.is_empty() {
            return;
        }
        let early = std::mem::take(&mut self.comms.early_revokes);
        let (of_it, others) = early.into_iter().partition(|(known, _)| *known == id);
        self.comms.early_revokes = others;
        for (_, from) in of_it {
            if let Err(what) = self.told_revoked(bml, from, id) {
                self.give_up(bml, from, what);
            }
        }
    }
}
