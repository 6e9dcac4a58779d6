//! Plays seeds: `gapless-sim SEED [KEEP]` tells a story, `gapless-sim FROM..TO` plays a range and counts.
//! `--digests FROM..TO` prints a digest of each seed, `--against FILE` compares them with what was
//! printed before, and `--events SEED` prints what the digest of a seed is made of. `--collectives` before seeds plays
//! programs of collectives.
#![forbid(unsafe_code)]

use gapless_sim::{
    Digests, Failure, Keep, Report, Story, Tap, hunt, hunt_collectives, listen, tell,
    tell_collectives,
};
use std::fmt::Display;
use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;

const USAGE: &str = "usage: gapless-sim [--collectives] SEED [KEEP] | [--collectives] FROM..TO | --digests FROM..TO [--against FILE] | --events SEED";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["--digests", seeds] => range(seeds).map(|seeds| digests(seeds, None)),
        ["--digests", seeds, "--against", file] => {
            range(seeds).map(|seeds| digests(seeds, Some(file)))
        }
        ["--events", seed] => seed.parse().ok().map(events),
        ["--collectives", seeds] if seeds.contains("..") => {
            range(seeds).map(|seeds| many(hunt_collectives(seeds)))
        }
        ["--collectives", words @ ..] => {
            part(words).map(|(seed, keep)| one(tell_collectives(seed, &keep)))
        }
        [seeds] if seeds.contains("..") => range(seeds).map(|seeds| many(hunt(seeds))),
        words => part(words).map(|(seed, keep)| one(tell(seed, &keep))),
    };
    done.unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::FAILURE
    })
}

fn range(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

/// A seed, and what of its world is kept.
fn part(words: &[&str]) -> Option<(u64, Keep)> {
    match words {
        [seed] => Some((seed.parse().ok()?, Keep::default())),
        [seed, keep] => Some((seed.parse().ok()?, Keep::parse(keep)?)),
        _ => None,
    }
}

fn many(outcome: Result<impl Display, Box<Report>>) -> ExitCode {
    match outcome {
        Ok(coverage) => {
            say(coverage);
            ExitCode::SUCCESS
        }
        Err(report) => {
            say(report);
            ExitCode::FAILURE
        }
    }
}

fn one((outcome, story): (Result<impl Display, Failure>, Story)) -> ExitCode {
    match outcome {
        Ok(coverage) => {
            say(format!("{}{coverage}", story.about(&[], usize::MAX)));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say(format!("{}{}\n", story.about(&failure.ranks, usize::MAX), failure.what));
            ExitCode::FAILURE
        }
    }
}

/// Prints digests; or, against a file, what differs from it.
fn digests(seeds: Range<u64>, against: Option<&str>) -> ExitCode {
    let before = match against.map(|file| (file, std::fs::read_to_string(file))) {
        None => None,
        Some((_, Ok(text))) => match Digests::parse(&text) {
            Some(before) => Some(before),
            None => return fail("the file is not what `--digests` has printed, all of it"),
        },
        Some((file, Err(error))) => return fail(&format!("{file}: {error}")),
    };
    let now = match Digests::play(seeds) {
        Ok(now) => now,
        Err((seed, what)) => return fail(&format!("seed {seed}: {what}")),
    };
    let Some(before) = before else {
        say(now);
        return ExitCode::SUCCESS;
    };
    let changes = now.changes_since(&before);
    if changes.is_empty() {
        say(format!("nothing has changed: {:016x}\n", now.digest()));
        return ExitCode::SUCCESS;
    }
    say(changes);
    if let Some((seed, around)) = now.first_change(&before) {
        let (_, tap) = listen(seed, Tap::with_lines());
        say(format!("seed {seed} now, up to the first event that differs:\n"));
        let lines = tap.lines().iter();
        lines.skip(around.start).take(around.len()).for_each(|line| say(format!("{line}\n")));
        say(format!("for both sides, `--events {seed}` here and in the older working tree\n"));
    }
    ExitCode::FAILURE
}

fn events(seed: u64) -> ExitCode {
    let (outcome, tap) = listen(seed, Tap::with_lines());
    tap.lines().iter().for_each(|line| say(format!("{line}\n")));
    outcome.map_or_else(|failure| fail(&failure.what), |_| ExitCode::SUCCESS)
}

fn fail(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}

/// Prints to whoever reads; whoever has gone has read enough.
fn say(text: impl Display) {
    let _ = write!(std::io::stdout(), "{text}");
}
