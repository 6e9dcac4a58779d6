//! Every kind of layout, over every kind of link, by every protocol, compared with the oracle.

use gapless::btl::Btl;
use gapless::{
    Builder, Config, Datatype, Layout, Primitive, Protocol, Scope, Source, TagSel, View, ViewMut,
    World,
};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_btl_testkit::Random;
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_btl_testkit::trace::{Recorder, Trace};
use gapless_dtype::naive::Typemap;
use gapless_halo::{BlockMemory, plate};
use gapless_layouts::{Case, Side, cases};
use gapless_tests::{byte_at, job, job_of};

/// A link of a kind, and what protocols it must make possible.
struct Link {
    name: &'static str,
    config: loopback::Config,
    plan: Option<Plan>,
}

fn links() -> Vec<Link> {
    let plain = loopback::Config::default();
    let storm = Plan {
        seed: 4711,
        full_per_mille: 200,
        full_calls_max: 10,
        delay_polls_max: 5,
        rdma_refused_per_mille: 300,
        mapped_refused_per_mille: 300,
        ..Plan::default()
    };
    vec![
        Link { name: "plain", config: plain.clone(), plan: None },
        Link {
            name: "messages only",
            config: loopback::Config { rdma: false, mapped: false, ..plain.clone() },
            plan: None,
        },
        Link {
            name: "tiny",
            config: loopback::Config {
                eager_bytes: 256,
                max_fragment_bytes: 256,
                slots: 2,
                ..plain.clone()
            },
            plan: None,
        },
        Link { name: "stormy", config: plain, plan: Some(storm) },
    ]
}

fn layouts() -> Vec<Case> {
    let some = [
        ("v", 40),
        ("vc", 40),
        ("t", 40),
        ("stair", 256),
        ("x", 24),
        ("face-x", 16),
        ("face-y", 16),
        ("face-z", 16),
        ("halo26", 8),
        ("wrf-x-vec", 8),
        ("wrf-y-sa", 8),
        ("milc", 1),
        ("nas-lu-y", 12),
        ("nas-mg-x", 18),
        ("lammps-full", 1),
        ("lammps-atomic", 1),
        ("specfem3d-oc", 1),
        ("specfem3d-cm", 1),
        ("specfem3d-mt", 5600),
        ("fft2d", 64),
        ("reshard", 64),
        ("openmpi", 2),
    ];
    some.into_iter().flat_map(|(name, n)| cases(name, Some(n)).expect(name)).collect()
}

/// Where each packed byte of a side lies in its buffer, from the typemap alone.
fn places(side: &Side) -> Vec<usize> {
    let typemap = Typemap::of(&side.datatype).expect("small enough to write out");
    let displacements = typemap.displacements(side.count).expect("small enough to write out");
    let place = |displacement| {
        let at = side.origin.checked_add_signed(displacement).expect("inside the buffer");
        usize::try_from(at).expect("inside the buffer")
    };
    displacements.into_iter().map(place).collect()
}

fn buffer(side: &Side, seed: u64) -> Vec<u8> {
    (0..side.buffer_bytes).map(|at| byte_at(seed, at)).collect()
}

/// What must be in the receiver's buffer in the end.
fn expected(case: &Case, sent: &[u8], mut into: Vec<u8>) -> Vec<u8> {
    for (from, to) in places(&case.send).into_iter().zip(places(&case.recv)) {
        into[to] = sent[from];
    }
    into
}

