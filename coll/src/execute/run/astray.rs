//! Ranks that are in different collectives: each goes on without the other.
use gapless_pml::Pml;

use super::{CollError, Phase, Run};
use crate::execute::ExecutorPlan;

impl Run {
    /// A rank that it waits for, if it is one: for a message of its own, or for one of its to be taken.
    pub(in crate::execute) fn waits_for(&self) -> Option<u32> {
        let receives = self.flights.iter().find_map(|flight| match flight.phase {
            Phase::Receiving { from, .. }
            | Phase::Listening { from, .. }
            | Phase::Notified { from, .. }
            | Phase::Awaiting { from } => Some(from),
            _ => None,
        });
        receives.or_else(|| {
            self.flights.iter().find_map(|flight| match flight.phase {
                Phase::Sending { to, .. }
                | Phase::Asking { to, .. }
                | Phase::Leaving { to, .. } => Some(to),
                _ => None,
            })
        })
    }

    /// Whether nothing is waited for that a rank has not begun: the communicator is revoked, or a rank is in another
    /// collective.
    pub(super) fn expects_nothing(&self, plan: &ExecutorPlan) -> bool {
        self.astray.is_some() || plan.ticket.members().is_revoked()
    }

    /// A rank is in another collective. What no rank will send is not waited for; the others are told, but not that
    /// one, which finds out by itself. Whether that is new.
    pub(in crate::execute) fn go_astray(
        &mut self,
        pml: &mut Pml,
        rank: u32,
        error: CollError,
    ) -> bool {
        if self.is_over() || self.astray.is_some() {
            return false;
        }
        self.fail(error);
        self.astray = Some(rank);
        for flight in &self.flights {
            // What has been matched goes on.
            let _ = match flight.phase {
                Phase::Receiving { id, .. }
                | Phase::Listening { id, .. }
                | Phase::Asking { id, .. }
                | Phase::Notified { id, .. } => pml.cancel_recv(id).map(drop),
                Phase::Sending { id, .. } => pml.cancel_unfinished_send(id),
                _ => Ok(()),
            };
        }
        true
    }
}
