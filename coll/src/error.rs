//! What may be wrong with a call.
use std::fmt;

use crate::{Algorithm, Operation};

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
    /// An edge of a neighbourhood is named twice, or an edge to oneself has no other end of its length.
    Edge {
        /// The rank at its other end.
        peer: usize,
        /// Its number.
        slot: u32,
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
        algorithm: Algorithm,
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
            Self::Edge { peer, slot } => write!(
                f,
                "edge {slot} with rank {peer} is named twice, or has no other end of its length"
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
