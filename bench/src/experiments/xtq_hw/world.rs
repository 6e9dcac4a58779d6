//! The same tasks through the interface that programs use, `World::xtq`: two processes of a job, of which rank 0 puts and
//! rank 1 is the target. It has the kernel three times: as the worker's, launched (*host*), and as a function on a thread.
//!
//! Rank 1 waits for a message meanwhile, as a program would; its threads' time is read by rank 0.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless::World;
use gapless::xtq::{
    CudaLauncher, Function, Kernel, Launch, Life, Put, QueueOptions, Rank, Signal, TargetBuffer, Tasks,
};
use gapless_cli::pingpong::Pinned;
use gapless_dtype_cuda::CudaWorker;
use gapless_mem::Lease;
use gapless_mem_cuda::{CudaDevice, CudaDriver, Module};
use gapless_report::{Mark, Row};
use gapless_xtq::device::DeviceFunction;
use rustix::process::{Pid, getpid};

use super::initiator::ran_ns;
use super::{NUMBERS, PAYLOAD, XtqHw, arguments, download, job, payload, summary, zeroed};
use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::processes::{Processes, RankOf};

/// What a launched kernel does: as the worker's function, with the same arguments.
const PTX: &str = r"
.version 7.8
.target sm_80
.address_size 64

.visible .entry add(.param .u64 buffer, .param .u64 payload, .param .u64 bytes, .param .u64 offset, .param .u64 what)
{
    .reg .pred %p;
    .reg .b32 %item, %items, %group;
    .reg .b64 %buffer, %payload, %bytes, %offset, %at, %end, %more, %old;
    ld.param.u64 %buffer, [buffer];
    ld.param.u64 %payload, [payload];
    ld.param.u64 %bytes, [bytes];
    ld.param.u64 %offset, [offset];
    mov.u32 %item, %tid.x;
    mov.u32 %items, %ntid.x;
    mov.u32 %group, %ctaid.x;
    mad.lo.u32 %item, %group, %items, %item;
    mul.wide.u32 %at, %item, 8;
    add.u64 %end, %at, 8;
    setp.gt.u64 %p, %end, %bytes;
    @%p bra DONE;
    add.u64 %payload, %payload, %at;
    ld.global.u64 %more, [%payload];
    add.u64 %buffer, %buffer, %at;
    add.u64 %buffer, %buffer, %offset;
    red.global.add.u64 [%buffer], %more;
DONE:
    ret;
}
";

/// How the tasks come to run.
const WAYS: [&str; 3] = ["device", "host, launched", "host, function"];
const TARGET: Rank = Rank(1);
/// How long single tasks are put before the first batch.
const RING_COMES: Duration = Duration::from_secs(1);

/// What rank 0 measured of a way, in seconds.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct RunTimes {
    way: usize,
    /// From a put to its signal.
    pub(super) one: Vec<f64>,
    /// Each of a batch of 16, which is waited for before the next.
    rounds: Vec<f64>,
    /// Each of batches of 16, of which up to 8 are on their way: as many tasks as the lower interface has.
    pub(super) batches: Vec<f64>,
    /// A put of 128.
    pub(super) put: Vec<f64>,
    /// Milliseconds of all threads of the target for 10⁶ tasks.
    pub(super) target_ms: f64,
}

/// Batches on their way, and tasks of each.
const BATCHES: usize = 8;
const BATCH: u64 = 16;

/// Has two processes measure, and adds rows of what they found.
pub(super) fn add(mut findings: Findings) -> Result<Findings, Failure> {
    let space = findings.rows.first().map_or_else(String::new, |row| row.space.clone());
    let bare = findings.rows.iter().find(|row| row.case == super::BARE).map(|row| row.seconds.median);
    let rows = rows(&space, bare)?;
    findings.notes.push_str(&crate::sim::judged(&rows));
    findings.rows.extend(rows);
    Ok(findings)
}

