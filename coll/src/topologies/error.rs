//! Why a topology cannot be made, or has no answer.

use thiserror::Error;

/// What is wrong with the arguments of a topology; the message names the culprit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A grid of no processes.
    #[error("a grid needs at least one process")]
    NoProcesses,
    /// The dimensions that are given do not divide the number of processes.
    #[error("{processes} processes cannot be laid out: the given dimensions have {given} places")]
    NotDivisible {
        /// Processes to lay out.
        processes: u32,
        /// Product of the dimensions that are given.
        given: u64,
    },
    /// A dimension of no processes.
    #[error("dimension {dimension} has no processes")]
    EmptyDimension {
        /// The dimension, from 0.
        dimension: usize,
    },
    /// More places than ranks can be numbered.
    #[error("the grid has more than {} places", u32::MAX)]
    TooLarge,
    /// More places than the communicator has processes.
    #[error("the topology has {places} places, but the communicator has {processes} processes")]
    TooFewProcesses {
        /// Places of the topology.
        places: u32,
        /// Processes of the communicator.
        processes: u32,
    },
    /// Lists that should be as long as each other.
    #[error("{what} has {len} entries instead of {expected}")]
    Length {
        /// Which list.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The length that it should have.
        expected: usize,
    },
    /// A rank that is none.
    #[error("there is no rank {rank} among {size}")]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A dimension that is none.
    #[error("there is no dimension {dimension}: the grid has {dimensions}")]
    Dimension {
        /// The dimension, from 0.
        dimension: usize,
        /// How many there are.
        dimensions: usize,
    },
    /// A coordinate outside a dimension that is not periodic.
    #[error("coordinate {coordinate} lies outside dimension {dimension} of {size}")]
    Coordinate {
        /// The dimension, from 0.
        dimension: usize,
        /// The coordinate.
        coordinate: i64,
        /// Processes in that dimension.
        size: u32,
    },
    /// The index of a graph, which counts edges up to each node, decreases.
    #[error("the index of node {node} is less than that of the node before")]
    Index {
        /// The node.
        node: usize,
    },
    /// Neighbourhood collectives on a graph whose edges are not the same in both directions.
    #[error("node {one} has {forward} edges to node {other}, which has {backward} edges to it")]
    NotSymmetric {
        /// A node.
        one: u32,
        /// Another.
        other: u32,
        /// Edges from the one to the other.
        forward: u64,
        /// Edges from the other to the one.
        backward: u64,
    },
    /// Some ranks gave weights, others did not.
    #[error("some edges of rank {rank} have weights, others have none")]
    Weights {
        /// The rank at whose edges that was found.
        rank: u32,
    },
}

/// Whether a list is as long as it should be.
pub(super) fn check_length(
    what: &'static str,
    len: usize,
    expected: usize,
) -> Result<(), TopologyError> {
    match len == expected {
        true => Ok(()),
        false => Err(TopologyError::Length { what, len, expected }),
    }
}

/// Whether a rank is one.
pub(super) fn check_rank(rank: u32, size: u32) -> Result<(), TopologyError> {
    match rank < size {
        true => Ok(()),
        false => Err(TopologyError::Rank { rank, size }),
    }
}
