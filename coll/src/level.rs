//! Which tree joins the ranks of a group on each level of nearness.

use gapless_bml::Level;

use crate::tree::Tree;

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
