//! Memory of a device from [`World::alloc_device`](crate::World::alloc_device), which knows when it may
//! be freed.
//!
//! # Memory that peers have mapped
//!
//! Long messages between devices of one host avoid staging if they can: the receiver's device maps the sender's
//! memory (CUDA IPC) and moves from layout to layout by one kernel, or the sender's device maps the receiver's. A
//! mapping costs milliseconds to make and is kept. CUDA does not define what happens if memory is freed while another
//! process has it mapped. So before you free memory that messages used, call
//! [`World::invalidate`](crate::World::invalidate), then `cudaFree`. Memory from `alloc_device` does that by itself.
//! [`Config::share_device_buffers`](crate::Config::share_device_buffers) switches such mapping off.
//!
//! Who is trusted: a peer that has memory mapped is a process of the same job and the same user. The library there
//! reads and writes it only for messages in flight; a hostile one could at any time.

use crate::error::Error;
use crate::shared::{Shared, WorldState};
use crate::view::{DeviceIndices, View, ViewMut};
use gapless_dtype::{Layout, Pages};
use gapless_mem::{Device, DeviceError, Lease, Region};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a device. Dropping it makes peers release it and then frees it: at once, or when they have; at the
/// latest when the world and all its handles are gone.
pub struct DeviceBuf {
    shared: Arc<Shared>,
    /// `None` only while it is being dropped.
    memory: Option<Arc<Owned>>,
    region: Region,
}

/// Memory that is freed when this is dropped.
pub(crate) struct Owned {
    device: Arc<dyn Device>,
    region: Region,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `allocate` below had the region from this device, for this value alone; views borrow
        // the buffer for as long as messages last, leases keep this value, and peers have been asked to let
        // go of it before, or the transports, and all mappings with them, are gone.
        if let Err(error) = unsafe { self.device.free(self.region) } {
            tracing::warn!(%error, "memory of a device could not be freed");
        }
    }
}

/// Long allocations are multiples of this: CUDA's driver copies rows between GPUs by a fifth slower where one of the two
/// is a mapping of another process's allocation of another length.
const STEP: u64 = 1 << 20;

/// Bytes to allocate where `len` are asked for. Devices refuse to allocate none.
fn allocated(len: u64) -> u64 {
    if len < STEP { len.max(1) } else { len.checked_next_multiple_of(STEP).unwrap_or(len) }
}

impl DeviceBuf {
    pub(crate) fn allocate(
        shared: &Arc<Shared>,
        device: Arc<dyn Device>,
        len: u64,
    ) -> Result<DeviceBuf, Error> {
        let whole = device.allocate(allocated(len))?;
        let memory = Arc::new(Owned { device, region: whole });
        let region = whole.sub(0, len).map_err(DeviceError::from)?;
        Ok(DeviceBuf { shared: Arc::clone(shared), memory: Some(memory), region })
    }

    /// The bytes, and what keeps them. As long as somebody uses the lease, nobody uses views of this value.
    pub(crate) fn lease(&self) -> Lease {
        let owner = self.memory.as_ref().expect("it is taken only when it is dropped");
        // SAFETY: the owner frees the region when it is dropped, and nobody else does.
        unsafe { Lease::new(self.region, Arc::clone(owner) as _) }
    }

