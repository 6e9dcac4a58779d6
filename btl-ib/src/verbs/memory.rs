//! Protection domain, memory regions, and memory of ours that is registered.

use super::device::Context;
use super::flags::MemoryAccess;
use super::{over, refused};
use gapless_btl::LinkError;
use gapless_mem::{Region, Space};
use rdma_sys::{ibv_mr, ibv_pd};
use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

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
        // SAFETY: the domain lives; the caller vouches for the memory; without rights of peers nothing happens to it but
        // what is posted.
        let raw =
            unsafe { (library.reg_mr_iova2)(domain.raw(), pointer.cast(), len, at, access.bits()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_reg_mr"))?;
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
}

impl Registered {
    /// # Errors
    /// There is no memory, or the system refused to register it.
    pub(crate) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Arc<Registered>, LinkError> {
        Registered::with(domain, bytes, MemoryAccess::LOCAL_WRITE)
    }

    /// The same, for peers to write into, too: whoever reads it uses atomic words.
    ///
    /// # Errors
    /// As [`new`](Registered::new).
    pub(crate) fn written_by_peers(
        domain: &Arc<Domain>,
        bytes: usize,
    ) -> Result<Arc<Registered>, LinkError> {
        Registered::with(domain, bytes, MemoryAccess::LOCAL_WRITE | MemoryAccess::REMOTE_WRITE)
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
        let mut memory = Registered { region, layout, lkey: 0, rkey: 0, registration: None };
        // SAFETY: the memory is freed after the registration, and references to it are not made.
        let registration = unsafe { Mr::new(domain, region, access) }?;
        (memory.lkey, memory.rkey) = (registration.lkey(), registration.rkey());
        memory.registration = Some(registration);
        Ok(Arc::new(memory))
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region {
        self.region
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
        let pointer = self.region.as_ptr().expect("the CPU's memory");
        // SAFETY: `new` allocated this address with this layout; it is not registered any more, and whoever works on it
        // keeps it.
        unsafe { std::alloc::dealloc(pointer, self.layout) };
    }
}
