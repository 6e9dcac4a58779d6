//! Random programs of collectives: random operations by any algorithm that does them, of random lengths, roots,
//! layouts and communicators, several in flight, each rank at its own pace, on up to hundreds of ranks. They are the
//! real executor over the real `pml`, on the rails of [`wire`](crate::wire).
//!
//! - `program.rs` draws a program from a seed; `game.rs` is one collective of one group, with what must come of it;
//!   `world.rs` plays; then `survive.rs` has those who are left, if ranks have died, agree who is left, while others
//!   die.
//!
//! # What is held to be true
//!
//! Without deaths every collective ends well at every rank. With deaths each one ends at every survivor, well or with an
//! error that blames a dead rank. Whoever ends well has the result that the definition of the operation gives. Nobody
//! writes what was sent, nor gaps of buffers. All that in a bounded number of turns; and in the end no message of a
//! survivor is left that no collective has received. All survivors find the same ranks left, all living ones among them,
//! and get a communicator that works. If a rank has revoked the world, all survivors have heard of it.
//!
//! # What it has found
//!
//! A collective whose last messages had all come before it began, and which waited for something else to come (1235).

mod game;
mod program;
mod survive;
mod world;

use crate::hunt::{Report, caught, shrink_with};
use crate::journal::Failure;
use crate::plan::Keep;
use crate::story::Story;
use gapless_coll::Operation;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{AddAssign, Range};
use world::CollWorld;

/// What worlds of collectives have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollCoverage {
    /// Worlds.
    pub worlds: u64,
    /// … of more than a hundred ranks.
    pub large_worlds: u64,
    /// Ranks.
    pub ranks: u64,
    /// Ranks that died.
    pub deaths: u64,
    /// Turns that ranks took.
    pub turns: u64,
    /// Parts of ranks in collectives that ended well, by operation.
    pub well: BTreeMap<Operation, u64>,
    /// … that ended with an error.
    pub failed: BTreeMap<Operation, u64>,
}

impl AddAssign for CollCoverage {
    fn add_assign(&mut self, other: CollCoverage) {
        self.worlds += other.worlds;
        self.large_worlds += other.large_worlds;
        self.ranks += other.ranks;
        self.deaths += other.deaths;
        self.turns += other.turns;
        for (operation, count) in other.well {
            *self.well.entry(operation).or_default() += count;
        }
        for (operation, count) in other.failed {
            *self.failed.entry(operation).or_default() += count;
        }
    }
}

impl fmt::Display for CollCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CollCoverage { worlds, large_worlds, ranks, deaths, turns, well, failed } = self;
        writeln!(f, "{worlds} worlds, {large_worlds} of them with more than a hundred ranks")?;
        writeln!(f, "{ranks} ranks, {deaths} died; {turns} turns")?;
        for operation in Operation::ALL {
            let count = |of: &BTreeMap<Operation, u64>| of.get(&operation).copied().unwrap_or(0);
            let (well, failed) = (count(well), count(failed));
            writeln!(f, "{operation:>22}: {well} ended well, {failed} with an error")?;
        }
        Ok(())
    }
}

impl CollCoverage {
    fn of(world: &CollWorld) -> CollCoverage {
        let mut seen = CollCoverage {
            worlds: 1,
            large_worlds: u64::from(world.size() > 100),
            ranks: world.size().into(),
            deaths: world.deaths(),
            turns: world.turns,
            ..CollCoverage::default()
        };
        for game in &world.games {
            for result in game.parts.iter().filter_map(|part| part.result.as_ref()) {
                let counts = if result.is_ok() { &mut seen.well } else { &mut seen.failed };
                *counts.entry(game.operation).or_default() += 1;
            }
        }
        seen
    }
}

/// Has all ranks of a world shrink it, of which those in `deaths` die when they have sent so many messages; if `agrees`,
/// they agree on flags at the same time. If `revoker` is given, that rank revokes the world first, while the others wait
/// for messages that do not come. Gives how many have died.
///
/// # Errors
/// What went wrong.
pub fn play_survivors(
    seed: u64,
    size: u32,
    deaths: &[(u32, u64)],
    (agrees, revoker): (bool, Option<u32>),
) -> Result<u64, Failure> {
    let mut world = None;
    let outcome = caught(|| {
        let world = world.insert(CollWorld::of_survivors(seed, size, deaths));
        let survived = match revoker {
            None => world.survive(agrees),
            Some(by) => world.survive_revoked(agrees, by),
        };
        survived.map(|()| world.deaths())
    });
    if outcome.is_err() {
        // As in `attempt`.
        std::mem::forget(world);
    }
    outcome
}

fn attempt(seed: u64, keep: &Keep, story: Story) -> (Result<CollCoverage, Failure>, Story) {
    let mut world = None;
    let outcome = caught(|| {
        let world = world.insert(CollWorld::new(seed, keep, story));
        world.play().map(|()| CollCoverage::of(world))
    });
    let story = world.as_ref().map(CollWorld::story).unwrap_or_default();
    if outcome.is_err() {
        // What panicked is not asked to tidy up, and executors in flight may be left.
        std::mem::forget(world);
    }
    (outcome, story)
}

/// Plays the world of collectives of a seed, or what is kept of it.
///
/// # Errors
/// What went wrong.
pub fn play_collectives(seed: u64, keep: &Keep) -> Result<CollCoverage, Failure> {
    attempt(seed, keep, Story::default()).0
}

/// As [`play_collectives`], and gives the story.
pub fn tell_collectives(seed: u64, keep: &Keep) -> (Result<CollCoverage, Failure>, Story) {
    attempt(seed, keep, Story::told())
}

/// Plays all worlds of collectives of a range of seeds.
///
/// # Errors
/// The first that fails, cut down.
pub fn hunt_collectives(seeds: Range<u64>) -> Result<CollCoverage, Box<Report>> {
    let mut seen = CollCoverage::default();
    for seed in seeds {
        match play_collectives(seed, &Keep::default()) {
            Ok(coverage) => seen += coverage,
            Err(failure) => return Err(Box::new(report(seed, failure))),
        }
    }
    Ok(seen)
}

fn report(seed: u64, whole: Failure) -> Report {
    let parts = || CollWorld::new(seed, &Keep::default(), Story::default()).parts();
    let keep = shrink_with(&whole, parts, |keep| play_collectives(seed, keep).is_err());
    let (outcome, story) = tell_collectives(seed, &keep);
    let failure = outcome.err().unwrap_or_else(|| whole.clone());
    let again = format!("cargo run -p gapless-sim -- --collectives {seed} {keep}");
    Report { seed, keep, whole, failure, story, again }
}
