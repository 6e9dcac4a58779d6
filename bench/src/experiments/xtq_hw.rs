//! `xtq-hw`: tasks on a GPU whose worker is its command processor (XTQ *device*), put by a processor of another process
//! through page-locked memory, and, where there is a second GPU, by a kernel on it.
//!
//! A task adds 8 numbers of 8 bytes to a buffer on the target's GPU. This program is the target; it starts itself as the
//! initiator, and sleeps while that puts. At the end every sum is compared with the number of tasks.
//!
//! `--played` needs no GPU: a thread plays the worker, so only what the initiator does is that of the hardware.

#![allow(unsafe_code, reason = "shares memory with another process, and with GPUs")]

mod beside;
mod initiator;
mod played;
mod world;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gapless_dtype_cuda::CudaWorker;
use gapless_kernels::worker::{IMAGE, INITIATE, REWRITE};
use gapless_mem::{Device, Export, Lease, Region, Space, Words};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, Grid, Module};
use gapless_report::{Mark, Row, Summary};
use gapless_xtq::device::{
    Accumulate, Combine, DeviceFunction, DeviceKernel, Element, Lane, Life, PutOutcome, RingPlaces,
    RingShape, SLOTS, WorkerTarget,
};
use gapless_xtq::packet::{Command, Flags, Launch, Packet, TaskWork};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, getppid, kill_process};
use zerocopy::IntoBytes;

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::processes::RankOf;

/// The experiment.
pub struct XtqHw;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Be the initiator; the descriptor of the target's shared memory
    #[arg(long, hide = true, value_name = "FD")]
    initiator: Option<i32>,
    /// cuBLAS's library, whose matrix product is timed beside a worker; where there is none, only ours is
    #[arg(long, value_name = "PATH", default_value = "libcublas.so.13")]
    cublas: String,
    /// Without a GPU: a thread plays the worker. Shows what `World::xtq` adds to the lower interface
    #[arg(long)]
    played: bool,
}

const SHAPE: RingShape = RingShape { arena_bytes: 1 << 16 };
/// Behind the ring, in words: what the initiator asks the target's processor, its answer, and whether a phase is over.
const ASKED: usize = 0;
const ANSWERED: usize = 8;
const OVER: usize = 16;
const NUMBERS: usize = 8;
const PAYLOAD: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(10);
/// The row of *host* without any interface.
const BARE: &str = "message to the target's processor, launch, wait, answer";

fn job(text: impl ToString) -> Failure {
    Failure::Job(text.to_string())
}

fn packet() -> Result<Packet, Failure> {
    let command = Command {
        index: 0,
        queue: 0,
        flags: Flags::empty(),
        object: 0,
        signal: 0,
        payload_bytes: PAYLOAD,
        work: TaskWork::Kernel(Launch::linear(1, 16, 32)),
    };
    Packet::new(&command).map_err(job)
}

fn arguments() -> Vec<u8> {
    let word = Accumulate(Combine::Sum, Element::U64).word();
    [0, 0, 0, word].map(u64::to_le_bytes).concat()
}

fn payload() -> Vec<u8> {
    (1..=NUMBERS as u64).flat_map(u64::to_le_bytes).collect()
}

/// Memory of this file, mapped for good.
fn map(file: impl std::os::fd::AsFd, len: usize) -> Result<Lease, Failure> {
    // SAFETY: a new mapping, at an address that the system chooses.
    let at = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
    };
    let at = at.map_err(|error| job(format!("mapping shared memory: {error}")))?;
    let region = Region::new(Space::Host, at.expose_provenance() as u64, 0, len as u64);
    // SAFETY: it is never unmapped.
    Ok(unsafe { Lease::kept_by_caller(region) })
}

fn words(lease: &Lease) -> Result<Words, Failure> {
    // SAFETY: shared memory that both processes touch as words alone.
    Ok(unsafe { Words::new(lease.clone()) }?)
}

fn shared_bytes() -> usize {
    usize::try_from(SHAPE.bytes()).unwrap_or(0) + 4096
}

fn tail(lease: &Lease) -> Result<Words, Failure> {
    words(&lease.sub(SHAPE.bytes(), 4096).map_err(job)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Export, Failure> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2).unwrap_or("?"), 16).map_err(job);
    let bytes = (0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?;
    Ok(Export { bytes, descriptors: Vec::new() })
}

/// Zeroed memory of a device, which is never freed.
fn zeroed(device: &CudaDevice, len: usize) -> Result<Region, Failure> {
    let region = device.allocate(len as u64)?;
    upload(device, region, &vec![0; len])?;
    Ok(region)
}

