//! Who combines: reductions by messages and by tasks on the processors' threads; accumulations by these, and by the
//! workers that stay on the ranks' GPUs. Each rank has a GPU of its own, or shares one under MPS; else there is no worker,
//! and the example says why.
//!
//! ```sh
//! cargo build --release -p gapless --example reducers
//! cargo run --release -- run -n 2 target/release/examples/reducers [ROUNDS [JSON [BLOCKS]]]
//! ```
//!
//! Workers have BLOCKS thread blocks (1). Windows are of the host's memory, and of the GPUs'. Times are medians, in µs, at
//! rank 0. `left` is the share of its time that a rank has for itself while all-reduces go on,
//! if it makes progress every 20 µs. All results are checked. Docs: `docs/collectives.md`, By tasks.

use gapless::coll::Operation;
use gapless::tuning::coll::{Rule, Table};
use gapless::xtq::{CudaWorker, Life};
use gapless::{
    Collective, Communicator, CudaDevice, CudaDriver, Device, InPlace, Lock, ReduceOp, Space,
    Window, WindowMemory, World,
};
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// Bytes of a vector.
const SIZES: [usize; 9] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20];
/// From this on, accumulations.
const ACCUMULATED: usize = 4 << 10;
const PROGRESS: Duration = Duration::from_micros(20);

