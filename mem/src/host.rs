//! Plain host memory as a [`Device`]: everything happens at once, completions are ready.

use crate::{Completion, Device, DeviceError, DeviceProperties, Region, Space, access};
use std::alloc::Layout;

/// Bytes that allocations are aligned to.
const ALIGNMENT: usize = 256;

/// The host's own memory.
#[derive(Debug)]
pub struct HostDevice {
    properties: DeviceProperties,
}

impl HostDevice {
    /// The host of this process.
    #[must_use]
    pub fn new() -> HostDevice {
        HostDevice {
            properties: DeviceProperties {
                name: "host".to_owned(),
                memory_bytes: 0,
                cache_bytes: 0,
                compute_units: 0,
            },
        }
    }

    fn layout(&self, len: u64) -> Result<Layout, DeviceError> {
        usize::try_from(len.max(1))
            .ok()
            .and_then(|len| Layout::from_size_align(len, ALIGNMENT).ok())
            .ok_or_else(|| self.out_of_memory(len, "more than the address space holds"))
    }

    fn out_of_memory(&self, len: u64, reason: &str) -> DeviceError {
        DeviceError::OutOfMemory {
            device: self.properties.name.clone(),
            len,
            reason: reason.to_owned(),
        }
    }
}

impl Default for HostDevice {
    fn default() -> Self {
        HostDevice::new()
    }
}

pub(crate) fn wait_all(after: &[Completion]) -> Result<(), DeviceError> {
    after.iter().try_for_each(Completion::wait)
}

// SAFETY: the numbers are those of the contract.
// 1. `allocate` asks the global allocator, whose memory is one owner's until `free` gives it back.
// 2. Copies are done by this thread between `wait_all` and return; rows are checked to lie inside first.
//    Work that `after` names and that failed is over, and nothing was begun.
// 3. `register` refuses; `free` gives the memory back to the allocator and keeps nothing.
// 4., 6. `import` and `import_completion` refuse.
// 5. The space is always the host's; `allocation`, `buffer_id`, `locate` and `identity` say nothing.
unsafe impl Device for HostDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        Space::Host
    }

    fn reaches(&self, space: Space) -> bool {
        space.cpu_accessible()
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        let layout = self.layout(len)?;
        // SAFETY: `layout` has a size of at least one byte.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(self.out_of_memory(len, "the allocator refused"));
        }
        Ok(Region::new(Space::Host, pointer.expose_provenance() as u64, 0, len))
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        let layout = self.layout(region.len())?;
        let pointer = region.as_ptr().ok_or_else(|| DeviceError::WrongSpace {
            device: self.properties.name.clone(),
            space: region.space(),
        })?;
        // SAFETY: the caller guarantees that `allocate` gave this region, with the same length and
        // so the same layout, and that nothing uses it.
        unsafe { std::alloc::dealloc(pointer, layout) };
        Ok(())
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        wait_all(after)?;
        // SAFETY: the caller's guarantees are those of `access::copy`.
        unsafe { access::copy(&dst, &src) }?;
        Ok(Completion::Ready)
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
        wait_all(after)?;
        let Some(last) = rows.checked_sub(1) else { return Ok(Completion::Ready) };
        // All rows are checked before the first byte moves.
        for row in [0, last] {
            dst.sub(row.saturating_mul(dst_pitch), width)?;
            src.sub(row.saturating_mul(src_pitch), width)?;
        }
        for row in 0..rows {
            let to = dst.sub(row * dst_pitch, width)?;
            let from = src.sub(row * src_pitch, width)?;
            // SAFETY: both rows lie inside their regions, for which the caller vouches.
            unsafe { access::copy(&to, &from) }?;
        }
        Ok(Completion::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocates_copies_and_frees() {
        let host = HostDevice::new();
        let region = host.allocate(1000).unwrap();
        assert_eq!(region.start() % ALIGNMENT as u64, 0);
        let source = [5u8; 1000];
        // SAFETY: `region` is ours until it is freed below; `source` lives through the call.
        unsafe { host.copy(region, Region::of(&source), &[]) }.unwrap();
        let mut back = [0u8; 1000];
        // SAFETY: as above.
        unsafe { host.copy(Region::of_mut(&mut back), region, &[]) }.unwrap();
        assert_eq!(back, source);
        // SAFETY: nothing uses the region any more.
        unsafe { host.free(region) }.unwrap();
    }

    #[test]
    fn rows_are_checked_before_any_is_copied() {
        let host = HostDevice::new();
        let source = [1u8; 16];
        let mut target = [0u8; 16];
        let to = Region::of_mut(&mut target);
        // SAFETY: both buffers live through the call; bad rows are refused.
        let error = unsafe { host.copy_2d(to, 8, Region::of(&source), 8, 4, 3, &[]) }.unwrap_err();
        assert!(matches!(error, DeviceError::OutOfRange(_)));
        assert_eq!(target, [0u8; 16]);
        let to = Region::of_mut(&mut target);
        // SAFETY: there is no row.
        unsafe { host.copy_2d(to, 8, Region::of(&source), 4, 400, 0, &[]) }.unwrap();
        // SAFETY: as above, and all rows lie inside.
        unsafe { host.copy_2d(to, 8, Region::of(&source), 4, 4, 2, &[]) }.unwrap();
        assert_eq!(target, [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn an_impossible_allocation_is_an_error() {
        assert!(matches!(
            HostDevice::new().allocate(u64::MAX),
            Err(DeviceError::OutOfMemory { .. })
        ));
    }
}
