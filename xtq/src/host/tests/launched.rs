//! Tasks of the suite and what notes them, wherever they run. `xtq-sim` has this file and the suite in its tests, too.

use super::*;

/// Work-items of a group, at most, wherever it runs.
pub(super) const ITEMS_MAX: u32 = 512;
pub(super) const PAYLOAD_MAX: u32 = 4096;

/// The third argument and the payload of each task, in the order in which they ran.
pub(super) type Tasks = Vec<(u64, Vec<u8>)>;

/// What has run; of each task also the code's number and the address of the registered buffer.
#[derive(Clone, Default)]
pub(super) struct Log(pub(super) Arc<Mutex<(Tasks, Vec<[u64; 2]>)>>);

pub(super) fn run(log: &Log, task: [u64; 3], payload: &[u8]) -> Result<(), u32> {
    let [object, buffer, third] = task;
    let mut log = log.0.lock().unwrap();
    log.0.push((third, payload.to_vec()));
    log.1.push([object, buffer]);
    if payload == b"fail" { Err(1) } else { Ok(()) }
}

struct Plays(Log);

// SAFETY: it starts nothing that outlives the call, and writes no memory.
unsafe impl Launcher for Plays {
    fn limits(&self) -> GroupLimits {
        GroupLimits { items_max: ITEMS_MAX, local_bytes_max: 0, grid_max: [u32::MAX; 3] }
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let mut payload = vec![0; usize::try_from(task.payload.len()).unwrap()];
        // SAFETY: the caller guarantees the payload.
        unsafe { gapless_mem::read(&task.payload, 0, &mut payload) }?;
        let word = |at| u64::from_le_bytes(task.arguments[at..at + 8].try_into().unwrap());
        let failed = |_| DeviceError::Unsupported { what: "this payload" };
        let ran = run(&self.0, [task.object, word(0), word(16)], &payload);
        ran.map(|()| Completion::Ready).map_err(failed)
    }
}

impl Log {
    /// A kernel that is launched, by this number.
    pub(super) fn kernel(&self, object: u64) -> Kernel {
        Kernel::new(Arc::new(Plays(self.clone())), object, 24, PAYLOAD_MAX)
    }

    /// What has run since this was last asked.
    pub(super) fn ran(&self) -> Tasks {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }

    /// The code and the buffer of each.
    pub(super) fn codes(&self) -> Vec<[u64; 2]> {
        std::mem::take(&mut self.0.lock().unwrap().1)
    }
}

/// A task for rank `target`.
pub(super) fn task(target: usize, third: u64, payload: &[u8], launch: Launch) -> Put {
    let arguments = [u64::MAX, u64::MAX, third].map(u64::to_le_bytes).concat();
    // Short bodies lie in a put's box, lists beside it.
    let arguments: Payload =
        if third.is_multiple_of(2) { arguments[..].into() } else { arguments.into() };
    Put::kernel(rank(target), 7, 2, launch, arguments).payload(payload)
}

pub(super) fn rank(at: usize) -> Rank {
    Rank(u32::try_from(at).unwrap())
}
