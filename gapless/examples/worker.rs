//! Tasks that a GPU takes itself: rank 0 puts, and the worker on rank 1's GPU adds the payload to a buffer there. The same
//! with a function that rank 1's processor runs. At last rank 1 is stopped (SIGSTOP), and its GPU goes on.
//!
//! ```sh
//! cargo build --release -p gapless --example worker
//! cargo run --release -- run -n 2 target/release/examples/worker
//! ```

use gapless::World;
use gapless::xtq::device::{Accumulate, Combine, Element};
use gapless::xtq::{CudaWorker, DeviceFunction, Function, Kernel, Launch, Lease, Life, Put};
use gapless::xtq::{QueueOptions, Rank, Signal, TargetBuffer, Tasks};
use gapless::{CudaDevice, CudaDriver, Device, Region};
use rustix::process::{Pid, Signal as Kill, getpid, kill_process};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// The index of kernel, function and queues.
const ADD: u8 = 7;
const ROUNDS: usize = 20_000;
const BATCH: usize = 16;
const STOPPED: usize = 1000;
const TARGET: Rank = Rank(1);

fn payload() -> Vec<u8> {
    (1..=8u64).flat_map(u64::to_le_bytes).collect()
}

fn kernel() -> Put {
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let arguments = [0, 0, 0, word].map(u64::to_le_bytes).concat();
    Put::kernel(TARGET, ADD, ADD, Launch::linear(1, 16, 32), arguments).payload(payload())
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
fn measure(tasks: &Tasks, put: impl Fn() -> Put) -> Result<[f64; 2], Failure> {
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
    (0..1000).try_for_each(|_| round(&done, 1).map(drop))?;
    let single = (0..ROUNDS).map(|_| round(&done, 1)).collect::<Result<_, _>>()?;
    let batches = (0..ROUNDS / BATCH).map(|_| round(&done, BATCH)).collect::<Result<_, _>>()?;
    Ok([median(single), median(batches) / BATCH as f64])
}

fn initiator(world: &World) -> Result<(), Failure> {
    let tasks = world.xtq();
    println!("{:>32} {:>8} {:>8}", "put to signal, 64 B, µs", "single", "of 16");
    let mut puts = 0;
    for (name, device) in [("worker on the GPU", true), ("thread of the processor", false)] {
        let put = || if device { kernel() } else { function() };
        let [single, batch] = measure(&tasks, put)?;
        println!("{name:>32} {single:>8.2} {batch:>8.2}");
        puts = 1000 + ROUNDS + ROUNDS / BATCH * BATCH;
    }
    let mut pid = [0i32];
    world.comm().recv(&mut pid, 1, 0)?;
    let pid = Pid::from_raw(pid[0]).ok_or("no such process")?;
    kill_process(pid, Kill::STOP)?;
    let done = tasks.signal(STOPPED as u64);
    let began = Instant::now();
    let put = (0..STOPPED).try_for_each(|_| tasks.put(kernel().signal(&done)).map(drop));
    let waited = put.and_then(|()| {
        while done.poll().is_none() && began.elapsed() < Duration::from_secs(10) {
            tasks.progress()?;
        }
        Ok(())
    });
    let took = began.elapsed();
    kill_process(pid, Kill::CONT)?;
    waited?;
    println!("{STOPPED} tasks at a stopped process: {:?} after {took:?}", done.poll());
    tasks.wait(&done)?;
    world.comm().send(&[(puts + STOPPED) as u64], 1, 0)?;
    Ok(())
}

fn target(world: &World, worker: &Arc<CudaWorker>) -> Result<(), Failure> {
    let (tasks, device) = (world.xtq(), worker.device());
    let life = Life { idle: None, longest: Duration::from_secs(120) };
    tasks.attach_worker(worker.clone(), life)?;
    let (sums, room) = (zeroed(device, 64)?, zeroed(device, 4096)?);
    let kernel = Kernel::of_worker(DeviceFunction::Accumulate, 4096).buffer(sums.clone());
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
    let mut found = [0u8; 64];
    // SAFETY: all tasks have ended; the copy is waited for.
    unsafe { device.copy(Region::of_mut(&mut found), sums.region(), &[]) }?.wait()?;
    let expected: Vec<u8> = (1..=8).flat_map(|n: u64| (n * puts[0]).to_le_bytes()).collect();
    assert_eq!(found[..], expected[..]);
    println!("all sums are right");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let world = World::init()?;
    let made = || -> Result<_, Failure> {
        let device = CudaDriver::load()?.device(0)?;
        Ok(Arc::new(CudaWorker::new(device.into())?))
    };
    let worker = if world.rank() == 1 { Some(made()) } else { None };
    let mut has = [u8::from(matches!(worker, Some(Ok(_)))); 1];
    if world.size() == 2 {
        world.comm().bcast(&mut has, 1)?;
    }
    match worker {
        _ if world.size() != 2 => println!("this takes two processes"),
        Some(Ok(worker)) => target(&world, &worker)?,
        Some(Err(error)) => println!("no worker: {error}"),
        None if has == [1] => {
            world.comm().barrier()?;
            initiator(&world)?;
        }
        None => {}
    }
    world.comm().barrier()?;
    Ok(world.finalize()?)
}
