//! `deaths`: a rank is killed (SIGKILL) at a random moment while all make all-reduces without a pause. How long it
//! takes until each of the others has an error, has revoked the communicator, has shrunk it, and has the next right
//! result.
//!
//! Each kill has a job of its own, without a launcher, which would end the others ([`killed`](crate::killed)).
//! Collectives are those of a stream, one process a GPU or several under the Multi-Process Service; or with `--host`
//! ordinary ones in memory of the host.

use std::time::{Duration, Instant};

use gapless::{Communicator, CudaDriver, ReduceOp, Space, World};
use gapless_mem::Device;
use gapless_report::{Absent, Mark, Row, Time};
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings, summary};
use crate::gpu::survivor::OnStream;
use crate::gpu::{copied, sharing, space};
use crate::killed::{Mortals, PATIENCE, Seat, now};
use crate::p2p::mps::Service;
use crate::p2p::process::Watchdog;
use crate::processes::{Processes, RankOf};
use crate::random::Random;

/// The experiment.
pub struct Deaths;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Processes, each with a GPU, or in turn on those that there are under the Multi-Process Service
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    /// How many jobs lose a rank, one after the other
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Bytes of an all-reduce
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20,
        value_parser = clap::value_parser!(u64).range(4..=1 << 30))]
    bytes: u64,
    /// Ordinary collectives in memory of the host
    #[arg(long)]
    host: bool,
    /// Start a Multi-Process Service of our own where processes must share GPUs and none runs
    #[arg(long)]
    start_mps: bool,
}

/// A kill comes so many microseconds after all have begun, at most.
const LATEST: u64 = 50_000;
/// Milliseconds until all go on, at most.
const ASKED: f64 = 100.0;
/// What is timed, from the kill on.
const STEPS: [&str; 5] = ["error", "revoke", "shrink", NEW_STREAM, "next result"];
/// On a stream alone.
const NEW_STREAM: &str = "new StreamComm";
/// When the system says that the process has ended.
const ITS_END: &str = "its end";
const GOING: &str = "going";

/// What a survivor leaves: when each step had ended, and what the error said.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    steps: [u64; 5],
    lost: Option<u32>,
    error: String,
}

/// How collectives are made.
trait Calls {
    fn call(&mut self) -> Result<(), Failure>;
    fn result(&self) -> Result<Vec<u8>, Failure>;
}

impl Calls for OnStream<'_> {
    fn call(&mut self) -> Result<(), Failure> {
        OnStream::call(self)
    }

    fn result(&self) -> Result<Vec<u8>, Failure> {
        OnStream::result(self)
    }
}

/// In memory of the host.
struct InHost<'o> {
    comm: Communicator,
    ours: &'o [f32],
    sums: Vec<f32>,
}

impl Calls for InHost<'_> {
    fn call(&mut self) -> Result<(), Failure> {
        Ok(self.comm.allreduce(self.ours, &mut self.sums[..], ReduceOp::Sum)?)
    }

    fn result(&self) -> Result<Vec<u8>, Failure> {
        Ok(as_bytes(&self.sums))
    }
}

fn as_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_ne_bytes()).collect()
}

/// What each of so many ranks gives, all together.
fn floats(bytes: u64, ranks: u32) -> Vec<f32> {
    let ranks = u16::try_from(ranks).map_or(0.0, f32::from);
    let of = |at: u64| f32::from(u16::try_from(at % 1000).unwrap_or(0) + 1) * ranks;
    (0..bytes / 4).map(of).collect()
}

impl Experiment for Deaths {
    type Options = Options;

