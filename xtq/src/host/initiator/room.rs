//! How many puts this process keeps for a target that does not take them: a number, and bytes of their bodies. A put
//! counts from the call until it has ended, its bytes until the target has accepted it.

use super::{Initiator, Outgoing};
use std::collections::HashMap;

/// A number of puts, and bytes of their bodies.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    puts: usize,
    bytes: u64,
}

/// The room of all targets.
#[derive(Debug)]
pub(super) struct Room {
    /// What puts to one target may take.
    most: Amount,
    /// What they take, by rank; those with nothing are left out.
    taken: HashMap<u32, Amount>,
}

impl Default for Room {
    fn default() -> Room {
        Room { most: Amount { puts: usize::MAX, bytes: u64::MAX }, taken: HashMap::new() }
    }
}

impl Room {
    /// A put has come.
    pub(super) fn take(&mut self, put: &Outgoing) {
        let taken = self.taken.entry(put.target.0).or_default();
        taken.puts += 1;
        taken.bytes += put.body_bytes() as u64;
    }

    /// The body is not needed any more.
    pub(super) fn give_back_body(&mut self, put: &Outgoing) {
        if let Some(taken) = self.taken.get_mut(&put.target.0) {
            taken.bytes = taken.bytes.saturating_sub(put.body_bytes() as u64);
        }
    }

    /// The put is over.
    pub(super) fn give_back(&mut self, put: &Outgoing) {
        self.give_back_body(put);
        let Some(taken) = self.taken.get_mut(&put.target.0) else { return };
        taken.puts = taken.puts.saturating_sub(1);
        if taken.puts == 0 {
            self.taken.remove(&put.target.0);
        }
    }
}

impl Initiator {
    /// How many puts to one target, and bytes of their bodies, there may be.
    pub(in crate::host) fn limit_room(&mut self, puts: usize, bytes: u64) {
        self.room.most = Amount { puts: puts.max(1), bytes };
    }

    /// Whether there is room for one more put to this rank, with so many bytes; if not, how many puts and bytes there are.
    /// One body that is longer than all of the room has it alone.
    pub(in crate::host) fn has_room(&self, target: u32, bytes: usize) -> Result<(), (usize, u64)> {
        let most = self.room.most;
        let taken = self.room.taken.get(&target).copied().unwrap_or_default();
        let is_first = bytes == 0 || taken.bytes == 0;
        let fits = is_first || taken.bytes.saturating_add(bytes as u64) <= most.bytes;
        if taken.puts < most.puts && fits { Ok(()) } else { Err((taken.puts, taken.bytes)) }
    }

    /// Whether nothing is kept for any target.
    #[cfg(test)]
    pub(in crate::host) fn is_room_free(&self) -> bool {
        self.room.taken.is_empty()
    }
}
