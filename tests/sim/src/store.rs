//! The memory that simulated messages lie in: each slot is fresh memory that is never used again, so
//! that whoever reads or writes it too late is found out by its contents.
//!
//! Whoever drops a slot or a fragment gives its credit back to the link it was reserved on; the
//! [`Wire`](crate::wire::Wire) collects these and decides when the sender learns of them.

use gapless_btl::{Fragment, PeerId, Reclaim, Slot};
use gapless_mem::Region;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What memory that was given back is overwritten with.
const POISON: u8 = 0xDD;

#[derive(Debug, Default)]
struct Inner {
    /// By the slot's index. Never freed while the world lives.
    memory: Vec<Vec<u8>>,
    /// The link that each was reserved on.
    homes: Vec<usize>,
    /// Links that get a credit back.
    returned: Vec<usize>,
}

/// All slots of a world.
#[derive(Debug, Default)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for `len` bytes to `peer`, on a link.
    pub(crate) fn slot(self: &Arc<Self>, peer: PeerId, len: usize, link: usize) -> Slot {
        let mut inner = self.lock();
        let mut memory = vec![POISON ^ 0xFF; len];
        let region = Region::of_mut(&mut memory);
        inner.memory.push(memory);
        inner.homes.push(link);
        let index = inner.memory.len() as u64 - 1;
        drop(inner);
        // SAFETY: the memory was allocated for this slot alone; it stays where it is until the store
        // is dropped, which the slot keeps, and no reference covers it before `reclaim`.
        unsafe { Slot::new(region, peer, index, Arc::clone(self)) }
    }

    /// The message that a slot has become, at its receiver.
    pub(crate) fn fragment(self: &Arc<Self>, region: Region, index: u64) -> Fragment {
        let home: Arc<dyn Reclaim> = Arc::clone(self) as Arc<dyn Reclaim>;
        // SAFETY: `region` and `index` come from a slot of this store that was taken apart, so that
        // nothing else uses the memory until `reclaim`; the fragment keeps the store.
        unsafe { Fragment::new(region, index, home) }
    }

    /// The link that a slot was reserved on.
    pub(crate) fn home(&self, index: u64) -> Option<usize> {
        self.lock().homes.get(usize::try_from(index).ok()?).copied()
    }

    /// The links that were given credits back since the last call, one entry each.
    pub(crate) fn take_returned(&self) -> Vec<usize> {
        std::mem::take(&mut self.lock().returned)
    }
}

// SAFETY: the numbers are those of the contract.
// 1., 2. Each index has memory of its own, which is kept to the end and never given out again.
// 3., 4. It overwrites that memory, under a lock that is held for that long only.
unsafe impl Reclaim for Store {
    unsafe fn reclaim(&self, index: u64) {
        let mut inner = self.lock();
        let Ok(index) = usize::try_from(index) else { return };
        let Some(&link) = inner.homes.get(index) else { return };
        inner.memory[index].fill(POISON);
        inner.returned.push(link);
    }
}
