//! `coll-gpu`: collectives between GPUs, queued on a stream: ours beside NCCL's, each in memory that is registered and in
//! memory that is not; captured in a graph, queued, and called and awaited.
//!
//! Processes of their own measure, one process a GPU ([`gpu::collectives`](crate::gpu::collectives)). NVLink SHARP is used by
//! nobody (NCCL_NVLS_ENABLE=0).

use gapless::World;
use gapless_kernels::peers::{flagged_max, words_max};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Bytes, Mark, PlotError, Report, Row, Summary, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, summary};
use crate::gpu::collectives::{Rank, CallMode, Who};
use crate::gpu::space;
use crate::nccl::{NO_SHARP, NcclCall};
use crate::p2p::mps::Service;
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct CollGpu;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes, each with a GPU, or in turn on those that there are under the Multi-Process Service
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    /// Bytes of an all-reduce; repeatable, or separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value =
        "8,512,4096,32768,131072,262144,524288,1048576,2097152,8388608,67108864,268435456")]
    sizes: Vec<u64>,
    /// NCCL's library
    #[arg(long, value_name = "PATH", default_value = "libnccl.so.2")]
    nccl: String,
    /// Measure without NCCL, as where processes share a GPU
    #[arg(long)]
    alone: bool,
    /// Start a Multi-Process Service of our own where processes must share GPUs and none runs
    #[arg(long)]
    start_mps: bool,
    /// Only this operation
    #[arg(long, value_name = "OPERATION", value_parser = OPERATIONS.map(|(name, _)| name))]
    only: Option<String>,
}

/// Bytes from which the bandwidth counts.
const LONG: u64 = 64 << 20;
/// Bytes up to which the latency counts.
const SHORT: u64 = 32 << 10;
/// Bytes of all ranks' blocks together, for operations other than all-reduce; of a reduce-scatter only long ones.
const BLOCKS: [u64; 8] =
    [1 << 10, 8 << 10, SHORT, 64 << 10, 512 << 10, 1 << 20, LONG, 256 << 20];
/// Seconds that few bytes take at most in a graph, if they are not combined.
const MOVED: f64 = 3e-6;
/// What is measured, by name, each by a job of its own.
const OPERATIONS: [(&str, NcclCall); 5] = [
    ("allreduce", NcclCall::Allreduce),
    ("allgather", NcclCall::Allgather),
    ("reduce_scatter", NcclCall::ReduceScatter),
    ("alltoall", NcclCall::Alltoall),
    ("broadcast", NcclCall::Broadcast),
];
const PLAIN: &str = "NCCL";
const WINDOWS: &str = "NCCL, symmetric windows";

impl Experiment for CollGpu {
    type Options = Options;

