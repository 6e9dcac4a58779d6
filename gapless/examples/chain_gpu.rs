//! Workers of GPUs hand a task on, from rank to rank, and no processor has a part in it. A kernel on rank 0's GPU puts the
//! first task at the worker of rank 1's GPU. A function of a user's (`example_pass`) adds 1 to each word of its payload
//! there, and puts it on at the next rank's worker; and so on, around, until it comes to rank 0's worker again.
//!
//! ```sh
//! cargo build --release -p gapless --example chain_gpu
//! cargo run --release -- run -n 3 target/release/examples/chain_gpu
//! ```
//!
//! Each rank takes the GPU of its number, as far as there are. Ranks share a GPU only under the Multi-Process Service
//! (MPS): without it two processes take turns on a GPU, and a worker would keep the others away. Then the program ends
//! with an error at all ranks.

use gapless::xtq::device::{RingParts, RingShape};
use gapless::xtq::device_code::{EXAMPLE_PUTS, EXAMPLE_TASKS, LANES};
use gapless::xtq::{
    CudaWorker, GpuLane, Kernel, Launch, Lease, Life, Put, QueueOptions, Rank, Tasks, WorkerCode,
};
use gapless::{
    CudaDevice, CudaDriver, CudaStream, Device, DeviceBuf, InPlace, ReduceOp, Region, Space, World,
};
use gapless_mem_cuda::{Argument, Function, Grid, Module};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// The index of the kernel and of its queue, at every rank.
const PASS: u8 = 7;
const ROUNDS: usize = 2000;
const WORDS: usize = 8;
const PATIENCE_NS: u64 = 5_000_000_000;

/// Zeroed memory of the device that peers may map. It is to live until the world is finalized.
fn zeroed(world: &World, device: &CudaDevice, bytes: u64) -> Result<(DeviceBuf, Lease), Failure> {
    let memory = world.alloc_device(device.space(), bytes)?;
    let zeros = vec![0; usize::try_from(bytes)?];
    // SAFETY: the memory is new, and the copy is waited for.
    unsafe { device.copy(memory.region(), Region::of(&zeros), &[]) }?.wait()?;
    // SAFETY: the caller keeps it.
    let lease = unsafe { Lease::kept_by_caller(memory.region()) };
    Ok((memory, lease))
}

fn send(world: &World, bytes: &[u8], to: u32) -> Result<(), Failure> {
    world.comm().send(&[u32::try_from(bytes.len())?], to, 0)?;
    world.comm().send(bytes, to, 1)?;
    Ok(())
}

fn receive(world: &World, from: u32) -> Result<Vec<u8>, Failure> {
    let mut length = [0u32];
    world.comm().recv(&mut length, from, 0)?;
    let mut found = vec![0; usize::try_from(length[0])?];
    world.comm().recv(&mut found[..], from, 1)?;
    Ok(found)
}

/// Sends bytes to one rank, and receives another's.
fn exchange(world: &World, bytes: &[u8], to: u32, from: u32) -> Result<Vec<u8>, Failure> {
    send(world, bytes, to)?;
    receive(world, from)
}

/// The worker of this rank, and what it runs. Its buffer is where the chain ends.
fn attach(tasks: &Tasks, worker: CudaWorker, memory: &Lease) -> Result<(), Failure> {
    let life = Life { idle: None, longest: Duration::from_secs(120) };
    tasks.attach_worker(Arc::new(worker), life)?;
    // SAFETY: CUDA's tools made it of `example_tasks.cu`, whose functions keep the rules.
    let code = unsafe { WorkerCode::new(EXAMPLE_TASKS.as_bytes()) };
    let pass = Kernel::of_worker_from(&code, "example_pass", 32, 1024);
    // SAFETY: the buffer is read when the tasks have ended.
    unsafe { tasks.register_kernel(PASS, pass.buffer(memory.sub(0, 256)?)) }?;
    // SAFETY: nobody else touches it.
    unsafe { tasks.post_to_worker(memory.sub(1024, 1024)?) }?;
    Ok(tasks.register_queue(PASS, QueueOptions::default())?)
}

/// A kernel on rank 0's GPU, and what it puts.
struct Initiator {
    device: Arc<CudaDevice>,
    lane: GpuLane,
    kernel: Function,
    /// A packet, and at 64 its body; at 512 what comes out.
    memory: Lease,
    body_bytes: u64,
}

