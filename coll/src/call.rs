//! A call of a collective as one rank makes it, and what may be wrong with it.
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

/// What a reduction combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Packed length of one element in bytes: vectors are cut between elements only.
    pub unit: u64,
    /// Whether operands may change places. All ranks must say the same, as MPI demands. If not, they are combined in
    /// the order of the ranks.
    pub commutative: bool,
}

/// One edge of a neighbourhood, as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The rank at the other end.
    pub peer: usize,
    /// Which edge between the two, in this direction: both ends must give the same number.
    pub slot: u32,
}

impl Edge {
    /// The edges of a (distributed) graph: the k-th of several to one peer matches the k-th at its end
    /// (MPI 4.1 §8.6).
    #[must_use]
    pub fn graph(peers: &[usize]) -> Vec<Self> {
        let mut counts = std::collections::HashMap::new();
        let mut next = |peer| {
            let count = counts.entry(peer).or_insert(0);
            *count += 1;
            *count - 1
        };
        peers.iter().map(|peer| Self { peer: *peer, slot: next(*peer) }).collect()
    }

    /// The edges of a Cartesian topology: two per dimension, the negative direction first; `None` where there is no
    /// neighbour. First what this rank receives from, then what it sends to.
    ///
    /// What is sent in one direction arrives from the other, also where a periodic dimension has one or two ranks and
    /// both neighbours are one rank (MPI 4.1 §8.6). Blocks of missing neighbours stay in their places in the buffers:
    /// the lists keep them as `None`.
    #[must_use]
    pub fn cartesian(neighbors: &[Option<usize>]) -> (Vec<Option<Self>>, Vec<Option<Self>>) {
        let edge = |slot: usize, peer: &Option<usize>| {
            peer.map(|peer| Self { peer, slot: u32::try_from(slot).unwrap_or(u32::MAX) })
        };
        let sources = neighbors.iter().enumerate().map(|(index, peer)| edge(index ^ 1, peer));
        let destinations = neighbors.iter().enumerate().map(|(index, peer)| edge(index, peer));
        (sources.collect(), destinations.collect())
    }
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
    /// `len`: what this rank sends to each destination; `recv`: what it receives from each source.
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

    /// Whether ranks, lengths and elements fit together, as far as this rank can see.
    pub(crate) fn check(&self, rank: usize, ranks: usize) -> Result<(), BuildError> {
        if rank >= ranks {
            return Err(BuildError::NoSuchRank { rank, ranks });
        }
        let root = match self {
            Self::Bcast { root, .. }
            | Self::Gather { root, .. }
            | Self::Gatherv { root, .. }
            | Self::Scatter { root, .. }
            | Self::Scatterv { root, .. }
            | Self::Reduce { root, .. } => Some(*root),
            _ => None,
        };
        if let Some(root) = root.filter(|root| *root >= ranks) {
            return Err(BuildError::NoSuchRank { rank: root, ranks });
        }
        match self {
            Self::Gatherv { lens, len, in_place, .. }
            | Self::Scatterv { lens, len, in_place, .. }
                if root == Some(rank) =>
            {
                check_lens("blocks", lens, ranks)?;
                if !in_place && lens[rank] != *len {
                    return Err(BuildError::OwnBlock { given: *len, listed: lens[rank] });
                }
            }
            Self::Allgatherv { lens, .. } | Self::ReduceScatter { lens, .. } => {
                check_lens("blocks", lens, ranks)?;
            }
            Self::Alltoallv { send, recv, in_place } => {
                check_lens("blocks to receive", recv, ranks)?;
                if !in_place {
                    check_lens("blocks to send", send, ranks)?;
                    if send[rank] != recv[rank] {
                        return Err(BuildError::OwnBlock { given: send[rank], listed: recv[rank] });
                    }
                }
            }
            Self::NeighborAllgather { sources, destinations, recv, .. } => {
                check_lens("blocks to receive", recv, sources.len())?;
                check_edges(sources.iter().chain(*destinations), ranks)?;
            }
            Self::NeighborAlltoall { sources, destinations, send, recv } => {
                check_lens("blocks to receive", recv, sources.len())?;
                check_lens("blocks to send", send, destinations.len())?;
                check_edges(sources.iter().chain(*destinations), ranks)?;
            }
            _ => {}
        }
        let total = match self {
            Self::Gather { len, .. }
            | Self::Scatter { len, .. }
            | Self::Allgather { len, .. }
            | Self::Alltoall { len, .. }
            | Self::ReduceScatterBlock { len, .. } => len.checked_mul(ranks as u64),
            _ => Some(0),
        };
        // Scratch memory may be several times as long as the buffers; offsets must not overflow.
        if total.is_none_or(|total| total > LEN_MAX)
            || self.bytes().is_some_and(|len| len > LEN_MAX)
        {
            return Err(BuildError::TooLong);
        }
        let Some(Reduction { unit, .. }) = self.reduction() else {
            return Ok(());
        };
        let odd = match self {
            Self::ReduceScatter { lens, .. } => {
                lens.iter().find(|len| !is_whole(**len, unit)).copied()
            }
            _ => self.bytes().filter(|len| !is_whole(*len, unit)),
        };
        odd.map_or(Ok(()), |len| Err(BuildError::SplitElement { len, unit }))
    }
}

