//! `gapless tune --hyperq`: how many copies of each kind are best where processes share a GPU, by trying every number.
//! It goes into the [table](gapless::tuning::coll) of collectives, which keeps what else it has.
//!
//! There is a job for each number of processes, under the Multi-Process Service if that runs. In each round every
//! number of host-staged copies is tried once, in both steps; the mean of the rounds' best, rounded, for the gather and
//! for the scatter, is what Faraji and Afsahi keep. Where processes take turns, a step may be quick after one gather
//! and slow after another, and a number between two quick ones slow. So that pair is compared with the best single
//! number in further rounds, and the quicker is kept. Rank 0 leaves its entries in a file, which the tuner puts
//! together.

use super::{heading, parts, write_or_say};
use crate::failure::Failure;
use crate::{Worlds, complain};
use gapless::tuning::coll::{self, Entry, Gpu, HyperQStep, Mode, Rule, Settings, Table};
use gapless::{Communicator, DeviceBuf, Equivalence, Layout, ReduceOp, Space, World};
use gapless_pml::Tuning;
use gapless_report::write_atomically;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Lengths that are measured, in bytes of a copy.
const SIZES: [u64; 9] =
    [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Rounds of a length, at least and at most: as many as in the paper.
const ROUNDS: std::ops::RangeInclusive<u64> = 5..=1000;

/// Rounds in which two pairs of numbers are compared.
const COMPARED: u32 = 9;

/// Numbers of processes that are measured if nothing is said.
const PROCESSES: [u32; 4] = [2, 4, 8, 16];

/// Options.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Measure how processes that share a GPU should copy instead, by trying every number of copies of each kind, and
    /// put that into the table of collectives
    #[arg(long, conflicts_with = "coll")]
    pub(super) hyperq: bool,
    /// Processes on the GPU; repeatable, or separated by commas. By default 2, 4, 8, 16, up to a processor each
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "hyperq",
        value_parser = clap::value_parser!(u32).range(2..=64))]
    processes: Vec<u32>,
    /// Which CUDA device
    #[arg(long, value_name = "N", default_value_t = 0, requires = "hyperq")]
    gpu: u32,
}

/// Starts the jobs, and writes what they found.
pub(super) fn run(
    options: &Options,
    budget: f64,
    target: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let (mut rules, mut settings) = (Vec::new(), Settings::default());
    if let Some(path) = target.filter(|path| path.exists()) {
        (rules, settings) = known(path)?;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let fits = |n: &u32| usize::try_from(*n).is_ok_and(|n| n <= processors);
    let processes = match &options.processes[..] {
        [] => PROCESSES.into_iter().filter(|n| *n == 2 || fits(n)).collect(),
        some => some.to_vec(),
    };
    if !processes.iter().all(fits) {
        complain(
            "there are fewer processors than processes: they take turns, and the times show it",
        );
    }
    let more = ["--gpu".into(), options.gpu.to_string().into()];
    let code = parts::run("--hyperq", &processes, budget, &more, |part| {
        for gpu in known(part)?.1.table.gpus {
            merge(&mut settings, gpu);
        }
        Ok(())
    })?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let rest = "Copies of collectives on one GPU, and the rules.";
    let text = heading("The table of collectives", rest)
        + &coll::write(&rules)
        + &coll::write_hyperq(&settings);
    write_or_say(target, &text, "").map(|()| ExitCode::SUCCESS)
}

/// What a file has.
fn known(path: &Path) -> Result<(Vec<Rule>, Settings), Failure> {
    let table = coll::read_table(path).map_err(gapless::Error::from)?;
    Ok(table)
}

/// Puts entries in the place of those of the same GPU, service, and number of processes.
fn merge(settings: &mut Settings, new: Gpu) {
    let gpus = &mut settings.table.gpus;
    let Some(known) = gpus.iter_mut().find(|gpu| gpu.model == new.model && gpu.mps == new.mps)
    else {
        gpus.push(new);
        return;
    };
    known.entries.retain(|old| new.entries.iter().all(|entry| entry.processes != old.processes));
    known.entries.extend(new.entries);
}

/// The best numbers of copies of several rounds.
#[derive(Default)]
struct Best {
    rounds: u64,
    sum: u64,
}

impl Best {
    /// A round: the times by the number of host-staged copies.
    fn round(&mut self, times: &[u64]) {
        let best = times.iter().enumerate().min_by_key(|(_, ns)| **ns).map_or(0, |(at, _)| at);
        self.rounds += 1;
        self.sum += best as u64;
    }

    /// The mean, rounded.
    fn mean(&self) -> usize {
        let mean = (2 * self.sum + self.rounds) / (2 * self.rounds).max(1);
        usize::try_from(mean).unwrap_or(0)
    }
}

/// The middle one of some times; the least, of two.
fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(u64::MAX)
}

