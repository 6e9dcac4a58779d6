//! Leaving a job without the others: what dropping a world does.

use super::World;
use super::leave::{GOODBYE, casualty};
use crate::error::Error;
use crate::shared::WorldState;
use std::time::{Duration, Instant};

/// How long a process that departs serves others that have not received what it has sent, once nothing is on its way.
const PATIENCE: Duration = Duration::from_secs(1);

impl World {
    /// Departs. Once a peer is known to have died, nobody is served. A process alone has nobody to depart from.
    pub(super) fn depart(&mut self) -> Result<(), Error> {
        let Some(connection) = self.wireup.take_if(|it| it.launcher().size() > 1) else {
            return self.leave();
        };
        self.close()?;
        let left = self.serve();
        let mut culprit = left.as_ref().err().and_then(Error::lost_rank);
        match &left {
            Ok(()) => self.say(GOODBYE, |state| culprit = Some(state.pml.depart())),
            Err(error) => self.say_why(Some(error)),
        }
        self.go(left, culprit, &connection)
    }

    /// Serves the others until all that was started here has been taken, or for a bounded time.
    fn serve(&self) -> Result<(), Error> {
        let taken = self.while_matched(WorldState::has_settled)?;
        self.shared.with(|state| {
            state.pml.cancel_unmatched_receives();
            state.pml.cancel_unmatched_sends();
            Ok(())
        })?;
        self.shared.signal();
        if taken {
            return Ok(());
        }
        // Those that live and look say at once whether they have taken it.
        self.while_matched(|_| true).map(drop)
    }

    /// Makes progress until all sends have been taken, and `settled` says so of the rest; or for [so long](PATIENCE)
    /// after the first moment at which nothing was on its way that was matched. That is waited for without a bound, as
    /// its memory is in use. Gives whether all were taken.
    ///
    /// # Errors
    /// A process has died meanwhile, or before.
    fn while_matched(&self, settled: impl Fn(&WorldState) -> bool) -> Result<bool, Error> {
        let mut idle = None;
        self.shared.wait_until(|state| {
            if let Some(loss) = casualty(state) {
                return Some(Err(loss.into()));
            }
            state.end_tasks();
            if state.pml.has_matched() {
                return None;
            }
            let idle = *idle.get_or_insert_with(Instant::now);
            if !state.pml.has_sends() && settled(state) {
                return Some(Ok(true));
            }
            (idle.elapsed() >= PATIENCE).then_some(Ok(false))
        })?
    }
}
