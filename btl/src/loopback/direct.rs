//! Memory of devices that this transport reads and writes by itself, as an adapter does (GPUDirect): through the dma-buf
//! that the device gives for it. Here that is a file which the memory lies in, and is read and written as one. What is no
//! such file (a driver's own dma-buf) is refused by the system.

use super::Loopback;
use crate::RdmaError;
use gapless_mem::{Device, DeviceError, OutOfRange, Region, Space};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Memory that operations work on, and how.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) region: Region,
    /// The file that a device's memory lies in, and where in it. `None`: the CPU reaches it.
    file: Option<(Arc<File>, u64)>,
}

impl Reach {
    /// The `len` bytes from `offset` on.
    pub(super) fn sub(&self, offset: u64, len: u64) -> Result<Reach, OutOfRange> {
        let region = self.region.sub(offset, len)?;
        let file = self.file.as_ref().map(|(file, at)| (Arc::clone(file), at + offset));
        Ok(Reach { region, file })
    }

    /// Copies `from` to `to`, which have one length.
    ///
    /// # Safety
    /// Until this returns, `from` is valid for reads and `to` for writes, which nothing else touches.
    ///
    /// # Errors
    /// The system refuses to read or write a file.
    pub(super) unsafe fn copy(to: &Reach, from: &Reach) -> Result<(), DeviceError> {
        let mut bytes = match (&to.file, &from.file) {
            // SAFETY: the caller's promise.
            (None, None) => return unsafe { gapless_mem::copy(&to.region, &from.region) },
            _ => vec![0; usize::try_from(from.region.len()).unwrap_or(usize::MAX)],
        };
        match &from.file {
            Some((file, at)) => file.read_exact_at(&mut bytes, *at).map_err(failed("reading"))?,
            // SAFETY: the caller's promise.
            None => unsafe { gapless_mem::read(&from.region, 0, &mut bytes) }?,
        }
        match &to.file {
            Some((file, at)) => file.write_all_at(&bytes, *at).map_err(failed("writing")),
            // SAFETY: the caller's promise.
            None => unsafe { gapless_mem::write(&to.region, 0, &bytes) },
        }
    }
}

fn failed(operation: &'static str) -> impl Fn(std::io::Error) -> DeviceError {
    move |error| DeviceError::Failed {
        device: "loopback".to_owned(),
        operation,
        reason: error.to_string(),
    }
}

impl Loopback {
    /// The device whose memory this space is, if such memory is reached.
    pub(super) fn reached(&self, space: Space) -> Option<&Arc<dyn Device>> {
        let mut devices = self.devices.iter().filter(|_| self.config.direct);
        devices.find(|device| device.space() == space && !space.cpu_accessible())
    }

    /// How memory is reached.
    pub(super) fn reach(&self, region: Region) -> Result<Reach, RdmaError> {
        if region.space().cpu_accessible() {
            return Ok(Reach { region, file: None });
        }
        let device = self.reached(region.space()).ok_or_else(|| {
            let device = "loopback".to_owned();
            DeviceError::WrongSpace { device, space: region.space() }
        })?;
        let buffer = device.dma_buf(region)?;
        let file = Some((Arc::new(File::from(buffer.descriptor)), buffer.offset));
        Ok(Reach { region, file })
    }
}
