//! Short sends to peers that have not been met. A link takes both ends, so the first message waits until its peer polls.
//! A peer that computes would hold up a blocking send of one byte for as long. So a send that has waited for a while ends
//! with a copy of its data, which leaves when the link stands: as in every MPI, the sender must make progress until then.
//! Whoever is in a call answers long before that.

use crate::buffer::{self, Buffer};
use crate::drive::buffered::Copied;
use crate::drive::core::Core;
use crate::drive::operation::{Operation, Send, SendStage};
use crate::links::Outgoing;
use crate::protocol::Protocol;
use crate::status::{RequestId, Status};
use crate::wire::SendMode;
use gapless_engine::Typed;
use gapless_mem::Region;
use std::time::Instant;

/// Copies for one peer at most; further sends wait.
const COPIES_MAX: usize = 64;

impl Core {
    /// Notes a queued eager send if nothing has left to its peer so far.
    pub(crate) fn may_be_unmet(&mut self, peer: u32, id: RequestId) {
        if self.links[peer].next_sequence == 0 {
            self.links.note_unmet(id, Instant::now());
        }
    }

    /// Ends sends to unmet peers that have waited for too long; returns how many it has ended.
    pub(crate) fn end_unmet(&mut self) -> usize {
        let mut ended = 0;
        while let Some((id, since)) = self.links.oldest_unmet() {
            if self.requests.send_mut(id).is_some() && since.elapsed() < self.config.meeting {
                break;
            }
            self.links.pop_unmet();
            ended += usize::from(self.leave_behind(id).is_some());
        }
        ended
    }

    /// Ends a send, and has a copy leave in its place. `None` if it is to wait on, or does not wait.
    fn leave_behind(&mut self, id: RequestId) -> Option<()> {
        let Send { buffer, to, envelope, stage, .. } = self.requests.send_mut(id)?;
        let (to, envelope) = (*to, *envelope);
        let typed = buffer.typed();
        let state = &self.links[to.peer];
        let waits = state.next_sequence == 0
            && envelope.mode == SendMode::Standard
            && matches!(stage, SendStage::Eager { .. })
            && typed.space().cpu_accessible();
        if !waits {
            return None;
        }
        let is_it = |item: &Outgoing| matches!(item, Outgoing::Eager(waits) if *waits == id);
        let at = state.outbox.iter().take(COPIES_MAX).position(is_it)?;
        let bytes = typed.packed_bytes();
        let engine = buffer::engine_for(&self.engines, typed).ok()?;
        // SAFETY: the request has not ended, so its buffer is as it was promised.
        let copy = unsafe { buffer::copy_out(&self.engines, engine, typed) }.ok()?;
        let typed = Typed::contiguous(Region::of(&copy));
        let engine = buffer::engine_for(&self.engines, &typed).ok()?;
        // SAFETY: the copy lives in the send, whose request ends when nothing reads it any more, and nobody writes it.
        let buffer = unsafe { Buffer::promised(&typed, engine) };
        let copied = Some(Copied { _bytes: copy, _share: None });
        let send =
            Send { buffer, to, envelope, _copied: copied, stage: SendStage::Eager { serial: 0 } };
        let own = self.requests.insert(Operation::Send(Box::new(send)));
        self.requests.release(own).ok()?;
        self.links[to.peer].outbox[at] = Outgoing::Eager(own);
        let protocol = Protocol::Eager;
        let status = Status { source: to.rank, tag: envelope.tag, bytes, protocol };
        // The copy is counted when it leaves.
        self.requests.finish_uncounted(id, Ok(status));
        Some(())
    }
}
