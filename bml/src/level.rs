//! Which processes are near each other: what divides them into groups.

use std::fmt;

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
    #[must_use]
    pub fn finer(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
