//! Memory of devices that adapters reach by themselves (GPUDirect): read at once where the transport and both devices go
//! along with it, and carried another way where one of them does not.

use crate::common::{Buffer, Home, Job, bytes, link, strided};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_dtype::Layout;
use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_engine::HostEngine;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{Config, PmlError, Protocol, Source, Status, TagSel, Tuning};
use std::sync::Arc;

/// Two ranks, each with a device of its own, on two hosts: nothing is mapped.
struct Lab {
    job: Job,
    devices: [Arc<FakeDevice>; 2],
}

/// A network whose adapters reach devices.
fn network() -> loopback::Config {
    loopback::Config { mapped: false, direct: true, ..link() }
}

fn forced(force: Protocol) -> Config {
    Config { force: Some(force), ..Config::default() }
}

impl Lab {
    fn new(config: Config) -> Lab {
        Lab::over(config, &mut |_, hub| Box::new(Loopback::with(hub, network())))
    }

    fn over(config: Config, rail: &mut dyn FnMut(u32, &Hub) -> Box<dyn gapless_btl::Btl>) -> Lab {
        let devices = [3, 4].map(|number| Arc::new(FakeDevice::with_delay(number, 2)));
        let mut job = Job::with_engines(2, config, rail, &[Arc::new(HostEngine)]);
        for (rank, device) in (0..).zip(&devices) {
            job.pml(rank).add_engine(Arc::new(FakeEngine::new(device, 2)));
        }
        Lab { job, devices }
    }

    fn home(&self, rank: usize, on_device: bool) -> Home {
        if on_device { Home::Fake(Arc::clone(&self.devices[rank])) } else { Home::Heap }
    }

    /// Which of the devices give adapters nothing.
    fn keep(&self, kept: [bool; 2]) {
        for (device, keep) in self.devices.iter().zip(kept) {
            device.keep_from_adapters(keep);
        }
    }

    /// Sends a message from rank 0 to rank 1.
    fn carry(&mut self, from: &Buffer, to: &Buffer, what: &str) -> Status {
        let send = self.job.isend(0, from, 1, 0);
        let recv = self.job.irecv(1, to, Source::Rank(0), TagSel::Is(0));
        let status = self.job.finish(1, recv).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), what);
        self.job.settle();
        for rank in 0..2 {
            let pml = self.job.pml(rank);
            assert!(!pml.has_requests() && !pml.is_busy(), "{what}: rank {rank}");
            assert_eq!(pml.staging_bytes().1, 0, "{what}: rank {rank}");
        }
        status
    }

    /// How many dma-bufs either device was asked for.
    fn asked(&self) -> [usize; 2] {
        [0, 1].map(|rank| self.devices[rank].dma_bufs())
    }
}

/// Without gaps, rows, short runs, and what chance makes.
fn layouts(rng: &mut Rng) -> Vec<(&'static str, Layout)> {
    let any = random_datatype(rng, &Params::disjoint()).commit().unwrap();
    vec![
        ("no gaps", bytes(50_000)),
        ("rows", strided(40, 1024, 2000)),
        ("short runs", strided(9_000, 1, 3)),
        ("chance", any),
    ]
}

/// In many short fragments.
fn cut(force: Protocol) -> Config {
    let tuning = Tuning {
        staged_fragment_bytes: 4096,
        staged_least_bytes: 4096,
        staged_depth: 3,
        ..Tuning::default()
    };
    Config { force: Some(force), tuning, ..Config::default() }
}

