//! Where randomness, the number of cases and skipping come from: `GAPLESS_SEED` repeats a run,
//! `GAPLESS_ORACLE_PERCENT` makes it longer. The seed is printed.

use gapless_dtype::testkit::Rng;
pub(crate) use gapless_testkit::skip;
use std::sync::OnceLock;
use std::time::SystemTime;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// The seed of this process.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let clock = || now().map_or(0, |now| now.as_nanos() & 0xffff_ffff);
        number("GAPLESS_SEED").unwrap_or_else(|| u64::try_from(clock()).unwrap_or(0))
    })
}

/// How many cases a test runs: `usual` ones, or what `GAPLESS_ORACLE_PERCENT` makes of them, if more.
pub(crate) fn cases(usual: u64) -> u64 {
    usual * number("GAPLESS_ORACLE_PERCENT").unwrap_or(100).max(100) / 100
}

/// The randomness of one test; the name keeps tests apart that share the seed.
pub(crate) fn rng(test: &str) -> Rng {
    println!("GAPLESS_SEED={}", seed());
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Rng::new(test.bytes().fold(seed() ^ 0xcbf2_9ce4_8422_2325, mix))
}

/// Fails a test with the seed that repeats it.
#[track_caller]
pub(crate) fn fail(test: &str, what: &str) -> ! {
    panic!("GAPLESS_SEED={}: {test}: {what}", seed());
}
