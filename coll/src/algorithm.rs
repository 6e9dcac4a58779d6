//! Which algorithms there are, by what names, and which operations each does.
//!
//! [`TABLE`] is the list from which names, what is tried and what is proved follow.
use crate::level::Within;
use crate::operation::Operation;
use crate::tree::Tree;
use gapless_bml::Level;

/// In which rounds blocks go from rank to rank, in algorithms that exchange them ([`Method`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Each sends its block to each other: `n - 1` messages, all at once.
    Direct,
    /// Blocks go round a ring, `n - 1` rounds, to the next neighbour only.
    Ring,
    /// Rounds with distances 1, 2, 4, …: as few rounds as can be, for any number of members.
    Bruck,
    /// Recursive doubling: members exchange all they have with a partner at distance 1, 2, 4, …; beyond powers of two
    /// the surplus is folded onto neighbours.
    Doubling,
    /// Parallel aggregated trees (Jeaugey, arXiv 2506.20252): as Bruck's pattern, but the farthest first, and each
    /// message has `blocks` blocks at most (rounded down to a power of two). Trees of so many blocks go on side by
    /// side, depth first.
    Pat {
        /// Most blocks in a message.
        blocks: usize,
    },
}

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
    Doubling,
    /// Recursive halving of vectors, then doubling (Rabenseifner).
    Halving,
    /// Reductions by tasks at other ranks: reduce up a binomial tree, the others round a ring; all-reduce ends with an
    /// all-gather of messages. The executor needs somebody who carries tasks ([`Tasks`](crate::Tasks)).
    Xtq,
    /// Without messages, through memory that the ranks share ([`sm`](crate::sm)): for collectives of a
    /// communicator whose ranks have such memory, and of a kind that goes that way. It has no schedule.
    Shared,
}

/// An algorithm: a method, in segments or not, on one level or several.
///
/// As text, which `Display` writes and `FromStr` reads: the name of a method, `in` and the length of a segment if there
/// are any, `over` and the tree within the groups of each level that it uses, the coarsest first: `chain in 64K`,
/// `doubling over binomial` (leaders of hosts double, a tree within each host), `doubling over shared` (the ranks of
/// each host go through memory that they share),
/// `ring over 4-nomial over numa flat` (a flat tree within each NUMA node, a tree of their leaders within each host).
/// The name of a [`Level`] may be left out: the first is then `host`, each other the next finer one.
/// [`METHODS`](crate::METHODS) lists the names of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    /// How it is done; on levels, by the leaders of the coarsest groups.
    pub method: Method,
    /// Longest message in bytes, for pipelines; 0: messages are not cut.
    pub segment: u64,
    /// The trees within the groups of the [`Locality`](crate::Locality), on the levels that it uses.
    pub within: Within,
}

impl Algorithm {
    /// On one level, without segments.
    #[must_use]
    pub const fn new(method: Method) -> Self {
        Self { method, segment: 0, within: Within::NONE }
    }

    /// In segments of about so many bytes; 0: in one.
    #[must_use]
    pub const fn segmented(self, segment: u64) -> Self {
        Self { segment, ..self }
    }

    /// With this tree within each group of a level: among the leaders of the groups of the next finer level that it
    /// uses, or all ranks. The leaders of the coarsest groups do what the method says.
    #[must_use]
    pub const fn over(self, level: Level, tree: Tree) -> Self {
        Self { within: self.within.with(level, tree), ..self }
    }

    /// With shared memory within each host, and no finer levels. The leaders of the hosts do what the method says.
    #[must_use]
    pub const fn over_shared(self) -> Self {
        Self { within: Within::SHARED, ..self }
    }

    /// What it is to ranks that share no memory with the others of their host.
    #[must_use]
    pub const fn by_messages(self) -> Self {
        Self { within: self.within.by_messages(), ..self }
    }

    /// Whether it does the operation; `commutative` counts for reductions only.
    #[must_use]
    pub fn does(&self, operation: Operation, commutative: bool) -> bool {
        if self.method == Method::Shared && (self.segment > 0 || !self.within.is_empty()) {
            return false;
        }
        if self.within.is_shared() && self.within != Within::SHARED {
            return false;
        }
        // Leaders have blocks of unlike lengths for each other.
        let uneven =
            operation == Operation::Alltoall && self.method == Method::Exchange(Exchange::Bruck);
        ((operation.goes_on_levels() && !uneven) || self.within.is_empty())
            && self.within.levels().all(|(_, tree)| tree.is_sound())
            && self.method.does(operation, commutative)
    }
}