fn upload(device: &CudaDevice, to: Region, bytes: &[u8]) -> Result<(), Failure> {
    // SAFETY: both live until the wait ends.
    Ok(unsafe { device.copy(to, Region::of(bytes), &[]) }?.wait()?)
}

fn download(device: &CudaDevice, from: Region) -> Result<Vec<u64>, Failure> {
    let mut bytes = vec![0; usize::try_from(from.len()).unwrap_or(0)];
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(Region::of_mut(&mut bytes), from, &[]) }?.wait()?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn summary(seconds: Vec<f64>) -> Result<Summary, Failure> {
    crate::experiment::summary("xtq-hw", &seconds)
}

/// What the initiator says, a line each.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Said {
    /// It is there; the key of its statuses, if it has a GPU.
    Hello(Option<String>),
    /// It wants a worker that stays.
    Stay,
    /// It wants one that leaves after 100 µs, and a target that looks.
    Idle,
    /// It wants the target's processor to launch.
    Host,
    /// How long something took, each time, in seconds; its name.
    Times(String, Vec<f64>),
    /// A number of anything else; its name.
    Number(String, f64),
    /// It is over, with so many tasks.
    Bye(u64),
}

/// The initiator, as the target sees it.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(fd: i32, common: &Common) -> Result<Peer, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("find", "this program"))?;
        let mut process = Process::new(program);
        process.args([XtqHw::NAME, &format!("--initiator={fd}")]);
        if common.quick {
            process.arg("--quick");
        }
        let started = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(Failure::io("start", "this program"))?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let (input, output) = ends.ok_or_else(|| job("the initiator has no pipes"))?;
        Ok(Peer { child, input, output: BufReader::new(output) })
    }

    fn next(&mut self) -> Result<Said, Failure> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(Failure::io("read", "the initiator's pipe"))?;
        if read == 0 {
            let end = self.child.wait().map_err(Failure::io("await", "the initiator"))?;
            return Err(job(format!("the initiator has ended: {end}")));
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn tell(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.input, "{text}").map_err(Failure::io("write", "the initiator's pipe"))
    }
}

/// Whatever happens, the initiator ends.
impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Experiment for XtqHw {
    type Options = Options;

    const NAME: &'static str = "xtq-hw";
    const ABOUT: &'static str = "tasks on a GPU whose worker takes them itself, put by another process";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        if options.played {
            return played::findings();
        }
        match options.initiator {
            Some(fd) => initiator::initiate(fd, common.quick).map(|()| Findings::default()),
            None => receive(&options.cublas, common).and_then(world::add),
        }
    }

    /// One of the two processes that use `World::xtq`.
    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        if options.played { played::rank(common, rank) } else { world::rank(common, rank) }
    }
}