/// What all ranks of a job measure with.
struct Bench<'w> {
    world: &'w World,
    control: Communicator,
    layout: Layout,
    send: DeviceBuf,
    recv: DeviceBuf,
    /// By the number of host-staged copies.
    tries: Vec<Communicator>,
    /// The GPU and its service.
    model: String,
    mps: bool,
}

/// What a rank of such a job does.
pub(super) fn measure(
    worlds: Worlds<'_>,
    options: &Options,
    budget: f64,
    part: &Path,
) -> Result<ExitCode, Failure> {
    let builder = worlds.builder()?.tuning(Tuning::default()).coll_table(Table::default());
    let world = builder.init()?;
    let space = Space::Cuda { device: options.gpu };
    let most = SIZES.iter().copied().max().unwrap_or(0);
    let (send, recv) = (world.alloc_device(space, most)?, world.alloc_device(space, most)?);
    let device = send.device();
    let (model, mps) = (device.properties().name.clone(), !device.takes_turns());
    let processes = world.size() as usize;
    let (control, layout) = (world.comm().dup()?, f32::layout().clone());
    let (tries, name) = (Vec::new(), model.clone());
    let mut bench = Bench { world: &world, control, layout, send, recv, tries, model: name, mps };
    for staged in 0..processes {
        let comm = bench.comm([staged; 2])?;
        bench.tries.push(comm);
    }
    let mut entries = Vec::new();
    for bytes in SIZES {
        let seconds = Duration::from_secs_f64(budget / SIZES.len() as f64);
        let best = bench.rounds(bytes, seconds)?;
        for (step, staged) in [HyperQStep::Gather, HyperQStep::Scatter].into_iter().zip(best) {
            entries.push(Entry { step, processes, bytes, staged });
        }
    }
    if world.rank() == 0 {
        let mut settings = Settings::default();
        settings.table.gpus = vec![Gpu { model, mps, entries }];
        let text = coll::write(&[]) + &coll::write_hyperq(&settings);
        write_atomically(part, text.as_bytes())?;
    }
    let Bench { tries, send, recv, .. } = bench;
    for comm in tries {
        comm.free()?;
    }
    drop((send, recv));
    world.finalize()?;
    Ok(ExitCode::SUCCESS)
}

