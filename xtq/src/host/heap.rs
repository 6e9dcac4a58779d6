//! Memory of this process's for rings: for a worker here, or to be carried from and to another host.

use gapless_mem::{Device as _, DeviceError, HostDevice, Lease, Region};
use std::sync::Arc;

/// Memory is registered with accelerators and adapters in pages.
const PAGE: u64 = 4096;

/// Freed with its last lease.
struct Heap(Region);

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `heap` allocated it there; it is used by leases alone, and this goes with the last of them.
        let freed = unsafe { HostDevice::new().free(self.0) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

/// Zeroed memory of whole pages.
pub(super) fn heap(bytes: u64) -> Result<Lease, DeviceError> {
    let bytes = bytes.next_multiple_of(PAGE);
    let region = HostDevice::new().allocate(bytes + PAGE)?;
    let behind = region.start().next_multiple_of(PAGE) - region.start();
    // SAFETY: the memory is there until the owner is gone.
    let lease = unsafe { Lease::new(region, Arc::new(Heap(region))) };
    Ok(lease.sub(behind, bytes)?)
}
