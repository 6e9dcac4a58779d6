//! Tasks that a GPU takes itself: rank 0 puts, and the worker on rank 1's GPU adds the payload to a buffer there. The same
//! with a function that rank 1's processor runs. At last rank 1 is stopped (SIGSTOP), and its GPU must go on: if the signal
//! of the tasks is not seen within two seconds while the process is stopped, the example fails, with exit code 3.
//!
//! ```sh
//! cargo build --release -p gapless --example worker
//! cargo run --release -- run -n 2 target/release/examples/worker
//! cargo run --release -- run -n 2 target/release/examples/worker played
//! ```
//!
//! `played`: no GPU. A thread of rank 1 plays the worker. It is stopped with its process, so this must fail.

use gapless::World;
use gapless::xtq::device::{Accumulate, Combine, Element};
use gapless::xtq::{CudaWorker, DeviceFunction, Function, Kernel, Launch, Lease, Life, Put};
use gapless::xtq::{QueueOptions, Rank, Signal, TargetBuffer, Tasks, Worker};
use gapless::{CudaDevice, CudaDriver, Device, Region};
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use rustix::process::{Pid, Signal as Kill, getpid, kill_process};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// The index of kernel, function and queues.
const ADD: u8 = 7;
const ROUNDS: usize = 20_000;
const BATCH: usize = 16;
/// Tasks at the stopped process, and how long they may take: a thousand times what a GPU needs.
const STOPPED: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(2);
const TARGET: Rank = Rank(1);

fn payload() -> Vec<u8> {
    (1..=8u64).flat_map(u64::to_le_bytes).collect()
}

fn kernel() -> Put {
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let arguments = [0, 0, 0, word].map(u64::to_le_bytes);
    Put::kernel(TARGET, ADD, ADD, Launch::linear(1, 16, 32), arguments.as_flattened())
        .payload(payload())
}

fn function() -> Put {
    Put::function(TARGET, ADD, ADD + 1, [0, 0]).payload(payload())
}

fn add(payload: &[u8], sums: &mut [u8]) {
    for (sum, more) in sums.as_chunks_mut::<8>().0.iter_mut().zip(payload.as_chunks::<8>().0) {
        *sum = (u64::from_le_bytes(*sum) + u64::from_le_bytes(*more)).to_le_bytes();
    }
}

/// Zeroed memory of the device, which is never freed.
fn zeroed(device: &CudaDevice, bytes: usize) -> Result<Lease, Failure> {
    let (region, zeros) = (device.allocate(bytes as u64)?, vec![0; bytes]);
    // SAFETY: the memory is new, and the copy is waited for.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }?.wait()?;
    // SAFETY: it is never freed.
    Ok(unsafe { Lease::kept_by_caller(region) })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// From a put to its signal, in µs; one by one, and each of a batch.
fn measure(tasks: &Tasks, rounds: usize, put: impl Fn() -> Put) -> Result<[f64; 2], Failure> {
    let done = tasks.signal(1);
    let round = |done: &Signal, puts: usize| -> Result<Duration, Failure> {
        done.reset(puts as u64);
        let began = Instant::now();
        for _ in 0..puts {
            tasks.put(put().signal(done))?;
        }
        tasks.wait(done)?;
        Ok(began.elapsed())
    };
    (0..rounds / 20).try_for_each(|_| round(&done, 1).map(drop))?;
    let single = (0..rounds).map(|_| round(&done, 1)).collect::<Result<_, _>>()?;
    let batches = (0..rounds / BATCH).map(|_| round(&done, BATCH)).collect::<Result<_, _>>()?;
    Ok([median(single), median(batches) / BATCH as f64])
}

fn initiator(world: &World, rounds: usize) -> Result<(), Failure> {
    let tasks = world.xtq();
    println!("{:>32} {:>8} {:>8}", "put to signal, 64 B, µs", "single", "of 16");
    let mut puts = 0;
    for (name, device) in [("worker", true), ("thread of the processor", false)] {
        let put = || if device { kernel() } else { function() };
        let [single, batch] = measure(&tasks, rounds, put)?;
        println!("{name:>32} {single:>8.2} {batch:>8.2}");
        puts = rounds / 20 + rounds + rounds / BATCH * BATCH;
    }
    let mut pid = [0i32];
    world.comm().recv(&mut pid, 1, 0)?;
    let pid = Pid::from_raw(pid[0]).ok_or("no such process")?;
    let took = at_a_stopped(pid, &tasks)?;
    println!("{STOPPED} tasks at a stopped process: their signal was seen after {took:?}");
    world.comm().send(&[(puts + STOPPED) as u64], 1, 0)?;
    Ok(())
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: Pid) -> Result<bool, Failure> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))?;
    for thread in threads {
        let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
        if !stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A process that was stopped goes on when this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Kill::CONT);
    }
}

