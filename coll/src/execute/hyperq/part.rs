//! Who takes part in calls, and what does not change during one.

use std::sync::Arc;

use gapless_bml::Rank;
use gapless_mem::{Device, Region};
use gapless_pml::{Comm, Pml, PmlError};

use super::copies::plain;
use crate::execute::call_buffers::{CallBuffers, Combine};
use crate::execute::error::CollError;
use crate::hyperq::{Frame, Staging};
use crate::schedule::Buffer;

/// Who takes part.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) comm: Comm,
    pub(super) me: usize,
    pub(super) ranks: usize,
}

impl Members {
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.ranks).filter(move |rank| *rank != me)
    }

    pub(super) fn size(&self) -> u32 {
        self.comm.size()
    }

    /// How a rank was lost, if it is.
    pub(super) fn loss(&self, pml: &mut Pml, rank: usize) -> Option<CollError> {
        let rank = u32::try_from(rank).ok()?;
        let process = self.comm.process(rank).ok()?;
        pml.bml_mut().reach(Rank(process));
        let (culprit, error) = pml.accuse(process)?;
        let rank = self.comm.rank_of(culprit).unwrap_or(rank);
        Some(CollError::Lost { rank, error: PmlError::PeerLost { rank: culprit, error } })
    }
}

/// What does not change during a call.
pub(super) struct CallPart {
    pub(super) frame: Frame,
    pub(super) staging: Staging,
    pub(super) number: u64,
    pub(super) me: usize,
    /// The GPU that all ranks use.
    pub(super) gpu: u128,
    pub(super) device: Arc<dyn Device>,
    pub(super) buffers: CallBuffers,
    pub(super) combine: Option<Combine>,
    /// Whether operands may change places.
    pub(super) commutes: bool,
}

impl CallPart {
    /// What this rank gives; `None`: it is not plain memory.
    pub(super) fn given(&self) -> Option<Option<Region>> {
        match self.frame.give(self.me) {
            Some(give) => plain(&self.buffers, give.buffer, give.range).map(Some),
            None => Some(None),
        }
    }

    /// What this rank receives into; `None`: it is not plain memory.
    pub(super) fn received(&self) -> Option<Option<Region>> {
        match self.frame.take(self.me) {
            Some(take) => plain(&self.buffers, Buffer::Recv, 0..take.bytes()).map(Some),
            None => Some(None),
        }
    }

    /// Whether GPU leaders can work on its buffers.
    pub(super) fn is_plain(&self) -> bool {
        self.given().is_some() && self.received().is_some()
    }

    /// Bytes of the leader's buffer, and of its staging memory.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.frame.bytes(), self.staging.bytes())
    }
}

impl std::fmt::Debug for CallPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallPart {{ {:?}, number: {} }}", self.frame, self.number)
    }
}
