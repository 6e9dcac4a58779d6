//! For tests of what uses devices (feature `testkit`): a device that asks a function before each call, and work that
//! tests end.

mod work;

pub use work::{Hand, pretended};

use crate::{
    Abilities, Completion, Device, DeviceError, DeviceProperties, Export, PciAddress, Region, Space,
};
use std::fmt;
use std::sync::Arc;

/// What a device is about to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Device::allocate`].
    Allocate(u64),
    /// [`Device::free`].
    Free(Region),
    /// [`Device::copy`] or [`Device::copy_2d`], into this region.
    Copy(Region),
    /// [`Device::register`].
    Register(Region),
    /// [`Device::unregister`].
    Unregister(Region),
    /// [`Device::export`].
    Export(Region),
    /// [`Device::import`].
    Import,
    /// [`Device::release`].
    Release(Region),
    /// [`Device::import_completion`].
    ImportCompletion,
}

/// The device `device`, whose calls `before` hears of first, and may refuse.
///
/// ```
/// use gapless_mem::fake::FakeDevice;
/// use gapless_mem::testkit::{Call, Wrapped};
/// use gapless_mem::{Device, DeviceError};
/// use std::sync::Arc;
///
/// let what = "sharing its memory";
/// let device = Wrapped::new(Arc::new(FakeDevice::new(0)), move |call| match call {
///     Call::Export(_) => Err(DeviceError::Unsupported { what }),
///     _ => Ok(()),
/// });
/// let memory = device.allocate(64)?;
/// assert!(device.export(memory).is_err());
/// # Ok::<(), DeviceError>(())
/// ```
pub struct Wrapped<F> {
    device: Arc<dyn Device>,
    before: F,
    around: Option<Box<Around>>,
}

/// Starts a copy after the completions that it is given.
pub type StartCopy<'a> = &'a mut dyn FnMut(&[Completion]) -> Result<Completion, DeviceError>;

/// Starts a copy that is to come after some completions, and answers for it.
type Around = dyn Fn(&[Completion], StartCopy<'_>) -> Result<Completion, DeviceError> + Send + Sync;

impl<F: Fn(Call) -> Result<(), DeviceError> + Send + Sync> Wrapped<F> {
    /// Wraps `device`.
    pub fn new(device: Arc<dyn Device>, before: F) -> Wrapped<F> {
        Wrapped { device, before, around: None }
    }

    /// Has `around` start all copies: it may change what they come after, and how their ends are told.
    ///
    /// # Safety
    /// A completion that `around` returns does not end before its copy, and what it starts the copy after does not
    /// end before what it was given.
    #[must_use]
    pub unsafe fn around_copies(
        self,
        around: impl Fn(&[Completion], StartCopy<'_>) -> Result<Completion, DeviceError>
        + Send
        + Sync
        + 'static,
    ) -> Wrapped<F> {
        Wrapped { around: Some(Box::new(around)), ..self }
    }

    fn copied(
        &self,
        dst: Region,
        after: &[Completion],
        start: StartCopy<'_>,
    ) -> Result<Completion, DeviceError> {
        (self.before)(Call::Copy(dst))?;
        match &self.around {
            Some(around) => around(after, start),
            None => start(after),
        }
    }
}

impl<F> fmt::Debug for Wrapped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wrapped").field(self.device.properties()).finish()
    }
}

// SAFETY: a call is refused before it has started anything, or the wrapped device, which keeps the contract, answers it.
// `around` tells the end of a copy; whoever gave it has promised that it is not too early.
unsafe impl<F: Fn(Call) -> Result<(), DeviceError> + Send + Sync> Device for Wrapped<F> {
    fn properties(&self) -> &DeviceProperties {
        self.device.properties()
    }

    fn space(&self) -> Space {
        self.device.space()
    }

    fn reaches(&self, space: Space) -> bool {
        self.device.reaches(space)
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        (self.before)(Call::Allocate(len))?;
        self.device.allocate(len)
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        (self.before)(Call::Free(region))?;
        // SAFETY: the caller's promise.
        unsafe { self.device.free(region) }
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: the caller's promise; what comes first is as late as what the caller named (`around_copies`).
        let mut start = |after: &[Completion]| unsafe { self.device.copy(dst, src, after) };
        self.copied(dst, after, &mut start)
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
        let mut start = |after: &[Completion]| {
            // SAFETY: as in `copy`.
            unsafe { self.device.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, after) }
        };
        self.copied(dst, after, &mut start)
    }

    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        (self.before)(Call::Register(host))?;
        // SAFETY: the caller's promise.
        unsafe { self.device.register(host) }
    }

    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        (self.before)(Call::Unregister(host))?;
        // SAFETY: the caller's promise.
        unsafe { self.device.unregister(host) }
    }

    fn finish(&self) -> bool {
        self.device.finish()
    }

    fn export(&self, region: Region) -> Result<Export, DeviceError> {
        (self.before)(Call::Export(region))?;
        self.device.export(region)
    }

    fn import(&self, export: Export) -> Result<Region, DeviceError> {
        (self.before)(Call::Import)?;
        self.device.import(export)
    }

    unsafe fn release(&self, region: Region) -> Result<(), DeviceError> {
        (self.before)(Call::Release(region))?;
        // SAFETY: the caller's promise.
        unsafe { self.device.release(region) }
    }

    fn import_completion(&self, bytes: &[u8]) -> Result<Completion, DeviceError> {
        (self.before)(Call::ImportCompletion)?;
        self.device.import_completion(bytes)
    }

    fn abilities(&self) -> Abilities {
        self.device.abilities()
    }

    fn identity(&self) -> Option<u128> {
        self.device.identity()
    }

    fn pci_address(&self) -> Option<PciAddress> {
        self.device.pci_address()
    }

    fn takes_turns(&self) -> bool {
        self.device.takes_turns()
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        self.device.buffer_id(region)
    }

    fn allocation(&self, region: Region) -> Option<Region> {
        self.device.allocation(region)
    }

    fn locate(&self, address: u64) -> Option<Space> {
        self.device.locate(address)
    }
}
