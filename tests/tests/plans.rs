//! Plans between ranks, in every kind of memory: a block's halo is exchanged with all eight neighbours for a few steps,
//! and every cell is compared with what indices say. Ranks are threads, but where one dies.

use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Builder, Communicator, Config, Datatype, Device, Layout, Plan, PlanBuffer, PlanBuilder,
    Primitive, Region, Space, Tuning, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_engine::testkit::FakeEngine;
use gapless_halo::BlockMemory;
use gapless_halo::cuboid::{self, Cuboid, Exchange};
use gapless_halo::plate::{self, Plate};
use gapless_mem::fake::FakeDevice;
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use gapless_tests::{byte_at, job, job_of};
use std::sync::Arc;
use std::time::Duration;

/// Cells of a block's side without its halo, and with it.
const SIDE: u64 = 5;
const WIDTH: u64 = SIDE + 2;
const CELLS: u64 = WIDTH * WIDTH;
/// Ranks on a ring of blocks: each has itself or another on all sides.
const RANKS: u32 = 3;
const STEPS: u64 = 5;
const FAKE: Space = Space::Device { kind: "fake", device: 0 };

/// Doubles, as bytes: what lies in cell `at` of a rank's block before a step.
fn cell(rank: u32, step: u64, at: u64) -> [u8; 8] {
    std::array::from_fn(|byte| byte_at(u64::from(rank) * 1000 + step, 8 * at + byte as u64))
}

/// A side or a corner: where its inner cells begin, where the halo beyond begins, how many rows and columns it has, and
/// how many ranks on its neighbour is.
struct Face {
    inner: u64,
    halo: u64,
    rows: u64,
    columns: u64,
    on: u32,
}

fn faces() -> Vec<Face> {
    let at = |side: usize, sides: [u64; 3]| sides[side];
    let mut faces = Vec::new();
    for (y, x) in (0..3).flat_map(|y| (0..3).map(move |x| (y, x))).filter(|it| *it != (1, 1)) {
        let place = |ends: [u64; 3]| at(y, ends) * WIDTH + at(x, ends);
        let (rows, columns) = (at(y, [1, SIDE, 1]), at(x, [1, SIDE, 1]));
        let (inner, halo) = (place([1, 1, SIDE]), place([0, 1, SIDE + 1]));
        // The opposite face is as many ranks back.
        let on = [[1, 2, 0], [2, 0, 1], [0, 1, 2]][y][x];
        faces.push(Face { inner, halo, rows, columns, on });
    }
    faces
}

fn layout(face: &Face) -> Layout {
    let double = Datatype::from(Primitive::Double);
    let width = i64::try_from(WIDTH).unwrap();
    Datatype::vector(face.rows, face.columns, width, &double).unwrap().commit().unwrap()
}

/// Who is on a face's other side, and who has this rank there.
fn neighbours(comm: &Communicator, face: &Face) -> (u32, u32) {
    ((comm.rank() + face.on) % RANKS, (comm.rank() + RANKS - face.on) % RANKS)
}

/// The plan of a block whose origins are in units of `unit`.
fn plan(comm: &Communicator, mut plan: PlanBuilder, unit: u64) -> Plan {
    for (tag, face) in (0..).zip(&faces()) {
        let (to, from) = neighbours(comm, face);
        let layout = layout(face);
        // What goes to one side comes to the halo on the other.
        let mirror = &faces()[7 - usize::try_from(tag).unwrap()];
        plan = plan.send(unit * face.inner, &layout, 1, to, tag).unwrap();
        plan = plan.recv(unit * mirror.halo, &layout, 1, from, tag).unwrap();
    }
    plan.build().unwrap()
}

/// What a block has after the exchange of a step.
fn expected(comm: &Communicator, step: u64) -> Vec<u8> {
    let mut cells: Vec<_> = (0..CELLS).map(|at| cell(comm.rank(), step, at)).collect();
    for (tag, face) in faces().iter().enumerate() {
        let (_, from) = neighbours(comm, face);
        for (row, column) in
            (0..face.rows).flat_map(|row| (0..face.columns).map(move |it| (row, it)))
        {
            let theirs = face.inner + row * WIDTH + column;
            let here = faces()[7 - tag].halo + row * WIDTH + column;
            cells[usize::try_from(here).unwrap()] = cell(from, step, theirs);
        }
    }
    cells.concat()
}

fn fresh(comm: &Communicator, step: u64) -> Vec<u8> {
    (0..CELLS).flat_map(|at| cell(comm.rank(), step, at)).collect()
}

