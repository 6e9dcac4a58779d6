//! One-sided windows: random programs against a model, every basic type and operation, each kind of epoch, contention,
//! errors, and a rank that is killed. By mapped memory and by messages, accumulations also as tasks.

mod asserted;
#[allow(unsafe_code, reason = "views of memory of a device")]
mod device;
#[allow(unsafe_code, reason = "views of memory of a device, and a kernel")]
mod device_notices;
#[allow(unsafe_code, reason = "fills memory of a device")]
mod in_flight;
mod killed;
mod misused;
mod model;
mod notices;
mod numbers;
#[allow(unsafe_code, reason = "views of memory of a device")]
mod on_device;
mod pages;
mod passive;
mod program;
#[allow(unsafe_code, reason = "vouches for memory, as bindings do")]
mod raw;
mod refused;
mod shared;
mod types;
#[allow(unsafe_code, reason = "plays a worker, which changes memory of windows")]
mod worker;

use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::{
    Accumulations, AnyBits, Communicator, Config, Error, Lock, ReduceOp, Window, WindowBuilder,
    WindowError, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_btl_testkit::Random;
use gapless_tests::job;
use std::sync::atomic::{AtomicU32, Ordering};

/// How operations reach their targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Memory that processes map.
    Mapped,
    /// Messages, although memory could be mapped.
    Messages,
    /// Messages of 256 bytes, of which eight are under way; nothing can be mapped.
    Narrow,
    /// Even ranks map each other, and odd ones do; between them go messages. So a rank reaches some targets one way and some
    /// the other, and every target is reached both ways.
    Mixed,
    /// As `Mapped`; accumulations are tasks.
    Tasks,
    /// As `Narrow`, likewise.
    NarrowTasks,
}

impl Path {
    fn by_tasks(self) -> bool {
        matches!(self, Path::Tasks | Path::NarrowTasks)
    }

    /// Whether all targets are mapped.
    fn maps(self) -> bool {
        matches!(self, Path::Mapped | Path::Tasks)
    }

    fn builder(self, comm: &Communicator) -> WindowBuilder<'_> {
        let builder = comm.window();
        let builder = match self {
            Path::Messages | Path::Narrow | Path::NarrowTasks => builder.by_messages(),
            Path::Mapped | Path::Mixed | Path::Tasks => builder,
        };
        if self.by_tasks() { builder.accumulate_by_tasks() } else { builder }
    }
}

const PATHS: [Path; 6] =
    [Path::Mapped, Path::Messages, Path::Narrow, Path::Mixed, Path::Tasks, Path::NarrowTasks];

/// Runs `body` as each of `size` ranks.
fn ranks(path: Path, size: u32, body: impl Fn(&Communicator) + Sync) {
    worlds(path, size, |world| body(world.comm()));
}

/// The same, with the rank's world.
fn worlds(path: Path, size: u32, body: impl Fn(&World) + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let name = format!("windows {} {number}", std::process::id());
    let hub = Hub::new();
    let transports = |rank| -> Vec<Box<dyn Btl>> {
        let shared = || Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
        let narrow = LoopbackConfig {
            eager_bytes: 256,
            max_fragment_bytes: 256,
            slots: 8,
            rdma: false,
            mapped: false,
            ..LoopbackConfig::default()
        };
        match path {
            Path::Mapped | Path::Messages | Path::Tasks => vec![Box::new(shared())],
            Path::Narrow | Path::NarrowTasks => vec![Box::new(Loopback::with(&hub, narrow))],
            Path::Mixed => {
                let job = format!("{name} {}", rank % 2);
                let shared = Sm::new(SmConfig::new(job, format!("rank {rank}"))).unwrap();
                // Shared memory is to be preferred.
                let narrow = LoopbackConfig { latency_ns: 1_000_000, ..narrow };
                vec![Box::new(shared), Box::new(Loopback::with(&hub, narrow))]
            }
        }
    };
    job(size, &Config::default(), transports, body);
}

/// A window of `count` elements whose operations go this way.
fn window<T: AnyBits>(comm: &Communicator, path: Path, count: usize) -> Window<T> {
    let window = path.builder(comm).allocate(count).unwrap();
    let way = if path.by_tasks() { Accumulations::Tasks } else { Accumulations::Ordinary };
    assert_eq!(window.accumulations(), way);
    for rank in 0..comm.size() {
        let is_near = path == Path::Mixed && rank % 2 == comm.rank() % 2;
        assert_eq!(window.is_mapped(rank).unwrap(), path.maps() || is_near, "{path:?}");
    }
    window
}

