//! Matching: which receive takes which message (MPI 4.1 §3.5).
//!
//! Two sides, both pure: [`Posted`], the receives that wait for a message, and [`Unexpected`], the
//! messages that wait for a receive. A message goes to the receive that was posted first among
//! those that match; a receive takes the message that arrived first among those that match. With
//! messages of one sender arriving in the order of sending, that is MPI's non-overtaking rule.
//!
//! A receive names a source and a tag, or takes any: four classes. Each class has an index by what
//! it names, and stamps order the fronts of the four: the cost of a message does not depend on how
//! many receives or messages wait.

pub(crate) mod body;
pub(crate) mod claim;
mod index;
pub(crate) mod reorder;
mod sweep;

pub use claim::MessageId;

use crate::matching::index::{Cell, Index, Key};
use crate::wire::Label;
use slab::Slab;

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

/// Where a posted receive waits, so that it can be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    class: u8,
    cell: Cell,
}

impl Place {
    /// Of a receive that names its source and its tag.
    pub(crate) fn straight(cell: Cell) -> Place {
        Place { class: 0, cell }
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
    pub(crate) fn post(&mut self, pattern: Pattern, request: u32) -> Place {
        let class = pattern.class();
        self.next_stamp += 1;
        self.wild += usize::from(class != 0);
        let cell = self.classes[class].push(pattern.key(), self.next_stamp, request);
        Place { class: u8::try_from(class).expect("four classes"), cell }
    }

    /// Appends a receive that names its source and its tag; gives its cell.
    #[inline]
    pub(crate) fn post_straight(&mut self, label: Label, request: u32) -> Cell {
        self.next_stamp += 1;
        self.classes[0].push(key_of(label, 0), self.next_stamp, request)
    }

    /// Whether no receive can match such a message: none names its label, and none has a wildcard.
    #[inline]
    pub(crate) fn is_free(&self, label: Label) -> bool {
        self.wild == 0 && !self.classes[0].has(key_of(label, 0))
    }

    /// The tag of a receive that waits; `None`: any.
    pub(crate) fn tag(&self, place: Place) -> Option<i32> {
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
    pub(crate) fn straight(&self, label: Label) -> Option<u32> {
        if self.wild > 0 {
            return None;
        }
        self.classes[0].front(key_of(label, 0)).map(|(_, request, _)| request)
    }

    /// Takes out the receive that [`straight`](Posted::straight) has just found.
    #[inline]
    pub(crate) fn take_straight(&mut self, label: Label) {
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

    /// Withdraws a receive that no message has taken.
    pub(crate) fn withdraw(&mut self, place: Place) {
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
pub(crate) struct Unexpected<M> {
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
    pub(crate) fn peek(&mut self, pattern: Pattern) -> Option<(Label, &M)> {
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

#[cfg(test)]
mod tests;
