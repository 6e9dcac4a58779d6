//! A worker on a GPU for the suite, and what its tasks have noted (`notes.ptx`). Where there is no CUDA device, the suite
//! says so and runs without.

use super::launched::PAYLOAD_MAX;
use super::scene::TaskRunner;
use super::*;
use crate::host::heap::heap;
use crate::launcher::Kernel;
use gapless_btl_testkit::conformance::skip;
use gapless_dtype_cuda::CudaWorker;
use gapless_mem::{Lease, Worker, WorkerCode};
use gapless_mem_cuda::{CudaDevice, CudaDriver, CudaError};
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Ways by a worker on a GPU.
pub(super) const WAYS: [TaskRunner; 4] =
    [TaskRunner::GpuMessages, TaskRunner::GpuRings, TaskRunner::GpuFleeting, TaskRunner::GpuFar];
/// Tasks that a buffer has room to note.
const NOTES: usize = 640;
/// Bytes of a note, and of what comes before its payload.
const NOTE: usize = HEAD + PAYLOAD_MAX as usize;
const HEAD: usize = 40;

/// The device, if there is one.
pub(super) fn device() -> Option<&'static Arc<CudaDevice>> {
    static DEVICE: OnceLock<Option<Arc<CudaDevice>>> = OnceLock::new();
    let open = || match CudaDriver::load().and_then(|driver| driver.device(0)) {
        Ok(device) => Some(Arc::new(device)),
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            skip("XTQ's suite with a worker on a GPU", &why.to_string());
            None
        }
        Err(error) => panic!("there is a driver and it fails: {error}"),
    };
    DEVICE.get_or_init(open).as_ref()
}

/// A note: when, and what has run.
type Note = (u64, (u64, Vec<u8>), [u64; 2]);

/// A worker, and the buffers of its kernels. One at a time: registering memory may wait for others.
pub(super) struct Gpu {
    pub(super) worker: Arc<dyn Worker>,
    code: WorkerCode,
    buffers: RefCell<Vec<Lease>>,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    pub(super) fn new() -> Gpu {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = device().expect("the suite asks before");
        let worker = Arc::new(CudaWorker::new(Arc::clone(device)).unwrap());
        // SAFETY: its functions keep the rules of `gapless_tasks.h`.
        let code = unsafe { WorkerCode::new(include_str!("notes.ptx").as_bytes()) };
        Gpu { worker, code, buffers: RefCell::default(), _alone: alone }
    }

    /// A kernel of this version (0 or 1), with a buffer of its own, or with the first that there is.
    pub(super) fn kernel(&self, version: u8, is_own: bool) -> Kernel {
        let name = ["notes_one", "notes_two"][usize::from(version)];
        let mut buffers = self.buffers.borrow_mut();
        if is_own || buffers.is_empty() {
            buffers.push(heap((8 + NOTES * NOTE) as u64).unwrap());
        }
        let buffer = if is_own { buffers.last() } else { buffers.first() };
        let kernel = Kernel::of_worker_from(&self.code, name, 24, PAYLOAD_MAX);
        kernel.buffer(buffer.expect("one was pushed").clone())
    }

    /// Takes what was noted since, in the order in which it ran. Nothing runs now.
    pub(super) fn take(&self) -> Vec<Note> {
        let mut notes: Vec<Note> = Vec::new();
        for buffer in &*self.buffers.borrow() {
            let region = buffer.region();
            let read = |at: usize, bytes: &mut [u8]| {
                // SAFETY: no task runs, so nobody writes it.
                unsafe { gapless_mem::read(&region, at as u64, bytes) }.unwrap();
            };
            let word = |at: usize| {
                let mut word = [0; 8];
                read(at, &mut word);
                u64::from_le_bytes(word)
            };
            let count = usize::try_from(word(0)).unwrap().min(NOTES);
            for at in (8..).step_by(NOTE).take(count) {
                let [time, third, version, address, bytes] =
                    std::array::from_fn(|field| word(at + 8 * field));
                let mut payload = vec![0; usize::try_from(bytes).unwrap()];
                read(at + HEAD, &mut payload);
                notes.push((time, (third, payload), [version, address]));
            }
            // SAFETY: likewise.
            unsafe { gapless_mem::write(&region, 0, &[0; 8]) }.unwrap();
        }
        notes.sort_by_key(|note| note.0);
        notes
    }
}
