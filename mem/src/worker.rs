//! Workers: what stays on an accelerator, polls memory, and runs what it finds there, without a launch each time.

use crate::{DeviceError, Lease};

/// What a worker can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Work-items of a group, at most.
    pub items_max: u32,
    /// Local memory of a group in bytes, at most.
    pub local_bytes_max: u32,
}

/// A worker that can be started on one accelerator. It lives from [`start`](Worker::start) until it leaves by itself, and
/// can then be started again. What it polls, and when it leaves, lies in its control block, which whoever starts it has
/// filled; this trait knows nothing of that.
///
/// # Safety
/// Memory is handed to the worker, and taken back, on the strength of what this answers. So an implementation keeps
/// these rules:
///
/// 1. [`control`](Worker::control) gives zeroed memory that the CPU reaches at the region's address, aligned to a page,
///    and the worker at the address beside it.
/// 2. [`reach`](Worker::reach) answers where the worker finds the bytes of the lease, for as long as its clone there is
///    kept; until [`forget`](Worker::forget) it keeps one.
/// 3. A worker that was started touches its control block and what that names, and nothing else. Two are never started
///    on one control block at a time.
/// 4. [`is_over`](Worker::is_over) answers `true` only if nothing of any worker that was started touches memory any more.
pub unsafe trait Worker: Send + Sync {
    /// What it can run.
    fn limits(&self) -> WorkerLimits;

    /// Memory for a control block of `len` bytes, and where the worker finds it. A worker belongs to one target, so there
    /// need not be a second one.
    ///
    /// # Errors
    /// There is none.
    fn control(&self, len: u64) -> Result<(Lease, u64), DeviceError>;

    /// Where the worker finds memory of the host or of an accelerator. May wait for all work of the accelerator, so no
    /// worker runs meanwhile.
    ///
    /// # Errors
    /// It cannot reach the memory.
    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError>;

    /// The worker does not need this memory any more: once for each [`reach`](Worker::reach). If it is the host's, no
    /// worker runs meanwhile, as there.
    ///
    /// # Errors
    /// The driver's failure.
    fn forget(&self, memory: &Lease) -> Result<(), DeviceError>;

    /// Starts it.
    ///
    /// # Safety
    /// The control block came from [`control`](Worker::control), and its lease and all memory that the block names live
    /// until [`is_over`](Worker::is_over). The one that was started before is over.
    ///
    /// # Errors
    /// It was not started.
    unsafe fn start(&self, control: u64) -> Result<(), DeviceError>;

    /// Whether none that was started runs.
    ///
    /// # Errors
    /// It has failed, and touches nothing any more.
    fn is_over(&self) -> Result<bool, DeviceError>;
}