    const NAME: &'static str = "coll-gpu";
    const ABOUT: &'static str = "collectives between GPUs, queued on a stream, beside NCCL's";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let service = Service::for_ranks(options.ranks, options.start_mps)?;
        let environment = service.as_ref().map(Service::environment).unwrap_or_default();
        let processes = Processes { environment, ..Processes::new(Self::NAME, options.ranks) }.with(NO_SHARP);
        let (mut rows, mut absent) = (Vec::new(), Vec::new());
        let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
        for (name, _) in OPERATIONS.into_iter().filter(|(name, _)| wanted(name)) {
            // Left when all was measured, so what went wrong later changes nothing about it.
            let (found, ended) = processes.found_so_far::<Vec<Row>>(name, name)?;
            rows.extend(found);
            if let Err(why) = ended {
                let (case, op, why) = (name.to_owned(), "all".to_owned(), why.to_string());
                absent.push(Absent { case, op, why, failed: true });
            }
        }
        let notes = "time: of one call, the slowest rank's. graph, queued: 50 calls back to back (5 from 8 MiB on), by the \
                     device's clock; awaited: one call and its wait, polled, by the host's; blocking: the second of two such, ours by \
                     blocking calls, with workers.\nbytes: of the vector, or of \
                     all ranks' blocks together. float, sum. NVLink SHARP is not used by anybody. ÷: speed relative to \
                     NCCL\n";
        Ok(Findings { rows, notes: notes.to_owned(), absent })
    }

    /// Of one operation.
    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let driver = CudaDriver::load()?;
        let device = driver.device(world.rank() % driver.devices())?;
        let stream = device.stream()?;
        let sizes: &[u64] = if common.quick { &[8, 2 << 20] } else { &options.sizes };
        let blocks: &[u64] = if common.quick { &[SHORT, 1 << 20] } else { &BLOCKS };
        let most = sizes.iter().chain(blocks).copied().max().unwrap_or(8).max(1 << 20);
        // It does not run several ranks on a GPU.
        let alone = options.alone || driver.devices() < options.ranks;
        let nccl = (!alone).then_some(options.nccl.as_str());
        let only: String = rank.part()?;
        let ours = Rank::new(&world, &stream, most, nccl)?;
        let mut rows = Vec::new();
        let samples = |bytes: u64, way| match way {
            _ if common.quick => 2,
            CallMode::Awaited | CallMode::Blocking if bytes < 1 << 20 => 200,
            _ if bytes >= LONG => 7,
            _ => 25,
        };
        for way in CallMode::ALL.into_iter().filter(|_| only == "allreduce") {
            let all = ours.race(&[Who::Empty], NcclCall::Allreduce, way, 0, samples(0, way))?;
            let took = summary("an empty kernel", &all[0])?;
            rows.push(Row::new("empty kernel", way.name(), space(world.size()), "none", 0, took).verified(true));
        }
        let works = OPERATIONS.into_iter().filter(|(name, _)| *name == only).flat_map(|(_, call)| {
            let sizes = if call == NcclCall::Allreduce { sizes } else { blocks };
            let left_out = move |bytes: u64| call == NcclCall::ReduceScatter && bytes < 1 << 20;
            sizes.iter().filter(move |bytes| !left_out(**bytes)).map(move |bytes| (call, *bytes))
        });
        for (call, bytes) in works {
            let mut all = if call == NcclCall::Allreduce && bytes > flagged_max(world.size()) {
                vec![Who::OursRegistered, Who::Ours]
            } else {
                vec![Who::OursRegistered]
            };
            let own = all.len();
            if nccl.is_some() {
                all.push(Who::Nccl);
                // Sends and receives gain nothing by windows.
                all.extend((call != NcclCall::Alltoall).then_some(Who::NcclWindows));
            }
            let mut right = true;
            for who in &all {
                right &= ours.is_right(*who, call, bytes)?;
            }
            for way in CallMode::ALL {
                let seconds = ours.race(&all, call, way, bytes, samples(bytes, way))?;
                let summaries = seconds.iter().map(|it| summary(format!("{call:?} of {}", Bytes(bytes)), it));
                let summaries: Vec<Summary> = summaries.collect::<Result<_, _>>()?;
                for (who, took) in all.iter().zip(&summaries).take(own) {
                    rows.push(row(call, way, bytes, world.size(), *who, *took, &summaries[own..]).verified(right));
                }
            }
        }
        let version = ours.nccl_version().unwrap_or(0);
        rows.iter_mut().for_each(|row| *row = row.clone().with("nccl", version));
        if world.rank() == 0 {
            rank.leave(&rows)?;
        }
        drop(ours);
        Ok(world.finalize()?)
    }

    /// By length, a picture a way.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let picture = |way: CallMode| {
            let rows = report.rows.iter().filter(|row| row.op == way.name() && row.payload_bytes > 0);
            let points = rows.filter(|row| row.case.starts_with("allreduce")).flat_map(|row| {
                let plain = row.reference_seconds.filter(|_| row.reference.as_deref() == Some(PLAIN));
                let both = [(&*row.protocol, Some(row.seconds)), (PLAIN, plain)];
                both.map(|(name, seconds)| Some((name.to_owned(), (row.payload_bytes, seconds?))))
            });
            (format!("-{}", way.name()), format!("all-reduce, {}", way.name()), gathered(points.flatten()))
        };
        Drawing::each(CallMode::ALL.map(picture), |title, lines| curves(title, "bytes", lines))
    }
}

/// How our call goes.
fn protocol(call: NcclCall, who: Who, bytes: u64, ranks: u32) -> &'static str {
    match (call, who) {
        (NcclCall::Allreduce, _) if bytes <= flagged_max(ranks) => "flagged words",
        (NcclCall::Allreduce, Who::Ours) => "staged",
        (NcclCall::Allgather | NcclCall::Alltoall, _) if bytes / u64::from(ranks) <= words_max(ranks) => {
            "flagged words"
        }
        (NcclCall::Broadcast, _) if bytes <= words_max(ranks) => "flagged words",
        _ => "direct",
    }
}

