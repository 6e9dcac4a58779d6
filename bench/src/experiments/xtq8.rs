//! `xtq8`: Figure 8 of LeBeane et al. 2016: an application that spends 58 % of its time in MPI, 43 % of it in accumulates
//! of small to medium length (NWChem's `tce_ozone`, four nodes). A replay stands in for the chemistry.
//!
//! What is the paper's: both shares, and that the lengths are mostly small to medium (§V.C.1). Its histogram is a picture
//! without numbers, so the mix here (`Mix`) is ours, or the user's. A rank accumulates into another one's part of a
//! window, flushes, gets now and then, and computes in between, without a call. How long it computes, and how often it
//! gets, is found by trial so that the shares of the first way, *messages*, are the paper's. All other ways then do the
//! same.
//!
//! Each way has processes of its own, of which rank 0 leaves what the profiles of the windows say
//! ([`gapless::Window::profile`]). Beside them are the accumulates of the mix on the simulated machine.

mod mix;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless::xtq::Life;
use gapless::{Communicator, Lock, ReduceOp, Window, WindowBuilder, World};
use gapless_cli::pingpong::Pinned;
use gapless_dtype_cuda::CudaWorker;
use gapless_mem_cuda::CudaDriver;
use gapless_report::{Absent, Mark, PlotError, Report, Row, Samples, Summary, Time};
use gapless_xtq_sim::experiments::{accumulate, is_sum};
use gapless_xtq_sim::{Configuration, Options as SimOptions, Ps};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::processes::{Processes, RankOf};
use crate::random::Random;
use crate::sim::{Bar, gain, judged, simulate, stacked};
use crate::table::{head, line};
use mix::{BYTES_MAX, Mix};

/// The experiment.
pub struct Xtq8;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options8 {
    /// Processes; as many as there are processors, from 2 to 4, by default
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: Option<u32>,
    /// Only what is simulated: the same everywhere
    #[arg(long)]
    simulated: bool,
    /// Lengths of accumulates, in bytes, and how many have each, as a window's profile has them; a mix of our own by default
    #[arg(long, value_name = "BYTES:COUNT,…", default_value_t)]
    mix: Mix,
}

/// Elements of a rank's part of the window: the longest.
const ELEMENTS: usize = (BYTES_MAX / 8) as usize;
/// The paper's shares of time: accumulates, and the rest of MPI.
const ACCUMULATE: f64 = 0.43;
const OTHER: f64 = 0.58 - ACCUMULATE;
/// Trials until the shares are right, and accumulates of one.
const TRIALS: usize = 12;
const TRIAL: u32 = 300;
const REPETITIONS: usize = 5;
const OP: &str = "accumulate, flush";

/// How accumulations reach their targets.
struct AccumulateMode {
    name: &'static str,
    about: &'static str,
    /// Whether processes have a progress thread.
    thread: bool,
    builder: for<'c> fn(WindowBuilder<'c>) -> WindowBuilder<'c>,
}

const WAYS: [AccumulateMode; 5] = [
    AccumulateMode {
        name: "messages",
        about: "CPU: the target's application thread, in its calls",
        thread: false,
        builder: |builder| builder.by_messages(),
    },
    AccumulateMode {
        name: "messages, thread",
        about: "CPU: the target's progress thread",
        thread: true,
        builder: |builder| builder.by_messages(),
    },
    AccumulateMode {
        name: "host",
        about: "XTQ host: tasks on the target's threads, which its progress thread hands them",
        thread: true,
        builder: |builder| builder.by_messages().accumulate_by_tasks(),
    },
    AccumulateMode {
        name: "mapped",
        about: "the origin, in memory that it maps",
        thread: false,
        builder: |builder| builder,
    },
    DEVICE,
];
const DEVICE: AccumulateMode = AccumulateMode {
    name: "device",
    about: "XTQ device: the worker of the target's GPU",
    thread: false,
    builder: |builder| builder.by_messages().accumulate_by_worker(),
};

/// What one repetition took, on the mean of all ranks, in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Replayed {
    elapsed: f64,
    accumulates: f64,
    gets: f64,
    /// Accumulates of a rank.
    count: u32,
}

/// What a job found.
#[derive(Debug, Serialize, Deserialize)]
struct JobFigures {
    /// Nanoseconds of computing for each accumulate, and gets.
    compute: f64,
    gets: f64,
    replayed: Vec<Replayed>,
}

impl JobFigures {
    fn mean(&self, of: impl Fn(&Replayed) -> f64) -> f64 {
        self.replayed.iter().map(of).sum::<f64>() / self.replayed.len().max(1) as f64
    }

    fn accumulate_share(&self) -> f64 {
        self.mean(|it| it.accumulates / it.elapsed)
    }

