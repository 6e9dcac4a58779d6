//! Many seeds, and what to do about one that fails: cut the world down as long as it still fails, and
//! tell its story.

use crate::coverage::Coverage;
use crate::journal::Failure;
use crate::plan::Keep;
use crate::story::Story;
use crate::world::World;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Worlds that are played to make a failing one smaller.
const ATTEMPTS_MAX: u32 = 1_500;
/// Lines of a story that are printed.
const LINES_MAX: usize = 120;

/// A seed that fails, as small as it could be made.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What of its world is played.
    pub keep: Keep,
    /// What went wrong in the whole world.
    pub whole: Failure,
    /// What goes wrong in what is left of it.
    pub failure: Failure,
    /// What happens in what is left of it.
    pub story: Story,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, keep, whole, failure, story } = self;
        writeln!(f, "seed {seed}: {}", whole.what)?;
        if failure.what != whole.what {
            writeln!(f, "cut down: {}", failure.what)?;
        }
        f.write_str(&story.about(&failure.ranks, LINES_MAX))?;
        writeln!(
            f,
            "again: GAPLESS_SEED={seed} GAPLESS_SIM_KEEP={keep} cargo test -p gapless-sim --test seeds -- --nocapture"
        )
    }
}

/// Plays a world; a panic is a failure, too.
fn attempt(seed: u64, keep: &Keep, story: Story) -> (Result<Coverage, Failure>, Story) {
    let mut world = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(seed, keep, story));
        world.play().map(|received| Coverage::of(world, received))
    }));
    let story = world.as_ref().map(World::story).unwrap_or_default();
    if outcome.is_err() {
        // What panicked is not asked to tidy up.
        std::mem::forget(world);
    }
    let outcome = outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        Err(Failure::new(format!("panic: {}", said.unwrap_or_default()), &[]))
    });
    (outcome, story)
}

/// Plays the world of a seed, or what is kept of it.
///
/// # Errors
/// What went wrong.
pub fn play(seed: u64, keep: &Keep) -> Result<Coverage, Failure> {
    attempt(seed, keep, Story::default()).0
}

/// As [`play`], and gives the story.
pub fn tell(seed: u64, keep: &Keep) -> (Result<Coverage, Failure>, Story) {
    attempt(seed, keep, Story::told())
}

/// Plays all worlds of a range of seeds.
///
/// # Errors
/// The first that fails, cut down.
pub fn hunt(seeds: Range<u64>) -> Result<Coverage, Box<Report>> {
    let mut seen = Coverage::default();
    for seed in seeds {
        match play(seed, &Keep::default()) {
            Ok(coverage) => seen += coverage,
            Err(failure) => return Err(Box::new(report(seed, failure))),
        }
    }
    Ok(seen)
}

/// Cuts a failing world down and tells what is left of it.
#[must_use]
pub fn report(seed: u64, whole: Failure) -> Report {
    let keep =
        if whole.what.starts_with("panic") { quietly(|| shrink(seed)) } else { shrink(seed) };
    let (outcome, story) = tell(seed, &keep);
    let failure = outcome.err().unwrap_or_else(|| whole.clone());
    Report { seed, keep, whole, failure, story }
}

/// Without the message that every panic prints; hundreds of them come while a world is cut down.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let made = what();
    std::panic::set_hook(hook);
    made
}

/// The smallest part of a failing world that was found to fail.
#[must_use]
pub fn shrink(seed: u64) -> Keep {
    let (actions, faults, size) = World::new(seed, &Keep::default(), Story::default()).parts();
    let mut keep = Keep { actions: Some(actions), faults: Some(faults), size: Some(size) };
    let mut attempts = 0;
    let mut fails = |keep: &Keep| {
        attempts += 1;
        attempts <= ATTEMPTS_MAX && play(seed, keep).is_err()
    };
    if !fails(&keep) {
        return Keep::default();
    }
    loop {
        let before = keep.clone();
        let faults = keep.faults.clone().unwrap_or_default();
        for fault in faults {
            let mut less = keep.clone();
            less.faults.iter_mut().for_each(|kept| kept.retain(|one| *one != fault));
            if fails(&less) {
                keep = less;
            }
        }
        for size in 1..keep.size.unwrap_or(1) {
            let less = Keep { size: Some(size), ..keep.clone() };
            // Small worlds first, then only those a little smaller.
            if (size <= 6 || size + 2 >= keep.size.unwrap_or(1)) && fails(&less) {
                keep = less;
                break;
            }
        }
        let mut chunk = keep.actions.as_ref().map_or(0, Vec::len).div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            while at < keep.actions.as_ref().map_or(0, Vec::len) {
                let mut less = keep.clone();
                if let Some(kept) = &mut less.actions {
                    let end = (at + chunk).min(kept.len());
                    kept.drain(at..end);
                }
                if fails(&less) {
                    keep = less;
                } else {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        if keep == before {
            return keep;
        }
    }
}
