//! Persistent collectives keep their tags, of which a communicator has [`IN_FLIGHT_MAX`]. Further persistent
//! collectives use the tags of a duplicate of the communicator, then of another one, and so on. All ranks make
//! persistent collectives in one order, so all make the next duplicate at the same collective, whatever they have
//! dropped until then.

use crate::communicator::Communicator;
use crate::error::Error;
use gapless_coll::execute::IN_FLIGHT_MAX;
use gapless_coll::{Operation, Sequencer, Ticket};
use gapless_pml::Comm;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Duplicates of a communicator, for tags of persistent collectives.
#[derive(Debug, Default)]
pub(crate) struct PersistentComms(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// The duplicates. The communicator itself comes first, and is not listed.
    more: Vec<(Comm, Sequencer)>,
    /// Persistent collectives that were made with the last one.
    made: u64,
}

impl PersistentComms {
    fn lock(&self) -> MutexGuard<'_, All> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The duplicates, without the communicator itself.
    pub(crate) fn comms(&self) -> Vec<Comm> {
        self.lock().more.iter().map(|(comm, _)| comm.clone()).collect()
    }
}

impl Communicator {
    /// The place of a persistent collective in the order of calls. Waits for the other ranks if that needs a
    /// duplicate.
    pub(super) fn next_persistent(&self, operation: Operation) -> Result<Ticket, Error> {
        let comms = &self.common.persistent_comms;
        if comms.lock().made == IN_FLIGHT_MAX {
            self.add_comm()?;
        }
        let mut all = comms.lock();
        all.made += 1;
        let sequencer = all.more.last().map_or(&self.common.sequencer, |(_, last)| last);
        sequencer.next_persistent().map_err(|error| self.failed(operation, error))
    }

    fn add_comm(&self) -> Result<(), Error> {
        let comm = self.dup()?.comm;
        let mut all = self.common.persistent_comms.lock();
        let (used, spent): (Vec<_>, Vec<_>) =
            all.more.drain(..).partition(|(_, sequencer)| sequencer.has_persistent());
        all.more = used;
        all.more.push((comm.clone(), Sequencer::new(&comm)));
        all.made = 0;
        drop(all);
        // Nothing is in flight there.
        self.shared.with(|state| {
            let pml = state.open()?;
            spent.iter().try_for_each(|(comm, _)| Ok(pml.free(comm)?))
        })
    }
}
