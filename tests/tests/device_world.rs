//! The whole stack on device memory: every rank a thread with a device (OpenCL's PoCL in CI, CUDA where
//! there is any), and nothing set up: the engine is made when the first message involves the device.

use gapless::btl::Btl;
use gapless::xtq::{DeviceFunction, Kernel, Launch, Life, Put, QueueOptions, Rank, Tasks};
use gapless::{Builder, Config, Engine, Protocol, Region};
use gapless::{PmlError, SendMode, Source, Status, TagSel, View, ViewMut, World};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_engine::testkit::FakeEngine;
use gapless_layouts::{Case, Side, cases};
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::{Call, Wrapped};
use gapless_mem_cuda::CudaDriver;
use gapless_mem_opencl::OpenClDevice;
use gapless_tests::{byte_at, job, job_of};
use gapless_xtq::device::mock_worker::MockWorker;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The device of a rank, or why there is none.
type Open = fn(u32) -> Result<Arc<dyn Device>, String>;

fn opencl(_: u32) -> Result<Arc<dyn Device>, String> {
    let device = OpenClDevice::open(0).map_err(|error| error.to_string())?;
    Ok(Arc::new(device))
}

/// Ranks share the devices there are.
fn cuda(rank: u32) -> Result<Arc<dyn Device>, String> {
    let driver = CudaDriver::load().map_err(|error| error.to_string())?;
    let device = driver.device(rank % driver.devices()).map_err(|error| error.to_string())?;
    Ok(Arc::new(device))
}

/// Known bytes in a device's memory.
fn upload(device: &dyn Device, bytes: &[u8]) -> Region {
    let region = device.allocate(bytes.len() as u64).unwrap();
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
    region
}

/// Takes a device's memory back, with what was in it.
fn download(device: &dyn Device, region: Region) -> Vec<u8> {
    let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
    // SAFETY: as in `upload`.
    unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }.unwrap().wait().unwrap();
    // SAFETY: allocated in `upload`; every message in it has ended.
    unsafe { device.free(region) }.unwrap();
    bytes
}

fn image(side: &Side, seed: u64) -> Vec<u8> {
    (0..side.buffer_bytes).map(|at| byte_at(seed, at)).collect()
}

