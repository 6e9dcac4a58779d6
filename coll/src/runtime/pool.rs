//! Device memory for the intermediate data of reductions.
//!
//! Allocating device memory takes long, and some drivers wait for the device before they free it. So what collectives
//! give back is kept for later ones, up to a bound; more is freed when no lock is held. Units: bytes.

use crate::Lender;
use gapless_mem::{Device, Region, Space};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes kept of a device at most.
const KEPT: u64 = 256 << 20;

/// What is lent is a multiple of this.
const GRAIN: u64 = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device's memory that is lent, and what is kept of it.
struct Pool {
    device: Arc<dyn Device>,
    idle: Mutex<Vec<Region>>,
    /// What is more than is kept, to be freed where nothing waits for it ([`Pools::surplus`]).
    surplus: Mutex<Vec<Region>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.device.properties().name).finish()
    }
}

impl Pool {
    fn free_those(&self, list: &Mutex<Vec<Region>>) {
        let regions = std::mem::take(&mut *lock(list));
        regions.into_iter().for_each(|region| self.free(region));
    }

    fn free_all(&self) {
        self.free_those(&self.idle);
        self.free_those(&self.surplus);
    }

    fn free(&self, region: Region) {
        // SAFETY: `lend` allocated it, and it was taken back, when nothing used it any more.
        if let Err(error) = unsafe { self.device.free(region) } {
            tracing::warn!(%error, "device memory of collectives could not be freed");
        }
    }
}

// SAFETY: a region is a whole allocation of the device's: it is in `idle`, in `surplus`, or lent to one. It is freed
// out of one of the lists, by whoever takes it from there.
unsafe impl Lender for Pool {
    fn lend(&self, bytes: u64) -> Option<Region> {
        let bytes = bytes.checked_next_multiple_of(GRAIN)?;
        let mut idle = lock(&self.idle);
        let fits = |region: &Region| (bytes..=bytes.saturating_mul(2)).contains(&region.len());
        if let Some(at) = idle.iter().position(fits) {
            return Some(idle.swap_remove(at));
        }
        drop(idle);
        let allocated = self.device.allocate(bytes).or_else(|_| {
            // Perhaps what is kept is what is missing.
            self.free_all();
            self.device.allocate(bytes)
        });
        allocated
            .inspect_err(|error| tracing::debug!(%error, "no device memory for a collective"))
            .ok()
    }

    unsafe fn take_back(&self, region: Region) {
        let mut idle = lock(&self.idle);
        let kept: u64 = idle.iter().map(Region::len).sum();
        if kept.saturating_add(region.len()) <= KEPT {
            idle.push(region);
            return;
        }
        drop(idle);
        lock(&self.surplus).push(region);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.free_all();
    }
}

/// What a pool has too much of; freed when this is dropped, which may wait for the device.
struct Surplus(Arc<Pool>);

impl Drop for Surplus {
    fn drop(&mut self) {
        self.0.free_those(&self.0.surplus);
    }
}

/// The pools of a process's devices.
#[derive(Debug, Default)]
pub(super) struct Pools(Mutex<Vec<(Space, Arc<Pool>)>>);

impl Pools {
    /// The pool of a device.
    pub(super) fn of(&self, device: &Arc<dyn Device>) -> Arc<dyn Lender> {
        let mut pools = lock(&self.0);
        let space = device.space();
        if let Some((_, pool)) = pools.iter().find(|(other, _)| *other == space) {
            return Arc::clone(pool) as Arc<dyn Lender>;
        }
        let (idle, surplus) = (Mutex::default(), Mutex::default());
        let pool = Arc::new(Pool { device: Arc::clone(device), idle, surplus });
        pools.push((space, Arc::clone(&pool)));
        pool
    }

    /// Lets go of a device's pool; what is lent of it keeps it.
    pub(super) fn forget(&self, device: &Arc<dyn Device>) {
        let ours = |(_, pool): &(Space, Arc<Pool>)| Arc::ptr_eq(&pool.device, device);
        let mut pools = lock(&self.0);
        let at = pools.iter().position(ours);
        let gone = at.map(|at| pools.swap_remove(at));
        // Freed without the lock.
        drop((pools, gone));
    }

    /// What is too much of all pools, to be dropped where nobody waits for it: some drivers wait for all that runs on
    /// the device before they free memory.
    pub(super) fn surplus(&self) -> impl Iterator<Item = Box<dyn Any + Send>> {
        let pools = lock(&self.0);
        let full = pools.iter().filter(|(_, pool)| !lock(&pool.surplus).is_empty());
        let all: Vec<_> = full.map(|(_, pool)| Surplus(Arc::clone(pool))).collect();
        all.into_iter().map(|one| Box::new(one) as Box<dyn Any + Send>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn what_is_given_back_is_lent_again() {
        let device: Arc<dyn Device> = Arc::new(FakeDevice::new(7));
        let pools = Pools::default();
        let (pool, same) = (pools.of(&device), pools.of(&device));
        let first = pool.lend(10_000).unwrap();
        assert!(first.len() >= 10_000);
        let second = same.lend(10_000).unwrap();
        assert_ne!(first.address(), second.address());
        // SAFETY: lent, and not used.
        unsafe { pool.take_back(first) };
        assert_eq!(same.lend(9_000).unwrap().address(), first.address());
        // SAFETY: as above.
        unsafe { pool.take_back(first) };
        let short = pool.lend(100).unwrap();
        assert_ne!(short.address(), first.address(), "much longer than what is asked for");
        // SAFETY: as above.
        unsafe { pool.take_back(second) };
        // SAFETY: as above.
        unsafe { pool.take_back(short) };
    }

    #[test]
    fn what_is_too_much_is_freed_by_whoever_takes_it_away() {
        let fake = Arc::new(FakeDevice::new(7));
        let device: Arc<dyn Device> = Arc::<FakeDevice>::clone(&fake);
        let pools = Pools::default();
        let pool = pools.of(&device);
        let lent = [pool.lend(KEPT / 2 + 1).unwrap(), pool.lend(KEPT / 2 + 1).unwrap()];
        for region in lent {
            // SAFETY: lent, and not used.
            unsafe { pool.take_back(region) };
        }
        let lives = || lent.map(|region| fake.alias(region).is_ok());
        let surplus: Vec<_> = pools.surplus().collect();
        assert_eq!((surplus.len(), lives()), (1, [true, true]));
        drop(surplus);
        assert_eq!(lives(), [true, false]);
        assert_eq!(pools.surplus().count(), 0);
    }
}
