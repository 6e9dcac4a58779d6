//! What the owner of a memory can do with it. Implement this to teach Gapless a new accelerator.

use crate::{Completion, OutOfRange, PciAddress, Region, Space};
use std::num::NonZeroU8;
use std::os::fd::OwnedFd;
use thiserror::Error;

/// Why a device refused or failed. The message names what was asked and who refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device cannot do this at all.
    #[error("{what} is not something this device can do")]
    Unsupported {
        /// The ability that is missing.
        what: &'static str,
    },
    /// A region was given that lies in a space the device does not serve.
    #[error("{device} cannot work on memory in {space}")]
    WrongSpace {
        /// The device's name.
        device: String,
        /// The space of the region that was given.
        space: Space,
    },
    /// Memory in a space that the device serves, of an allocation that its kernels may not use: of another device's
    /// pool, say, or mapped for another device alone.
    #[error(
        "{device} may not use the allocation at {address:#x} in {space}: it was not given access \
         (cuMemPoolSetAccess, cuMemSetAccess)"
    )]
    OutOfReach {
        /// The device's name.
        device: String,
        /// An address in the allocation.
        address: u64,
        /// The allocation's space.
        space: Space,
    },
    /// There is not enough memory.
    #[error("{device} has no {len} bytes to give: {reason}")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        len: u64,
        /// The underlying reason.
        reason: String,
    },
    /// A length or offset does not fit.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Source and destination have different lengths.
    #[error("a copy of {src_len} bytes into {dst_len} bytes")]
    LengthMismatch {
        /// Bytes of the source.
        src_len: u64,
        /// Bytes of the destination.
        dst_len: u64,
    },
    /// The driver or the operating system failed.
    #[error("{device}: {operation} failed: {reason}")]
    Failed {
        /// The device's name.
        device: String,
        /// The call that failed.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// An index in memory of the device leads outside the memory that it counts pages of. That page was not touched;
    /// others may have been moved.
    #[error(
        "the index at position {position} of the {side}'s pages is above {last}, the last inside the memory: that page \
         was not moved"
    )]
    PageOutside {
        /// Whose index: of the source or the target.
        side: &'static str,
        /// The first position of such an index in the list.
        position: u64,
        /// The largest index inside the memory.
        last: u64,
    },
    /// Code for the device cannot be linked.
    #[error("device code cannot be linked: {}", log.lines().next().unwrap_or_default())]
    Link {
        /// All that the linker said.
        log: String,
    },
}

/// Memory made known to another process: bytes, and descriptors where the device needs them.
#[derive(Debug)]
pub struct Export {
    /// What travels as bytes.
    pub bytes: Vec<u8>,
    /// What travels as descriptors (VMM handles, memfds).
    pub descriptors: Vec<OwnedFd>,
}

/// Memory of a device, as adapters of networks reach it by themselves.
#[derive(Debug)]
pub struct DmaBuf {
    /// A dma-buf, which keeps the memory's pages.
    pub descriptor: OwnedFd,
    /// Where in it the region begins, in bytes.
    pub offset: u64,
}

/// What a device is, in numbers that policies need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The vendor's name for it.
    pub name: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its last-level cache in bytes; 0 if unknown.
    pub cache_bytes: u64,
    /// Compute units (SMs); 0 if that means nothing here.
    pub compute_units: u32,
}

/// What message layers and transports may count on before they ask a device for anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Devices of other processes that answer the same number here [import](Device::import) what this one
    /// [exports](Device::export). 1 is CUDA's, 3 that of pretended devices; another crate chooses one from 128 on.
    /// `None` if it shares nothing.
    pub shares: Option<NonZeroU8>,
    /// Whether its kernels work on memory of the host that it has [registered](Device::register). If not, copies alone
    /// reach that.
    pub kernels_reach_host: bool,
}