/// The longest buffer of a call, in bytes.
const LEN_MAX: u64 = 1 << 48;

pub(crate) fn is_whole(len: u64, unit: u64) -> bool {
    unit > 0 && len.is_multiple_of(unit)
}

pub(crate) fn check_lens(
    what: &'static str,
    lens: &[u64],
    expected: usize,
) -> Result<(), BuildError> {
    if lens.len() != expected {
        return Err(BuildError::Blocks { what, given: lens.len(), expected });
    }
    let total = lens.iter().try_fold(0u64, |sum, len| sum.checked_add(*len));
    if total.is_none_or(|total| total > LEN_MAX) { Err(BuildError::TooLong) } else { Ok(()) }
}

fn check_edges<'a>(
    edges: impl Iterator<Item = &'a Option<Edge>>,
    ranks: usize,
) -> Result<(), BuildError> {
    let stranger = edges.flatten().find(|edge| edge.peer >= ranks);
    stranger.map_or(Ok(()), |edge| Err(BuildError::NoSuchRank { rank: edge.peer, ranks }))
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A rank, root or neighbour is not of the communicator.
    NoSuchRank {
        /// The rank that was given.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A list of lengths has not as many entries as there are blocks.
    Blocks {
        /// What they are lengths of.
        what: &'static str,
        /// Entries of the list.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
    /// This rank's own block has two lengths.
    OwnBlock {
        /// Length that it sends.
        given: u64,
        /// Length in the list of blocks.
        listed: u64,
    },
    /// A vector does not consist of whole elements.
    SplitElement {
        /// Its length in bytes.
        len: u64,
        /// Length of one element in bytes.
        unit: u64,
    },
    /// Buffers of more than 2^48 bytes.
    TooLong,
    /// A topology does not name every rank exactly once.
    Topology,
    /// The algorithm does not do the operation, or not this one: not with an operation that is not commutative, or not
    /// on two levels with groups that are not consecutive.
    Unsuited {
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: crate::Algorithm,
    },
    /// MPI does not define the operation on intercommunicators.
    NotBetweenGroups(Operation),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchRank { rank, ranks } => write!(f, "rank {rank} is not one of {ranks}"),
            Self::Blocks { what, given, expected } => {
                write!(f, "lengths of {given} {what} are given, but there are {expected}")
            }
            Self::OwnBlock { given, listed } => write!(
                f,
                "this rank's own block has {given} bytes where it is sent, but {listed} where it is received"
            ),
            Self::SplitElement { len, unit } => {
                write!(f, "{len} bytes do not consist of whole elements of {unit} bytes")
            }
            Self::TooLong => write!(f, "buffers of more than 2^48 bytes"),
            Self::Topology => write!(f, "the topology does not name every rank exactly once"),
            Self::Unsuited { operation, algorithm } => {
                write!(f, "the algorithm {algorithm} does not do this {operation}")
            }
            Self::NotBetweenGroups(operation) => {
                write!(f, "MPI does not define {operation} on intercommunicators")
            }
        }
    }
}

impl std::error::Error for BuildError {}
