//! Many seeds, and what to do about one that fails: cut the world down as long as it still fails, and
//! tell its story.

use crate::coverage::Coverage;
use crate::journal::Failure;
use crate::plan::Keep;
use crate::story::Story;
use crate::tap::Tap;
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
    /// The command that plays it again.
    pub again: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, whole, failure, story, again, .. } = self;
        writeln!(f, "seed {seed}: {}", whole.what)?;
        if failure.what != whole.what {
            writeln!(f, "cut down: {}", failure.what)?;
        }
        f.write_str(&story.about(&failure.ranks, LINES_MAX))?;
        writeln!(f, "again: {again}")
    }
}

/// Plays a world; a panic is a failure, too.
fn attempt(
    seed: u64,
    keep: &Keep,
    (story, tap): (Story, Option<Tap>),
) -> (Result<Coverage, Failure>, (Story, Option<Tap>)) {
    let mut world = None;
    let outcome = caught(|| {
        let world = world.insert(World::new(seed, keep, story));
        world.listen(tap);
        world.play().map(|received| Coverage::of(world, received))
    });
    let heard = world.as_ref().map(|world| (world.story(), world.tap())).unwrap_or_default();
    if outcome.as_ref().is_err_and(Failure::is_panic) {
        // What panicked is not asked to tidy up.
        std::mem::forget(world);
    }
    (outcome, heard)
}

/// What a world gives; a panic is a failure.
pub(crate) fn caught<T>(play: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        Err(Failure::of_panic(&said.unwrap_or_default()))
    })
}

/// Plays the world of a seed, or what is kept of it.
///
/// # Errors
/// What went wrong.
pub fn play(seed: u64, keep: &Keep) -> Result<Coverage, Failure> {
    attempt(seed, keep, (Story::default(), None)).0
}

/// As [`play`], and gives the story.
pub fn tell(seed: u64, keep: &Keep) -> (Result<Coverage, Failure>, Story) {
    let (outcome, (story, _)) = attempt(seed, keep, (Story::told(), None));
    (outcome, story)
}

/// As [`play`] with the whole world, and gives what `tap` has heard.
pub fn listen(seed: u64, tap: Tap) -> (Result<Coverage, Failure>, Tap) {
    let (outcome, (_, tap)) = attempt(seed, &Keep::default(), (Story::default(), Some(tap)));
    (outcome, tap.unwrap_or_default())
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
    let parts = || World::new(seed, &Keep::default(), Story::default()).parts();
    let keep = shrink_with(&whole, parts, |keep| play(seed, keep).is_err());
    let (outcome, story) = tell(seed, &keep);
    let failure = outcome.err().unwrap_or_else(|| whole.clone());
    let again = format!(
        "GAPLESS_SEED={seed} GAPLESS_SIM_KEEP={keep} cargo test -p gapless-sim --test all seeds:: -- --nocapture"
    );
    Report { seed, keep, whole, failure, story, again }
}

/// Without the message that every panic prints; hundreds of them come while a world is cut down.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let made = what();
    std::panic::set_hook(hook);
    made
}

/// The smallest part of a failing world that was found to fail: `parts` gives its actions and faults, by number, and
/// its size.
pub(crate) fn shrink_with(
    whole: &Failure,
    parts: impl FnOnce() -> (Vec<u32>, Vec<u32>, u32),
    mut fails: impl FnMut(&Keep) -> bool,
) -> Keep {
    let find = || {
        let (actions, faults, size) = parts();
        let all = Keep { actions: Some(actions), faults: Some(faults), size: Some(size) };
        let mut attempts = 0;
        let mut fails = |keep: &Keep| {
            attempts += 1;
            attempts <= ATTEMPTS_MAX && fails(keep)
        };
        if fails(&all) { smallest(all, &mut fails) } else { Keep::default() }
    };
    if whole.is_panic() { quietly(find) } else { find() }
}

/// Leaves out faults, ranks and ever smaller stretches of actions, until nothing can be left out.
fn smallest(mut keep: Keep, fails: &mut dyn FnMut(&Keep) -> bool) -> Keep {
    loop {
        let before = keep.clone();
        for fault in keep.faults.clone().unwrap_or_default() {
            let mut less = keep.clone();
            less.faults.iter_mut().for_each(|kept| kept.retain(|one| *one != fault));
            if fails(&less) {
                keep = less;
            }
        }
        let size = keep.size.unwrap_or(1);
        // Small worlds first, then only those a little smaller.
        for size in (1..size).filter(|less| *less <= 6 || less + 2 >= size) {
            let less = Keep { size: Some(size), ..keep.clone() };
            if fails(&less) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let whole =
            Keep { actions: Some((0..100).collect()), faults: Some(vec![0, 1, 2]), size: Some(50) };
        let mut fails = |keep: &Keep| {
            let has =
                |list: &Option<Vec<u32>>, one| list.as_ref().is_some_and(|l| l.contains(&one));
            has(&keep.actions, 17)
                && has(&keep.actions, 93)
                && has(&keep.faults, 1)
                && keep.size.is_some_and(|size| size >= 4)
        };
        let core = Keep { actions: Some(vec![17, 93]), faults: Some(vec![1]), size: Some(4) };
        assert_eq!(smallest(whole, &mut fails), core);
    }

    #[test]
    fn what_is_kept_is_printed_and_read_back() {
        let none = Keep { actions: Some(Vec::new()), faults: Some(vec![2]), size: Some(3) };
        for keep in [Keep::default(), none] {
            assert_eq!(Keep::parse(&keep.to_string()), Some(keep));
        }
        assert_eq!(Keep::parse("1,2"), None);
        assert_eq!(Keep::parse("1,x/all/all"), None);
    }

    #[test]
    fn a_part_of_a_world_is_a_world() {
        for seed in 0..40 {
            let (actions, _, size) = World::new(seed, &Keep::default(), Story::default()).parts();
            let some = actions.into_iter().filter(|number| number % 3 != 0).collect();
            let keep = Keep { actions: Some(some), faults: None, size: Some(size.div_ceil(2)) };
            if let Err(failure) = play(seed, &keep) {
                panic!("seed {seed} with {keep}: {}", failure.what);
            }
        }
    }
}