/// `bare`: seconds of a message, a launch and a wait without any interface.
fn rows(space: &str, bare: Option<f64>) -> Result<Vec<Row>, Failure> {
    let found: Vec<RunTimes> = Processes::new(XtqHw::NAME, 2).found(XtqHw::NAME, ())?;
    let of_way = |way: usize| {
        let found = found.iter().find(|found| found.way == way);
        found.map(|found| summary(found.one.clone())).transpose()
    };
    let (host, function) = (of_way(1)?, of_way(2)?);
    let mut rows = Vec::new();
    for RunTimes { way, one, rounds, batches, put, target_ms } in found {
        let row = |what: &str, seconds: Vec<f64>| -> Result<Row, Failure> {
            let case = format!("World::xtq: {what}");
            Ok(Row::new(case, "task", space, WAYS[way], 8 * NUMBERS as u64, summary(seconds)?).verified(true))
        };
        let (mut one, mut put) = (row("put to signal", one)?, row("what a put costs", put)?);
        let mut batches = row("in batches of 16, each", batches)?;
        let rounds = row("a batch of 16, then a wait, each", rounds)?;
        if way == 0 {
            one.marks.push(Mark::at_most("µs, put to signal", 3.6, one.seconds.median * 1e6));
            let median = one.seconds.median;
            let function = function.map(|it| it.median);
            for (what, seconds) in [("of a message, launch and wait", bare), ("of a function on a processor", function)] {
                one.marks.extend(seconds.map(|seconds| Mark::at_most(what, 0.45, median / seconds)));
            }
            if let Some(host) = host {
                one = one.against("a kernel that CudaLauncher launches", host);
            }
            one.marks.push(Mark::at_most("ms of the target's processors for 10⁶ tasks", 1.0, target_ms));
            let rate = 1e-6 / batches.seconds.median;
            batches.marks.push(Mark::at_least("million tasks a second", 5.0, rate));
            put.marks.push(Mark::at_most("ns a put", 150.0, put.seconds.median * 1e9));
        }
        rows.extend([one.with("target_ms_a_million", target_ms), batches, rounds, put]);
    }
    Ok(rows)
}

/// One of the two processes.
pub(super) fn rank(common: &Common, rank: &RankOf) -> Result<(), Failure> {
    let world = World::init()?;
    let found = if world.rank() == 0 {
        let _pinned = Pinned::to(0);
        initiate(&world, common.quick)
    } else {
        // Threads that run its tasks would share the processor that it is kept on.
        receive(&world)
    };
    // Its world, when it is dropped, waits for the other rank.
    let found = found.inspect_err(|error| eprintln!("rank {}: {error}", world.rank()))?;
    rank.finalize(world, &found)
}

fn kept(device: &CudaDevice) -> Result<Lease, Failure> {
    let region = zeroed(device, 4096)?;
    // SAFETY: it is never freed.
    Ok(unsafe { Lease::kept_by_caller(region) })
}

fn receive(world: &World) -> Result<Vec<RunTimes>, Failure> {
    let (tasks, comm) = (world.xtq(), world.comm());
    let device = Arc::new(CudaDriver::load()?.device(0)?);
    // SAFETY: the text is the one above.
    let module = unsafe { Module::load(&device, PTX.as_bytes()) }?;
    let launcher = CudaLauncher::new(Arc::clone(&device))?;
    let object = launcher.kernel(&module, c"add")?;
    let worker = Arc::new(CudaWorker::new(Arc::clone(&device)).map_err(job)?);
    let sums = [kept(&device)?, kept(&device)?];
    let room = kept(&device)?;
    tasks.attach_worker(worker, Life { idle: None, longest: Duration::from_secs(120) })?;
    let kernels = [
        Kernel::of_worker(DeviceFunction::Accumulate, PAYLOAD),
        Kernel::new(launcher, object, 32, PAYLOAD).grid_max([64, 1, 1]),
    ];
    for ((index, kernel), sum) in (0u8..).zip(kernels).zip(&sums) {
        // SAFETY: the memory is touched by tasks alone until they have ended.
        unsafe { tasks.register_kernel(index, kernel.buffer(sum.clone())) }?;
    }
    // SAFETY: likewise.
    unsafe { tasks.post_to_worker(room) }?;
    let own = TargetBuffer::new(vec![0; 8 * NUMBERS]);
    let add = Function::new(PAYLOAD, |task| {
        let (payload, sums) = task.parts();
        for (sum, more) in sums.as_chunks_mut::<8>().0.iter_mut().zip(payload.as_chunks::<8>().0) {
            *sum = (u64::from_le_bytes(*sum) + u64::from_le_bytes(*more)).to_le_bytes();
        }
        Ok(())
    });
    tasks.register_function(2, add.buffer(&own))?;
    for queue in 0..3 {
        tasks.register_queue(queue, QueueOptions { capacity: 4096, width: 32 })?;
    }
    (0..256).for_each(|_| tasks.post(vec![0; PAYLOAD as usize]));
    comm.barrier()?;
    comm.send(&[getpid().as_raw_nonzero().get()], 0, 0)?;
    let mut counts = [0u64; 3];
    // The worker stays until rank 0 says that launched kernels are next: they would wait for it at the first.
    comm.recv(&mut counts[..1], 0, 1)?;
    tasks.keep_worker(false)?;
    comm.barrier()?;
    comm.recv(&mut counts[1..], 0, 1)?;
    let mut found = Vec::new();
    for sum in &sums {
        found.push(download(&device, sum.region())?);
    }
    found.push(own.with(|own| own.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()));
    for ((way, found), count) in WAYS.iter().zip(found).zip(counts) {
        if !(1u64..).zip(&found[..NUMBERS]).all(|(number, sum)| *sum == number * count) {
            return Err(job(format!("{way}: {count} tasks have left {:?}", &found[..NUMBERS])));
        }
    }
    Ok(Vec::new())
}