/// All reductions go by this algorithm.
fn table(algorithm: &str) -> Result<Table, Failure> {
    let mut rules = Vec::new();
    for operation in [Operation::Allreduce, Operation::Reduce] {
        // Reduce has no ring.
        let name = if operation == Operation::Reduce && algorithm == "ring" {
            "binomial"
        } else {
            algorithm
        };
        for (bytes_max, name) in [(0, "shared"), (u64::MAX, name)] {
            let algorithm = name.parse().map_err(|error| format!("{name}: {error:?}"))?;
            rules.push(Rule { operation, ranks_max: usize::MAX, bytes_max, algorithm });
        }
    }
    Ok(Table::with(rules))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// The sum of what all ranks give as number `at`.
fn sum(ranks: u32, at: usize) -> f64 {
    (0..ranks).map(|rank| f64::from(rank + 1) * (at % 97) as f64).sum()
}

fn own(rank: u32, count: usize) -> Vec<f64> {
    (0..count).map(|at| f64::from(rank + 1) * (at % 97) as f64).collect()
}

fn rounds(bytes: usize, rounds: usize) -> usize {
    (rounds * 4096 / bytes.max(4096)).max(rounds / 16).max(3)
}

/// All-reduces, reduces, and the share that is left beside all-reduces.
fn reduce(comm: &Communicator, bytes: usize, count: usize) -> Result<[f64; 3], Failure> {
    let (given, ranks) = (own(comm.rank(), bytes / 8), comm.size());
    let mut found = vec![0.0; given.len()];
    let right = |found: &[f64]| found.iter().enumerate().all(|(at, it)| *it == sum(ranks, at));
    let (mut all, mut one) = (Vec::new(), Vec::new());
    for round in 0..count + count / 4 {
        found.fill(0.0);
        comm.barrier()?;
        let began = Instant::now();
        comm.allreduce(&given[..], &mut found[..], ReduceOp::Sum)?;
        all.push(began.elapsed());
        if !right(&found) {
            return Err(format!("an all-reduce of {bytes} bytes is wrong in round {round}").into());
        }
        found.fill(0.0);
        comm.barrier()?;
        let began = Instant::now();
        comm.reduce(&given[..], &mut found[..], ReduceOp::Sum, 0)?;
        one.push(began.elapsed());
        if comm.rank() == 0 && !right(&found) {
            return Err(format!("a reduce of {bytes} bytes is wrong in round {round}").into());
        }
    }
    // The first are to warm up.
    let (all, one) = (all.split_off(count / 4), one.split_off(count / 4));
    let (mut mine, began) = (Duration::ZERO, Instant::now());
    for _ in 0..count {
        comm.scope(|s| {
            let sum = Collective::allreduce(&given[..], &mut found[..], ReduceOp::Sum);
            let mut going = vec![s.begin(sum)?];
            loop {
                let since = Instant::now();
                while since.elapsed() < PROGRESS {
                    std::hint::spin_loop();
                }
                mine += since.elapsed();
                if let Some((_, ended)) = s.test_any(&mut going) {
                    return ended.map(drop);
                }
            }
        })?;
    }
    Ok([median(all), median(one), mine.as_secs_f64() / began.elapsed().as_secs_f64()])
}

/// Accumulations of rank 0 into a window of rank 1, each with its flush; rank 1 is in a barrier.
fn accumulate(
    comm: &Communicator,
    (way, space): (SumMode, Space),
    bytes: usize,
    count: usize,
) -> Result<f64, Failure> {
    let builder = match way {
        SumMode::Worker => comm.window().accumulate_by_worker(),
        SumMode::Threads => comm.window().accumulate_by_tasks(),
        SumMode::Messages => comm.window(),
    };
    match space {
        Space::Host => accumulate_into(comm, builder.allocate(bytes / 8)?, bytes, count),
        space => accumulate_into(comm, builder.allocate_on(space, bytes / 8)?, bytes, count),
    }
}

fn accumulate_into<M: WindowMemory>(
    comm: &Communicator,
    mut window: Window<f64, M>,
    bytes: usize,
    count: usize,
) -> Result<f64, Failure> {
    let given = own(0, bytes / 8);
    let mut times = Vec::new();
    comm.barrier()?;
    if comm.rank() == 0 {
        window.lock(1, Lock::Shared)?;
        for _ in 0..count {
            let began = Instant::now();
            window.accumulate(&given[..], 1, 0, ReduceOp::Sum)?;
            window.flush(1)?;
            times.push(began.elapsed());
        }
        window.unlock(1)?;
    }
    comm.barrier()?;
    let mut found = vec![0.0; given.len()];
    window.read(&mut found, 0)?;
    let times_given = if comm.rank() == 1 { count as f64 } else { 0.0 };
    if found.iter().zip(&given).any(|(found, given)| *found != times_given * given) {
        return Err(format!("accumulations of {bytes} bytes are wrong").into());
    }
    window.free()?;
    if comm.rank() == 0 { Ok(median(times.split_off(count / 4))) } else { Ok(0.0) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumMode {
    /// Messages, or memory that both map.
    Messages,
    Threads,
    Worker,
}

impl SumMode {
    const ALL: [SumMode; 3] = [SumMode::Messages, SumMode::Threads, SumMode::Worker];

    fn name(self) -> &'static str {
        ["messages", "threads", "worker"][self as usize]
    }
}

/// A GPU for this rank: one of its own, or, with MPS, one that ranks share.
fn device(world: &World) -> Result<Arc<CudaDevice>, Failure> {
    let driver = CudaDriver::load()?;
    let device = Arc::new(driver.device(world.rank() % driver.devices().max(1))?);
    if driver.devices() < world.size() {
        // It says why, if two processes cannot have workers there.
        drop(CudaWorker::new(Arc::clone(&device))?);
    }
    Ok(device)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(2000), |rounds| rounds.parse())?;
    let path = arguments.next();
    let blocks = arguments.next().map_or(Ok(1), |blocks| blocks.parse())?;
    let worker =
        |device: &Arc<CudaDevice>| CudaWorker::with_blocks(device.clone(), blocks).map(Arc::new);
    let world = World::init()?;
    let comm = world.comm();
    let (says, device) = (world.rank() == 0, device(&world));
    let mut has = [u8::from(device.is_ok())];
    comm.allreduce(InPlace, &mut has, ReduceOp::Min)?;
    let mut json = String::new();
    let mut ways = SumMode::ALL.to_vec();
    if has != [1] {
        ways.pop();
        println!(
            "no worker: {}",
            device
                .as_ref()
                .map_or_else(ToString::to_string, |_| "another rank has none".to_owned())
        );
    }
    if says {
        println!("{:>10} {:>8} {:>10} {:>10} {:>8}", "by", "bytes", "all-reduce", "reduce", "left");
    }
    for (way, algorithm) in [(SumMode::Messages, "ring"), (SumMode::Threads, "xtq")] {
        world.set_coll_table(table(algorithm)?);
        // The table is that of communicators that are made from now on.
        let reducing = comm.dup()?;
        for bytes in SIZES {
            let [all, one, left] = reduce(&reducing, bytes, rounds(bytes, count))?;
            if says {
                let by = way.name();
                println!("{by:>10} {bytes:>8} {all:>10.2} {one:>10.2} {left:>8.3}");
                writeln!(
                    json,
                    "{{\"by\": \"{by}\", \"bytes\": {bytes}, \"allreduce_us\": {all:.3}, \"reduce_us\": {one:.3}, \"left\": {left:.4}}}"
                )?;
            }
        }
    }
    if says {
        println!("{:>10} {:>6} {:>8} {:>10}", "by", "in", "bytes", "accumulate");
    }
    for way in ways.into_iter().filter(|_| world.size() == 2) {
        if let (SumMode::Worker, Ok(device)) = (way, &device) {
            let idle = Some(Duration::from_millis(1));
            let life = Life { idle, longest: Duration::from_secs(300) };
            world.attach_window_worker(worker(device)?, life)?;
        }
        let on = |device: &Arc<CudaDevice>| ("gpu", device.space());
        let on_gpu = device.as_ref().ok().filter(|_| has == [1]).map(on);
        // Tasks on threads reach no memory of a device.
        let on_gpu = on_gpu.filter(|_| way != SumMode::Threads);
        for (place, space) in [("host", Space::Host)].into_iter().chain(on_gpu) {
            for bytes in SIZES.into_iter().filter(|bytes| *bytes >= ACCUMULATED) {
                let took = accumulate(comm, (way, space), bytes, rounds(bytes, count))?;
                if says {
                    let by = way.name();
                    println!("{by:>10} {place:>6} {bytes:>8} {took:>10.2}");
                    writeln!(
                        json,
                        "{{\"by\": \"{by}\", \"in\": \"{place}\", \"bytes\": {bytes}, \"accumulate_us\": {took:.3}}}"
                    )?;
                }
            }
        }
    }
    comm.barrier()?;
    if let Some(path) = path.filter(|_| says) {
        std::fs::write(path, json)?;
    }
    Ok(world.finalize()?)
}
