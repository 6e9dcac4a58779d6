//! The staged protocols, over a loopback that maps the memory of a fake device: every way, layout,
//! length and depth; what cannot be had; the two ends' failures.

mod common;

use common::engine::FakeEngine;
use common::{Buffer, Home, Job, bytes, link, strided};
use gapless_btl::loopback::{self, Loopback};
use gapless_dtype::Layout;
use gapless_engine::{Engine, HostEngine};
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Bounds, Config, PmlError, Protocol, Source, Status, TagSel, Tuning};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the fragments of these tests are long, in bytes.
const FRAGMENT: u32 = 1000;

struct Lab {
    job: Job,
    device: Arc<FakeDevice>,
    engine: Arc<FakeEngine>,
}

fn config(force: Protocol, depth: u32) -> Config {
    let tuning =
        Tuning { staged_fragment_bytes: FRAGMENT, staged_depth: depth, ..Tuning::default() };
    Config { force: Some(force), tuning, ..Config::default() }
}

/// Two ranks, each of which has attached the device, whose work ends after so many polls.
fn lab(config: Config, polls: u32) -> Lab {
    let device = Arc::new(FakeDevice::with_delay(3, polls));
    let engine = Arc::new(FakeEngine::new(&device, polls));
    let engines: [Arc<dyn Engine>; 2] = [Arc::new(HostEngine), Arc::clone(&engine) as _];
    let mut rail = |_, hub: &loopback::Hub| Box::new(Loopback::with(hub, link())) as Box<_>;
    let mut job = Job::with_engines(2, config, &mut rail, &engines);
    let attached: Arc<dyn Device> = Arc::clone(&device) as _;
    for rank in 0..2 {
        job.pml(rank).bml_mut().attach(&attached).unwrap();
    }
    Lab { job, device, engine }
}

impl Lab {
    fn home(&self, on_device: bool) -> Home {
        if on_device { Home::Fake(Arc::clone(&self.device)) } else { Home::Heap }
    }

    /// Sends a message from rank 0 to rank 1.
    fn carry(&mut self, from: &Buffer, to: &Buffer, what: &str) -> Status {
        let send = self.job.isend(0, from, 1, 0);
        let recv = self.job.irecv(1, to, Source::Rank(0), TagSel::Is(0));
        let status = self.job.finish(1, recv).unwrap();
        self.job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), what);
        self.assert_idle(what);
        status
    }

    /// Nothing of the staging memory is in use, and no engine works.
    fn assert_idle(&mut self, what: &str) {
        for rank in 0..2 {
            if self.job.ranks[rank as usize].is_some() {
                assert_eq!(self.job.pml(rank).staging_bytes().1, 0, "{what}: rank {rank}");
            }
        }
        assert_eq!(self.engine.under_way.load(Ordering::Relaxed), 0, "{what}");
    }
}

/// A layout of `size` bytes, with gaps or without.
fn layout(size: u64, gaps: bool) -> Layout {
    if gaps { strided(size, 1, 3) } else { bytes(size) }
}

#[test]
fn every_way_layout_length_and_depth() {
    let fragment = u64::from(FRAGMENT);
    for way in Protocol::STAGED {
        for depth in [1, 2, 4, 64] {
            let mut lab = lab(config(way, depth), depth % 3);
            for size in [1, fragment - 1, fragment, fragment + 1, 2 * fragment, 23 * fragment + 7] {
                for gaps in 0..4 {
                    let what = format!("{size} bytes by {way}, depth {depth}, gaps {gaps}");
                    let (a, b) = (layout(size, gaps & 1 == 1), layout(size, gaps & 2 == 2));
                    let from = Buffer::source_in(&a, 1, size, lab.home(true));
                    let to = Buffer::target_in(&b, 1, lab.home(true));
                    let status = lab.carry(&from, &to, &what);
                    assert_eq!((status.protocol, status.bytes), (way, size), "{what}");
                }
            }
            let counters = lab.job.pml(0).counters();
            let tally = counters.of(way);
            assert_eq!((tally.messages, tally.unpacks), (24, 0), "{way}: {tally:?}");
            assert_eq!(tally.depth_max, depth.min(24), "{way}: {tally:?}");
            assert!(lab.job.pml(1).counters().of(way).fragments >= 24 + 4 * 23, "{way}");
        }
    }
}
