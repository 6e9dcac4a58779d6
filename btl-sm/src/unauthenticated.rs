//! Processes that call and are no peers: how much they may cost.
//!
//! Every process of this machine can call the listener, whose name is no secret. Whoever has not greeted as one
//! of the job is unauthenticated: it holds a descriptor of ours until it greets, hangs up or makes room for another. A
//! process that has greeted, but whose address we have not been given, is a pending connection: it holds two until it
//! is met.

use rustix::process::{Resource, getrlimit};
use std::fmt::Display;

/// The most descriptors that all of them hold, whatever the limit on open files.
const DESCRIPTORS_MAX: u64 = 4096;
/// As many they may hold, however low that is.
const DESCRIPTORS_MIN: u64 = 16;

/// How many descriptors all of them may hold: an eighth of what this process may open.
pub(crate) fn descriptors_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((limit / 8).clamp(DESCRIPTORS_MIN, DESCRIPTORS_MAX)).expect("at most 4096")
}

/// How many connections may be pending: their descriptors are half of those, so that callers can always be heard.
pub(crate) fn pending_max() -> usize {
    descriptors_max() / 4
}

/// Something that unauthenticated processes can make happen as often as they like: it is said at the first time, the
/// second, the fourth and so on.
#[derive(Debug)]
pub(crate) struct RepeatedWarning {
    what: &'static str,
    count: u64,
}

impl RepeatedWarning {
    pub(crate) fn new(what: &'static str) -> RepeatedWarning {
        RepeatedWarning { what, count: 0 }
    }

    /// It has happened again; whether it was said.
    pub(crate) fn again(&mut self, pid: i32, why: &dyn Display) -> bool {
        self.count += 1;
        let say = self.count.is_power_of_two();
        if say {
            tracing::warn!(pid, count = self.count, "{}: {why}", self.what);
        }
        say
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_warnings_are_twenty_lines() {
        let mut warning = RepeatedWarning::new("a caller was turned away");
        let said = (0..1_000_000).filter(|_| warning.again(7, &"nobody")).count();
        assert_eq!(said, 20);
    }
}
