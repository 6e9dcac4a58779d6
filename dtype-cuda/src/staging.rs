//! Host memory that plans are written into before they are uploaded: rings of a few pieces.
//!
//! A ring belongs to one preparation at a time and goes back to the engine afterwards. A piece is used
//! again once its upload has ended; so a preparation writes some pieces while others are in flight. Units: bytes.

use crate::accelerator::Accelerator;
use gapless_engine::EngineError;
use gapless_mem::{Completion, Device, Region};
#[cfg(feature = "cuda")]
use gapless_mem_cuda::PinnedBuffer;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a ring that is dropped waits for uploads.
#[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "CUDA's memory waits in its pool"))]
const PATIENCE: Duration = Duration::from_secs(2);

/// StagingRings that are kept; more exist only while as many threads prepare.
const KEPT: usize = 2;

/// Host memory of ours.
pub(crate) enum HostMemory {
    /// Page-locked.
    #[cfg(feature = "cuda")]
    Pinned(PinnedBuffer),
    /// Of the heap.
    #[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "CUDA's is page-locked"))]
    Heap(HeapMemory),
}

/// Memory of the heap, which a device perhaps knows.
pub(crate) struct HeapMemory {
    bytes: Box<[u8]>,
    known_to: Option<Arc<dyn Device>>,
}

impl HeapMemory {
    /// Memory that no device knows.
    pub(crate) fn plain(len: usize) -> HeapMemory {
        HeapMemory { bytes: vec![0; len].into(), known_to: None }
    }

