//! What a rank gives to a window: memory of the host or of a device, and the lock.

use crate::device::{DeviceExposure, DeviceMemory};
use crate::header::Header;
use gapless_mem::{Atomics, Lease, Region};

/// Memory of a window, and its lock.
#[derive(Clone, Debug)]
pub struct Exposure {
    pub(crate) memory: Atomics,
    pub(crate) header: Header,
}

impl Exposure {
    /// Memory of which this process knows that it is a window's: its own, or a peer's that it has mapped.
    #[must_use]
    pub fn new(memory: Atomics, header: Header) -> Exposure {
        Exposure { memory, header }
    }

    /// Bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }

    /// Where the memory is in this process.
    #[must_use]
    pub fn region(&self) -> Region {
        self.memory.lease().region()
    }
}

/// What a rank gives to a window.
#[derive(Clone, Debug)]
pub enum WindowPart {
    /// Memory of the host.
    Host(Exposure),
    /// Memory of a device.
    Device(DeviceExposure),
}

impl From<Exposure> for WindowPart {
    fn from(host: Exposure) -> WindowPart {
        WindowPart::Host(host)
    }
}

impl From<DeviceExposure> for WindowPart {
    fn from(device: DeviceExposure) -> WindowPart {
        WindowPart::Device(device)
    }
}

impl WindowPart {
    /// Bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            WindowPart::Host(exposure) => exposure.bytes(),
            WindowPart::Device(exposure) => exposure.bytes(),
        }
    }

    /// The memory, and what keeps it.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        match self {
            WindowPart::Host(exposure) => exposure.memory.lease(),
            WindowPart::Device(exposure) => exposure.memory.lease(),
        }
    }

    pub(crate) fn memory(&self) -> Near<'_> {
        match self {
            WindowPart::Host(exposure) => Near::Host(&exposure.memory),
            WindowPart::Device(exposure) => Near::Device(&exposure.memory),
        }
    }

    /// The lock.
    pub(crate) fn header(&self) -> &Header {
        match self {
            WindowPart::Host(exposure) => &exposure.header,
            WindowPart::Device(exposure) => &exposure.header,
        }
    }
}

/// Memory of a window, as this process reaches it.
pub(crate) enum Near<'w> {
    Host(&'w Atomics),
    Device(&'w DeviceMemory),
}