/// Why a window refused a call.
fn why<T: std::fmt::Debug>(result: Result<T, Error>) -> WindowError {
    match result {
        Err(Error::Window(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Every value of a counter is given once, whoever asks.
#[test]
fn fetched_numbers_are_given_once() {
    for path in PATHS {
        const EACH: u32 = 100;
        ranks(path, 4, |comm| {
            let mut window = window::<u32>(comm, path, 2);
            window.lock_all().unwrap();
            let fetch = |_| window.fetch_and_op(1u32, 2, 1, ReduceOp::Sum).unwrap();
            let mine: Vec<u32> = (0..EACH).map(fetch).collect();
            assert!(mine.is_sorted());
            window.unlock_all().unwrap();
            let mut all = vec![0u32; 4 * EACH as usize];
            comm.allgather(&mine, &mut all).unwrap();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..4 * EACH), "{path:?}");
            window.free().unwrap();
        });
    }
}

/// What an exclusive lock is held for is done alone; and what is no atomic instruction is atomic all the same.
#[test]
fn locks_and_long_elements_lose_nothing() {
    for path in PATHS {
        const EACH: u32 = 40;
        ranks(path, 4, |comm| {
            let mut counters = window::<u64>(comm, path, 1);
            let mut sums = window::<[f64; 2]>(comm, path, 3);
            let complex = gapless::Datatype::from(gapless::Primitive::DoubleComplex);
            let complex = complex.commit().unwrap();
            for _ in 0..EACH {
                counters.lock(1, Lock::Exclusive).unwrap();
                let mut count = [0u64];
                counters.get(&mut count, 1, 0).unwrap();
                counters.put(&[count[0] + 1], 1, 0).unwrap();
                counters.unlock(1).unwrap();
                sums.lock(2, Lock::Shared).unwrap();
                let one = gapless::View::typed(&[1.0, -2.0], 0, &complex, 1).unwrap();
                sums.accumulate(one, 2, 1, ReduceOp::Sum).unwrap();
                sums.unlock(2).unwrap();
            }
            comm.barrier().unwrap();
            let all = f64::from(4 * EACH);
            if comm.rank() == 1 {
                assert_eq!(counters.load(0).unwrap(), u64::from(4 * EACH), "{path:?}");
            }
            if comm.rank() == 2 {
                assert_eq!(sums.load(1).unwrap(), [all, -2.0 * all], "{path:?}");
            }
            let me = comm.rank();
            counters.lock(me, Lock::Exclusive).unwrap();
            counters.store(u64::from(me) + 7, 0).unwrap();
            counters.unlock(me).unwrap();
            comm.barrier().unwrap();
            counters.lock_all().unwrap();
            for rank in 0..4 {
                let mut found = [0u64];
                counters.get(&mut found, rank, 0).unwrap();
                assert_eq!(found, [u64::from(rank) + 7], "{path:?}");
            }
            counters.unlock_all().unwrap();
            counters.free().unwrap();
            sums.free().unwrap();
        });
    }
}

/// Sums are not lost, whatever shape they have: one number, a stretch over several stripes, rows, every other number, and
/// numbers that lie otherwise at the target; all at the same time, by four ranks, on the same numbers.
#[test]
fn sums_of_every_shape_lose_nothing() {
    const ALL: usize = 1500;
    const EACH: usize = 4;
    let number = gapless::Datatype::from(gapless::Primitive::Uint64);
    let rows =
        gapless::Datatype::vector(ALL as u64 / 20, 8, 20, &number).unwrap().commit().unwrap();
    let comb = gapless::Datatype::vector(ALL as u64 / 2, 1, 2, &number).unwrap().commit().unwrap();
    let back = gapless::Datatype::vector(ALL as u64 / 2, 1, -2, &number).unwrap().commit().unwrap();
    // What a round of one rank adds to each number.
    let shares = |at: usize| {
        let mut all = 1 + u64::from(at % 20 < 8) + 1;
        all += u64::from((7..907).contains(&at)) + if at == 700 { 2 } else { 0 };
        all
    };
    for path in PATHS {
        ranks(path, 4, |comm| {
            let mut window = window::<u64>(comm, path, ALL);
            let ones = vec![1u64; ALL];
            let typed = |layout| gapless::View::typed(&ones[..], 0, layout, 1).unwrap();
            window.lock_all().unwrap();
            for _ in 0..EACH {
                let sum = ReduceOp::Sum;
                window.accumulate(&ones, 1, 0, sum).unwrap();
                window.accumulate(typed(&rows), 1, 0, sum).unwrap();
                window.accumulate(&1u64, 1, 700, sum).unwrap();
                window.accumulate(typed(&comb), 1, 0, sum).unwrap();
                window.fetch_and_op(1u64, 1, 700, sum).unwrap();
                let odd = gapless::Place::typed(ALL as u64 - 1, &back, 1);
                window.accumulate(&ones[..ALL / 2], 1, odd, sum).unwrap();
                let mut found = vec![0u64; 900];
                window.get_accumulate(&ones[..900], &mut found, 1, 7, sum).unwrap();
            }
            window.unlock_all().unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                let mut found = vec![0u64; ALL];
                window.read(&mut found, 0).unwrap();
                let right = (0..ALL).map(|at| 4 * EACH as u64 * shares(at));
                let wrong = found.iter().zip(right).position(|(found, right)| *found != right);
                assert_eq!(wrong, None, "{path:?}");
            }
            window.free().unwrap();
        });
    }
}

#[test]
fn calls_are_counted_where_that_is_asked_for() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = path.builder(comm).profiled().allocate::<f64>(100).unwrap();
            window.lock_all().unwrap();
            window.put(&[1.0; 10], 1, 0).unwrap();
            window.accumulate(&[1.0; 3], 1, 20, ReduceOp::Sum).unwrap();
            window.accumulate(&1.0, 1, 20, ReduceOp::Sum).unwrap();
            window.fetch_and_op(1.0, 1, 20, ReduceOp::Sum).unwrap();
            window.unlock_all().unwrap();
            let profile = window.profile().unwrap();
            let of = |name: &str| {
                let calls = profile.calls.iter().find(|calls| calls.name == name);
                calls.map_or((0, 0), |calls| (calls.count, calls.bytes))
            };
            assert_eq!(
                [of("put"), of("accumulate"), of("fetch_and_op")],
                [(1, 80), (2, 32), (1, 8)]
            );
            assert_eq!([of("lock"), of("unlock"), of("get")], [(1, 0), (1, 0), (0, 0)]);
            assert_eq!(profile.accumulations, [(8, 2), (32, 1)]);
            assert_eq!(profile.way == Accumulations::Tasks, path.by_tasks());
            window.free().unwrap();
            assert!(comm.window_allocate::<u8>(1).unwrap().profile().is_none());
        });
    }
}
