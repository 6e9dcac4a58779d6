//! Several processes in one thread, one after the other: nothing waits for time.

use super::{NOTICES, Nobody, atomics, connected, header, memory};
use crate::header::Header;
use crate::window::{Driver, Flavor, Member, Window};
use crate::{Exposure, Osc, Tasks, WindowError};
use gapless_bml::{Access, Bml, Rank, RdmaRail, RemoteKey};
use gapless_btl::loopback::Config;
use gapless_engine::HostEngine;
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

/// Bytes of the window of each process.
const BYTES: usize = 4 << 20;

pub(crate) struct Net {
    bmls: Vec<RefCell<Bml>>,
    pub(crate) oscs: Vec<Osc>,
    pub(super) tasks: Vec<Tasks>,
    now_ns: Cell<u64>,
    pub(crate) exposures: Vec<Exposure>,
}

impl Net {
    /// So many processes, each with memory for a window.
    pub(crate) fn new(count: u32, config: &Config) -> Net {
        let mut bmls = connected(count, config);
        let oscs: Vec<Osc> = bmls.iter_mut().map(|bml| Osc::register(bml).unwrap()).collect();
        let tasks = bmls.iter_mut().zip(&oscs);
        let tasks = tasks.map(|(bml, osc)| Tasks::attach(bml, osc, Default::default()).unwrap());
        let tasks = tasks.collect();
        let exposures = (0..count).map(|_| exposure(count as usize)).collect();
        let (bmls, now_ns) = (bmls.into_iter().map(RefCell::new).collect(), Cell::new(0));
        Net { bmls, oscs, tasks, now_ns, exposures }
    }

    pub(crate) fn bml(&self, process: usize) -> RefMut<'_, Bml> {
        self.bmls[process].borrow_mut()
    }

    /// A number of a process's window, at a byte.
    pub(super) fn load(&self, process: usize, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.exposures[process].memory.load(at, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// All processes make progress once.
    pub(crate) fn progress(&self) {
        self.progress_from(0);
    }

    /// The same, but for the first ones.
    pub(super) fn progress_from(&self, first: usize) {
        self.now_ns.set(self.now_ns.get() + 20_000);
        for ((bml, osc), tasks) in self.bmls.iter().zip(&self.oscs).zip(&self.tasks).skip(first) {
            let mut bml = bml.borrow_mut();
            bml.poll(&mut Nobody);
            osc.advance(&mut bml);
            tasks.xtq().advance(&mut bml, self.now_ns.get());
        }
    }

    /// A window of all processes, each of which has its own rank; `maps`: whom this one maps. The first one of each.
    pub(crate) fn window(&self, me: u32, maps: &[u32]) -> Window {
        self.window_with(me, maps, Flavor::Plain, &[])
    }

    /// A key to each process's memory, for changes of numbers.
    pub(crate) fn keys(&self) -> Vec<(RdmaRail, RemoteKey)> {
        let register = |(bml, exposure): (&RefCell<Bml>, &Exposure)| {
            let mut bml = bml.borrow_mut();
            let (rail, address, rdma) = bml.atomics(None).expect("the loopback has them");
            let region = exposure.memory.lease().region();
            // SAFETY: the net keeps the memory longer than the transports, and only atomics touch it.
            let key = unsafe { rdma.register(region, Access::Atomic) }.unwrap();
            (rail, address, key)
        };
        let all: Vec<_> = self.bmls.iter().zip(&self.exposures).map(register).collect();
        for bml in &self.bmls {
            for (owner, (rail, address, _)) in (0..).map(Rank).zip(&all) {
                assert!(bml.borrow_mut().meet_for_changes(*rail, owner, address));
            }
        }
        all.into_iter().map(|(rail, _, key)| (rail, key)).collect()
    }

    /// The same of any kind; with keys, of numbers.
    pub(crate) fn window_with(
        &self,
        me: u32,
        maps: &[u32],
        flavor: Flavor,
        keys: &[(RdmaRail, RemoteKey)],
    ) -> Window {
        let processes: Vec<u32> = (0..).take(self.bmls.len()).collect();
        let exposure = |rank: u32| self.exposures[rank as usize].clone();
        let handle = self.oscs[me as usize].host(exposure(me), &processes, me);
        let member = |rank: &u32| Member {
            process: *rank,
            window: handle.id(),
            bytes: BYTES as u64,
            unit: 1,
            misalignment: 0,
            mapped: maps.contains(rank).then(|| exposure(*rank)),
            device: None,
            numbers: keys.get(*rank as usize).copied(),
            kernel: 0,
        };
        let members = processes.iter().map(member).collect();
        let window = Window::new(handle, me, flavor, exposure(me), (members, Arc::new(HostEngine)));
        window.with_notices(NOTICES, maps.len())
    }

    /// Drives a process, and all others with it, at most so often for one wait; `each` is called in between.
    pub(crate) fn driver<'n>(
        &'n self,
        process: usize,
        patience: usize,
        each: &'n dyn Fn(),
    ) -> At<'n> {
        At { net: self, process, patience, each, made: Cell::new(0) }
    }
}

fn exposure(ranks: usize) -> Exposure {
    let (lock, words) = (usize::try_from(Header::bytes(ranks, NOTICES)).unwrap() / 8, BYTES / 8);
    let memory = memory(lock + words, 0);
    Exposure::new(atomics(&memory, lock..lock + words), header(&memory, 0..lock, ranks))
}

pub(crate) struct At<'n> {
    net: &'n Net,
    process: usize,
    patience: usize,
    each: &'n dyn Fn(),
    /// How often progress was made without waiting.
    pub(super) made: Cell<usize>,
}

impl Driver for At<'_> {
    type Error = WindowError;

    fn until<T>(
        &self,
        _: bool,
        _: impl Fn() -> Option<u32>,
        mut step: impl FnMut(&mut Bml) -> Option<T>,
    ) -> Result<T, WindowError> {
        for _ in 0..self.patience {
            if let Some(done) = step(&mut self.net.bml(self.process)) {
                return Ok(done);
            }
            self.net.progress();
            (self.each)();
        }
        Err(WindowError::Transport { why: "it takes too long".to_owned() })
    }

    fn progress(&self) {
        self.made.set(self.made.get() + 1);
    }
}
