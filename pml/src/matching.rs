//! Matching: which receive takes which message (MPI 4.1 §3.5).
//!
//! [`Matching`] has two sides: [`Posted`], the receives that wait for a message, and [`Unexpected`], the
//! messages that wait for a receive; besides, the messages that matched probes have claimed. A message goes to the receive that was posted first among
//! those that match; a receive takes the message that arrived first among those that match. With
//! messages of one sender arriving in the order of sending, that is MPI's non-overtaking rule.
//!
//! A receive names a source and a tag, or takes any: four classes. Each class has an index by what
//! it names, and stamps order the fronts of the four: the cost of a message does not depend on how
//! many receives or messages wait.

pub(crate) mod claims;
mod index;

pub use claims::MessageId;

use crate::arrival::{Arrival, Pool};
use crate::hash::FastMap;
use crate::matching::claims::Claims;
use crate::matching::index::{Cell, Index, Key};
use crate::status::Status;
use crate::wire::Label;
use slab::Slab;
use std::collections::VecDeque;

/// Whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Any member's (`MPI_ANY_SOURCE`).
    Any,
    /// This rank's.
    Rank(u32),
}

/// Which tags a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagSel {
    /// Any (`MPI_ANY_TAG`).
    Any,
    /// This one.
    Is(i32),
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

impl From<i32> for TagSel {
    fn from(tag: i32) -> TagSel {
        TagSel::Is(tag)
    }
}

/// What a receive asks for; `None` is the wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) context: u32,
    pub(crate) source: Option<u32>,
    pub(crate) tag: Option<i32>,
}

/// Bit 0: any source; bit 1: any tag.
const CLASSES: [usize; 4] = [0, 1, 2, 3];

#[inline]
fn key_of(label: Label, class: usize) -> Key {
    Key {
        context: label.context,
        source: if class & 1 == 0 { label.source } else { 0 },
        tag: if class & 2 == 0 { label.tag } else { 0 },
    }
}

impl Pattern {
    fn class(&self) -> usize {
        usize::from(self.source.is_none()) | usize::from(self.tag.is_none()) << 1
    }

    fn key(&self) -> Key {
        Key { context: self.context, source: self.source.unwrap_or(0), tag: self.tag.unwrap_or(0) }
    }
}

/// Where a posted receive waits, so that it can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedPlace {
    class: u8,
    cell: Cell,
}

impl PostedPlace {
    /// Of a receive that names its source and its tag.
    pub(crate) fn direct(cell: Cell) -> PostedPlace {
        PostedPlace { class: 0, cell }
    }
}

/// Receives that wait for a message, by request number.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    classes: [Index; 4],
    /// How many of them have a wildcard.
    wild: usize,
    next_stamp: u64,
}

impl Posted {
    /// Appends a receive.
    #[inline]
    pub(crate) fn post(&mut self, pattern: Pattern, request: u32) -> PostedPlace {
        let class = pattern.class();
        self.next_stamp += 1;
        self.wild += usize::from(class != 0);
        let cell = self.classes[class].push(pattern.key(), self.next_stamp, request);
        PostedPlace { class: u8::try_from(class).expect("four classes"), cell }
    }

    /// Appends a receive that names its source and its tag; gives its cell.
    #[inline]
    pub(crate) fn post_direct(&mut self, label: Label, request: u32) -> Cell {
        self.next_stamp += 1;
        self.classes[0].push(key_of(label, 0), self.next_stamp, request)
    }

    /// Whether no receive can match such a message: none names its label, and none has a wildcard.
    #[inline]
    pub(crate) fn is_free(&self, label: Label) -> bool {
        self.wild == 0 && !self.classes[0].has(key_of(label, 0))
    }

    /// The tag of a receive that waits; `None`: any.
    pub(crate) fn tag(&self, place: PostedPlace) -> Option<i32> {
        let tag = self.classes[usize::from(place.class)].key(place.cell).tag;
        Some(tag).filter(|_| place.class & 2 == 0)
    }

    /// Takes out the receive that a message goes to.
    pub(crate) fn take(&mut self, label: Label) -> Option<u32> {
        if self.wild == 0 {
            return self.classes[0].pop(key_of(label, 0));
        }
        self.take_among_wild(label)
    }

