//! A target and its initiators, for the suite.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

use super::launched::{self, Log, PAYLOAD_MAX, Tasks, rank, run};
use super::*;
use crate::device::mock_worker::{MockWorker, memory};
use crate::device::{DeviceFunction, Life};

/// How tasks come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskRunner {
    Launched,
    Messages,
    Rings,
    /// By rings; the worker leaves whenever it has nothing to do.
    Fleeting,
    /// By rings on another host, which are reached by operations alone.
    Far,
    /// Likewise; the worker leaves whenever it has nothing to do.
    FarFleeting,
    /// By a worker on a GPU: by messages, by rings, by rings while it leaves whenever it has nothing to do, and by rings that
    /// are reached by operations alone.
    GpuMessages,
    GpuRings,
    GpuFleeting,
    GpuFar,
}

/// Those of processes.
pub(super) const WAYS: [TaskRunner; 6] = [
    TaskRunner::Launched,
    TaskRunner::Messages,
    TaskRunner::Rings,
    TaskRunner::Fleeting,
    TaskRunner::Far,
    TaskRunner::FarFleeting,
];
/// One that needs nothing.
pub(super) const PLAIN: TaskRunner = TaskRunner::Launched;
/// Whether only what the machine itself does takes time.
pub(super) const SIMULATED: bool = false;

/// These, and those by a worker on a GPU if there is one.
pub(super) fn all() -> Vec<TaskRunner> {
    let of_gpus = super::gpu::device().map(|_| super::gpu::WAYS);
    WAYS.into_iter().chain(of_gpus.into_iter().flatten()).collect()
}

/// A job, and what has run at the target.
pub(super) struct Scene {
    pub(super) job: Job,
    pub(super) log: Log,
    pub(super) way: TaskRunner,
    /// The target: the last rank.
    pub(super) target: usize,
    pub(super) mock: Option<Arc<MockWorker>>,
    /// Last: others of its kind wait for it.
    gpu: Option<super::gpu::Gpu>,
}

/// A receive buffer in pages of its own: drivers register whole pages.
fn heap(bytes: u32) -> gapless_mem::Lease {
    let pages = crate::host::heap::heap(bytes.into()).unwrap();
    pages.sub(0, bytes.into()).unwrap()
}

impl Scene {
    pub(super) fn new(way: TaskRunner, size: u32, seed: Option<u64>) -> Scene {
        println!("{way:?}, seed {seed:?}");
        let gpu = super::gpu::WAYS.contains(&way).then(super::gpu::Gpu::new);
        let rings = !matches!(way, TaskRunner::Messages | TaskRunner::GpuMessages);
        let config = Config { rings, ..Config::default() };
        let (log, target) = (Log::default(), size as usize - 1);
        let is_far = matches!(way, TaskRunner::Far | TaskRunner::FarFleeting | TaskRunner::GpuFar);
        let job = Job::over(size, seed, None, &config, !is_far);
        let mut scene = Scene { job, log: log.clone(), way, target, mock: None, gpu };
        if let Some(gpu) = &scene.gpu {
            let idle = (way == TaskRunner::GpuFleeting).then_some(Duration::from_micros(1));
            let life = Life { idle, longest: PATIENCE };
            scene.there().attach_worker(Arc::clone(&gpu.worker), life).unwrap();
        } else if !scene.is_launched() {
            let mock = MockWorker::new(move |task| {
                run(&log, [task.object, task.arguments[0], task.arguments[2]], &task.payload)
            });
            let leaves = matches!(way, TaskRunner::Fleeting | TaskRunner::FarFleeting);
            let idle = leaves.then_some(Duration::from_micros(1));
            let life = Life { idle, longest: PATIENCE };
            scene.there().attach_worker(mock.clone(), life).unwrap();
            let again = scene.there().attach_worker(mock.clone(), life);
            assert_eq!(again, Err(XtqError::Worker { has: true }));
            scene.mock = Some(mock);
        }
        scene.register(7, scene.kernel()).unwrap();
        scene.register_queue(2, QueueOptions { capacity: 512, width: 1 }).unwrap();
        scene
    }

    /// The target's process.
    pub(super) fn there(&self) -> &Xtq {
        self.job.xtq(self.target)
    }

    pub(super) fn is_launched(&self) -> bool {
        self.way == TaskRunner::Launched
    }

    pub(super) fn kernel(&self) -> Kernel {
        let kernel = match &self.gpu {
            Some(gpu) => gpu.kernel(0, false),
            None if self.is_launched() => self.log.kernel(2),
            None => Kernel::of_worker(DeviceFunction::Copy, PAYLOAD_MAX),
        };
        kernel.grid_max([1024, 1, 1])
    }

