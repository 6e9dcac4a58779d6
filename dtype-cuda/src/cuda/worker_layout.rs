//! Layouts that tasks of workers pack and unpack by: a form in the device's memory (`kernels/cuda/layout_tasks.h`), of the
//! same shapes and plans as the engine's kernels use.

use crate::described::Described;
use gapless_dtype::{Convertor, Layout};
use gapless_engine::EngineError;
use gapless_kernels::args::Args;
use gapless_kernels::launch::{KernelAddress, Launches, TransferSide, Unfit, transfer};
use gapless_kernels::peers::layouts::Piece;
use gapless_kernels::worker::{STREAM_BEGINS, form, form_bytes};
use gapless_mem::{Device, Lease, Region};
use gapless_mem_cuda::CudaDevice;
use std::sync::Arc;
use thiserror::Error;

/// Where plans and forms begin in memory.
const ALIGNED: u64 = 256;
/// Displacements that the worker can check without overflow.
const FAR: i64 = 1 << 61;

/// Why a layout has no form for workers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Nothing is moved by it.
    #[error("a layout of no bytes")]
    Empty,
    /// Kernels have no room for its numbers.
    #[error("a layout that kernels cannot number: {0}")]
    Unfit(#[from] Unfit),
    /// Its plan is too long, or it reaches too far.
    #[error("a layout that is too long")]
    TooLong,
    /// The engine's failure.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Some instances of a layout, for tasks of workers on one device.
///
/// Making it and dropping its last clone take and free memory of the device, which may wait for all that runs there: a
/// worker that stays holds that up until it leaves. A target frees what was registered with it while the worker is away.
#[derive(Clone, Debug)]
pub struct WorkerLayout {
    form: Lease,
    bytes: u64,
    bounds: (i64, i64),
}

/// Memory of a device, freed when it is dropped.
struct HeldRegion(Arc<CudaDevice>, Region);

impl Drop for HeldRegion {
    fn drop(&mut self) {
        // SAFETY: it was allocated for this, and leases of it are gone.
        if let Err(error) = unsafe { self.0.free(self.1) } {
            tracing::debug!(%error, "memory of a layout or a worker was not freed");
        }
    }
}

impl WorkerLayout {
    /// `count` instances of a layout. The device's memory that this takes is freed with the last clone, and with the last
    /// target that has it.
    ///
    /// # Errors
    /// Nothing to move; more than kernels can number; no memory.
    pub fn new(
        device: &Arc<CudaDevice>,
        layout: &Layout,
        count: u64,
    ) -> Result<WorkerLayout, LayoutError> {
        let described = Described::of(layout, count);
        let bytes = described.bytes();
        let convertor = Convertor::new(layout, count).map_err(|_| LayoutError::TooLong)?;
        let bounds = convertor.bounds().ok_or(LayoutError::Empty)?;
        if bounds.0 < -FAR || bounds.1 > FAR {
            return Err(LayoutError::TooLong);
        }
        let plan = described.plan().ok_or(LayoutError::TooLong)?;
        let before = (plan.len() as u64).next_multiple_of(ALIGNED);
        let count = pieces(&described, 0)?.len();
        let len = before + form_bytes(count) as u64;
        let device_failed = |error| LayoutError::Engine(EngineError::Device(error));
        let region = device.allocate(len).map_err(device_failed)?;
        let held = Arc::new(HeldRegion(Arc::clone(device), region));
        let pieces = pieces(&described, region.start())?;
        if pieces.len() != count {
            return Err(LayoutError::TooLong);
        }
        let mut all = plan;
        all.resize(usize::try_from(before).map_err(|_| LayoutError::TooLong)?, 0);
        all.extend(form(&pieces, bytes, [bounds.0, bounds.1]));
        // SAFETY: the memory is new, and as long; the copy is waited for.
        let copied = unsafe { device.copy(region, Region::of(&all), &[]) };
        copied.and_then(|copied| copied.wait()).map_err(device_failed)?;
        // SAFETY: the owner frees it when the lease is gone.
        let whole = unsafe { Lease::new(region, held) };
        let form = whole.sub(before, len - before).map_err(|error| device_failed(error.into()))?;
        Ok(WorkerLayout { form, bytes, bounds })
    }

    /// The form, in the device's memory: nobody writes it any more.
    #[must_use]
    pub fn form(&self) -> &Lease {
        &self.form
    }

    /// Bytes of the packed stream.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes that are touched, from displacement 0: the first, and behind the last.
    #[must_use]
    pub fn bounds(&self) -> (i64, i64) {
        self.bounds
    }
}

/// From the layout, of which a plan lies at this address, to a stream that begins at [`STREAM_BEGINS`].
fn pieces(described: &Described, plan: u64) -> Result<Vec<Piece>, LayoutError> {
    let stream = (TransferSide::Contiguous(0), STREAM_BEGINS.cast_signed());
    let made: Launches = transfer(
        &(0..described.bytes()),
        (&described.side(plan), KernelAddress { address: 0, offset: 0 }),
        (&stream.0, KernelAddress { address: 0, offset: stream.1 }),
        None,
    )?;
    let piece = |launch: gapless_kernels::launch::Launch| match launch.args {
        Args::Transfer(transfer) => {
            Ok(Piece { transfer: *transfer, width: launch.kernel.width.log2(), unused: [0; 3] })
        }
        _ => Err(LayoutError::TooLong),
    };
    made.into_iter().map(piece).collect()
}
