//! OpenCL devices as accelerators.

#[allow(unsafe_code, reason = "launches kernels and copies buffers")]
mod lane;
mod preparation;
mod programs;

use crate::accelerator::{Accelerator, Lane, Spot};
use crate::config::Config;
use crate::staging::{HeapMemory, HostMemory};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::launch::KernelAddress;
use gapless_kernels::reduce::Combine;
use gapless_mem::{Completion, Device, DeviceError, Region, Space};
use gapless_mem_opencl::{OpenClDevice, OpenClError};
use lane::QueueLane;
use preparation::Preparation;
use programs::Programs;
use std::sync::Arc;

const NAME: &str = "opencl";

/// Work-items of a group. Drivers refuse more where a kernel takes many registers, which OpenCL C cannot be told to
/// avoid.
const THREADS: u32 = 256;

/// Queues of a GPU: unpacking from page-locked memory by two has 1.14 of the speed of one on an H200, packing 1.03.
const QUEUES: usize = 2;

/// A device, its kernels, and its queues as lanes.
pub(crate) struct OpenClAccelerator {
    device: Arc<OpenClDevice>,
    lanes: Vec<Box<dyn Lane>>,
}

impl OpenClAccelerator {
    /// With several queues, if the device has its own; each is a lane with kernel objects of its own.
    pub(crate) fn new(
        device: Arc<OpenClDevice>,
        config: &Config,
    ) -> Result<OpenClAccelerator, EngineError> {
        if device.info().threads_max < THREADS {
            return Err(
                DeviceError::Unsupported { what: "running groups of 256 work-items" }.into()
            );
        }
        let mut devices = vec![Arc::clone(&device)];
        // What a user has put on a queue comes before our work on it, and on no other.
        if matches!(device.space(), Space::OpenCl { queue: None, .. }) {
            let usual = if device.info().cpu { 1 } else { QUEUES };
            for _ in 1..config.queues.unwrap_or(usual) {
                devices.push(Arc::new(device.with_another_queue().map_err(refused)?));
            }
        }
        let programs: Vec<_> = devices.iter().cloned().map(Programs::new).map(Arc::new).collect();
        let prepares = config.prepares.unwrap_or(!device.info().cpu);
        let likely = if prepares { programs.clone() } else { Vec::new() };
        let preparation = Arc::new(Preparation::new(likely));
        let lane = |(device, programs)| {
            Box::new(QueueLane::new(device, programs, Arc::clone(&preparation))) as Box<dyn Lane>
        };
        let lanes = devices.into_iter().zip(programs).map(lane).collect();
        Ok(OpenClAccelerator { device, lanes })
    }

    fn buffer(&self, region: Region, offset: u64) -> Result<Spot, EngineError> {
        let wrong = || EngineError::WrongSpace { engine: NAME, space: region.space() };
        if !self.serves(region.space()) {
            return Err(wrong());
        }
        let offset = region.offset().checked_add(offset).and_then(|at| i64::try_from(at).ok());
        let address = self.device.alignment_bits(&region);
        Ok(Spot {
            base: region,
            place: KernelAddress { address, offset: offset.ok_or_else(wrong)? },
        })
    }
}

fn refused(error: OpenClError) -> EngineError {
    let (device, reason) = ("OpenCL".to_owned(), error.to_string());
    EngineError::Device(DeviceError::Failed { device, operation: "making a queue", reason })
}

impl Accelerator for OpenClAccelerator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    fn serves(&self, space: Space) -> bool {
        matches!(space, Space::OpenCl { .. }) && self.device.reaches(space)
    }

    #[allow(unsafe_code, reason = "hands on what callers promise of buffers")]
    unsafe fn learn_alignment(&self, region: Region) {
        if self.serves(region.space()) {
            // SAFETY: the caller's own promise.
            unsafe { self.device.learn_alignment(&region) };
        }
    }

    fn typed(&self, typed: &Typed) -> Result<Spot, EngineError> {
        self.buffer(typed.region(), typed.origin())
    }

    fn packed(&self, region: Region) -> Result<Option<Spot>, EngineError> {
        if region.space().cpu_accessible() {
            return Ok(None);
        }
        self.buffer(region, 0).map(Some)
    }

    fn staging(&self, len: usize) -> Result<HostMemory, EngineError> {
        Ok(HostMemory::Heap(HeapMemory::registered(self.device(), len)))
    }

    fn orders(&self, completion: &Completion) -> bool {
        self.device.orders(completion)
    }

    fn threads_max(&self) -> u32 {
        THREADS
    }

    fn one_address_space(&self) -> bool {
        false
    }

    fn combines(&self, combine: Combine) -> bool {
        self.device.info().doubles || !combine.needs_doubles()
    }

    fn lanes(&self) -> &[Box<dyn Lane>] {
        &self.lanes
    }

    fn uploads(&self) -> Option<&dyn Lane> {
        None
    }
}