    /// The receive that a message goes to, if no receive has a wildcard.
    #[inline]
    pub(crate) fn find_direct(&self, label: Label) -> Option<u32> {
        if self.wild > 0 {
            return None;
        }
        self.classes[0].front(key_of(label, 0)).map(|(_, request, _)| request)
    }

    /// Takes out the receive that [`find_direct`](Posted::find_direct) has just found.
    #[inline]
    pub(crate) fn take_direct(&mut self, label: Label) {
        self.classes[0].pop(key_of(label, 0));
    }

    fn take_among_wild(&mut self, label: Label) -> Option<u32> {
        let mut best: Option<(u64, u32, usize, Cell)> = None;
        for class in CLASSES {
            if self.classes[class].len() == 0 {
                continue;
            }
            if let Some((stamp, request, cell)) = self.classes[class].front(key_of(label, class))
                && best.is_none_or(|(earliest, ..)| stamp < earliest)
            {
                best = Some((stamp, request, class, cell));
            }
        }
        let (_, request, class, cell) = best?;
        self.classes[class].remove(cell);
        self.wild -= usize::from(class != 0);
        Some(request)
    }

    /// Cancels a receive that no message has taken.
    pub(crate) fn remove(&mut self, place: PostedPlace) {
        self.classes[usize::from(place.class)].remove(place.cell);
        self.wild -= usize::from(place.class != 0);
    }
}

#[derive(Debug)]
struct Waiting<M> {
    message: M,
    label: Label,
    stamp: u64,
    cells: [Cell; 4],
}

/// Messages that wait for a receive.
#[derive(Debug)]
struct Unexpected<M> {
    messages: Slab<Waiting<M>>,
    classes: [Index; 4],
    /// Whether the three wildcard classes are kept. Off until a wildcard is asked for.
    wild: bool,
    /// Stamps and numbers, while the wildcard classes are built; kept for its memory.
    order: Vec<(u64, usize)>,
    next_stamp: u64,
}

impl<M> Default for Unexpected<M> {
    fn default() -> Self {
        Unexpected {
            messages: Slab::new(),
            classes: Default::default(),
            wild: false,
            order: Vec::new(),
            next_stamp: 0,
        }
    }
}

impl<M> Unexpected<M> {
    /// Whether none waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Appends a message; gives its number, good until it is taken.
    pub(crate) fn hold(&mut self, label: Label, message: M) -> u32 {
        self.next_stamp += 1;
        let stamp = self.next_stamp;
        let entry = self.messages.vacant_entry();
        let number = u32::try_from(entry.key()).expect("fewer than 2^32 messages");
        let mut cells = [0; 4];
        cells[0] = self.classes[0].push(key_of(label, 0), stamp, number);
        if self.wild {
            for class in &CLASSES[1..] {
                cells[*class] = self.classes[*class].push(key_of(label, *class), stamp, number);
            }
        }
        entry.insert(Waiting { message, label, stamp, cells });
        number
    }

    fn find(&mut self, pattern: Pattern) -> Option<u32> {
        if self.messages.is_empty() {
            return None;
        }
        let class = pattern.class();
        if class != 0 && !self.wild {
            self.index_wildcards();
        }
        self.classes[class].front(pattern.key()).map(|(_, number, _)| number)
    }

    /// The message that a receive would take.
    pub(crate) fn probe(&mut self, pattern: Pattern) -> Option<(Label, &M)> {
        let number = self.find(pattern)?;
        let waiting = self.messages.get(number as usize)?;
        Some((waiting.label, &waiting.message))
    }

