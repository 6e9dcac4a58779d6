//! `acc8` and `acc9`: Figures 8 and 9 of Aji et al. 2012, by their application: what the epidemic of `examples/episim`
//! takes if visits are moved by hand (5a, 5b) and by Gapless (5c), and what computeVisits consists of.
//!
//! Four processes share the GPUs there are. Visits are computed on the CPU, as in the paper, and on the device beside
//! it; messages go without CUDA IPC, over TCP, and with IPC. The schemes take turns; the curve of each is compared with
//! what one process computes.

use std::collections::BTreeMap;

use gapless::{Config, World};
use gapless_episim::population::{Population, Synthetic};
use gapless_episim::{DeviceKind, Options as Epidemic, Phase, Scheme, run, serial};
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Mark, Row};
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings, summary};
use crate::one_gpu::told_marks;
use crate::p2p::mps::Service;
use crate::processes::{Processes, RankOf};

/// Figure 8.
pub struct Acc8;
/// Figure 9.
pub struct Acc9;

/// Options of both experiments.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where interactions are computed: cuda, opencl or host
    #[arg(long, value_name = "KIND", default_value = "cuda")]
    device: DeviceKind,
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Days; those of the paper by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    days: Option<u32>,
    /// How often each scheme simulates all days
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Start a Multi-Process Service of our own where none runs
    #[arg(long)]
    start_mps: bool,
}

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Link {
    IpcOff,
    Tcp,
    IpcOn,
}

impl Link {
    const ALL: [Link; 3] = [Link::IpcOff, Link::Tcp, Link::IpcOn];

    fn name(self) -> &'static str {
        match self {
            Link::IpcOff => "IPC off",
            Link::Tcp => "TCP",
            Link::IpcOn => "IPC on",
        }
    }
}

/// What a job measures.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Part {
    link: Link,
    visits_there: bool,
}

/// What a scheme came to, in all rounds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    /// Seconds of each phase of each day.
    seconds: Vec<Vec<f64>>,
    created: Vec<f64>,
    /// Visits of a round.
    visits: u64,
    visit_bytes: u64,
    /// The numbers of all days of a round, which are the same in each.
    curve: Vec<[u64; 6]>,
}

/// By the scheme's name.
type ByScheme = BTreeMap<String, Found>;

/// What Figure 9 adds up: buffers are created and initialised, and packed.
const CREATE_AND_PACK: &str = "create and pack";

fn population(options: &Options, common: &Common) -> Population {
    let small = Synthetic { persons: 3_000, locations: 2_500, visits: 18_000, days: 4, ..Synthetic::DELAWARE };
    let usual = if common.quick { small } else { Synthetic::DELAWARE };
    let days = options.days.unwrap_or(usual.days);
    Population { synthetic: Synthetic { days, ..usual }, seed: common.seed }
}

/// Has processes simulate each way, and gives what they found, with its name.
fn measure(
    name: &'static str,
    options: &Options,
    common: &Common,
    rows: impl Fn(&str, &ByScheme) -> Result<Vec<Row>, Failure>,
) -> Result<Findings, Failure> {
    let service = match options.device {
        DeviceKind::Cuda => {
            CudaDriver::load().map_err(|why| Failure::NoGpu { why: why.to_string() })?;
            Service::find(options.start_mps)
        }
        _ => Err("no CUDA device is used".to_owned()),
    };
    let environment = service.as_ref().map(Service::environment).unwrap_or_default();
    let population = population(options, common);
    let right: Vec<[u64; 6]> = serial(&population).into_iter().map(|day| day.numbers()).collect();
    let mut findings = Findings::default();
    for visits_there in [false, true] {
        for link in Link::ALL {
            let where_to = if visits_there { "device" } else { "CPU" };
            let case = format!("{}, visits on the {where_to}", link.name());
            let processes = Processes { environment: environment.clone(), ..Processes::new(name, options.ranks) };
            let found: ByScheme = match processes.found(&case, Part { link, visits_there }) {
                Ok(found) => found,
                Err(failure) => {
                    let (op, why) = ("a day".to_owned(), failure.to_string());
                    findings.absent.push(Absent { case, op, why, failed: true });
                    continue;
                }
            };
            if let Some((scheme, _)) = found.iter().find(|(_, found)| found.curve != right) {
                return Err(Failure::Job(format!("{case}, {scheme}: the curve is not that of one process")));
            }
            findings.rows.extend(rows(&case, &found)?);
        }
    }
    for row in &mut findings.rows {
        row.space = format!("{:?}", options.device).to_lowercase();
        row.extra.insert("processes".to_owned(), options.ranks.into());
        row.extra.insert("mps".to_owned(), service.is_ok().into());
    }
    if common.quick {
        findings.rows.iter_mut().for_each(|row| row.marks.clear());
    }
    Ok(findings)
}

