//! Where the simulation computes: kernels by name, with arguments, and memory for them.

use crate::Failure;
use crate::host::Host;
use crate::population::{CLOSENESS, KINDS, SLOTS};
use gapless::{Device, DeviceBuf, Region, Space, World};
use gapless_mem::HostDevice;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A kernel of `kernels.cl-cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Fill,
    Pack,
    Visits,
    Crowd,
    Doses,
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 5] =
        [Kernel::Fill, Kernel::Pack, Kernel::Visits, Kernel::Crowd, Kernel::Doses];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Fill => "fill",
            Kernel::Pack => "pack",
            Kernel::Visits => "visits",
            Kernel::Crowd => "crowd",
            Kernel::Doses => "doses",
        }
    }
}

/// What a kernel's parameter gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// Memory, from its beginning.
    Memory(Region),
    Word(u32),
}

/// What runs kernels, one after the other.
pub(crate) trait Compute {
    /// What copies from and to its memory.
    fn device(&self) -> &Arc<dyn Device>;

    /// Starts a kernel for so many items, behind those that were started before.
    ///
    /// # Safety
    /// The arguments are those of the kernel's parameters, in their order, and with them it stays inside the memory;
    /// nothing else touches that until [`finish`](Compute::finish) has returned.
    unsafe fn launch(
        &self,
        kernel: Kernel,
        items: u32,
        arguments: &[Argument],
    ) -> Result<(), Failure>;

    /// Waits for all kernels.
    fn finish(&self) -> Result<(), Failure>;
}

/// Where the simulation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// On the CPU, in memory of the host.
    Host,
    /// On a CUDA device.
    Cuda,
    /// On an OpenCL device.
    OpenCl,
}

/// A device that a thread has opened, as this rank.
type Opened = (DeviceKind, u32, Rc<dyn Compute>);

thread_local! {
    static OPEN: RefCell<Vec<Opened>> = const { RefCell::new(Vec::new()) };
}

impl DeviceKind {
    /// What a rank computes with. Of several devices ranks take one each in turn. What a thread has opened stays open
    /// as long as the thread runs, so that the next simulation has its context, its kernels, and what the library knows
    /// of them.
    pub(crate) fn open(self, rank: u32) -> Result<Rc<dyn Compute>, Failure> {
        let known = OPEN.with_borrow(|open| {
            let mut known = open.iter().filter(|(kind, of, _)| (*kind, *of) == (self, rank));
            known.next().map(|(_, _, compute)| Rc::clone(compute))
        });
        if let Some(compute) = known {
            return Ok(compute);
        }
        let compute: Rc<dyn Compute> = match self {
            DeviceKind::Host => Rc::new(Host::new()),
            DeviceKind::Cuda => Rc::new(crate::cuda::Cuda::open(rank)?),
            DeviceKind::OpenCl => Rc::new(crate::opencl::OpenCl::open(rank)?),
        };
        OPEN.with_borrow_mut(|open| open.push((self, rank, Rc::clone(&compute))));
        Ok(compute)
    }
}

/// The kernels' source, of either language.
pub(crate) fn source() -> String {
    let closeness = CLOSENESS.map(|close| close.to_string()).join(", ");
    let defines = format!(
        "#define SLOTS {SLOTS}u\n#define KINDS {KINDS}\n#define CLOSENESS {{{closeness}}}\n"
    );
    defines + include_str!("kernels.cl-cu")
}

/// A page of the host, in bytes.
const PAGE: u64 = 4096;

/// Memory of words.
pub(crate) struct Buffer {
    region: Region,
    memory: Owner,
}

enum Owner {
    Device {
        _memory: DeviceBuf,
    },
    /// Peers may map it.
    Shared {
        _memory: gapless::SharedBuf,
    },
    /// Of the host, page-locked for a device if there is one.
    Host {
        whole: Region,
        locked: Option<Arc<dyn Device>>,
    },
}

impl Buffer {
    /// Memory that the kernels use.
    pub(crate) fn of_kernels(
        world: &World,
        compute: &dyn Compute,
        words: usize,
    ) -> Result<Buffer, Failure> {
        match compute.device().space() {
            Space::Host => Buffer::of_host(None, words),
            space => {
                let memory = world.alloc_device(space, 4 * words as u64)?;
                Ok(Buffer { region: memory.region(), memory: Owner::Device { _memory: memory } })
            }
        }
    }

    /// Memory of the host that messages leave from: peers map it.
    pub(crate) fn shared(world: &World, words: usize) -> Result<Buffer, Failure> {
        let memory = world.alloc(4 * words)?;
        Ok(Buffer { region: memory.region(), memory: Owner::Shared { _memory: memory } })
    }

    /// Zeroed memory of the host, page-locked for the device that copies from it.
    pub(crate) fn of_host(
        locked: Option<&Arc<dyn Device>>,
        words: usize,
    ) -> Result<Buffer, Failure> {
        let bytes = (4 * words as u64).next_multiple_of(PAGE);
        // Whole pages are page-locked, and nothing else lies on them.
        let whole = HostDevice::new().allocate(bytes + PAGE)?;
        let pages = whole.sub(whole.start().next_multiple_of(PAGE) - whole.start(), bytes)?;
        let mut buffer = Buffer { region: pages, memory: Owner::Host { whole, locked: None } };
        if let Some(device) = locked {
            // SAFETY: dropping the buffer unregisters the pages before it frees them.
            unsafe { device.register(pages) }?;
            buffer.memory = Owner::Host { whole, locked: Some(Arc::clone(device)) };
        }
        Ok(buffer)
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// A part of it: so many words, from this one on.
    pub(crate) fn part(&self, at: usize, words: usize) -> Result<Region, Failure> {
        Ok(self.region.sub(4 * at as u64, 4 * words as u64)?)
    }

    /// The words, of memory of the host.
    ///
    /// # Safety
    /// Nothing else uses them: no message, no copy, and no kernel.
    pub(crate) unsafe fn words(&mut self) -> &mut [u32] {
        // SAFETY: the memory is this buffer's, and zeroed at first; the caller vouches for the rest.
        unsafe { words(self.region) }
    }
}

/// The words of a region of the host.
///
/// # Safety
/// The memory lives as long as the slice, begins at a word, holds initialised bytes, and nothing else uses it.
///
/// # Panics
/// It is not of the host.
pub(crate) unsafe fn words<'a>(region: Region) -> &'a mut [u32] {
    let first = region.as_ptr().expect("memory of the host").cast::<u32>();
    // SAFETY: the region is so many bytes; the caller vouches for the rest.
    unsafe { std::slice::from_raw_parts_mut(first, region.len() as usize / 4) }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Owner::Host { whole, locked } = &self.memory else { return };
        if let Some(device) = locked {
            // SAFETY: it was registered with this device, and whoever started work on it has waited for it.
            if let Err(error) = unsafe { device.unregister(self.region) } {
                eprintln!("episim: a device still knows a buffer, which is never freed: {error}");
                return;
            }
        }
        // SAFETY: `of_host` allocated it, and nothing uses it any more.
        let freed = unsafe { HostDevice::new().free(*whole) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

/// Copies, and waits for it.
///
/// # Safety
/// Nothing else uses either memory meanwhile.
pub(crate) unsafe fn copy(compute: &dyn Compute, to: Region, from: Region) -> Result<(), Failure> {
    // SAFETY: the caller's promise, until the wait has ended.
    Ok(unsafe { compute.device().copy(to, from, &[]) }?.wait()?)
}

/// The bytes of words, as memory to be copied from.
pub(crate) fn bytes(words: &[u32]) -> Region {
    Region::new(Space::Host, words.as_ptr().expose_provenance() as u64, 0, 4 * words.len() as u64)
}

/// The same, to be copied into.
pub(crate) fn bytes_mut(words: &mut [u32]) -> Region {
    let len = 4 * words.len() as u64;
    Region::new(Space::Host, words.as_mut_ptr().expose_provenance() as u64, 0, len)
}
