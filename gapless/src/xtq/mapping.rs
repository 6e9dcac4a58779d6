//! Whether a processor of this machine can map the memory of its GPUs: then slots of rings can lie there, where a worker
//! finds a put without looking over the bus ([`Builder::mapper`](crate::Builder::mapper)).

use gapless_mem::{Device, Space};
use gapless_mem_cuda::{CudaDevice, ProcessorMapper};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;

/// The device file of gdrcopy's kernel module.
const GDRCOPY: &str = "/dev/gdrdrv";
/// What is tried with; a multiple of every page.
const BYTES: u64 = 2 << 20;

/// By what a processor could map a GPU's memory, each tried on its own: `Err` says why not. Nothing stays mapped. Rings use
/// Vulkan alone; on no machine that was tried did one of the others work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMapping {
    /// gdrcopy's device file can be opened.
    pub gdrcopy: Result<(), String>,
    /// A dma-buf of the GPU's memory was mapped.
    pub dma_buf: Result<(), String>,
    /// The library by which Vulkan knows the GPU, and has memory there that the processor sees.
    pub vulkan: Result<&'static str, String>,
}

impl CpuMapping {
    /// Tries all three. Allocates 2 MiB of the device for a moment; Vulkan takes some tenths of a second.
    #[must_use]
    pub fn probe(device: &CudaDevice) -> CpuMapping {
        let opened = OpenOptions::new().read(true).write(true).open(GDRCOPY);
        CpuMapping {
            gdrcopy: opened.map(drop).map_err(|error| error.to_string()),
            dma_buf: dma_buf(device),
            vulkan: ProcessorMapper::new().probe(device.uuid()),
        }
    }

    /// What rings can use: the library of Vulkan's.
    #[must_use]
    pub fn by(&self) -> Option<&'static str> {
        self.vulkan.as_ref().ok().copied()
    }
}

impl fmt::Display for CpuMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(library) = self.by() {
            return write!(f, "the processor can map its memory by Vulkan ({library})");
        }
        let says = |works: &Result<(), String>| match works {
            Ok(()) => "would do, and is not used".to_owned(),
            Err(why) => why.clone(),
        };
        write!(
            f,
            "the processor does not map its memory (gdrcopy: {}; dma-buf: {}; Vulkan: {})",
            says(&self.gdrcopy),
            says(&self.dma_buf),
            self.vulkan.as_ref().err().map_or("", String::as_str)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rings_use_is_named_or_why_they_use_nothing() {
        let no = |why: &str| Err(why.to_owned());
        let vulkan = Err("no library".to_owned());
        let none = CpuMapping { gdrcopy: no("no file"), dma_buf: no("mmap"), vulkan };
        assert_eq!(none.by(), None);
        assert_eq!(
            none.to_string(),
            "the processor does not map its memory (gdrcopy: no file; dma-buf: mmap; Vulkan: no library)"
        );
        let other = CpuMapping { dma_buf: Ok(()), ..none };
        assert_eq!(
            other.to_string(),
            "the processor does not map its memory \
             (gdrcopy: no file; dma-buf: would do, and is not used; Vulkan: no library)"
        );
        let some = CpuMapping { vulkan: Ok("libvulkan.so.1"), ..other };
        assert_eq!(some.to_string(), "the processor can map its memory by Vulkan (libvulkan.so.1)");
    }

    #[test]
    fn what_is_no_memory_of_a_gpu_is_not_mapped() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = map(&OwnedFd::from(file)).unwrap_err();
        assert!(error.starts_with("mmap: "), "{error}");
    }
}
