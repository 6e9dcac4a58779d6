//! Memory from [`World::alloc`](crate::World::alloc): peers on this host can map it, so that a
//! message moves from layout to layout with one copy.
//!
//! # Who is trusted
//!
//! A peer that was sent a message out of this memory, or has sent one into it, has it mapped. It is a process of the
//! same job and the same user, which could just as well attach a debugger to this one. The library there reads data
//! that is being sent, and writes data that is being received, while the message is in flight. A receive ends when no
//! peer writes its memory any more; a world that is given up before that exchanges the pages for private ones. A
//! malicious peer could still write to the memory while a `&[u8]` of it exists here, which Rust does not allow. If
//! data must not change under a reader while hostile code runs under the same user, keep it in ordinary memory: that
//! is never mapped.
//!
//! An adapter (InfiniBand, RoCE) registers such memory once. A peer on another host that was sent a message out of it can
//! then read all of it until it is freed, and write nothing.

use crate::error::Error;
use crate::shared::Shared;
use gapless_btl::Allocation;
use gapless_mem::{Device, DeviceError, HostDevice, Lasting, Lease, Region};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes that peers can map, zeroed when new; page-aligned where they can. Freed when dropped, and not before
/// the last peer's mapping and the last request on it are gone. Adapters register it once.
pub struct SharedBuf {
    memory: Arc<Lasting>,
    len: usize,
    mappable: bool,
}

/// Heap memory, if no transport can map.
struct Heap {
    device: HostDevice,
    region: Region,
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `heap` allocated this region with this device, and whatever uses it holds this
        // value.
        let freed = unsafe { self.device.free(self.region) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl SharedBuf {
    /// Bytes that peers can map, if a transport has such.
    pub(crate) fn allocate(shared: &Shared, len: usize) -> Result<SharedBuf, Error> {
        if len == 0 {
            return SharedBuf::heap(0);
        }
        let allocated = shared.with(|state| Ok(state.open()?.bml_mut().allocate(len as u64)))?;
        let mapped = match allocated {
            Some(Ok(allocation)) => {
                let mapped = SharedBuf::mapped(allocation, len);
                if mapped.is_none() {
                    let what = "a transport gave too little memory, or none of the host's";
                    tracing::warn!(len, "{what}");
                }
                mapped
            }
            Some(Err(error)) => {
                tracing::info!(len, %error, "memory that peers can map is refused; heap instead");
                None
            }
            None => None,
        };
        let made = mapped.map_or_else(|| SharedBuf::heap(len), Ok)?;
        shared.with(|state| {
            state.open()?.bml_mut().remember(&made.memory);
            Ok(())
        })?;
        Ok(made)
    }

    /// Takes an allocation of a transport, if it is at least `len` bytes that the CPU can touch.
    pub(crate) fn mapped(allocation: Allocation, len: usize) -> Option<SharedBuf> {
        let region = allocation.region();
        let fits = region.len() >= len as u64 && region.as_ptr().is_some();
        let memory = Lasting::new(allocation.lease().clone());
        fits.then_some(SharedBuf { memory, len, mappable: true })
    }

    /// Allocates from the heap.
    pub(crate) fn heap(len: usize) -> Result<SharedBuf, Error> {
        let device = HostDevice::new();
        let region = device.allocate(len as u64)?;
        let hold = Arc::new(Heap { device, region });
        // SAFETY: the device has just given this memory, zeroed, which is freed when the hold is dropped; nobody else has it.
        let lease = unsafe { Lease::new(region, hold) };
        Ok(SharedBuf { memory: Lasting::new(lease), len, mappable: false })
    }

    /// The bytes, as a region.
    #[must_use]
    pub fn region(&self) -> Region {
        let all = self.memory.region();
        Region::new(all.space(), all.address(), all.offset(), self.len as u64)
    }

    /// Whether peers on this host can map it; if not, it is like any other memory.
    #[must_use]
    pub fn is_mappable(&self) -> bool {
        self.mappable
    }

    /// The bytes, and what keeps them. As long as somebody uses the lease, nobody looks at this value's bytes.
    pub(crate) fn lease(&self) -> Result<Lease, Error> {
        Ok(self.memory.lease().sub(0, self.len as u64).map_err(DeviceError::from)?)
    }

    fn pointer(&self) -> *mut u8 {
        self.memory.region().as_ptr().expect("host memory has an address")
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is `len` initialised bytes (zeroed at first), valid while it is
        // held. This value is the process's only access to them, and cannot be cloned, so whoever writes here has
        // `&mut self`. Peers write it only while it is granted to a receive, which borrows or owns it, and
        // ends, or is given up, when they cannot any more; the module's first paragraphs say who is trusted.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }
}

impl DerefMut for SharedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` is exclusive; peers that read it get arbitrary bytes.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf of {} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_memory_is_zeroed_and_writable() {
        let mut memory = SharedBuf::heap(5000).unwrap();
        assert!(memory.iter().all(|&byte| byte == 0));
        memory[4999] = 7;
        assert_eq!((memory[4999], memory.len(), memory.is_mappable()), (7, 5000, false));
        assert_eq!(SharedBuf::heap(0).unwrap().len(), 0);
        assert!(matches!(SharedBuf::heap(usize::MAX), Err(Error::Memory(_))));
    }
}