/// One of the processes: each scheme in turn.
fn measure_here(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
    let Part { link, visits_there } = rank.part()?;
    let world = match link {
        Link::Tcp => World::builder().only(["tcp"]).init()?,
        Link::IpcOn => World::init()?,
        Link::IpcOff => {
            let world = World::init()?;
            world.set_config(Config { device_ipc: false, ..world.config()? })?;
            world
        }
    };
    let mut found = ByScheme::new();
    for _ in 0..if common.quick { 1 } else { options.rounds } {
        for scheme in Scheme::ALL {
            let epidemic = Epidemic {
                population: population(options, common),
                scheme,
                device: options.device,
                visits_there,
                ..Epidemic::default()
            };
            let summary = run(&world, &epidemic, &mut |_| {}).map_err(|why| Failure::Job(why.to_string()))?;
            let found = found.entry(scheme.to_string()).or_default();
            found.seconds.extend(summary.seconds.iter().map(|day| day.to_vec()));
            found.created.push(summary.created);
            (found.visits, found.visit_bytes) = (summary.visits, summary.visit_bytes);
            let curve = summary.days.iter().map(|day| day.numbers()).collect();
            if found.curve.is_empty() {
                found.curve = curve;
            } else if found.curve != curve {
                return Err(Failure::Job(format!("{scheme}: the curve differs from one round to the next")));
            }
        }
    }
    rank.finalize(world, &found)
}

/// Of each scheme that has these phases a row, of their sum; beside 5a, and 5b if that has them.
fn row_of(case: &str, op: &str, found: &ByScheme, phases: &[Phase]) -> Result<Vec<Row>, Failure> {
    let time = |scheme: Scheme| {
        let found = found.get(&scheme.to_string()).ok_or_else(|| Failure::Job(format!("{scheme} was not measured")))?;
        let of_day = |day: &Vec<f64>| phases.iter().filter_map(|phase| day.get(*phase as usize)).sum();
        let seconds: Vec<f64> = found.seconds.iter().map(of_day).collect();
        if seconds.iter().all(|seconds| *seconds == 0.0) {
            return Ok(None);
        }
        Ok::<_, Failure>(Some((found, summary(format!("{case}, {op}, {scheme}"), &seconds)?)))
    };
    let (basic, advanced) = (time(Scheme::Basic)?, time(Scheme::Advanced)?);
    let mut rows = Vec::new();
    for scheme in Scheme::ALL {
        let Some((found, time)) = time(scheme)? else { continue };
        let days = found.curve.len().max(1) as u64;
        let bytes = found.visits * found.visit_bytes / days;
        let mut row = Row::new(case, op, "", scheme.to_string(), bytes, time).verified(true);
        for (name, other) in [("5a", &basic), ("5b", &advanced)] {
            if let Some((_, time)) = other {
                row = row.against(name, *time);
            }
        }
        rows.push(row.with("visits_a_day", found.visits / days));
    }
    Ok(rows)
}

/// 5c's time relative to another scheme's.
fn relative(rows: &[Row], to: &str) -> f64 {
    rows.last().and_then(|row| row.ratio_to(to)).map_or(f64::NAN, |speed| 1.0 / speed)
}

