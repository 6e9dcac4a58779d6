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

/// Why a message has no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRing {
    /// All within the bound are in use, or the bound allows none.
    NoneLeft,
    /// The device registers no memory of the host.
    NotRegistered,
}

/// A ring of a message.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: StagingMemory,
    pub(crate) packet_bytes: u64,
}

impl Ring {
    /// With packets of so many bytes, if that is less.
    pub(crate) fn in_packets(self, packet_bytes: u64) -> Ring {
        Ring { packet_bytes: self.packet_bytes.min(packet_bytes.max(1)), ..self }
    }

    /// How many packets it has.
    pub(crate) fn packets(&self) -> u64 {
        self.memory.region().len() / self.packet_bytes
    }

    /// The longest run of whole fragments that fits a packet.
    pub(crate) fn whole(&self, fragment: u64) -> u64 {
        self.packet_bytes / fragment * fragment
    }

    /// `len` bytes of packet `index`, from `used` on.
    pub(crate) fn slice(
        &self,
        index: u64,
        used: u64,
        len: u64,
    ) -> Result<StagingMemory, OutOfRange> {
        self.memory.sub(index * self.packet_bytes + used, len)
    }
}

/// The rings of a device.
struct RingPool {
    device: Arc<dyn Device>,
    pool: HeapPool,
    /// The packets that were asked for.
    asked_bytes: u64,
    /// Those that it has, which are longer where fragments are.
    packet_bytes: u64,
}

impl RingPool {
    fn new(device: &Arc<dyn Device>, bound: u64, asked_bytes: u64, fragment: u64) -> RingPool {
        // A power of two, so that few lengths of fragments need other rings.
        let fragment = fragment.next_power_of_two().min(bound / PACKETS_LEAST);
        let packet_bytes = asked_bytes.max(fragment);
        let packets = (bound / packet_bytes).min(PACKETS);
        let len = if packets < PACKETS_LEAST { 0 } else { packets * packet_bytes };
        let count = bound.checked_div(len).unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(1 << 16);
        let pool = HeapPool::new(count, usize::try_from(len).unwrap_or(0));
        if let Err(error) = pool.attach(device) {
            tracing::debug!(%error, "a device does not register memory of the host");
        }
        RingPool { device: Arc::clone(device), pool, asked_bytes, packet_bytes }
    }
}

/// The rings of an endpoint.
#[derive(Default)]
pub(crate) struct Rings {
    pools: Vec<RingPool>,
}

impl Rings {
    /// A ring that `device` knows, of all within `bound` bytes. Its packets have `packet_bytes`, or more if a fragment
    /// does not fit. Rings of other packets are given up; messages that have some keep these to their end.
    pub(crate) fn take(
        &mut self,
        device: &Arc<dyn Device>,
        bound: u64,
        packet_bytes: u64,
        fragment: u64,
    ) -> Result<Ring, NoRing> {
        let asked = packet_bytes.max(1);
        if fragment > asked.max(bound / PACKETS_LEAST) {
            return Err(NoRing::NoneLeft);
        }
        let fits = |known: &RingPool| {
            let same = Arc::ptr_eq(&known.device, device) && known.asked_bytes == asked;
            same && known.packet_bytes >= fragment
        };
        let at = self.pools.iter().position(fits).unwrap_or_else(|| {
            self.forget(device);
            self.pools.push(RingPool::new(device, bound, asked, fragment));
            self.pools.len() - 1
        });
        let RingPool { pool, packet_bytes, .. } = &self.pools[at];
        let lease = pool.lease().ok_or(NoRing::NoneLeft)?;
        if lease.region().space() != Space::Pinned {
            return Err(NoRing::NotRegistered);
        }
        // SAFETY: memory of a pool is valid for reads and writes while a lease of it lives, and nobody has a reference
        // to it.
        let memory = unsafe { StagingMemory::new(lease) };
        Ok(Ring { memory, packet_bytes: *packet_bytes })
    }

    /// Lets go of the rings of a device that is being detached; messages that have some keep these to their end.
    pub(crate) fn forget(&mut self, device: &Arc<dyn Device>) {
        self.pools.retain(|known| !Arc::ptr_eq(&known.device, device));
    }

    /// Makes the first rings for a device, which registers them: that may wait for kernels that run there.
    pub(crate) fn prepare(&mut self, device: &Arc<dyn Device>, bound: u64, packet_bytes: u64) {
        let ring = |_| self.take(device, bound, packet_bytes, 0).ok();
        let ready: Vec<_> = (0..READY).map_while(ring).collect();
        tracing::debug!(device = device.properties().name, rings = ready.len(), "made ready");
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings of {} devices", self.pools.len())
    }
}
