//! What a window says of itself (MPI 4.1 §12.2.6, §12.2.7), hints that it is made with, and assertions.

use super::Window;
use crate::error::Error;
use bitflags::bitflags;
use gapless_dtype::AnyBits;
use gapless_mem::Region;

bitflags! {
    /// What a program promises of an epoch (MPI 4.1 §12.5.5): the calls whose names end in `_with` take them. Those
    /// that save nothing here are taken, and change nothing.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Assertions: u32 {
        /// `MPI_MODE_NOCHECK`. Of a lock: nobody has a lock that excludes it, nor takes one before the unlock; then none
        /// is taken, which saves a way to a target that is reached by messages. Of a post and *all* starts that match
        /// it: the post comes first, which the ranks know by other means; then no message tells them.
        const NOCHECK = 1;
        /// `MPI_MODE_NOSTORE`: this rank has not stored to its memory since the last synchronisation. Without effect.
        const NOSTORE = 1 << 1;
        /// `MPI_MODE_NOPUT`: nobody writes this rank's memory until the epoch ends. Without effect.
        const NOPUT = 1 << 2;
        /// `MPI_MODE_NOPRECEDE`: the fence ends no operations. Without effect: nothing is waited for then anyway.
        const NOPRECEDE = 1 << 3;
        /// `MPI_MODE_NOSUCCEED`: no epoch begins after the fence, as by [`Window::fence_last`]. All ranks say so, or none.
        const NOSUCCEED = 1 << 4;
    }
}

/// How a window was made (`MPI_WIN_CREATE_FLAVOR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowFlavor {
    /// `MPI_WIN_FLAVOR_CREATE`: of memory that ranks gave.
    Created,
    /// `MPI_WIN_FLAVOR_ALLOCATE`: of memory that was allocated for it.
    Allocated,
    /// `MPI_WIN_FLAVOR_SHARED`.
    Shared,
    /// `MPI_WIN_FLAVOR_DYNAMIC`.
    Dynamic,
}

/// How a window's memory is seen (`MPI_WIN_MODEL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowModel {
    /// `MPI_WIN_UNIFIED`: there is one copy of the data. `docs/windows.md` says what is seen when.
    Unified,
}

/// Hints that a window is made with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hints {
    /// All ranks give as many bytes.
    pub(crate) same_size: bool,
}

impl Hints {
    pub(super) fn with(self, key: &str, value: &str) -> Hints {
        match (key, value) {
            ("same_size", "true") => Hints { same_size: true },
            ("same_size", "false") => Hints { same_size: false },
            _ => self,
        }
    }
}

impl<T: AnyBits, M> Window<T, M> {
    /// Where this rank's memory is (`MPI_WIN_BASE`), for kernels and other libraries: whoever touches it by this answers
    /// for that, as with any address. Of no bytes if the window is dynamic.
    #[must_use]
    pub fn base(&self) -> Region {
        self.raw.base()
    }

    /// Bytes of the memory of a rank (`MPI_WIN_SIZE`); 0 if the window is dynamic.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn bytes(&self, rank: u32) -> Result<u64, Error> {
        self.raw.bytes(rank)
    }

    /// Bytes of a unit of displacements (`MPI_WIN_DISP_UNIT`): of an element; the same at all ranks.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.raw.unit(self.rank()).unwrap_or(1)
    }

    /// How the window was made (`MPI_WIN_CREATE_FLAVOR`) by this rank.
    #[must_use]
    pub fn flavor(&self) -> WindowFlavor {
        self.raw.flavor()
    }

    /// How its memory is seen (`MPI_WIN_MODEL`).
    #[must_use]
    pub fn model(&self) -> WindowModel {
        WindowModel::Unified
    }

    /// Gives the window a name at this rank (`MPI_Win_set_name`), for people and debuggers.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.name = name.into();
    }

    /// That name (`MPI_Win_get_name`); empty at first.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What this window keeps to, as info keys (`MPI_Win_get_info`): whatever hints it was made with, but for
    /// `same_size`.
    #[must_use]
    pub fn info(&self) -> Vec<(&'static str, &'static str)> {
        let same_size = if self.hints.same_size { "true" } else { "false" };
        vec![
            ("accumulate_ops", "same_op_no_op"),
            ("accumulate_ordering", "rar,raw,war,waw"),
            ("mpi_accumulate_granularity", "4096"),
            ("no_locks", "false"),
            ("same_disp_unit", "true"),
            ("same_size", same_size),
        ]
    }
}
