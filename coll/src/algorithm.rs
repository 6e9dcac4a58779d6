//! Which algorithms there are, and which operations each does.
use std::fmt;

use crate::Operation;
use crate::algorithms::{Butterfly, Exchange};
use crate::tree::Tree;

/// How an operation is done among some ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Straight from those who have something to those who want it, all at once. All-reduce: all vectors to all ranks.
    Linear,
    /// As linear, so many partners at a time (alltoall; 1 at least).
    Pairwise(usize),
    /// Along a tree; all-reduce and all-gather go up and down again, reduce-scatter is a reduction and a scatter, scans
    /// go along the chain.
    Tree(Tree),
    /// Blocks go round. Bcast scatters first; reduce and all-reduce are a reduce-scatter, then a gather or all-gather.
    Exchange(Exchange),
    /// Recursive doubling of whole vectors.
    Doubling(Butterfly),
    /// Recursive halving of vectors, then doubling (Rabenseifner).
    Halving(Butterfly),
}

/// An algorithm: a method, in segments or not, on one level or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    /// How it is done; on two levels, by the leaders of the groups.
    pub method: Method,
    /// Longest message in bytes, for pipelines; 0: messages are not cut.
    pub segment: u64,
    /// On two levels: the tree within each group of the [`Locality`](crate::Locality). None: on one level.
    pub within: Option<Tree>,
}

impl Algorithm {
    /// On one level, without segments.
    #[must_use]
    pub const fn new(method: Method) -> Self {
        Self { method, segment: 0, within: None }
    }

    /// In segments of about so many bytes; 0: in one.
    #[must_use]
    pub const fn segmented(self, segment: u64) -> Self {
        Self { segment, ..self }
    }

    /// Among the leaders of the groups, with this tree within each group.
    #[must_use]
    pub const fn two_level(self, within: Tree) -> Self {
        Self { within: Some(within), ..self }
    }

    /// Whether it does the operation; `commutative` counts for reductions only.
    #[must_use]
    pub fn does(&self, operation: Operation, commutative: bool) -> bool {
        use Operation::{Allgather, Allreduce, Barrier, Bcast, Reduce};
        if let Some(within) = self.within {
            let two_level = matches!(operation, Barrier | Bcast | Reduce | Allreduce | Allgather);
            let ordered = commutative || !operation.reduces() || within.is_ordered();
            return two_level
                && ordered
                && within.is_sound()
                && self.method.does(operation, commutative);
        }
        self.method.does(operation, commutative)
    }
}

impl Method {
    fn does(self, operation: Operation, commutative: bool) -> bool {
        use Operation as O;
        let commutes = commutative || !operation.reduces();
        match self {
            Self::Linear => matches!(
                operation,
                O::Barrier
                    | O::Gatherv
                    | O::Scatterv
                    | O::Alltoall
                    | O::Alltoallv
                    | O::Allreduce
                    | O::NeighborAllgather
                    | O::NeighborAlltoall
            ),
            Self::Pairwise(at_once) => {
                at_once > 0 && matches!(operation, O::Alltoall | O::Alltoallv)
            }
            Self::Tree(tree) => {
                tree.is_sound()
                    && match operation {
                        O::Scan | O::Exscan => tree == Tree::Chain,
                        O::Gatherv
                        | O::Scatterv
                        | O::Alltoall
                        | O::Alltoallv
                        | O::NeighborAllgather
                        | O::NeighborAlltoall => false,
                        _ => commutes || tree.is_ordered(),
                    }
            }
            Self::Exchange(how) => {
                how.is_sound()
                    && match operation {
                        O::Barrier | O::Alltoall => how == Exchange::Bruck,
                        O::Bcast | O::Allgather | O::Allgatherv => true,
                        O::Reduce | O::Allreduce | O::ReduceScatter | O::ReduceScatterBlock => {
                            commutative || how == Exchange::Direct
                        }
                        _ => false,
                    }
            }
            Self::Doubling(how) => match operation {
                O::Allreduce => commutative || how == Butterfly::Binary,
                O::Scan | O::Exscan => how == Butterfly::Binary,
                _ => false,
            },
            Self::Halving(how) => match operation {
                O::Allreduce => commutative || how == Butterfly::Binary,
                O::Reduce | O::ReduceScatter | O::ReduceScatterBlock => how == Butterfly::Binary,
                _ => false,
            },
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.method)?;
        if self.segment > 0 {
            write!(f, ", segments of {} B", self.segment)?;
        }
        match self.within {
            Some(within) => write!(f, ", on two levels ({within} within groups)"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear => write!(f, "linear"),
            Self::Pairwise(1) => write!(f, "pairwise"),
            Self::Pairwise(at_once) => write!(f, "pairwise, {at_once} at a time"),
            Self::Tree(tree) => write!(f, "{tree}"),
            Self::Exchange(how) => write!(f, "{how}"),
            Self::Doubling(Butterfly::Binary) => write!(f, "recursive doubling"),
            Self::Doubling(Butterfly::Bine) => write!(f, "recursive doubling (Bine)"),
            Self::Halving(Butterfly::Binary) => write!(f, "Rabenseifner"),
            Self::Halving(Butterfly::Bine) => write!(f, "Rabenseifner (Bine)"),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat => write!(f, "flat tree"),
            Self::Chain => write!(f, "chain"),
            Self::Binomial => write!(f, "binomial tree"),
            Self::KNomial(k) => write!(f, "{k}-nomial tree"),
            Self::KAry(2) => write!(f, "binary tree"),
            Self::KAry(k) => write!(f, "{k}-ary tree"),
            Self::Bine => write!(f, "Bine tree"),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => write!(f, "direct exchange"),
            Self::Ring => write!(f, "ring"),
            Self::Bruck => write!(f, "Bruck"),
            Self::Doubling => write!(f, "recursive doubling of blocks"),
            Self::Bine => write!(f, "Bine butterfly"),
            Self::Pat { blocks } => write!(f, "PAT, {blocks} blocks a message"),
        }
    }
}
