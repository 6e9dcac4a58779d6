//! Cancelling messages, and leaving, so that every send ends, and no matched message is lost.
//!
//! ```text
//! sender                          receiver
//!   | NOTE(cancel, serial) -----> | no receive has taken it: dropped
//!   | <---------- FIN(cancelled) -- | (else nothing: the answer is on its way)
//!
//!   | NOTE(farewell) -------------> | whatever this sender will ever send has come
//!   |                               | once all have said so: what nobody received is refused
//!   | <--------- FIN(unreceived) -- |
//! ```
//!
//! Notes are numbered like messages and read after those before them.

use crate::arrival::Arrival;
use crate::drive::core::Core;
use crate::links::Outgoing;
use crate::wire::{self, DataState, Label, NoteKind, Verdict};
use gapless_bml::{Bml, Rank};

impl Core {
    /// Does what a note of `from` says.
    pub(crate) fn noted(&mut self, bml: &mut Bml, from: u32, what: NoteKind) -> Result<(), String> {
        match what {
            NoteKind::Cancel { serial } => {
                let wanted = |label: Label, arrival: &Arrival| {
                    label.source == from && arrival.serial() == Ok(Some(serial))
                };
                // It was taken: the answer is on its way, or will be.
                self.refuse_held(bml, Verdict::Cancelled, wanted);
            }
            NoteKind::Go { serial } => self.data_told(bml, from, serial, DataState::Present),
            NoteKind::Fail { serial } => self.data_told(bml, from, serial, DataState::Failed),
            NoteKind::CancelEager { sequence, serial } => {
                self.cancel_eager(bml, from, sequence, serial)
            }
            NoteKind::Revoke { id } => self.told_revoked(bml, from, id)?,
            NoteKind::Farewell => {
                if std::mem::replace(&mut self.links[from].farewell, true) {
                    return Err("a second farewell".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Drops messages that wait for a receive, and tells their senders that wait for an answer.
    pub(crate) fn refuse_held(
        &mut self,
        bml: &mut Bml,
        verdict: Verdict,
        wanted: impl Fn(Label, &Arrival) -> bool,
    ) {
        let dropped = self.matching.remove_if(wanted);
        self.refuse_all(bml, dropped, verdict);
    }

    /// Drops these messages, and tells their senders that wait for an answer.
    pub(crate) fn refuse_all(
        &mut self,
        bml: &mut Bml,
        messages: Vec<(Label, Arrival)>,
        verdict: Verdict,
    ) {
        for (label, arrival) in messages {
            self.refuse_message(bml, label.source, arrival, verdict);
        }
    }

    /// Drops a message, and tells its sender if it waits for an answer.
    pub(crate) fn refuse_message(
        &mut self,
        bml: &mut Bml,
        from: u32,
        arrival: Arrival,
        verdict: Verdict,
    ) {
        match arrival.serial() {
            // The sender of a message that was sent too early was told when it came.
            Ok(Some(serial)) if !arrival.is_late_offer() => {
                self.send_control(bml, from, &wire::fin(serial, verdict));
            }
            Ok(_) => {}
            Err(what) => self.give_up(bml, from, what),
        }
        if let Arrival::Eager(_, body) = arrival {
            self.matching.pool.give(body);
        }
    }

    /// Whether a peer has a link with this process, and so may have sent something, or may wait for a word of this
    /// process.
    pub(crate) fn has_met(&self, bml: &Bml, peer: u32) -> bool {
        self.links[peer].lost.is_none() && bml.has_met(Rank(peer))
    }

    pub(crate) fn farewell(&mut self, bml: &mut Bml) {
        let untold = self.links.iter().filter(|(_, state)| !state.told);
        let untold: Vec<u32> = untold.map(|(peer, _)| peer).collect();
        for peer in untold {
            if self.has_met(bml, peer) {
                self.links[peer].told = true;
                self.links.enqueue(peer, Outgoing::Note(NoteKind::Farewell));
                self.flush_peer(bml, peer);
            }
        }
    }
}
