//! A call of a collective as one rank makes it.
use crate::operation::Operation;
use crate::topologies::Edge;

/// What a reduction combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Packed length of one element in bytes: vectors are cut between elements only.
    pub unit: u64,
    /// Whether operands may change places. All ranks must say the same, as MPI demands. If not, they are combined in
    /// the order of the ranks.
    pub commutative: bool,
}

/// A collective as one rank calls it. Lengths are in packed bytes.
///
/// A rank gives what MPI tells it, and no more. Where MPI lets ranks give different arguments, they may differ:
/// `in_place` of rooted operations is the root's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of all variants are described here")]
pub enum Call<'a> {
    Barrier,
    /// `len`: what is broadcast.
    Bcast {
        root: usize,
        len: u64,
    },
    /// `len`: one rank's block.
    Gather {
        root: usize,
        len: u64,
        in_place: bool,
    },
    /// `len`: this rank's block; `lens`: all blocks, needed at the root only.
    Gatherv {
        root: usize,
        len: u64,
        lens: &'a [u64],
        in_place: bool,
    },
    /// `len`: one rank's block.
    Scatter {
        root: usize,
        len: u64,
        in_place: bool,
    },
    /// `len`: this rank's block; `lens`: all blocks, needed at the root only.
    Scatterv {
        root: usize,
        len: u64,
        lens: &'a [u64],
        in_place: bool,
    },
    /// `len`: one rank's block.
    Allgather {
        len: u64,
        in_place: bool,
    },
    /// `lens`: all blocks.
    Allgatherv {
        lens: &'a [u64],
        in_place: bool,
    },
    /// `len`: what one rank sends to one.
    Alltoall {
        len: u64,
        in_place: bool,
    },
    /// What this rank sends to each, and receives from each. In place only `recv` counts.
    Alltoallv {
        send: &'a [u64],
        recv: &'a [u64],
        in_place: bool,
    },
    /// `len`: the vector.
    Reduce {
        root: usize,
        len: u64,
        of: Reduction,
        in_place: bool,
    },
    /// `len`: the vector.
    Allreduce {
        len: u64,
        of: Reduction,
        in_place: bool,
    },
    /// `lens`: all blocks of the result.
    ReduceScatter {
        lens: &'a [u64],
        of: Reduction,
        in_place: bool,
    },
    /// `len`: one rank's block of the result.
    ReduceScatterBlock {
        len: u64,
        of: Reduction,
        in_place: bool,
    },
    /// `len`: the vector.
    Scan {
        len: u64,
        of: Reduction,
        in_place: bool,
    },
    /// `len`: the vector. What rank 0 receives is undefined, and not written.
    Exscan {
        len: u64,
        of: Reduction,
        in_place: bool,
    },
    /// The neighbours are those of a [`Neighborhood`](crate::topologies::Neighborhood). `len`: what this rank sends to
    /// each destination; `recv`: what it receives from each source. Blocks without a neighbour are not touched.
    NeighborAllgather {
        sources: &'a [Option<Edge>],
        destinations: &'a [Option<Edge>],
        len: u64,
        recv: &'a [u64],
    },
    /// What this rank sends to each destination, and receives from each source.
    NeighborAlltoall {
        sources: &'a [Option<Edge>],
        destinations: &'a [Option<Edge>],
        send: &'a [u64],
        recv: &'a [u64],
    },
}