/// The target.
fn receive(cublas: &str, common: &Common) -> Result<Findings, Failure> {
    let no_gpu = |why: gapless_mem_cuda::CudaError| Failure::NoGpu { why: why.to_string() };
    let device = Arc::new(CudaDriver::load().map_err(no_gpu)?.device(0).map_err(no_gpu)?);
    let name = device.properties().name.clone();
    let file = rustix::fs::memfd_create("gapless-xtq-hw", rustix::fs::MemfdFlags::empty());
    let file = file.map_err(|error| job(format!("shared memory: {error}")))?;
    rustix::fs::ftruncate(&file, shared_bytes() as u64).map_err(|error| job(format!("shared memory: {error}")))?;
    let memory = map(&file, shared_bytes())?;
    let flags = tail(&memory)?;
    let mut peer = Peer::start(file.as_raw_fd(), common)?;
    let worker = Arc::new(CudaWorker::new(Arc::clone(&device)).map_err(job)?);
    let mut target = WorkerTarget::new(worker, Life { idle: None, longest: Duration::from_secs(120) }).map_err(job)?;
    let sums = zeroed(&device, 4096)?;
    // SAFETY: it is never freed.
    let buffer = unsafe { Lease::kept_by_caller(sums) };
    let ring = memory.sub(0, SHAPE.bytes()).map_err(job)?;
    // SAFETY: nobody else touches this part, but the initiator's end.
    unsafe { target.add_ring(ring, SHAPE) }.map_err(job)?;
    let receive_buffer = zeroed(&device, 4096)?;
    // SAFETY: likewise.
    let receive_buffer = unsafe { Lease::kept_by_caller(receive_buffer) };
    // SAFETY: it is the worker's alone.
    unsafe { target.post(receive_buffer) }.map_err(job)?;
    let kernel = DeviceKernel::new(DeviceFunction::Accumulate, 64).buffer(buffer);
    // SAFETY: its buffer is read here when no worker runs any more.
    unsafe { target.register_kernel(0, Some(kernel)) }.map_err(job)?;
    target.register_queue(0, 32).map_err(job)?;
    let Said::Hello(statuses) = peer.next()? else { return Err(job("the initiator says no hello")) };
    let ring_key = match statuses {
        None => "-".to_owned(),
        Some(key) => {
            let ring = zeroed(&device, usize::try_from(SHAPE.bytes()).unwrap_or(0))?;
            let status = device.import(unhex(&key)?)?;
            let at = RingPlaces { status: device.device_address(status)?, ..RingPlaces::at(ring.start(), SHAPE) };
            // SAFETY: it is never freed.
            let lease = unsafe { Lease::kept_by_caller(ring) };
            // SAFETY: neither part is ever freed, and both are zeroed.
            unsafe { target.add_ring_at(lease, None, at) }.map_err(job)?;
            hex(&device.export(ring)?.bytes)
        }
    };
    // What may wait for the whole device comes before the worker's life.
    // SAFETY: CUDA's tools made the image, and it is compiled into this program.
    let launched = unsafe { Module::load(&device, IMAGE) }?.function(REWRITE)?;
    let stream = device.stream()?;
    let nothing = zeroed(&device, 4096)?;
    peer.tell(&ring_key)?;
    let (mut times, mut numbers) = (Vec::new(), Vec::new());
    let tasks = loop {
        match peer.next()? {
            Said::Hello(_) => return Err(job("the initiator says hello twice")),
            Said::Stay => {
                target.leave().map_err(job)?;
                target.set_life(Life { idle: None, longest: Duration::from_secs(120) });
                target.start().map_err(job)?;
                peer.tell("ok")?;
            }
            Said::Idle => {
                target.leave().map_err(job)?;
                target.set_life(Life { idle: Some(Duration::from_micros(100)), longest: Duration::from_secs(120) });
                peer.tell("ok")?;
                while flags.all()[OVER].load(Ordering::Acquire) == 0 {
                    target.advance().map_err(job)?;
                }
                flags.all()[OVER].store(0, Ordering::Release);
            }
            Said::Host => {
                target.leave().map_err(job)?;
                peer.tell("ok")?;
                let mut seen = flags.all()[ASKED].load(Ordering::Acquire);
                let at = [nothing.start(), nothing.start() + 64, nothing.start() + 128, nothing.start() + 2048, 0];
                while flags.all()[OVER].load(Ordering::Acquire) == 0 {
                    let asked = flags.all()[ASKED].load(Ordering::Acquire);
                    if asked == seen {
                        std::hint::spin_loop();
                        continue;
                    }
                    // SAFETY: five parameters of 8 bytes, for no packets.
                    unsafe { launched.launch(&stream, Grid::line(1, 32), &at.each_ref().map(Argument::of)) }?;
                    while !stream.is_idle()? {}
                    flags.all()[ANSWERED].store(asked, Ordering::Release);
                    seen = asked;
                }
                flags.all()[OVER].store(0, Ordering::Release);
            }
            Said::Times(what, seconds) => times.push((what, seconds)),
            Said::Number(what, value) => numbers.push((what, value)),
            Said::Bye(tasks) => break tasks,
        }
    };
    target.leave().map_err(job)?;
    let found = download(&device, sums)?;
    let right = (1u64..).zip(&found[..NUMBERS]).all(|(number, sum)| *sum == number * tasks);
    if !right {
        return Err(job(format!("{tasks} tasks have left {:?}", &found[..NUMBERS])));
    }
    times.extend(beside::waits(&device, &mut target, common.quick)?);
    let (products, right) = beside::products(&device, &mut target, cublas, common.quick)?;
    times.extend(products);
    findings((&name, common.quick), times, &numbers, tasks, &right)
}

