//! Workers: what stays on an accelerator, polls memory, and runs what it finds there, without a launch each time.

use crate::{DeviceError, Lease};
use std::fmt;
use std::sync::Arc;

/// How large the groups of tasks may be that a [`Worker`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Work-items of a group, at most.
    pub items_max: u32,
    /// Local memory of a group in bytes, at most.
    pub local_bytes_max: u32,
}

/// Code of a user's that a worker is to run, made for the worker's accelerator by its vendor's tools. Clones are the same
/// code.
#[derive(Clone)]
pub struct WorkerCode(Arc<[u8]>);

impl WorkerCode {
    /// This image. The worker's type documents what it takes: `CudaWorker` takes relocatable PTX or cubins of functions that
    /// `gapless_tasks.h` describes.
    ///
    /// # Safety
    /// The vendor's tools made the image, and nothing has changed it since. Its functions are of the type, and keep the
    /// rules, that the worker states, whatever tasks ask of them: code of an accelerator reaches all memory of this process
    /// there, and can keep the accelerator busy for ever.
    #[must_use]
    pub unsafe fn new(image: impl Into<Arc<[u8]>>) -> WorkerCode {
        WorkerCode(image.into())
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        &self.0
    }

    /// Whether both are clones of the same.
    #[must_use]
    pub fn is(&self, other: &WorkerCode) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for WorkerCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerCode of {} bytes", self.0.len())
    }
}

/// A function of a user's that a worker is to run.
#[derive(Clone, Debug)]
pub struct WorkerFunction {
    /// What control blocks call it.
    pub number: u64,
    /// The code that has it.
    pub code: WorkerCode,
    /// Its name there.
    pub name: Arc<str>,
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
///    and the worker at the address beside it. The worker touches it by atomic words alone, also when it is started.
/// 2. [`reach`](Worker::reach) and [`reach_now`](Worker::reach_now) answer where the worker finds the bytes of the
///    lease. Both are counted, for each range of memory; [`forget`](Worker::forget), and
///    [`forget_now`](Worker::forget_now) that answers `true`, count down. Until the count is 0 the worker finds the
///    bytes there, as long as a clone of the lease is kept.
/// 3. `reach_now` and `forget_now` wait for nothing that the accelerator does, nor for a thread that waits for that. So
///    they may be called while a worker runs.
/// 4. A worker that was started touches its control block and what that names, and nothing else, as far as it runs
///    functions of its own. Two are never started on one control block at a time.
/// 5. [`is_over`](Worker::is_over) answers `true` only if nothing of any worker that was started touches memory any
///    more.
pub unsafe trait Worker: Send + Sync {
    /// What it can run.
    fn limits(&self) -> WorkerLimits;

    /// Memory for a control block of `len` bytes, and where the worker finds it. A worker belongs to one target, so there
    /// need not be a second one.
    ///
    /// # Errors
    /// There is none.
    fn control(&self, len: u64) -> Result<(Lease, u64), DeviceError>;

    /// Where the worker finds memory of the host or of an accelerator. This may wait for all work of the accelerator,
    /// as registering memory of the host does: a worker that runs meanwhile holds it up.
    ///
    /// # Errors
    /// It cannot reach the memory.
    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError>;

    /// The same of memory for which nothing is waited for: it is reached already, or page-locked. `None`: that is not
    /// so, and nothing was done.
    ///
    /// # Errors
    /// As there.
    fn reach_now(&self, memory: &Lease) -> Result<Option<u64>, DeviceError> {
        if memory.region().as_ptr().is_some() { Ok(None) } else { self.reach(memory).map(Some) }
    }

    /// Undoes one [`reach`](Worker::reach), or [`reach_now`](Worker::reach_now). It may wait as that may.
    ///
    /// # Safety
    /// The caller has that memory reached, and undoes it once. Nothing needs it any more: no control block names the
    /// memory by that call, and a worker that runs has answered this.
    ///
    /// # Errors
    /// The driver's failure.
    unsafe fn forget(&self, memory: &Lease) -> Result<(), DeviceError>;

    /// The same, if nothing is waited for: the memory stays reached by another call, say. `false`: that is not so, and
    /// nothing was done.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn forget_now(&self, memory: &Lease) -> Result<bool, DeviceError> {
        if memory.region().as_ptr().is_some() {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        unsafe { self.forget(memory) }?;
        Ok(true)
    }

    /// Makes these the functions of users that it can run, from its next life on; those that it had before go. Memory of
    /// theirs (globals of the code) begins anew. None runs meanwhile.
    ///
    /// # Errors
    /// It runs no code of users; [`DeviceError::Link`]. It has the functions that it had.
    fn link(&self, functions: &[WorkerFunction]) -> Result<(), DeviceError> {
        let _ = functions;
        Err(DeviceError::Unsupported { what: "running functions of users in a worker" })
    }

    /// Starts it.
    ///
    /// # Safety
    /// The control block came from [`control`](Worker::control), and its lease and all memory that the block names live
    /// until [`is_over`](Worker::is_over). The one that was started before is over, and the caller has seen that it says
    /// so: what it has left in the block may be read before this returns.
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