impl Call<'_> {
    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Barrier => Operation::Barrier,
            Self::Bcast { .. } => Operation::Bcast,
            Self::Gather { .. } => Operation::Gather,
            Self::Gatherv { .. } => Operation::Gatherv,
            Self::Scatter { .. } => Operation::Scatter,
            Self::Scatterv { .. } => Operation::Scatterv,
            Self::Allgather { .. } => Operation::Allgather,
            Self::Allgatherv { .. } => Operation::Allgatherv,
            Self::Alltoall { .. } => Operation::Alltoall,
            Self::Alltoallv { .. } => Operation::Alltoallv,
            Self::Reduce { .. } => Operation::Reduce,
            Self::Allreduce { .. } => Operation::Allreduce,
            Self::ReduceScatter { .. } => Operation::ReduceScatter,
            Self::ReduceScatterBlock { .. } => Operation::ReduceScatterBlock,
            Self::Scan { .. } => Operation::Scan,
            Self::Exscan { .. } => Operation::Exscan,
            Self::NeighborAllgather { .. } => Operation::NeighborAllgather,
            Self::NeighborAlltoall { .. } => Operation::NeighborAlltoall,
        }
    }

    /// The same call, if it has no lists.
    #[must_use]
    pub fn without_lists(&self) -> Option<Call<'static>> {
        Some(match *self {
            Self::Barrier => Call::Barrier,
            Self::Bcast { root, len } => Call::Bcast { root, len },
            Self::Gather { root, len, in_place } => Call::Gather { root, len, in_place },
            Self::Scatter { root, len, in_place } => Call::Scatter { root, len, in_place },
            Self::Allgather { len, in_place } => Call::Allgather { len, in_place },
            Self::Alltoall { len, in_place } => Call::Alltoall { len, in_place },
            Self::Reduce { root, len, of, in_place } => Call::Reduce { root, len, of, in_place },
            Self::Allreduce { len, of, in_place } => Call::Allreduce { len, of, in_place },
            Self::ReduceScatterBlock { len, of, in_place } => {
                Call::ReduceScatterBlock { len, of, in_place }
            }
            Self::Scan { len, of, in_place } => Call::Scan { len, of, in_place },
            Self::Exscan { len, of, in_place } => Call::Exscan { len, of, in_place },
            _ => return None,
        })
    }

    /// The lengths of all blocks, if there is a list of them that all ranks know.
    pub(crate) fn known_lens(&self) -> Option<&[u64]> {
        match self {
            Self::Allgatherv { lens, .. } | Self::ReduceScatter { lens, .. } => Some(lens),
            _ => None,
        }
    }

    /// The call with blocks that are all as long as the longest; `None`: not all ranks know how long that is.
    pub(crate) fn evened(&self) -> Option<Call<'static>> {
        let len = || self.known_lens()?.iter().copied().max();
        match *self {
            Self::Allgatherv { in_place, .. } => Some(Call::Allgather { len: len()?, in_place }),
            Self::ReduceScatter { of, in_place, .. } => {
                Some(Call::ReduceScatterBlock { len: len()?, of, in_place })
            }
            _ => self.without_lists(),
        }
    }

    /// What it combines, if it does.
    #[must_use]
    pub fn reduction(&self) -> Option<Reduction> {
        match self {
            Self::Reduce { of, .. }
            | Self::Allreduce { of, .. }
            | Self::ReduceScatter { of, .. }
            | Self::ReduceScatterBlock { of, .. }
            | Self::Scan { of, .. }
            | Self::Exscan { of, .. } => Some(*of),
            _ => None,
        }
    }

    /// The bytes that all ranks know, by which an algorithm may be chosen: the vector, or one rank's block. `None` for
    /// operations whose lengths differ from rank to rank. `MPI_Reduce_scatter` and `MPI_Allgatherv` give the sum:
    /// all ranks know all lengths there.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Barrier => Some(0),
            Self::Bcast { len, .. }
            | Self::Gather { len, .. }
            | Self::Scatter { len, .. }
            | Self::Allgather { len, .. }
            | Self::Alltoall { len, .. }
            | Self::Reduce { len, .. }
            | Self::Allreduce { len, .. }
            | Self::ReduceScatterBlock { len, .. }
            | Self::Scan { len, .. }
            | Self::Exscan { len, .. } => Some(*len),
            Self::Allgatherv { lens, .. } | Self::ReduceScatter { lens, .. } => {
                Some(lens.iter().fold(0, |sum, len| sum.saturating_add(*len)))
            }
            _ => None,
        }
    }
}
