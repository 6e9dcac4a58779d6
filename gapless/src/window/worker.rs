//! The worker of this process's accelerator that does accumulations into windows.

use crate::World;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use gapless_mem::{DeviceError, Worker};
use gapless_xtq::device::Life;
use std::sync::Arc;

/// Receive buffers of the worker: how many, and of how many bytes.
const BUFFERS: u64 = 4;
const BYTES: u64 = 64 << 10;

impl World {
    /// Gives this process a worker, which stays on an accelerator, for windows whose accumulations it does
    /// ([`WindowBuilder::accumulate_by_worker`](crate::WindowBuilder::accumulate_by_worker)). It is another one than that of
    /// [`Tasks::attach_worker`](crate::xtq::Tasks::attach_worker), and knows nothing of the tasks of programs.
    ///
    /// # Errors
    /// There is one already; the accelerator refuses; the world was left.
    pub fn attach_window_worker(&self, worker: Arc<dyn Worker>, life: Life) -> Result<(), Error> {
        let bytes = usize::try_from(BUFFERS * BYTES).unwrap_or(usize::MAX);
        let memory = SharedBuf::allocate(self.shared(), bytes)?.lease()?;
        let buffers: Result<Vec<_>, _> =
            (0..BUFFERS).map(|at| memory.sub(at * BYTES, BYTES)).collect();
        let buffers = buffers.map_err(DeviceError::from)?;
        self.shared().prepare_rings(self.shared().window_tasks.xtq());
        // SAFETY: the memory is new, and its leases alone are left of it.
        Ok(unsafe { self.shared().window_tasks.attach_worker(worker, life, buffers) }?)
    }

    /// Tells that worker to leave, and keeps it away until `true`: the application has the accelerator to itself.
    /// Accumulations wait.
    ///
    /// # Errors
    /// There is no worker; what it runs takes too long.
    pub fn keep_window_worker(&self, stays: bool) -> Result<(), Error> {
        Ok(self.shared().window_tasks.xtq().keep_worker(stays)?)
    }
}