/// A method, or those that differ by a number alone.
pub(crate) struct MethodEntry {
    /// Its name, in which `N` stands for the number.
    pub(crate) name: &'static str,
    /// The one with this number.
    pub(crate) make: fn(usize) -> Method,
    /// The numbers of those that may be [tried](crate::choose::candidates). What has no number is tried if this is
    /// `[0]`.
    pub(crate) tried: &'static [usize],
    /// The numbers of those that are proved.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests prove"))]
    pub(crate) proved: &'static [usize],
}

const fn plain(name: &'static str, make: fn(usize) -> Method) -> MethodEntry {
    MethodEntry { name, make, tried: &[0], proved: &[0] }
}

/// All methods, in the order in which they are tried.
pub(crate) const TABLE: [MethodEntry; 15] = {
    use Method as M;
    [
        plain("linear", |_| M::Linear),
        MethodEntry { name: "pairwise-N", make: M::Pairwise, tried: &[1, 4], proved: &[1, 3] },
        plain("doubling", |_| M::Doubling),
        plain("halving", |_| M::Halving),
        plain("flat", |_| M::Tree(Tree::Flat)),
        plain("chain", |_| M::Tree(Tree::Chain)),
        plain("binomial", |_| M::Tree(Tree::Binomial)),
        MethodEntry {
            name: "N-nomial",
            make: |k| M::Tree(Tree::KNomial(k)),
            tried: &[4, 8],
            proved: &[3, 4],
        },
        plain("direct", |_| M::Exchange(Exchange::Direct)),
        plain("ring", |_| M::Exchange(Exchange::Ring)),
        plain("bruck", |_| M::Exchange(Exchange::Bruck)),
        plain("blocks", |_| M::Exchange(Exchange::Doubling)),
        MethodEntry {
            name: "pat-N",
            make: |blocks| M::Exchange(Exchange::Pat { blocks }),
            tried: &[4, 64],
            proved: &[1, 2, 4, 1000],
        },
        // Whoever has somebody to carry tasks says so.
        MethodEntry { tried: &[], ..plain("xtq", |_| M::Xtq) },
        // It has no schedule.
        MethodEntry { tried: &[], proved: &[], ..plain("shared", |_| M::Shared) },
    ]
};

impl Method {
    /// Its number; 0 if it has none.
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Pairwise(number)
            | Self::Tree(Tree::KNomial(number))
            | Self::Exchange(Exchange::Pat { blocks: number }) => number,
            _ => 0,
        }
    }

    /// Whether its number has a meaning.
    pub(crate) fn is_sound(self) -> bool {
        match self {
            Self::Tree(tree) => tree.is_sound(),
            Self::Exchange(how) => how.is_sound(),
            Self::Pairwise(at_once) => at_once > 0,
            _ => true,
        }
    }

    fn does(self, operation: Operation, commutative: bool) -> bool {
        use Operation as O;
        if !self.is_sound() {
            return false;
        }
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
            Self::Shared => true,
            Self::Xtq => {
                commutative
                    && matches!(
                        operation,
                        O::Reduce | O::Allreduce | O::ReduceScatter | O::ReduceScatterBlock
                    )
            }
            Self::Pairwise(_) => matches!(operation, O::Alltoall | O::Alltoallv),
            Self::Tree(tree) => match operation {
                O::Scan | O::Exscan => tree == Tree::Chain,
                O::Gatherv
                | O::Scatterv
                | O::Alltoall
                | O::Alltoallv
                | O::NeighborAllgather
                | O::NeighborAlltoall => false,
                _ => true,
            },
            Self::Exchange(how) => match operation {
                O::Barrier | O::Alltoall => how == Exchange::Bruck,
                O::Bcast | O::Allgather | O::Allgatherv => true,
                O::Reduce | O::Allreduce | O::ReduceScatter | O::ReduceScatterBlock => {
                    commutative || how == Exchange::Direct
                }
                _ => false,
            },
            Self::Doubling => matches!(operation, O::Allreduce | O::Scan | O::Exscan),
            Self::Halving => matches!(
                operation,
                O::Allreduce | O::Reduce | O::ReduceScatter | O::ReduceScatterBlock
            ),
        }
    }
}
