//! Kernels, launched by a pretend accelerator whose memory is the host's.
#![allow(unsafe_code, reason = "implements the trait that launches kernels")]

use super::*;
use crate::launcher::{GroupLimits, Kernel, KernelTask, Launcher};
use crate::packet::{LOCAL_UNIT, Launch};
use gapless_mem::{Completion, DeviceError, Lease, Region};
use std::sync::Mutex;

/// What a kernel was launched with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launched {
    object: u64,
    grid: [u32; 3],
    words: Vec<u64>,
    payload: Vec<u8>,
    /// Where the payload was.
    payload_at: u64,
}

#[derive(Default)]
struct Pretend(Mutex<Vec<Launched>>, AtomicU32);

// SAFETY: it starts nothing that outlives the call, and writes no memory.
unsafe impl Launcher for Pretend {
    fn limits(&self) -> GroupLimits {
        self.1.fetch_add(1, Ordering::Relaxed);
        GroupLimits { items_max: 256, local_bytes_max: 1024, grid_max: [1 << 20, 1 << 20, 1] }
    }

    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError> {
        let words = task.arguments.chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let mut payload = vec![0; usize::try_from(task.payload.len()).unwrap()];
        // SAFETY: the caller guarantees the payload.
        unsafe { gapless_mem::read(&task.payload, 0, &mut payload) }?;
        assert_ne!(payload, b"panic");
        if payload == b"fail" {
            return Err(DeviceError::Unsupported { what: "this payload" });
        }
        let (object, grid) = (task.object, task.launch.grid);
        let payload_at = task.payload.start();
        self.0.lock().unwrap().push(Launched { object, grid, words, payload, payload_at });
        Ok(Completion::Ready)
    }
}

