//! The conformance suite on transports that are broken on purpose, each in one way: it must catch every
//! one of them, and pass a healthy one that is made in the same way.
//!
//! `flaws.rs` lists what is broken and which test of the suite must say so, `broken.rs` is the transport.

mod abilities;
mod arriving;
mod broken;
mod flaws;
mod retaining;
mod telling;

use broken::{BEYOND, Broken, pair};
use flaws::{FLAWS, Flaw};
use gapless_btl::{AmTag, Btl, PeerId, Token};
use gapless_btl_testkit::conformance::{Fixture, Suite, Test, looking_at_most, tests};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Looks in vain after which what is waited for is taken never to come: these transports need a few.
const LOOKS: u32 = 3000;
/// No test of the suite takes as long, broken or not.
const FOREVER: Duration = Duration::from_secs(300);

struct Ends(Flaw);

impl Fixture for Ends {
    type Btl = Broken;

    fn pair(&mut self) -> (Broken, Broken) {
        pair(self.0)
    }

    /// Messages longer than the longest.
    fn garbage(&mut self, from: &mut Broken, to: PeerId, variant: u32) -> bool {
        let len = from.limits.max_fragment_bytes + 1 + variant as usize;
        if variant as usize + 1 >= BEYOND {
            return false;
        }
        let slot = from.inner.reserve(to, len).expect("a link that was just made has room");
        from.inner.send(slot, AmTag(1), Token::NONE);
        true
    }

    fn cut(&mut self, end: &mut Broken, _: PeerId, variant: u32) -> bool {
        end.kept.cut();
        variant == 0
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed(String),
    /// It neither passed nor failed in time.
    Hung,
}

/// Runs a test of the suite in a thread of its own, which is left alone if it does not end.
fn run(flaw: Flaw, name: &'static str, test: Test<Ends>, looks: Option<u32>) -> Outcome {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let suite = Suite::quiet(name, 7);
        let run = || test(&suite, Ends(flaw));
        let ended = catch_unwind(AssertUnwindSafe(|| looking_at_most(looks, run)));
        let outcome = match ended {
            Ok(()) if suite.was_skipped() => Outcome::Skipped,
            Ok(()) => Outcome::Passed,
            Err(panic) => {
                let said = panic.downcast_ref::<String>().cloned();
                let said = said.or_else(|| panic.downcast_ref::<&str>().map(|&said| said.into()));
                Outcome::Failed(said.unwrap_or_default())
            }
        };
        // Whoever waited has given up, if nobody hears it.
        let _ = tell.send(outcome);
    });
    told.recv_timeout(FOREVER).unwrap_or(Outcome::Hung)
}

/// Runs of a test that a flaw may pass before it counts as not caught.
const TRIES: u32 = 20;
/// Broken transports that are tested at once: some tests wait for seconds.
const AT_ONCE: usize = 4;

/// Whether the test that is meant to catch a flaw does; else what it did.
fn caught((flaw, by, says): (Flaw, &str, &str)) -> Result<(), String> {
    let tests = tests::<Ends>();
    let (name, test) = tests.iter().find(|(name, _)| *name == by).expect("a test of the suite");
    let mut outcome = run(flaw, name, *test, Some(LOOKS));
    // What shows only in a crowd depends on how the threads of the test are scheduled.
    for _ in 1..TRIES {
        if outcome == Outcome::Passed {
            outcome = run(flaw, name, *test, Some(LOOKS));
        }
    }
    println!("{flaw:?}: {by}: {outcome:?}");
    match outcome {
        Outcome::Failed(said) if said.contains(says) => Ok(()),
        other => Err(format!("{flaw:?}, by {by} ({says}): {other:?}")),
    }
}

#[test]
fn every_broken_transport_is_caught() {
    let next = Mutex::new(FLAWS.iter());
    let missed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let flaw = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(flaw) = flaw else { return };
            if let Err(what) = caught(*flaw) {
                missed.lock().unwrap_or_else(PoisonError::into_inner).push(what);
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(missed.is_empty(), "{} were not caught:\n{}", missed.len(), missed.join("\n"));
}

/// What the loopback cannot do: these parts of the suite are shown to catch something elsewhere, or not at all.
const SKIPPED: [&str; 5] = [
    "quiet_until_something_comes",
    "peer_killed_before_meeting",
    "peer_killed_while_sending",
    "peer_killed_with_operations_pending",
    "peer_killed_while_mapped",
];

#[test]
fn the_healthy_ones_pass() {
    for flaw in [Flaw::Healthy, Flaw::Batches] {
        for (name, test) in tests::<Ends>() {
            let right = if SKIPPED.contains(&name) { Outcome::Skipped } else { Outcome::Passed };
            assert_eq!(run(flaw, name, test, None), right, "{flaw:?}: {name}");
        }
    }
}

#[test]
fn every_test_catches_something() {
    let idle: Vec<&str> = tests::<Ends>()
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !FLAWS.iter().any(|(_, by, _)| by == name))
        .collect();
    // Those need a process.
    assert_eq!(idle, SKIPPED[1..], "tests that no broken transport fails");
}
