//! Send modes (MPI 4.1 §3.4), and the copies that the buffered one makes.
//!
//! ```text
//! sender                                receiver
//!   | EAGER(synchronous, serial, data) --> | matched
//!   | <----------------------- FIN(eager) -|
//!   | complete                             |
//!
//!   | EAGER(ready, data) ----------------> | nobody waits: the receive that takes it hears of it
//!   | complete                             |
//!
//!   | RTS(ready) ------------------------> | nobody waits: both ends hear of it
//!   | <------------------- FIN(not ready) -|
//!   | ends with NotReady                   | so does the receive that takes it
//! ```
//!
//! A rendezvous is always synchronous: its answer proves the match.

use crate::drive::core::Core;
use crate::error::PmlError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What each message takes of an attached buffer besides its data, in bytes
/// (`MPI_BSEND_OVERHEAD`).
pub const BUFFERED_OVERHEAD: u64 = 96;

/// Room for copies, set aside by the user.
#[derive(Debug)]
pub(crate) struct Attached {
    limit: u64,
    used: Arc<AtomicU64>,
}

impl Attached {
    pub(crate) fn new(limit: u64) -> Attached {
        Attached { limit, used: Arc::default() }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Changes the limit. Copies stay, also if they take more.
    pub(crate) fn resize(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether a copy of a message lies in this room.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }
}

/// A copy of a message's data. It lives in its send.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) _bytes: Vec<u8>,
    /// What the copy takes of the attached buffer, if it counts there.
    pub(crate) _share: Option<Share>,
}

/// A part of the attached buffer; a drop gives the part back.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Core {
    /// Takes room for a message of `bytes` from the attached buffer.
    pub(crate) fn take_share(&self, bytes: u64) -> Result<Share, PmlError> {
        let wanted = bytes.saturating_add(BUFFERED_OVERHEAD);
        let Some(Attached { limit, used }) = &self.attached else {
            return Err(PmlError::BufferExhausted { wanted, free: 0, attached: 0 });
        };
        let free = limit.saturating_sub(used.load(Ordering::Relaxed));
        if wanted > free {
            return Err(PmlError::BufferExhausted { wanted, free, attached: *limit });
        }
        used.fetch_add(wanted, Ordering::Relaxed);
        Ok(Share { bytes: wanted, used: Arc::clone(used) })
    }
}