    /// Memory that is registered with `device`, if that takes it.
    #[cfg_attr(not(feature = "opencl"), allow(dead_code, reason = "CUDA's is page-locked"))]
    pub(crate) fn registered(device: Arc<dyn Device>, len: usize) -> HeapMemory {
        let mut memory = HeapMemory::plain(len);
        let region = Region::of_mut(&mut memory.bytes);
        #[allow(unsafe_code, reason = "registers memory of its own")]
        // SAFETY: the bytes stay where they are until `drop`, which unregisters them first.
        match unsafe { device.register(region) } {
            Ok(()) => memory.known_to = Some(device),
            Err(error) => tracing::debug!(%error, "plans are uploaded from ordinary memory"),
        }
        memory
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        let Some(device) = self.known_to.take() else { return };
        let region = Region::of_mut(&mut self.bytes);
        #[allow(unsafe_code, reason = "ends what `registered` began")]
        // SAFETY: `registered` registered it, once. Whoever drops a piece has seen its upload end (`StagingRing::drop`,
        // `StagingRing::landed`), or forgets it (`outlive`).
        if let Err(error) = unsafe { device.unregister(region) } {
            tracing::warn!(%error, "a device still knows memory of plans: it is never freed");
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// A part of a ring.
pub(crate) struct StagingPiece {
    memory: HostMemory,
    /// The upload that used it last.
    busy: Completion,
}

/// Pieces that are written, uploaded and written again.
#[derive(Default)]
pub(crate) struct StagingRing {
    blank: Vec<StagingPiece>,
    /// In flight, oldest first.
    busy: VecDeque<StagingPiece>,
}

/// StagingRings that nobody uses.
pub(crate) struct StagingRings {
    idle: Mutex<Vec<StagingRing>>,
    piece_bytes: usize,
}

impl HostMemory {
    fn region(&mut self) -> Region {
        match self {
            #[cfg(feature = "cuda")]
            HostMemory::Pinned(buffer) => buffer.region(),
            HostMemory::Heap(memory) => Region::of_mut(&mut memory.bytes),
        }
    }
}

impl StagingPiece {
    /// The piece, for uploads.
    pub(crate) fn region(&mut self) -> Region {
        self.memory.region()
    }

    /// The piece, for writing. No upload of it is in flight.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        debug_assert!(matches!(self.busy, Completion::Ready), "the ring has waited");
        match &mut self.memory {
            #[cfg(feature = "cuda")]
            HostMemory::Pinned(buffer) => pinned_bytes(buffer),
            HostMemory::Heap(memory) => &mut memory.bytes,
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
    // SAFETY: the buffer owns `len` bytes of page-locked memory at `pointer`, and it is borrowed exclusively. They
    // are initialised: the system zeroes pages before a process sees them, and what is used again was
    // written by its last user. The device's reads of them have ended (`StagingPiece::bytes`).
    unsafe { std::slice::from_raw_parts_mut(pointer, len) }
}

impl StagingRing {
    /// A piece that may be written, if there is one.
    pub(crate) fn blank(&mut self) -> Option<StagingPiece> {
        self.blank.pop()
    }

    /// Takes a piece that may be written.
    pub(crate) fn give(&mut self, piece: StagingPiece) {
        debug_assert!(matches!(piece.busy, Completion::Ready), "an upload reads it");
        self.blank.push(piece);
    }

    /// Takes a piece that is in flight, after those that it has.
    pub(crate) fn sent(&mut self, piece: StagingPiece) {
        self.busy.push_back(piece);
    }

    /// The piece whose upload was enqueued first: once that has ended, if `wait`, or if it has. `None` if
    /// it has not, or none is in flight.
    ///
    /// # Errors
    /// That upload failed: the device's error, which later work would get as well.
    pub(crate) fn landed(&mut self, wait: bool) -> Result<Option<StagingPiece>, EngineError> {
        let Some(first) = self.busy.front_mut() else { return Ok(None) };
        if wait {
            first.busy.wait()?;
        } else if !first.busy.poll()? {
            return Ok(None);
        }
        first.busy = Completion::Ready;
        Ok(self.busy.pop_front())
    }
}

/// Frees memory that the device still reads, once it does not: uploads end soon, or with the device. If
/// one does neither, the memory is never freed, and the log says so.
fn outlive(memory: HeapMemory, upload: &Completion, patience: Duration) {
    let until = Instant::now() + patience;
    while matches!(upload.poll(), Ok(false)) {
        if Instant::now() >= until {
            let lost = memory.bytes.len();
            tracing::warn!(lost, "a device does not end an upload: its host memory is never freed");
            std::mem::forget(memory);
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Drop for StagingRing {
    fn drop(&mut self) {
        for piece in self.blank.drain(..).chain(self.busy.drain(..)) {
            if !matches!(piece.busy.poll(), Ok(false)) {
                continue;
            }
            match piece.memory {
                #[cfg(feature = "cuda")]
                HostMemory::Pinned(buffer) => buffer.give_back_after(piece.busy),
                HostMemory::Heap(memory) => outlive(memory, &piece.busy, PATIENCE),
            }
        }
    }
}

impl StagingRings {
    pub(crate) fn new(piece_bytes: usize) -> StagingRings {
        StagingRings { idle: Mutex::default(), piece_bytes }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<StagingRing>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring of at least `pieces` pieces: one that is idle, or a new one.
    pub(crate) fn take(
        &self,
        device: &dyn Accelerator,
        pieces: usize,
    ) -> Result<StagingRing, EngineError> {
        let mut ring = self.idle().pop().unwrap_or_default();
        while ring.blank.len() + ring.busy.len() < pieces {
            ring.blank.push(self.piece(device)?);
        }
        Ok(ring)
    }

    /// A piece of `len` bytes that no device reads.
    #[cfg(test)]
    pub(crate) fn plain(len: usize) -> StagingPiece {
        StagingPiece { memory: HostMemory::Heap(HeapMemory::plain(len)), busy: Completion::Ready }
    }

    /// A short piece, for whoever holds it until nothing uses it.
    pub(crate) fn short(
        &self,
        device: &dyn Accelerator,
        len: u64,
    ) -> Result<StagingPiece, EngineError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(StagingPiece { memory: device.staging(len)?, busy: Completion::Ready })
    }

    /// One more piece.
    pub(crate) fn piece(&self, device: &dyn Accelerator) -> Result<StagingPiece, EngineError> {
        Ok(StagingPiece { memory: device.staging(self.piece_bytes)?, busy: Completion::Ready })
    }

    /// Keeps a ring for the next who prepares, with `pieces` pieces at most.
    pub(crate) fn give(&self, mut ring: StagingRing, pieces: usize) {
        let kept = pieces.saturating_sub(ring.busy.len());
        ring.blank.truncate(kept);
        let mut idle = self.idle();
        if idle.len() < KEPT {
            idle.push(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;
    use gapless_mem::{DeviceError, Pending};
    use std::any::Any;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// An upload that ends when it has been asked so often.
    struct Upload(AtomicU32);

    #[expect(unsafe_code, reason = "work that ends after some questions")]
    // SAFETY: it works on no memory that anybody frees before it is over; it ends once.
    unsafe impl Pending for Upload {
        fn poll(&self) -> Result<bool, DeviceError> {
            let less = |left: u32| left.checked_sub(1);
            Ok(self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err())
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn ring(polls: u32) -> (StagingRing, Arc<Upload>) {
        let upload = Arc::new(Upload(AtomicU32::new(polls)));
        let busy = Completion::Pending(Arc::clone(&upload) as Arc<dyn Pending>);
        let memory = HostMemory::Heap(HeapMemory::plain(64));
        (
            StagingRing {
                blank: Vec::new(),
                busy: VecDeque::from([StagingPiece { memory, busy }]),
            },
            upload,
        )
    }

    #[test]
    fn a_ring_that_had_to_be_long_is_kept_short() {
        let rings = StagingRings::new(64);
        let (mut long, _upload) = ring(u32::MAX);
        long.blank.extend((0..50).map(|_| StagingRings::plain(64)));
        rings.give(long, 4);
        let mut kept = rings.idle().pop().unwrap();
        assert_eq!((kept.blank.len(), kept.busy.len()), (3, 1));
        kept.busy.clear();
    }

    #[test]
    fn a_ring_that_is_dropped_waits_for_its_uploads() {
        let (ring, upload) = ring(7);
        drop(ring);
        assert_eq!(upload.0.load(Ordering::Relaxed), 0, "asked until it had ended");
    }

    #[test]
    fn an_upload_that_never_ends_holds_nobody_up() {
        let (mut ring, upload) = ring(u32::MAX);
        let Some(StagingPiece { memory: HostMemory::Heap(memory), busy }) = ring.busy.pop_front()
        else {
            panic!("it was of the heap")
        };
        let at = memory.bytes.as_ptr().addr();
        outlive(memory, &busy, Duration::from_millis(3));
        assert!(upload.0.load(Ordering::Relaxed) > 0 && at != 0);
    }

    #[test]
    fn what_a_device_knows_it_forgets_before_the_memory_is_freed() {
        let device = Arc::new(FakeDevice::new(0));
        let memory = HeapMemory::registered(Arc::clone(&device) as _, 100);
        assert_eq!(device.registered().len(), 1);
        drop(memory);
        assert!(device.registered().is_empty());
    }
}