/// A message there and one back, from memory of the heap and from memory that can be mapped; each byte compared.
fn exchange(world: &World, case: &Case, index: u64, what: &str) {
    let comm = world.comm();
    let (me, peer) = (u64::from(comm.rank()), 1 - comm.rank());
    let seed = |rank: u64, role: u64| index * 8 + rank * 2 + role;
    let send = case.send.datatype.commit().unwrap();
    let recv = case.recv.datatype.commit().unwrap();
    let out = buffer(&case.send, seed(me, 0));
    let mut shared = world.alloc(out.len()).unwrap();
    shared.copy_from_slice(&out);
    let theirs = buffer(&case.send, seed(u64::from(peer), 0));
    let fresh = buffer(&case.recv, seed(me, 1));
    let right = expected(case, &theirs, fresh.clone());
    for memory in [&out[..], &shared[..]] {
        let mut into = fresh.clone();
        comm.scope(|s| {
            let into = ViewMut::typed(&mut into, case.recv.origin, &recv, case.recv.count)?;
            let _ = s.irecv(into, Source::Any, TagSel::Any)?;
            let memory = View::typed(memory, case.send.origin, &send, case.send.count)?;
            let _ = s.isend(memory, peer, 7)?;
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{}, {what}: {error}", case.name));
        if into != right {
            let at = into.iter().zip(&right).position(|(a, b)| a != b);
            panic!("{}, {what}: byte {at:?} is wrong; seeds from {index}", case.name);
        }
    }
}

#[test]
fn every_layout_over_every_link_by_every_protocol() {
    let layouts = layouts();
    let protocols = [
        None,
        Some(Protocol::Eager),
        Some(Protocol::Pipeline),
        Some(Protocol::Mapped),
        Some(Protocol::SingleCopy),
    ];
    for link in links() {
        for force in protocols {
            let hub = Hub::new();
            let config = Config { force, ..Config::default() };
            let what = format!("{} link, {force:?}", link.name);
            let transports = |_| -> Vec<Box<dyn Btl>> {
                let end = Loopback::with(&hub, link.config.clone());
                match &link.plan {
                    None => vec![Box::new(end)],
                    Some(plan) => {
                        let recorder = Recorder::new(64);
                        vec![Box::new(Trace::new(
                            Fault::new(end, plan.clone()),
                            recorder.listener(),
                        ))]
                    }
                }
            };
            job(2, &config, transports, |world| {
                for (index, case) in (0u64..).zip(&layouts) {
                    exchange(world, case, index, &what);
                }
            });
        }
    }
}

/// Over TCP between two ranks of this host.
fn over_tcp(force: Option<Protocol>) -> Builder {
    let config = Config { force, ..Config::default() };
    World::builder().only(["tcp"]).tcp_interfaces("lo").config(config)
}

/// The same over TCP, where what has long runs leaves from where it lies, and is read to where it goes.
#[test]
fn every_layout_over_tcp() {
    let layouts = layouts();
    for force in [None, Some(Protocol::Eager), Some(Protocol::Pipeline)] {
        let what = format!("TCP, {force:?}");
        job_of(
            2,
            |_| over_tcp(force),
            |world| {
                for (index, case) in (0u64..).zip(&layouts) {
                    exchange(world, case, index, &what);
                }
            },
        );
    }
}

/// Bytes around what a message is received into.
const AROUND: usize = 24;
/// Rows of messages with gaps, from one to the next.
const STRIDE: usize = 4200;

/// A message that both ends know: its length, how long its rows are (or it has no gaps), how much longer its receive is.
#[derive(Clone, Copy, Debug)]
struct Long {
    len: usize,
    row: Option<usize>,
    more: usize,
}

impl Long {
    fn new(random: &mut Random) -> Long {
        let around = [1000, 1200, 8 << 10, 16 << 10, 64 << 10, 130_000, 300_000, 1 << 20];
        let len = around[random.below(around.len())] - 20 + random.below(40);
        match random.below(4) {
            0 => Long { len, row: None, more: 1 + random.below(100) },
            1 => {
                let row = [512, 3000, 4096][random.below(3)];
                Long { len: len.div_ceil(row) * row, row: Some(row), more: 0 }
            }
            _ => Long { len, row: None, more: 0 },
        }
    }

    /// The layout, and bytes of a buffer for it.
    fn layout(&self, more: usize) -> (Layout, usize) {
        let byte = Primitive::Byte.into();
        match self.row {
            None => {
                let len = self.len + more;
                (Datatype::contiguous(len as u64, &byte).unwrap().commit().unwrap(), len)
            }
            Some(row) => {
                let rows = self.len / row;
                let vector =
                    Datatype::vector(rows as u64, row as u64, STRIDE as i64, &byte).unwrap();
                (vector.commit().unwrap(), (rows - 1) * STRIDE + row)
            }
        }
    }

    /// Where byte number `at` of it lies.
    fn place(&self, at: usize) -> usize {
        self.row.map_or(at, |row| at / row * STRIDE + at % row)
    }
}

/// Long messages both ways, in windows, whose receives were posted before or after they came, in another order, for as many
/// bytes or for more: each byte is right, and nothing beside them was written.
#[test]
fn long_messages_over_tcp_go_where_they_should() {
    const ROUNDS: u64 = 30;
    let named = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = named.unwrap_or_else(|| std::process::id().into());
    println!("GAPLESS_SEED={seed}");
    for force in [None, Some(Protocol::Pipeline)] {
        job_of(
            2,
            |_| over_tcp(force),
            |world| {
                for round in 0..ROUNDS {
                    let mut random = Random::new(seed * 1000 + round);
                    let window: Vec<Long> =
                        (0..=random.below(6)).map(|_| Long::new(&mut random)).collect();
                    windows(world, &window, random.below(2) == 0, seed * 1000 + round);
                }
            },
        );
    }
}

fn send_all<'scope, 'env>(
    s: &'scope Scope<'scope, 'env>,
    window: &[Long],
    all: &'env [Vec<u8>],
    peer: u32,
) -> Result<(), gapless::Error> {
    for (number, (long, bytes)) in window.iter().zip(all).enumerate() {
        let (layout, _) = long.layout(0);
        let _ =
            s.isend(View::typed(bytes, 0, &layout, 1)?, peer, i32::try_from(number).unwrap())?;
    }
    Ok(())
}

/// One round of them.
fn windows(world: &World, window: &[Long], posted_before: bool, seed: u64) {
    let comm = world.comm();
    let (me, peer) = (comm.rank(), 1 - comm.rank());
    let of = |rank: u32, number: usize| seed * 100 + u64::from(rank) * 50 + number as u64;
    let sends: Vec<Vec<u8>> = (0..window.len())
        .map(|number| {
            let (_, bytes) = window[number].layout(0);
            (0..bytes).map(|at| byte_at(of(me, number), at as u64)).collect()
        })
        .collect();
    let blank: Vec<Vec<u8>> =
        window.iter().map(|long| vec![0xA5; long.layout(long.more).1 + 2 * AROUND]).collect();
    let mut into = blank.clone();
    comm.scope(|s| {
        if !posted_before {
            send_all(s, window, &sends, peer)?;
        }
        for (number, (long, bytes)) in window.iter().zip(&mut into).enumerate().rev() {
            let (layout, _) = long.layout(long.more);
            let _ = s.irecv(
                ViewMut::typed(bytes, AROUND as u64, &layout, 1)?,
                peer,
                i32::try_from(number).unwrap(),
            )?;
        }
        comm.barrier()?;
        if posted_before {
            send_all(s, window, &sends, peer)?;
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("seed {seed}, {window:?}: {error}"));
    for (number, (long, mut right)) in window.iter().zip(blank).enumerate() {
        for at in (0..long.len).map(|at| long.place(at)) {
            right[AROUND + at] = byte_at(of(peer, number), at as u64);
        }
        let wrong = into[number].iter().zip(&right).position(|(came, right)| came != right);
        assert_eq!(
            wrong, None,
            "seed {seed}, posted before: {posted_before}, {number} of {window:?}"
        );
    }
}

/// The same between two ports of adapters of this machine, with a third of the layouts: which of them, the seed says. (In
/// the emulated machine of `cargo xtask verbs`, a message takes a hundred times as long.)
#[test]
fn every_layout_over_verbs() {
    let ports = std::env::var("GAPLESS_IB_PORTS").unwrap_or_default();
    let Some((one, other)) = ports.split_once(',') else {
        let why = "GAPLESS_IB_PORTS names no two devices; cargo xtask verbs makes some";
        return gapless_btl_testkit::conformance::skip("every layout over verbs", why);
    };
    let seed = std::env::var("GAPLESS_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(0u64);
    println!("GAPLESS_SEED={seed}");
    let layouts: Vec<(u64, Case)> =
        (0u64..).zip(layouts()).filter(|(index, _)| index % 3 == seed % 3).collect();
    for force in [None, Some(Protocol::SingleCopy)] {
        let config = Config { force, ..Config::default() };
        let builder = |rank| {
            let device = if rank == 0 { one } else { other };
            World::builder().config(config.clone()).only(["ib"]).ib_devices(device)
        };
        let what = format!("verbs, {force:?}");
        job_of(2, builder, |world| {
            for (index, case) in &layouts {
                exchange(world, case, *index, &what);
            }
        });
    }
}

#[test]
fn peers_choose_the_better_of_two_rails() {
    let (slow, quick) = (Hub::new(), Hub::new());
    let transports = |rank| -> Vec<Box<dyn Btl>> {
        let rail = |name, latency_ns, hub| {
            let config = loopback::Config { name, latency_ns, ..loopback::Config::default() };
            Box::new(Loopback::with(hub, config)) as Box<dyn Btl>
        };
        // Rank 2 has the slow one only; all reach all.
        match rank {
            2 => vec![rail("slow", 9000, &slow)],
            _ => vec![rail("slow", 9000, &slow), rail("quick", 50, &quick)],
        }
    };
    job(3, &Config::default(), transports, |world| {
        let comm = world.comm();
        let (me, size) = (comm.rank(), comm.size());
        let mut got = vec![[0u32; 1]; size as usize];
        comm.scope(|s| {
            for (from, word) in (0..size).zip(&mut got) {
                let _ = s.irecv(word, from, 0)?;
            }
            (0..size).try_for_each(|to| comm.send(&[me * 10 + to], to, 0).map(drop))
        })
        .unwrap();
        assert!((0..size).zip(&got).all(|(from, word)| word == &[from * 10 + me]));
    });
}

#[test]
fn the_halo_exchange_runs_over_any_transport() {
    for link in links() {
        let hub = Hub::new();
        let transports = |_| -> Vec<Box<dyn Btl>> {
            let end = Loopback::with(&hub, link.config.clone());
            match &link.plan {
                None => vec![Box::new(end)],
                Some(plan) => vec![Box::new(Fault::new(end, plan.clone()))],
            }
        };
        job(6, &Config::default(), transports, |world| {
            let plate = plate::Plate { rows: 31, columns: 43, steps: 12 };
            let summary = plate::run(world, plate, BlockMemory::Host).unwrap();
            assert_eq!(summary.wrong, 0, "{}: {summary:?}", link.name);
            assert!(summary.sent_bytes > 0);
        });
    }
}
