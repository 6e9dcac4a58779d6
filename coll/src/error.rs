//! What may be wrong with a call.
use crate::algorithm::Algorithm;
use crate::operation::Operation;
use gapless_bml::Level;

/// The most children of a node whose every child waits for what comes from every child.
pub(crate) const CHILDREN_MAX: usize = 64;

/// Why an algorithm does not do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// It is for other operations.
    #[error("it is for other operations")]
    Operation,
    /// It combines operands in another order than that of the ranks.
    #[error("it does not keep the order of operands, and the operation is not commutative")]
    Order,
    /// Only some operations go on levels.
    #[error(
        "only barrier, bcast, gather, scatter, allgather, alltoall (linear, pairwise), reduce, allreduce and \
         reduce_scatter_block go on levels"
    )]
    Levels,
    /// It uses a level that is not known of all ranks.
    #[error("it is not known which ranks are together on level {0}")]
    Unknown(Level),
    /// The ranks of a group do not follow each other.
    #[error("on levels, it needs groups of ranks that follow each other")]
    Groups,
    /// A rank would have too many children: what comes from each is waited for before anything goes to any.
    #[error("a rank would have more than {CHILDREN_MAX} children")]
    Wide,
    /// What goes through shared memory is not cut into segments, and has no levels.
    #[error("through shared memory there are no segments, and no levels below it")]
    Whole,
    /// It has no schedule.
    #[error("through shared memory there is no schedule: only collectives of one host go that way")]
    Shared,
    /// Its number has no meaning: trees of no children, no partners at a time.
    #[error("its number has no meaning")]
    Number,
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A rank, root or neighbour is not of the communicator.
    #[error("rank {rank} is not one of {ranks}")]
    NoSuchRank {
        /// The rank that was given.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A root of an intercommunicator is in the caller's group, but not the caller: only the root itself and the other
    /// group name it.
    #[error("root {root} is another rank of the caller's own group")]
    OwnGroup {
        /// The root that was given.
        root: usize,
    },
    /// A list of lengths has not as many entries as there are blocks.
    #[error("lengths of {given} {what} are given, but there are {expected}")]
    Blocks {
        /// What they are lengths of.
        what: &'static str,
        /// Entries of the list.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
    /// This rank's own block has two lengths.
    #[error(
        "this rank's own block has {given} bytes where it is sent, but {listed} where it is received"
    )]
    OwnBlock {
        /// Length that it sends.
        given: u64,
        /// Length in the list of blocks.
        listed: u64,
    },
    /// An edge of a neighbourhood is named twice, or an edge to oneself has no other end of its length.
    #[error("edge {lane} with rank {peer} is named twice, or has no other end of its length")]
    Edge {
        /// The rank at its other end.
        peer: usize,
        /// Which of the edges between the two, in this direction.
        lane: u32,
    },
    /// A vector does not consist of whole elements.
    #[error("{len} bytes do not consist of whole elements of {unit} bytes")]
    SplitElement {
        /// Its length in bytes.
        len: u64,
        /// Length of one element in bytes.
        unit: u64,
    },
    /// Buffers of more than 2^48 bytes.
    #[error("buffers of more than 2^48 bytes")]
    TooLong,
    /// More ranks than a [`Sample`](crate::Sample) may have.
    #[error("{ranks} ranks are more than {most}")]
    TooMany {
        /// How many were asked for.
        ranks: usize,
        /// The most there may be.
        most: usize,
    },
    /// The groups of a locality do not name every rank exactly once.
    #[error("the groups do not name every rank exactly once")]
    Locality,
    /// A group is not a part of one group of the coarser level, or levels are not given from the coarsest on.
    #[error("the groups of level {level} are not parts of those of a coarser level")]
    Nesting {
        /// The level whose groups they are.
        level: Level,
    },
    /// The algorithm does not do the operation, or not this one.
    #[error("the algorithm {algorithm} does not do this {operation}: {why}")]
    Unsuited {
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: Box<Algorithm>,
        /// Why not.
        why: Misfit,
    },
}
