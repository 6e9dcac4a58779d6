//! What divides ranks into groups, and which tree joins the ranks of a group on each level.
use std::fmt;

use crate::tree::Tree;

/// What divides ranks into groups that are near each other, the coarsest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Ranks of one host share memory.
    Host,
    /// The processors of one socket (package).
    Socket,
    /// The processors that are nearest to one part of the memory.
    Numa,
    /// The processors that share a last-level cache.
    L3,
}

impl Level {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them, the coarsest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Host, Self::Socket, Self::Numa, Self::L3];

    /// Those within a host.
    pub const INSIDE: [Self; Self::COUNT - 1] = [Self::Socket, Self::Numa, Self::L3];

    /// A group of it in words, for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Socket => "socket",
            Self::Numa => "NUMA node",
            Self::L3 => "L3 cache",
        }
    }

    /// Its name in an algorithm, and in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Socket => "socket",
            Self::Numa => "numa",
            Self::L3 => "l3",
        }
    }

    /// The next finer one.
    pub(crate) fn finer(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The tree within each group, for each [`Level`] that an algorithm uses; none for those it does not.
///
/// On a level's tree are the leaders of the groups of the next finer level that is used, or all ranks of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Within {
    trees: [Option<Tree>; Level::COUNT],
    /// Whether the ranks of a host go through memory that they share, where they share some.
    shared: bool,
}

impl Within {
    /// No levels.
    pub const NONE: Self = Self { trees: [None; Level::COUNT], shared: false };

    /// The ranks of each host go through memory that they share; where they share none, along a binomial tree.
    pub const SHARED: Self = Self { shared: true, ..Self::NONE.with(Level::Host, Tree::Binomial) };

    /// With this tree within each group of a level.
    #[must_use]
    pub const fn with(mut self, level: Level, tree: Tree) -> Self {
        self.trees[level as usize] = Some(tree);
        self.shared = self.shared && !matches!(level, Level::Host);
        self
    }

    /// Whether the ranks of each host go through memory that they share.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.shared
    }

    /// What ranks do that share no memory with the others of their host: the other hosts see no difference.
    #[must_use]
    pub const fn by_messages(self) -> Self {
        Self { shared: false, ..self }
    }

    /// Whether no level is used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels().next().is_none()
    }

    /// The levels that are used with their trees, the coarsest first.
    pub fn levels(&self) -> impl Iterator<Item = (Level, Tree)> + '_ {
        Level::ALL.into_iter().filter_map(|level| Some((level, self.trees[level as usize]?)))
    }
}