    /// Takes out the message that a receive takes.
    #[inline]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(Label, M)> {
        if self.messages.is_empty() {
            return None;
        }
        if !self.wild && pattern.class() == 0 {
            let number = self.classes[0].pop(pattern.key())?;
            let waiting = self.messages.remove(number as usize);
            return Some((waiting.label, waiting.message));
        }
        let number = self.find(pattern)?;
        Some(self.remove(number))
    }

    /// A message by its number, if it is still there and has this label.
    pub(crate) fn get_mut(&mut self, number: u32, label: Label) -> Option<&mut M> {
        let waiting = self.messages.get_mut(number as usize)?;
        (waiting.label == label).then_some(&mut waiting.message)
    }

    /// Removes all messages that `gone` selects: for a peer's death only, because it is slow.
    pub(crate) fn remove_if(&mut self, mut gone: impl FnMut(Label, &M) -> bool) -> Vec<(Label, M)> {
        let numbers: Vec<u32> = self
            .messages
            .iter()
            .filter(|(_, waiting)| gone(waiting.label, &waiting.message))
            .filter_map(|(number, _)| u32::try_from(number).ok())
            .collect();
        numbers.into_iter().map(|number| self.remove(number)).collect()
    }

    fn remove(&mut self, number: u32) -> (Label, M) {
        let waiting = self.messages.remove(number as usize);
        self.classes[0].remove(waiting.cells[0]);
        if self.wild {
            for class in &CLASSES[1..] {
                self.classes[*class].remove(waiting.cells[*class]);
            }
            self.wild = !self.messages.is_empty();
        }
        (waiting.label, waiting.message)
    }

    fn index_wildcards(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.extend(self.messages.iter().map(|(number, waiting)| (waiting.stamp, number)));
        order.sort_unstable();
        for (stamp, number) in order.drain(..) {
            let waiting = &mut self.messages[number];
            let item = u32::try_from(number).expect("numbered by `hold`");
            for class in &CLASSES[1..] {
                waiting.cells[*class] =
                    self.classes[*class].push(key_of(waiting.label, *class), stamp, item);
            }
        }
        self.order = order;
        self.wild = true;
    }
}

/// Notes of parked messages that are kept; most are out of date after a while.
const PARKED_NOTES_MAX: usize = 1024;

/// Which receive takes which message: the receives that wait, the messages that wait, and those that a probe has claimed.
#[derive(Debug)]
pub(crate) struct Matching {
    pub(crate) posted: Posted,
    /// How many inline receives were posted, ever.
    pub(crate) posted_inline: u32,
    unexpected: Unexpected<Arrival>,
    /// Where the offers among them were put, by process and serial. One that is claimed is not there any more.
    offers: FastMap<(u32, u64), (u32, Label)>,
    claims: Claims,
    /// Messages that may still be in the transport's memory, oldest first.
    parked: VecDeque<(u32, Label)>,
    /// How many of each process's are.
    parked_of: Vec<u32>,
    pub(crate) pool: Pool,
}

impl Matching {
    /// Of a process in a job of `size`.
    pub(crate) fn new(size: u32) -> Matching {
        Matching {
            posted: Posted::default(),
            posted_inline: 0,
            unexpected: Unexpected::default(),
            offers: FastMap::default(),
            claims: Claims::default(),
            parked: VecDeque::new(),
            parked_of: (0..size).map(|_| 0).collect(),
            pool: Pool::default(),
        }
    }

