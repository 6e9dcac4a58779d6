//! Windows of memory of devices, pretended or OpenCL's or CUDA's: random programs against the model, by devices that map
//! each other's memory and by messages; contention; what fails; processes, of which one is killed.

use super::device_notices::by_kernel;
use super::program::{self, Kind, Operation};
use super::worker::play;
use super::{Lock, ReduceOp, why};
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::xtq::{CudaWorker, Life};
use gapless::{
    Builder, Communicator, CudaDriver, Datatype, Device, DeviceBuf, Error, OpenClDevice, Place,
    Primitive, Region, Space, View, ViewMut, Window, WindowBuilder, WindowError, WindowMemory,
    World,
};
use gapless_btl_testkit::conformance::skip;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::job_of;
use gapless_tests::launcher::{Lines, Member, TestLauncher, say};
use gapless_xtq::device::mock_worker::{MockTask, MockWorker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Who maps whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// All ranks have one device, and map each other's memory.
    Mapped,
    /// The same; odd ranks send messages nevertheless, and get them.
    Half,
    /// Each rank has a device of its own, and nothing is mapped.
    Messages,
    /// The same by short messages, of which few are under way.
    Narrow,
    /// As `Mapped`; odd ranks give memory of the host.
    Hosts,
}

pub(super) const PATHS: [Path; 5] =
    [Path::Mapped, Path::Half, Path::Messages, Path::Narrow, Path::Hosts];

impl Path {
    fn config(self) -> LoopbackConfig {
        let whole = LoopbackConfig::default();
        let mapped = !matches!(self, Path::Messages | Path::Narrow);
        match self {
            Path::Narrow => LoopbackConfig {
                eager_bytes: 256,
                max_fragment_bytes: 256,
                slots: 8,
                rdma: false,
                mapped,
                ..whole
            },
            _ => LoopbackConfig { mapped, ..whole },
        }
    }

    pub(super) fn builder(self, comm: &Communicator) -> WindowBuilder<'_> {
        let odd = !comm.rank().is_multiple_of(2);
        if self == Path::Half && odd { comm.window().by_messages() } else { comm.window() }
    }
}

/// Runs `body` as each of `size` ranks, whose memory of a device is in the space that it is given.
pub(super) fn ranks(path: Path, size: u32, body: impl Fn(&World, Space, &FakeDevice) + Sync) {
    let hub = Hub::new();
    let each = matches!(path, Path::Messages | Path::Narrow);
    let one = Arc::new(FakeDevice::with_delay(0, 1));
    let device = |rank: u32| match each {
        true => Arc::new(FakeDevice::with_delay(rank, 1)),
        false => Arc::clone(&one),
    };
    let devices: Vec<_> = (0..size).map(device).collect();
    let builder = |rank: u32| {
        let device = &devices[rank as usize];
        let transport = Box::new(Loopback::with(&hub, path.config()));
        let builder = World::builder().only(["loopback"]).transport(transport);
        let engine = Arc::new(FakeEngine::new(device, 70));
        builder.engine(engine).device(Arc::clone(device) as _)
    };
    job_of(size, builder, |world| {
        let device = &devices[world.rank() as usize];
        body(world, device.space(), device);
    });
}

/// Work of a device that is waited for.
///
/// # Safety
/// Both live, and nothing else touches them.
pub(super) unsafe fn copy(device: &dyn Device, to: Region, from: Region) {
    // SAFETY: the caller's promise; the work is waited for.
    unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
}

