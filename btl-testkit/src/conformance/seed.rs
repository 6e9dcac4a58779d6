//! Where the suite's random choices come from, so that a failure can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// A seed that tells itself when its test fails.
#[derive(Debug)]
pub(super) struct Seed(u64);

impl Seed {
    /// From `GAPLESS_SEED`, else from the clock.
    pub(super) fn new() -> Seed {
        let given = std::env::var("GAPLESS_SEED").ok().and_then(|text| text.parse().ok());
        Seed(given.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.as_secs() ^ u64::from(now.subsec_nanos())
        }))
    }

    /// A given one.
    pub(super) fn of(number: u64) -> Seed {
        Seed(number)
    }

    pub(super) fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat: GAPLESS_SEED={}", self.0);
        }
    }
}
