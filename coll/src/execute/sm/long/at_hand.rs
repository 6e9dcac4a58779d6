//! What ranks contribute where others can read all of it at once, in mapped memory or by the kernel.

use gapless_bml::RemoteKey;

use super::{Long, LongInput, SmContext, Tools};
use crate::execute::error::CollError;
use crate::execute::sm::long_plan::SlotPiece;
use crate::execute::sm::read_in_place::Direct;
use crate::execute::sm::state_machine::StateMachine;

impl<T: LongInput> Long<T> {
    /// Whether all that a rank contributes can be read from its entry on.
    pub(super) fn is_at_hand(&self, local_rank: usize, cx: &SmContext<'_>) -> bool {
        let lies_there = |it: &Direct| it.mapped.input.is_some() || it.single_copy_key.is_some();
        let is_own = local_rank == cx.local_rank();
        if is_own { self.plain.is_some() } else { self.direct(local_rank).is_some_and(lies_there) }
    }

    /// Whether nothing is left to do after the first fragment: all others read where it lies what this rank
    /// contributes, and this one has read all that it gets.
    pub(super) fn is_over_early(&self, cx: &SmContext<'_>) -> bool {
        let is_read = self.own.input.is_some() || !self.plan().exposes();
        let gets = (0..).map_while(|index| self.plan().output(0, index));
        let mut gets = gets.filter(|(.., piece)| !piece.is_empty());
        is_read && !self.plan().reduces() && gets.all(|(it, ..)| self.is_at_hand(it, cx))
    }

    /// Reads all that this rank gets of another; how many bytes that is, or `None` if some are left for another time.
    /// `first`: its part in the first fragment.
    pub(super) fn read_all(
        &mut self,
        local_rank: usize,
        first: SlotPiece,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<Option<u64>, CollError> {
        let piece = self.plan().whole(local_rank, first);
        let (at, len) = (piece.at, piece.len());
        if let Some(key) = self.single_copy_key(local_rank) {
            let from = self.plan().position(0, at);
            let process = cx.subgroup.process(local_rank).unwrap_or(u32::MAX);
            let key = (process, &key, |_: &SlotPiece| from);
            let read = self.progress.read_single_copy(
                self.input.buffers(),
                std::iter::once(piece),
                key,
                tools,
            );
            return match read {
                Ok(is_all) => Ok(is_all.then_some(len)),
                // Why, and whether the rank is lost, is found out when it is read again.
                Err(_) if cx.only_looks => Ok(None),
                Err(unread) => {
                    Err(cx.unread(local_rank, unread, self.invalid_reads(cx), tools.pml))
                }
            };
        }
        let source = self.contributed(local_rank, piece.in_slot(), cx);
        self.progress.take(self.input.buffers(), &piece, source, tools);
        Ok(Some(len))
    }

    /// The key by which what a rank contributes is read by the kernel, if it is.
    fn single_copy_key(&self, local_rank: usize) -> Option<RemoteKey> {
        self.direct(local_rank)?.single_copy_key
    }
}
