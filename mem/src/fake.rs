//! A pretend accelerator for tests.
//!
//! Its memory is mapped twice: the address that users see may not be touched by the CPU (it is
//! mapped `PROT_NONE`: a stray load or store is a segmentation fault, not a silent success), and a
//! hidden alias is used by the device's own copies. Its work is asynchronous: a copy happens when
//! its completion has been polled [`FakeDevice::with_delay`] times, so code that forgets to wait
//! reads stale bytes.

use crate::host::wait_all;
use crate::{Completion, Device, DeviceError, DeviceProperties, Pending, Region, Space, access};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One allocation: the forbidden address, its hidden alias and its length, in bytes.
#[derive(Clone, Copy, Debug)]
struct Block {
    alias: u64,
    len: u64,
    mapped: usize,
    id: u64,
}

#[derive(Debug, Default)]
struct Heap {
    blocks: BTreeMap<u64, Block>,
    next_id: u64,
}

/// A device whose memory only the device can touch.
#[derive(Debug)]
pub struct FakeDevice {
    number: u32,
    delay: u32,
    properties: DeviceProperties,
    heap: Arc<Mutex<Heap>>,
}

impl FakeDevice {
    /// Fake device `number`, whose work ends at once.
    #[must_use]
    pub fn new(number: u32) -> FakeDevice {
        FakeDevice::with_delay(number, 0)
    }

    /// Fake device `number`, whose work ends only when it has been polled more than `polls` times.
    #[must_use]
    pub fn with_delay(number: u32, polls: u32) -> FakeDevice {
        FakeDevice {
            number,
            delay: polls,
            properties: DeviceProperties {
                name: format!("fake:{number}"),
                memory_bytes: 1 << 30,
                cache_bytes: 0,
                compute_units: 1,
            },
            heap: Arc::default(),
        }
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, operation: &'static str) -> DeviceError {
        DeviceError::Failed {
            device: self.properties.name.clone(),
            operation,
            reason: std::io::Error::last_os_error().to_string(),
        }
    }

    /// The hidden alias of `region` for engines that pretend to run on this device (tests); host
    /// memory is passed through.
    ///
    /// # Errors
    /// The space is not this device's, or the bytes do not lie in a live allocation.
    pub fn alias(&self, region: Region) -> Result<Region, DeviceError> {
        if region.space().cpu_accessible() {
            return Ok(region);
        }
        let wrong = || DeviceError::WrongSpace {
            device: self.properties.name.clone(),
            space: region.space(),
        };
        if region.space() != self.space() {
            return Err(wrong());
        }
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=region.start()).next_back().ok_or_else(wrong)?;
        let whole = Region::new(Space::Host, block.alias, 0, block.len);
        Ok(whole.sub(region.start() - start, region.len())?)
    }
}

/// A copy that happens when it has been polled often enough.
struct Delayed {
    left: Mutex<u32>,
    after: Vec<Completion>,
    dst: Region,
    src: Region,
    done: Mutex<Option<Result<(), DeviceError>>>,
}