    const NAME: &'static str = "deaths";
    const ABOUT: &'static str = "a rank is killed in mid-collective: until the others know, shrink, and have the next result";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let service = match options.host {
            true => None,
            false => Service::for_ranks(options.ranks, options.start_mps)?,
        };
        let environment = service.as_ref().map(Service::environment).unwrap_or_default();
        let processes = Processes { environment, ..Processes::new(Self::NAME, options.ranks) };
        let kills = if common.quick { options.kills.min(2) } else { options.kills };
        let (place, how) = match options.host {
            true => ("host".to_owned(), "in memory of the host"),
            false => (space(options.ranks), "on a stream"),
        };
        let ranks = if options.host { format!("{} ranks", options.ranks) } else { sharing(options.ranks) };
        let case = format!("one of {ranks} is killed");
        let mut findings = Findings::default();
        let mut all = Vec::new();
        for number in 0..kills {
            let seed = common.seed.wrapping_add(number.into());
            match kill(&processes, seed) {
                Ok(one) => all.push(one),
                Err(failure) => {
                    let (op, why) = (format!("seed {seed}"), failure.to_string());
                    findings.absent.push(Absent { case: case.clone(), op, why, failed: true });
                }
            }
        }
        if all.is_empty() {
            return Ok(findings);
        }
        let ends = summary(ITS_END, &all.iter().map(|one| one.ended).collect::<Vec<_>>())?;
        for (at, step) in STEPS.into_iter().enumerate().filter(|(_, step)| !options.host || *step != NEW_STREAM) {
            let slowest = |one: &Kill| one.steps.iter().map(|steps| steps[at]).fold(0.0, f64::max);
            let took = summary(step, &all.iter().map(slowest).collect::<Vec<_>>())?;
            let each: Vec<f64> = all.iter().flat_map(|one| one.steps.iter().map(move |steps| steps[at])).collect();
            let each = summary(step, &each)?;
            let mut row = Row::new(&*case, step, &*place, how, options.bytes, took).verified(true);
            row = row.against(ITS_END, ends).with("kills", all.len()).with("seed", common.seed);
            row = row.with("each_survivor_median_seconds", each.median).with("first_survivor_seconds", each.min);
            if step == "next result" && !common.quick {
                row = row.mark(Mark::at_most("ms at worst", ASKED, took.max * 1e3));
            }
            findings.notes += &format!(
                "{step}: median {}, at worst {}; of each survivor {}\n",
                Time(took.median), Time(took.max), Time(each.median),
            );
            findings.rows.push(row);
        }
        let unnamed = all.iter().map(|one| one.unnamed).sum::<usize>();
        findings.notes += &format!(
            "time: from SIGKILL until the last survivor was so far, {} kills, --seed {}; ÷: by when the system said that \
             the process had ended ({}, at worst {})\n{unnamed} of {} errors did not name the dead: another's failure, or \
             that the communicator was revoked, was known first\n",
            all.len(), common.seed, Time(ends.median), Time(ends.max), all.len() * (options.ranks as usize - 1),
        );
        Ok(findings)
    }

    fn rank(options: &Options, _: &Common, rank: &RankOf) -> Result<(), Failure> {
        let seat: Seat = rank.part()?;
        // Whoever has started it may be told to end.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let _watchdog = Watchdog::start(2 * PATIENCE, Instant::now() + 2 * PATIENCE);
        let world = World::builder().wireup(seat.meeting()).init()?;
        let (bytes, ours) = (options.bytes / 4 * 4, floats(options.bytes, 1));
        let found = if options.host {
            let calls = |comm: &Communicator| InHost { comm: comm.clone(), ours: &ours, sums: vec![0.0; ours.len()] };
            survive(&world, &seat, bytes, |comm| Ok(calls(comm)))?
        } else {
            let driver = CudaDriver::load()?;
            let device = driver.device(world.rank() % driver.devices().max(1))?;
            let (stream, space): (_, Space) = (device.stream()?, device.space());
            let mut memory = [world.alloc_device(space, bytes)?, world.alloc_device(space, bytes)?];
            copied::down(&mut memory[0], &as_bytes(&ours))?;
            survive(&world, &seat, bytes, |comm| OnStream::new(comm, &stream, &memory))?
        };
        rank.leave(&found)?;
        // That somebody died is worth an error.
        let _ = world.finalize();
        Ok(())
    }
}

/// One kill: seconds from it until the system said that the process had ended, and until each survivor's steps had.
struct Kill {
    ended: f64,
    steps: Vec<[f64; 5]>,
    /// Errors that named nobody.
    unnamed: usize,
}

fn kill(processes: &Processes<'_>, seed: u64) -> Result<Kill, Failure> {
    let mut random = Random::new(seed);
    let victim = u32::try_from(random.below(processes.ranks.into())).unwrap_or(0);
    let moment = Duration::from_micros(random.below(LATEST));
    let mut mortals = Mortals::start(processes)?;
    mortals.until_all_say(GOING)?;
    std::thread::sleep(moment);
    let (killed, ended) = mortals.kill(victim)?;
    let found: Vec<Found> = mortals.found(victim)?;
    if let Some(early) = found.iter().find(|one| one.steps[0] < killed) {
        return Err(Failure::Job(format!("an error before rank {victim} was killed: {}", early.error)));
    }
    let since = |then: u64| Duration::from_nanos(then.saturating_sub(killed)).as_secs_f64();
    if let Some(other) = found.iter().find(|one| one.lost.is_some_and(|lost| lost != victim)) {
        return Err(Failure::Job(format!("rank {victim} was killed, and this was said: {}", other.error)));
    }
    let unnamed = found.iter().filter(|one| one.lost.is_none()).count();
    Ok(Kill { ended: since(ended), steps: found.iter().map(|one| one.steps.map(since)).collect(), unnamed })
}

/// Calls until one fails, and goes on with those that are left.
fn survive<C: Calls>(
    world: &World,
    seat: &Seat,
    bytes: u64,
    make: impl Fn(&Communicator) -> Result<C, Failure>,
) -> Result<Found, Failure> {
    let comm = world.comm().dup()?;
    let right = |calls: &C, ranks| match calls.result()? == as_bytes(&floats(bytes, ranks)) {
        true => Ok(()),
        false => Err(Failure::Job(format!("the sums of {ranks} ranks are wrong"))),
    };
    let mut calls = make(&comm)?;
    calls.call()?;
    right(&calls, comm.size())?;
    comm.barrier()?;
    seat.say(GOING)?;
    let failure = loop {
        if let Err(failure) = calls.call() {
            break failure;
        }
    };
    let known = now();
    let lost = match &failure {
        // Of a communicator of all ranks.
        Failure::World(gapless::Error::Stream(error)) => error.lost_rank(),
        Failure::World(error) => error.lost_rank(),
        _ => None,
    };
    comm.revoke()?;
    let revoked = now();
    let rest = comm.shrink()?;
    let shrunk = now();
    drop(calls);
    let mut calls = make(&rest)?;
    let made = now();
    calls.call()?;
    let done = now();
    right(&calls, rest.size())?;
    if rest.size() + 1 != comm.size() {
        return Err(Failure::Job(format!("{} of {} ranks are left", rest.size(), comm.size())));
    }
    // Nobody leaves whom others need.
    rest.barrier()?;
    Ok(Found { steps: [known, revoked, shrunk, made, done], lost, error: failure.to_string() })
}
