//! `acc7`: Figure 7 of Aji et al. 2012: messages between two processes out of OpenCL memory, by what is kept from one
//! call to the next. And what a second queue is worth (§III.C), packing and unpacking between an OpenCL device and host
//! memory.
//!
//! Each process has a context of its own. *Nothing cached*: after each message both processes give up what is kept of
//! the context ([`World::release_context`]), so each call makes queue, buffers and engine, and drops them. *Own queue*:
//! the same, but the program names a queue of its own. *Cached*: as users have it. Messages have no gaps, so that no
//! program is built for any of them; the paper's programs were built beforehand as well.

#![allow(unsafe_code, reason = "sends memory of devices, and packs it")]

use std::time::Instant;

use gapless::{GpuEngine, OpenClDevice, View, ViewMut, World};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{Engine, Typed};
use gapless_mem::{Device, Region, Space};
use gapless_mem_opencl::testkit::{UserBuffer, UserContext, UserQueue};
use gapless_mem_opencl::{DeviceInfo, counts, detect};
use gapless_report::{Absent, PlotError, Report, Row, Samples};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Acc7;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Which OpenCL device, of the list of `gapless info`
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    opencl: usize,
}

const MIB: usize = 1 << 20;
const SIZES: [usize; 7] = [MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];
/// Turns of each way.
const ROUNDS: usize = 15;
/// Queues that are compared.
const QUEUES: [usize; 2] = [1, 2];

const OPERATION: &str = "one way";
const NOTES: &str = "time: half a round trip, giving up included; ÷: speed relative to «nothing cached», and to the \
                     way before. saved_percent: of the time of «nothing cached»;\nAji et al.: 72.6 % at 1 MB, 8 % at \
                     64 MB. made: queues, buffers, programs and kernels that a call makes here\n";

/// What is kept from one call to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Nothing,
    Queue,
    All,
}

const WAYS: [Kept; 3] = [Kept::Nothing, Kept::Queue, Kept::All];

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Kept::Nothing => "nothing cached",
            Kept::Queue => "own queue",
            Kept::All => "cached",
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Job(error.to_string())
}

/// So many bytes, which tell where they are.
fn filled(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at / 5 % 251).to_le_bytes()[0]).collect()
}

/// A process's end.
struct End<'w> {
    world: &'w World,
    queue: UserQueue,
    buffer: UserBuffer,
    layout: Layout,
    /// Without a queue, and with the program's own.
    spaces: [Space; 2],
}

impl End<'_> {
    fn space(&self, kept: Kept) -> Space {
        self.spaces[usize::from(kept == Kept::Queue)]
    }

    fn send(&self, kept: Kept) -> Result<(), Failure> {
        let (region, peer) = (self.buffer.region_in(self.space(kept)), 1 - self.world.rank());
        // SAFETY: the buffer lives over this call, in which nothing else touches it.
        let view = unsafe { View::of_region(region, 0, &self.layout, 1) }.map_err(failed)?;
        self.world.comm().send(view, peer, 0).map(drop).map_err(failed)?;
        self.end(kept)
    }

    fn receive(&self, kept: Kept) -> Result<(), Failure> {
        let (region, peer) = (self.buffer.region_in(self.space(kept)), 1 - self.world.rank());
        // SAFETY: as in `send`.
        let view = unsafe { ViewMut::of_region(region, 0, &self.layout, 1) }.map_err(failed)?;
        self.world.comm().recv(view, peer, 0).map(drop).map_err(failed)?;
        self.end(kept)
    }

    fn end(&self, kept: Kept) -> Result<(), Failure> {
        if kept != Kept::All {
            self.world.release_context(self.space(kept)).map_err(failed)?;
        }
        Ok(())
    }

    /// Seconds of a message one way, of so many round trips.
    fn turn(&self, kept: Kept, times: u32) -> Result<f64, Failure> {
        self.world.comm().barrier().map_err(failed)?;
        let begin = Instant::now();
        for _ in 0..times {
            if self.world.rank() == 0 {
                self.send(kept)?;
                self.receive(kept)?;
            } else {
                self.receive(kept)?;
                self.send(kept)?;
            }
        }
        Ok(begin.elapsed().as_secs_f64() / f64::from(times) / 2.0)
    }

    /// Whether the bytes of rank 0 come back.
    fn is_right(&self, kept: Kept) -> Result<bool, Failure> {
        let bytes: Vec<u8> = filled(self.layout.size());
        let first = self.world.rank() == 0;
        let blank = vec![0; bytes.len()];
        self.buffer.write(&self.queue, if first { &bytes } else { &blank }).map_err(failed)?;
        if first {
            self.send(kept)?;
            self.buffer.write(&self.queue, &blank).map_err(failed)?;
            self.receive(kept)?;
        } else {
            self.receive(kept)?;
            self.send(kept)?;
        }
        Ok(self.buffer.read(&self.queue).map_err(failed)? == bytes)
    }
}

