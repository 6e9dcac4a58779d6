//! A target and its initiators, for the suite: by processes, or on the simulated machine.
#![allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]

use super::*;
use crate::device::player::{Player, memory};
use crate::device::{DeviceFunction, Life};
use crate::launcher::{GroupLimits, Kernel, KernelTask, Launcher};
use crate::packet::Launch;
use crate::sim::{Cluster, ClusterError, Configuration, Options};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, DeviceError, Mapper};
use gapless_mem_cuda::ProcessorMapper;
use std::cell::RefCell;
use std::sync::Mutex;

/// How tasks come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Launched,
    Messages,
    Rings,
    /// By rings; the worker leaves whenever it has nothing to do.
    Fleeting,
    /// By rings whose slots lie in the worker's own memory.
    Near,
    /// Likewise; the worker leaves whenever it has nothing to do.
    NearFleeting,
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
    /// Likewise by rings whose slots lie in the GPU's memory.
    GpuNear,
    /// On the simulated machine (*sim*).
    Simulated,
}

/// Those of processes.
pub(super) const WAYS: [Way; 8] = [
    Way::Launched,
    Way::Messages,
    Way::Rings,
    Way::Fleeting,
    Way::Near,
    Way::NearFleeting,
    Way::Far,
    Way::FarFleeting,
];
/// All back ends.
pub(super) fn every() -> impl Iterator<Item = Way> {
    WAYS.into_iter().chain([Way::Simulated])
}
/// These, and those by a worker on a GPU if there is one.
pub(super) fn all() -> Vec<Way> {
    let of_gpus = super::gpu::device().map(|_| super::gpu::WAYS);
    every().chain(of_gpus.into_iter().flatten()).collect()
}

/// Work-items of a group, at most, wherever it runs.
pub(super) const ITEMS_MAX: u32 = 512;
pub(super) const PAYLOAD_MAX: u32 = 4096;

/// The third argument and the payload of each task, in the order in which they ran.
type Tasks = Vec<(u64, Vec<u8>)>;

/// What has run; of each task also the code's number and the address of the registered buffer.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<(Tasks, Vec<[u64; 2]>)>>);

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

/// A job, or a simulated one, and what has run at the target.
pub(super) struct Scene {
    /// Of one rank, without a part in anything, if it is simulated.
    pub(super) job: Job,
    pub(super) sim: Option<RefCell<Cluster>>,
    pub(super) log: Log,
    pub(super) way: Way,
    /// The target: the last rank.
    pub(super) target: usize,
    pub(super) player: Option<Arc<Player>>,
    /// Last: others of its kind wait for it.
    gpu: Option<super::gpu::Gpu>,
}

/// What a simulated machine answers, as processes do.
fn as_process<T>(result: Result<T, ClusterError>) -> Result<T, XtqError> {
    result.map_err(|error| match error {
        ClusterError::Xtq(error) => error,
        other => panic!("{other}"),
    })
}

/// A receive buffer in pages of its own: drivers register whole pages.
fn heap(bytes: u32) -> gapless_mem::Lease {
    let pages = crate::host::heap::heap(bytes.into()).unwrap();
    pages.sub(0, bytes.into()).unwrap()
}

fn rank(at: usize) -> Rank {
    Rank(u32::try_from(at).unwrap())
}

