//! Which messages belong to which collective: the tags.
//!
//! ```text
//!  30  29         20                    0
//!   | P | sequence | slot               |      P: persistent
//! ```
//!
//! All ranks begin the collectives of a communicator in the same order, so their sequence numbers agree. A tag has the
//! number modulo [`IN_FLIGHT_MAX`]: so many collectives are an epoch. A rank begins no collective of an epoch before
//! those of the epochs before it have ended there.
//!
//! # Epochs
//! If ranks call collectives that do not fit together, one may send a message that the other does not expect. Nothing
//! receives it, and it must not be taken for a message of a later epoch. So before the first message of an epoch to a
//! rank, a rank sends it a marker and waits for an answer. The other answers when it wants that first message: it has
//! ended all collectives before then, and drops what has come for them.
//!
//! ```text
//! sender      marker ────►            data ──►
//! receiver           drops, answers ──►
//! ```
//!
//! A persistent collective keeps its tags. Its ranks compare their arguments before it starts for the first time
//! (`compare.rs`), so that its messages fit; and each step sends one message, whatever fails (`run/messages.rs`). So
//! nothing of a start is left when the next one begins.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapless_pml::Comm;

use super::error::CollError;
use super::members::Members;

const SLOT_BITS: u32 = 20;
const SEQUENCE_BITS: u32 = 9;

/// How many collectives, persistent ones aside, can be under way on a communicator at once. Each waits until the one
/// that came so many before it has ended. So many persistent ones can exist at once on one `Members`.
pub const IN_FLIGHT_MAX: u64 = 1 << SEQUENCE_BITS;

/// How many messages one rank may send another in one collective.
pub const SLOTS_MAX: u64 = WAKE_SLOT as u64;

/// The slot by which a rank tells why it has failed.
pub(super) const NOTICE_SLOT: u32 = (1 << SLOT_BITS) - 1;

/// Slots of markers, and as many of answers, come before that one. With the sequence they number the epochs.
const MARK_SLOTS: u32 = 1 << 15;
const FIRST_ANSWER: u32 = NOTICE_SLOT - MARK_SLOTS;
const FIRST_MARKER: u32 = FIRST_ANSWER - MARK_SLOTS;

/// The slot of messages that wake sleepers; of the first sequence number, whatever collective is under way. A
/// persistent collective with shared memory of its own has it, too.
const WAKE_SLOT: u32 = FIRST_MARKER - 1;

/// The tag of messages that wake sleepers.
pub(super) const WAKE_TAG: i32 = WAKE_SLOT.cast_signed();

/// Whether messages may go to a rank, or be received from it, in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// They may.
    Open,
    /// Whoever is told this has to exchange marker and answer.
    Shut,
    /// Somebody does so.
    Opening,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Out,
    In,
}

/// Gives the collectives of one communicator their order. There is one a communicator and process; clones are the same.
#[derive(Clone, Debug)]
pub struct Sequencer {
    checked: bool,
    members: Arc<Members>,
    order: Arc<Order>,
}

/// What all clones share.
#[derive(Debug, Default)]
struct Order {
    /// The number of the next collective that is not persistent. Those that need no messages take it without the lock.
    next: AtomicU64,
    state: Mutex<State>,
}

impl Order {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct State {
    /// One-shot ones that have not ended.
    one_shot: OpenNumbers,
    persistent: OpenNumbers,
    /// The number of the next persistent one.
    next_persistent: u64,
    /// The epoch of the last marker in each direction, and whether it was answered.
    gates: BTreeMap<(Direction, u32), (u64, bool)>,
    /// Messages that were dropped because nobody expected them.
    strays: usize,
    /// Whether messages may be on their way that nobody will receive.
    abandoned: bool,
}

/// The numbers of collectives that have not ended.
#[derive(Debug, Default)]
struct OpenNumbers(BTreeSet<u64>);

impl OpenNumbers {
    /// Whether an earlier number with the same tags is held.
    fn has_tags_of(&self, number: u64) -> bool {
        let tagged_alike = |held: &&u64| (number - **held).is_multiple_of(IN_FLIGHT_MAX);
        self.0.range(..number).any(|held| tagged_alike(&held))
    }