/// Every other operation from memory of the device, or to there.
fn from_device<M>(
    (world, space): (&World, Space),
    operation: &Operation,
    window: &Window<u8, M>,
    expected: &[u8],
) -> Option<Vec<u8>> {
    let Operation { kind, target, here, data, .. } = operation;
    if data[11].is_multiple_of(2) {
        return None;
    }
    let len = data.len() as u64;
    let [given, found] = [(); 2].map(|()| world.alloc_device(space, len).unwrap());
    let device = given.device();
    // SAFETY: the buffer is this function's own.
    unsafe { copy(&*device, given.region(), Region::of(data)) };
    let rank = u32::try_from(*target).unwrap();
    // SAFETY: as above: nothing writes it from now on.
    let view = unsafe { View::of_region(given.region(), 0, &here.layout, here.count) }.unwrap();
    // SAFETY: as above: this view alone touches it.
    let into = unsafe { ViewMut::of_region(found.region(), 0, &here.layout, here.count) }.unwrap();
    match kind {
        Kind::Put => window.put(view, rank, operation.place()).unwrap(),
        Kind::Accumulate(op) => window.accumulate(view, rank, operation.place(), *op).unwrap(),
        Kind::Get => window.get(into, rank, operation.place()).unwrap(),
        Kind::GetAccumulate(op) => {
            window.get_accumulate(view, into, rank, operation.place(), *op).unwrap();
        }
        _ => return None,
    }
    if matches!(kind, Kind::Put | Kind::Accumulate(_)) {
        return Some(expected.to_vec());
    }
    let mut read = vec![0u8; data.len()];
    // SAFETY: as above.
    unsafe { copy(&*device, Region::of_mut(&mut read), found.region()) };
    Some(here.pack(&read))
}

fn program<M: WindowMemory>(
    what: &str,
    (world, space): (&World, Space),
    window: Window<u8, M>,
    seed: u64,
) {
    let otherwise = |operation: &Operation, window: &Window<u8, M>, expected: &[u8]| {
        from_device((world, space), operation, window, expected)
    };
    program::run(what, (world.comm(), seed), window, &otherwise);
}

#[test]
fn random_programs_do_what_the_model_does() {
    let seed = std::env::var("GAPLESS_SEED").map_or(0, |seed| seed.parse().unwrap());
    println!("GAPLESS_SEED={seed}");
    for path in PATHS {
        for size in 1..=3 {
            ranks(path, size, |world, space, _| {
                let (comm, what) = (world.comm(), format!("{path:?}"));
                let bytes = program::bytes(comm);
                let seed = seed + u64::from(size);
                if path == Path::Hosts && !comm.rank().is_multiple_of(2) {
                    let window = path.builder(comm).allocate(bytes).unwrap();
                    return program(&what, (world, space), window, seed);
                }
                let window: Window<u8, DeviceBuf> =
                    path.builder(comm).allocate_on(space, bytes).unwrap();
                for rank in 0..size {
                    let maps = match path {
                        Path::Mapped | Path::Hosts => true,
                        Path::Half => [rank, comm.rank()].iter().all(|it| it.is_multiple_of(2)),
                        Path::Messages | Path::Narrow => rank == comm.rank(),
                    };
                    assert_eq!(window.is_mapped(rank).unwrap(), maps, "{path:?} {rank}");
                }
                program(&what, (world, space), window, seed);
            });
        }
    }
}

#[test]
fn random_programs_on_an_opencl_device() {
    if let Err(why) = OpenClDevice::open(0) {
        return skip("random_programs_on_an_opencl_device", &why.to_string());
    }
    let hub = Hub::new();
    let builder = |_| {
        let transport = Box::new(Loopback::new(&hub));
        World::builder().only(["loopback"]).transport(transport)
    };
    job_of(2, builder, |world| {
        let device = OpenClDevice::open(0).unwrap();
        let space = device.space();
        let bytes = program::bytes(world.comm());
        let window = world.comm().window().allocate_on(space, bytes).unwrap();
        program("OpenCL", (world, space), window, 5);
    });
}

