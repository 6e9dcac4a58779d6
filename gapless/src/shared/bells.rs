//! What wakes threads of this process that sleep for the sake of a world.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// An event descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    fn new() -> Result<Bell, Error> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let failed = |e: rustix::io::Errno| e.to_string();
        made.map(|fd| Bell(Arc::new(fd)))
            .map_err(|e| Error::System { operation: "eventfd", reason: failed(e) })
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// The ring is over.
    pub(crate) fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The bells of a world.
#[derive(Clone, Debug)]
pub(crate) struct Bells {
    /// Readable when those who sleep on it should check again.
    pub(crate) alarm: Bell,
    /// Rung for the progress thread.
    pub(crate) nudge: Bell,
}

impl Bells {
    /// # Errors
    /// The system gives no descriptor.
    pub(crate) fn new() -> Result<Bells, Error> {
        Ok(Bells { alarm: Bell::new()?, nudge: Bell::new()? })
    }
}
