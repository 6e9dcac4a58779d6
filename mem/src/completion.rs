//! The one currency of asynchronous work: every engine and device call takes what it must come
//! `after` and returns a [`Completion`].

use crate::DeviceError;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Work in flight on some device; implemented by devices.
pub trait Pending: Send + Sync {
    /// Whether the work has ended. Never blocks.
    ///
    /// # Errors
    /// The work failed; asking again gives the same error.
    fn poll(&self) -> Result<bool, DeviceError>;

    /// Whether it is known without asking the device that the work is over, well or not: because
    /// [`poll`](Pending::poll) has found it. `false` is always right.
    fn is_known_over(&self) -> bool {
        false
    }

    /// The implementation's own type, so that its device can order streams without the CPU.
    fn as_any(&self) -> &dyn Any;

    /// Bytes that another process can turn into the same completion, where the device can.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where it cannot.
    fn export(&self) -> Result<Vec<u8>, DeviceError> {
        Err(DeviceError::Unsupported { what: "exporting a completion" })
    }
}

/// The end of one piece of asynchronous work. Cheap to clone.
#[derive(Clone, Default)]
pub enum Completion {
    /// Nothing is outstanding.
    #[default]
    Ready,
    /// A device is still working.
    Pending(Arc<dyn Pending>),
}

impl Completion {
    /// Whether the work has ended. Never blocks.
    ///
    /// # Errors
    /// The work failed.
    pub fn poll(&self) -> Result<bool, DeviceError> {
        match self {
            Completion::Ready => Ok(true),
            Completion::Pending(work) => work.poll(),
        }
    }

    /// Whether it is known without asking the device that the work is over, well or not. A guess on the
    /// side of `false`, for those who would rather not ask.
    #[must_use]
    pub fn is_known_over(&self) -> bool {
        match self {
            Completion::Ready => true,
            Completion::Pending(work) => work.is_known_over(),
        }
    }

    /// Yields the processor until the work has ended: for tests and set-up, not for progress loops.
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(&self) -> Result<(), DeviceError> {
        while !self.poll()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Ready => "Ready",
            Completion::Pending(_) => "Pending",
        })
    }
}