#[test]
fn every_layout_by_every_protocol_whoever_refuses() {
    let seed = 20;
    let mut rng = Rng::new(seed);
    let forced = [Protocol::SingleCopy, Protocol::StagedRead, Protocol::Pipeline, Protocol::Eager];
    for force in forced {
        for kept in [[false, false], [true, false], [false, true], [true, true]] {
            for (name, layout) in layouts(&mut rng) {
                for spaces in 0..4u32 {
                    let on_device = [spaces & 1 == 1, spaces & 2 == 2];
                    let mut lab = Lab::new(cut(force));
                    lab.keep(kept);
                    let what = format!(
                        "seed {seed}: {name}, {force}, {on_device:?} on devices, {kept:?} kept"
                    );
                    let count = 1 + u64::from(name == "chance") * 40;
                    let count = if layout.size() == 0 { 1 } else { count };
                    let from = Buffer::source_in(&layout, count, 5, lab.home(0, on_device[0]));
                    let to = Buffer::target_in(&layout, count, lab.home(1, on_device[1]));
                    let status = lab.carry(&from, &to, &what);
                    let refused = (on_device[0] && kept[0]) || (on_device[1] && kept[1]);
                    let long = name != "chance";
                    if long && force == Protocol::SingleCopy {
                        let expected =
                            if refused { Protocol::Pipeline } else { Protocol::SingleCopy };
                        assert_eq!(status.protocol, expected, "{what}");
                        let settled = lab.devices[1].settled() > 0;
                        assert_eq!(settled, on_device[1] && !refused, "{what}");
                    }
                    if long && force == Protocol::StagedRead {
                        let possible = on_device[0] && (on_device[1] || name == "no gaps");
                        let read = possible && !refused;
                        assert_eq!(status.protocol == Protocol::StagedRead, read, "{what}");
                        let counts = lab.job.pml(1).counters().of(Protocol::StagedRead);
                        assert_eq!(counts.fragments > 1, read, "{what}");
                        let settled = lab.devices[1].settled() > 0;
                        assert!(settled || !(on_device[1] && read), "{what}");
                    }
                    if force == Protocol::Pipeline {
                        assert_eq!(lab.asked(), [0, 0], "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_refusal_is_remembered_and_what_no_longer_refuses_is_used_again() {
    // The sender's device, then the receiver's. For a staged read the sender's buffer must be a device's.
    let (single, staged) = (Protocol::SingleCopy, Protocol::StagedRead);
    for (force, rank) in [(single, 0), (single, 1), (staged, 0)] {
        let mut lab = Lab::new(forced(force));
        let shape = bytes(100_000);
        let from = Buffer::source_in(&shape, 1, 7, lab.home(0, rank == 0));
        let to = |lab: &mut Lab, what: &str| {
            let to = Buffer::target_in(&shape, 1, lab.home(1, rank == 1));
            lab.carry(&from, &to, what).protocol
        };
        // Staging memory that is registered stays so.
        if force == single {
            assert_eq!(to(&mut lab, "given"), force);
        }
        lab.keep([true; 2]);
        let before = lab.asked()[rank];
        for message in 0..40 {
            assert_eq!(to(&mut lab, &format!("{message} refused")), Protocol::Pipeline);
        }
        let asked = lab.asked()[rank] - before;
        assert!((2..=4).contains(&asked), "{asked} times in 40 messages");
        lab.keep([false; 2]);
        let again = (0..100).position(|_| to(&mut lab, "given again") == force);
        assert!(again.is_some_and(|at| at > 0), "{again:?}");
        assert_eq!(to(&mut lab, "and from now on"), force);
    }
}

#[test]
fn refusals_of_the_transport_at_any_time_cost_nothing() {
    let seed = 11;
    let mut number = 0;
    let mut lab = Lab::over(forced(Protocol::SingleCopy), &mut |_, hub| {
        number += 1;
        let plan = Plan {
            seed: seed + number,
            rdma_refused_per_mille: 60,
            full_per_mille: 200,
            full_calls_max: 5,
            ..Plan::default()
        };
        Box::new(Fault::new(Loopback::with(hub, network()), plan))
    });
    for rank in 0..2 {
        // In several reads.
        lab.job.pml(rank).config_mut().tuning.single_copy_batch_bytes = 20_000;
    }
    let mut ran = [0; 2];
    for round in 0..200u64 {
        let layout = strided(60, 1000 + round, 2000);
        let from = Buffer::source_in(&layout, 1, round, lab.home(0, true));
        let to = Buffer::target_in(&layout, 1, lab.home(1, true));
        let status = lab.carry(&from, &to, &format!("seed {seed}, round {round}"));
        ran[usize::from(status.protocol == Protocol::SingleCopy)] += 1;
    }
    assert!(ran.iter().all(|&times| times > 0), "{ran:?}");
}

/// A staged read goes on if a fragment is refused now and then. If the device gives no more, the receive fails, and nobody
/// hangs.
#[test]
fn a_fragment_that_cannot_be_read_is_tried_again_and_fails_in_the_end() {
    let (seed, mut ran) = (31, [0; 3]);
    for round in 0..60 {
        let mut number = 0;
        let mut lab = Lab::over(cut(Protocol::StagedRead), &mut |_, hub| {
            number += 1;
            let plan = Plan {
                seed: seed + 2 * round + number,
                rdma_refused_per_mille: 60,
                ..Plan::default()
            };
            Box::new(Fault::new(Loopback::with(hub, network()), plan))
        });
        let layout = strided(50_000, 1, 2);
        let from = Buffer::source_in(&layout, 1, round, lab.home(0, true));
        let to = Buffer::target_in(&layout, 1, lab.home(1, true));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        let what = format!("seed {seed}, round {round}");
        if round >= 30 {
            for _ in 30..round {
                lab.job.progress();
            }
            lab.devices[1].keep_from_adapters(true);
        }
        let ended = lab.job.finish(1, recv);
        lab.job.finish(0, send).unwrap();
        ran[match ended {
            Ok(status) => {
                to.assert_received(&from.packed(), &what);
                usize::from(status.protocol == Protocol::StagedRead)
            }
            Err(PmlError::Engine(_)) => 2,
            Err(error) => panic!("{what}: {error}"),
        }] += 1;
        lab.job.settle();
        for rank in 0..2 {
            assert_eq!(lab.job.pml(rank).staging_bytes().1, 0, "{what}");
        }
    }
    assert!(ran.iter().all(|&times| times > 0), "{ran:?}");
}

/// All fragments are in the ring when the first is refused: nothing more comes from the sender that would have the others
/// taken out.
#[test]
fn the_last_fragments_fail_all_the_same() {
    for steps in 0..60 {
        let mut lab = Lab::new(cut(Protocol::StagedRead));
        let layout = strided(3 * 4096, 1, 2);
        let from = Buffer::source_in(&layout, 1, 1, lab.home(0, true));
        let to = Buffer::target_in(&layout, 1, lab.home(1, true));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        for _ in 0..steps {
            lab.job.progress();
        }
        lab.devices[1].keep_from_adapters(true);
        match lab.job.finish(1, recv) {
            Ok(_) => to.assert_received(&from.packed(), &format!("refused after {steps} steps")),
            Err(error) => assert!(matches!(error, PmlError::Engine(_)), "{steps} steps: {error}"),
        }
        lab.job.finish(0, send).unwrap();
    }
}

/// An end dies after any number of steps: the other's request ends, and its staging memory is free.
#[test]
fn death_at_any_step_is_survived() {
    for protocol in [Protocol::SingleCopy, Protocol::StagedRead] {
        for dead in [0, 1] {
            for steps in 0..40 {
                let mut lab = Lab::new(cut(protocol));
                lab.job.pml(1).config_mut().tuning.single_copy_batch_bytes = 8_000;
                let layout = strided(30_000, 1, 2);
                let from = Buffer::source_in(&layout, 1, 1, lab.home(0, true));
                let to = Buffer::target_in(&layout, 1, lab.home(1, true));
                let send = lab.job.isend(0, &from, 1, 0);
                let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
                for step in 0..steps {
                    lab.job.pml(step % 2).progress();
                }
                lab.job.kill(dead);
                let (left, id) = if dead == 0 { (1, recv) } else { (0, send) };
                let what = format!("{protocol}, {dead} dies after {steps} steps");
                if lab.job.finish(left, id).is_ok() && left == 1 {
                    to.assert_received(&from.packed(), &what);
                }
                lab.job.settle();
                assert_eq!(lab.job.pml(left).staging_bytes().1, 0, "{what}");
            }
        }
    }
}

/// Where registering has a price, a buffer with long gaps is not registered, whatever protocol is asked for, and neither is
/// one that is not expected to be read.
#[test]
fn what_has_long_gaps_is_not_registered() {
    let link = loopback::Config { register_ns: 10_000, ..network() };
    for (force, stride, expected) in [
        (Some(Protocol::SingleCopy), 3, Protocol::SingleCopy),
        (Some(Protocol::SingleCopy), 30, Protocol::Pipeline),
        (None, 3, Protocol::Pipeline),
    ] {
        let config = Config { force, ..Config::default() };
        let mut all = None;
        let mut lab = Lab::over(config, &mut |_, hub| {
            all = Some(hub.clone());
            Box::new(Loopback::with(hub, link.clone()))
        });
        let hub = all.unwrap();
        let layout = strided(2_000, 16, 16 * stride);
        let from = Buffer::source(&layout, 1, 3);
        let to = Buffer::target(&layout, 1);
        // The link is up after one message; until then nothing has a key.
        let short = Buffer::source(&bytes(8), 1, 1);
        lab.carry(&short, &Buffer::target(&bytes(8), 1), "the first");
        let send = lab.job.isend(0, &from, 1, 0);
        let registered = usize::from(expected == Protocol::SingleCopy);
        assert_eq!(hub.registered().0, registered, "{force:?}, gaps of {stride}");
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        let status = lab.job.finish(1, recv).unwrap();
        lab.job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), "gaps");
        assert_eq!(status.protocol, expected, "{force:?}, gaps of {stride}");
        assert_eq!(hub.registered(), (0, 0), "a message leaves nothing registered");
    }
}

/// By what registering is said to cost: short messages go through page-locked buffers; long ones out of the sender's buffer,
/// or out of staging memory that is registered once.
#[test]
fn the_cost_model_decides() {
    let link = loopback::Config { latency_ns: 5_000, bandwidth_mb_s: 12_500, ..network() };
    let cheap = (10_000.0, &[(16 << 20, Protocol::SingleCopy)][..]);
    let dear = [(30_000, Protocol::Pipeline), (16 << 20, Protocol::StagedRead)];
    for (device_register_ns, expected) in [cheap, (1_000_000.0, &dear[..])] {
        let tuning = Tuning { device_register_ns, ..Tuning::default() };
        let config = Config { tuning, ..Config::default() };
        let mut lab = Lab::over(config, &mut |_, hub| Box::new(Loopback::with(hub, link.clone())));
        for &(size, expected) in expected {
            let from = Buffer::source_in(&bytes(size), 1, 1, lab.home(0, true));
            let to = Buffer::target_in(&bytes(size), 1, lab.home(1, true));
            assert_eq!(lab.carry(&from, &to, "by cost").protocol, expected, "{size} bytes");
        }
    }
    // Short runs are packed and unpacked by the devices. The slabs of both are registered once.
    let mut all = None;
    let mut lab = Lab::over(Config::default(), &mut |_, hub| {
        all = Some(hub.clone());
        Box::new(Loopback::with(hub, link.clone()))
    });
    let hub = all.unwrap();
    let mut asked = Vec::new();
    for round in 0..3 {
        let from = Buffer::source_in(&strided(8 << 20, 1, 2), 1, round, lab.home(0, true));
        let to = Buffer::target_in(&strided(8 << 20, 1, 2), 1, lab.home(1, true));
        let before = lab.asked();
        assert_eq!(lab.carry(&from, &to, "short runs").protocol, Protocol::StagedRead);
        asked.push(lab.asked()[0] - before[0]);
    }
    assert_eq!(asked, [1, 0, 0]);
    assert_eq!(hub.registered().0, 1, "the sender's slab");
    drop(lab);
    assert_eq!(hub.registered(), (0, 0), "an endpoint that ends undoes it");
}
