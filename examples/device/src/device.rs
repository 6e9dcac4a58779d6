//! The device: memory, and copies by its queue.

use crate::queue::Queue;
use gapless_mem::{
    Abilities, Completion, Device, DeviceError, DeviceProperties, HostDevice, Region, Space, copy,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses between two blocks of memory are nobody's.
const GAP: u64 = 4096;

/// An accelerator whose memory no processor reaches by address.
pub struct Toy {
    properties: DeviceProperties,
    space: Space,
    /// Dropped before the blocks, which its work uses.
    pub(crate) queue: Queue,
    /// By their addresses in the toy's memory: the blocks, and where they really are.
    blocks: Mutex<BTreeMap<u64, (Vec<u8>, Region)>>,
    /// Those below were given out, and are not again.
    next_address: AtomicU64,
}

impl Toy {
    /// Opens device `number`, a new one with memory of its own.
    ///
    /// # Errors
    /// The system's, where it gives no thread.
    pub fn open(number: u32) -> std::io::Result<Arc<Toy>> {
        let space = Space::Device { kind: "toy", device: number };
        Ok(Arc::new(Toy {
            properties: DeviceProperties {
                name: space.to_string(),
                memory_bytes: 1 << 30,
                cache_bytes: 0,
                compute_units: 1,
            },
            space,
            queue: Queue::start()?,
            blocks: Mutex::default(),
            // Far above what processors map for programs.
            next_address: AtomicU64::new(1 << 60),
        }))
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, (Vec<u8>, Region)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block at an address, or that ends there, for regions of no bytes: its own address, and where it really is.
    fn block(&self, address: u64) -> Option<(u64, Region)> {
        let blocks = self.blocks();
        let (start, (_, region)) = blocks.range(..=address).next_back()?;
        (address - start <= region.len()).then_some((*start, *region))
    }

    /// Where memory that the toy reaches really is: memory of the host is where it says.
    pub(crate) fn resident(&self, region: Region) -> Result<Region, DeviceError> {
        if region.space().cpu_accessible() {
            return Ok(region);
        }
        let block = self.block(region.start()).filter(|_| region.space() == self.space);
        let (start, block) = block.ok_or_else(|| self.wrong_space(region))?;
        Ok(block.sub(region.start() - start, region.len())?)
    }

    fn wrong_space(&self, region: Region) -> DeviceError {
        DeviceError::WrongSpace { device: self.properties.name.clone(), space: region.space() }
    }
}

/// Whether all rows lie in the region: the first and the last do.
fn check_rows(region: Region, pitch: u64, width: u64, rows: u64) -> Result<(), DeviceError> {
    if let Some(last) = rows.checked_sub(1) {
        region.sub(0, width)?;
        region.sub(last.saturating_mul(pitch), width)?;
    }
    Ok(())
}

// SAFETY: the numbers are those of the contract.
// 1. Every block is a vector of its own, at an address that no other block gets, until it is freed.
// 2. A copy is a job of the queue, which runs it after all of `after`, within what `resident` has found inside of live
//    blocks and of the host's memory.
// 3. `register` notes nothing: the queue's thread reaches all memory of the host. `free` drops the vector of
//    the whole block, and refuses all else.
// 4., 6., 8. The defaults refuse.
// 5. The space never changes, and `locate` looks into the table of live blocks. The rest are the defaults, which say
//    nothing.
// 7. A call puts a job as the last thing that it does.
// 9. The queue knows the end of what was put last.
unsafe impl Device for Toy {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        self.space
    }

    fn abilities(&self) -> Abilities {
        Abilities { shares: None, kernels_reach_host: true }
    }

    fn reaches(&self, space: Space) -> bool {
        space.cpu_accessible() || space == self.space
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        let refused = |reason: String| {
            let device = self.properties.name.clone();
            DeviceError::OutOfMemory { device, len, reason }
        };
        let bytes = usize::try_from(len).map_err(|error| refused(error.to_string()))?;
        let mut block = Vec::new();
        block.try_reserve_exact(bytes).map_err(|error| refused(error.to_string()))?;
        block.resize(bytes, 0);
        let apart = len.next_multiple_of(GAP) + GAP;
        let address = self.next_address.fetch_add(apart, Ordering::Relaxed);
        let region = Region::of_mut(&mut block);
        self.blocks().insert(address, (block, region));
        Ok(Region::new(self.space, address, 0, len))
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        let mut blocks = self.blocks();
        let block = blocks.get(&region.start()).filter(|_| region.space() == self.space);
        if block.is_none_or(|(_, block)| block.len() != region.len()) {
            return Err(self.wrong_space(region));
        }
        blocks.remove(&region.start());
        Ok(())
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        if dst.len() != src.len() {
            return Err(DeviceError::LengthMismatch { src_len: src.len(), dst_len: dst.len() });
        }
        let (dst, src) = (self.resident(dst)?, self.resident(src)?);
        // SAFETY: the caller keeps both regions until the completion, which comes after this.
        self.queue.put(after, move || unsafe { copy(&dst, &src) })
    }

    unsafe fn copy_2d(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let (dst, src) = (self.resident(dst)?, self.resident(src)?);
        check_rows(dst, dst_pitch, width, rows)?;
        check_rows(src, src_pitch, width, rows)?;
        let work = move || {
            let host = HostDevice::new();
            // SAFETY: the caller keeps all rows until the completion, which comes after this.
            unsafe { host.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, &[]) }.map(drop)
        };
        self.queue.put(after, work)
    }

    unsafe fn register(&self, _: Region) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn unregister(&self, _: Region) -> Result<(), DeviceError> {
        Ok(())
    }

    fn finish(&self) -> bool {
        self.queue.is_idle()
    }

    fn locate(&self, address: u64) -> Option<Space> {
        let (start, block) = self.block(address)?;
        (address - start < block.len()).then_some(self.space)
    }
}
