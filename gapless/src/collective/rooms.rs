//! Persistent collectives keep their tags, of which a communicator has [`IN_FLIGHT_MAX`]. Those that are made after so many
//! have a duplicate of the communicator, and so on: a room. All ranks make persistent collectives in one order, so all make
//! the next room at the same one, whatever they have dropped until then.

use crate::communicator::Communicator;
use crate::error::Error;
use gapless_coll::execute::IN_FLIGHT_MAX;
use gapless_coll::{Operation, Sequencer, Ticket};
use gapless_pml::Comm;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The rooms of a communicator, and how many persistent collectives were made in the last.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// The first room is the communicator itself.
    more: Vec<(Comm, Sequencer)>,
    made: u64,
}

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, All> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicators, but for the first.
    pub(crate) fn comms(&self) -> Vec<Comm> {
        self.lock().more.iter().map(|(comm, _)| comm.clone()).collect()
    }
}

impl Communicator {
    /// The place of a persistent collective in the order of calls. Waits for the other ranks if that needs a room.
    pub(super) fn next_persistent(&self, operation: Operation) -> Result<Ticket, Error> {
        let rooms = &self.common.rooms;
        if rooms.lock().made == IN_FLIGHT_MAX {
            self.add_room()?;
        }
        let mut all = rooms.lock();
        all.made += 1;
        let sequencer = all.more.last().map_or(&self.common.sequencer, |(_, last)| last);
        sequencer.next_persistent().map_err(|error| self.failed(operation, error))
    }

    fn add_room(&self) -> Result<(), Error> {
        let room = self.dup()?.comm;
        let mut all = self.common.rooms.lock();
        let (used, spent): (Vec<_>, Vec<_>) =
            all.more.drain(..).partition(|(_, sequencer)| sequencer.has_persistent());
        all.more = used;
        all.more.push((room.clone(), Sequencer::new(&room)));
        all.made = 0;
        drop(all);
        // Nothing is in flight there.
        self.shared.with(|state| {
            let pml = state.open()?;
            spent.iter().try_for_each(|(comm, _)| Ok(pml.free(comm)?))
        })
    }
}
