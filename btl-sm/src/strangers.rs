//! Processes at the door that are no peers: how much they may cost.
//!
//! Every process of this machine can call the listener, whose name is no secret. Whoever has not greeted as one
//! of the job is a stranger: it holds a descriptor of ours until it greets, hangs up or makes room for another.

use rustix::process::{Resource, getrlimit};
use std::fmt::Display;

/// The most callers that wait to be heard, whatever the limit on open files.
const CALLERS_MAX: u64 = 4096;
/// As many may wait, however low that is.
const CALLERS_MIN: u64 = 16;

/// How many callers may wait to be heard at a time, a descriptor each: an eighth of what this process may open.
pub(crate) fn callers_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((limit / 8).clamp(CALLERS_MIN, CALLERS_MAX)).expect("at most 4096")
}

/// Something that strangers can make happen as often as they like: it is said at the first time, the second,
/// the fourth and so on.
#[derive(Debug)]
pub(crate) struct Nuisance {
    what: &'static str,
    count: u64,
}

impl Nuisance {
    pub(crate) fn new(what: &'static str) -> Nuisance {
        Nuisance { what, count: 0 }
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
    fn a_million_nuisances_are_twenty_lines() {
        let mut nuisance = Nuisance::new("a caller was turned away");
        let said = (0..1_000_000).filter(|_| nuisance.again(7, &"nobody")).count();
        assert_eq!(said, 20);
    }
}