/// Exchanges two arrays in turns; `put` and `get` are how their bytes are written and read.
fn steps<B: PlanBuffer>(
    comm: &Communicator,
    plan: &mut Plan,
    mut arrays: [B; 2],
    put: impl Fn(&mut B, &[u8]),
    get: impl Fn(&B) -> Vec<u8>,
) {
    for step in 0..STEPS {
        let array = &mut arrays[usize::try_from(step % 2).unwrap()];
        put(array, &fresh(comm, step));
        let sent = plan.exchange(array).unwrap().iter().map(|status| status.bytes).sum::<u64>() / 2;
        assert_eq!((sent, plan.sent_bytes()), (8 * (4 * SIDE + 4), 8 * (4 * SIDE + 4)));
        assert!(get(array) == expected(comm, step), "rank {}, step {step}", comm.rank());
    }
}

fn sm(rank: u32, name: &str) -> Builder {
    // Every job of this process has its own name.
    let config =
        SmConfig::new(format!("plans, {name} {}", std::process::id()), format!("rank {rank}"));
    let sm = Box::new(Sm::new(config).unwrap());
    World::builder().tuning(Tuning::default()).only(["sm"]).transport(sm)
}

#[test]
fn halos_in_host_memory() {
    job_of(
        RANKS,
        |rank| sm(rank, "host"),
        |world| {
            let comm = world.comm();
            let doubles = |bytes: &[u8]| -> Vec<f64> {
                bytes.chunks_exact(8).map(|it| f64::from_ne_bytes(it.try_into().unwrap())).collect()
            };
            let array = || vec![0.0f64; usize::try_from(CELLS).unwrap()];
            let put = |array: &mut Vec<f64>, bytes: &[u8]| array.copy_from_slice(&doubles(bytes));
            let get =
                |array: &Vec<f64>| array.iter().flat_map(|number| number.to_ne_bytes()).collect();
            let mut plan = plan(comm, comm.plan(&array()), 1);
            steps(comm, &mut plan, [array(), array()], put, get);
        },
    );
}

#[test]
fn halos_in_allocated_memory() {
    job_of(
        RANKS,
        |rank| sm(rank, "allocated"),
        |world| {
            let comm = world.comm();
            let array = || world.alloc(usize::try_from(8 * CELLS).unwrap()).unwrap();
            let mut plan = plan(comm, comm.plan(&array()), 8);
            let put = |array: &mut gapless::SharedBuf, bytes: &[u8]| array.copy_from_slice(bytes);
            steps(comm, &mut plan, [array(), array()], put, |array| array.to_vec());
        },
    );
}

/// A world of ranks with a fake device each.
fn with_fakes(ranks: u32, name: &str, body: impl Fn(&World, &FakeDevice) + Sync) {
    let devices: Vec<_> = (0..ranks).map(|_| Arc::new(FakeDevice::with_delay(0, 2))).collect();
    let builder = |rank: u32| {
        let device = &devices[rank as usize];
        let engine = FakeEngine { attaches: false, ..FakeEngine::new(device, 3) };
        let builder = sm(rank, name).open_devices(false);
        builder.engine(Arc::new(engine)).device(Arc::clone(device) as _)
    };
    job_of(ranks, builder, |world| body(world, &devices[world.rank() as usize]));
}

#[test]
fn halos_in_memory_of_devices() {
    with_fakes(RANKS, "devices", |world, device| {
        let comm = world.comm();
        let array = || world.alloc_device(FAKE, 8 * CELLS).unwrap();
        let mut own = plan(comm, comm.plan(&array()), 8);
        let put = |array: &mut gapless::DeviceBuf, bytes: &[u8]| {
            copy(device, array.region(), Region::of(bytes));
        };
        let get = |array: &gapless::DeviceBuf| {
            let mut bytes = vec![0; usize::try_from(8 * CELLS).unwrap()];
            copy(device, Region::of_mut(&mut bytes), array.region());
            bytes
        };
        steps(comm, &mut own, [array(), array()], put, get);
        // Memory that nobody but the caller knows.
        let mut memory = array();
        put(&mut memory, &fresh(comm, 77));
        let mut plan = plan(comm, comm.plan_region(memory.region()), 8);
        // SAFETY: the memory lives until the end of this block, and nothing else touches it during the call.
        unsafe { plan.exchange_region(memory.region()) }.unwrap();
        assert!(get(&memory) == expected(comm, 77));
    });
}

/// A cuboid small enough that its serial computation takes no time, with blocks that differ.
const CUBOID: Cuboid = Cuboid { sides: [10, 7, 8], steps: 20 };

