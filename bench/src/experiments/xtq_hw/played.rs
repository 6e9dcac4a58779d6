//! `--played`: what `World::xtq` adds to the lower interface, without a GPU. A thread plays the worker in both: behind a ring
//! that rank 0 makes for itself, and then as the worker of rank 1, which is another process.
//!
//! How long a task takes is the thread's affair, and the machine's; what is shown is the difference of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gapless::World;
use gapless::xtq::{Kernel, Life, QueueOptions};
use gapless_cli::pingpong::Pinned;
use gapless_mem::Lease;
use gapless_report::{Mark, Row};
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use gapless_xtq::device::{DeviceFunction, DeviceKernel, Lane, SLOTS, WorkerTarget};
use rustix::process::getpid;

use super::world::{RunTimes, Putting};
use super::{NUMBERS, PAYLOAD, SHAPE, XtqHw, arguments, job, packet, payload, summary};
use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::processes::{Processes, RankOf};

const LIFE: Life = Life { idle: None, longest: Duration::from_secs(120) };
const LOWER: &str = "lower interface";

/// A ring of this process's own.
struct Bare {
    lane: Lane,
    target: WorkerTarget,
    packet: gapless_xtq::packet::Packet,
    arguments: Vec<u8>,
    payload: Vec<u8>,
}

/// What adds the payload to sums.
fn mock(sums: &Arc<[AtomicU64; NUMBERS]>) -> Arc<MockWorker> {
    let sums = Arc::clone(sums);
    MockWorker::new(move |task| {
        for (sum, more) in sums.iter().zip(task.payload.as_chunks::<8>().0) {
            sum.fetch_add(u64::from_le_bytes(*more), Ordering::Relaxed);
        }
        Ok(())
    })
}

fn pages(bytes: u64) -> Result<Lease, Failure> {
    Ok(memory(bytes)?)
}

impl Bare {
    fn new(sums: &Arc<[AtomicU64; NUMBERS]>) -> Result<Bare, Failure> {
        let mut target = WorkerTarget::new(mock(sums), LIFE).map_err(job)?;
        let ring = pages(SHAPE.bytes())?;
        // SAFETY: the memory is new, zeroed, and the ring's alone.
        unsafe { target.add_ring(ring.clone(), SHAPE) }.map_err(job)?;
        // SAFETY: likewise.
        let lane = unsafe { Lane::new(ring, SHAPE) }?;
        // SAFETY: nobody touches it.
        unsafe { target.post(pages(4096)?) }.map_err(job)?;
        let kernel = DeviceKernel::new(DeviceFunction::Accumulate, PAYLOAD);
        // SAFETY: there is no buffer.
        unsafe { target.register_kernel(0, Some(kernel)) }.map_err(job)?;
        target.register_queue(0, 32).map_err(job)?;
        target.start().map_err(job)?;
        Ok(Bare { lane, target, packet: packet()?, arguments: arguments(), payload: payload() })
    }

    fn put(&mut self) -> Result<(), Failure> {
        self.lane.put(&self.packet, [&self.arguments, &self.payload]).map_err(job)?;
        self.lane.announce();
        Ok(())
    }

    fn end(&mut self) {
        while self.lane.next().is_none() {
            std::hint::spin_loop();
        }
    }

