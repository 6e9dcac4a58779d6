//! The measuring loop for other programs: what `gapless pingpong` does, with messages and processes
//! of the caller's.

use super::bench::RunSpec;
use super::pass::{Effort, Pass};
use super::rank;
use super::setting::Setting;
use super::sizes::Sizes;
use crate::Worlds;
use crate::failure::Failure;
use crate::memory::{Budget, Devices, Ends, Source};
use gapless::{Builder, World};
use gapless_layouts::Case;
use gapless_report::Row;

/// Why there are no figures: the other process is gone, or memory does not suffice.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MeasureError(#[from] Failure);

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
    /// What is measured of it.
    pub effort: Effort,
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
    arena_bytes_max: u64,
}

impl std::fmt::Debug for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Party").field("world", &self.world).finish_non_exhaustive()
    }
}

impl Party {
    /// Joins the other process in the world of `builder`, with an engine for the device of each of `ends` that is this
    /// process's; rank 0's kernels have at most the blocks of `budget`.
    ///
    /// # Errors
    /// A device that is not there, a job that cannot be joined or is not one of two.
    pub fn join(
        builder: &dyn Fn() -> Builder,
        ends: &[Ends],
        budget: Budget,
    ) -> Result<Party, MeasureError> {
        let (world, devices) = rank::join(Worlds(&|| Ok(builder())), ends, budget)?;
        if world.size() != 2 {
            return Err(Failure::NotTwo { ranks: world.size() }.into());
        }
        Ok(Party { world, devices, arena_bytes_max: ARENA_BYTES_MAX })
    }

    /// With so many bytes for each side's buffers at most, unless a message needs more. Whoever asks whether a measurement
    /// works, and not for its result, needs few.
    #[must_use]
    pub fn with_buffers(self, bytes: u64) -> Party {
        Party { arena_bytes_max: bytes, ..self }
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
            Sizes::for_all(&cases, spec.ends, &mut self.devices, self.arena_bytes_max)?
        };
        let mut pass = Pass::lead(&self.world, &mut self.devices, spec, &sizes)?;
        let launch = pass.launch_and_wait()?;
        for (index, trial) in trials.iter().enumerate() {
            each(TrialStep::Before(first + index));
            let mut row = pass.measure(index, trial.effort)?.row(false);
            if let Some(launch) = launch {
                row = row.with("launch_and_wait_seconds", launch.median);
            }
            each(TrialStep::Row(first + index, Box::new(row)));
        }
        pass.dismiss()
    }
}

/// Arenas are so long at most, unless a message needs more.
const ARENA_BYTES_MAX: u64 = 1 << 30;