    /// The bytes, as a region: for other libraries, and for kernels. Their first contents are arbitrary.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.memory.as_ref().expect("it is taken only when it is dropped").device)
    }

    /// `count` instances of `layout` in it, to be sent; displacement 0 is `origin_bytes` into it, where [`View::typed`]
    /// counts elements: this memory has none. Work of your own that writes them must have ended, or be named
    /// ([`Scope::isend_after`](crate::Scope::isend_after)).
    ///
    /// # Errors
    /// The instances reach outside, or their bytes overflow 64 bits.
    pub fn view(&self, origin_bytes: u64, layout: &Layout, count: u64) -> Result<View<'_>, Error> {
        // SAFETY: the memory lives as long as the borrow. The library writes it only through
        // `view_mut`, which borrows it exclusively; whoever has the address and lets kernels run
        // answers for them, and would read arbitrary bytes, nothing worse.
        unsafe { View::of_region(self.region, origin_bytes, layout, count) }
    }

    /// The same, to be received into.
    ///
    /// # Errors
    /// As [`view`](DeviceBuf::view).
    pub fn view_mut(
        &mut self,
        origin_bytes: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'_>, Error> {
        // SAFETY: as for `view`, and the borrow is exclusive.
        unsafe { ViewMut::of_region(self.region, origin_bytes, layout, count) }
    }

    /// Pages in it, to be sent; displacement 0 is `origin_bytes` into it. As of [`view`](DeviceBuf::view).
    ///
    /// # Errors
    /// A page reaches outside.
    pub fn pages(&self, origin_bytes: u64, pages: &Pages) -> Result<View<'_>, Error> {
        // SAFETY: as for `view`.
        unsafe { View::pages_of_region(self.region, origin_bytes, pages) }
    }

    /// The same, to be received into.
    ///
    /// # Errors
    /// As [`pages`](DeviceBuf::pages).
    pub fn pages_mut(&mut self, origin_bytes: u64, pages: &Pages) -> Result<ViewMut<'_>, Error> {
        // SAFETY: as for `view`, and the borrow is exclusive.
        unsafe { ViewMut::pages_of_region(self.region, origin_bytes, pages) }
    }

    /// `page` at indices that lie in memory of a device, to be sent: see [`View::device_pages_of_region`].
    ///
    /// ```no_run
    /// use gapless::{Datatype, Primitive, Space, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let space = Space::Cuda { device: 0 };
    /// let page = Datatype::contiguous(16 << 10, &Primitive::Byte.into())?.commit()?;
    /// let pool = world.alloc_device(space, 1000 * (16 << 10))?;
    /// let table = world.alloc_device(space, 64 * 4)?; // a kernel writes it
    /// world.comm().send(pool.pages_at(0, &page, 16 << 10, table.indices_u32(0..64)?)?, 1, 0)?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn pages_at<'a>(
        &'a self,
        origin_bytes: u64,
        page: &Layout,
        stride: u64,
        indices: DeviceIndices<'a>,
    ) -> Result<View<'a>, Error> {
        // SAFETY: as for `view`, of whatever pages the indices name: they lie in this memory.
        unsafe { View::device_pages_of_region(self.region, origin_bytes, page, stride, indices) }
    }

    /// The same, to be received into. The indices lie in other memory.
    ///
    /// # Errors
    /// As [`pages_at`](DeviceBuf::pages_at).
    pub fn pages_at_mut<'a>(
        &'a mut self,
        origin_bytes: u64,
        page: &Layout,
        stride: u64,
        indices: DeviceIndices<'a>,
    ) -> Result<ViewMut<'a>, Error> {
        // SAFETY: as for `pages_at`, and the borrow is exclusive.
        unsafe { ViewMut::device_pages_of_region(self.region, origin_bytes, page, stride, indices) }
    }

    /// Some of its 32-bit words, as indices of pages. A kernel that writes them must have ended, or be named, before
    /// their message begins ([`Scope::isend_after`](crate::Scope::isend_after)).
    ///
    /// # Errors
    /// There are not so many.
    pub fn indices_u32(&self, words: Range<u64>) -> Result<DeviceIndices<'_>, Error> {
        self.indices(words, 4)
    }

    /// The same of 64-bit words.
    ///
    /// # Errors
    /// As [`indices_u32`](DeviceBuf::indices_u32).
    pub fn indices_u64(&self, words: Range<u64>) -> Result<DeviceIndices<'_>, Error> {
        self.indices(words, 8)
    }

    fn indices(&self, words: Range<u64>, bytes: u64) -> Result<DeviceIndices<'_>, Error> {
        // So far outside, if it overflows or is backwards, that no memory reaches there.
        let len =
            words.end.checked_sub(words.start).map_or(u64::MAX, |it| it.saturating_mul(bytes));
        let region = self.region.sub(words.start.saturating_mul(bytes), len);
        let region = region.map_err(DeviceError::from)?;
        // SAFETY: the memory lives as long as the borrow. Only messages and the caller's kernels write it.
        Ok(unsafe { DeviceIndices::of_region(region, bytes == 8) })
    }
}

impl Drop for DeviceBuf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        self.shared.with_anyway(|state| {
            state.dropped_device_memory.push(memory);
            state.free_dropped_device_memory();
        });
    }
}

impl fmt::Debug for DeviceBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuf of {} bytes in {}", self.region.len(), self.region.space())
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {}", self.region.len(), self.region.space())
    }
}

impl WorldState {
    /// Frees, once the lock is released, the dropped memory that no peer has mapped any more.
    pub(crate) fn free_dropped_device_memory(&mut self) {
        if self.torn {
            return;
        }
        let bml = self.pml.bml_mut();
        let free =
            self.dropped_device_memory.extract_if(.., |memory| !bml.invalidate(memory.region));
        self.spent.extend(free.map(|memory| Box::new(memory) as _));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, TagSel, World};
    use gapless_mem::fake::FakeDevice;
    use gapless_mem::testkit::{Call, Wrapped};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn memory_is_freed_outside_of_the_lock() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let world = World::init().unwrap();
            let comm = world.comm().clone();
            let freed = Arc::new(AtomicU32::new(0));
            let (user, count) = (comm.clone(), Arc::clone(&freed));
            // It uses the world while it frees memory.
            let device = Wrapped::new(Arc::new(FakeDevice::new(0)), move |call| {
                if matches!(call, Call::Free(_)) {
                    let _ = user.iprobe(Source::Any, TagSel::Any);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            drop(DeviceBuf::allocate(&comm.shared, Arc::new(device), 64).unwrap());
            done.send(freed.load(Ordering::Relaxed))
        });
        let freed = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(freed, Ok(1), "it is freed, and nobody waits for itself");
    }

    #[test]
    fn long_allocations_are_whole_steps() {
        let step = STEP;
        for (asked, given) in [
            (0, 1),
            (1, 1),
            (step - 1, step - 1),
            (step, step),
            (step + 1, 2 * step),
            (64_000_000, 62 * step),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(allocated(asked), given, "{asked}");
        }
    }
}