impl Experiment for Acc8 {
    type Options = Options;

    const NAME: &'static str = "acc8";
    const ABOUT: &'static str = "an epidemic whose visits are moved to GPUs by hand and by Gapless: whole days";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let mut findings = measure(Self::NAME, options, common, |case, found| {
            let mut all = Vec::new();
            // What is asked of visits on the CPU, as in the paper.
            let judged = !case.ends_with("device");
            for (phase, most) in [
                (Phase::Visits, Some(1.0 - 0.2025)),
                (Phase::Interactions, None),
                (Phase::Infections, None),
                (Phase::Whole, Some(1.0 - 0.111)),
            ] {
                let mut rows = row_of(case, &phase.to_string(), found, &[phase])?;
                let [basic, advanced] = ["5a", "5b"].map(|scheme| relative(&rows, scheme));
                if let (true, Some(most), Some(row)) = (judged, most, rows.last_mut()) {
                    row.marks.push(Mark::at_most("× 5a", most, basic));
                    row.marks.push(Mark::at_most("× 5b", 1.01, advanced));
                }
                all.extend(rows);
            }
            Ok(all)
        })?;
        findings.notes = format!(
            "time: a day, of the rank that takes longest; ÷: speed relative to 5a (packed on the host) and 5b (copied \
             while others come)\nthe paper: 5c takes 20.25 % less of computeVisits, 11.1 % of the whole, than 5a\n{}",
            told_marks(&findings.rows, "")
        );
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        measure_here(options, common, rank)
    }
}

impl Experiment for Acc9 {
    type Options = Options;

    const NAME: &'static str = "acc9";
    const ABOUT: &'static str = "what computeVisits of that epidemic consists of: creating buffers, packing, copying";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let mut findings = measure(Self::NAME, options, common, |case, found| {
            let mut all = Vec::new();
            for phase in [Phase::Create, Phase::Compute, Phase::Exchange, Phase::Pack, Phase::Copy, Phase::Visits] {
                let mut rows = row_of(case, &phase.to_string(), found, &[phase])?;
                if phase == Phase::Create {
                    for (row, found) in rows.iter_mut().zip(found.values()) {
                        let once = found.created.iter().copied().fold(f64::INFINITY, f64::min);
                        row.extra.insert("seconds_to_allocate_once".to_owned(), once.into());
                    }
                }
                all.extend(rows);
            }
            let mut rows = row_of(case, CREATE_AND_PACK, found, &[Phase::Create, Phase::Pack])?;
            let gain = 1.0 / relative(&rows, "5a");
            if let Some(row) = rows.last_mut() {
                let what = "speed of creating and packing on the device, by that on the CPU";
                row.marks.push(Mark::at_least(what, 50.0, gain));
            }
            all.extend(rows);
            Ok(all)
        })?;
        findings.notes = shares(&findings.rows)
            + "the paper: creating and packing on the GPU is two orders of magnitude faster than on the CPU; the copy \
               of 5a and 5b is 1.3 % of computeVisits\n"
            + &told_marks(&findings.rows, "");
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        measure_here(options, common, rank)
    }
}

/// What share of computeVisits the steps are.
fn shares(rows: &[Row]) -> String {
    let mut text = String::new();
    for whole in rows.iter().filter(|row| row.op == Phase::Visits.to_string()) {
        let share = |phase: Phase| {
            let like = |row: &&Row| (&row.case, &row.protocol) == (&whole.case, &whole.protocol);
            let row = rows.iter().filter(like).find(|row| row.op == phase.to_string());
            row.map_or(0.0, |row| 100.0 * row.seconds.median / whole.seconds.median)
        };
        let [create, pack, copy] = [Phase::Create, Phase::Pack, Phase::Copy].map(share);
        text += &format!(
            "{}, {}: of computeVisits {create:.2} % is creating, {pack:.2} % packing, {copy:.2} % copying\n",
            whole.case, whole.protocol
        );
    }
    text
}