/// Rank 0, and how many tasks it has put of this way.
pub(super) struct Putting<'w> {
    tasks: &'w Tasks,
    /// The first is that of single tasks and single batches.
    done: [Signal; BATCHES],
    way: u8,
    arguments: Vec<u8>,
    payload: Vec<u8>,
    puts: u64,
}

impl<'w> Putting<'w> {
    pub(super) fn new(tasks: &'w Tasks, way: usize) -> Putting<'w> {
        let (done, way) = ([(); BATCHES].map(|()| tasks.signal(0)), u8::try_from(way).unwrap_or(0));
        Putting { tasks, done, way, arguments: arguments(), payload: payload(), puts: 0 }
    }

    /// Puts this many tasks, which count a signal down.
    fn put(&mut self, signal: usize, puts: u64) -> Result<(), Failure> {
        let done = &self.done[signal];
        for _ in 0..puts {
            let put = match self.way {
                2 => Put::function(TARGET, 2, 2, [0, 0]),
                way => Put::kernel(TARGET, way, way, Launch::linear(1, 16, 32), &self.arguments[..]),
            };
            self.tasks.put(put.payload(&self.payload[..]).signal(done))?;
            self.puts += 1;
        }
        Ok(())
    }

    /// Seconds from the first put to the signal.
    fn round(&mut self, puts: u64) -> Result<f64, Failure> {
        self.done[0].reset(puts);
        let began = Instant::now();
        self.put(0, puts)?;
        self.tasks.wait(&self.done[0])?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of a task of so many batches.
    fn many(&mut self, batches: usize) -> Result<f64, Failure> {
        let began = Instant::now();
        for batch in 0..batches {
            let signal = batch % BATCHES;
            self.tasks.wait(&self.done[signal])?;
            self.done[signal].reset(BATCH);
            self.put(signal, BATCH)?;
        }
        self.done.iter().try_for_each(|done| self.tasks.wait(done))?;
        Ok(began.elapsed().as_secs_f64() / (batches as u64 * BATCH) as f64)
    }

    /// Seconds of a put alone.
    fn cost(&mut self) -> Result<f64, Failure> {
        self.done[0].reset(128);
        let began = Instant::now();
        self.put(0, 128)?;
        let took = began.elapsed().as_secs_f64() / 128.0;
        self.tasks.wait(&self.done[0])?;
        Ok(took)
    }

    /// Measures this way. `ran_ns` says how long the target has run. Also gives how many tasks there were.
    pub(super) fn measure(mut self, quick: bool, ran_ns: impl Fn() -> Option<u64>) -> Result<(RunTimes, u64), Failure> {
        let n = |count: usize| if quick { count / 100 + 2 } else { count };
        // A ring comes only now; what comes by messages meanwhile has few receive buffers.
        let begun = Instant::now();
        while self.way == 0 && begun.elapsed() < RING_COMES {
            self.round(1)?;
        }
        (0..n(2000)).try_for_each(|_| self.round(1).map(drop))?;
        let one = (0..n(20_000)).map(|_| self.round(1)).collect::<Result<_, _>>()?;
        let each = |seconds: f64| seconds / BATCH as f64;
        let rounds = (0..n(2000)).map(|_| self.round(BATCH).map(each)).collect::<Result<_, _>>()?;
        let batches = (0..n(20)).map(|_| self.many(n(2000))).collect::<Result<_, _>>()?;
        let put = (0..n(200)).map(|_| self.cost()).collect::<Result<_, _>>()?;
        let before = (ran_ns(), self.puts);
        // A million tasks: a target that sleeps wakes now and then meanwhile.
        let times = if quick || self.way > 0 { n(4000) } else { 62_500 };
        (0..times).try_for_each(|_| self.round(BATCH).map(drop))?;
        let ran = ran_ns().zip(before.0).map_or(0, |(after, before)| after.saturating_sub(before));
        // Nanoseconds a task are milliseconds of 10⁶ tasks.
        let target_ms = ran as f64 / (self.puts - before.1) as f64;
        Ok((RunTimes { way: self.way.into(), one, rounds, batches, put, target_ms }, self.puts))
    }
}

fn initiate(world: &World, quick: bool) -> Result<Vec<RunTimes>, Failure> {
    let (tasks, comm) = (world.xtq(), world.comm());
    comm.barrier()?;
    let mut pid = [0i32];
    comm.recv(&mut pid, 1, 0)?;
    let target = Pid::from_raw(pid[0]).ok_or_else(|| job("the target has no number"))?;
    let (mut found, mut counts) = (Vec::new(), Vec::new());
    for way in 0..WAYS.len() {
        let (of_way, puts) = Putting::new(&tasks, way).measure(quick, || ran_ns(target))?;
        found.push(of_way);
        counts.push(puts);
        if way == 0 {
            comm.send(&counts[..1], 1, 1)?;
            comm.barrier()?;
        }
    }
    comm.send(&counts[1..], 1, 1)?;
    Ok(found)
}