/// Rows of one size, a way each.
fn compare(end: &End<'_>, common: &Common) -> Result<Vec<Row>, Failure> {
    let (comm, bytes) = (end.world.comm(), end.layout.size());
    let seconds = common.seconds() / ROUNDS as f64;
    let (mut right, mut times, mut made) = ([true; 3], [1u32; 3], [0u64; 3]);
    for (at, kept) in WAYS.into_iter().enumerate() {
        right[at] = end.is_right(kept)?;
        let mut all_right = [0u8];
        comm.allreduce(&[u8::from(right[at])], &mut all_right, gapless::ReduceOp::Min)
            .map_err(failed)?;
        right[at] = all_right == [1];
        let first = end.turn(kept, 1)?;
        let fits = |&power: &u32| f64::from(1 << power) * first > seconds;
        times[at] = (0..10).find(fits).map_or(1 << 10, |power| 1 << power);
        comm.bcast(std::slice::from_mut(&mut times[at]), 0).map_err(failed)?;
        let before = counts();
        end.turn(kept, 1)?;
        made[at] = counts().made_since(&before) / 2;
    }
    let mut samples: [Samples; 3] = Default::default();
    for _ in 0..if common.quick { 2 } else { ROUNDS } {
        for ((kept, times), samples) in WAYS.into_iter().zip(times).zip(&mut samples) {
            if kept == Kept::All {
                // The ways before have given up what this one keeps.
                end.turn(kept, 1)?;
            }
            samples.push(end.turn(kept, times)?);
        }
    }
    let case = format!("{} MiB", bytes / MIB as u64);
    let summary = |samples: &Samples| samples.summary().map_err(Failure::samples(case.clone()));
    let summaries = samples.iter().map(summary).collect::<Result<Vec<_>, _>>()?;
    let row = |at: usize| {
        let saved = 100.0 * (1.0 - summaries[at].median / summaries[0].median);
        let row = Row::new(&case, OPERATION, "opencl", WAYS[at].name(), bytes, summaries[at])
            .with("saved_percent", saved)
            .with("made", made[at])
            .verified(right[at]);
        [0, 1].into_iter().filter(|&other| other == 0 || other < at).fold(row, |row, other| {
            row.against(WAYS[other].name(), summaries[other])
        })
    };
    Ok((0..WAYS.len()).map(row).collect())
}

/// Rows of 512 B out of 1 KiB.
fn rows(count: u64) -> Result<Layout, Failure> {
    let rows = Datatype::vector(count, 512, 1024, &Primitive::Byte.into());
    rows.and_then(|rows| rows.commit()).map_err(failed)
}

