//! What the stack survives: neighbours that scribble over shared memory, processes that are killed at
//! any moment, and hours of random traffic. Each test is a job of real processes ([`gapless_tests::launcher`]);
//! RELIABILITY.md describes them, `bench/results/cpu/reliability` has figures.
//!
//! Random numbers come from one seed, which is printed; `GAPLESS_SEED` repeats it. CI runs a few
//! seconds of each; environment variables ask for more:
//!
//! | variable | means | unless set |
//! |---|---|---|
//! | `GAPLESS_KILLS` | processes killed | 200 |
//! | `GAPLESS_HOSTILE_ROUNDS` | jobs with hostile neighbours | 40 |
//! | `GAPLESS_VICTIMS_UNDER` | a command line to run the victims of hostile neighbours under | none |
//! | `GAPLESS_SOAK_SECONDS` | seconds of soaking | 5 |
#![forbid(unsafe_code)]

mod hostile;
mod kill;
mod liar;
mod soak;
mod traffic;

use gapless_tests::byte_at;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A lost peer is an error within two seconds, it is promised; a watchdog waits ten times as long.
const WATCHDOG: Duration = Duration::from_secs(20);

/// A number from the environment.
fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}")),
        Err(_) => otherwise,
    }
}

/// The seed of a test, printed.
fn seed(test: &str) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let fresh = u64::try_from(now & u128::from(u64::MAX)).expect("64 bits of it");
    let seed = number("GAPLESS_SEED", fresh);
    println!("{test}: GAPLESS_SEED={seed}");
    eprintln!("{test}: GAPLESS_SEED={seed}");
    seed
}

/// What a rank of `part` needs to know, after the part's name: words.
fn words(part: &str) -> Vec<u64> {
    part.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect()
}

/// Bytes that name a message in their every place.
fn filled(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| byte_at(seed, at)).collect()
}
