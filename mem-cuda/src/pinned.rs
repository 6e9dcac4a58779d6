//! Page-locked host memory from a pool. The driver takes a millisecond to page-lock a megabyte, so
//! what is given back is kept for the next who asks.
//!
//! The memory is reachable for every device, by the same address where the system has unified
//! addressing, and ordinary cached memory for the CPU.

use crate::context::{Context, lock};
use crate::{CudaDevice, CudaError};
use gapless_mem::{Completion, Region, Space};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Bytes that a pool keeps for reuse at most.
const KEPT_BYTES: u64 = 256 << 20;

/// Blocks are multiples of a page …
const PAGE: u64 = 4096;

/// … and no more than this many times as long as what is asked for.
const SLACK: u64 = 2;

/// What is not in use.
#[derive(Debug, Default)]
struct Idle {
    /// Addresses by length.
    blocks: BTreeMap<u64, Vec<u64>>,
    bytes: u64,
    /// Given back before work on it had ended.
    busy: Vec<(u64, u64, Completion)>,
}

impl Idle {
    /// The shortest block that will do.
    fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        let (size, _) = self.blocks.range(len..=len.saturating_mul(SLACK)).next()?;
        let size = *size;
        let addresses = self.blocks.get_mut(&size)?;
        let address = addresses.pop()?;
        if addresses.is_empty() {
            self.blocks.remove(&size);
        }
        self.bytes -= size;
        Some((address, size))
    }

    /// Keeps a block, or gives it back if that would be too much.
    fn keep(&mut self, address: u64, size: u64) -> Result<(), u64> {
        if self.bytes + size > KEPT_BYTES {
            return Err(address);
        }
        self.bytes += size;
        self.blocks.entry(size).or_default().push(address);
        Ok(())
    }
}

/// Page-locked host memory for reuse.
pub(crate) struct PinnedPool {
    context: Arc<Context>,
    idle: Mutex<Idle>,
}

/// Page-locked host memory; goes back to its pool when it is dropped.
///
/// Whoever starts work on it keeps it until that has ended, or gives it back with
/// [`give_back_after`](PinnedBuffer::give_back_after).
pub struct PinnedBuffer {
    pool: Arc<PinnedPool>,
    address: u64,
    size: u64,
    len: u64,
    /// The pool has it back already.
    given: bool,
}

impl PinnedPool {
    pub(crate) fn new(context: Arc<Context>) -> PinnedPool {
        PinnedPool { context, idle: Mutex::default() }
    }

    fn take(self: &Arc<Self>, len: u64) -> Result<PinnedBuffer, CudaError> {
        let size =
            len.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| CudaError::OutOfMemory {
                device: self.context.name.clone(),
                len,
                reason: "more than the address space holds".to_owned(),
            })?;
        let buffer = |address, size| PinnedBuffer {
            pool: Arc::clone(self),
            address,
            size,
            len,
            given: false,
        };
        self.collect();
        if let Some((address, size)) = lock(&self.idle).take(size) {
            return Ok(buffer(address, size));
        }
        let _bound = self.context.bind()?;
        let fault = match self.context.driver.host_alloc(size) {
            Ok(address) => return Ok(buffer(address, size)),
            Err(fault) => fault,
        };
        // Perhaps the memory that is kept for reuse is what is missing.
        self.free_idle();
        match self.context.driver.host_alloc(size) {
            Ok(address) => Ok(buffer(address, size)),
            Err(_) => Err(self.context.fault_of(len, fault)),
        }
    }

    /// Moves blocks whose work has ended to those that can be taken. What failed is over as well.
    fn collect(&self) {
        let mut idle = lock(&self.idle);
        if idle.busy.is_empty() {
            return;
        }
        let busy = std::mem::take(&mut idle.busy);
        let mut spare = Vec::new();
        for (address, size, work) in busy {
            if matches!(work.poll(), Ok(false)) {
                idle.busy.push((address, size, work));
            } else if let Err(address) = idle.keep(address, size) {
                spare.push(address);
            }
        }
        drop(idle);
        self.free(spare);
    }

    fn give(&self, address: u64, size: u64) {
        let kept = lock(&self.idle).keep(address, size);
        if let Err(address) = kept {
            self.free([address]);
        }
    }

    fn free(&self, addresses: impl IntoIterator<Item = u64>) {
        // A lost device frees nothing any more: that is left to the process's end.
        let Ok(_bound) = self.context.bind() else { return };
        for address in addresses {
            // SAFETY: `take` allocated it, and its buffer was given back, with the promise that
            // nothing uses it.
            if let Err(fault) = unsafe { self.context.driver.host_free(address) } {
                self.context.grumble(fault);
            }
        }
    }

    fn free_idle(&self) {
        let blocks = {
            let mut idle = lock(&self.idle);
            idle.bytes = 0;
            std::mem::take(&mut idle.blocks)
        };
        self.free(blocks.into_values().flatten());
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        let busy = std::mem::take(&mut lock(&self.idle).busy);
        // Work that has not ended would write to freed memory: such blocks are left to the process's
        // end.
        self.free(
            busy.into_iter()
                .filter(|(_, _, work)| !matches!(work.poll(), Ok(false)))
                .map(|(address, ..)| address),
        );
        self.free_idle();
    }
}

impl PinnedBuffer {
    /// The memory. Valid while the buffer lives; what it holds at first is whatever its last user
    /// left.
    #[must_use]
    pub fn region(&self) -> Region {
        Region::new(Space::Pinned, self.address, 0, self.len)
    }

    /// Gives the buffer back now although `work` still uses it; it is reused once that has ended.
    pub fn give_back_after(mut self, work: Completion) {
        if matches!(work.poll(), Ok(false)) {
            lock(&self.pool.idle).busy.push((self.address, self.size, work));
            self.given = true;
        }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if !self.given {
            self.pool.give(self.address, self.size);
        }
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer of {} bytes at {:#x}", self.len, self.address)
    }
}

impl CudaDevice {
    /// Page-locked host memory of `len` bytes, aligned to a page, not zeroed.
    ///
    /// # Errors
    /// The system has no more of it, or the driver refuses.
    pub fn pinned(&self, len: u64) -> Result<PinnedBuffer, CudaError> {
        self.pinned_pool().take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_block_that_will_do() {
        let mut idle = Idle::default();
        for (address, size) in [(1, 3 * PAGE), (2, PAGE), (3, 2 * PAGE), (4, 2 * PAGE)] {
            idle.keep(address, size).unwrap();
        }
        assert_eq!(idle.bytes, 8 * PAGE);
        assert_eq!(idle.take(2 * PAGE), Some((4, 2 * PAGE)));
        assert_eq!(idle.take(2 * PAGE), Some((3, 2 * PAGE)));
        assert_eq!(idle.take(2 * PAGE), Some((1, 3 * PAGE)));
        assert_eq!(idle.take(2 * PAGE), None);
        assert_eq!(idle.take(PAGE), Some((2, PAGE)));
        assert_eq!(idle.bytes, 0);
        idle.keep(5, 9 * PAGE).unwrap();
        assert_eq!(idle.take(4 * PAGE), None, "more than twice what is asked for");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut idle = Idle::default();
        idle.keep(1, KEPT_BYTES).unwrap();
        assert_eq!(idle.keep(2, PAGE), Err(2));
        idle.take(KEPT_BYTES).unwrap();
        idle.keep(2, PAGE).unwrap();
    }
}
