//! What a fake device shares: memory exported to other devices and processes, and host memory
//! registered with it.
//!
//! ```text
//!  export, 40 bytes, little-endian, and one descriptor: the allocation's file
//!  0  "GFK1" 4 zeros
//!  8  allocation's length
//! 16  region's offset in the allocation
//! 24  region's length
//! 32  allocation's buffer id
//! ```

use super::FakeDevice;
use crate::{Device, DeviceError, Export, Region};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

const MAGIC: [u8; 8] = *b"GFK1\0\0\0\0";
const EXPORT_BYTES: usize = 40;

/// Host memory by its start and length in bytes: how often it is registered.
pub(super) type Registered = BTreeMap<(u64, u64), u32>;

impl FakeDevice {
    fn books(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host memory that is registered with it: first address and length in bytes of each piece.
    /// What was unmapped before it was unregistered stays here.
    #[must_use]
    pub fn registered(&self) -> Vec<(u64, u64)> {
        self.books().keys().copied().collect()
    }

    /// How many imports have not been released.
    #[must_use]
    pub fn imported(&self) -> usize {
        self.heap().blocks.values().filter(|block| block.file.is_none()).count()
    }

    pub(super) fn refused(&self, operation: &'static str, reason: &str) -> DeviceError {
        let device = self.properties.name.clone();
        DeviceError::Failed { device, operation, reason: reason.to_owned() }
    }

    fn host_range(&self, host: Region) -> Result<(u64, u64), DeviceError> {
        if !host.space().cpu_accessible() {
            let device = self.properties.name.clone();
            return Err(DeviceError::WrongSpace { device, space: host.space() });
        }
        Ok((host.start(), host.len()))
    }

    pub(super) fn register_host(&self, host: Region) -> Result<(), DeviceError> {
        let range = self.host_range(host)?;
        if !is_mapped(range) {
            return Err(self.refused("register", "nothing is mapped there"));
        }
        *self.books().entry(range).or_default() += 1;
        Ok(())
    }

    pub(super) fn unregister_host(&self, host: Region) -> Result<(), DeviceError> {
        let range = self.host_range(host)?;
        let mut books = self.books();
        let Some(count) = books.get_mut(&range) else {
            return Err(self.refused("unregister", "it is not registered"));
        };
        if !is_mapped(range) {
            return Err(self.refused("unregister", "it was unmapped before"));
        }
        *count -= 1;
        if *count == 0 {
            books.remove(&range);
        }
        Ok(())
    }

    /// Whether all of some host memory lies in one piece that is registered with it.
    #[must_use]
    pub fn has_registered(&self, region: Region) -> bool {
        self.books().keys().any(|(start, len)| {
            let inside = region.start().checked_sub(*start);
            inside.is_some_and(|at| at <= *len && region.len() <= len - at)
        })
    }

    /// Pinned memory, if all of it is registered.
    pub(super) fn registered_alias(&self, region: Region) -> Result<Region, DeviceError> {
        let device = self.properties.name.clone();
        self.has_registered(region)
            .then_some(region)
            .ok_or(DeviceError::WrongSpace { device, space: region.space() })
    }

    /// How often [`settle_writes`](Device::settle_writes) was called.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.settled.load(Ordering::Relaxed)
    }

    /// How often [`dma_buf`](Device::dma_buf) was called.
    #[must_use]
    pub fn dma_bufs(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether [`dma_buf`](Device::dma_buf) is refused from now on.
    pub fn keep_from_adapters(&self, keep: bool) {
        self.keeps.store(keep, Ordering::Relaxed);
    }

    /// The file that the region lies in, where it begins there, and the allocation's length and id.
    pub(super) fn file_of(&self, region: Region) -> Result<(OwnedFd, u64, u64, u64), DeviceError> {
        let device = self.properties.name.clone();
        let wrong = DeviceError::WrongSpace { device, space: region.space() };
        if region.space() != self.space() {
            return Err(wrong);
        }
        let heap = self.heap();
        let Some((start, block)) = heap.blocks.range(..=region.start()).next_back() else {
            return Err(wrong);
        };
        let offset = region.start() - start;
        Region::new(self.space(), *start, 0, block.len).sub(offset, region.len())?;
        let Some(file) = &block.file else {
            return Err(DeviceError::Unsupported { what: "exporting imported memory" });
        };
        let file = file.try_clone().map_err(|_| self.failed("dup"))?;
        Ok((file, offset, block.len, block.id))
    }

    pub(super) fn export_region(&self, region: Region) -> Result<Export, DeviceError> {
        let (file, offset, len, id) = self.file_of(region)?;
        let mut bytes = MAGIC.to_vec();
        for number in [len, offset, region.len(), id] {
            bytes.extend(number.to_le_bytes());
        }
        Ok(Export { bytes, descriptors: vec![file] })
    }

    pub(super) fn import_region(&self, export: Export) -> Result<Region, DeviceError> {
        let (file, size, [offset, len]) = self.opened(export)?;
        let (forbidden, alias) = self.map_twice(&file, bytes_of(size))?;
        Ok(self.remember(forbidden, alias, size, bytes_of(size), None).sub(offset, len)?)
    }

    /// The file of what was exported, the allocation's length, and where the region lies in it.
    fn opened(&self, export: Export) -> Result<(OwnedFd, u64, [u64; 2]), DeviceError> {
        let bad = |reason| self.refused("import", reason);
        let bytes: &[u8; EXPORT_BYTES] =
            export.bytes.as_slice().try_into().map_err(|_| bad("no export of a fake device"))?;
        let [file]: [OwnedFd; 1] =
            export.descriptors.try_into().map_err(|_| bad("not one descriptor"))?;
        if bytes[..8] != MAGIC {
            return Err(bad("no export of a fake device"));
        }
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (size, offset, len) = (number(8), number(16), number(24));
        if file_len(&file) != Some(size.max(1)) {
            return Err(bad("the file has another length"));
        }
        usize::try_from(size.max(1)).map_err(|_| bad("its length"))?;
        Region::new(self.space(), 0, 0, size).sub(offset, len)?;
        Ok((file, size, [offset, len]))
    }
}

/// Bytes that are mapped of an allocation of this length, which fits the address space.
fn bytes_of(len: u64) -> usize {
    usize::try_from(len.max(1)).unwrap_or(usize::MAX)
}

/// The length of a file in bytes.
fn file_len(file: &OwnedFd) -> Option<u64> {
    // SAFETY: all-zero bytes are a valid `stat`, which holds numbers only.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `file` is open and `found` has room for the answer.
    let answered = unsafe { libc::fstat(file.as_raw_fd(), &raw mut found) };
    (answered == 0).then(|| u64::try_from(found.st_size).ok()).flatten()
}

/// Whether every page of a range is mapped.
fn is_mapped((start, len): (u64, u64)) -> bool {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = u64::try_from(page).unwrap_or(4096);
    let first = start - start % page;
    let Some(end) = start.checked_add(len) else { return false };
    let (Ok(address), Ok(bytes)) = (usize::try_from(first), usize::try_from(end - first)) else {
        return false;
    };
    let address = std::ptr::with_exposed_provenance_mut::<libc::c_void>(address);
    // SAFETY: asks for nothing to be done that is not done anyway; for pages that are not mapped it
    // answers ENOMEM.
    unsafe { libc::msync(address, bytes, libc::MS_ASYNC) == 0 }
}
