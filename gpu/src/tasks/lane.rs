//! The initiator's end of a ring that kernels of users put into.

use gapless_mem::{Device, DeviceError, Lease, Region};
use gapless_mem_cuda::CudaDevice;
use gapless_xtq::device::RingShape;
use gapless_xtq::{FarRing, XtqError};
use std::fmt;
use std::sync::Arc;

/// A ring of another process's worker, for kernels of one GPU of this process: `gapless_put` and the like take its address
/// ([`HEADER`](gapless_kernels::worker::HEADER)). One kernel, and one warp of it, uses it at a time.
///
/// Making and dropping it wait for all that runs on the GPU, so for a worker of this process that stays there: keep that
/// away meanwhile (`Tasks::keep_worker`).
pub struct GpuLane {
    device: Arc<CudaDevice>,
    ring: FarRing,
    /// What device code calls a `gapless_lane`, and behind it the element of a list that it leads to.
    lane: Region,
    /// Memory of the host that is registered for the GPU.
    host: Region,
}

/// Bytes of both.
const LANE_BYTES: u64 = 128;
/// Bytes of the first.
const LANE: u64 = 64;

impl GpuLane {
    /// For kernels of this GPU. `status` is the memory with which the ring was asked
    /// for.
    ///
    /// # Errors
    /// The driver refuses; the ring was opened for another GPU.
    ///
    /// # Safety
    /// The target has granted the ring to this process, nobody else puts into it, and `status` is what it was asked for
    /// with. Kernels that use the lane have ended before it is dropped.
    pub unsafe fn new(
        device: &Arc<CudaDevice>,
        ring: FarRing,
        status: Option<Lease>,
    ) -> Result<GpuLane, DeviceError> {
        let ring = ring.with_status(status);
        let host = ring.parts().whole.region();
        // SAFETY: the ring's lease keeps the mapping until this is dropped, which unregisters it.
        unsafe { device.register(host) }?;
        let lane = device.allocate(LANE_BYTES);
        let lane = lane.inspect_err(|_| unregister(device, host))?;
        // From here on dropping it puts all of this right.
        let made = GpuLane { device: Arc::clone(device), ring, lane, host };
        let at = made.ring.parts().places(RingShape::default(), |memory| {
            device.device_address(memory.region()).map_err(DeviceError::from)
        })?;
        let (arena, bytes) = at.arena;
        let element = [at.head, at.slots, at.status, arena, bytes.into(), 0];
        let list = lane.start() + LANE;
        let words = [&element[..], &[list, 0], &element, &[0, 0]].concat();
        let all: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        // SAFETY: the memory is new, and as long; the copy is waited for.
        unsafe { device.copy(lane, Region::of(&all), &[]) }?.wait()?;
        Ok(made)
    }

    /// Its address on the GPU: a kernel's parameter, `gapless_lane *`.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.lane.start()
    }

    /// Ends waits of kernels (`gapless_wait`) soon, with `GAPLESS_ABORTED`, until `false`.
    ///
    /// # Errors
    /// None, as long as memory of the host is what it was.
    pub fn abort(&self, yes: bool) -> Result<(), XtqError> {
        // SAFETY: whoever made the lane has promised that the target has granted the ring.
        unsafe { self.ring.give_up(yes) }
    }
}

fn unregister(device: &CudaDevice, host: Region) {
    // SAFETY: `new` registered it, and kernels that used it have ended.
    if let Err(error) = unsafe { device.unregister(host) } {
        tracing::debug!(%error, "memory of a ring stays registered");
    }
}

impl Drop for GpuLane {
    fn drop(&mut self) {
        unregister(&self.device, self.host);
        // SAFETY: it is this one's alone, and kernels that used it have ended.
        if let Err(error) = unsafe { self.device.free(self.lane) } {
            tracing::debug!(%error, "memory of a lane was not freed");
        }
    }
}

impl fmt::Debug for GpuLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = self.lane.space();
        write!(f, "GpuLane from {space} to {}", self.ring.target())
    }
}
