//! The measuring loop for other programs: what `gapless pingpong` does, with messages and a world
//! of the caller's.

use super::{Pingpong, rank};
use crate::cli::failure::Failure;
use crate::world::World;
use clap::{Args, Command, FromArgMatches};
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
/// [`MeasureError`]; the other process then waits in vain until this one has left.
pub fn figures(
    world: &World,
    cases: &[Case],
    measuring: &Measuring,
) -> Result<Vec<Row>, MeasureError> {
    if world.size() != 2 {
        return Err(Failure::NotTwo { ranks: world.size() }.into());
    }
    let options = measuring.options()?;
    if world.rank() != 0 {
        rank::echo(&options, cases, world)?;
        return Ok(Vec::new());
    }
    let outcome = rank::measure(&options, cases, world)?;
    Ok(outcome.shown.iter().map(|shown| shown.row(false)).collect())
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
