//! Which messages belong to which collective: the tags.
//!
//! ```text
//!  30  29         20                    0
//!   | P | sequence | slot               |      P: persistent
//! ```
//!
//! All ranks begin the collectives of a communicator in the same order, so their sequence numbers agree. A tag has the
//! number modulo [`IN_FLIGHT_MAX`]. That is enough, because a rank begins no collective before the one with the same
//! tags has ended there: messages between two ranks with one tag are received in the order in which they were sent, so
//! each receive gets the message of its own collective, even if the other rank is ahead.
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapless_pml::Comm;

use super::error::CollError;

const SLOT_BITS: u32 = 20;
const SEQUENCE_BITS: u32 = 9;

/// How many collectives, persistent ones aside, can be under way on a communicator at once. Each waits until the one
/// that came so many before it has ended. So many persistent ones can exist at once.
pub const IN_FLIGHT_MAX: u64 = 1 << SEQUENCE_BITS;

/// How many messages one rank may send another in one collective.
pub const SLOTS_MAX: u64 = NOTICE_SLOT as u64;

/// The slot by which a rank tells why it has failed.
pub(super) const NOTICE_SLOT: u32 = (1 << SLOT_BITS) - 1;

/// Gives the collectives of one communicator their order. There is one a communicator and process; clones are the same.
#[derive(Clone, Debug)]
pub struct Sequencer {
    comm: Comm,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    one_shot: Numbers,
    persistent: Numbers,
    /// Whether messages may be on their way that nobody will receive.
    abandoned: bool,
}

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    /// Those that were given and have not ended.
    held: BTreeSet<u64>,
}

impl Numbers {
    fn give(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.held.insert(number);
        number
    }

    /// Whether an earlier number with the same tags is held.
    fn is_blocked(&self, number: u64) -> bool {
        let tagged_alike = |held: &&u64| (number - **held).is_multiple_of(IN_FLIGHT_MAX);
        self.held.range(..number).any(|held| tagged_alike(&held))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing panics while it is held.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sequencer {
    /// For a communicator that has none yet.
    #[must_use]
    pub fn new(comm: &Comm) -> Self {
        Self { comm: comm.collective(), state: Arc::default() }
    }

    /// The next collective. All ranks must call this, and [`next_persistent`](Self::next_persistent), in the same
    /// order.
    #[must_use]
    pub fn next(&self) -> Ticket {
        let number = lock(&self.state).one_shot.give();
        Ticket {
            comm: self.comm.clone(),
            state: Arc::clone(&self.state),
            number,
            persistent: false,
        }
    }

    /// The next persistent collective. It keeps its tags as long as the ticket lives, so its starts need no order.
    ///
    /// # Errors
    /// [`CollError::TooManyPersistent`]. The number is used up nevertheless, as it is at other ranks.
    pub fn next_persistent(&self) -> Result<Ticket, CollError> {
        let mut state = lock(&self.state);
        let number = state.persistent.give();
        let blocked = state.persistent.is_blocked(number);
        drop(state);
        let (comm, state) = (self.comm.clone(), Arc::clone(&self.state));
        let ticket = Ticket { comm, state, number, persistent: true };
        if blocked { Err(CollError::TooManyPersistent { max: IN_FLIGHT_MAX }) } else { Ok(ticket) }
    }
}

/// The place of one collective among those of its communicator.
#[derive(Debug)]
pub struct Ticket {
    comm: Comm,
    state: Arc<Mutex<State>>,
    number: u64,
    persistent: bool,
}

impl Ticket {
    /// The collective context of the communicator.
    pub(super) fn comm(&self) -> &Comm {
        &self.comm
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The tag of a slot.
    pub(super) fn tag(&self, slot: u32) -> i32 {
        let sequence = (self.number % IN_FLIGHT_MAX) << SLOT_BITS;
        let kind = u64::from(self.persistent) << (SLOT_BITS + SEQUENCE_BITS);
        // Less than 2^30.
        i32::try_from(kind | sequence | u64::from(slot)).unwrap_or(i32::MAX)
    }

    /// Whether the collective may begin now.
    pub(super) fn may_begin(&self) -> Result<bool, CollError> {
        let state = lock(&self.state);
        if state.abandoned {
            return Err(CollError::Abandoned);
        }
        Ok(self.persistent || !state.one_shot.is_blocked(self.number))
    }

    /// The collective has ended here.
    pub(super) fn end(&self) {
        if !self.persistent {
            lock(&self.state).one_shot.held.remove(&self.number);
        }
    }

    /// The collective was dropped in flight.
    pub(super) fn abandon(&self) {
        lock(&self.state).abandoned = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let numbers = if self.persistent { &mut state.persistent } else { &mut state.one_shot };
        numbers.held.remove(&self.number);
    }
}