impl Pending for Delayed {
    fn poll(&self) -> Result<bool, DeviceError> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = done.as_ref() {
            return result.clone().map(|()| true);
        }
        for earlier in &self.after {
            if !earlier.poll()? {
                return Ok(false);
            }
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left > 0 {
            *left -= 1;
            return Ok(false);
        }
        // SAFETY: `FakeDevice::copy`'s caller guarantees both regions until the completion, and
        // only aliases or host memory get here.
        let result = unsafe { access::copy(&self.dst, &self.src) };
        *done = Some(result.clone());
        result.map(|()| true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Device for FakeDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        Space::Fake { device: self.number }
    }

    fn reaches(&self, space: Space) -> bool {
        space.cpu_accessible() || space == self.space()
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        let mapped = usize::try_from(len.max(1)).map_err(|_| DeviceError::OutOfMemory {
            device: self.properties.name.clone(),
            len,
            reason: "more than the address space holds".to_owned(),
        })?;
        // SAFETY: the name is a NUL-terminated literal.
        let raw = unsafe { libc::memfd_create(c"gapless-fake".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(self.failed("memfd_create"));
        }
        // SAFETY: `raw` was just opened and nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        let size = libc::off_t::try_from(mapped).map_err(|_| self.failed("ftruncate"))?;
        // SAFETY: `file` is an open memfd.
        if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
            return Err(self.failed("ftruncate"));
        }
        let map = |protection| {
            // SAFETY: a fresh shared mapping of `mapped` bytes of an open file of that size,
            // wherever the kernel likes.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    mapped,
                    protection,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            if at == libc::MAP_FAILED {
                return Err(self.failed("mmap"));
            }
            Ok(at.expose_provenance() as u64)
        };
        let forbidden = map(libc::PROT_NONE)?;
        let alias = match map(libc::PROT_READ | libc::PROT_WRITE) {
            Ok(alias) => alias,
            Err(error) => {
                unmap(forbidden, mapped);
                return Err(error);
            }
        };
        let mut heap = self.heap();
        heap.next_id += 1;
        let id = heap.next_id;
        heap.blocks.insert(forbidden, Block { alias, len, mapped, id });
        Ok(Region::new(self.space(), forbidden, 0, len))
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        let block = self.heap().blocks.remove(&region.start()).ok_or(DeviceError::WrongSpace {
            device: self.properties.name.clone(),
            space: region.space(),
        })?;
        unmap(region.start(), block.mapped);
        unmap(block.alias, block.mapped);
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
        let work = Delayed {
            left: Mutex::new(self.delay),
            after: after.to_vec(),
            dst: self.alias(dst)?,
            src: self.alias(src)?,
            done: Mutex::new(None),
        };
        Ok(Completion::Pending(Arc::new(work)))
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
        let (dst, src) = (self.alias(dst)?, self.alias(src)?);
        let host = crate::HostDevice::new();
        // SAFETY: the aliases are host memory for as long as the caller keeps the regions.
        unsafe { host.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, &[]) }
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=region.start()).next_back()?;
        (region.start() - start < block.len.max(1)).then_some(block.id)
    }

    fn locate(&self, address: u64) -> Option<Space> {
        let heap = self.heap();
        let (start, block) = heap.blocks.range(..=address).next_back()?;
        (address - start < block.len).then(|| self.space())
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        for (address, block) in std::mem::take(&mut self.heap().blocks) {
            unmap(address, block.mapped);
            unmap(block.alias, block.mapped);
        }
    }
}

/// Unmaps one of this file's own mappings.
fn unmap(address: u64, len: usize) {
    let Ok(address) = usize::try_from(address) else { return };
    // SAFETY: only called with a mapping that `allocate` made with this length and that has just
    // been taken out of the heap's table, so it is unmapped once.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_make_the_round_trip_only_when_polled() {
        let device = FakeDevice::with_delay(1, 3);
        let region = device.allocate(64).unwrap();
        let source = [9u8; 64];
        let mut back = [0u8; 64];
        // SAFETY: all three memories live until both completions below are ready.
        let up = unsafe { device.copy(region, Region::of(&source), &[]) }.unwrap();
        let to = Region::of_mut(&mut back);
        // SAFETY: as above; ordered after `up`.
        let down = unsafe { device.copy(to, region, &[up]) }.unwrap();
        assert!(!down.poll().unwrap());
        down.wait().unwrap();
        assert_eq!(back, source);
        // SAFETY: nothing is in flight.
        unsafe { device.free(region) }.unwrap();
    }

    #[test]
    fn the_cpu_faults_on_it() {
        let device = FakeDevice::new(0);
        let region = device.allocate(4096).unwrap();
        assert!(region.as_ptr().is_none());
        // The kernel refuses to read it on our behalf as well, without killing us.
        let address = usize::try_from(region.start()).unwrap();
        let remote =
            libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
        let mut pipe = [0i32; 2];
        // SAFETY: `pipe` has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: `writev` reads through the kernel, which answers EFAULT for PROT_NONE.
        let written = unsafe { libc::writev(pipe[1], &raw const remote, 1) };
        assert_eq!(written, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        for descriptor in pipe {
            // SAFETY: both were just opened here.
            unsafe { libc::close(descriptor) };
        }
    }

    #[test]
    fn a_reused_address_has_another_buffer_id() {
        let device = FakeDevice::new(0);
        let first = device.allocate(4096).unwrap();
        let id = device.buffer_id(first).unwrap();
        // SAFETY: nothing uses it.
        unsafe { device.free(first) }.unwrap();
        assert_eq!(device.buffer_id(first), None);
        let second = device.allocate(4096).unwrap();
        assert_ne!(device.buffer_id(second).unwrap(), id);
        assert_eq!(device.locate(second.start()), Some(Space::Fake { device: 0 }));
    }

    #[test]
    fn foreign_and_stray_regions_are_refused() {
        let device = FakeDevice::new(0);
        let region = device.allocate(16).unwrap();
        let longer = Region::new(region.space(), region.address(), 0, 17);
        assert!(matches!(device.alias(longer), Err(DeviceError::OutOfRange(_))));
        let other = Region::new(Space::Cuda { device: 0 }, region.address(), 0, 1);
        assert!(matches!(device.alias(other), Err(DeviceError::WrongSpace { .. })));
    }
}
