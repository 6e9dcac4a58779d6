//! Protection domain, memory regions, and memory of ours that is registered.

use super::device::Context;
use super::flags::MemoryAccess;
use super::library::RegDmaBuf;
use super::{over, refused};
use gapless_btl::LinkError;
use gapless_mem::{Device, DeviceError, DmaBuf, Region, Space};
use rdma_sys::{ibv_mr, ibv_pd};
use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// A protection domain: what belongs together.
pub(crate) struct Domain {
    pub(crate) context: Arc<Context>,
    raw: NonNull<ibv_pd>,
}

// SAFETY: verbs may be called from any thread, also at the same time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// # Errors
    /// The device has no more.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Domain>, LinkError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library.alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_alloc_pd"))?;
        Ok(Arc::new(Domain { context: Arc::clone(context), raw }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: freed once; what was made of it keeps it, so nothing is left.
        let _ = unsafe { (self.context.library.dealloc_pd)(self.raw()) };
    }
}

/// A registration.
pub(crate) struct Mr {
    domain: Arc<Domain>,
    raw: NonNull<ibv_mr>,
}

// SAFETY: verbs may be called from any thread, also at the same time; the keys do not change.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// The library's `ibv_reg_dmabuf_mr`, or what a test has put in its place.
fn entry(domain: &Domain) -> Option<RegDmaBuf> {
    #[cfg(test)]
    if let Some(forced) = FORCED.get() {
        return forced;
    }
    domain.context.library.reg_dmabuf_mr
}

#[cfg(test)]
thread_local! {
    /// For tests: in the place of `ibv_reg_dmabuf_mr`, which Soft-RoCE of Linux 6.1 refuses.
    pub(crate) static FORCED: std::cell::Cell<Option<Option<RegDmaBuf>>> =
        const { std::cell::Cell::new(None) };
    /// For tests: the system refuses to register memory, as where little may be locked.
    pub(crate) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// For tests: how many registrations of the host's memory this thread has made, and how many of all it has ended.
    pub(crate) static COUNTS: std::cell::Cell<(u32, u32)> = const { std::cell::Cell::new((0, 0)) };
}