/// A memory's owner: allocates, copies, orders, exports, imports, registers.
///
/// Object-safe. Methods take `&self` and may be called from any thread. Transports and engines see
/// `dyn Device` only; they cache what it returns.
///
/// # Safety
/// Transports, engines and message layers hand memory out, and take it back, on the strength of what a
/// device answers. So an implementation keeps these rules:
///
/// 1. [`allocate`](Device::allocate) gives memory that overlaps nothing else in use and is valid for
///    reads and writes, by whoever [reaches](Device::reaches) its space, until it is freed or the device
///    dropped.
/// 2. [`copy`](Device::copy) and [`copy_2d`](Device::copy_2d) read the bytes of `src` and write those of
///    `dst` and touch no others: not before all of `after` have ended, and not once the completion has.
///    An error means that nothing was started, or that all that was started is over.
/// 3. [`register`](Device::register) gives nobody else access to `host`. After
///    [`unregister`](Device::unregister), [`free`](Device::free) or [`release`](Device::release) the
///    device does not touch the memory any more.
/// 4. [`import`](Device::import) gives memory that is valid as in rule 1 until it is released, whatever
///    the exporting process does with its own (where the driver minds, that process keeps it); it
///    covers no more than was exported.
/// 5. What it says of memory is true: [`space`](Device::space) never changes, the space of a region that
///    it gives tells who can touch it, [`allocation`](Device::allocation) contains the region's first
///    byte and is memory of this process's, a [`buffer_id`](Device::buffer_id) is not given again after
///    the memory was freed, [`locate`](Device::locate) names the space of what lies there, and two
///    devices with one [`identity`](Device::identity) are one.
/// 6. [`import_completion`](Device::import_completion) gives work that is over no sooner than what was
///    exported, or never.
/// 7. A call that panics has started nothing, or all that it has started is over.
/// 8. [`dma_buf`](Device::dma_buf) gives a buffer in which the region lies at the offset, in full.
/// 9. Once [`finish`](Device::finish) has returned `true`, all work that had been started before the call is over.
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_mem::{Completion, Device, DeviceError, DeviceProperties, Region, Space};
/// struct Memory(DeviceProperties);
/// impl Device for Memory {
/// #   fn properties(&self) -> &DeviceProperties { &self.0 }
/// #   fn space(&self) -> Space { Space::Host }
/// #   fn reaches(&self, _: Space) -> bool { false }
///     fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
///         Ok(Region::new(Space::Host, 0x1000, 0, len)) // whatever lies there
///     }
/// #   unsafe fn free(&self, _: Region) -> Result<(), DeviceError> { Ok(()) }
/// #   unsafe fn copy(
/// #       &self, _: Region, _: Region, _: &[Completion],
/// #   ) -> Result<Completion, DeviceError> { Ok(Completion::Ready) }
/// #   unsafe fn copy_2d(
/// #       &self, _: Region, _: u64, _: Region, _: u64, _: u64, _: u64, _: &[Completion],
/// #   ) -> Result<Completion, DeviceError> { Ok(Completion::Ready) }
/// }
/// ```
pub unsafe trait Device: Send + Sync {
    /// What it is.
    fn properties(&self) -> &DeviceProperties;

    /// The space that [`allocate`](Device::allocate) gives memory in.
    fn space(&self) -> Space;

    /// What it can do beside what every device does. By default nothing. It never changes.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Whether it can reach memory of this space in its own copies.
    fn reaches(&self, space: Space) -> bool;

    /// Allocates `len` bytes of its memory, aligned to at least 256 bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or the driver's failure.
    fn allocate(&self, len: u64) -> Result<Region, DeviceError>;

    /// Frees what [`allocate`](Device::allocate) gave.
    ///
    /// # Safety
    /// `region` came from this device's `allocate`, was not freed before, and nothing uses it, now
    /// or later, nor work in flight.
    ///
    /// # Errors
    /// The driver's failure.
    unsafe fn free(&self, region: Region) -> Result<(), DeviceError>;

    /// Copies `src` to `dst`, both of one length, in spaces it [reaches](Device::reaches), once all
    /// of `after` have ended.
    ///
    /// # Safety
    /// Both regions describe memory that stays valid until the completion, `dst` writable, `src`
    /// readable; they do not overlap; nothing else writes `src` or touches `dst` until then. Memory that is shared
    /// with another process, and that no reference covers, may be touched meanwhile: by that process, and by other
    /// work on it here. Then bytes are arbitrary, nothing worse.
    ///
    /// # Errors
    /// A space it does not reach, unequal lengths, or the driver's failure.
    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError>;