    fn mpi_share(&self) -> f64 {
        self.mean(|it| (it.accumulates + it.gets) / it.elapsed)
    }

    /// An accumulate's time.
    fn summary(&self) -> Result<Summary, Failure> {
        let each = self.replayed.iter().map(|it| it.accumulates / f64::from(it.count));
        Samples::from_seconds(each).summary().map_err(Failure::samples(OP))
    }
}

impl Experiment for Xtq8 {
    type Options = Options8;

    const NAME: &'static str = "xtq8";
    const ABOUT: &'static str = "an application that mostly accumulates, as a replay: by messages, tasks, and simulated";

    fn run(options: &Options8, common: &Common) -> Result<Findings, Failure> {
        if options.simulated {
            let rows = simulated(&options.mix, common.seed)?;
            let notes = format!("the mix on the machine of Table I, between two nodes\n{}", judged(&rows));
            return Ok(Findings::new(rows, notes));
        }
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let ranks = options.ranks.unwrap_or(u32::try_from(processors).unwrap_or(4).clamp(2, 4));
        let mut found: Vec<(&AccumulateMode, JobFigures)> = Vec::new();
        let mut absent = Vec::new();
        for (number, way) in WAYS.iter().enumerate() {
            if way.name == DEVICE.name
                && let Err(why) = has_gpus(ranks)
            {
                absent.push(Absent { case: way.name.to_owned(), op: OP.to_owned(), why, failed: false });
                continue;
            }
            let first = found.first().map_or((0.0, 0.0), |(_, first)| (first.compute, first.gets));
            // Nanoseconds of computing between accumulates, and gets for each; 0: to be found.
            let (compute, gets) = first;
            let what = format!("{}, {}", Self::NAME, way.name);
            found.push((way, Processes::new(Self::NAME, ranks).found(&what, (number, compute, gets))?));
        }
        let mut rows = measured(&options.mix, &found, ranks)?;
        let simulated = simulated(&options.mix, common.seed)?;
        rows.extend(simulated);
        let notes = format!(
            "a replay that stands in for NWChem's tce_ozone: the paper's shares, lengths {}; {ranks} processes \
             beside {processors} processors\nshares: of the time of a rank, from the profiles of the windows; how long \
             ranks compute is found so that those of «messages» are the paper's\n{}",
            if options.mix == Mix::default() { "of our own" } else { "as given" },
            judged(&rows)
        );
        Ok(Findings { absent, ..Findings::new(rows, notes) })
    }

    /// By one way.
    fn rank(options: &Options8, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let (way, mut compute, mut gets): (usize, f64, f64) = rank.part()?;
        let way = &WAYS[way.min(WAYS.len() - 1)];
        let world = World::builder().progress_thread(way.thread).init()?;
        let _pinned = Pinned::to(usize::try_from(world.rank()).unwrap_or(0));
        if way.name == DEVICE.name {
            let device = CudaDriver::load()?.device(world.rank())?;
            let life = Life { idle: None, ..Life::default() };
            let worker = CudaWorker::new(device.into()).map_err(|error| Failure::Job(error.to_string()))?;
            world.attach_window_worker(Arc::new(worker), life)?;
        }
        let comm = world.comm();
        let trial = if common.quick { 20 } else { TRIAL };
        if compute == 0.0 {
            (compute, gets) = found_by_trial(comm, way, (&options.mix, common.seed), trial)?;
        }
        // As many as take the time that there is, the same at all ranks.
        let once = replay(comm, way, (&options.mix, common.seed), (trial, compute, gets))?;
        let wanted = common.seconds() / (once.elapsed / f64::from(trial)).max(1e-9);
        let count = wanted.clamp(f64::from(trial), 1e6).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped, and whole")]
        let count = count as u32;
        let replayed: Result<Vec<_>, Failure> = (0..REPETITIONS)
            .map(|repetition| replay(comm, way, (&options.mix, common.seed + repetition as u64), (count, compute, gets)))
            .collect();
        let found = JobFigures { compute, gets, replayed: replayed? };
        rank.finalize(world, &found)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let share = |row: &Row, key: &str| row.extra.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let bars: Vec<Bar> = report
            .rows
            .iter()
            .map(|row| {
                let (accumulates, mpi) = (share(row, "accumulate_share"), share(row, "mpi_share"));
                // In units of the time that all of it took by messages.
                let all = share(row, "relative_time");
                let parts = [accumulates, mpi - accumulates, 1.0 - mpi];
                Bar { label: row.case.clone(), parts: parts.map(|part| 100.0 * part * all).to_vec() }
            })
            .collect();
        let parts = ["accumulates", "the rest of MPI", "computing"];
        let title = "a replay that mostly accumulates (stands in for NWChem's tce_ozone)";
        Drawing::alone(Ok(stacked(title, &parts, "% of the time by messages, or by CPU", &bars)))
    }