/// Numbers are given once, and sums lose nothing, whoever changes them and how.
fn contend(world: &World, builder: WindowBuilder<'_>, space: Space) {
    const EACH: u32 = 12;
    const LONG: usize = 3000;
    let (comm, all) = (world.comm(), world.size());
    let mut window = builder.allocate_on::<u32>(space, 8 + LONG).unwrap();
    window.lock_all().unwrap();
    let fetch = |_| window.fetch_and_op(1u32, 0, 1, ReduceOp::Sum).unwrap();
    let mine: Vec<u32> = (0..EACH).map(fetch).collect();
    assert!(mine.is_sorted());
    for _ in 0..EACH / 4 {
        window.accumulate(&[1u32; LONG], 0, 8, ReduceOp::Sum).unwrap();
        // A counter under a lock of its own.
        while window.compare_and_swap(0u32, 1, 0, 2).unwrap() != 0 {
            std::thread::yield_now();
        }
        let mut count = [0u32];
        window.get(&mut count, 0, 3).unwrap();
        window.put(&[count[0] + 1], 0, 3).unwrap();
        window.flush(0).unwrap();
        window.accumulate(&0u32, 0, 2, ReduceOp::Replace).unwrap();
    }
    window.unlock_all().unwrap();
    let mut given = vec![0u32; (all * EACH) as usize];
    comm.allgather(&mine, &mut given).unwrap();
    given.sort_unstable();
    assert!(given.into_iter().eq(0..all * EACH));
    if comm.rank() == 0 {
        let mut found = [0u32; 8 + LONG];
        window.read(&mut found, 0).unwrap();
        assert_eq!(found[..4], [0, all * EACH, 0, all * (EACH / 4)]);
        assert!(found[8..].iter().all(|sum| *sum == all * (EACH / 4)));
    }
    window.free().unwrap();
}

#[test]
fn elements_that_all_change_lose_nothing() {
    for path in [Path::Mapped, Path::Half, Path::Messages, Path::Narrow] {
        ranks(path, 4, |world, space, _| contend(world, path.builder(world.comm()), space));
    }
}

/// Users' memory comes back as operations have left it; locks, and a rank's own loads and stores.
#[test]
fn memory_that_ranks_give_comes_back() {
    for path in [Path::Mapped, Path::Messages] {
        ranks(path, 2, |world, space, device| {
            let (comm, me) = (world.comm(), world.rank());
            let memory = world.alloc_device(space, 64).unwrap();
            let mut window = path.builder(comm).create(memory).unwrap();
            window.write(&[9u8; 64], 0).unwrap();
            comm.barrier().unwrap();
            window.lock(1 - me, Lock::Exclusive).unwrap();
            window.put(&[7u8; 8], 1 - me, 8).unwrap();
            window.unlock(1 - me).unwrap();
            comm.barrier().unwrap();
            assert_eq!([7, 8, 15, 16].map(|at| window.load(at).unwrap()), [9, 7, 7, 9]);
            let memory = window.free().unwrap();
            let mut found = [0u8; 64];
            // SAFETY: nobody else has it any more.
            unsafe { copy(device, Region::of_mut(&mut found), memory.region()) };
            assert_eq!((found[8], found[20]), (7, 9));
            // A window without bytes.
            let window = path.builder(comm).allocate_on::<u64>(space, 0).unwrap();
            assert_eq!(window.len(me).unwrap(), 0);
            window.free().unwrap();
        });
    }
}

#[test]
fn what_devices_do_not_do_is_refused() {
    ranks(Path::Mapped, 2, |world, space, _| {
        let comm = world.comm();
        let tasks = comm.window().accumulate_by_tasks();
        let error = why(tasks.allocate_on::<u64>(space, 4));
        assert!(matches!(error, WindowError::Flavor { .. }), "{error}");
        // One rank has no such device: both learn it.
        let there =
            if comm.rank() == 0 { Space::Device { kind: "fake", device: 77 } } else { space };
        let made = comm.window().allocate_on::<u64>(there, 4).map(drop);
        match comm.rank() {
            0 => assert!(matches!(made, Err(Error::NoDevice { .. })), "{made:?}"),
            _ => assert_eq!(why(made), WindowError::NoMemory { rank: 0 }),
        }
        let mut window = comm.window().allocate_on::<u64>(space, 4).unwrap();
        window.lock_all().unwrap();
        let error = why(window.put(&[1u64], 1, 4));
        assert!(matches!(error, WindowError::Outside { rank: 1, bytes: 32, .. }), "{error}");
        let place = Place::typed(0, &Datatype::from(Primitive::Double).commit().unwrap(), 1);
        assert!(matches!(why(window.put(&[1u64], 1, place)), WindowError::Mismatch { .. }));
        window.unlock_all().unwrap();
        window.free().unwrap();
    });
}

