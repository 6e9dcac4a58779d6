//! What a collective works with, and what ranks of a segment find out about each other through their mailboxes.

use gapless_bml::Rank;
use gapless_pml::{Pml, PmlError};
use gapless_sync::mailboxes::{Broken, Flag, Mailbox, Mailboxes, Readers};

use super::slots::Slots;
use super::subgroup::Subgroup;
use super::{PrivateMemory, SegmentMemory, act};
use crate::execute::error::CollError;

/// What a collective works with, but for the endpoint.
pub(super) struct SmContext<'p> {
    pub(super) mailboxes: Mailboxes<'p>,
    pub(super) shared: &'p SegmentMemory,
    pub(super) mailbox: &'p mut Mailbox,
    pub(super) subgroup: &'p Subgroup,
    pub(super) wake_tag: i32,
    pub(super) private: &'p mut PrivateMemory,
    pub(super) slots: &'p mut Slots,
    pub(super) announced_reads: &'p mut u64,
    /// Whether who is lost, or has gone on, is found out later.
    pub(super) only_looks: bool,
}

impl SmContext<'_> {
    pub(super) fn local_rank(&self) -> usize {
        self.subgroup.local_rank()
    }

    /// How a rank was lost, if it is.
    pub(super) fn loss(&self, pml: &mut Pml, local_rank: usize) -> Option<CollError> {
        let process = self.subgroup.process(local_rank).filter(|_| !self.only_looks)?;
        pml.bml_mut().reach(Rank(process));
        let (culprit, error) = pml.accuse(process)?;
        let rank = self.subgroup.comm().rank_of(culprit).unwrap_or(self.subgroup.rank(local_rank));
        Some(CollError::Lost { rank, error: PmlError::PeerLost { rank: culprit, error } })
    }

    /// The flag of a rank's entry of this round, if it is there.
    ///
    /// # Errors
    /// The entry will never be there.
    #[inline]
    pub(super) fn entry(
        &mut self,
        pml: &mut Pml,
        local_rank: usize,
    ) -> Result<Option<Flag>, CollError> {
        let scribbled = |broken| scribbled(self.subgroup, broken);
        let found = self.mailbox.look(&self.mailboxes, local_rank).map_err(scribbled)?;
        if found.is_some() || self.only_looks {
            return Ok(found);
        }
        self.late_entry(pml, local_rank)
    }

    /// As [`entry`](SmContext::entry), if the entry was not there: finds out whether the rank is lost or has gone on.
    pub(super) fn late_entry(
        &mut self,
        pml: &mut Pml,
        local_rank: usize,
    ) -> Result<Option<Flag>, CollError> {
        let scribbled = |broken| scribbled(self.subgroup, broken);
        let loss = self.loss(pml, local_rank);
        let past = !self.mailbox.is_behind(&self.mailboxes, local_rank, self.mailbox.round());
        if loss.is_none() && !past {
            return Ok(None);
        }
        // It may have written it before.
        let found = self.mailbox.look(&self.mailboxes, local_rank).map_err(scribbled)?;
        if found.is_some() {
            return Ok(found);
        }
        let went_on = || CollError::WentOn { rank: self.subgroup.rank(local_rank) };
        Err(loss.unwrap_or_else(went_on))
    }

    /// If one of these ranks no longer waits for this rank's reads: the error. What was read of it must not be used.
    /// Such a rank takes this one for lost.
    pub(super) fn excused_by(&self, read: impl Iterator<Item = usize>) -> Option<CollError> {
        let local_rank = self.mailbox.was_excused(&self.mailboxes, read)?;
        Some(CollError::GaveUp { rank: self.subgroup.rank(local_rank) })
    }

    /// Whether this rank can publish an entry in this round; `false`: a reader of an earlier one is behind.
    pub(super) fn has_room(&mut self, pml: &mut Pml) -> bool {
        while let Some(local_rank) = self.mailbox.blocked_by(&self.mailboxes) {
            if self.loss(pml, local_rank).is_none() {
                return false;
            }
            self.mailbox.excuse(&self.mailboxes, local_rank);
        }
        true
    }

    /// Wakes ranks that sleep for something of this one's.
    pub(super) fn wake(&mut self, pml: &mut Pml, readers: Readers) {
        let by = (self.subgroup, self.wake_tag);
        self.mailbox.wake(&self.mailboxes, readers, |it| act::wake(pml, by, it));
    }
}

pub(super) fn scribbled(subgroup: &Subgroup, broken: Broken) -> CollError {
    // In the mailboxes, ranks are local ranks.
    let rank = subgroup.rank(broken.rank);
    let broken = Broken { rank: rank as usize, ..broken };
    CollError::Scribbled { rank, what: broken.to_string() }
}