    /// Whether a number of an earlier epoch is held.
    fn has_before_epoch(&self, number: u64) -> bool {
        self.0.range(..number - number % IN_FLIGHT_MAX).next().is_some()
    }
}

fn tag(persistent: bool, number: u64, slot: u32) -> i32 {
    let sequence = (number % IN_FLIGHT_MAX) << SLOT_BITS;
    let kind = u64::from(persistent) << (SLOT_BITS + SEQUENCE_BITS);
    // Less than 2^30.
    i32::try_from(kind | sequence | u64::from(slot)).unwrap_or(i32::MAX)
}

/// Whether a message with this tag, which came before its sender's marker, is stale: a collective's that is not
/// persistent. Markers and answers are none.
pub(super) fn is_stale(tag: i32) -> bool {
    let slot = tag & ((1 << SLOT_BITS) - 1);
    let markers = FIRST_MARKER.cast_signed()..NOTICE_SLOT.cast_signed();
    (0..1 << (SLOT_BITS + SEQUENCE_BITS)).contains(&tag) && !markers.contains(&slot)
}

impl Sequencer {
    /// The collective context of a communicator with one group, whose ranks do not compare their calls.
    pub(super) fn plain(&self) -> Option<&Comm> {
        self.members.only_group().filter(|_| !self.checked)
    }

    /// For a communicator that has none yet.
    #[must_use]
    pub fn new(comm: &Comm) -> Self {
        Self { checked: false, members: Arc::new(Members::new(comm)), order: Arc::default() }
    }

    /// The same in checked mode, or not: before each collective, its ranks compare what they were called with. If
    /// operations, roots, lengths, types of elements, operators or algorithms do not fit together, all ranks give an
    /// error that names what differs and where, and nothing is sent. (Types of bytes, and of parts of a layout's
    /// instance, fit everything.) All ranks of the communicator must say the same. It costs an all-gather of 80 bytes a
    /// rank, and for operations whose lengths only pairs of ranks know (v and w operations, neighbourhoods, all on
    /// intercommunicators) two exchanges more.
    #[must_use]
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// How many messages were dropped because no collective expected them: whoever sent them has called collectives
    /// that do not fit those of this rank. They are counted when a later collective hears from the sender, so not all
    /// may be.
    #[must_use]
    pub fn strays(&self) -> usize {
        self.order.lock().strays
    }

    /// The next collective. All ranks must call this, and [`next_persistent`](Self::next_persistent), in the same
    /// order.
    #[must_use]
    pub fn next(&self) -> Ticket {
        let mut state = self.order.lock();
        let number = self.order.take_number();
        state.one_shot.0.insert(number);
        drop(state);
        self.ticket(number)
    }

    /// The place of a collective that has its number already, and needs messages after all. To be called before the
    /// next one begins.
    #[must_use]
    pub fn claim(&self, number: u64) -> Ticket {
        self.order.lock().one_shot.0.insert(number);
        self.ticket(number)
    }

    fn ticket(&self, number: u64) -> Ticket {
        Ticket {
            members: Arc::clone(&self.members),
            order: Arc::clone(&self.order),
            number,
            persistent: false,
            checked: self.checked,
        }
    }

    /// The next collective, which needs no messages, as far as is known: its number among all that are not persistent.
    #[inline]
    pub fn pass(&self) -> u64 {
        self.order.take_number()
    }

    /// Whether there is a persistent collective.
    #[must_use]
    pub fn has_persistent(&self) -> bool {
        !self.order.lock().persistent.0.is_empty()
    }

