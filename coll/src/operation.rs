//! The operations of MPI.
use std::fmt;

/// The operations of MPI, intra- and intercommunicators and neighbourhoods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the MPI function of its name")]
pub enum Operation {
    Barrier,
    Bcast,
    Gather,
    Gatherv,
    Scatter,
    Scatterv,
    Allgather,
    Allgatherv,
    Alltoall,
    /// `MPI_Alltoallv`, and `MPI_Alltoallw`: schedules know packed bytes only.
    Alltoallv,
    Reduce,
    Allreduce,
    ReduceScatter,
    ReduceScatterBlock,
    Scan,
    Exscan,
    /// `MPI_Neighbor_allgather` and `MPI_Neighbor_allgatherv`.
    NeighborAllgather,
    /// `MPI_Neighbor_alltoall`, `MPI_Neighbor_alltoallv` and `MPI_Neighbor_alltoallw`.
    NeighborAlltoall,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Barrier,
        Self::Bcast,
        Self::Gather,
        Self::Gatherv,
        Self::Scatter,
        Self::Scatterv,
        Self::Allgather,
        Self::Allgatherv,
        Self::Alltoall,
        Self::Alltoallv,
        Self::Reduce,
        Self::Allreduce,
        Self::ReduceScatter,
        Self::ReduceScatterBlock,
        Self::Scan,
        Self::Exscan,
        Self::NeighborAllgather,
        Self::NeighborAlltoall,
    ];

    /// Its number from 1 on, by which processes of a job tell each other.
    #[must_use]
    #[inline]
    pub fn code(self) -> u8 {
        // They are listed in this order.
        self as u8 + 1
    }

    /// The operation with this [`code`](Self::code).
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Its name, as in MPI's without the prefix, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Bcast => "bcast",
            Self::Gather => "gather",
            Self::Gatherv => "gatherv",
            Self::Scatter => "scatter",
            Self::Scatterv => "scatterv",
            Self::Allgather => "allgather",
            Self::Allgatherv => "allgatherv",
            Self::Alltoall => "alltoall",
            Self::Alltoallv => "alltoallv",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::ReduceScatterBlock => "reduce_scatter_block",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::NeighborAllgather => "neighbor_allgather",
            Self::NeighborAlltoall => "neighbor_alltoall",
        }
    }

    /// Whether one rank has or gets what others get or have.
    pub(crate) fn is_rooted(self) -> bool {
        use Operation::{Bcast, Gather, Gatherv, Reduce, Scatter, Scatterv};
        matches!(self, Bcast | Gather | Gatherv | Scatter | Scatterv | Reduce)
    }

    /// Whether it has algorithms on levels.
    pub(crate) fn goes_on_levels(self) -> bool {
        use Operation::{Allreduce, Barrier, Bcast, Reduce};
        matches!(self, Barrier | Bcast | Reduce | Allreduce) || self.keeps_groups_together()
    }

    /// Whether, on levels, a leader has the blocks of its group's ranks in one piece, so that these must follow each
    /// other.
    pub(crate) fn keeps_groups_together(self) -> bool {
        use Operation::{Allgather, Alltoall, Gather, ReduceScatterBlock, Scatter};
        matches!(self, Gather | Scatter | Allgather | Alltoall | ReduceScatterBlock)
    }

    /// Whether it combines elements.
    #[must_use]
    pub fn reduces(self) -> bool {
        use Operation::{Allreduce, Exscan, Reduce, ReduceScatter, ReduceScatterBlock, Scan};
        matches!(self, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