impl Initiator {
    fn new(
        device: &Arc<CudaDevice>,
        lane: GpuLane,
        memory: Lease,
        hops: u64,
    ) -> Result<Initiator, Failure> {
        let images: [(&std::ffi::CStr, &[u8]); 2] =
            [(c"lanes", LANES), (c"puts", EXAMPLE_PUTS.as_bytes())];
        // SAFETY: CUDA's tools made both.
        let module = unsafe { Module::link(device, &images, 128) }?;
        let kernel = module.function(c"example_initiate")?;
        let payload: Vec<u8> = (0..WORDS as u64).flat_map(u64::to_le_bytes).collect();
        let arguments = [0, 0, hops, PASS.into()].map(u64::to_le_bytes).concat();
        let put = Put::kernel(Rank(1), PASS, PASS, Launch::linear(1, 1, 32), arguments);
        let (packet, body) = put.payload(payload).to_bytes()?;
        let all = [&packet[..], &body].concat();
        let to = memory.region().sub(0, all.len() as u64)?;
        // SAFETY: the memory is this one's; the copy is waited for.
        unsafe { device.copy(to, Region::of(&all), &[]) }?.wait()?;
        let device = Arc::clone(device);
        let body_bytes = body.len() as u64;
        let made = Initiator { device, lane, kernel, memory, body_bytes };
        // The first launch may wait for all that runs on the GPU: here no worker does yet.
        made.put(&made.device.stream()?, 0)?;
        Ok(made)
    }

    /// Puts so many tasks, one at a time, and waits for each.
    fn put(&self, stream: &CudaStream, count: u64) -> Result<(), Failure> {
        let at = |offset: u64| self.memory.region().start() + offset;
        let words =
            [self.lane.address(), at(0), at(64), self.body_bytes, count, 1, PATIENCE_NS, at(512)];
        // SAFETY: the kernel's eight parameters of 8 bytes; the memory lives until it has ended.
        unsafe {
            self.kernel.launch(stream, Grid::line(1, 32), &words.each_ref().map(Argument::of))
        }?;
        stream.record()?.wait()?;
        let mut out = [0u8; 8];
        // SAFETY: the kernel has ended; the copy is waited for.
        unsafe {
            self.device.copy(Region::of_mut(&mut out), self.memory.region().sub(512, 8)?, &[])
        }?
        .wait()?;
        match u64::from_le_bytes(out) {
            0 => Ok(()),
            code => Err(format!("the kernel's put ended with {code}").into()),
        }
    }
}

/// What is freed when all workers have left: before, that would wait for them.
#[derive(Default)]
struct ChainState {
    initiator: Option<Initiator>,
    memory: Vec<DeviceBuf>,
}

