//! The measuring loop for other programs: what `gapless pingpong` does, with messages and processes
//! of the caller's.

use super::bench::{RunSpec, Subject};
use super::rank::Progress;
use super::setting::Setting;
use super::show::Shown;
use super::sizes::Sizes;
use super::{Pingpong, rank};
use crate::Worlds;
use crate::failure::Failure;
use crate::memory::{Budget, Devices, Ends, Source};
use clap::{Args, Command, FromArgMatches};
use gapless::World;
use gapless_layouts::Case;
use gapless_report::Row;

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measuring {
    /// Whether messages lie in memory from [`World::alloc`], not in ordinary memory.
    pub allocated: bool,
    /// Seconds for each case; more than 0.
    pub seconds: f64,
    /// Round trips for each case, instead of as many as the time allows.
    pub iterations: Option<u32>,
    /// What the messages' contents and the buffers' order derive from.
    pub seed: u64,
}

/// Why there are no figures: the other process is gone, memory does not suffice, or the options
/// make no sense.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MeasureError(#[from] Failure);

/// Sends every case back and forth between the two processes of `world`, which both call this with
/// equal arguments. Rank 0 gets a row for each case: one-way times over rotating and resident
/// buffers, a contiguous message and `memcpy` of the same payload beside them, and whether every
/// byte arrived. Rank 1 gets none.
///
/// # Errors
/// [`MeasureError`]; the other process then waits in vain until this one has left. If any case is too large for this
/// machine, nothing is measured.
pub fn figures(
    world: &World,
    cases: &[Case],
    measuring: &Measuring,
) -> Result<Vec<Row>, MeasureError> {
    if world.size() != 2 {
        return Err(Failure::NotTwo { ranks: world.size() }.into());
    }
    let options = measuring.options()?;
    let mut devices = Devices::default();
    if world.rank() != 0 {
        rank::echo(&options, cases, world, &mut devices)?;
        return Ok(Vec::new());
    }
    let sizes = Sizes::for_all(cases, options.space, &mut devices, options.buffers)?;
    let to = (world, &mut devices);
    let mut rows = Vec::new();
    rank::measure(&options, cases, &|_| true, &sizes, to, &mut |at| {
        if let Progress::After(shown) = at {
            rows.push(shown.row(false));
        }
        Ok(())
    })?;
    Ok(rows)
}

impl Measuring {
    /// As a user would have typed them.
    fn options(&self) -> Result<Pingpong, Failure> {
        let memory = if self.allocated { "alloc" } else { "heap" };
        let mut words = vec!["pingpong".to_owned(), format!("--memory={memory}")];
        words.push(format!("--time={}", self.seconds));
        words.push(format!("--seed={}", self.seed));
        words.extend(self.iterations.map(|count| format!("--iterations={count}")));
        let matches = Pingpong::augment_args(Command::new("pingpong")).try_get_matches_from(words);
        let options = matches.and_then(|matches| Pingpong::from_arg_matches(&matches));
        options.ok().filter(|options| options.time > 0.0).ok_or_else(|| Failure::BadOption {
            option: "measuring",
            value: format!("{self:?}"),
            why: "needs seconds above 0 and at least one iteration".to_owned(),
        })
    }
}

/// A message to be measured between two processes: what, where, how.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Both layouts.
    pub case: Case,
    /// Where it lies at each end.
    pub ends: Ends,
    /// Where its memory comes from.
    pub source: Source,
    /// How it is carried.
    pub setting: Setting,
    /// Whether copies to and from page-locked memory are measured beside it, too.
    pub pinned: bool,
    /// Seconds of messages, beside a few to begin with; more than 0.
    pub seconds: f64,
}

/// How far a list of trials has come.
#[derive(Debug)]
pub enum TrialStep {
    /// The trial with this index comes next, or, at rank 1, is about to be answered.
    Before(usize),
    /// Its figures; at rank 0 alone.
    Row(usize, Box<Row>),
}

/// One of two processes whose messages lie in the memory of devices.
pub struct Party {
    world: World,
    devices: Devices,
}

impl std::fmt::Debug for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Party").field("world", &self.world).finish_non_exhaustive()
    }
}

impl Party {
    /// Joins the other process, with an engine for the device of each of `ends` that is this process's;
    /// rank 0's kernels have at most the blocks of `budget`.
    ///
    /// # Errors
    /// A device that is not there, a job that cannot be joined or is not one of two.
    pub fn join(ends: &[Ends], budget: Budget) -> Result<Party, MeasureError> {
        Party::join_by(None, ends, budget)
    }