    /// One of two kernels, each of which has a buffer of its own.
    pub(super) fn version(&self, number: u8) -> Kernel {
        if let Some(gpu) = &self.gpu {
            return gpu.kernel(number, true);
        }
        let kernel = match (self.is_launched(), number) {
            (true, _) => self.log.kernel(u64::from(number) + 3),
            (false, 0) => Kernel::of_worker(DeviceFunction::Copy, PAYLOAD_MAX),
            (false, _) => Kernel::of_worker(DeviceFunction::Pause, PAYLOAD_MAX),
        };
        kernel.buffer(memory(64).unwrap())
    }

    pub(super) fn register(&self, index: u8, kernel: Kernel) -> Result<(), XtqError> {
        // SAFETY: whatever runs it touches no memory.
        unsafe { self.there().register_kernel(index, kernel) }
    }

    pub(super) fn unregister_kernel(&self, index: u8) -> Result<(), XtqError> {
        self.there().unregister_kernel(index)
    }

    pub(super) fn register_queue(&self, index: u8, options: QueueOptions) -> Result<(), XtqError> {
        self.there().register_queue(index, options)
    }

    pub(super) fn unregister_queue(&self, index: u8) -> Result<(), XtqError> {
        self.there().unregister_queue(index)
    }

    pub(super) fn post(&self, bytes: u32) {
        match self.way {
            TaskRunner::Launched => self.there().post(vec![0; bytes as usize]),
            _ if self.gpu.is_some() => {
                // SAFETY: nobody touches it.
                unsafe { self.there().post_to_worker(heap(bytes)) }.unwrap();
            }
            // SAFETY: nobody touches it.
            _ => unsafe { self.there().post_to_worker(memory(bytes.into()).unwrap()) }.unwrap(),
        }
    }

    pub(super) fn take_posted(&self) -> usize {
        match self.way {
            TaskRunner::Launched => self.there().take_posted().len(),
            _ => self.there().take_from_worker().unwrap().len(),
        }
    }

    pub(super) fn watch_refusals(&self) {
        self.there().watch_refusals(true);
    }

    pub(super) fn take_refusals(&self) -> Vec<RefusedTask> {
        self.there().take_refusals()
    }

    /// A signal of this rank.
    pub(super) fn signal_of(&self, at: usize, count: u64) -> Signal {
        self.job.xtq(at).signal_from(count, &[])
    }

    /// One of the target.
    pub(super) fn signal_there(&self, count: u64) -> Signal {
        self.signal_of(self.target, count)
    }

    pub(super) fn task(&self, third: u64, payload: &[u8]) -> Put {
        self.task_over(third, payload, Launch::linear(1, 32, 24))
    }

    pub(super) fn task_over(&self, third: u64, payload: &[u8], launch: Launch) -> Put {
        launched::task(self.target, third, payload, launch)
    }

    pub(super) fn put(&self, put: Put) -> PutHandle {
        self.put_from(0, put)
    }

    pub(super) fn put_from(&self, at: usize, put: Put) -> PutHandle {
        self.try_put_from(at, put).unwrap()
    }

    pub(super) fn try_put_from(&self, at: usize, put: Put) -> Result<PutHandle, XtqError> {
        self.job.xtq(at).put(put)
    }

    pub(super) fn step(&mut self) {
        _ = self.job.step();
    }

    /// Makes progress everywhere until `ready` says so.
    pub(super) fn until<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> T {
        self.job.until(|_| ready())
    }

    pub(super) fn outcome(&mut self, handle: &PutHandle) -> Result<(), XtqError> {
        self.until(|| handle.outcome())
    }

    pub(super) fn end_of(&mut self, signal: &Signal) -> Result<(), XtqError> {
        self.until(|| signal.poll())
    }

    pub(super) fn settle(&mut self) {
        self.job.settle();
    }

    fn is_by_rings(&self) -> bool {
        !matches!(self.way, TaskRunner::Launched | TaskRunner::Messages | TaskRunner::GpuMessages)
    }

    /// Until rank 0 has a ring that lives, if it is to get one.
    pub(super) fn warm(&mut self) {
        let put = self.put(self.task(u64::MAX, &[]).acknowledged());
        self.outcome(&put).unwrap();
        if self.is_by_rings() {
            let target = rank(self.target);
            let live = |state: &mut super::super::XtqState| state.initiator.has_ring(target);
            self.job.until(|job| job.xtq(0).inner.with(live).then_some(()));
        }
        _ = self.ran();
    }

    /// What a GPU's worker has noted is part of the log.
    fn collect(&self) {
        let notes = self.gpu.as_ref().map(super::gpu::Gpu::take);
        let mut log = self.log.0.lock().unwrap();
        for (_, task, code) in notes.into_iter().flatten() {
            log.0.push(task);
            log.1.push(code);
        }
    }

    pub(super) fn ran(&self) -> Tasks {
        self.collect();
        self.log.ran()
    }

    /// The code and the buffer of each task that has run.
    pub(super) fn codes(&self) -> Vec<[u64; 2]> {
        self.collect();
        self.log.codes()
    }
}