fn run(world: &World, worker: CudaWorker, held: &mut ChainState) -> Result<(), Failure> {
    let device = &Arc::clone(worker.device());
    let (me, size) = (world.rank(), world.size());
    let (next, last) = ((me + 1) % size, (me + size - 1) % size);
    let tasks = world.xtq();
    let (buffer, memory) = zeroed(world, device, 2048)?;
    held.memory.push(buffer);
    let hops = u64::from(2 * size - 1);
    // Rank 0's worker comes last: memory of its lane is registered before.
    let mut worker = Some(worker);
    if let Some(worker) = worker.take_if(|_| me != 0) {
        attach(&tasks, worker, &memory)?;
    }
    // The lane of rank 0's kernel: packets in memory of rank 1's GPU, answers in that of rank 0's.
    if me == 0 {
        let (status, lease) = zeroed(world, device, RingParts::STATUS_BYTES)?;
        let ask = tasks.ask_for_ring(Rank(1), Some(&lease))?;
        let grant = exchange(world, &ask, 1, 1)?;
        let ring = tasks.open_ring(Rank(1), &grant, device.space())?;
        // SAFETY: rank 1 has granted it to this one, which has asked with this memory.
        let lane = unsafe { GpuLane::new(device, ring, Some(lease)) }?;
        let (own, lease) = zeroed(world, device, 1024)?;
        held.memory.extend([status, own]);
        held.initiator = Some(Initiator::new(device, lane, lease, hops)?);
        if let Some(worker) = worker {
            attach(&tasks, worker, &memory)?;
        }
    } else if me == 1 {
        let ask = receive(world, 0)?;
        let (slots, lease) = zeroed(world, device, RingShape::default().bytes())?;
        held.memory.push(slots);
        // SAFETY: the memory is the ring's alone, and lives until the end.
        let grant = unsafe { tasks.grant_ring(Rank(0), &ask, Some(lease)) }?;
        send(world, &grant, 0)?;
    }
    world.comm().barrier()?;
    // Each worker puts on into a ring of the next one's.
    // SAFETY: the ring's memory is the library's.
    let grant = unsafe { tasks.grant_ring(Rank(last), &[], None) }?;
    let ring = exchange(world, &grant, last, next)?;
    let ring = tasks.open_ring(Rank(next), &ring, Space::Host)?;
    // SAFETY: the next rank has granted it to this one, whose worker alone puts into it.
    unsafe { tasks.put_on_into(ring) }?;
    let start = Instant::now();
    while !tasks.has_resident_worker() && start.elapsed() < Duration::from_secs(10) {
        tasks.progress()?;
    }
    world.comm().barrier()?;
    if let Some(initiator) = &held.initiator {
        let stream = device.stream()?;
        let mut times = Vec::new();
        let read = |expected: u64| -> Result<bool, Failure> {
            let mut found = [0u8; 8];
            // SAFETY: a word that a task writes at once; the copy is waited for.
            unsafe { device.copy(Region::of_mut(&mut found), memory.region().sub(8, 8)?, &[]) }?
                .wait()?;
            Ok(u64::from_le_bytes(found) == expected)
        };
        for round in 0..ROUNDS {
            // SAFETY: the chain of the round before has ended.
            unsafe { device.copy(memory.region().sub(0, 64)?, Region::of(&[0; 64]), &[]) }?
                .wait()?;
            let start = Instant::now();
            initiator.put(&stream, 1)?;
            // The second word was 1, and each task adds 1.
            while !read(hops + 2)? {
                if start.elapsed() > Duration::from_secs(10) {
                    return Err(format!("round {round}: the chain has not come back").into());
                }
            }
            times.push(start.elapsed());
        }
        times.sort_unstable();
        println!(
            "{ROUNDS} chains of {} tasks over {size} ranks: {:?} each, launch and look included (median)",
            hops + 1,
            times[ROUNDS / 2]
        );
    }
    // Rank 0 needs all workers until here.
    world.comm().barrier()?;
    // Dropping the lane waits for all that runs on the GPU.
    tasks.keep_worker(false)?;
    world.comm().barrier()?;
    // It frees memory that the world knows.
    held.initiator = None;
    Ok(())
}

/// The worker of this rank's GPU, which is not started yet; without a GPU there is none.
fn worker(world: &World) -> Result<Option<CudaWorker>, Failure> {
    let device = match CudaDriver::load().and_then(|driver| {
        let number = world.rank() % driver.devices().max(1);
        driver.device(number)
    }) {
        Ok(device) => device,
        Err(error) => {
            println!("no GPU for rank {}: {error}", world.rank());
            return Ok(None);
        }
    };
    Ok(Some(CudaWorker::new(Arc::new(device))?))
}

/// Says why this rank ends, and ends it: others that wait for it learn that it is gone. A rank that just returned would
/// wait for them when it leaves the world.
fn give_up(rank: u32, why: &dyn std::fmt::Display) -> ! {
    eprintln!("chain_gpu, rank {rank}: {why}");
    std::process::exit(1)
}

fn main() -> Result<(), Failure> {
    let world = World::init()?;
    // All ranks learn whether all have a worker before any begins.
    let worker = worker(&world);
    let mut least = [match &worker {
        Ok(Some(_)) => 2,
        Ok(None) => 1,
        Err(_) => 0,
    }];
    world.comm().allreduce(InPlace, &mut least, ReduceOp::Min)?;
    let mut held = ChainState::default();
    match (worker, least) {
        (Err(error), _) => {
            eprintln!("chain_gpu, rank {}: {error}", world.rank());
            world.finalize()?;
            std::process::exit(1)
        }
        (Ok(_), [0]) => {
            eprintln!("chain_gpu, rank {}: another rank has no worker", world.rank());
            world.finalize()?;
            std::process::exit(1)
        }
        (Ok(Some(worker)), [2]) if world.size() > 1 => {
            if let Err(error) = run(&world, worker, &mut held) {
                give_up(world.rank(), &error);
            }
        }
        _ => {}
    }
    world.finalize()?;
    drop(held);
    Ok(())
}
