//! Matched probes: what is claimed is received, dropped or lost.

use crate::arrival::Arrival;
use crate::comm::Comm;
use crate::drive::core::Core;
use crate::error::{Failure, PmlError};
use crate::matching::{MessageId, Source, TagSel};
use crate::status::Status;
use crate::wire::{Label, Verdict};
use gapless_bml::Bml;

impl Core {
    /// Takes out the message that a receive would take.
    pub(crate) fn claim(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<(MessageId, Status)>, PmlError> {
        let Some(status) = self.probe(bml, comm, source, tag)? else { return Ok(None) };
        let pattern = self.pattern(comm, source, tag)?;
        Ok(self.matching.claim(pattern, status).map(|message| (message, status)))
    }

    /// The message behind a claim, which is over; whoever asks has room for so many bytes.
    pub(crate) fn unclaim(
        &mut self,
        message: &MessageId,
        room: u64,
    ) -> Result<(Label, Arrival), Failure> {
        let claim = self.matching.unclaim(message);
        let (label, status, held) = claim.ok_or(PmlError::NoSuchMessage)?;
        held.map(|held| (label, held)).ok_or_else(|| {
            // Its sender was lost, or the communicator revoked.
            let error = self.links.fault(label.source).unwrap_or(PmlError::Revoked);
            Failure::of_message(error, Status { bytes: status.bytes.min(room), ..status })
        })
    }

    /// Drops a message; its sender's request ends as if nothing of it had been wanted.
    pub(crate) fn drop_claim(&mut self, bml: &mut Bml, message: &MessageId) {
        if let Ok((label, arrival)) = self.unclaim(message, 0) {
            self.refuse_message(bml, label.source, arrival, Verdict::Refused);
        }
    }
}