    /// Copies `rows` rows of `width` bytes; row `i` starts `i * dst_pitch` (`i * src_pitch`) bytes
    /// into `dst` (`src`).
    ///
    /// # Safety
    /// As for [`copy`](Device::copy), for every row.
    ///
    /// # Errors
    /// As for [`copy`](Device::copy); also rows that leave their region.
    #[expect(clippy::too_many_arguments, reason = "a 2-D copy has this many numbers everywhere")]
    unsafe fn copy_2d(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError>;

    /// Makes host memory reachable for the device (page-locks and maps it). To a device that registers none, memory that
    /// others have page-locked is host memory like any other.
    ///
    /// # Safety
    /// `host` stays mapped until [`unregister`](Device::unregister).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; the driver's failure.
    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        let _ = host;
        Err(DeviceError::Unsupported { what: "registering host memory" })
    }

    /// Undoes [`register`](Device::register).
    ///
    /// # Safety
    /// `host` was registered with this device and no work in flight uses it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; the driver's failure.
    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        let _ = host;
        Err(DeviceError::Unsupported { what: "registering host memory" })
    }

    /// Whether all work that was started so far has ended. `false` says nothing: ask again. It waits a moment at most,
    /// once for what it finds in flight. By default `false`: such a device stays attached to transports as long as they
    /// live.
    fn finish(&self) -> bool {
        false
    }

    /// Makes a region of its memory known to another process.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; memory of a kind that cannot be exported.
    fn export(&self, region: Region) -> Result<Export, DeviceError> {
        let _ = region;
        Err(DeviceError::Unsupported { what: "exporting memory" })
    }

    /// Maps what another process exported. Costs milliseconds on some devices: cache it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; bytes that no device of this kind made.
    fn import(&self, export: Export) -> Result<Region, DeviceError> {
        let _ = export;
        Err(DeviceError::Unsupported { what: "importing memory" })
    }

    /// Unmaps what [`import`](Device::import) gave.
    ///
    /// # Safety
    /// `region` came from this device's `import` and nothing uses it any more.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; the driver's failure.
    unsafe fn release(&self, region: Region) -> Result<(), DeviceError> {
        let _ = region;
        Err(DeviceError::Unsupported { what: "importing memory" })
    }

    /// A dma-buf that `region` of its memory lies in, for adapters of networks that read and write it without the CPU.
    /// Work that writes the region has ended before such a read begins. What an adapter has written there, and has told the
    /// CPU of, is seen by work that is started after [`settle_writes`](Device::settle_writes).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; memory of a kind that cannot be given, a device that could not tell when
    /// such writes are seen.
    fn dma_buf(&self, region: Region) -> Result<DmaBuf, DeviceError> {
        let _ = region;
        Err(DeviceError::Unsupported { what: "giving memory to adapters of networks" })
    }

    /// Waits until what adapters have written into its memory by themselves, and told the CPU of, is seen by work that is
    /// started from now on. Does nothing, as by default, where that is so anyway.
    ///
    /// # Errors
    /// The driver's failure.
    fn settle_writes(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The completion that another process exported with
    /// [`Pending::export`](crate::Pending::export). If that process dies it may never end.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by default; bytes that no device of this kind made.
    fn import_completion(&self, bytes: &[u8]) -> Result<Completion, DeviceError> {
        let _ = bytes;
        Err(DeviceError::Unsupported { what: "importing a completion" })
    }

    /// Which physical device it is, by a number that all processes of the host agree on; `None`
    /// where the device cannot tell.
    fn identity(&self) -> Option<u128> {
        None
    }

    /// Where it is on the host's buses; `None` where the device cannot tell. Adapters of networks that are near it are
    /// preferred.
    fn pci_address(&self) -> Option<PciAddress> {
        None
    }

    /// Whether processes that use it at the same time take turns, instead of sharing it: then work of
    /// this process may wait until another's has ended.
    fn takes_turns(&self) -> bool {
        false
    }

    /// A number that changes when memory at an address is freed and allocated anew; `None` where
    /// the device has no such thing.
    fn buffer_id(&self, region: Region) -> Option<u64> {
        let _ = region;
        None
    }

    /// The whole allocation that the first byte of `region` lies in; `None` where the device does
    /// not know. Transports export it whole, once, whichever parts of it are asked for.
    fn allocation(&self, region: Region) -> Option<Region> {
        let _ = region;
        None
    }

    /// The space that an address of the user's lies in, if this device knows the address: asked of devices that programs
    /// have handed over, where nothing else tells what memory a pointer leads to.
    fn locate(&self, address: u64) -> Option<Space> {
        let _ = address;
        None
    }
}