/// What queues are worth: rows of 512 B out of 1 KiB, packed into page-locked host memory and unpacked
/// from there.
fn queues(info: &DeviceInfo, common: &Common) -> Result<Vec<Row>, Failure> {
    let blocks = if common.quick { 16 << 10 } else { 128 << 10 };
    let layout = rows(blocks)?;
    let (extent, bytes) = (blocks * 1024, layout.size());
    let mut ends = Vec::new();
    for queues in QUEUES {
        let device = Arc::new(OpenClDevice::open(info.ordinal).map_err(failed)?);
        let memory = device.allocate(extent).map_err(failed)?;
        let config = gapless_dtype_cuda::Config { queues: Some(queues), ..gapless_dtype_cuda::Config::default() };
        let engine = GpuEngine::opencl_with(Arc::clone(&device), config).map_err(failed)?;
        let typed = Typed::new(memory, 0, &layout, 1).map_err(failed)?;
        let mut host = filled(bytes);
        let packed = Region::of_mut(&mut host);
        // SAFETY: it is taken back below, before the memory goes.
        unsafe { device.register(packed) }.map_err(failed)?;
        ends.push((device, engine, typed, host, packed));
    }
    let all: Vec<u8> = filled(extent);
    let mut rows = Vec::new();
    for op in ["pack", "unpack"] {
        let call = |engine: &GpuEngine, typed: &Typed, packed: Region| -> Result<f64, Failure> {
            let begin = Instant::now();
            let range = 0..typed.packed_bytes();
            let done = if op == "pack" {
                // SAFETY: both memories live over the wait, and nothing else touches them.
                unsafe { engine.pack(typed, range, packed, &[]) }
            } else {
                // SAFETY: as above.
                unsafe { engine.unpack(packed, typed, range, &[]) }
            };
            done.map_err(failed)?.wait().map_err(failed)?;
            Ok(begin.elapsed().as_secs_f64())
        };
        let mut samples: [Samples; 2] = Default::default();
        let mut right = true;
        for (device, engine, typed, host, packed) in &ends {
            // SAFETY: as above.
            unsafe { device.copy(typed.region(), Region::of(&all), &[]) }
                .and_then(|copied| copied.wait())
                .map_err(failed)?;
            call(engine, typed, *packed)?;
            let packed_right = || {
                let rows = host.chunks_exact(512).zip(all.chunks_exact(1024));
                rows.into_iter().all(|(packed, row)| *packed == row[..512])
            };
            right &= packed_right();
        }
        for _ in 0..if common.quick { 2 } else { ROUNDS } {
            for ((_, engine, typed, _, packed), samples) in ends.iter().zip(&mut samples) {
                samples.push(call(engine, typed, *packed)?);
            }
        }
        let case = format!("V {} MiB", bytes / MIB as u64);
        let summary = |samples: &Samples| samples.summary().map_err(Failure::samples(case.clone()));
        let summaries = samples.iter().map(summary).collect::<Result<Vec<_>, _>>()?;
        for (at, queues) in QUEUES.into_iter().enumerate() {
            let way = format!("{queues} queue{}", if queues == 1 { "" } else { "s" });
            let row = Row::new(&case, op, "opencl,host", way, bytes, summaries[at]);
            rows.push(row.verified(right).against("1 queue", summaries[0]));
        }
    }
    for (device, engine, typed, _host, packed) in ends {
        let region = typed.region();
        drop(engine);
        // SAFETY: all work on it has ended.
        unsafe { device.unregister(packed) }.map_err(failed)?;
        // SAFETY: as above.
        unsafe { device.free(region) }.map_err(failed)?;
    }
    Ok(rows)
}

/// What there is to be measured with.
#[derive(Serialize, Deserialize)]
struct Part {
    device: usize,
}

fn device(number: usize) -> Result<DeviceInfo, String> {
    let found = detect().map_err(|error| error.to_string())?;
    let count = found.len();
    found.into_iter().nth(number).ok_or_else(|| format!("there are {count} OpenCL devices"))
}

impl Experiment for Acc7 {
    type Options = Options;

    const NAME: &'static str = "acc7";
    const ABOUT: &'static str = "OpenCL messages by what is kept between calls, and what a second queue is worth";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let info = match device(options.opencl) {
            Ok(info) => info,
            Err(why) => {
                let (case, op) = ("OpenCL".to_owned(), OPERATION.to_owned());
                let mut findings = Findings::new(Vec::new(), NOTES.to_owned());
                findings.absent.push(Absent { case, op, why, failed: false });
                return Ok(findings);
            }
        };
        let part = Part { device: options.opencl };
        let mut rows: Vec<Row> = Processes::new(Self::NAME, 2).found(Self::NAME, part)?;
        rows.extend(queues(&info, common)?);
        Ok(Findings::new(rows, NOTES.to_owned()))
    }

    fn rank(_: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init().map_err(failed)?;
        let part: Part = rank.part()?;
        let info = device(part.device).map_err(failed)?;
        let context = UserContext::new(&info).map_err(failed)?;
        let sizes = if common.quick { &SIZES[..2] } else { &SIZES };
        let mut rows = Vec::new();
        for &bytes in sizes {
            let layout = Datatype::contiguous(bytes as u64, &Primitive::Byte.into());
            let layout = layout.and_then(|datatype| datatype.commit());
            let queue = context.queue(false).map_err(failed)?;
            let end = End {
                world: &world,
                buffer: context.buffer(bytes).map_err(failed)?,
                layout: layout.map_err(failed)?,
                spaces: [context.space(None), context.space(Some(&queue))],
                queue,
            };
            rows.extend(compare(&end, common)?);
        }
        world.release_context(context.space(None)).map_err(failed)?;
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        Ok(Drawing::pages("", report.to_svgs()?))
    }
}
