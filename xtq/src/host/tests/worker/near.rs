//! Rings whose slots lie in the worker's own memory, where the initiator's processor has mapped that. That tasks by them keep
//! the contract is in `suite.rs`.

use super::*;
use gapless_mem::Mapper;
use gapless_mem::fake::FakeDevice;

fn config(device: &Arc<FakeDevice>) -> Config {
    Config { near: Some(Arc::clone(device) as Arc<dyn Mapper>), ..Config::default() }
}

/// A ring of rank 0's at rank 1, whose worker has memory of this device. Whether its slots lie in the device's memory.
fn ring_on(device: &Arc<FakeDevice>, config: &Config) -> bool {
    let mut job = Job::configured(2, None, None, config);
    let player = Player::new(|_| Ok(())).on(Arc::clone(device));
    job.xtq(1).attach_worker(player.clone(), Life { idle: None, longest: PATIENCE }).unwrap();
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 64);
    // SAFETY: nothing of it touches memory.
    unsafe { job.xtq(1).register_kernel(7, kernel) }.unwrap();
    job.xtq(1).register_queue(2, QueueOptions::default()).unwrap();
    let put = |job: &mut Job| {
        let launch = Launch::linear(1, 1, 24);
        let put = Put::kernel(Rank(1), 7, 2, launch, vec![0; 24]).acknowledged();
        let put = job.xtq(0).put(put).unwrap();
        job.until(|_| put.outcome()).unwrap();
    };
    put(&mut job);
    job.until(|job| job.xtq(0).has_ring(Rank(1)).then_some(()));
    // All slots, more than once.
    (0..600).for_each(|_| put(&mut job));
    let near = device.mapped_for_processor();
    assert!(near <= 1, "{near} mappings of one ring");
    // The ring's memory, the control block, and this process's own ring; slots, if they are used.
    assert_eq!(player.reached(), 3 + near);
    near == 1
}

#[test]
fn slots_lie_in_the_workers_memory_where_the_processor_maps_it() {
    let device = Arc::new(FakeDevice::new(0));
    assert!(ring_on(&device, &config(&device)));
    assert_eq!(device.mapped_for_processor(), 0, "nothing stays mapped");
    assert!(!ring_on(&device, &Config::default()), "nothing maps it");
    device.keep_from_processor(true);
    assert!(!ring_on(&device, &config(&device)), "then they lie in the host's");
}

/// An initiator that has slots offered and goes leaves nothing that the target waits for.
#[test]
fn an_initiator_that_is_lost_while_it_maps_slots_is_forgotten() {
    let device = Arc::new(FakeDevice::new(0));
    let mut job = Job::configured(3, None, None, &config(&device));
    let player = Player::new(|_| Ok(())).on(Arc::clone(&device));
    job.xtq(1).attach_worker(player, Life { idle: None, longest: PATIENCE }).unwrap();
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 64);
    // SAFETY: nothing of it touches memory.
    unsafe { job.xtq(1).register_kernel(7, kernel) }.unwrap();
    job.xtq(1).register_queue(2, QueueOptions::default()).unwrap();
    let put = || Put::kernel(Rank(1), 7, 2, Launch::linear(1, 1, 24), vec![0; 24]).acknowledged();
    job.xtq(0).put(put()).unwrap();
    // The target has offered, and rank 0 has not answered.
    let proposed = |state: &mut super::super::super::State| state.target.rings.is_proposed(Rank(0));
    job.until(|job| job.xtq(1).inner.with(proposed).then_some(()));
    drop(job.ends.remove(0));
    let third = job.ends[1].xtq.put(put()).unwrap();
    job.until(|_| third.outcome()).unwrap();
    job.until(|job| job.ends[1].xtq.has_ring(Rank(1)).then_some(()));
}

/// While the slots are being mapped, puts go by messages; and the application takes its accelerator for itself.
#[test]
fn a_ring_that_comes_while_the_worker_is_kept_away_waits_for_it() {
    let device = Arc::new(FakeDevice::new(0));
    device.hesitate(u32::MAX);
    let mut job = Job::configured(2, None, None, &config(&device));
    let player = Player::new(|_| Ok(())).on(Arc::clone(&device));
    job.xtq(1).attach_worker(player, Life { idle: None, longest: PATIENCE }).unwrap();
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 64);
    // SAFETY: nothing of it touches memory.
    unsafe { job.xtq(1).register_kernel(7, kernel) }.unwrap();
    job.xtq(1).register_queue(2, QueueOptions::default()).unwrap();
    let put = |job: &Job| {
        let put = Put::kernel(Rank(1), 7, 2, Launch::linear(1, 1, 24), vec![0; 24]);
        job.xtq(0).put(put.acknowledged()).unwrap()
    };
    for _ in 0..20 {
        let put = put(&job);
        job.until(|_| put.outcome()).unwrap();
    }
    assert!(!job.xtq(0).has_ring(Rank(1)), "it is not known whether slots can be mapped");
    job.xtq(1).keep_worker(false).unwrap();
    device.hesitate(0);
    job.until(|job| job.xtq(0).has_ring(Rank(1)).then_some(()));
    let waits = put(&job);
    (0..100).for_each(|_| _ = job.step());
    assert_eq!((waits.outcome(), device.mapped_for_processor()), (None, 1));
    job.xtq(1).keep_worker(true).unwrap();
    job.until(|_| waits.outcome()).unwrap();
    for _ in 0..600 {
        let put = put(&job);
        job.until(|_| put.outcome()).unwrap();
    }
}
