//! A target whose device is slow serves others meanwhile. It gives mutexes back when the origin or the window is gone.

use super::net::Net;
use super::{NOTICES, numbers};
use crate::device::{DeviceExposure, DeviceMemory};
use crate::header::Stripes;
use crate::window::{Flavor, Member, Window};
use crate::{AccessKind, Lock, Place};
use gapless_bml::{LinkError, Rank};
use gapless_btl::loopback::Config;
use gapless_dtype::Primitive;
use gapless_engine::testkit::FakeEngine;
use gapless_engine::{HostEngine, ReduceOp, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Lease, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: u64 = 8192;

struct Scene {
    net: Net,
    engine: Arc<FakeEngine>,
    exposure: DeviceExposure,
}

impl Scene {
    /// Three processes; the first one has memory of a device whose work is asked for so often before it ends.
    fn new(polls: u32) -> Scene {
        let net = Net::new(3, &Config::default());
        let device = Arc::new(FakeDevice::new(0));
        let engine = Arc::new(FakeEngine::new(&device, polls));
        let region = device.allocate(BYTES).unwrap();
        // SAFETY: the device keeps it, and never frees it.
        let lease = unsafe { Lease::new(region, device) };
        // SAFETY: it is this window's alone.
        let memory =
            unsafe { DeviceMemory::new(lease, Arc::clone(&engine) as _, Arc::new(HostEngine)) };
        let exposure = DeviceExposure::new(memory, net.exposures[0].header.clone());
        Scene { net, engine, exposure }
    }

    /// The window of all processes, which the second and third one reach by messages.
    fn window(&self, me: u32) -> Window {
        let osc = &self.net.oscs[me as usize];
        let handle = match me {
            0 => osc.host(self.exposure.clone(), &[0, 1, 2], 0),
            me => osc.host(self.net.exposures[me as usize].clone(), &[0, 1, 2], me),
        };
        let member = |process| Member {
            process,
            window: handle.id(),
            bytes: BYTES,
            unit: 1,
            misalignment: 0,
            mapped: None,
            device: None,
            numbers: None,
            kernel: 0,
        };
        let with = ([0, 1, 2].map(member).to_vec(), Arc::new(HostEngine) as _);
        let host = || self.net.exposures[me as usize].clone();
        let window = match me {
            0 => Window::new(handle, me, Flavor::Plain, self.exposure.clone(), with),
            _ => Window::new(handle, me, Flavor::Plain, host(), with),
        };
        window.with_notices(NOTICES, 0)
    }

    /// The second process adds to a number of the device, which has not ended.
    fn add(&self, window: &mut Window) {
        let driver = self.net.driver(1, 500, &|| ());
        window.lock(&driver, 0, Lock::Shared).unwrap();
        let (typed, place) = (numbers(Primitive::Uint64, 1), Place::at(4096));
        let access = window.access("accumulate", (0, &place), &typed, AccessKind::Change).unwrap();
        let what = (&access, ReduceOp::Sum);
        window.accumulate(&driver, what, (&typed, &place), &1u64.to_ne_bytes()).unwrap();
        (0..10).for_each(|_| self.net.progress());
        assert_eq!(self.under_way(), 1);
        assert!(!self.is_free(), "it has the mutex");
    }

    fn under_way(&self) -> i64 {
        self.engine.under_way.load(Ordering::Relaxed)
    }

    /// Whether nobody has the mutex of that number.
    fn is_free(&self) -> bool {
        let (header, stripe) = (&self.exposure.header, Stripes::default().with(4096, 8));
        let free = header.try_stripes(2, stripe, |_| false);
        if free {
            header.release_stripes(2, stripe);
        }
        free
    }
}

#[test]
fn a_target_serves_others_while_its_device_is_at_work() {
    let scene = Scene::new(20_000);
    let mut windows = [0, 1, 2].map(|me| scene.window(me));
    // Another window, of memory of the host.
    let _target = scene.net.window(0, &[]);
    let mut other = [1, 2].map(|me| scene.net.window(me, &[]));
    scene.add(&mut windows[1]);
    let driver = scene.net.driver(2, 50, &|| ());
    let other = &mut other[1];
    other.lock(&driver, 0, Lock::Shared).unwrap();
    let (typed, place) = (numbers(Primitive::Uint64, 1), Place::at(8));
    let access = other.access("put", (0, &place), &typed, AccessKind::Write).unwrap();
    other.put(&driver, &access, 0..8, &7u64.to_ne_bytes()).unwrap();
    other.unlock(&driver, 0).unwrap();
    assert_eq!(scene.under_way(), 1, "the device has not ended");
    // What comes behind the accumulation waits for it.
    let steps = AtomicU64::new(0);
    let count = || {
        steps.fetch_add(1, Ordering::Relaxed);
    };
    let driver = scene.net.driver(1, 5000, &count);
    windows[1].unlock(&driver, 0).unwrap();
    assert!(steps.load(Ordering::Relaxed) > 50);
    assert!(scene.is_free() && scene.under_way() == 0);
}

/// A notice comes when the device has written, not when it was told to.
#[test]
fn a_notice_comes_behind_the_work_of_the_device() {
    let scene = Scene::new(2000);
    let windows = [0, 1, 2].map(|me| scene.window(me));
    let (data, stuck) = ([7u8; 32], scene.net.driver(1, 1, &|| ()));
    windows[1].lock_unchecked(0, Lock::Shared).unwrap();
    let typed = Typed::contiguous(Region::of(&data));
    let access = windows[1].access("put", (0, &Place::at(64)), &typed, AccessKind::Write).unwrap();
    let access = windows[1].with_notice(access, 2).unwrap();
    // SAFETY: nobody writes the data.
    unsafe { windows[1].put_all(&stuck, &access, &typed) }.unwrap();
    let counter = || windows[0].notices(&stuck, 2).unwrap();
    (0..5).for_each(|_| scene.net.progress());
    assert_eq!((scene.under_way(), counter()), (1, 0));
    while scene.under_way() > 0 {
        assert_eq!(counter(), 0);
        scene.net.progress();
    }
    assert_eq!(windows[0].wait_notices(&scene.net.driver(0, 2, &|| ()), (2, 1), &[1]), Ok(1));
    let mut found = [0; 32];
    let own = windows[0].access_own(&Place::at(64), &typed, AccessKind::Read).unwrap();
    windows[0].load(&own, 0..32, &mut found).unwrap();
    assert_eq!(found, data);
}

/// What comes behind an accumulation of the same origin sees what it left; another origin's, of the same number, waits.
#[test]
fn operations_on_one_number_are_in_order() {
    let scene = Scene::new(2000);
    let mut windows: Vec<_> = (0..3).map(|me| scene.window(me)).collect();
    scene.add(&mut windows[1]);
    let driver = scene.net.driver(2, 50, &|| ());
    windows[2].lock(&driver, 0, Lock::Shared).unwrap();
    let (typed, place) = (numbers(Primitive::Uint64, 1), Place::at(4096));
    let access = windows[2].access("accumulate", (0, &place), &typed, AccessKind::Change).unwrap();
    let (bytes, what) = (5u64.to_ne_bytes(), (&access, ReduceOp::Sum));
    let both = (&typed, &place);
    let later = windows[2].start_get_accumulate(&driver, what, both, &bytes).unwrap();
    (0..5).for_each(|_| scene.net.progress());
    assert!(scene.under_way() == 1 && !later.is_there(), "one of them has the mutex");
    let driver = scene.net.driver(1, 5000, &|| ());
    let access = windows[1].access("get", (0, &place), &typed, AccessKind::Read).unwrap();
    let mut found = [0; 8];
    windows[1].get(&driver, &access, 0..8, &mut found).unwrap();
    let found = u64::from_ne_bytes(found);
    let driver = scene.net.driver(2, 5000, &|| ());
    let before = later.wait(&driver).unwrap();
    assert_eq!(before, 1u64.to_ne_bytes());
    assert!([1, 6].contains(&found), "{found}");
}

#[test]
fn what_a_lost_origin_began_is_ended() {
    let scene = Scene::new(20_000);
    let mut windows = [0, 1, 2].map(|me| scene.window(me));
    scene.add(&mut windows[1]);
    scene.net.bml(0).give_up(Rank(1), LinkError::Corrupt { what: "a test".to_owned() });
    (0..20).for_each(|_| scene.net.progress());
    assert!(!scene.is_free() && scene.net.oscs[0].is_busy(), "the device is at work still");
    (0..2000).for_each(|_| scene.net.progress());
    assert!(scene.is_free() && scene.under_way() == 0 && !scene.net.oscs[0].is_busy());
}

#[test]
fn a_window_that_goes_waits_for_its_device() {
    let scene = Scene::new(1500);
    let mut windows: Vec<_> = (0..3).map(|me| scene.window(me)).collect();
    scene.add(&mut windows[1]);
    drop(windows.remove(0));
    assert!(scene.is_free() && scene.under_way() == 0);
    let driver = scene.net.driver(1, 500, &|| ());
    // It is told when it asks.
    assert!(windows[0].unlock(&driver, 0).is_err());
}