/// Stops the target, puts tasks, and lets it go on when their signal was seen, or was not; how long that took.
fn at_a_stopped(target: Pid, tasks: &Tasks) -> Result<Duration, Failure> {
    let done = tasks.signal(STOPPED as u64);
    kill_process(target, Kill::STOP)?;
    let stopped = Stopped(target);
    let asked = Instant::now();
    while !is_stopped(target)? {
        if asked.elapsed() > PATIENCE {
            return Err("rank 1 does not stop".into());
        }
    }
    let began = Instant::now();
    (0..STOPPED).try_for_each(|_| tasks.put(kernel().signal(&done)).map(drop))?;
    while done.poll().is_none() && began.elapsed() < PATIENCE {
        tasks.progress()?;
    }
    let (seen, took) = (done.poll(), began.elapsed());
    drop(stopped);
    match seen {
        Some(seen) => Ok(seen.map(|()| took)?),
        None => Err(Box::new(NotSeen(took))),
    }
}

/// The signal of tasks at a stopped process was not seen for so long.
#[derive(Debug)]
struct NotSeen(Duration);

impl std::fmt::Display for NotSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotSeen(took) = self;
        write!(f, "{STOPPED} tasks at a stopped process: their signal was not seen in {took:?}")
    }
}

impl Error for NotSeen {}

/// Who runs tasks, the memory of a sum, a receive buffer, and how the sum is read when all tasks have ended.
struct Home {
    worker: Arc<dyn Worker>,
    sums: Lease,
    room: Lease,
    read: Box<dyn Fn() -> Result<[u8; 64], Failure>>,
}

/// On the first GPU.
fn on_a_gpu() -> Result<Home, Failure> {
    let worker = Arc::new(CudaWorker::new(CudaDriver::load()?.device(0)?.into())?);
    let device = Arc::clone(worker.device());
    let (sums, room) = (zeroed(&device, 64)?, zeroed(&device, 4096)?);
    let region = sums.region();
    let read = move || {
        let mut found = [0u8; 64];
        // SAFETY: all tasks have ended; the copy is waited for.
        unsafe { device.copy(Region::of_mut(&mut found), region, &[]) }?.wait()?;
        Ok(found)
    };
    Ok(Home { worker, sums, room, read: Box::new(read) })
}

/// By a thread of this process.
fn played() -> Result<Home, Failure> {
    let found = Arc::new(Mutex::new([0u8; 64]));
    let sums = Arc::clone(&found);
    let worker = MockWorker::new(move |task| {
        add(&task.payload, &mut *sums.lock().map_err(|_| 1u32)?);
        Ok(())
    });
    let read = move || Ok(*found.lock().map_err(|_| "a task has panicked")?);
    Ok(Home { worker, sums: memory(64)?, room: memory(4096)?, read: Box::new(read) })
}

fn target(world: &World, home: Home) -> Result<(), Failure> {
    let (tasks, Home { worker, sums, room, read }) = (world.xtq(), home);
    let life = Life { idle: None, longest: Duration::from_secs(120) };
    tasks.attach_worker(worker, life)?;
    let kernel = Kernel::of_worker(DeviceFunction::Accumulate, 4096).buffer(sums);
    // SAFETY: the memory is touched by tasks alone until they have ended.
    unsafe { tasks.register_kernel(ADD, kernel) }?;
    // SAFETY: likewise.
    unsafe { tasks.post_to_worker(room) }?;
    let own = TargetBuffer::new(vec![0; 64]);
    let function = Function::new(64, |task| {
        let (payload, sums) = task.parts();
        add(payload, sums);
        Ok(())
    });
    tasks.register_function(ADD, function.buffer(&own))?;
    for queue in [ADD, ADD + 1] {
        tasks.register_queue(queue, QueueOptions { capacity: 4096, width: 1 })?;
    }
    (0..64).for_each(|_| tasks.post(vec![0; 64]));
    world.comm().barrier()?;
    world.comm().send(&[getpid().as_raw_nonzero().get()], 0, 0)?;
    let mut puts = [0u64];
    world.comm().recv(&mut puts, 0, 0)?;
    let found = read()?;
    let expected: Vec<u8> = (1..=8).flat_map(|n: u64| (n * puts[0]).to_le_bytes()).collect();
    if found[..] != expected[..] {
        return Err(format!("{puts:?} tasks have added {found:?}").into());
    }
    println!("all sums are right");
    Ok(())
}

fn run(world: &World) -> Result<(), Failure> {
    if world.size() != 2 {
        return Err("this takes two processes".into());
    }
    let is_played = std::env::args().any(|argument| argument == "played");
    let home = (world.rank() == 1).then(|| if is_played { played() } else { on_a_gpu() });
    let mut has = [u8::from(matches!(home, Some(Ok(_))))];
    world.comm().bcast(&mut has, 1)?;
    match home {
        Some(home) => target(world, home.map_err(|error| format!("no worker: {error}"))?)?,
        None if has == [1] => {
            world.comm().barrier()?;
            initiator(world, if is_played { ROUNDS / 200 } else { ROUNDS })?;
        }
        None => return Err("no worker at rank 1".into()),
    }
    Ok(world.comm().barrier()?)
}

fn main() -> Result<(), Failure> {
    let world = World::init()?;
    if let Err(error) = run(&world) {
        eprintln!("worker: {error}");
        // Leaving would wait for the other rank, which may wait for this one.
        std::process::exit(if error.is::<NotSeen>() { 3 } else { 1 });
    }
    Ok(world.finalize()?)
}
