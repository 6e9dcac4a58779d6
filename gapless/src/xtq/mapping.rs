//! Whether a processor of this machine can map the memory of its GPUs: rings could lie there, and a put would cross the bus
//! once less.

use gapless_mem::{Device, Space};
use gapless_mem_cuda::CudaDevice;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CStr;
use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;

/// The device file of gdrcopy's kernel module.
const GDRCOPY: &str = "/dev/gdrdrv";
const VULKAN: &CStr = c"libvulkan.so.1";
/// What is tried with; a multiple of every page.
const BYTES: u64 = 2 << 20;

/// By what a processor could map a GPU's memory, each tried on its own: `Err` says why not. Nothing stays mapped. Rings lie
/// in page-locked host memory whatever this finds; it says whether another place would be possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMapping {
    /// gdrcopy's device file can be opened.
    pub gdrcopy: Result<(), String>,
    /// A dma-buf of the GPU's memory was mapped.
    pub dma_buf: Result<(), String>,
    /// Vulkan's loader can be opened. (Whether its memory could be mapped, and imported into CUDA, is not tried.)
    pub vulkan: Result<(), String>,
}

impl CpuMapping {
    /// Tries all three. Allocates 2 MiB of the device for a moment.
    #[must_use]
    pub fn probe(device: &CudaDevice) -> CpuMapping {
        let opened = OpenOptions::new().read(true).write(true).open(GDRCOPY);
        CpuMapping {
            gdrcopy: opened.map(drop).map_err(|error| error.to_string()),
            dma_buf: dma_buf(device),
            vulkan: vulkan(),
        }
    }

    /// The first that works.
    #[must_use]
    pub fn by(&self) -> Option<&'static str> {
        let all = [
            (&self.gdrcopy, "gdrcopy, whose device file can be opened"),
            (&self.dma_buf, "a dma-buf"),
            (&self.vulkan, "Vulkan, perhaps: its loader is there"),
        ];
        all.into_iter().find(|(works, _)| works.is_ok()).map(|(_, name)| name)
    }
}

impl fmt::Display for CpuMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.by() {
            return write!(f, "the processor may map its memory by {name}");
        }
        let why = |works: &Result<(), String>| works.clone().err().unwrap_or_default();
        write!(
            f,
            "the processor does not map its memory (gdrcopy: {}; dma-buf: {}; Vulkan: {})",
            why(&self.gdrcopy),
            why(&self.dma_buf),
            why(&self.vulkan)
        )
    }
}

fn dma_buf(device: &CudaDevice) -> Result<(), String> {
    let region = device.allocate(BYTES).map_err(|error| error.to_string())?;
    debug_assert!(matches!(region.space(), Space::Cuda { .. }));
    let tried = device.dma_buf(region).map_err(|error| error.to_string()).and_then(|fd| map(&fd));
    // SAFETY: it was allocated above, and nothing uses it: what was mapped is not any more.
    let freed = unsafe { device.free(region) };
    tried.and(freed.map_err(|error| error.to_string()))
}

/// Maps the memory behind this for a moment.
fn map(fd: &OwnedFd) -> Result<(), String> {
    let len = usize::try_from(BYTES).unwrap_or(0);
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the system chooses; no reference is made of it.
    let mapped = unsafe { mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, fd, 0) };
    let at = mapped.map_err(|error| format!("mmap: {error}"))?;
    // SAFETY: it was just mapped, and nobody else knows of it.
    unsafe { munmap(at, len) }.map_err(|error| format!("munmap: {error}"))
}

fn vulkan() -> Result<(), String> {
    // SAFETY: the name ends in NUL. Opening runs the library's initialisers, as a program that is linked to it would.
    let handle = unsafe { libc::dlopen(VULKAN.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("no {}", VULKAN.to_string_lossy()));
    }
    // It stays open: its threads may still run.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_works_is_named_or_why_none_does() {
        let no = |why: &str| Err(why.to_owned());
        let none =
            CpuMapping { gdrcopy: no("no file"), dma_buf: no("mmap"), vulkan: no("no loader") };
        assert_eq!(none.by(), None);
        assert_eq!(
            none.to_string(),
            "the processor does not map its memory (gdrcopy: no file; dma-buf: mmap; Vulkan: no loader)"
        );
        let some = CpuMapping { dma_buf: Ok(()), ..none };
        assert_eq!(some.to_string(), "the processor may map its memory by a dma-buf");
        let both = CpuMapping { gdrcopy: Ok(()), ..some };
        assert_eq!(both.by(), Some("gdrcopy, whose device file can be opened"));
    }

    #[test]
    fn what_is_no_memory_of_a_gpu_is_not_mapped() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = map(&OwnedFd::from(file)).unwrap_err();
        assert!(error.starts_with("mmap: "), "{error}");
    }
}
