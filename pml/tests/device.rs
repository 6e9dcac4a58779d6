//! Buffers in device memory, with an engine that ends its work late: nothing is sent before it is
//! packed, nothing is given back before it is unpacked.

use crate::common::{Buffer, Home, Job, bytes, link, strided};
use gapless_btl::loopback::{self, Loopback};
use gapless_engine::testkit::FakeEngine;
use gapless_engine::{Engine, HostEngine};
use gapless_mem::Space;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Config, PmlError, Protocol, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Lab {
    job: Job,
    device: Arc<FakeDevice>,
    engine: Arc<FakeEngine>,
}

fn lab(ranks: u32, config: Config, polls: u32) -> Lab {
    let device = Arc::new(FakeDevice::new(3));
    // Through slots, not through staging memory.
    let engine = Arc::new(FakeEngine { attaches: false, ..FakeEngine::new(&device, polls) });
    let engines: [Arc<dyn Engine>; 2] = [Arc::new(HostEngine), Arc::clone(&engine) as _];
    let link = loopback::Config { slots: 6, ..link() };
    let mut rail = |_, hub: &loopback::Hub| Box::new(Loopback::with(hub, link.clone())) as Box<_>;
    let job = Job::with_engines(ranks, config, &mut rail, &engines);
    Lab { job, device, engine }
}

fn forced(force: Option<Protocol>) -> Config {
    Config { force, ..Config::default() }
}

const ANY: (Source, TagSel) = (Source::Any, TagSel::Any);

#[test]
fn device_and_host_buffers_meet() {
    for polls in [0, 7] {
        for size in [1u64, 500, 5000, 300_000] {
            for force in [None, Some(Protocol::Pipeline), Some(Protocol::Mapped)] {
                for spaces in 1..4u32 {
                    let Lab { mut job, device, .. } = lab(2, forced(force), polls);
                    let sender_layout = strided(size, 1, 2);
                    let mapped = job.mappable(0, &sender_layout, 1);
                    let fake = || Home::Fake(Arc::clone(&device));
                    let home = if spaces & 1 == 1 { fake() } else { mapped };
                    let from = Buffer::source_in(&sender_layout, 1, size, home);
                    let home = if spaces & 2 == 2 { fake() } else { Home::Heap };
                    let to = Buffer::target_in(&strided(size, 1, 3), 1, home);
                    let (send, recv) = (job.isend(0, &from, 1, 0), job.irecv(1, &to, ANY.0, ANY.1));
                    let status = job.finish(1, recv).unwrap();
                    job.finish(0, send).unwrap();
                    let what = format!("{size} bytes, spaces {spaces}, {force:?}");
                    to.assert_received(&from.packed(), &what);
                    if size > 8192 && spaces == 2 && force == Some(Protocol::Mapped) {
                        assert_eq!(status.protocol, Protocol::Mapped, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn messages_being_packed_are_not_overtaken() {
    let Lab { mut job, device, .. } = lab(2, Config::default(), 5);
    let buffers: Vec<Buffer> = (0..30u64)
        .map(|i| {
            let home = if i % 3 == 0 { Home::Heap } else { Home::Fake(Arc::clone(&device)) };
            Buffer::source_in(&bytes(1 + i * 40), 1, i, home)
        })
        .collect();
    let sends: Vec<_> = buffers.iter().map(|from| job.isend(0, from, 1, 0)).collect();
    for (i, from) in buffers.iter().enumerate() {
        let to = Buffer::target_in(&bytes(1 + i as u64 * 40), 1, Home::Fake(Arc::clone(&device)));
        let recv = job.irecv(1, &to, ANY.0, ANY.1);
        job.finish(1, recv).unwrap();
        to.assert_received(&from.packed(), &format!("message {i}"));
    }
    for send in sends {
        job.finish(0, send).unwrap();
    }
}

#[test]
fn a_process_moves_device_memory_to_itself() {
    for size in [100u64, 1_000_000] {
        let Lab { mut job, device, .. } = lab(1, Config::default(), 3);
        let from = Buffer::source_in(&bytes(size), 1, 1, Home::Fake(Arc::clone(&device)));
        let to = Buffer::target(&bytes(size), 1);
        let (send, recv) = (job.isend(0, &from, 0, 0), job.irecv(0, &to, ANY.0, ANY.1));
        job.finish(0, recv).unwrap();
        job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), "to myself");
    }
}

#[test]
fn an_engine_that_fails_fails_the_request_and_hangs_nobody() {
    for size in [100u64, 200_000] {
        // The sender's engine: only a rendezvous tells the receiver.
        let Lab { mut job, device, engine } = lab(2, Config::default(), 2);
        engine.broken.store(true, Ordering::Relaxed);
        let from = Buffer::source_in(&bytes(size), 1, 1, Home::Fake(Arc::clone(&device)));
        let to = Buffer::target(&bytes(size), 1);
        let (send, recv) = (job.isend(0, &from, 1, 0), job.irecv(1, &to, ANY.0, ANY.1));
        assert!(matches!(job.finish(0, send), Err(PmlError::Engine(_))));
        if size > 8192 {
            assert_eq!(job.finish(1, recv), Err(PmlError::SenderFailed { rank: 0 }));
        } else {
            job.settle();
            assert_eq!(job.pml(1).test(recv), Ok(None));
            assert_eq!(job.pml(1).cancel_recv(recv), Ok(true));
        }
        // The receiver's.
        let Lab { mut job, device, engine } = lab(2, Config::default(), 2);
        engine.broken.store(true, Ordering::Relaxed);
        let from = Buffer::source(&bytes(size), 1, 1);
        let to = Buffer::target_in(&bytes(size), 1, Home::Fake(Arc::clone(&device)));
        let (send, recv) = (job.isend(0, &from, 1, 0), job.irecv(1, &to, ANY.0, ANY.1));
        assert!(matches!(job.finish(1, recv), Err(PmlError::Engine(_))));
        job.finish(0, send).unwrap();
    }
}

#[test]
fn death_waits_for_engines() {
    for size in [100u64, 50_000] {
        for steps in 0..30 {
            for dead in [0, 1] {
                let Lab { mut job, device, .. } = lab(2, Config::default(), 6);
                let fake = || Home::Fake(Arc::clone(&device));
                let from = Buffer::source_in(&bytes(size), 1, 1, fake());
                let to = Buffer::target_in(&bytes(size), 1, fake());
                let ids =
                    [job.isend(0, &from, 1, 0), job.irecv(1, &to, Source::Rank(0), TagSel::Any)];
                for step in 0..steps {
                    job.pml(step % 2).progress();
                }
                job.kill(dead);
                let alive = 1 - dead;
                match job.finish(alive, ids[alive as usize]) {
                    Ok(_) if alive == 1 => to.assert_received(&from.packed(), "all arrived"),
                    Ok(_) => {}
                    Err(PmlError::PeerLost { rank, .. }) => assert_eq!(rank, dead),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn memory_that_no_engine_serves_is_refused() {
    let mut job = Job::new(1);
    let device = Arc::new(FakeDevice::new(9));
    let buffer = Buffer::source_in(&bytes(8), 1, 1, Home::Fake(device));
    let world = job.pml(0).world();
    // SAFETY: refused before anything is touched.
    let error = unsafe { job.pml(0).isend(&world, &buffer.typed(), 0, 0) }.unwrap_err();
    assert_eq!(error, PmlError::NoEngine { space: Space::Device { kind: "fake", device: 9 } });
}
