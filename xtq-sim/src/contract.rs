//! The contract of all back ends, on the simulated machine: the tests of `gapless-xtq`, over a [`Cluster`].

#[path = "../../xtq/src/host/tests/gathered.rs"]
mod gathered;
#[allow(unsafe_code, reason = "launches what touches no memory but the payload")]
#[path = "../../xtq/src/host/tests/launched.rs"]
mod launched;
#[allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]
mod scene;
#[path = "../../xtq/src/host/tests/suite.rs"]
mod suite;
#[path = "../../xtq/src/host/tests/contract.rs"]
mod sums;

use gapless_bml::Rank;
use gapless_mem::{Completion, DeviceError};
use gapless_xtq::packet::Launch;
use gapless_xtq::{
    Gather, GatherInto, GroupLimits, Kernel, KernelTask, Launcher, Payload, Put, PutHandle,
    QueueOptions, Refusal, RefusedTask, Retry, Signal, XtqError,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The same calls give the same events at the same times.
#[test]
fn a_simulated_scene_is_the_same_each_time() {
    let digest = || {
        let mut scene = scene::Scene::new(scene::PLAIN, 3, None);
        scene.post(64);
        for number in 0..30 {
            let put = scene.task(number, &[1; 40]).retry(Retry::InAnyOrder);
            scene.put_from(usize::from(number % 2 == 0), put.acknowledged());
        }
        scene.settle();
        let sim = scene.sim.borrow();
        (sim.digest(), sim.now(), scene.ran())
    };
    assert_eq!(digest(), digest());
}
