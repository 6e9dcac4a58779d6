//! Worlds by the thousand. `GAPLESS_SIM_SEEDS` is how many, or a range `FROM..TO`; `GAPLESS_SEED` plays
//! one (what `GAPLESS_SIM_KEEP` keeps of it) and tells its story.

use gapless_sim::{Coverage, Keep, Report, hunt, play, tell};
use std::ops::Range;

/// Unless the environment says otherwise. `cargo xtask soak` plays many more.
const SEEDS: u64 = 1_000;

/// What a thousand worlds see at least: about a third of what they saw when this was written.
const FLOORS_PER_1000: Coverage = Coverage {
    worlds: 1000,
    large_worlds: 1,
    ranks: 2500,
    received: 13000,
    eager: 6000,
    pipelined: 2500,
    single_copies: 700,
    mapped: 650,
    local: 1000,
    truncated: 2000,
    any_source: 4000,
    any_tag: 2500,
    other_communicators: 4000,
    of_groups: 450,
    between_sides: 290,
    merged: 270,
    received_again: 36,
    to_myself: 4000,
    synchronous: 2500,
    buffered: 1300,
    not_ready: 60,
    kept: 10,
    probes: 300,
    claims: 700,
    dropped: 60,
    cancelled: 1200,
    cancelled_sends: 100,
    cancelled_ended: 45,
    cancelled_too_late: 55,
    sent_again: 120,
    refused: 200,
    deaths: 90,
    cuts: 600,
    calls: 10000,
    lost_operations: 200,
    unmade: 40,
    parcels: 55000,
    overtakings: 2000,
    lost_in_flight: 300,
    out_of_credit: 50000,
    storms: 5000,
    gets: 5000,
    maps: 850,
};

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("GAPLESS_SIM_SEEDS") else { return 0..SEEDS };
    let number = |text: &str| text.parse().expect("GAPLESS_SIM_SEEDS is a number or FROM..TO");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&text),
    }
}

fn one() -> Option<(u64, Keep)> {
    let seed = std::env::var("GAPLESS_SEED").ok()?.parse().expect("GAPLESS_SEED is a number");
    let keep = std::env::var("GAPLESS_SIM_KEEP");
    let keep = keep.map_or(Keep::default(), |text| Keep::parse(&text).expect("as it was printed"));
    Some((seed, keep))
}

/// A world is one thread's; different worlds need not be.
fn hunt_in_parts(seeds: Range<u64>) -> Result<Coverage, Box<Report>> {
    let parts = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)) as u64;
    let part = |at: u64| seeds.start + (seeds.end - seeds.start) * at / parts;
    let mut seen = Coverage::default();
    std::thread::scope(|threads| {
        let hunts = (0..parts).map(|at| {
            let seeds = part(at)..part(at + 1);
            threads.spawn(move || hunt(seeds))
        });
        let hunts: Vec<_> = hunts.collect();
        for hunt in hunts {
            seen += hunt.join().expect("a failing world is reported, not a panic")?;
        }
        Ok(seen)
    })
}

#[test]
fn every_world_obeys_mpi() {
    if let Some((seed, keep)) = one() {
        let (outcome, story) = tell(seed, &keep);
        let ranks = outcome.as_ref().err().map_or(Vec::new(), |failure| failure.ranks.clone());
        println!("{}", story.about(&ranks, usize::MAX));
        if let Err(failure) = outcome {
            panic!("seed {seed}: {}", failure.what);
        }
        return;
    }
    let seeds = seeds();
    let count = seeds.end.saturating_sub(seeds.start);
    match hunt_in_parts(seeds) {
        Ok(coverage) => {
            println!("{coverage}");
            // Fewer may happen to lack what is rare.
            if count >= SEEDS {
                let below = coverage.below(&FLOORS_PER_1000, count / 1000);
                assert!(below.is_empty(), "the worlds have become poor in {below:?}\n{coverage}");
            }
        }
        Err(report) => panic!("\n{report}"),
    }
}

#[test]
fn a_seed_is_all_there_is() {
    for seed in 0..60 {
        let (first, story) = tell(seed, &Keep::default());
        let (second, again) = tell(seed, &Keep::default());
        assert_eq!(first.ok(), second.ok(), "seed {seed}");
        assert!(story.about(&[], usize::MAX) == again.about(&[], usize::MAX), "seed {seed}");
        assert!(play(seed, &Keep::default()).is_ok(), "seed {seed}");
    }
}
