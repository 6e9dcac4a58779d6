//! The worker of this process's accelerator that combines what reductions by tasks put here.

use super::tasks::{PAYLOAD_MAX, ROOM};
use crate::World;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use gapless_mem::{Device, Lease, Region, Worker};
use gapless_xtq::device::Life;
use std::sync::Arc;

/// Receive buffers of the worker.
const BUFFERS: usize = 2;

/// A receive buffer.
struct ReceiveBuffer {
    device: Arc<dyn Device>,
    region: Region,
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        // SAFETY: `buffer` allocated it, and the last lease of it is gone.
        if let Err(error) = unsafe { self.device.free(self.region) } {
            tracing::debug!(%error, "a worker's receive buffer was not freed");
        }
    }
}

fn buffer(device: &Arc<dyn Device>) -> Result<Lease, Error> {
    let region = device.allocate(PAYLOAD_MAX.into())?;
    let held = ReceiveBuffer { device: Arc::clone(device), region };
    // SAFETY: the memory is there until the owner is gone.
    Ok(unsafe { Lease::new(region, Arc::new(held)) })
}

impl World {
    /// Gives this process a worker, which stays on an accelerator, for reductions by tasks. Where the table of collectives
    /// says `xtq`, the worker combines what other ranks put here, and no processor of this process has a part in that. It
    /// takes sums, products, minima and maxima of numbers of 4 and 8 bytes, up to 512 KiB in one task (`xtq in 64K` puts
    /// pieces), as long as all sums fit into 32 MiB. Threads of this process do everything else, so ranks with a worker and
    /// ranks without one may be in one collective.
    ///
    /// `device` is that on which the worker stays: payloads pass through its memory. Sums are made in page-locked memory of
    /// the host. It is another worker than that of [`Tasks::attach_worker`](crate::xtq::Tasks::attach_worker), and that of
    /// [windows](World::attach_window_worker).
    ///
    /// # Errors
    /// There is one already, or was; the accelerator refuses; the world was left.
    pub fn attach_collective_worker(
        &self,
        worker: Arc<dyn Worker>,
        device: &Arc<dyn Device>,
        life: Life,
    ) -> Result<(), Error> {
        let memory = SharedBuf::allocate(self.shared(), ROOM)?.lease()?;
        let buffers = (0..BUFFERS).map(|_| buffer(device)).collect::<Result<_, _>>()?;
        let carrier = &self.shared().carrier;
        self.shared().prepare_rings(&carrier.end());
        // SAFETY: all of the memory is new, and its leases alone are left of it.
        Ok(unsafe { carrier.attach_worker(worker, life, (buffers, memory)) }?)
    }

    /// Tells that worker to leave, and keeps it away until `true`: the application has the accelerator to itself.
    /// Meanwhile threads combine; what is left of reductions that have begun may wait for the worker.
    ///
    /// # Errors
    /// There is no worker; what it runs takes too long.
    pub fn keep_collective_worker(&self, stays: bool) -> Result<(), Error> {
        Ok(self.shared().carrier.keep_worker(stays)?)
    }

    /// Whether this process has a worker for reductions by tasks, which may be kept away.
    #[must_use]
    pub fn has_collective_worker(&self) -> bool {
        self.shared().carrier.has_worker()
    }
}
