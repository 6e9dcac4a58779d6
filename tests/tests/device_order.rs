//! Memory of devices that messages share, and its end; sends after work, and streams that wait for
//! receives. Ranks are threads with a device each: a pretended one, and CUDA's where there is any.

use gapless::{
    Builder, Communicator, Config, Datatype, Error, Layout, Primitive, Protocol, Region, Space,
    Tuning, View, ViewMut, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::Hand;
use gapless_mem::{Device, DeviceError};
use gapless_mem_cuda::{CudaDevice, CudaDriver, Stream};
use gapless_tests::{byte_at, job_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

const BYTES: u64 = 300_000;

fn sm(rank: u32, name: &str) -> Builder {
    // Every job of this process has its own name.
    let config = SmConfig::new(format!("{name} {}", std::process::id()), format!("rank {rank}"));
    World::builder()
        .tuning(Tuning::default())
        .only(["sm"])
        .transport(Box::new(Sm::new(config).unwrap()))
}

fn bytes_layout() -> Layout {
    Datatype::from(Primitive::Byte).commit().unwrap()
}

fn image(seed: u64) -> Vec<u8> {
    (0..BYTES).map(|at| byte_at(seed, at)).collect()
}

fn upload(device: &dyn Device, region: Region, bytes: &[u8]) {
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
}

fn download(device: &dyn Device, region: Region) -> Vec<u8> {
    let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
    // SAFETY: as in `upload`.
    unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }.unwrap().wait().unwrap();
    bytes
}

/// A world of two ranks, each with a fake device of its own.
fn with_fakes(name: &str, config: &Config, body: impl Fn(&World, &Arc<FakeDevice>) + Sync) {
    let devices = [0; 2].map(|_| Arc::new(FakeDevice::with_delay(0, 2)));
    let builder = |rank: u32| {
        let device = &devices[rank as usize];
        let engine = FakeEngine { attaches: false, ..FakeEngine::new(device, 3) };
        let builder = sm(rank, name).config(config.clone()).open_devices(false);
        builder.engine(Arc::new(engine)).device(Arc::clone(device) as _)
    };
    job_of(2, builder, |world| {
        // There are keys once the link is up. That may be too late for the first message.
        meet(world);
        body(world, &devices[world.rank() as usize]);
    });
}

/// Both ranks come here before either goes on.
fn meet(world: &World) {
    let peer = 1 - world.rank();
    let mut word = [0u8];
    world
        .comm()
        .scope(|s| {
            let _ = s.irecv(&mut word, peer, 999)?;
            let _ = s.isend(&[1u8], peer, 999)?;
            Ok(())
        })
        .unwrap();
}

const FAKE: Space = Space::Device { kind: "fake", device: 0 };

#[test]
fn memory_from_the_world_is_mapped_and_freed_when_the_peer_has_let_go() {
    with_fakes("freed", &Config::default(), |world, device| {
        let layout = bytes_layout();
        for round in 0..5u64 {
            let mut memory = world.alloc_device(FAKE, BYTES).unwrap();
            let region = memory.region();
            assert_eq!((region.space(), region.len()), (FAKE, BYTES));
            if world.rank() == 0 {
                upload(&**device, region, &image(round));
                let view = memory.view(0, &layout, BYTES).unwrap();
                let status = world.comm().send(view, 1, 0).unwrap();
                assert_eq!(status.protocol, Protocol::Mapped);
                drop(memory);
                // As long as rank 1 does nothing, the memory is there.
                assert!(device.alias(region).is_ok(), "freed while a peer has it mapped");
                meet(world);
            } else {
                let view = memory.view_mut(0, &layout, BYTES).unwrap();
                let status = world.comm().recv(view, 0, 0).unwrap();
                assert_eq!(status.protocol, Protocol::Mapped);
                assert!(download(&**device, region) == image(round), "round {round}");
                meet(world);
                drop(memory);
            }
            // Either was shared, or could have been; it goes when the other has answered.
            let end = Instant::now() + PATIENCE;
            while device.alias(region).is_ok() {
                assert!(Instant::now() < end, "it is never freed");
                let _ = world.comm().iprobe(1 - world.rank(), 5).unwrap();
            }
            meet(world);
        }
    });
}

#[test]
fn other_memory_is_withdrawn_before_it_is_freed() {
    for share in [true, false] {
        let config = Config { share_device_buffers: share, ..Config::default() };
        with_fakes(&format!("withdrawn {share}"), &config, |world, device| {
            let layout = bytes_layout();
            let comm = world.comm();
            for round in 0..5u64 {
                let region = device.allocate(BYTES).unwrap();
                let peer = 1 - world.rank();
                let into = device.allocate(BYTES).unwrap();
                upload(&**device, region, &image(round + u64::from(world.rank())));
                let statuses = comm.scope(|s| {
                    // SAFETY: each is this message's alone until the scope has ended, and freed later.
                    let view = unsafe { gapless::ViewMut::of_region(into, 0, &layout, BYTES) }?;
                    let received = s.irecv(view, peer, 0)?;
                    // SAFETY: as above.
                    let view = unsafe { gapless::View::of_region(region, 0, &layout, BYTES) }?;
                    let sent = s.isend(view, peer, 0)?;
                    s.wait_all([received, sent]).into_iter().collect::<Result<Vec<_>, _>>()
                });
                for status in statuses.unwrap() {
                    let direct = status.protocol == Protocol::Mapped;
                    assert_eq!(direct, share, "{}", status.protocol);
                }
                assert!(download(&**device, into) == image(round + u64::from(peer)));
                for memory in [region, into] {
                    world.invalidate(memory).unwrap();
                    assert!(world.try_invalidate(memory).unwrap());
                    // SAFETY: no message uses it, and no peer has it mapped.
                    unsafe { device.free(memory) }.unwrap();
                }
                meet(world);
            }
        });
    }
}

#[test]
fn a_device_that_is_not_there_has_no_memory() {
    with_fakes("nowhere", &Config::default(), |world, _| {
        let error =
            world.alloc_device(Space::Device { kind: "fake", device: 77 }, 100).unwrap_err();
        assert!(error.to_string().contains("fake:77"), "{error}");
        assert!(world.alloc_device(FAKE, 1 << 60).is_err());
    });
}

#[test]
fn what_is_written_before_the_work_has_ended_is_what_is_sent() {
    with_fakes("after", &Config::default(), |world, device| {
        let layout = bytes_layout();
        let mut memory = world.alloc_device(FAKE, BYTES).unwrap();
        let region = memory.region();
        upload(&**device, region, &image(1));
        if world.rank() == 1 {
            let view = memory.view_mut(0, &layout, BYTES).unwrap();
            let mut word = [0u8];
            // The second comes although the first does not.
            world.comm().recv(&mut word, 0, 2).unwrap();
            meet(world);
            assert_eq!(world.comm().recv(view, 0, 1).unwrap().protocol, Protocol::Mapped);
            assert!(download(&**device, region) == image(7));
            return;
        }
        let hand = Hand::default();
        let after = [hand.work()];
        world
            .comm()
            .scope(|s| {
                let waits = s.isend_after(memory.view(0, &layout, BYTES)?, 1, 1, &after)?;
                let goes = s.isend(&[1u8], 1, 2)?;
                s.wait(goes)?;
                meet(world);
                let waits = s.test(waits).expect_err("its work goes on");
                upload(&**device, region, &image(7));
                hand.end();
                s.wait(waits)?;
                Ok(())
            })
            .unwrap();
    });
}

/// The devices of both ranks, which may be one.
fn cuda(test: &str) -> Option<[Arc<CudaDevice>; 2]> {
    let open = || -> Result<[Arc<CudaDevice>; 2], String> {
        let driver = CudaDriver::load().map_err(|error| error.to_string())?;
        let device = |rank: u32| driver.device(rank % driver.devices().max(1)).map(Arc::new);
        let [a, b] = [device(0), device(1)].map(|device| device.map_err(|e| e.to_string()));
        let devices = [a?, b?];
        match devices.iter().all(|device| device.has_gates()) {
            true => Ok(devices),
            false => Err("streams of this device cannot wait for words in memory".to_owned()),
        }
    };
    open().map_err(|why| gapless_btl_testkit::conformance::skip(test, &why)).ok()
}

#[test]
fn streams_wait_for_messages_and_messages_for_streams() {
    let Some(devices) = cuda("streams_wait_for_messages_and_messages_for_streams") else { return };
    let builder = |rank: u32| sm(rank, "streams").progress_thread(true);
    job_of(2, builder, |world| {
        let device = &devices[world.rank() as usize];
        let layout = bytes_layout();
        let comm = world.comm();
        let mut memory = world.alloc_device(device.space(), BYTES).unwrap();
        let region = memory.region();
        upload(&**device, region, &image(1));
        // Kernels are loaded and memory is mapped by a message of the kind, before anything waits.
        for _ in 0..2 {
            match world.rank() {
                0 => comm.send(memory.view(0, &layout, BYTES).unwrap(), 1, 0),
                _ => comm.recv(memory.view_mut(0, &layout, BYTES).unwrap(), 0, 0),
            }
            .unwrap();
        }
        let stream = device.stream().unwrap();
        upload(&**device, region, &image(2 + u64::from(world.rank())));
        meet(world);
        // One after the other: the ranks may share a device, where two streams that wait may be in one queue.
        let ordered = match world.rank() {
            0 => send_after_work(comm, &stream, memory.view(0, &layout, BYTES).unwrap()),
            _ => receive_late(comm, memory.view_mut(0, &layout, BYTES).unwrap()),
        };
        ordered.unwrap();
        assert!(download(&**device, region) == image(2));
        upload(&**device, region, &image(4 + u64::from(world.rank())));
        meet(world);
        let awaited = match world.rank() {
            0 => send_late(comm, memory.view(0, &layout, BYTES).unwrap()),
            _ => wait_on_stream(comm, &stream, memory.view_mut(0, &layout, BYTES).unwrap()),
        };
        awaited.unwrap();
        assert!(download(&**device, region) == image(4));
        meet(world);
    });
}

/// What the stream does when the gate opens is what the send waits for.
fn send_after_work(comm: &Communicator, stream: &Stream, data: View<'_>) -> Result<(), Error> {
    comm.scope(|s| {
        let gate = stream.gate().map_err(DeviceError::from)?;
        let end = stream.record().map_err(DeviceError::from)?;
        let send = s.isend_after(data, 1, 1, &[end])?;
        let later = s.isend(&[1u8], 1, 2)?;
        s.wait(later)?;
        let mut word = [0u8];
        comm.recv(&mut word, 1, 3)?;
        let send = s.test(send).expect_err("its stream waits");
        gate.open();
        s.wait(send)?;
        Ok(())
    })
}

/// What was sent later comes first.
fn receive_late(comm: &Communicator, data: ViewMut<'_>) -> Result<(), Error> {
    let mut word = [0u8];
    comm.recv(&mut word, 0, 2)?;
    comm.send(&[1u8], 0, 3)?;
    comm.recv(data, 0, 1).map(drop)
}

/// Sends when the other's stream waits.
fn send_late(comm: &Communicator, data: View<'_>) -> Result<(), Error> {
    let mut word = [0u8];
    comm.recv(&mut word, 1, 4)?;
    comm.send(data, 1, 5).map(drop)
}

/// The message opens the gate that the stream waits at.
fn wait_on_stream(comm: &Communicator, stream: &Stream, data: ViewMut<'_>) -> Result<(), Error> {
    comm.scope(|s| {
        let gate = stream.gate().map_err(DeviceError::from)?;
        let received = s.irecv(data, 0, 5)?;
        let behind = stream.record().map_err(DeviceError::from)?;
        let opened = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&opened);
        s.when_done(&received, move || {
            count.fetch_add(1, Ordering::Relaxed);
            gate.open();
        })?;
        assert!(!behind.poll()?, "the stream goes on before the message has come");
        comm.send(&[1u8], 0, 4)?;
        // This thread makes no progress; the progress thread opens the gate.
        let end = Instant::now() + PATIENCE;
        while !behind.poll()? {
            assert!(Instant::now() < end, "the stream waits for ever");
            std::thread::yield_now();
        }
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        s.wait(received)?;
        Ok(())
    })
}
