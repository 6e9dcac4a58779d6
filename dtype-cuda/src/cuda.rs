//! CUDA devices as accelerators.

mod functions;
#[allow(unsafe_code, reason = "launches kernels and copies by address")]
mod lane;
#[allow(unsafe_code, reason = "launches persistent kernels")]
mod lives;
#[allow(unsafe_code, reason = "declares and keeps the obligations of work on the caller's stream")]
mod stream;
#[allow(unsafe_code, reason = "launches the worker, and registers memory for it")]
mod worker;
#[allow(unsafe_code, reason = "allocates, fills and frees device memory")]
mod worker_layout;

pub use stream::OnStream;
pub use worker::{CudaWorker, WorkerError};
pub use worker_layout::{LayoutError, WorkerLayout};

use crate::accelerator::{Accelerator, Lane, Spot};
use crate::config::Workers;
use crate::staging::HostMemory;
use functions::Functions;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::launch::KernelAddress;
use gapless_kernels::persistent::Command;
use gapless_kernels::reduce::Combine;
use gapless_mem::{Completion, Device, DeviceError, Region, Space};
use gapless_mem_cuda::{CudaDevice, CudaError, CudaPending};
use lane::OwnLane;
pub use lives::CudaPersistent;
use lives::copy_worker;
use std::sync::Arc;

const NAME: &str = "cuda";

/// A device, its kernels and streams of ours.
pub(crate) struct CudaAccelerator {
    device: Arc<CudaDevice>,
    functions: Arc<Functions>,
    lanes: Vec<Box<dyn Lane>>,
    uploads: Box<dyn Lane>,
    copies: Option<CudaPersistent<[u64; 3]>>,
}

/// A driver's refusal as engines tell it.
pub(crate) fn failed(error: CudaError) -> EngineError {
    EngineError::Device(error.into())
}

fn wrong_space(space: Space) -> EngineError {
    EngineError::WrongSpace { engine: NAME, space }
}

/// Pointers are addresses: the kernel's is where the bytes begin.
fn at(region: Region, address: u64) -> Spot {
    let base = Region::new(region.space(), address, 0, region.len());
    Spot { base, place: KernelAddress { address, offset: 0 } }
}

/// The bytes of its region that a typed buffer touches: first, and how many.
fn touched(typed: &Typed) -> Result<(u64, u64), EngineError> {
    if let Some(first) = typed.contiguous_start().filter(|_| typed.packed_bytes() > 0) {
        return Ok((first, typed.packed_bytes()));
    }
    let Some((low, high)) = typed.bounds() else { return Ok((0, 0)) };
    // `Typed` has found both inside the region.
    let first = typed.origin().wrapping_add_signed(low);
    Ok((first, high.wrapping_sub(low).cast_unsigned()))
}

impl CudaAccelerator {
    pub(crate) fn new(
        device: Arc<CudaDevice>,
        streams: usize,
        workers: Workers,
    ) -> Result<CudaAccelerator, EngineError> {
        let functions = Arc::new(Functions::load(&device).map_err(failed)?);
        let lane = || {
            let stream = device.stream().map_err(failed)?;
            let lane = OwnLane::new(Arc::clone(&device), Arc::clone(&functions), stream);
            Ok(Box::new(lane) as Box<dyn Lane>)
        };
        let lanes = (0..streams.max(1)).map(|_| lane()).collect::<Result<_, EngineError>>()?;
        let uploads = lane()?;
        let copies = copy_worker(&device, workers).unwrap_or_else(|error| {
            tracing::warn!(%error, "short copies are launched: there is no copy worker");
            None
        });
        Ok(CudaAccelerator { device, functions, lanes, uploads, copies })
    }