impl Bench<'_> {
    /// The best numbers of host-staged copies for a length, in the gather and in the scatter.
    fn rounds(&mut self, bytes: u64, time: Duration) -> Result<[usize; 2], Failure> {
        let mut best: [Best; 2] = Default::default();
        // By the number of host-staged copies: both steps.
        let mut whole: Vec<Vec<u64>> = vec![Vec::new(); self.tries.len()];
        let mut begin = Instant::now();
        for round in 0..*ROUNDS.end() {
            let mut times = [Vec::new(), Vec::new()];
            for (at, whole) in whole.iter_mut().enumerate() {
                let took = self.call(&self.tries[at].clone(), bytes)?;
                if round > 0 {
                    whole.push(took[0] + took[1]);
                }
                times.iter_mut().zip(took).for_each(|(times, ns)| times.push(ns));
            }
            // The first makes memory and mappings.
            if round == 0 {
                begin = Instant::now();
                continue;
            }
            best.iter_mut().zip(&times).for_each(|(best, times)| best.round(times));
            let mut over = [u8::from(round >= *ROUNDS.start() && begin.elapsed() > time)];
            self.control.bcast(&mut over, 0)?;
            if over[0] != 0 {
                break;
            }
        }
        let single = (0..whole.len()).min_by_key(|at| median(whole[*at].clone())).unwrap_or(0);
        // Rank 0 leads, and alone knows.
        let small = |number: usize| u32::try_from(number).unwrap_or(0);
        let [gather, scatter] = best.map(|best| small(best.mean()));
        let mut found = [gather, scatter, small(single)];
        self.control.bcast(&mut found[..], 0)?;
        let [gather, scatter, single] = found.map(|number| number as usize);
        self.quicker([[gather, scatter], [single; 2]], bytes)
    }

    /// Which of two pairs of numbers of host-staged copies is quicker; on rank 0.
    fn quicker(&mut self, pairs: [[usize; 2]; 2], bytes: u64) -> Result<[usize; 2], Failure> {
        if pairs[0] == pairs[1] {
            return Ok(pairs[0]);
        }
        let comms = [self.comm(pairs[0])?, self.comm(pairs[1])?];
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=COMPARED {
            for (comm, times) in comms.iter().zip(&mut times) {
                let took = self.call(comm, bytes)?;
                // The first makes memory and mappings.
                if round > 0 {
                    times.push(took[0] + took[1]);
                }
            }
        }
        for comm in comms {
            comm.free()?;
        }
        let [pair, single] = times.map(median);
        Ok(if pair <= single { pairs[0] } else { pairs[1] })
    }

    /// A communicator with these numbers of host-staged copies of the gather and of the scatter; all ranks call this.
    fn comm(&self, staged: [usize; 2]) -> Result<Communicator, Failure> {
        let processes = self.world.size() as usize;
        let entry = |(step, staged)| Entry { step, processes, bytes: 1, staged };
        let entries =
            [HyperQStep::Gather, HyperQStep::Scatter].into_iter().zip(staged).map(entry).collect();
        let mut hyperq = Settings { mode: Mode::Static, bytes_min: 0, ..Settings::default() };
        hyperq.table.gpus = vec![Gpu { model: self.model.clone(), mps: self.mps, entries }];
        let before = self.world.coll_table();
        self.world.set_coll_table(Table { hyperq, ..(*before).clone() });
        let made = self.world.comm().dup();
        self.world.set_coll_table((*before).clone());
        Ok(made?)
    }

    /// One call; what both steps took, which the leader knows.
    fn call(&mut self, comm: &Communicator, bytes: u64) -> Result<[u64; 2], Failure> {
        let Bench { world, control, layout, send, recv, .. } = self;
        let count = bytes / 4;
        control.barrier()?;
        let (from, into) = (send.view(0, layout, count)?, recv.view_mut(0, layout, count)?);
        comm.allreduce(from, into, ReduceOp::Sum)?;
        match comm.last_on_gpu() {
            Some(took) => Ok(took),
            None if world.rank() > 0 => Ok([0; 2]),
            None => Err(Failure::BadOption {
                option: "--hyperq",
                value: String::new(),
                why: "the processes cannot map each other's memory of this device".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_the_rounded_mean() {
        let mut best = Best::default();
        for times in [[5, 4, 9], [5, 4, 3], [9, 9, 1], [3, 4, 5]] {
            best.round(&times);
        }
        assert_eq!((best.sum, best.mean()), (5, 1));
        best.round(&[2, 2, 1]);
        best.round(&[2, 2, 1]);
        assert_eq!((best.sum, best.mean()), (9, 2), "one and a half");
        assert_eq!(Best::default().mean(), 0);
        assert_eq!(
            [median(vec![9, 1, 5]), median(vec![4, 2]), median(Vec::new())],
            [5, 2, u64::MAX]
        );
    }

    #[test]
    fn new_entries_take_the_place_of_their_like() {
        let entry =
            |processes, staged| Entry { step: HyperQStep::Gather, processes, bytes: 64, staged };
        let gpu = |mps, entries: &[Entry]| Gpu {
            model: "one".to_owned(),
            mps,
            entries: entries.to_vec(),
        };
        let mut settings = Settings::default();
        merge(&mut settings, gpu(true, &[entry(4, 1), entry(8, 2)]));
        merge(&mut settings, gpu(false, &[entry(4, 3)]));
        merge(&mut settings, gpu(true, &[entry(4, 0)]));
        let expected = [gpu(true, &[entry(8, 2), entry(4, 0)]), gpu(false, &[entry(4, 3)])];
        assert_eq!(settings.table.gpus, expected);
    }
}
