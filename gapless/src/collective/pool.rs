//! Device memory for the intermediate data of reductions.
//!
//! Allocating device memory takes long, and some drivers wait for the device before they free it. So what collectives
//! give back is kept for later ones, up to a bound. Units: bytes.

use gapless_coll::Lender;
use gapless_mem::{Device, Region, Space};
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
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.device.properties().name).finish()
    }
}

impl Pool {
    fn free(&self, region: Region) {
        // SAFETY: `lend` allocated it, and it was taken back, when nothing used it any more.
        if let Err(error) = unsafe { self.device.free(region) } {
            tracing::warn!(%error, "device memory of collectives could not be freed");
        }
    }
}

// SAFETY: a region is a whole allocation of the device's: it is in `idle`, or lent to one. It is freed by `take_back`
// or by `drop`, which those who were lent memory hold off.
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
            let idle = std::mem::take(&mut *lock(&self.idle));
            idle.into_iter().for_each(|region| self.free(region));
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
        self.free(region);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|region| self.free(region));
    }
}

/// The pools of a world's devices.
#[derive(Debug, Default)]
pub(super) struct Pools(Mutex<Vec<(Space, Arc<Pool>)>>);

impl Pools {
    /// That of a device.
    pub(super) fn of(&self, device: &Arc<dyn Device>) -> Arc<dyn Lender> {
        let mut pools = lock(&self.0);
        let space = device.space();
        if let Some((_, pool)) = pools.iter().find(|(other, _)| *other == space) {
            return Arc::clone(pool) as Arc<dyn Lender>;
        }
        let pool = Arc::new(Pool { device: Arc::clone(device), idle: Mutex::default() });
        pools.push((space, Arc::clone(&pool)));
        pool
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
}