/// A message to the next rank and one from the one before; the receiver's side in memory of the
/// device or the host, the sender's too.
fn exchange(world: &World, device: &dyn Device, case: &Case, from_device: bool, to_device: bool) {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    let (to, from) = ((me + 1) % size, (me + size - 1) % size);
    let send = case.send.datatype.commit().unwrap();
    let recv = case.recv.datatype.commit().unwrap();
    let out = image(&case.send, u64::from(me) + 1);
    let mut into = image(&case.recv, 99);
    let right = {
        // The host's own stack is tested elsewhere.
        let (theirs, mut right) = (image(&case.send, u64::from(from) + 1), into.clone());
        let own = world.self_comm();
        own.scope(|s| {
            let into = ViewMut::typed(&mut right, case.recv.origin, &recv, case.recv.count)?;
            let _ = s.irecv(into, 0, 0)?;
            let _ =
                s.isend(View::typed(&theirs, case.send.origin, &send, case.send.count)?, 0, 0)?;
            Ok(())
        })
        .unwrap();
        right
    };
    let sent = from_device.then(|| upload(device, &out));
    let received = to_device.then(|| upload(device, &into));
    comm.scope(|s| {
        let view = match received {
            // SAFETY: the memory lives until `download`, after the scope, and only this message
            // touches it until then.
            Some(region) => unsafe {
                ViewMut::of_region(region, case.recv.origin, &recv, case.recv.count)
            },
            None => ViewMut::typed(&mut into, case.recv.origin, &recv, case.recv.count),
        }?;
        let _ = s.irecv(view, Source::Any, TagSel::Any)?;
        let view = match sent {
            // SAFETY: as above; and nothing writes it.
            Some(region) => unsafe {
                View::of_region(region, case.send.origin, &send, case.send.count)
            },
            None => View::typed(&out, case.send.origin, &send, case.send.count),
        }?;
        let _ = s.isend(view, to, 5)?;
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    if let Some(region) = received {
        into = download(device, region);
    }
    if let Some(region) = sent {
        assert!(download(device, region) == out, "{}: the sender's memory changed", case.name);
    }
    let wrong = into.iter().zip(&right).position(|(got, right)| got != right);
    let spaces = format!("from the device: {from_device}, to the device: {to_device}");
    assert_eq!(wrong, None, "{}, {spaces}: the first wrong byte", case.name);
}

fn travels(test: &str, open: Open) {
    if let Err(why) = open(0) {
        return gapless_btl_testkit::conformance::skip(test, &why);
    }
    let some = [
        ("v", 8),
        ("v", 200),
        ("vc", 100),
        ("t", 64),
        ("x", 24),
        ("face-x", 24),
        ("lammps-full", 1),
    ];
    let layouts: Vec<Case> =
        some.into_iter().flat_map(|(name, n)| cases(name, Some(n)).expect(name)).collect();
    let hub = Hub::new();
    let name = format!("{test} {}", std::process::id());
    let over_loopback = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
    let over_sm = |rank| -> Vec<Box<dyn Btl>> {
        vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
    };
    let body = |world: &World| {
        let device = open(world.rank()).unwrap();
        for case in &layouts {
            for spaces in 0..4 {
                exchange(world, &*device, case, spaces & 1 != 0, spaces & 2 != 0);
            }
        }
    };
    job(2, &Config::default(), over_loopback, body);
    job(2, &Config::default(), over_sm, body);
    job(1, &Config::default(), |_| Vec::new(), body);
}

#[test]
fn opencl_memory_travels_between_ranks_and_to_oneself() {
    travels("opencl_memory_travels_between_ranks_and_to_oneself", opencl);
}

#[test]
fn cuda_memory_travels_between_ranks_and_to_oneself() {
    travels("cuda_memory_travels_between_ranks_and_to_oneself", cuda);
}

/// Two hosts as far as the transport knows: TCP over loopback, and nothing else.
fn over_tcp(config: &Config) -> Builder {
    World::builder().only(["tcp"]).tcp_interfaces("lo").config(config.clone())
}

/// Without gaps, V, T, X, V and without gaps, in either direction.
fn shapes() -> Vec<Case> {
    let some = [("v", 8), ("v", 200), ("t", 64), ("x", 24), ("vc", 100)];
    let mut all: Vec<Case> =
        some.into_iter().flat_map(|(name, n)| cases(name, Some(n)).expect(name)).collect();
    let half = all.last().cloned().expect("V and without gaps");
    let flat = half.recv.clone();
    all.push(Case { name: "flat".to_owned(), send: flat.clone(), recv: flat, ..half.clone() });
    all.push(Case { name: "flat-V".to_owned(), send: half.recv.clone(), recv: half.send, ..half });
    all
}

/// Every shape, out of the device's memory or the host's, into either.
fn travels_in_all_shapes(world: &World, device: &dyn Device) {
    for case in shapes() {
        for spaces in 1..4 {
            exchange(world, device, &case, spaces & 1 != 0, spaces & 2 != 0);
        }
    }
}

/// A device of another kind than OpenCL's, and its engine if the world opens none for it.
type Other = (Arc<dyn Device>, Option<Arc<dyn Engine>>);

/// OpenCL's device at rank 0 and one of another kind at rank 1. Neither maps what the other exports, and memory that
/// one has page-locked the other registers as well: messages pass memory of the host.
fn travels_between_kinds(test: &str, other: impl Fn() -> Result<Other, String>) {
    let gears = match opencl(0).and_then(|device| Ok([(device, None), other()?])) {
        Ok(gears) => gears,
        Err(why) => return gapless_btl_testkit::conformance::skip(test, &why),
    };
    let name = format!("{test} {}", std::process::id());
    for tcp in [false, true] {
        let builder = |rank: u32| {
            let builder = match tcp {
                true => over_tcp(&Config::default()),
                false => {
                    let sm = Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
                    World::builder().only(["sm"]).transport(Box::new(sm))
                }
            };
            match &gears[rank as usize].1 {
                Some(engine) => builder.open_devices(false).engine(Arc::clone(engine)),
                None => builder,
            }
        };
        job_of(2, builder, |world| {
            travels_in_all_shapes(world, &*gears[world.rank() as usize].0);
            let counters = world.counters().unwrap();
            for protocol in Protocol::STAGED {
                let through_host =
                    matches!(protocol, Protocol::CopyInOut | Protocol::ZeroCopyInOut);
                let messages = counters.of(protocol).messages;
                assert!(through_host || messages == 0, "{messages} by {protocol}");
            }
            let through_host = [Protocol::CopyInOut, Protocol::ZeroCopyInOut]
                .map(|protocol| counters.of(protocol).messages);
            assert_eq!(through_host.iter().sum::<u64>() > 0, !tcp, "TCP: {tcp}");
        });
    }
}

#[test]
fn opencl_memory_travels_to_and_from_another_kind_of_device() {
    let device = Arc::new(FakeDevice::with_delay(1, 2));
    let engine = Arc::new(FakeEngine::new(&device, 3));
    let test = "opencl_memory_travels_to_and_from_another_kind_of_device";
    travels_between_kinds(test, || Ok((Arc::clone(&device) as _, Some(Arc::clone(&engine) as _))));
}

#[test]
fn opencl_memory_travels_to_and_from_cuda_memory() {
    let other = || Ok((cuda(1)?, None));
    travels_between_kinds("opencl_memory_travels_to_and_from_cuda_memory", other);
}

/// Memory of the host that another runtime has page-locked is like any other: another context of OpenCL's here, CUDA
/// where there is a GPU.
#[test]
fn memory_that_another_runtime_has_page_locked_travels() {
    let test = "memory_that_another_runtime_has_page_locked_travels";
    let device = match opencl(0) {
        Ok(device) => device,
        Err(why) => return gapless_btl_testkit::conformance::skip(test, &why),
    };
    const BYTES: usize = 300_000;
    let lockers = [opencl(0), cuda(0)].into_iter().filter_map(Result::ok);
    for locker in lockers {
        let body = |world: &World| {
            let (comm, me) = (world.comm(), world.rank());
            let out: Vec<u8> = (0..BYTES as u64).map(|at| byte_at(me.into(), at)).collect();
            let mut host = out.clone();
            let region = Region::of_mut(&mut host);
            // SAFETY: the memory stays where it is until `unregister`.
            unsafe { locker.register(region) }.unwrap();
            let layout = gapless::Datatype::from(gapless::Primitive::Byte).commit().unwrap();
            let theirs: Vec<u8> =
                (0..BYTES as u64).map(|at| byte_at((1 - me).into(), at)).collect();
            for round in 0..4 {
                // One sends out of the host's memory into the other's device, which sends back what it has.
                if me == round % 2 {
                    // SAFETY: nobody else touches the memory until the call returns.
                    let view = unsafe { View::of_region(region, 0, &layout, BYTES as u64) };
                    comm.send(view.unwrap(), 1 - me, 0).unwrap();
                    // SAFETY: as above.
                    let view = unsafe { ViewMut::of_region(region, 0, &layout, BYTES as u64) };
                    comm.recv(view.unwrap(), 1 - me, 0).unwrap();
                    assert!(*std::hint::black_box(&host) == theirs, "round {round}, into the host");
                    host.copy_from_slice(&out);
                    continue;
                }
                let far = upload(&*device, &[0; BYTES]);
                // SAFETY: as above.
                let view = unsafe { ViewMut::of_region(far, 0, &layout, BYTES as u64) };
                comm.recv(view.unwrap(), 1 - me, 0).unwrap();
                assert!(download(&*device, far) == theirs, "round {round}, into the device");
                let far = upload(&*device, &out);
                // SAFETY: as above.
                let view = unsafe { View::of_region(far, 0, &layout, BYTES as u64) };
                comm.send(view.unwrap(), 1 - me, 0).unwrap();
                download(&*device, far);
            }
            // SAFETY: registered above; all messages in it have ended.
            unsafe { locker.unregister(region) }.unwrap();
        };
        let name = format!("{test} {}", std::process::id());
        let over_sm = |rank| -> Vec<Box<dyn Btl>> {
            vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
        };
        job(2, &Config::default(), over_sm, body);
        job_of(2, |_| over_tcp(&Config::default()), body);
    }
}

/// Memory is registered once for all its messages, which its own process's device moves, until it is dropped; a
/// persistent request keeps it. Before and after that such messages pass other memory of the host.
#[test]
fn a_registration_outlives_messages() {
    const BYTES: usize = 200_000;
    const ROUNDS: u64 = 5;
    let registered = Arc::new(Mutex::new(Vec::new()));
    let gears = [0, 1].map(|rank| {
        let fake = Arc::new(FakeDevice::with_delay(rank, 2));
        let calls = Arc::clone(&registered);
        let device = Wrapped::new(Arc::clone(&fake) as _, move |call| {
            if let (Call::Register(region), 0) = (call, rank) {
                calls.lock().unwrap().push(region);
            }
            Ok(())
        });
        (Arc::new(FakeEngine::new(&fake, 3)), Arc::new(device), fake)
    });
    let name = format!("a_registration_outlives_messages {}", std::process::id());
    let builder = |rank: u32| {
        let (engine, device, _) = &gears[rank as usize];
        let sm = Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
        let builder = World::builder().only(["sm"]).transport(Box::new(sm)).open_devices(false);
        builder.engine(Arc::clone(engine) as _).device(Arc::clone(device) as _)
    };
    job_of(2, builder, |world| {
        let (comm, me) = (world.comm(), world.rank());
        let out: Vec<u8> = (0..BYTES as u64).map(|at| byte_at(7, at)).collect();
        let byte = gapless::Datatype::from(gapless::Primitive::Byte).commit().unwrap();
        if me == 1 {
            let device = &*gears[1].1;
            let far = device.allocate(BYTES as u64).unwrap();
            for round in 0..1 + ROUNDS + 1 + ROUNDS + 2 {
                if round == 1 + ROUNDS + 1 + ROUNDS {
                    put_at_a_worker(world, 0);
                }
                // SAFETY: nobody else touches the memory until the call returns.
                let view = unsafe { ViewMut::of_region(far, 0, &byte, BYTES as u64) };
                comm.recv(view.unwrap(), 0, 0).unwrap();
                // SAFETY: as above.
                let view = unsafe { View::of_region(far, 0, &byte, BYTES as u64) };
                comm.send(view.unwrap(), 0, 1).unwrap();
            }
            // SAFETY: allocated above; every message in it has ended.
            unsafe { device.free(far) }.unwrap();
            return;
        }
        let by = |sent: Status, received: Status| [sent.protocol, received.protocol];
        let echo = |memory: &mut [u8]| {
            memory.copy_from_slice(&out);
            let sent = comm.send(&*memory, 1, 0).unwrap();
            memory.fill(0);
            let received = comm.recv(&mut *memory, 1, 1).unwrap();
            assert!(memory == out);
            by(sent, received)
        };
        let own = [Protocol::MappedPut, Protocol::Mapped];
        let mut ordinary = vec![0; BYTES];
        assert_ne!(echo(&mut ordinary), own);
        let mut memory = world.register(ordinary).unwrap();
        let region = memory.region();
        assert_eq!((0..ROUNDS).map(|_| echo(&mut memory)).collect::<Vec<_>>(), [own; 5]);
        let mut ordinary = memory.unregister().unwrap();
        assert_ne!(echo(&mut ordinary), own);
        let times = registered.lock().unwrap().iter().filter(|call| **call == region).count();
        assert_eq!(times, 1);
        // A buffer that is registered already, and one that the request registers when it knows its peer.
        let ready = world.register(out.clone()).unwrap();
        let mut sends = comm.send_init(ready, 1, 0, SendMode::Standard).unwrap();
        let mut receives = comm.recv_init(vec![0u8; BYTES], 1, 1).unwrap();
        let before = registered.lock().unwrap().len();
        for _ in 0..ROUNDS {
            receives.buffer_mut().unwrap().fill(0);
            sends.start().unwrap();
            receives.start().unwrap();
            assert_eq!(by(sends.wait().unwrap(), receives.wait().unwrap()), own);
            assert!(receives.buffer().unwrap() == out);
        }
        assert_eq!(registered.lock().unwrap().len(), before + 1);
        drop(sends.into_buffer().unwrap());
        drop(receives);
        let known = gears[0].2.registered();
        assert!(known.iter().all(|(_, len)| *len != BYTES as u64), "{known:?}");
        // Beside a worker that stays it registers nothing: the driver might wait for that.
        let tasks = attach_a_worker(world);
        let mut receives = comm.recv_init(vec![0u8; BYTES], 1, 1).unwrap();
        for stays in [true, false] {
            tasks.keep_worker(stays).unwrap();
            // It may be about to come back: it was away when the other rank got a ring.
            let begin = Instant::now();
            while tasks.has_resident_worker() != stays {
                assert!(begin.elapsed() < Duration::from_secs(60), "as before: {}", !stays);
                tasks.progress().unwrap();
            }
            let before = registered.lock().unwrap().len();
            comm.send(&out, 1, 0).unwrap();
            receives.start().unwrap();
            receives.wait().unwrap();
            assert!(receives.buffer().unwrap() == out);
            assert_eq!(registered.lock().unwrap().len() - before, usize::from(!stays));
        }
    });
}

/// A worker that stays, and has done a task of [`put_at_a_worker`].
fn attach_a_worker(world: &World) -> Tasks {
    let tasks = world.xtq();
    let life = Life { idle: None, ..Life::default() };
    tasks.attach_worker(MockWorker::new(|_| Ok(())), life).unwrap();
    // SAFETY: the worker touches no memory.
    unsafe { tasks.register_kernel(0, Kernel::of_worker(DeviceFunction::Copy, 64)) }.unwrap();
    tasks.register_queue(0, QueueOptions { capacity: 64, width: 1 }).unwrap();
    world.comm().barrier().unwrap();
    world.comm().barrier().unwrap();
    tasks
}

fn put_at_a_worker(world: &World, rank: u32) {
    let (comm, tasks) = (world.comm(), world.xtq());
    comm.barrier().unwrap();
    let put = Put::kernel(Rank(rank), 0, 0, Launch::linear(1, 1, 24), vec![0; 24]).acknowledged();
    tasks.wait_for(&tasks.put(put).unwrap()).unwrap();
    comm.barrier().unwrap();
}

#[test]
fn opencl_memory_travels_in_all_shapes() {
    by_tcp("opencl_memory_travels_in_all_shapes", opencl);
}

#[test]
fn cuda_memory_travels_in_all_shapes() {
    by_tcp("cuda_memory_travels_in_all_shapes", cuda);
}

fn by_tcp(test: &str, open: Open) {
    if let Err(why) = open(0) {
        return gapless_btl_testkit::conformance::skip(test, &why);
    }
    let body = |world: &World| travels_in_all_shapes(world, &*open(world.rank()).unwrap());
    job_of(2, |_| over_tcp(&Config::default()), body);
}

/// The pretended device reaches page-locked memory alone that it knows. So packing goes straight into what is written to
/// the socket, and unpacking straight out of what was read from it; and both take as much memory as the transport has,
/// whatever is sent.
#[test]
fn packed_memory_of_a_device_is_what_tcp_sends() {
    /// Buffers for each direction of a link, and pages of each.
    const BUFFERS: usize = 16;
    const BUFFER_BYTES: u64 = 264 << 10;
    const DEPTH: u32 = 3;
    /// Short fragments, in buffers for long messages; and what goes without asking, out of a device and out of the host.
    const SHORT: u32 = 4000;
    const EAGER: [u64; 2] = [8 << 10, 64 << 10];
    for fragment in [None, Some(SHORT)] {
        let mut config = Config::default();
        if let Some(bytes) = fragment {
            config.tuning = config.tuning.in_fragments(bytes);
        }
        config.tuning.depth = DEPTH;
        let gears = [0, 1].map(|rank| {
            let device = Arc::new(FakeDevice::with_delay(rank, 2));
            let engine = Arc::new(FakeEngine::new(&device, 3));
            (device, engine)
        });
        let builder = |rank: u32| {
            let (_, engine) = &gears[rank as usize];
            over_tcp(&config).open_devices(false).engine(Arc::clone(engine) as _)
        };
        job_of(2, builder, |world| {
            let (device, engine) = &gears[world.rank() as usize];
            travels_in_all_shapes(world, &**device);
            let known = device.registered();
            assert!((2..=2 * BUFFERS).contains(&known.len()), "{known:?}");
            assert!(known.iter().all(|(_, len)| *len <= BUFFER_BYTES), "{known:?}");
            // One message goes out at a time, and what comes in waits in the buffers.
            let most = engine.most.load(Ordering::Relaxed);
            let bound = i64::from(DEPTH) + i64::try_from(BUFFERS).unwrap();
            assert!((2..=bound).contains(&most), "{most} at a time");
            let tally = world.counters().unwrap().of(Protocol::Pipeline);
            let all: u64 = shapes().iter().map(|case| case.payload_bytes).fold(0, |all, bytes| {
                let fragments = bytes.div_ceil(SHORT.into());
                // Out of the device into either memory, and out of the host; sent and received.
                let out = if bytes > EAGER[0] { 2 } else { 0 };
                let ways = out + u64::from(bytes > EAGER[1]);
                all + 2 * ways * fragments
            });
            match fragment {
                Some(_) => assert_eq!(tally.fragments, all, "{tally:?}"),
                None => assert!((1..all).contains(&tally.fragments), "{tally:?}"),
            }
        });
        for (device, _) in &gears {
            assert!(device.registered().is_empty(), "{:?}", device.registered());
        }
    }
}

/// Between two ports of adapters of this machine. Soft-RoCE refuses to reach memory of devices by itself, whatever is asked
/// for: then messages go through buffers that the device knows. An adapter that does not refuse would find that the
/// pretended device's memory is no dma-buf, and refuse as well.
#[test]
fn device_memory_travels_over_verbs() {
    let ports = std::env::var("GAPLESS_IB_PORTS").unwrap_or_default();
    let Some((one, other)) = ports.split_once(',') else {
        let why = "GAPLESS_IB_PORTS names no two devices; cargo xtask verbs makes some";
        return gapless_btl_testkit::conformance::skip("device memory over verbs", why);
    };
    for force in [Protocol::SingleCopy, Protocol::StagedRead] {
        let config = Config { force: Some(force), ..Config::default() };
        let gears = [0, 1].map(|rank| {
            let device = Arc::new(FakeDevice::with_delay(rank, 2));
            (Arc::clone(&device), Arc::new(FakeEngine::new(&device, 3)))
        });
        let builder = |rank: u32| {
            let (port, (_, engine)) = (if rank == 0 { one } else { other }, &gears[rank as usize]);
            let builder = World::builder().only(["ib"]).ib_devices(port).config(config.clone());
            builder.open_devices(false).engine(Arc::clone(engine) as _)
        };
        job_of(2, builder, |world| {
            let (device, _) = &gears[world.rank() as usize];
            travels_in_all_shapes(world, &**device);
            assert!(device.dma_bufs() > 0, "{force}: nobody asked");
            let counters = world.counters().unwrap();
            assert_eq!(counters.of(Protocol::StagedRead).fragments, 0, "{force}");
            assert!(counters.of(Protocol::Pipeline).fragments > 0, "{force}");
        });
    }
}

#[test]
fn memory_that_nothing_serves_is_refused_by_name() {
    let fake: Arc<dyn Device> = Arc::new(FakeDevice::new(3));
    let worlds = [
        World::builder().init().unwrap(),
        World::builder().open_devices(false).device(Arc::clone(&fake)).init().unwrap(),
    ];
    let mut spaces = vec![fake.allocate(64).unwrap()];
    // No machine has as many devices.
    spaces.push(Region::new(gapless::Space::Cuda { device: 4_000_000 }, 4096, 0, 64));
    let byte = gapless::Datatype::from(gapless::Primitive::Byte).commit().unwrap();
    for world in &worlds {
        for region in &spaces {
            // SAFETY: refused: nothing touches the memory.
            let view = unsafe { View::of_region(*region, 0, &byte, 64) }.unwrap();
            let error = world.comm().send(view, 0, 0).unwrap_err();
            let refused = PmlError::NoEngine { space: region.space() };
            assert_eq!(error, refused.clone().into());
            // SAFETY: as above.
            let view = unsafe { ViewMut::of_region(*region, 0, &byte, 64) }.unwrap();
            let error = world.comm().recv(view, 0, 0).unwrap_err();
            assert_eq!(error, refused.into());
        }
    }
}