    /// Shares and times by way, for people.
    fn summary(report: &Report) -> String {
        let mut text = head(&["way", "an accumulate", "of it in MPI", "in accumulates", "all, of messages or CPU"]);
        for row in &report.rows {
            let number = |key: &str| row.extra.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            let percent = |key: &str| format!("{:.0} %", 100.0 * number(key));
            text += &line(&[
                row.case.clone(),
                Time(row.seconds.median).to_string(),
                percent("mpi_share"),
                percent("accumulate_share"),
                format!("{:.2}", number("relative_time")),
            ]);
        }
        let given = report.rows.first().and_then(|row| row.extra.get("mix")?.as_str()?.parse().ok());
        let mix: Mix = given.unwrap_or_default();
        text + &format!("\n{}\n\n{}", mix.shown(), judged(&report.rows))
    }
}

/// Whether each rank has a GPU of its own: two workers on one would wait for each other.
fn has_gpus(ranks: u32) -> Result<(), String> {
    let driver = CudaDriver::load().map_err(|error| error.to_string())?;
    match driver.devices() {
        few if few < ranks => Err(format!("{few} GPUs for {ranks} processes, which need one each")),
        _ => Ok(()),
    }
}

/// How long to compute, and how often to get, so that the shares of time are the paper's.
fn found_by_trial(
    comm: &Communicator,
    way: &AccumulateMode,
    chance: (&Mix, u64),
    trial: u32,
) -> Result<(f64, f64), Failure> {
    let (mut compute, mut gets) = (1000.0, 0.5);
    for _ in 0..TRIALS {
        let once = replay(comm, way, chance, (trial, compute, gets))?;
        let each = 1e9 / f64::from(once.count);
        let (accumulate, get) = (once.accumulates * each, once.gets * each / gets);
        // Halfway to what would be right if calls took as long as now: they take longer, the longer targets compute.
        let rest = 1.0 - ACCUMULATE - OTHER;
        compute = (0.5 * (compute + accumulate * rest / ACCUMULATE)).clamp(10.0, 1e7);
        gets = (0.5 * (gets + accumulate * OTHER / ACCUMULATE / get.max(1.0))).clamp(0.01, 100.0);
    }
    Ok((compute, gets))
}

/// The accumulates of a rank: to whom, and how many elements.
fn program((mix, seed): (&Mix, u64), rank: u32, size: u32, count: u32) -> impl Iterator<Item = (u32, usize)> {
    let mut random = Random::new(seed.wrapping_mul(1000).wrapping_add(rank.into()));
    (0..count).map(move |_| {
        let target = (rank + 1 + u32::try_from(random.below(u64::from(size) - 1)).unwrap_or(0)) % size;
        (target, mix.draw(&mut random))
    })
}

/// Replays the mix once, and checks all sums.
fn replay(
    comm: &Communicator,
    way: &AccumulateMode,
    chance: (&Mix, u64),
    (count, compute, gets): (u32, f64, f64),
) -> Result<Replayed, Failure> {
    let (me, size) = (comm.rank(), comm.size());
    let builder = (way.builder)(comm.window()).profiled();
    let ones = vec![1.0; ELEMENTS];
    let mut into = vec![0.0; ELEMENTS];
    let compute = Duration::from_secs_f64(compute * 1e-9);
    let mut window: Window<f64> = builder.allocate(ELEMENTS)?;
    comm.barrier()?;
    window.lock_all()?;
    let (before, started) = (window.profile(), Instant::now());
    let mut due = 0.0;
    for (target, elements) in program(chance, me, size, count) {
        window.accumulate(&ones[..elements], target, 0, ReduceOp::Sum)?;
        window.flush(target)?;
        due += gets;
        while due >= 1.0 {
            window.get(&mut into[..elements], target, 0)?;
            due -= 1.0;
        }
        let begun = Instant::now();
        while begun.elapsed() < compute {
            std::hint::spin_loop();
        }
    }
    let (elapsed, after) = (started.elapsed(), window.profile());
    window.unlock_all()?;
    comm.barrier()?;
    let spent = |names: &[&str]| -> f64 {
        let of = |profile: &Option<gapless::WindowProfile>| -> f64 {
            let calls = profile.iter().flat_map(|profile| &profile.calls);
            calls.filter(|calls| names.contains(&calls.name)).map(|calls| calls.time.as_secs_f64()).sum()
        };
        of(&after) - of(&before)
    };
    let mine = [elapsed.as_secs_f64(), spent(&["accumulate", "flush"]), spent(&["get"])];
    let mut all = [0.0; 3];
    comm.allreduce(&mine, &mut all, ReduceOp::Sum)?;
    let [elapsed, accumulates, gets] = all.map(|sum| sum / f64::from(size));
    check(&mut window, me, size, (chance, count))?;
    window.free()?;
    Ok(Replayed { elapsed, accumulates, gets, count })
}