impl Mr {
    /// Registers `region`.
    ///
    /// # Safety
    /// While the registration lives, the region describes memory that is valid for what `access` lets peers do, and that
    /// no reference covers while they do it.
    ///
    /// # Errors
    /// The system refused, mostly for the limit of locked memory.
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        region: Region,
        access: MemoryAccess,
    ) -> Result<Mr, LinkError> {
        let refuse = |reason: String| LinkError::System { operation: "ibv_reg_mr", reason };
        let pointer = region.as_ptr().ok_or_else(|| refuse("not the CPU's memory".to_owned()))?;
        let len = usize::try_from(region.len()).map_err(|e| refuse(e.to_string()))?;
        let (library, at) = (domain.context.library, region.start());
        #[cfg(test)]
        if REFUSES.get() {
            return Err(super::refused_as("ibv_reg_mr", libc::ENOMEM));
        }
        // SAFETY: the domain lives; the caller vouches for the memory; without rights of peers nothing happens to it but
        // what is posted.
        let raw =
            unsafe { (library.reg_mr_iova2)(domain.raw(), pointer.cast(), len, at, access.bits()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_reg_mr"))?;
        #[cfg(test)]
        COUNTS.set((COUNTS.get().0 + 1, COUNTS.get().1));
        Ok(Mr { domain: Arc::clone(domain), raw })
    }

    /// Registers `region` of a device's memory, which lies in `buffer`, under its own addresses.
    ///
    /// # Safety
    /// While the registration lives, the region's pages may be read, and written as `access` lets peers and our own work.
    /// (They stay the dma-buf's, whatever their owner does with the addresses.)
    ///
    /// # Errors
    /// The library or the device cannot, or the system refused.
    pub(crate) unsafe fn of_dma_buf(
        domain: &Arc<Domain>,
        buffer: &DmaBuf,
        region: Region,
        access: MemoryAccess,
    ) -> Result<Mr, LinkError> {
        let refuse = |reason: &str| LinkError::System {
            operation: "ibv_reg_dmabuf_mr",
            reason: reason.to_owned(),
        };
        let entry = entry(domain).ok_or_else(|| refuse("libibverbs is older than release 34"))?;
        let len = usize::try_from(region.len()).map_err(|_| refuse("its length"))?;
        let bits = i32::try_from(access.bits()).map_err(|_| refuse("its rights"))?;
        let fd = buffer.descriptor.as_raw_fd();
        // SAFETY: the domain lives, and the descriptor is open through the call; the caller vouches for the rights.
        let raw = unsafe { entry(domain.raw(), buffer.offset, len, region.start(), fd, bits) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_reg_dmabuf_mr"))?;
        Ok(Mr { domain: Arc::clone(domain), raw })
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Mr {
    /// Ends the registration.
    ///
    /// # Safety
    /// Once.
    unsafe fn end(&self) -> Result<(), i32> {
        #[cfg(test)]
        COUNTS.set((COUNTS.get().0, COUNTS.get().1 + 1));
        // SAFETY: ended once; it keeps its domain.
        over(unsafe { (self.domain.context.library.dereg_mr)(self.raw.as_ptr()) })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: whoever ends it otherwise forgets it.
        if let Err(errno) = unsafe { self.end() } {
            // A peer may still reach memory that its owner takes back.
            gapless_mem::abort(&format!(
                "ibv_dereg_mr failed ({errno}): memory cannot be taken back from peers"
            ));
        }
    }
}

/// Zeroed memory of ours, page-aligned, registered for work that we post.
pub(crate) struct Registered {
    region: Region,
    layout: Layout,
    lkey: u32,
    rkey: u32,
    /// `None` only while it is dropped.
    registration: Option<Mr>,
    /// The devices that it is registered with.
    devices: Mutex<Vec<Arc<dyn Device>>>,
    /// Whether all devices that work on it know it.
    pinned: AtomicBool,
}

impl Registered {
    /// # Errors
    /// There is no memory, or the system refused to register it.
    pub(crate) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Arc<Registered>, LinkError> {
        Registered::with(domain, bytes, MemoryAccess::OWN)
    }

    /// The same, for peers to write into, too: whoever reads it uses atomic words.
    ///
    /// # Errors
    /// As [`new`](Registered::new).
    pub(crate) fn written_by_peers(
        domain: &Arc<Domain>,
        bytes: usize,
    ) -> Result<Arc<Registered>, LinkError> {
        Registered::with(domain, bytes, MemoryAccess::ACK_WORDS)
    }

    fn with(
        domain: &Arc<Domain>,
        bytes: usize,
        access: MemoryAccess,
    ) -> Result<Arc<Registered>, LinkError> {
        let none = |reason: String| LinkError::System { operation: "allocating buffers", reason };
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(PAGE), PAGE)
            .map_err(|e| none(e.to_string()))?;
        // SAFETY: the layout has a size of a page at least.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return Err(none(format!("no {bytes} bytes")));
        }
        let address = pointer.expose_provenance() as u64;
        let region = Region::new(Space::Host, address, 0, layout.size() as u64);
        let (devices, pinned) = (Mutex::default(), AtomicBool::new(false));
        let mut memory =
            Registered { region, layout, lkey: 0, rkey: 0, registration: None, devices, pinned };
        // SAFETY: the memory is freed after the registration, and references to it are not made.
        let registration = unsafe { Mr::new(domain, region, access) }?;
        (memory.lkey, memory.rkey) = (registration.lkey(), registration.rkey());
        memory.registration = Some(registration);
        Ok(Arc::new(memory))
    }

    /// All of it: page-locked memory, if all devices that work on it know it.
    pub(crate) fn region(&self) -> Region {
        if !self.pinned.load(Ordering::Relaxed) {
            return self.region;
        }
        Region::new(Space::Pinned, self.region.address(), 0, self.region.len())
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is ordinary memory until it is made known again.
    pub(crate) fn unpin(&self) {
        self.pinned.store(false, Ordering::Relaxed);
    }

    /// Makes it known to these devices, once each, so that they work on it without staging.
    ///
    /// # Errors
    /// One has refused: until all know it, it is ordinary memory.
    pub(crate) fn make_known(&self, all: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
        let mut known = self.devices();
        self.unpin();
        for device in all {
            if known.iter().any(|one| Arc::ptr_eq(one, device)) {
                continue;
            }
            // SAFETY: the memory is freed by `drop` alone, which unregisters it first.
            match unsafe { device.register(self.region) } {
                Ok(()) => known.push(Arc::clone(device)),
                // It reaches the host's memory by copies, whoever has locked it.
                Err(DeviceError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.pinned.store(!known.is_empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Has a device that has [finished](Device::finish) forget it, if it knows it.
    pub(crate) fn unregister(&self, device: &Arc<dyn Device>) {
        let mut known = self.devices();
        let Some(at) = known.iter().position(|one| Arc::ptr_eq(one, device)) else { return };
        // SAFETY: `make_known` registered it with this device, no work of which is in flight, as the caller has found
        // out.
        match unsafe { device.unregister(self.region) } {
            Ok(()) => drop(known.swap_remove(at)),
            // It may still reach the memory: `drop` must know that.
            Err(error) => tracing::warn!(%error, "a device does not forget buffers"),
        }
        let pinned = self.pinned.load(Ordering::Relaxed) && !known.is_empty();
        self.pinned.store(pinned, Ordering::Relaxed);
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// By which peers reach it, if they may.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let registration = ManuallyDrop::new(registration);
            // SAFETY: it is not dropped any more. (It keeps its domain for good, which costs nothing that matters then.)
            if let Err(errno) = unsafe { registration.end() } {
                // The adapter may still reach the memory: it stays for good.
                tracing::warn!(errno, "buffers stay registered");
                return;
            }
            // SAFETY: the field is not used after.
            drop(unsafe { std::ptr::read(&raw const registration.domain) });
        }
        let mut kept = false;
        for device in self.devices().drain(..) {
            // SAFETY: `make_known` registered it with this device. Whoever has a device work on it holds a slot or a
            // fragment until that is over, and those keep this.
            kept |= unsafe { device.unregister(self.region) }.is_err();
        }
        if kept {
            // A device may still reach it: nobody else may have it.
            return;
        }
        let pointer = self.region.as_ptr().expect("the CPU's memory");
        // SAFETY: `new` allocated this address with this layout; it is not registered any more, and whoever works on it
        // keeps it.
        unsafe { std::alloc::dealloc(pointer, self.layout) };
    }
}