/// A device that fails costs the operation, not the target: who asked for it learns that.
#[test]
fn a_device_that_fails_is_an_error_of_the_operation() {
    let hub = Hub::new();
    let devices = [0, 1].map(|rank| Arc::new(FakeDevice::new(rank)));
    let engines = [0, 1].map(|rank| Arc::new(FakeEngine::new(&devices[rank], 3)));
    let builder = |rank: u32| {
        let config = LoopbackConfig { mapped: false, ..LoopbackConfig::default() };
        let transport = Box::new(Loopback::with(&hub, config));
        let builder = World::builder().only(["loopback"]).transport(transport);
        let (engine, device) = (&engines[rank as usize], &devices[rank as usize]);
        builder.engine(Arc::clone(engine) as _).device(Arc::clone(device) as _)
    };
    job_of(2, builder, |world| {
        let (comm, me) = (world.comm(), world.rank());
        let space = devices[me as usize].space();
        let mut window = comm.window().allocate_on::<u64>(space, 4).unwrap();
        if me == 0 {
            window.lock(1, Lock::Shared).unwrap();
            engines[1].broken.store(true, Ordering::Relaxed);
            let refused = |error| matches!(error, WindowError::Refused { rank: 1, .. });
            window.put(&[1u64], 1, 0).unwrap();
            assert!(refused(why(window.flush(1))));
            assert!(refused(why(window.get(&mut [0u64], 1, 0))));
            assert!(refused(why(window.fetch_and_op(1u64, 1, 0, ReduceOp::Sum))));
            engines[1].broken.store(false, Ordering::Relaxed);
            // Its mutex is free.
            window.fetch_and_op(2u64, 1, 0, ReduceOp::Sum).unwrap();
            assert_eq!(window.fetch_and_op(2u64, 1, 0, ReduceOp::Sum).unwrap(), 2);
            window.unlock(1).unwrap();
        }
        comm.barrier().unwrap();
        window.free().unwrap();
    });
}

/// Accumulations that the worker of the device does in that device's memory.
#[test]
fn a_worker_accumulates_into_memory_of_its_device() {
    ranks(Path::Mapped, 2, |world, space, device| {
        let (comm, me) = (world.comm(), world.rank());
        // What a worker would do on the device, the mock worker does to the memory that the device pretends with.
        let memory = world.alloc_device(space, 64).unwrap();
        let (real, seen) = (device.alias(memory.region()).unwrap(), memory.region().start());
        let mock = MockWorker::new(move |task: &MockTask| {
            let mut task = task.clone();
            task.arguments[0] = task.arguments[0] - seen + real.start();
            play(&task)
        });
        world.attach_window_worker(mock, Life::default()).unwrap();
        let builder = comm.window().accumulate_by_worker();
        let mut window = builder.create(memory).unwrap();
        window.write(&[0u8; 64], 0).unwrap();
        comm.barrier().unwrap();
        window.lock_all().unwrap();
        for number in 0..10u64 {
            window.accumulate(&[number, 2 * number], 1 - me, 16, ReduceOp::Sum).unwrap();
        }
        window.put(&[3u8], 1 - me, 63).unwrap();
        window.unlock_all().unwrap();
        comm.barrier().unwrap();
        let mut found = [0u8; 64];
        window.read(&mut found, 0).unwrap();
        assert_eq!((&found[16..24], found[24], found[63]), (&45u64.to_ne_bytes()[..], 90, 3));
        window.free().unwrap();
    });
}

const FAKE: &str = "collectives::windows::on_device::processes_on_one_device";
const CUDA: &str = "collectives::windows::on_device::processes_on_cuda";
const VICTIM: u32 = 1;
const WATCHDOG: Duration = Duration::from_secs(60);

#[test]
fn processes_on_one_device() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    launchers(FAKE, "fake");
}

#[test]
fn processes_on_cuda() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    match CudaDriver::load() {
        Ok(_) => launchers(CUDA, "cuda"),
        Err(why) => skip(CUDA, &why.to_string()),
    }
}

