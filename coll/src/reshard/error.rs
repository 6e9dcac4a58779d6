//! Why a reshard cannot be planned.

use gapless_dtype::TypeError;
use std::fmt;
use thiserror::Error;

/// Which of the two shardings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReshardEnd {
    /// The one that elements come from.
    Source,
    /// The one that they go to.
    Target,
}

impl fmt::Display for ReshardEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReshardEnd::Source => "source",
            ReshardEnd::Target => "target",
        })
    }
}

/// What is wrong with a sharding, or with two of them for one array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReshardError {
    /// The mesh's dimensions have another number of places than there are ranks, or none.
    #[error("a mesh of dimensions {dims:?} cannot have {ranks} ranks")]
    Mesh {
        /// The dimensions.
        dims: Vec<u32>,
        /// How many ranks were given.
        ranks: usize,
    },
    /// A rank twice in one mesh.
    #[error("rank {rank} is in the mesh twice")]
    RankTwice {
        /// The rank.
        rank: u32,
    },
    /// Not one placement for each dimension of the mesh.
    #[error("there are {placements} placements for {dims} dimensions of the mesh")]
    Placements {
        /// How many placements were given.
        placements: usize,
        /// How many dimensions the mesh has.
        dims: usize,
    },
    /// A block-cyclic placement of blocks without elements.
    #[error("the cyclic placement of mesh dimension {dim} has blocks of 0 indices")]
    EmptyBlock {
        /// The dimension of the mesh.
        dim: usize,
    },
    /// A placement on an axis that the array does not have.
    #[error("the {end} shards axis {axis} of an array of {axes} axes")]
    Axis {
        /// Whose placement it is.
        end: ReshardEnd,
        /// The axis.
        axis: usize,
        /// How many there are.
        axes: usize,
    },
    /// A memory order that is no permutation of the array's axes.
    #[error("the {end}'s memory order {order:?} does not name each of {axes} axes once")]
    Order {
        /// Whose order it is.
        end: ReshardEnd,
        /// The order.
        order: Vec<usize>,
        /// How many axes there are.
        axes: usize,
    },
    /// Elements that would not lie apart from each other in an array.
    #[error("elements of extent {extent} would overlap in an array")]
    Element {
        /// The datatype's extent in bytes.
        extent: i64,
    },
    /// An array of more bytes than 63 bits count.
    #[error("the array has more than {} bytes", i64::MAX)]
    Overflow,
    /// Cyclic placements cut an axis into more than [`MAX_INTERVALS`](super::MAX_INTERVALS) pieces.
    #[error("the {end} cuts axis {axis} into more than {} pieces", super::MAX_INTERVALS)]
    TooManyIntervals {
        /// Whose placements they are.
        end: ReshardEnd,
        /// The axis.
        axis: usize,
    },
    /// The elements' datatype cannot be committed.
    #[error(transparent)]
    Type(#[from] TypeError),
}