fn findings(
    (name, quick): (&str, bool),
    times: Vec<(String, Vec<f64>)>,
    numbers: &[(String, f64)],
    tasks: u64,
    products: &str,
) -> Result<Findings, Failure> {
    let find = |what: &str| times.iter().find(|(name, _)| name == what).map(|(_, seconds)| seconds.clone());
    let number = |what: &str| numbers.iter().find(|(name, _)| name == what).map(|(_, value)| *value);
    let space = format!("cuda ({name})");
    let bytes = 8 * NUMBERS as u64;
    let row = |case: &str, protocol: &str, seconds: Vec<f64>| -> Result<Row, Failure> {
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)];
        let row = Row::new(case, "task", space.clone(), protocol, bytes, summary(seconds)?);
        Ok(row.verified(true).with("p99_seconds", last))
    };
    let host = find("host").map(summary).transpose()?;
    let mut rows = Vec::new();
    for (what, case, bound) in [
        ("one", "CPU initiator, one at a time", 3.6),
        ("stopped", "the same, the target stopped by SIGSTOP", 3.6),
        ("gpu", "GPU initiator on another GPU, one at a time", 2.9),
    ] {
        let Some(seconds) = find(what) else { continue };
        let mut row = row(case, "device", seconds)?;
        let median = row.seconds.median;
        row.marks.push(Mark::at_most("µs, put to signal", bound, median * 1e6));
        if let Some(host) = host.filter(|_| what == "one") {
            row.marks.push(Mark::at_most("of a message, launch and wait", 0.45, median / host.median));
            row = row.against("message, launch, wait", host);
        }
        rows.push(row);
    }
    for (what, case, least) in [
        ("batches", "tasks in batches of 16", 5.0),
        ("single", "tasks put one by one, many on their way", 1.0),
        ("gpu-many", "GPU initiator, 128 on their way", 0.0),
    ] {
        let Some(seconds) = find(what) else { continue };
        let mut row = row(case, "device", seconds)?;
        let rate = 1e-6 / row.seconds.median;
        if least > 0.0 {
            row.marks.push(Mark::at_least("million tasks a second", least, rate));
        }
        rows.push(row.with("million_tasks_a_second", rate));
    }
    if let Some(seconds) = find("put") {
        let mut row = row("what a put costs the initiator", "device", seconds)?;
        row.marks.push(Mark::at_most("ns a put", 150.0, row.seconds.median * 1e9));
        rows.push(row);
    }
    if let Some(seconds) = find("idle") {
        let mut row = row("first put after the worker has left", "device", seconds)?;
        if let Some(host) = find("host idle").map(summary).transpose()? {
            let over = (row.seconds.median - host.median) * 1e6;
            row.marks.push(Mark::at_most("µs above a message, launch and wait, as long after", 2.0, over));
            row = row.against("message, launch, wait", host);
        }
        rows.push(row);
    }
    for (what, case) in [
        ("synchronize", "synchronising the device (cuCtxSynchronize) beside a worker that leaves after 100 µs"),
        ("free", "freeing memory beside one"),
        ("load", "loading a module and its first function beside one"),
        ("load alone", "loading a module and its first function without one"),
    ] {
        let Some(seconds) = find(what) else { continue };
        let longest = seconds.iter().copied().fold(0.0, f64::max);
        let mut row = row(case, "driver", seconds)?.with("longest_seconds", longest);
        if what != "load alone" {
            row.marks.push(Mark::at_most("ms at most", 1.1, longest * 1e3));
        }
        if let Some(alone) = (what == "load").then(|| find("load alone")).flatten() {
            row = row.against("without a worker", summary(alone)?);
        }
        rows.push(row);
    }
    if let Some((ms, first)) = number("target ms a million").zip(rows.first_mut()) {
        first.marks.push(Mark::at_most("ms of the target's processors for 10⁶ tasks", 1.0, ms));
    }
    for (what, case) in [
        ("host", BARE),
        ("host idle", "the same, each after 2 ms without any"),
    ] {
        let Some(seconds) = find(what) else { continue };
        rows.push(row(case, "host, bare", seconds)?);
    }
    for (what, case) in [("ours", "matrix product, ours"), ("cublas", "matrix product, cuBLAS")] {
        let Some((without, with)) = find(&format!("{what} without")).zip(find(&format!("{what} with"))) else { continue };
        let without = summary(without)?;
        let (bytes, with) = (beside::matrix_bytes(quick), summary(with)?);
        let mut row = Row::new(case, "multiply", space.clone(), "beside a worker", bytes, with).verified(true);
        row.marks.push(Mark::at_most("of its time without a worker", 1.02, with.median / without.median));
        rows.push(row.against("without a worker", without));
    }
    let notes = format!("{tasks} tasks; every sum on the GPU is right\n{products}\n{}", crate::sim::judged(&rows));
    Ok(Findings::new(rows, notes))
}