fn launchers(test: &str, device: &str) {
    for path in ["mapped", "half", "messages"] {
        let part = format!("{device} {path}");
        let mut launcher = TestLauncher::start(test, &[&*part; 2], |_, _| {});
        let mut lines = Lines::new(&part, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "all is right", 2);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "named it", 1);
    }
}

fn with_device(member: &Member, builder: Builder) -> (Builder, Space) {
    if member.part.starts_with("cuda") {
        let devices = CudaDriver::load().unwrap().devices();
        return (builder, Space::Cuda { device: member.rank % devices });
    }
    let device = Arc::new(FakeDevice::with_delay(0, 1).identified(77, false));
    let engine = Arc::new(FakeEngine::new(&device, 2));
    (builder.engine(engine).device(device), Space::Device { kind: "fake", device: 0 })
}

/// The worker of each rank's GPU, where one may stay, accumulates into memory of that GPU.
fn by_worker(world: &World, ordinal: u32) {
    const ALL: usize = 20_000;
    let (comm, me) = (world.comm(), world.rank());
    let device = Arc::new(CudaDriver::load().unwrap().device(ordinal).unwrap());
    let attached = CudaWorker::new(device).map_err(|error| error.to_string()).and_then(|worker| {
        let life = Life::default();
        world.attach_window_worker(Arc::new(worker), life).map_err(|error| error.to_string())
    });
    let builder = comm.window().accumulate_by_worker();
    let window = builder.allocate_on::<u64>(Space::Cuda { device: ordinal }, ALL);
    let mut window = match window {
        Ok(window) => window,
        Err(error) => return skip("accumulations by a worker", &format!("{attached:?} {error}")),
    };
    window.lock_all().unwrap();
    for number in 0..20u64 {
        window.accumulate(&[number + u64::from(me); ALL], 0, 0, ReduceOp::Sum).unwrap();
        window.accumulate(&[number], 1, 7, ReduceOp::Max).unwrap();
    }
    window.unlock_all().unwrap();
    comm.barrier().unwrap();
    let mut found = [0u64; ALL];
    window.read(&mut found, 0).unwrap();
    let right = |at: usize| match (me, at) {
        (0, _) => 2 * 190 + 20,
        (_, 7) => 19,
        _ => 0,
    };
    assert_eq!(found.iter().enumerate().position(|(at, found)| *found != right(at)), None);
    window.free().unwrap();
}

fn rank(mut member: Member) {
    let (builder, space) = with_device(&member, World::builder());
    let world = builder.wireup(member.wireup()).init().unwrap();
    let (comm, me) = (world.comm(), world.rank());
    let by_messages = match member.part.split_once(' ').unwrap().1 {
        "mapped" => false,
        "half" => me == 1,
        _ => true,
    };
    let build = || if by_messages { comm.window().by_messages() } else { comm.window() };
    for seed in 0..3 {
        let window = build().allocate_on(space, program::bytes(comm)).unwrap();
        for rank in 0..2 {
            // Who sends messages gets them.
            let maps = !by_messages && (rank == me || member.part.ends_with("mapped"));
            assert_eq!(window.is_mapped(rank).unwrap(), maps, "{}", member.part);
        }
        program(&member.part, (&world, space), window, seed);
    }
    contend(&world, build(), space);
    if let Space::Cuda { device } = space {
        by_kernel(&world, device, build());
        if member.part.ends_with("mapped") {
            by_worker(&world, device);
        }
    }
    let mut window: Window<u64, DeviceBuf> = build().allocate_on(space, 4000).unwrap();
    window.lock_all().unwrap();
    comm.barrier().unwrap();
    say("all is right");
    loop {
        let result = window
            .accumulate(&[1u64; 4000], 1 - me, 0, ReduceOp::Sum)
            .and_then(|()| window.flush(1 - me));
        let Err(error) = result else { continue };
        assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
        break;
    }
    // Its own memory is as free as ever.
    window.put(&[5u64], me, 0).unwrap();
    window.accumulate(&[5u64], me, 1, ReduceOp::Sum).unwrap();
    window.flush(me).unwrap();
    assert_eq!(window.load(0).unwrap(), 5);
    say("named it");
    drop(window);
    let _ = world.finalize();
}
