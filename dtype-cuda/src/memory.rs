//! Device memory of the engine's own: plans, and chunks that go to or come from the host.
//!
//! The driver takes long to allocate and waits for the device before it frees; so blocks are kept for
//! reuse, up to a bound. Whoever owns a [`DeviceBlock`] keeps it until the work that uses it has ended. Units: bytes.

use gapless_mem::{Device, DeviceError, Region};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks are multiples of this …
const GRAIN: u64 = 512;

/// … or, if they are long, of an eighth of themselves, and no more than this many times what is asked for.
const SLACK: u64 = 2;

#[derive(Default)]
struct Idle {
    /// By length.
    blocks: BTreeMap<u64, Vec<Region>>,
    bytes: u64,
}

/// A device's blocks.
pub(crate) struct PlanMemory {
    device: Arc<dyn Device>,
    idle: Mutex<Idle>,
    /// Bytes kept for reuse at most.
    bound: u64,
}

/// Device memory; goes back for reuse when it is dropped.
pub(crate) struct DeviceBlock {
    memory: Arc<PlanMemory>,
    region: Region,
}

/// What is allocated where `len` bytes are asked for.
fn rounded(len: u64) -> u64 {
    let eighth = (len / 8).checked_next_power_of_two().unwrap_or(GRAIN);
    len.max(1).checked_next_multiple_of(eighth.max(GRAIN)).unwrap_or(len)
}

impl PlanMemory {
    pub(crate) fn new(device: Arc<dyn Device>, bound: u64) -> Arc<PlanMemory> {
        Arc::new(PlanMemory { device, idle: Mutex::default(), bound })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `len` bytes; what it holds is whatever its last user left.
    pub(crate) fn take(self: &Arc<Self>, len: u64) -> Result<DeviceBlock, DeviceError> {
        let len = rounded(len);
        let block = |region| DeviceBlock { memory: Arc::clone(self), region };
        if let Some(region) = self.idle().take(len) {
            return Ok(block(region));
        }
        match self.device.allocate(len) {
            Err(DeviceError::OutOfMemory { .. }) => {
                // Perhaps the memory that is kept for reuse is what is missing.
                self.free_idle();
                self.device.allocate(len).map(block)
            }
            other => other.map(block),
        }
    }

    fn give(&self, region: Region) {
        let mut idle = self.idle();
        if idle.bytes.saturating_add(region.len()) <= self.bound {
            idle.bytes += region.len();
            idle.blocks.entry(region.len()).or_default().push(region);
            return;
        }
        drop(idle);
        self.free(region);
    }

    fn free_idle(&self) {
        let blocks = {
            let mut idle = self.idle();
            idle.bytes = 0;
            std::mem::take(&mut idle.blocks)
        };
        blocks.into_values().flatten().for_each(|region| self.free(region));
    }

    fn free(&self, region: Region) {
        // SAFETY: `take` allocated it, and its block was dropped, which its owner does when no work uses
        // it any more.
        if let Err(error) = unsafe { self.device.free(region) } {
            tracing::warn!(%error, "device memory of plans could not be freed");
        }
    }
}

impl Idle {
    /// The shortest block that will do.
    fn take(&mut self, len: u64) -> Option<Region> {
        let (&size, _) = self.blocks.range(len..=len.saturating_mul(SLACK)).next()?;
        let regions = self.blocks.get_mut(&size)?;
        let region = regions.pop()?;
        if regions.is_empty() {
            self.blocks.remove(&size);
        }
        self.bytes -= size;
        Some(region)
    }
}

impl Drop for PlanMemory {
    fn drop(&mut self) {
        self.free_idle();
    }
}

impl DeviceBlock {
    /// The memory; at least as long as was asked for.
    pub(crate) fn region(&self) -> Region {
        self.region
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        self.memory.give(self.region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn blocks_are_used_again_within_a_bound() {
        let memory = PlanMemory::new(Arc::new(FakeDevice::new(0)), 10_000);
        let first = memory.take(5000).unwrap();
        let (address, len) = (first.region().address(), first.region().len());
        assert!((5000..6000).contains(&len));
        drop(first);
        let second = memory.take(4000).unwrap();
        assert_eq!(second.region().address(), address, "within twice what is asked for");
        let third = memory.take(5000).unwrap();
        assert_ne!(third.region().address(), address);
        drop((second, third));
        assert_eq!(memory.idle().bytes, len, "two would be more than the bound");
        assert!(memory.take(100).unwrap().region().address() != address);
    }

    #[test]
    fn lengths_are_rounded_up_by_an_eighth_at_most() {
        for len in [0, 1, 511, 512, 513, 5000, 1 << 20, (1 << 20) + 1, (1 << 40) - 1] {
            let all = rounded(len);
            assert!(all >= len && all - len <= (len / 4).max(GRAIN), "{len}: {all}");
        }
        assert_eq!(rounded(u64::MAX), u64::MAX);
    }
}
