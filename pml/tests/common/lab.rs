//! Two ranks with a fake device, over a loopback that maps its memory.

use super::{Buffer, Home, Job, bytes, link, strided};
use gapless_btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_dtype::Layout;
use gapless_engine::HostEngine;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Config, Protocol, Source, Status, TagSel, Tuning};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long fragments are here, in bytes.
pub(crate) const FRAGMENT: u32 = 1000;

/// The same device, and an engine of its own, for each of two ranks.
pub(crate) struct Lab {
    pub(crate) job: Job,
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) engines: [Arc<FakeEngine>; 2],
}

pub(crate) fn config(force: Protocol, depth: u32) -> Config {
    let tuning =
        Tuning { staged_fragment_bytes: FRAGMENT, staged_depth: depth, ..Tuning::default() };
    let share_device_buffers = false;
    Config { force: Some(force), tuning, share_device_buffers, ..Config::default() }
}

/// A layout of `size` bytes, with gaps or without.
pub(crate) fn layout(size: u64, gaps: bool) -> Layout {
    if gaps { strided(size, 1, 3) } else { bytes(size) }
}

impl Lab {
    /// Work ends after so many polls.
    pub(crate) fn new(config: Config, polls: u32) -> Lab {
        Lab::over(config, polls, &mut |_, hub| Box::new(Loopback::with(hub, link())))
    }

    /// Over other transports.
    pub(crate) fn over(
        config: Config,
        polls: u32,
        rail: &mut dyn FnMut(u32, &Hub) -> Box<dyn Btl>,
    ) -> Lab {
        let device = Arc::new(FakeDevice::with_delay(3, polls));
        let engines = [0; 2].map(|_| Arc::new(FakeEngine::new(&device, polls)));
        let mut job = Job::with_engines(2, config, rail, &[Arc::new(HostEngine)]);
        for (rank, engine) in (0..).zip(&engines) {
            job.pml(rank).add_engine(Arc::clone(engine) as _);
        }
        Lab { job, device, engines }
    }

    pub(crate) fn home(&self, on_device: bool) -> Home {
        if on_device { Home::Fake(Arc::clone(&self.device)) } else { Home::Heap }
    }

    /// Sends a message from rank 0 to rank 1.
    pub(crate) fn carry(&mut self, from: &Buffer, to: &Buffer, what: &str) -> Status {
        let send = self.job.isend(0, from, 1, 0);
        let recv = self.job.irecv(1, to, Source::Rank(0), TagSel::Is(0));
        let status = self.job.finish(1, recv).unwrap();
        self.job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), what);
        self.assert_idle(what);
        status
    }

    /// Nothing of the staging memory is in use once everybody has been heard, and no engine works.
    pub(crate) fn assert_idle(&mut self, what: &str) {
        self.job.settle();
        for (rank, engine) in (0..).zip(&self.engines) {
            if let Some(pml) = &mut self.job.ranks[rank] {
                assert_eq!(pml.staging_bytes().1, 0, "{what}: rank {rank}");
                assert!(!pml.has_requests() && !pml.is_busy(), "{what}: rank {rank}");
            }
            assert_eq!(engine.under_way.load(Ordering::Relaxed), 0, "{what}");
        }
    }

    /// What a rank's engine does from now on fails, after some pieces of work.
    pub(crate) fn break_after(&self, rank: usize, pieces: i64) {
        self.engines[rank].fails_after.store(pieces, Ordering::Relaxed);
    }

    /// The device as the transports know it.
    pub(crate) fn attached(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as _
    }
}