#[test]
fn kernels_get_their_arguments_rewritten_and_count_the_registered_signal() {
    let mut job = Job::new(2, None);
    let launcher: Arc<Pretend> = Arc::default();
    let memory: Arc<[u8; 64]> = Arc::new([0; 64]);
    let region = Region::of(&memory[..]);
    // SAFETY: the array is kept by the lease.
    let lease = unsafe { Lease::new(region, memory) };
    let there = job.xtq(1).signal_from(2, &[]);
    let register = |job: &Job, kernel: Kernel| {
        // SAFETY: what launches it touches no memory but the payload, which it reads.
        unsafe { job.xtq(1).register_kernel(2, kernel) }
    };
    let kernel = |bytes| {
        Kernel::new(launcher.clone(), 0xCAFE, bytes, 4096).buffer(lease.clone()).grid_max([
            512,
            u32::MAX,
            8,
        ])
    };
    assert!(register(&job, kernel(8)).is_err());
    register(&job, kernel(24).signal(&there)).unwrap();
    job.xtq(1).register_queue(2, QueueOptions::default()).unwrap();
    job.xtq(1).post(vec![0; 4096]);
    let arguments = |third: u64| [u64::MAX, u64::MAX, third].map(u64::to_le_bytes).concat();
    let put = |payload: &[u8]| {
        let launch = Launch::linear(3, 128, 0);
        Put::kernel(Rank(1), 2, 2, launch, arguments(5)).payload(payload)
    };
    let here = job.xtq(0).signal(2);
    for payload in [&b"short"[..], &[6; 2000]] {
        let put = put(payload).retry(Retry::InOrder).signal(&here);
        job.xtq(0).put(put).unwrap();
    }
    assert_eq!((job.end_of(&here), job.end_of(&there)), (Ok(()), Ok(())));
    let launched = std::mem::take(&mut *launcher.0.lock().unwrap());
    let at = |task: &Launched| (task.object, task.grid, task.words[0], task.words[2]);
    for (task, payload) in launched.iter().zip([&b"short"[..], &[6; 2000]]) {
        assert_eq!(at(task), (0xCAFE, [384, 1, 1], region.start(), 5));
        assert_eq!((&*task.payload, task.words[1]), (payload, task.payload_at));
    }
    assert_eq!(launched.len(), 2);
    // Limits of the accelerator, and lengths that were not registered.
    let refused = |job: &mut Job, put: Put| {
        let handle = job.xtq(0).put(put).unwrap();
        let Err(XtqError::Refused { refusal, .. }) = job.outcome(&handle) else { panic!() };
        refusal
    };
    let sized = |launch| Put::kernel(Rank(1), 2, 2, launch, arguments(0));
    let group = Refusal::Group { items_max: 256 };
    assert_eq!(refused(&mut job, sized(Launch::linear(1, 257, 0))), group);
    let local = Launch { local_bytes: 1024 + LOCAL_UNIT, ..Launch::linear(1, 1, 0) };
    assert_eq!(refused(&mut job, sized(local)), group);
    for grid in [[513, 1, 1], [1, (1 << 20) + 1, 1], [1, 1, 2]] {
        let wide = Launch { grid, ..Launch::linear(1, 1, 0) };
        assert_eq!(refused(&mut job, sized(wide)), Refusal::Grid);
    }
    let long = Put::kernel(Rank(1), 2, 2, Launch::linear(1, 1, 0), vec![0; 32]);
    assert_eq!(refused(&mut job, long), Refusal::Arguments { registered: 24 });
    let far = Put::kernel(Rank(1), 2, 2, Launch::linear(1, 1, 0), vec![0; 5000]);
    assert!(matches!(job.xtq(0).put(far), Err(XtqError::Packet(_))));
    // A task that is finally refused will not count the registered signal down.
    there.reset(1);
    let too_long = Refusal::PayloadTooLong { max: 4096 };
    assert_eq!(refused(&mut job, put(&[0; 4097])), too_long);
    let ended = Err(XtqError::Refused { target: Rank(1), refusal: too_long });
    assert_eq!(there.poll(), Some(ended));
    // The launcher was asked when the two kernels were made, and never for a put.
    assert_eq!(launcher.1.load(Ordering::Relaxed), 2);
    // A launch that fails or panics fails the task, and the registered signal.
    for (payload, reason) in [(&b"fail"[..], "this payload"), (b"panic", "it panicked")] {
        there.reset(1);
        let handle = job.xtq(0).put(put(payload).acknowledged()).unwrap();
        for error in [job.outcome(&handle).unwrap_err(), job.end_of(&there).unwrap_err()] {
            let XtqError::Failed { target: Rank(1), reason: said } = error else { panic!() };
            assert!(said.contains(reason), "{said}");
        }
    }
    // A rank that is lost ends the signal that counts tasks of all.
    there.reset(1);
    drop(job.ends.remove(0));
    assert!(matches!(job.end_of(&there), Err(XtqError::Lost { rank: Rank(0), .. })));
}

#[test]
fn giving_up_ends_signals_of_kernels_and_tells_when_the_last_task_has_ended() {
    let mut job = Job::new(2, None);
    let (go, begins) = order::gated(&job, QueueOptions::default());
    let there = job.xtq(1).signal(1);
    let kernel = Kernel::new(Arc::new(Pretend::default()), 1, 16, 0).signal(&there);
    // SAFETY: what launches it touches no memory.
    unsafe { job.xtq(1).register_kernel(0, kernel) }.unwrap();
    job.xtq(0).put(order::numbered(1)).unwrap();
    let launch = Put::kernel(Rank(1), 0, 0, Launch::linear(1, 1, 0), vec![0; 16]);
    let launch = job.xtq(0).put(launch).unwrap();
    assert_eq!(job.outcome(&launch), Ok(()));
    job.until(|_| begins.try_recv().ok());
    // Another queue in the place of the one with the kernel's task.
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    drop(job.xtq(1).abandon());
    assert_eq!(there.poll(), Some(Err(XtqError::Closed)));
    there.reset(1);
    assert_eq!(there.poll(), Some(Err(XtqError::Closed)));
    assert_eq!(job.xtq(1).inner.live.load(Ordering::Relaxed), 1, "the kernel's task is dropped");
    // The function runs on, as a kernel would.
    assert!(!job.xtq(1).has_settled());
    go.send(()).unwrap();
    job.until(|job| job.xtq(1).has_settled().then_some(()));
}
