//! A simulated target and its initiators, with the calls of the scene of processes.

use super::launched::{self, Log, Tasks, rank};
use super::*;
use crate::{Cluster, ClusterError, Configuration, Options};
use gapless_mem::{Device, HostDevice, Lease};
use std::cell::RefCell;

/// How tasks come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskRunner {
    Simulated,
}

/// Those that a seed disturbs.
pub(super) const WAYS: [TaskRunner; 0] = [];
/// One that needs nothing.
pub(super) const PLAIN: TaskRunner = TaskRunner::Simulated;
/// Whether only what the machine itself does takes time.
pub(super) const SIMULATED: bool = true;

pub(super) fn all() -> Vec<TaskRunner> {
    vec![PLAIN]
}

/// A simulated job, and what has run at the target.
pub(super) struct Scene {
    pub(super) sim: RefCell<Cluster>,
    pub(super) log: Log,
    /// The target: the last rank.
    target: usize,
}

/// What a simulated machine answers, as processes do.
fn as_process<T>(result: Result<T, ClusterError>) -> Result<T, XtqError> {
    result.map_err(|error| match error {
        ClusterError::Xtq(error) => error,
        other => panic!("{other}"),
    })
}

impl Scene {
    pub(super) fn new(_: TaskRunner, size: u32, _: Option<u64>) -> Scene {
        let options = Options { lines: false, ..Options::new(Configuration::Xtq) };
        let sim = RefCell::new(Cluster::new(size, &options).unwrap());
        let scene = Scene { sim, log: Log::default(), target: size as usize - 1 };
        scene.register(7, scene.kernel()).unwrap();
        scene.register_queue(2, QueueOptions { capacity: 512, width: 1 }).unwrap();
        scene
    }

    #[expect(clippy::unused_self, reason = "as the scene of processes")]
    pub(super) fn is_launched(&self) -> bool {
        true
    }

    fn at_target<T>(
        &self,
        act: impl FnOnce(&mut Cluster, Rank) -> Result<T, ClusterError>,
    ) -> Result<T, XtqError> {
        as_process(act(&mut self.sim.borrow_mut(), rank(self.target)))
    }

    pub(super) fn kernel(&self) -> Kernel {
        self.log.kernel(2).grid_max([1024, 1, 1])
    }

    /// One of two kernels, each of which has a buffer of its own.
    pub(super) fn version(&self, number: u8) -> Kernel {
        let region = HostDevice::new().allocate(64).unwrap();
        // SAFETY: it is never freed.
        let memory = unsafe { Lease::kept_by_caller(region) };
        self.log.kernel(u64::from(number) + 3).buffer(memory)
    }

    pub(super) fn register(&self, index: u8, kernel: Kernel) -> Result<(), XtqError> {
        // SAFETY: whatever runs it touches no memory.
        self.at_target(|sim, at| unsafe { sim.register_kernel(at, index, kernel) })
    }

    pub(super) fn unregister_kernel(&self, index: u8) -> Result<(), XtqError> {
        self.at_target(|sim, at| sim.unregister_kernel(at, index))
    }

    pub(super) fn register_queue(&self, index: u8, options: QueueOptions) -> Result<(), XtqError> {
        self.at_target(|sim, at| sim.register_queue(at, index, options))
    }

    pub(super) fn unregister_queue(&self, index: u8) -> Result<(), XtqError> {
        self.at_target(|sim, at| sim.unregister_queue(at, index))
    }

    pub(super) fn post(&self, bytes: u32) {
        self.at_target(|sim, at| sim.post(at, vec![0; bytes as usize])).unwrap();
    }

    pub(super) fn take_posted(&self) -> usize {
        self.at_target(Cluster::take_posted).unwrap().len()
    }

    /// It always does.
    #[expect(clippy::unused_self, reason = "as the scene of processes")]
    pub(super) fn watch_refusals(&self) {}

    pub(super) fn take_refusals(&self) -> Vec<RefusedTask> {
        self.at_target(Cluster::take_refusals).unwrap()
    }

    /// A signal of this rank.
    pub(super) fn signal_of(&self, at: usize, count: u64) -> Signal {
        self.sim.borrow().signal(rank(at), count).unwrap()
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
        as_process(self.sim.borrow_mut().put(rank(at), put))
    }

    pub(super) fn step(&mut self) {
        (0..20).for_each(|_| _ = self.sim.get_mut().step());
    }

    /// Events happen until `ready` says so.
    pub(super) fn until<T>(&mut self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            match ready() {
                Some(value) => return value,
                None => assert!(self.sim.get_mut().step(), "nothing happens any more"),
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
        while self.sim.get_mut().step() {}
    }

    pub(super) fn warm(&mut self) {
        let put = self.put(self.task(u64::MAX, &[]).acknowledged());
        self.outcome(&put).unwrap();
        _ = self.ran();
    }

    pub(super) fn ran(&self) -> Tasks {
        self.log.ran()
    }

    /// The code and the buffer of each task that has run.
    pub(super) fn codes(&self) -> Vec<[u64; 2]> {
        self.log.codes()
    }
}