/// The middle one of 27 processes has 26 neighbours.
#[test]
fn the_cuboid_is_computed_by_27_ranks() {
    let hub = Hub::new();
    let transports = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
    job(27, &Config::default(), transports, |world| {
        let summary = cuboid::run(world, CUBOID, BlockMemory::Host, Exchange::Messages).unwrap();
        assert_eq!((summary.wrong, summary.grid), (0, [3; 3]), "{summary:?}");
        let neighbours = if world.rank() == 13 { 26 } else { summary.neighbours };
        assert_eq!((summary.neighbours, summary.residuals.len()), (neighbours, 2));
    });
}

/// By collectives, and transformed: what GPUs do by plans on streams.
#[test]
fn one_collective_exchanges_rims_and_transposes_cubes() {
    let hub = Hub::new();
    let transports = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
    job(8, &Config::default(), transports, |world| {
        let summary = cuboid::run(world, CUBOID, BlockMemory::Host, Exchange::Collective).unwrap();
        assert_eq!((summary.wrong, summary.grid, summary.neighbours), (0, [2; 3], 7));
        let summary = gapless_fft3d::run(world, 16, gapless_fft3d::TransposeMemory::Host).unwrap();
        assert_eq!((summary.planes, summary.wrong), (2, 0), "{summary:?}");
        assert!(summary.error < 1e-13, "{summary:?}");
        assert!(gapless_fft3d::run(world, 12, gapless_fft3d::TransposeMemory::Host).is_err());
    });
}

#[test]
fn the_cuboid_is_computed_with_blocks_on_devices() {
    with_fakes(4, "cuboid", |world, _| {
        let summary =
            cuboid::run(world, CUBOID, BlockMemory::Device(FAKE), Exchange::Messages).unwrap();
        assert_eq!((summary.wrong, summary.grid), (0, [2, 2, 1]), "{summary:?}");
        assert_eq!(summary.neighbours, 3);
    });
}

#[test]
fn the_plate_is_computed_with_blocks_on_devices() {
    with_fakes(6, "plate", |world, _| {
        let plate = Plate { rows: 31, columns: 43, steps: 20 };
        let summary = plate::run(world, plate, BlockMemory::Device(FAKE)).unwrap();
        assert_eq!((summary.wrong, summary.grid), (0, (2, 3)), "{summary:?}");
        assert!(summary.sent_bytes > 0 && summary.residuals.len() == 2, "{summary:?}");
    });
}

fn copy(device: &FakeDevice, to: Region, from: Region) {
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
}

const DEATH: &str = "plans::a_death_before_a_step_leaves_nobody_waiting";
/// A loss is an error within two seconds, it is promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);
const VICTIM: u32 = 2;

/// Rank 1 knows of a death before a step begins, rank 0 does not: its message of the step comes all the same.
#[test]
fn a_death_before_a_step_leaves_nobody_waiting() {
    if let Some(member) = Member::of_launcher() {
        return survive(member);
    }
    let mut launcher = TestLauncher::start(DEATH, &[""; 3], |_, _| {});
    let mut due = vec!["met"; 3];
    while !due.is_empty() {
        match launcher.hear(WATCHDOG) {
            Some((_, Said::Line(line))) => {
                let at = due.iter().position(|due| *due == line);
                due.remove(at.unwrap_or_else(|| panic!("{line} while {due:?} are due")));
                if due.is_empty() && line == "met" {
                    launcher.kill(VICTIM);
                    due = vec!["failed", "failed", "went on", "went on"];
                }
            }
            // A survivor may be seen to end before the other one has said that it went on.
            Some((rank, Said::Ended(status))) if rank == VICTIM || status.success() => {}
            other => panic!("{other:?} while {due:?} are due"),
        }
    }
}

fn survive(mut member: Member) {
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let comm = world.comm();
    let others: Vec<u32> = (0..3).filter(|rank| *rank != comm.rank()).collect();
    let one = Datatype::from(Primitive::Int32).commit().unwrap();
    let mut cells = [7, 7, 0, 0];
    let mut plan = comm.plan(&cells);
    for (at, other) in (0..).zip(others) {
        plan = plan.send(at, &one, 1, other, 0).unwrap().recv(at + 2, &one, 1, other, 0).unwrap();
    }
    let mut plan = plan.build().unwrap();
    plan.exchange(&mut cells).unwrap();
    say("met");
    if comm.rank() == VICTIM {
        std::thread::sleep(10 * WATCHDOG);
    }
    if comm.rank() == 1 {
        let lost = comm.recv(&mut [0u8], VICTIM, 9).unwrap_err();
        assert_eq!(lost.lost_rank(), Some(VICTIM));
    }
    let error = plan.exchange(&mut cells).unwrap_err();
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    assert!(plan.statuses().is_empty());
    say("failed");
    comm.shrink().unwrap().barrier().unwrap();
    say("went on");
    let _ = world.finalize();
}
