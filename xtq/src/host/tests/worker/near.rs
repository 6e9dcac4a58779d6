//! Rings whose slots lie in the worker's own memory, where the initiator's processor has mapped that. That tasks by them keep
//! the contract is in `suite.rs`.

use super::*;
use gapless_bml::RemoteKey;
use gapless_mem::Mapper;
use gapless_mem::fake::FakeDevice;

fn config(device: &Arc<FakeDevice>) -> Config {
    Config { near: Some(Arc::clone(device) as Arc<dyn Mapper>), ..Config::default() }
}

/// A job, of whose ranks the second has a worker with memory of this device, and a kernel of it.
fn job(size: u32, device: &Arc<FakeDevice>, config: &Config) -> (Job, Arc<Player>) {
    let job = Job::configured(size, None, None, config);
    let player = Player::new(|_| Ok(())).on(Arc::clone(device));
    job.xtq(1).attach_worker(player.clone(), Life { idle: None, longest: PATIENCE }).unwrap();
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 64);
    // SAFETY: nothing of it touches memory.
    unsafe { job.xtq(1).register_kernel(7, kernel) }.unwrap();
    job.xtq(1).register_queue(2, QueueOptions::default()).unwrap();
    (job, player)
}

/// A task of that kernel.
fn put(xtq: &Xtq) -> PutHandle {
    let put = Put::kernel(Rank(1), 7, 2, Launch::linear(1, 1, 24), vec![0; 24]);
    xtq.put(put.acknowledged()).unwrap()
}

/// So many of them, one after the other.
fn puts(job: &mut Job, count: usize) {
    for _ in 0..count {
        let put = put(job.xtq(0));
        job.until(|_| put.outcome()).unwrap();
    }
}

fn is_proposed(xtq: &Xtq) -> bool {
    xtq.inner.with(|state| state.target.rings.is_proposed(Rank(0)))
}

fn has_ring(job: &Job) -> Option<()> {
    job.xtq(0).has_ring(Rank(1)).then_some(())
}

/// A ring of rank 0's at rank 1. Whether its slots lie in the device's memory.
fn ring_on(device: &Arc<FakeDevice>, config: &Config) -> bool {
    let (mut job, player) = job(2, device, config);
    puts(&mut job, 1);
    job.until(has_ring);
    // All slots, more than once.
    puts(&mut job, 600);
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
    let (mut job, _player) = job(3, &device, &config(&device));
    device.hesitate(true);
    put(job.xtq(0));
    job.until(|_| (device.hesitates_with() == 1).then_some(()));
    assert!(is_proposed(job.xtq(1)));
    drop(job.ends.remove(0));
    device.hesitate(false);
    assert_eq!(device.mapped_for_processor(), 0, "nobody has it");
    let third = put(&job.ends[1].xtq);
    job.until(|_| third.outcome()).unwrap();
    job.until(|job| job.ends[1].xtq.has_ring(Rank(1)).then_some(()));
}

/// While the slots are being mapped, puts go by messages, and nobody looks whether they are; a bell tells. Meanwhile the
/// application takes its accelerator for itself.
#[test]
fn a_ring_that_comes_while_the_worker_is_kept_away_waits_for_it() {
    let device = Arc::new(FakeDevice::new(0));
    let rung = Arc::<AtomicU64>::default();
    let bell = Arc::clone(&rung);
    let bell = Arc::new(move || _ = bell.fetch_add(1, Ordering::Relaxed));
    let (mut job, _player) = job(2, &device, &Config { bell, ..config(&device) });
    device.hesitate(true);
    puts(&mut job, 20);
    job.until(|_| (device.hesitates_with() == 1).then_some(()));
    job.until(|job| job.xtq(0).is_quiet().then_some(()));
    assert_eq!(has_ring(&job), None, "it is not known whether slots can be mapped");
    assert_eq!(device.hesitates_with(), 1, "it was asked once");
    job.xtq(1).keep_worker(false).unwrap();
    let before = rung.load(Ordering::Relaxed);
    device.hesitate(false);
    assert!(!job.xtq(0).is_quiet() && rung.load(Ordering::Relaxed) > before);
    job.until(has_ring);
    let waits = put(job.xtq(0));
    (0..100).for_each(|_| _ = job.step());
    assert_eq!((waits.outcome(), device.mapped_for_processor()), (None, 1));
    job.xtq(1).keep_worker(true).unwrap();
    job.until(|_| waits.outcome()).unwrap();
    puts(&mut job, 600);
}

/// The key to slots, with which an initiator keeps memory of the accelerator, ends when it has served.
#[test]
fn the_key_to_slots_ends_when_they_are_mapped_or_refused() {
    let device = Arc::new(FakeDevice::new(0));
    for refuses in [false, true] {
        let (mut job, _player) = job(2, &device, &config(&device));
        device.keep_from_processor(refuses);
        device.hesitate(true);
        put(job.xtq(0));
        job.until(|_| (device.hesitates_with() == 1).then_some(()));
        let key = job.xtq(1).inner.served().as_ref().unwrap().key_to_slots(Rank(0)).unwrap();
        let maps = |job: &mut Job, key: &RemoteKey| {
            let (peer, mapped) = job.ends[0].bml.mapped(Rank(1)).unwrap();
            let mapper: Arc<dyn Mapper> = Arc::clone(&device) as _;
            mapped.map_for_processor(peer, key, &mapper, Arc::new(|| {})).is_ok()
        };
        assert!(maps(&mut job, &key));
        device.hesitate(false);
        job.until(has_ring);
        assert_eq!(device.mapped_for_processor(), usize::from(!refuses));
        job.until(|job| {
            job.xtq(1).inner.served().as_ref()?.key_to_slots(Rank(0)).is_none().then_some(())
        });
        assert!(!maps(&mut job, &key), "refuses: {refuses}");
        puts(&mut job, 10);
    }
}