    /// Whether no message waits for a receive.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.unexpected.is_empty()
    }

    /// Keeps a message until a receive takes it; at most `parked_max` of a process stay in the transport's memory. An error
    /// is the sender's fault.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        label: Label,
        mut arrival: Arrival,
        parked_max: u32,
    ) -> Result<(), String> {
        let parked_of = &mut self.parked_of[label.source as usize];
        let mut parked = arrival.is_parked();
        if parked && *parked_of >= parked_max {
            arrival.copy_out(&mut self.pool).map_err(|error| error.to_string())?;
            parked = false;
        }
        *parked_of += u32::from(parked);
        let offer = arrival.offer();
        let number = self.unexpected.hold(label, arrival);
        if let Some(serial) = offer
            && self.offers.insert((label.source, serial), (number, label)).is_some()
        {
            return Err(format!("rendezvous {serial} is offered twice"));
        }
        if parked {
            self.parked.push_back((number, label));
            if self.parked.len() > PARKED_NOTES_MAX {
                self.spill();
            }
        }
        Ok(())
    }

    /// The message that a receive would take.
    pub(crate) fn probe(&mut self, pattern: Pattern) -> Option<(Label, &Arrival)> {
        self.unexpected.probe(pattern)
    }

    /// Takes out the message that a receive takes.
    #[inline]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(Label, Arrival)> {
        let taken = self.unexpected.take(pattern);
        if let Some((label, held)) = &taken {
            self.forget(*label, held);
        }
        taken
    }

    /// Removes all messages that `gone` selects and no probe has claimed. It takes time in proportion to all that wait.
    pub(crate) fn remove_if(
        &mut self,
        gone: impl FnMut(Label, &Arrival) -> bool,
    ) -> Vec<(Label, Arrival)> {
        let removed = self.unexpected.remove_if(gone);
        removed.iter().for_each(|(label, held)| self.forget(*label, held));
        removed
    }

    /// Removes the records of a message that was taken.
    #[inline]
    fn forget(&mut self, label: Label, held: &Arrival) {
        if held.is_parked() {
            self.parked_of[label.source as usize] -= 1;
        }
        if let Some(serial) = held.offer() {
            self.offers.remove(&(label.source, serial));
        }
    }

    /// Takes out the message that [`probe`](Matching::probe) found, and that gave this status, for a receive that names it.
    pub(crate) fn claim(&mut self, pattern: Pattern, status: Status) -> Option<MessageId> {
        let (label, held) = self.unexpected.take(pattern)?;
        Some(self.claims.insert(label, status, held))
    }

    /// The message behind a claim, which is over; without it if its sender was lost, or the communicator revoked.
    pub(crate) fn unclaim(
        &mut self,
        message: &MessageId,
    ) -> Option<(Label, Status, Option<Arrival>)> {
        let (label, status, held) = self.claims.take(message)?;
        if let Some(held) = &held {
            self.forget(label, held);
        }
        Some((label, status, held))
    }

    /// Takes the messages behind those claims that `gone` selects; the claims stay, without them.
    pub(crate) fn void_claims(
        &mut self,
        gone: impl FnMut(Label, &Arrival) -> bool,
    ) -> Vec<(Label, Arrival)> {
        let voided = self.claims.void(gone);
        voided.iter().for_each(|(label, held)| self.forget(*label, held));
        voided
    }

    /// Takes the messages behind all claims, which are over.
    pub(crate) fn drain_claims(&mut self) -> Vec<(Label, Arrival)> {
        let drained = self.void_claims(|_, _| true);
        self.claims.clear();
        drained
    }

    /// Whether any claims are of one of these communicators.
    pub(crate) fn has_claims_of(&self, ids: &[u32]) -> bool {
        self.claims.are_of(ids)
    }

    /// An offer that waits for a receive, claimed or not, by what its sender calls it.
    pub(crate) fn held_offer(&mut self, from: u32, serial: u64) -> Option<&mut Arrival> {
        let &(number, label) = self.offers.get(&(from, serial))?;
        let is_it = |held: &&mut Arrival| held.offer() == Some(serial);
        let held = self.unexpected.get_mut(number, label).filter(is_it);
        held.or_else(|| self.claims.find_mut(from, serial))
    }

    /// Puts an eager message in the place of an offer.
    pub(crate) fn replace_offer(
        &mut self,
        from: u32,
        serial: u64,
        mut arrival: Arrival,
    ) -> Result<(), String> {
        // In the transport's memory it might prevent the message from arriving that its receive waits for.
        arrival.copy_out(&mut self.pool).map_err(|error| error.to_string())?;
        if let Some(held) = self.held_offer(from, serial) {
            *held = arrival;
            self.offers.remove(&(from, serial));
        }
        Ok(())
    }

    /// Copies unexpected messages out of the transport's memory and returns it. Called when nothing else happens,
    /// because the messages that their receives wait for may need that memory to arrive.
    pub(crate) fn spill(&mut self) {
        let Matching { unexpected, claims, parked, parked_of, pool, .. } = self;
        let mut spill = |label: Label, held: &mut Arrival| match held.copy_out(pool) {
            Ok(()) => parked_of[label.source as usize] -= 1,
            Err(error) => tracing::error!(%error, "a message cannot be copied out"),
        };
        claims.parked().for_each(|(label, held)| spill(label, held));
        for (number, label) in parked.drain(..) {
            // The number may name another message by now. Then there is nothing to do, or that message is copied a
            // little early.
            if let Some(held) = unexpected.get_mut(number, label).filter(|held| held.is_parked()) {
                spill(label, held);
            }
        }
    }

    /// Whether unexpected messages may be in the transport's memory.
    #[inline]
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty() || self.claims.has_parked()
    }
}

#[cfg(test)]
mod tests;