    pub(crate) fn cuda_device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Where kernels find host memory, if all of it is page-locked and mapped.
    fn host(&self, region: Region) -> Result<Option<u64>, EngineError> {
        let address = |piece| match self.device.device_address(piece) {
            Ok(address) => Ok(Some(address)),
            Err(CudaError::Refused(DeviceError::WrongSpace { .. })) => Ok(None),
            Err(error) => Err(failed(error)),
        };
        let Some(first) = address(region)? else { return Ok(None) };
        if region.space() == Space::Pinned {
            return Ok(Some(first));
        }
        // The driver answers for a byte: memory may be registered in part.
        let Some(last) = region.len().checked_sub(1) else { return Ok(Some(first)) };
        let end = region.sub(last, 1)?;
        if address(end)? != first.checked_add(last) {
            return Ok(None);
        }
        // Both ends, but perhaps not what is between: registrations are of whole pages, so that a longer
        // region may have a hole unless it lies in one of them.
        let whole = last < PAGE || self.device.buffer_id(region) == self.device.buffer_id(end);
        Ok(whole.then_some(first))
    }
}

/// Bytes of a page at least.
const PAGE: u64 = 4096;

impl Accelerator for CudaAccelerator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    fn serves(&self, space: Space) -> bool {
        match space {
            Space::Cuda { .. } => self.device.reaches(space),
            Space::Managed | Space::Pinned => true,
            _ => false,
        }
    }

    fn typed(&self, typed: &Typed) -> Result<Spot, EngineError> {
        let region = typed.region();
        let (first, len) = touched(typed)?;
        let piece = region.sub(first, len)?;
        let address = match region.space() {
            Space::Cuda { .. } | Space::Managed => {
                self.device.device_address(piece).map_err(failed)?
            }
            Space::Host | Space::Pinned => {
                self.host(piece)?.ok_or_else(|| wrong_space(region.space()))?
            }
            space => return Err(wrong_space(space)),
        };
        let start = address.wrapping_sub(first);
        Ok(at(region, start.wrapping_add(typed.origin())))
    }

    fn packed(&self, region: Region) -> Result<Option<Spot>, EngineError> {
        match region.space() {
            Space::Cuda { .. } | Space::Managed => match self.device.device_address(region) {
                Ok(address) => Ok(Some(at(region, address))),
                // No link between the devices: the driver copies through the host.
                Err(CudaError::Refused(DeviceError::Unsupported { .. })) => Ok(None),
                Err(error) => Err(failed(error)),
            },
            Space::Host | Space::Pinned => {
                Ok(self.host(region)?.map(|address| at(region, address)))
            }
            space => Err(wrong_space(space)),
        }
    }

    fn staging(&self, len: usize) -> Result<HostMemory, EngineError> {
        Ok(HostMemory::Pinned(self.device.pinned(len as u64).map_err(failed)?))
    }

    fn orders(&self, completion: &Completion) -> bool {
        match completion {
            Completion::Ready => true,
            Completion::Pending(_) => completion.ordering::<CudaPending>().is_some(),
        }
    }

    fn one_address_space(&self) -> bool {
        true
    }

    fn apart(&self, one: Region, other: Region) -> bool {
        let devices = |region: Region| matches!(region.space(), Space::Cuda { .. });
        devices(one)
            && devices(other)
            && self.device.lies_elsewhere(one) != self.device.lies_elsewhere(other)
    }

    fn copies_rows_slowly(&self, one: Region, other: Region) -> bool {
        [one, other].into_iter().any(|region| self.device.copies_rows_slowly(region))
    }

    fn reads_afar(&self, src: Region, dst: Region) -> bool {
        self.apart(src, dst) && self.device.lies_elsewhere(src)
    }

    fn combines(&self, _: Combine) -> bool {
        true
    }

    fn lanes(&self) -> &[Box<dyn Lane>] {
        &self.lanes
    }

    fn uploads(&self) -> Option<&dyn Lane> {
        Some(&*self.uploads)
    }

    fn has_copy_worker(&self) -> bool {
        self.copies.is_some()
    }

    fn copies_by_worker(&self) -> u64 {
        self.copies.as_ref().map_or(0, |worker| worker.given())
    }

    fn wake_copy_worker(&self) {
        self.copies.iter().for_each(|worker| worker.wake());
    }

    #[allow(unsafe_code, reason = "hands the caller's promise on")]
    unsafe fn copy_by_worker(&self, command: &Command) -> Option<Completion> {
        // SAFETY: the caller's own promise.
        unsafe { self.copies.as_ref()?.give(command) }
    }
}