    /// The same, by the transport of this name alone ([`only`](gapless::Builder::only)).
    ///
    /// # Errors
    /// As for [`join`](Party::join); the transport does not reach the other process.
    pub fn join_by(
        only: Option<&str>,
        ends: &[Ends],
        budget: Budget,
    ) -> Result<Party, MeasureError> {
        let builder = || match only {
            Some(name) => World::builder().only([name]),
            None => World::builder(),
        };
        let (world, devices) = rank::join(Worlds(&|| Ok(builder())), ends, budget)?;
        if world.size() != 2 {
            return Err(Failure::NotTwo { ranks: world.size() }.into());
        }
        Ok(Party { world, devices })
    }

    /// Which of the two this one is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.world.rank()
    }

    /// Measures, in order; both processes call this with equal arguments. `each` hears how it goes.
    ///
    /// # Errors
    /// [`MeasureError`] at the first trial that fails: processes that disagree on how far they are
    /// cannot go on. Start new ones for what is left.
    pub fn measure(
        &mut self,
        trials: &[Trial],
        seed: u64,
        each: &mut dyn FnMut(TrialStep),
    ) -> Result<(), MeasureError> {
        let mut first = 0;
        let together = |one: &Trial, next: &Trial| {
            (one.ends, one.source) == (next.ends, next.source) && !one.source.is_to_size()
        };
        for group in trials.chunk_by(together) {
            self.group(group, seed, first, each)?;
            first += group.len();
        }
        Ok(())
    }

    /// Leaves in good order.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn leave(self) -> Result<(), MeasureError> {
        Ok(self.world.finalize().map_err(Failure::from)?)
    }

    /// Trials that lie in the same places.
    fn group(
        &mut self,
        trials: &[Trial],
        seed: u64,
        first: usize,
        each: &mut dyn FnMut(TrialStep),
    ) -> Result<(), Failure> {
        let cases: Vec<Case> = trials.iter().map(|trial| trial.case.clone()).collect();
        let settings: Vec<Setting> = trials.iter().map(|trial| trial.setting).collect();
        let source = trials[0].source;
        let spec = RunSpec {
            cases: &cases,
            settings: &settings,
            ends: trials[0].ends,
            source,
            arena_bytes: 0,
            wanted_bytes: 0,
            seed,
        };
        if self.world.rank() != 0 {
            let before = &mut |index| each(TrialStep::Before(first + index));
            return rank::follow(&self.world, &mut self.devices, spec, before);
        }
        let sizes = if source.is_to_size() {
            Sizes::to_size(&cases[0])
        } else {
            Sizes::for_all(&cases, spec.ends, &mut self.devices, ARENA_BYTES_MAX)?
        };
        let mut bench = rank::lead(&self.world, &mut self.devices, spec, &sizes)?;
        let launch = bench.launch_and_wait()?;
        let mut known: Vec<((u64, bool), Vec<super::bench::Plain>)> = Vec::new();
        for (index, trial) in trials.iter().enumerate() {
            each(TrialStep::Before(first + index));
            let payload = trial.case.payload_bytes;
            let prepared = bench.prepare(Subject::Case(index))?;
            let (protocols, verdict) = bench.verify(&prepared)?;
            let before = bench.counts(protocols)?;
            let rotating = bench.time(&prepared, false, trial.seconds, None)?;
            let counts = [before, bench.counts(protocols)?];
            let key = (payload, trial.pinned);
            let plain = match known.iter().find(|(of, _)| *of == key) {
                Some((_, plain)) => plain.clone(),
                None => {
                    let contiguous = bench.prepare(Subject::Contiguous(payload))?;
                    let plain = bench.plain(&contiguous, trial.pinned, trial.seconds / 2.0)?;
                    known.push((key, plain.clone()));
                    plain
                }
            };
            let shown = Shown {
                name: trial.case.name.clone(),
                source,
                ends: trial.ends,
                protocols,
                payload_bytes: payload,
                blocks: prepared.send.layout.blocks_of(prepared.send.count).unwrap_or(u64::MAX),
                rotating,
                resident: None,
                plain,
                contiguous: None,
                verdict,
                counts,
                rotation_bytes: prepared.send.places.reached_bytes()
                    + prepared.recv.places.reached_bytes(),
            };
            let mut row = shown.row(false);
            if let Some(launch) = launch {
                row = row.with("launch_and_wait_seconds", launch.median);
            }
            each(TrialStep::Row(first + index, Box::new(row)));
        }
        Ok(bench.dismiss()?)
    }
}

/// Arenas are so long at most, unless a message needs more.
const ARENA_BYTES_MAX: u64 = 1 << 30;