impl Scene {
    pub(super) fn new(way: Way, size: u32, seed: Option<u64>) -> Scene {
        println!("{way:?}, seed {seed:?}");
        let gpu = super::gpu::WAYS.contains(&way).then(super::gpu::Gpu::new);
        let rings = !matches!(way, Way::Messages | Way::GpuMessages);
        let device = Arc::new(FakeDevice::new(0));
        let near: Option<Arc<dyn Mapper>> = match way {
            Way::Near | Way::NearFleeting => Some(Arc::clone(&device) as Arc<_>),
            Way::GpuNear => Some(Arc::new(ProcessorMapper::new())),
            _ => None,
        };
        let config = Config { rings, near, ..Config::default() };
        let (log, target) = (Log::default(), size as usize - 1);
        let is_sim = way == Way::Simulated;
        let is_far = matches!(way, Way::Far | Way::FarFleeting | Way::GpuFar);
        let job = Job::over(if is_sim { 1 } else { size }, seed, None, &config, !is_far);
        let options = Options { lines: false, ..Options::new(Configuration::Xtq) };
        let sim = is_sim.then(|| RefCell::new(Cluster::new(size, &options).unwrap()));
        let mut scene = Scene { job, sim, log: log.clone(), way, target, player: None, gpu };
        if let Some(gpu) = &scene.gpu {
            let idle = (way == Way::GpuFleeting).then_some(Duration::from_micros(1));
            let life = Life { idle, longest: PATIENCE };
            scene.there().attach_worker(Arc::clone(&gpu.worker), life).unwrap();
        } else if !scene.is_launched() {
            let player = Player::new(move |task| {
                run(&log, [task.object, task.arguments[0], task.arguments[2]], &task.payload)
            });
            let player = player.on(device);
            let leaves = matches!(way, Way::Fleeting | Way::NearFleeting | Way::FarFleeting);
            let idle = leaves.then_some(Duration::from_micros(1));
            let life = Life { idle, longest: PATIENCE };
            scene.there().attach_worker(player.clone(), life).unwrap();
            let again = scene.there().attach_worker(player.clone(), life);
            assert_eq!(again, Err(XtqError::Worker { has: true }));
            scene.player = Some(player);
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
        matches!(self.way, Way::Launched | Way::Simulated)
    }

    /// Does it on the simulated machine, or else with the target's process.
    fn at_target<T>(
        &self,
        sim: impl FnOnce(&mut Cluster, Rank) -> Result<T, ClusterError>,
        process: impl FnOnce(&Xtq) -> Result<T, XtqError>,
    ) -> Result<T, XtqError> {
        match &self.sim {
            Some(cluster) => as_process(sim(&mut cluster.borrow_mut(), rank(self.target))),
            None => process(self.there()),
        }
    }

    pub(super) fn kernel(&self) -> Kernel {
        let kernel = match &self.gpu {
            Some(gpu) => gpu.kernel(0, false),
            None if self.is_launched() => self.launched(2),
            None => Kernel::of_worker(DeviceFunction::Copy, PAYLOAD_MAX),
        };
        kernel.grid_max([1024, 1, 1])
    }

    /// A kernel that is launched, by this number.
    pub(super) fn launched(&self, object: u64) -> Kernel {
        Kernel::new(Arc::new(Plays(self.log.clone())), object, 24, PAYLOAD_MAX)
    }

    /// One of two kernels, each of which has a buffer of its own.
    pub(super) fn version(&self, number: u8) -> Kernel {
        if let Some(gpu) = &self.gpu {
            return gpu.kernel(number, true);
        }
        let kernel = match (self.is_launched(), number) {
            (true, _) => self.launched(u64::from(number) + 3),
            (false, 0) => Kernel::of_worker(DeviceFunction::Copy, PAYLOAD_MAX),
            (false, _) => Kernel::of_worker(DeviceFunction::Pause, PAYLOAD_MAX),
        };
        kernel.buffer(memory(64).unwrap())
    }

    pub(super) fn register(&self, index: u8, kernel: Kernel) -> Result<(), XtqError> {
        let other = kernel.clone();
        self.at_target(
            // SAFETY: whatever runs it touches no memory.
            |sim, at| unsafe { sim.register_kernel(at, index, kernel) },
            // SAFETY: likewise.
            |xtq| unsafe { xtq.register_kernel(index, other) },
        )
    }

    pub(super) fn unregister_kernel(&self, index: u8) -> Result<(), XtqError> {
        self.at_target(
            |sim, at| sim.unregister_kernel(at, index),
            |xtq| xtq.unregister_kernel(index),
        )
    }

    pub(super) fn register_queue(&self, index: u8, options: QueueOptions) -> Result<(), XtqError> {
        self.at_target(
            |sim, at| sim.register_queue(at, index, options),
            |xtq| xtq.register_queue(index, options),
        )
    }

    pub(super) fn unregister_queue(&self, index: u8) -> Result<(), XtqError> {
        self.at_target(|sim, at| sim.unregister_queue(at, index), |xtq| xtq.unregister_queue(index))
    }

    pub(super) fn post(&self, bytes: u32) {
        let buffer = vec![0; bytes as usize];
        match (&self.sim, self.way) {
            (Some(sim), _) => sim.borrow_mut().post(rank(self.target), buffer).unwrap(),
            (None, Way::Launched) => self.there().post(buffer),
            _ if self.gpu.is_some() => {
                // SAFETY: nobody touches it.
                unsafe { self.there().post_to_worker(heap(bytes)) }.unwrap();
            }
            // SAFETY: nobody touches it.
            _ => unsafe { self.there().post_to_worker(memory(bytes.into()).unwrap()) }.unwrap(),
        }
    }

    pub(super) fn take_posted(&self) -> usize {
        let of_process = |xtq: &Xtq| match self.way {
            Way::Launched => Ok(xtq.take_posted().len()),
            _ => xtq.take_from_worker().map(|leases| leases.len()),
        };
        let of_sim = |sim: &mut Cluster, at| sim.take_posted(at).map(|buffers| buffers.len());
        self.at_target(of_sim, of_process).unwrap()
    }

    pub(super) fn take_refusals(&self) -> Vec<RefusedTask> {
        let taken = self.at_target(|sim, at| sim.take_refusals(at), |xtq| Ok(xtq.take_refusals()));
        taken.unwrap()
    }

    /// A signal of this rank.
    pub(super) fn signal_of(&self, at: usize, count: u64) -> Signal {
        match &self.sim {
            Some(sim) => sim.borrow().signal(rank(at), count).unwrap(),
            None => self.job.xtq(at).signal_from(count, &[]),
        }
    }

    /// One of the target.
    pub(super) fn signal_there(&self, count: u64) -> Signal {
        self.signal_of(self.target, count)
    }

    pub(super) fn task(&self, third: u64, payload: &[u8]) -> Put {
        self.task_over(third, payload, Launch::linear(1, 32, 24))
    }

    pub(super) fn task_over(&self, third: u64, payload: &[u8], launch: Launch) -> Put {
        let arguments = [u64::MAX, u64::MAX, third].map(u64::to_le_bytes).concat();
        // Short bodies lie in a put's box, lists beside it.
        let arguments: crate::Payload =
            if third.is_multiple_of(2) { arguments[..].into() } else { arguments.into() };
        Put::kernel(rank(self.target), 7, 2, launch, arguments).payload(payload)
    }

    pub(super) fn put(&self, put: Put) -> PutHandle {
        self.put_from(0, put)
    }

    pub(super) fn put_from(&self, at: usize, put: Put) -> PutHandle {
        self.try_put_from(at, put).unwrap()
    }

    pub(super) fn try_put_from(&self, at: usize, put: Put) -> Result<PutHandle, XtqError> {
        match &self.sim {
            Some(sim) => as_process(sim.borrow_mut().put(rank(at), put)),
            None => self.job.xtq(at).put(put),
        }
    }

    pub(super) fn step(&mut self) {
        match &self.sim {
            Some(sim) => (0..20).for_each(|_| _ = sim.borrow_mut().step()),
            None => _ = self.job.step(),
        }
    }

    /// Makes progress everywhere until `ready` says so.
    pub(super) fn until<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> T {
        let Some(sim) = &self.sim else { return self.job.until(|_| ready()) };
        loop {
            match ready() {
                Some(value) => return value,
                None => assert!(sim.borrow_mut().step(), "nothing happens any more"),
            }
        }
    }

    pub(super) fn outcome(&mut self, handle: &PutHandle) -> Result<(), XtqError> {
        self.until(|| handle.outcome())
    }

    pub(super) fn end_of(&mut self, signal: &Signal) -> Result<(), XtqError> {
        self.until(|| signal.poll())
    }

    pub(super) fn settle(&mut self) {
        match &self.sim {
            Some(sim) => while sim.borrow_mut().step() {},
            None => self.job.settle(),
        }
    }

    fn is_by_rings(&self) -> bool {
        !matches!(self.way, Way::Launched | Way::Messages | Way::GpuMessages | Way::Simulated)
    }

    /// Until rank 0 has a ring that lives, if it is to get one.
    pub(super) fn warm(&mut self) {
        let put = self.put(self.task(u64::MAX, &[]).acknowledged());
        self.outcome(&put).unwrap();
        if self.is_by_rings() {
            let target = rank(self.target);
            let live = |state: &mut super::super::State| state.initiator.has_ring(target);
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
        std::mem::take(&mut self.log.0.lock().unwrap().0)
    }

    /// The code and the buffer of each task that has run.
    pub(super) fn codes(&self) -> Vec<[u64; 2]> {
        self.collect();
        std::mem::take(&mut self.log.0.lock().unwrap().1)
    }
}
