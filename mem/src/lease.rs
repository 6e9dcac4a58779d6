//! Memory that somebody keeps alive.

use crate::{OutOfRange, Region};
use std::any::Any;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// A region, and what keeps its memory alive: the memory stays as long as a clone of the lease does.
///
/// It says that the memory is there, and no more. Who may read or write it, and when, is agreed between
/// those who have it, as with a [`Region`].
///
/// ```compile_fail,E0133
/// # use gapless_mem::{Lease, Region, Space};
/// # use std::sync::Arc;
/// // Nobody has vouched for what lies there.
/// let lease = Lease::new(Region::new(Space::Host, 0x1000, 0, 8), Arc::new(()));
/// ```
#[derive(Clone)]
pub struct Lease {
    region: Region,
    /// `None` if whoever made the lease keeps the memory itself.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// The owner is kept, and never looked at: a panic leaves nothing of it half done here.
impl UnwindSafe for Lease {}
impl RefUnwindSafe for Lease {}

impl Lease {
    /// Memory that `owner` keeps.
    ///
    /// # Safety
    /// While `owner` lives, `region` describes memory that stays allocated and, if its space has addresses,
    /// mapped there. Nobody takes it away otherwise (through another handle, by telling a device to).
    #[must_use]
    pub unsafe fn new(region: Region, owner: Arc<dyn Any + Send + Sync>) -> Lease {
        Lease { region, owner: Some(owner) }
    }

    /// Memory that the caller keeps.
    ///
    /// # Safety
    /// Until the lease and all of its clones and parts are gone, `region` describes memory as in
    /// [`new`](Lease::new).
    #[must_use]
    #[inline]
    pub unsafe fn kept_by_caller(region: Region) -> Lease {
        Lease { region, owner: None }
    }

    /// Where the memory is.
    #[must_use]
    #[inline]
    pub fn region(&self) -> Region {
        self.region
    }

    /// What keeps the memory, unless that is whoever made the lease.
    #[must_use]
    pub fn owner(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.owner.as_ref()
    }

    /// The same memory, kept by an owner that keeps this lease.
    pub(crate) fn kept_by(&self, owner: Arc<dyn Any + Send + Sync>) -> Lease {
        Lease { region: self.region, owner: Some(owner) }
    }

    /// The `len` bytes from `offset` on, kept by the same owner.
    ///
    /// # Errors
    /// [`OutOfRange`] if they do not lie inside.
    pub fn sub(&self, offset: u64, len: u64) -> Result<Lease, OutOfRange> {
        Ok(Lease { region: self.region.sub(offset, len)?, owner: self.owner.clone() })
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease of {:?}", self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_keeps_the_whole() {
        let memory: Arc<[u8; 16]> = Arc::new([7; 16]);
        let region = Region::of(&memory[..]);
        let count = Arc::downgrade(&memory);
        // SAFETY: the array is kept by the Arc.
        let whole = unsafe { Lease::new(region, memory) };
        let part = whole.sub(8, 4).unwrap();
        assert!(whole.sub(8, 9).is_err());
        drop(whole);
        assert_eq!((part.region().start(), part.region().len()), (region.start() + 8, 4));
        assert_eq!(count.strong_count(), 1);
        drop(part);
        assert_eq!(count.strong_count(), 0);
    }
}