/// Whether this rank's part has as many ones as all have added.
fn check(
    window: &mut Window<f64>,
    me: u32,
    size: u32,
    (chance, count): ((&Mix, u64), u32),
) -> Result<(), Failure> {
    let mut right = vec![0.0; ELEMENTS];
    for rank in 0..size {
        for (_, elements) in program(chance, rank, size, count).filter(|(target, _)| *target == me) {
            right[..elements].iter_mut().for_each(|sum| *sum += 1.0);
        }
    }
    let mut found = vec![0.0; ELEMENTS];
    window.lock(me, Lock::Shared)?;
    window.get(&mut found, me, 0)?;
    window.unlock(me)?;
    let bytes = |numbers: &[f64]| -> Vec<u8> { numbers.iter().flat_map(|number| number.to_ne_bytes()).collect() };
    let case = format!("the part of rank {me}");
    crate::check::same(&bytes(&found), &bytes(&right)).map_err(|wrong| Failure::Wrong { case, op: "accumulates", wrong })
}

/// What a report says of a mix that is not ours.
fn told(row: Row, mix: &Mix) -> Row {
    if *mix == Mix::default() { row } else { row.with("mix", mix.to_string()) }
}

fn measured(mix: &Mix, found: &[(&AccumulateMode, JobFigures)], ranks: u32) -> Result<Vec<Row>, Failure> {
    let Some((first, second)) = found.first().zip(found.get(1)) else { return Ok(Vec::new()) };
    let each = |found: &JobFigures| found.mean(|it| it.elapsed / f64::from(it.count));
    let mut rows = Vec::new();
    for (at, (way, found)) in found.iter().enumerate() {
        let other = if at == 0 { second } else { first };
        let row = Row::new(way.name, OP, "host", way.name, mix.mean_bytes(), found.summary()?)
            .verified(true)
            .with("ranks", ranks)
            .with("about", way.about)
            .with("compute_ns", found.compute)
            .with("gets", found.gets)
            .with("accumulate_share", found.accumulate_share())
            .with("mpi_share", found.mpi_share())
            .with("relative_time", each(found) / each(&first.1));
        rows.push(told(row, mix).against(other.0.name, other.1.summary()?));
    }
    Ok(rows)
}

/// The accumulates of the mix on the simulated machine, between two nodes.
fn simulated(mix: &Mix, seed: u64) -> Result<Vec<Row>, Failure> {
    let mut times = [Ps::ZERO; 3];
    let mut all_right = true;
    for (bytes, count) in mix.pairs() {
        for (time, configuration) in times.iter_mut().zip(Configuration::ALL) {
            let options = SimOptions { seed, ..SimOptions::new(configuration) };
            let outcome = simulate(&accumulate(configuration, bytes, 0), &options)?;
            all_right &= outcome.is_whole() && is_sum(&outcome.memory, seed, bytes);
            *time = Ps(time.0 + outcome.time().0 * count);
        }
    }
    let times = times.map(|time| Ps(time.0 / mix.total()));
    let cpu = times[0].seconds();
    let mut rows = Vec::new();
    for (at, (configuration, time)) in Configuration::ALL.into_iter().zip(times).enumerate() {
        // What is not accumulating takes as long as by CPU.
        let (rest, other) = (cpu * (1.0 - ACCUMULATE) / ACCUMULATE, cpu * OTHER / ACCUMULATE);
        let whole = time.seconds() + rest;
        let row = crate::sim::row(&format!("{} simulated", configuration.name()), OP, configuration, mix.mean_bytes(), time)?
            .verified(all_right)
            .with("accumulate_share", time.seconds() / whole)
            .with("mpi_share", (time.seconds() + other) / whole)
            .with("relative_time", whole / (cpu + rest));
        let other = usize::from(at == 0);
        rows.push(told(row, mix).against(Configuration::ALL[other].name(), crate::sim::summary(times[other])?));
    }
    let [cpu, hsa, xtq] = times;
    if let Some(row) = rows.last_mut() {
        row.marks.push(Mark::at_least("gain of XTQ over HSA, simulated", 0.0, gain(xtq, hsa)));
        row.marks.push(Mark::at_least("gain of XTQ over CPU, simulated", 0.0, gain(xtq, cpu)));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_go_to_others_and_fit() {
        for (target, elements) in program((&Mix::default(), 3), 1, 3, 20_000) {
            assert!(target < 3 && target != 1 && elements <= ELEMENTS);
        }
    }
}