    fn one(&mut self) -> Result<f64, Failure> {
        let began = Instant::now();
        self.put()?;
        self.end();
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of a task, with 128 on their way at most.
    fn many(&mut self, count: u64) -> Result<f64, Failure> {
        let began = Instant::now();
        for _ in 0..count {
            while self.lane.pending() >= SLOTS as u64 / 2 {
                self.end();
            }
            self.put()?;
        }
        while self.lane.pending() > 0 {
            self.end();
        }
        Ok(began.elapsed().as_secs_f64() / count as f64)
    }

    fn cost(&mut self) -> Result<f64, Failure> {
        let began = Instant::now();
        (0..128).try_for_each(|_| self.put())?;
        let took = began.elapsed().as_secs_f64() / 128.0;
        while self.lane.pending() > 0 {
            self.end();
        }
        Ok(took)
    }
}

/// Seconds of one task, of each of many, and of a put.
type Times = [Vec<f64>; 3];

fn bare(quick: bool) -> Result<Times, Failure> {
    let n = |count: usize| if quick { count / 100 + 2 } else { count };
    let mut bare = Bare::new(&Arc::default())?;
    // Behind its start, so that it has a processor of its own.
    let _pinned = Pinned::to(0);
    (0..n(2000)).try_for_each(|_| bare.one().map(drop))?;
    let one = (0..n(20_000)).map(|_| bare.one()).collect::<Result<_, _>>()?;
    let many = (0..n(20)).map(|_| bare.many(16 * n(2000) as u64)).collect::<Result<_, _>>()?;
    let put = (0..n(200)).map(|_| bare.cost()).collect::<Result<_, _>>()?;
    bare.target.leave().map_err(job)?;
    Ok([one, many, put])
}

/// How long the first thread of a process has run: it waits for a message, while another one plays the worker.
fn waits_ns(process: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// One of the two processes.
pub(super) fn rank(common: &Common, rank: &RankOf) -> Result<(), Failure> {
    let world = World::init()?;
    let (tasks, comm) = (world.xtq(), world.comm());
    if world.rank() == 0 {
        let lower = bare(common.quick)?;
        let _pinned = Pinned::to(0);
        // The worker of rank 1 begins now.
        comm.barrier()?;
        comm.barrier()?;
        let mut target = [0i32];
        comm.recv(&mut target, 1, 0)?;
        let (found, puts) = Putting::new(&tasks, 0).measure(common.quick, || waits_ns(target[0]))?;
        comm.send(&[puts], 1, 0)?;
        rank.leave(&(lower, found))?;
    } else {
        comm.barrier()?;
        let sums = Arc::<[AtomicU64; NUMBERS]>::default();
        tasks.attach_worker(mock(&sums), LIFE)?;
        // SAFETY: there is no buffer.
        unsafe { tasks.register_kernel(0, Kernel::of_worker(DeviceFunction::Accumulate, PAYLOAD)) }?;
        // SAFETY: nobody touches it.
        unsafe { tasks.post_to_worker(pages(4096)?) }?;
        tasks.register_queue(0, QueueOptions { capacity: 4096, width: 32 })?;
        comm.barrier()?;
        comm.send(&[getpid().as_raw_nonzero().get()], 0, 0)?;
        let mut puts = [0u64];
        comm.recv(&mut puts, 0, 0)?;
        let is_right = (1..).zip(&*sums).all(|(number, sum)| sum.load(Ordering::Relaxed) == number * puts[0]);
        if !is_right {
            return Err(job(format!("{puts:?} tasks have left {sums:?}")));
        }
    }
    Ok(world.finalize()?)
}

/// Has two processes measure.
pub(super) fn findings() -> Result<Findings, Failure> {
    let (lower, found): (Times, RunTimes) = Processes::new(XtqHw::NAME, 2).found(XtqHw::NAME, ())?;
    let names = ["put to signal", "in batches of 16, each", "what a put costs"];
    let mut rows = Vec::new();
    for ((what, lower), api) in names.into_iter().zip(lower).zip([found.one, found.batches, found.put]) {
        let (lower, api) = (summary(lower)?, summary(api)?);
        let row = |way: &str, time| {
            let case = format!("{way}: {what}");
            Row::new(case, "task", "host", "played", 8 * NUMBERS as u64, time).verified(true)
        };
        let added = (api.median - lower.median) * 1e9;
        let mut row_of_api = row("World::xtq", api).against(LOWER, lower).with("added_ns", added);
        match what {
            "put to signal" => {
                row_of_api.marks.push(Mark::at_most("ns that are added, put to signal", 300.0, added));
                let what = "ms of the target's thread that waits, for 10⁶ tasks";
                row_of_api.marks.push(Mark::at_most(what, 1.0, found.target_ms));
            }
            "in batches of 16, each" => {
                let rate = 1e-6 / api.median;
                row_of_api.marks.push(Mark::at_least("million tasks a second", 5.0, rate));
            }
            "what a put costs" => row_of_api.marks.push(Mark::at_most("ns a put", 150.0, api.median * 1e9)),
            _ => {}
        }
        rows.extend([row(LOWER, lower), row_of_api]);
    }
    let notes = format!(
        "a thread plays the worker, so times of tasks are not those of a GPU; ÷: speed relative to the lower interface\n{}",
        crate::sim::judged(&rows)
    );
    Ok(Findings::new(rows, notes))
}
