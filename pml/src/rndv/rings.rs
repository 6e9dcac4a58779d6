//! Page-locked memory of the host that messages of devices pass on their way over a network: whoever sends packs into
//! it, and whoever receives unpacks from it, several fragments with one launch.
//!
//! A message has one *ring* of it, which comes back when the last work on it has ended. Rings are allocated when they
//! are first needed, registered with the device, and kept; the first ones are made ready when the device is attached, if
//! other hosts are in the job. They are bounded in bytes, per device. Nobody waits for one: a message that finds none
//! goes through the transport's buffers.

use crate::buffer::StagingMemory;
use gapless_bml::HeapPool;
use gapless_mem::{Device, Space};
use std::sync::Arc;

/// Parts of a ring that are used in turn.
pub(crate) const PARTS: u64 = 4;
/// Bytes in a part.
pub(crate) const PART_BYTES: u64 = 1 << 20;
/// Rings that are made before they are needed: for a message each way.
const READY: usize = 2;

/// The rings of an endpoint.
#[derive(Default)]
pub(crate) struct Rings {
    pools: Vec<(Arc<dyn Device>, HeapPool)>,
}

impl Rings {
    /// A ring that `device` knows; `None` if all within `bound` bytes are in use, or if the device registers none.
    pub(crate) fn take(&mut self, device: &Arc<dyn Device>, bound: u64) -> Option<StagingMemory> {
        let at = self.pools.iter().position(|(known, _)| Arc::ptr_eq(known, device));
        let at = match at {
            Some(at) => at,
            None => {
                let count = usize::try_from(bound / (PARTS * PART_BYTES)).unwrap_or(0);
                let len = usize::try_from(PARTS * PART_BYTES).expect("a few MiB");
                let pool = HeapPool::new(count.min(1 << 16), len);
                if let Err(error) = pool.attach(device) {
                    tracing::debug!(%error, "a device does not register memory of the host");
                }
                self.pools.push((Arc::clone(device), pool));
                self.pools.len() - 1
            }
        };
        let lease = self.pools[at].1.lease()?;
        if lease.region().space() != Space::Pinned {
            return None;
        }
        // SAFETY: memory of a pool is valid for reads and writes while a lease of it lives, and nobody has a reference
        // to it.
        Some(unsafe { StagingMemory::new(lease) })
    }

    /// Lets go of the rings of a device that is being detached; messages that have some keep these to their end.
    pub(crate) fn forget(&mut self, device: &Arc<dyn Device>) {
        self.pools.retain(|(known, _)| !Arc::ptr_eq(known, device));
    }

    /// Makes the first rings for a device, which registers them: that may wait for kernels that run there.
    pub(crate) fn prepare(&mut self, device: &Arc<dyn Device>, bound: u64) {
        let ready: Vec<_> = (0..READY).map_while(|_| self.take(device, bound)).collect();
        tracing::debug!(device = device.properties().name, rings = ready.len(), "made ready");
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings of {} devices", self.pools.len())
    }
}
