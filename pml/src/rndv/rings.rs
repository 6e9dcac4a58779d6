//! Page-locked memory of the host that messages of devices pass on their way over a network: whoever sends packs into
//! it, and whoever receives unpacks from it, several fragments with one launch.
//!
//! A message has one *ring* of it, of [`PACKETS`] packets, which comes back when the last work on it has ended. Rings are
//! allocated when they are first needed, registered with the device, and kept; the first ones are made ready when the
//! device is attached, if other hosts are in the job. They are bounded in bytes, per device; a bound below a ring makes
//! it shorter, of two packets at least. Nobody waits for one: a message that finds none goes through the transport's
//! buffers, a fragment at a time, and is counted.

use crate::buffer::StagingMemory;
use gapless_bml::HeapPool;
use gapless_mem::{Device, OutOfRange, Space};
use std::sync::Arc;

/// Packets of a ring, which are used in turn.
const PACKETS: u64 = 4;
/// Fewer would not overlap.
const PACKETS_LEAST: u64 = 2;
/// Rings that are made before they are needed: for a message each way.
const READY: usize = 2;

/// A ring of a message.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: StagingMemory,
    /// Bytes of a packet.
    pub(crate) packet: u64,
}

impl Ring {
    /// With packets of so many bytes, if that is less.
    pub(crate) fn in_packets(self, packet: u64) -> Ring {
        Ring { packet: self.packet.min(packet.max(1)), ..self }
    }

    /// How many packets it has.
    pub(crate) fn packets(&self) -> u64 {
        self.memory.region().len() / self.packet
    }

    /// The longest run of whole fragments that fits a packet.
    pub(crate) fn whole(&self, fragment: u64) -> u64 {
        self.packet / fragment * fragment
    }

    /// `len` bytes of packet `index`, from `used` on.
    pub(crate) fn part(
        &self,
        index: u64,
        used: u64,
        len: u64,
    ) -> Result<StagingMemory, OutOfRange> {
        self.memory.sub(index * self.packet + used, len)
    }
}

/// The rings of a device.
struct RingPool {
    device: Arc<dyn Device>,
    pool: HeapPool,
    packet: u64,
}

impl RingPool {
    fn new(device: &Arc<dyn Device>, bound: u64, packet: u64) -> RingPool {
        let packets = (bound / packet).min(PACKETS);
        let len = if packets < PACKETS_LEAST { 0 } else { packets * packet };
        let count = bound.checked_div(len).unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(1 << 16);
        let pool = HeapPool::new(count, usize::try_from(len).unwrap_or(0));
        if let Err(error) = pool.attach(device) {
            tracing::debug!(%error, "a device does not register memory of the host");
        }
        RingPool { device: Arc::clone(device), pool, packet }
    }
}

/// The rings of an endpoint.
#[derive(Default)]
pub(crate) struct Rings {
    pools: Vec<RingPool>,
    /// How often there was none left.
    pub(crate) none_left: u64,
}

impl Rings {
    /// A ring that `device` knows; `None` if all within `bound` bytes are in use, or if the device registers none. Rings
    /// of other packets are given up; messages that have some keep these to their end.
    pub(crate) fn take(
        &mut self,
        device: &Arc<dyn Device>,
        bound: u64,
        packet: u64,
    ) -> Option<Ring> {
        let packet = packet.max(1);
        let fits = |known: &RingPool| Arc::ptr_eq(&known.device, device) && known.packet == packet;
        let at = self.pools.iter().position(fits).unwrap_or_else(|| {
            self.forget(device);
            self.pools.push(RingPool::new(device, bound, packet));
            self.pools.len() - 1
        });
        let RingPool { pool, .. } = &self.pools[at];
        let Some(lease) = pool.lease() else {
            self.none_left += 1;
            return None;
        };
        if lease.region().space() != Space::Pinned {
            return None;
        }
        // SAFETY: memory of a pool is valid for reads and writes while a lease of it lives, and nobody has a reference
        // to it.
        Some(Ring { memory: unsafe { StagingMemory::new(lease) }, packet })
    }

    /// Lets go of the rings of a device that is being detached; messages that have some keep these to their end.
    pub(crate) fn forget(&mut self, device: &Arc<dyn Device>) {
        self.pools.retain(|known| !Arc::ptr_eq(&known.device, device));
    }

    /// Makes the first rings for a device, which registers them: that may wait for kernels that run there.
    pub(crate) fn prepare(&mut self, device: &Arc<dyn Device>, bound: u64, packet: u64) {
        let ready: Vec<_> = (0..READY).map_while(|_| self.take(device, bound, packet)).collect();
        tracing::debug!(device = device.properties().name, rings = ready.len(), "made ready");
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings of {} devices", self.pools.len())
    }
}
