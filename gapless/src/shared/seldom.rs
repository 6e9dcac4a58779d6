//! Progress in calls that do not wait, such as probes and tests.
//!
//! Sockets of new links, and transports that have long been quiet, are looked at once in many polls. Whoever waits
//! polls all the time, so each of them is looked at soon. A program that probes ten times a second would not see a new
//! peer for seconds: so a call that finds nothing, and comes long after the last one, polls so often in a row.

use super::{Shared, WorldState};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Polls this far apart are seldom. No shorter than the ticks of the clock that is looked at.
const SELDOM: Duration = Duration::from_millis(4);

/// One of this many calls that find something (likely what they ask for) looks at the clock.
const FOUND_PER_LOOK: u32 = 4;

/// When everything was last looked at, and how many calls have found something.
#[derive(Debug)]
pub(super) struct Looked(Duration, u32);

impl Looked {
    /// Just now.
    pub(super) fn now() -> Looked {
        Looked(coarse(), 0)
    }

    /// Whether that is long ago, as far as a call knows that has found something or not. If so, it is now.
    fn is_long_ago(&mut self, found: bool) -> bool {
        if found {
            self.1 = self.1.wrapping_add(1);
            if !self.1.is_multiple_of(FOUND_PER_LOOK) {
                return false;
            }
        }
        let now = coarse();
        let seldom = now.saturating_sub(self.0) >= SELDOM;
        if seldom {
            self.0 = now;
        }
        seldom
    }
}

/// The time by the clock that is quickest to read.
fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::try_from(now).unwrap_or(Duration::ZERO)
}

impl Shared {
    /// As [`drive`](Shared::drive), in a call that does not wait.
    pub(crate) fn drive_once(&self, state: &mut WorldState) -> usize {
        let handled = self.drive(state);
        if !state.looked.is_long_ago(handled > 0) || state.has_left() {
            return handled;
        }
        let more = state.pml.progress_thoroughly();
        // The rest of the world gets on with what has come.
        handled + more + self.drive(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ago_is_told_once_and_also_if_every_call_finds_something() {
        let mut looked = Looked::now();
        let mut seldom = Looked(Duration::ZERO, 0);
        assert!(seldom.is_long_ago(false), "the system is up for longer");
        assert!(seldom.0 >= looked.0);
        seldom.0 = Duration::ZERO;
        let told = (0..FOUND_PER_LOOK).filter(|_| seldom.is_long_ago(true));
        assert_eq!(told.count(), 1);
        looked.0 += Duration::from_secs(3600);
        assert!(!looked.is_long_ago(false));
    }
}