    /// The next persistent collective. It keeps its tags as long as the ticket lives, so its starts need no order. At
    /// the first one its ranks compare their arguments, as in [checked mode](Self::checked).
    ///
    /// # Errors
    /// [`CollError::TooManyPersistent`]. The number is used up nevertheless, as it is at other ranks.
    pub fn next_persistent(&self) -> Result<Ticket, CollError> {
        let mut state = self.order.lock();
        let number = state.next_persistent;
        state.next_persistent += 1;
        state.persistent.0.insert(number);
        let blocked = state.persistent.has_tags_of(number);
        drop(state);
        let (members, order) = (Arc::clone(&self.members), Arc::clone(&self.order));
        let ticket = Ticket { members, order, number, persistent: true, checked: true };
        if blocked { Err(CollError::TooManyPersistent { max: IN_FLIGHT_MAX }) } else { Ok(ticket) }
    }
}

/// The place of one collective among those of its communicator.
#[derive(Debug)]
pub struct Ticket {
    members: Arc<Members>,
    order: Arc<Order>,
    number: u64,
    persistent: bool,
    checked: bool,
}

impl Ticket {
    /// The collective's number, among those that are persistent or among those that are not.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A number that no other collective of the communicator has at the same time.
    pub(super) fn name(&self) -> u64 {
        self.number | u64::from(self.persistent) << 63
    }

    /// Whether ranks compare their arguments before it begins for the first time.
    pub(super) fn is_checked(&self) -> bool {
        self.checked && self.members.size() > 1
    }

    /// Who takes part.
    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The tag of a slot.
    pub(super) fn tag(&self, slot: u32) -> i32 {
        tag(self.persistent, self.number, slot)
    }

    /// The tag of messages that wake those who sleep in a persistent collective.
    pub(super) fn wake_tag(&self) -> i32 {
        self.tag(WAKE_SLOT)
    }

    /// The epoch, if the collective needs its rank to ask.
    fn epoch(&self) -> Option<u64> {
        Some(self.number / IN_FLIGHT_MAX).filter(|epoch| *epoch > 0 && !self.persistent)
    }

    /// Whether messages may go to a rank, or be received from it.
    pub(super) fn gate(&self, way: Direction, rank: u32) -> Gate {
        let Some(epoch) = self.epoch() else { return Gate::Open };
        let mut state = self.order.lock();
        match state.gates.get(&(way, rank)) {
            Some((last, true)) if *last >= epoch => Gate::Open,
            Some((last, false)) if *last >= epoch => Gate::Opening,
            _ => {
                state.gates.insert((way, rank), (epoch, false));
                Gate::Shut
            }
        }
    }

    /// Mark and answer were exchanged, or the rank is lost.
    pub(super) fn open(&self, way: Direction, rank: u32) {
        if let Some((_, open)) = self.order.lock().gates.get_mut(&(way, rank)) {
            *open = true;
        }
    }

    /// So many messages were dropped.
    pub(super) fn note_strays(&self, count: usize) {
        self.order.lock().strays += count;
    }

    /// The tags of the marker and of the answer.
    pub(super) fn marker_tags(&self) -> (i32, i32) {
        let epoch = self.number / IN_FLIGHT_MAX;
        let place = u32::try_from(epoch / IN_FLIGHT_MAX % u64::from(MARK_SLOTS)).unwrap_or(0);
        let tag = |first: u32| tag(false, epoch, first + place);
        (tag(FIRST_MARKER), tag(FIRST_ANSWER))
    }

    /// Whether the collective may begin now.
    pub(super) fn may_begin(&self) -> Result<bool, CollError> {
        let state = self.order.lock();
        if state.abandoned {
            return Err(CollError::Abandoned);
        }
        Ok(self.persistent || !state.one_shot.has_before_epoch(self.number))
    }

    /// The collective has ended here.
    pub(super) fn end(&self) {
        if !self.persistent {
            self.order.lock().one_shot.0.remove(&self.number);
        }
    }

    /// The collective was dropped in flight.
    pub(super) fn abandon(&self) {
        self.order.lock().abandoned = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.order.lock();
        let numbers = if self.persistent { &mut state.persistent } else { &mut state.one_shot };
        numbers.0.remove(&self.number);
    }
}
