//! Whose a segment is: it is of all ranks of a communicator, or of the ranks on one host. On the segment each has
//! a local rank; messages, errors and notices name ranks of the communicator.

use std::sync::Arc;

use gapless_pml::Comm;

/// The ranks of a segment, in the order of their local ranks.
#[derive(Clone, Debug)]
pub(super) struct Subgroup {
    comm: Comm,
    /// The rank of each local rank; `None`: all ranks of the communicator.
    ranks: Option<Arc<[u32]>>,
    /// This rank's local rank.
    local_rank: usize,
    size: usize,
}

impl Subgroup {
    /// All ranks.
    pub(super) fn all(comm: Comm) -> Subgroup {
        let (local_rank, size) = (comm.rank() as usize, comm.size() as usize);
        Subgroup { comm, ranks: None, local_rank, size }
    }

    /// Some ranks, which ascend; `None`: this one is not among them, or one of them is none.
    pub(super) fn of(comm: Comm, ranks: &[usize]) -> Option<Subgroup> {
        let number = |rank: &usize| u32::try_from(*rank).ok().filter(|rank| *rank < comm.size());
        let ranks: Arc<[u32]> = ranks.iter().map(number).collect::<Option<_>>()?;
        let local_rank = ranks.iter().position(|rank| *rank == comm.rank())?;
        let size = ranks.len();
        Some(Subgroup { comm, ranks: Some(ranks), local_rank, size })
    }

    /// Whether the subgroup is all ranks of the communicator.
    pub(super) fn is_whole(&self) -> bool {
        self.ranks.is_none()
    }

    pub(super) fn comm(&self) -> &Comm {
        &self.comm
    }

    /// This rank's local rank.
    #[inline]
    pub(super) fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How many ranks there are.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// This rank's rank in the communicator.
    pub(super) fn own(&self) -> u32 {
        self.comm.rank()
    }

    /// The rank that has a local rank; of no local rank that there is, none that there is.
    pub(super) fn rank(&self, local_rank: usize) -> u32 {
        let found = match &self.ranks {
            Some(ranks) => ranks.get(local_rank).copied(),
            None => u32::try_from(local_rank).ok(),
        };
        found.unwrap_or(u32::MAX)
    }

    /// The process that has a local rank, by its number in the job.
    pub(super) fn process(&self, local_rank: usize) -> Option<u32> {
        self.comm.process(self.rank(local_rank)).ok()
    }
}