/// A row, with the marks that it has; `theirs`: NCCL's times, without and with windows.
fn row(
    call: NcclCall,
    way: CallMode,
    bytes: u64,
    ranks: u32,
    who: Who,
    took: Summary,
    theirs: &[Summary],
) -> Row {
    let operation = match call {
        NcclCall::Allreduce => "allreduce",
        NcclCall::Allgather => "allgather",
        NcclCall::ReduceScatter => "reduce_scatter",
        NcclCall::Alltoall => "alltoall",
        NcclCall::Broadcast => "broadcast",
    };
    let memory = if who == Who::Ours { "plain memory" } else { "registered memory" };
    let case = format!("{operation} n={ranks}, {memory}");
    let mut row = Row::new(case, way.name(), space(ranks), protocol(call, who, bytes, ranks), bytes, took);
    let moves = matches!(call, NcclCall::Allgather | NcclCall::Alltoall);
    if moves && bytes <= SHORT && way == CallMode::Graph {
        row = row.mark(Mark::at_most("µs", MOVED * 1e6, took.median * 1e6));
    }
    let [plain, windows @ ..] = theirs else { return row };
    row = row.against(PLAIN, *plain);
    let over = |theirs: &Summary| took.median / theirs.median;
    if let [windows] = windows {
        row = row.against(WINDOWS, *windows);
    }
    if bytes <= SHORT && way == CallMode::Graph {
        row = row.mark(Mark::at_most("time ÷ NCCL's", 0.6, over(plain)));
        for windows in windows {
            row = row.mark(Mark::at_most("time ÷ NCCL's with windows", 1.0, over(windows)));
        }
    }
    let better = theirs.iter().map(over).fold(0.0, f64::max);
    if bytes <= SHORT && way == CallMode::Awaited {
        row = row.mark(Mark::at_most("time ÷ the better of NCCL's", 0.7, better));
    }
    if bytes <= SHORT && way == CallMode::Blocking {
        row = row.mark(Mark::at_most("time ÷ the better of NCCL's", 0.45, better));
        if bytes == 8 && call == NcclCall::Allreduce {
            row = row.mark(Mark::at_most("µs", 6.0, took.median * 1e6));
        }
    }
    if bytes >= LONG && who == Who::OursRegistered {
        row = row.mark(Mark::at_least("speed ÷ the better of NCCL's", 0.97, 1.0 / better));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn took(micros: f64) -> Summary {
        Samples::from_seconds([micros * 1e-6; 3]).summary().unwrap()
    }

    #[test]
    fn short_ones_are_judged_by_their_time_and_long_ones_by_their_speed() {
        let theirs = [took(6.0), took(4.0)];
        let short = row(NcclCall::Allreduce, CallMode::Graph, 8, 2, Who::OursRegistered, took(3.0), &theirs);
        let values: Vec<(f64, bool)> = short.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(values, [(0.5, true), (0.75, true)]);
        let moved = row(NcclCall::Alltoall, CallMode::Graph, 8, 2, Who::OursRegistered, took(2.9), &[]);
        assert!(moved.marks.len() == 1 && moved.marks[0].met);
        let awaited = row(NcclCall::Allreduce, CallMode::Awaited, 8, 2, Who::OursRegistered, took(3.0), &theirs);
        assert!(!awaited.marks[0].met && (awaited.marks[0].value - 0.75).abs() < 1e-9);
        let long = row(NcclCall::Alltoall, CallMode::Queued, LONG, 2, Who::OursRegistered, took(4.1), &theirs);
        assert!(long.marks[0].met && long.marks[0].value < 1.0);
        assert!(row(NcclCall::Allreduce, CallMode::Queued, LONG, 2, Who::Ours, took(9.0), &theirs).marks.is_empty());
    }

    #[test]
    fn what_is_drawn_are_all_ways_of_an_allreduce() {
        let theirs = [took(6.0), took(4.0)];
        let rows = CallMode::ALL.into_iter().flat_map(|way| {
            [8, 64].map(|bytes| row(NcclCall::Allreduce, way, bytes, 2, Who::OursRegistered, took(3.0), &theirs))
        });
        let report = Report::new("coll-gpu", gapless_report::Machine::default(), "figures", rows.collect());
        report.validate().unwrap();
        assert_eq!(CollGpu::draw(&report).unwrap().len(), CallMode::ALL.len());
    }
}
