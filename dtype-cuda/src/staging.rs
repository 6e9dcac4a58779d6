//! Host memory that plans are written into before they are uploaded: rings of a few pieces.
//!
//! A ring belongs to one preparation at a time and goes back to the engine afterwards. A piece is used
//! again once its upload has ended; so a preparation writes one piece while others are on their way. Units:
//! bytes.

use crate::accelerator::Accelerator;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Region};
#[cfg(feature = "cuda")]
use gapless_mem_cuda::PinnedBuffer;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces of a ring: one is written, the others are uploaded.
const PIECES: usize = 4;

/// Rings that are kept; more exist only while as many threads prepare.
const KEPT: usize = 2;

/// Host memory of ours.
pub(crate) enum HostMemory {
    /// Page-locked.
    #[cfg(feature = "cuda")]
    Pinned(PinnedBuffer),
    /// Ordinary.
    #[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "CUDA's is page-locked"))]
    Plain(Box<[u8]>),
}

/// A part of a ring.
pub(crate) struct Piece {
    memory: HostMemory,
    /// The upload that used it last.
    busy: Completion,
}

/// Pieces in turn.
pub(crate) struct Ring {
    pieces: Vec<Piece>,
    next: usize,
}

/// Rings that nobody uses.
pub(crate) struct Rings {
    idle: Mutex<Vec<Ring>>,
    piece_bytes: usize,
}

impl HostMemory {
    fn region(&mut self) -> Region {
        match self {
            #[cfg(feature = "cuda")]
            HostMemory::Pinned(buffer) => buffer.region(),
            HostMemory::Plain(bytes) => Region::of_mut(bytes),
        }
    }
}

impl Piece {
    /// The piece, for uploads.
    pub(crate) fn region(&mut self) -> Region {
        self.memory.region()
    }

    /// The piece, for writing. No upload of it is in flight.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        debug_assert!(matches!(self.busy, Completion::Ready), "`Ring::next` has waited");
        match &mut self.memory {
            #[cfg(feature = "cuda")]
            HostMemory::Pinned(buffer) => pinned_bytes(buffer),
            HostMemory::Plain(bytes) => bytes,
        }
    }

    /// Until `upload` has ended, the piece is not written again.
    pub(crate) fn used_by(&mut self, upload: Completion) {
        self.busy = upload;
    }
}

#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "writes page-locked memory by address")]
fn pinned_bytes(buffer: &mut PinnedBuffer) -> &mut [u8] {
    let region = buffer.region();
    let Some(pointer) = region.as_ptr() else { return &mut [] };
    let len = usize::try_from(region.len()).unwrap_or(0);
    // SAFETY: the buffer owns `len` bytes of page-locked memory at `pointer` and lends them exclusively. They
    // are initialised: the system zeroes pages before a process sees them, and what is used again was
    // written by its last user. The device's reads of them have ended (`Piece::bytes`).
    unsafe { std::slice::from_raw_parts_mut(pointer, len) }
}

impl Ring {
    /// The next piece, once its last upload has ended.
    ///
    /// # Errors
    /// That upload failed: the device's error, which later work would get as well.
    pub(crate) fn next(&mut self) -> Result<&mut Piece, EngineError> {
        let number = self.next;
        self.next = (number + 1) % self.pieces.len();
        let piece = &mut self.pieces[number];
        piece.busy.wait()?;
        piece.busy = Completion::Ready;
        Ok(piece)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for piece in self.pieces.drain(..) {
            if !matches!(piece.busy.poll(), Ok(false)) {
                continue;
            }
            match piece.memory {
                #[cfg(feature = "cuda")]
                HostMemory::Pinned(buffer) => buffer.give_back_after(piece.busy),
                // The device still reads it. Uploads end soon or with the device.
                HostMemory::Plain(_) => {
                    let _ = piece.busy.wait();
                }
            }
        }
    }
}

impl Rings {
    pub(crate) fn new(piece_bytes: usize) -> Rings {
        Rings { idle: Mutex::default(), piece_bytes }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring: one that is idle, or a new one.
    pub(crate) fn take(&self, device: &dyn Accelerator) -> Result<Ring, EngineError> {
        if let Some(ring) = self.idle().pop() {
            return Ok(ring);
        }
        let piece = |_| {
            let memory = device.staging(self.piece_bytes)?;
            Ok(Piece { memory, busy: Completion::Ready })
        };
        let pieces = (0..PIECES).map(piece).collect::<Result<_, EngineError>>()?;
        Ok(Ring { pieces, next: 0 })
    }

    /// Keeps a ring for the next who prepares.
    pub(crate) fn give(&self, ring: Ring) {
        let mut idle = self.idle();
        if idle.len() < KEPT {
            idle.push(ring);
        }
    }
}
