//! Puts that only a ring knows. Each is kept in the place of its slot, by its box, until another put comes to that place:
//! so mostly nothing is allocated, and a body is copied only into the ring. A body that lies in its slot is kept, too: the one in the ring is the
//! target's to write.

use super::{Outgoing, PutStage};
use crate::device::{Lane, SLOTS};
use crate::packet::Packet;
use crate::put::{Put, PutHandle};
use crate::signal::Signal;

/// A place for each slot of a ring.
#[derive(Debug)]
pub(super) struct SlotRecords(Box<[Record; SLOTS]>);

/// A put; what is left of it, if its task has ended.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The next put of this place has it, too, if nobody else has it by then.
    handle: PutHandle,
    put: Option<Put>,
}

impl Default for SlotRecords {
    fn default() -> SlotRecords {
        SlotRecords(Box::new(std::array::from_fn(|_| Record::default())))
    }
}

impl SlotRecords {
    /// The place of a slot.
    #[inline]
    pub(super) fn at(&mut self, slot: u8) -> &mut Record {
        &mut self.0[usize::from(slot)]
    }
}

impl Record {
    /// Writes a put into the ring, which has this slot free, and keeps it. If the ring refuses it, gives it back.
    #[inline]
    pub(super) fn put(&mut self, lane: &mut Lane, put: Put) -> Result<(u64, PutHandle), Put> {
        // What takes a bus lock comes before the stores that others wait for.
        let handle = self.handle.renew();
        let (order, packet) = (&put.order, put.order.words());
        let number = match order.short() {
            Some(short) => lane.put_short(&packet, short),
            None => lane.put_part(&packet, order.arguments(), order.payload()),
        };
        match number {
            Ok(number) => {
                if let Some(before) = self.put.replace(put) {
                    before.lay_aside();
                }
                Ok((number, handle))
            }
            // What is wrong, or has no room, is told apart by who comes after.
            Err(_) => Err(put),
        }
    }

    /// Its task has ended well. Whether `note` tells its signal; if not, nothing is changed.
    #[inline]
    pub(super) fn end_well(&mut self, note: impl FnOnce(&Signal) -> bool) -> bool {
        let Some(put) = &mut self.put else { return true };
        if !put.order.signal().is_none_or(note) {
            return false;
        }
        put.order.leave_signal();
        // Whoever learns of the end may have the payload to itself.
        put.order.clear_body();
        self.handle.accept(true);
        true
    }

    /// Takes the put out, for the initiator.
    pub(super) fn take(&mut self) -> Option<Outgoing> {
        let order = &mut self.put.as_mut()?.order;
        // It had one when it was put.
        let packet = order.packet().unwrap_or_else(|_| Packet::none());
        let outgoing = Outgoing::of(order, packet, self.handle.clone());
        Some(Outgoing { stage: PutStage::InRing, ..outgoing })
    }
}

/// A put in a ring: one of the initiator's, by name, or one that nobody else knows, in the place of a slot. It is one word,
/// so that it is written by one store: a wider load of two would wait for all stores before them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(pub(super) u64);

impl Name {
    /// Names are counted from 0, and do not come so far.
    const KEPT: u64 = 1 << 63;

    #[inline]
    pub(super) fn kept(slot: u8) -> Name {
        Name(Name::KEPT | u64::from(slot))
    }

    /// The slot in whose place it is, if nobody else knows it.
    #[inline]
    pub(super) fn slot(self) -> Option<u8> {
        (self.0 & Name::KEPT != 0).then(|| self.0.to_le_bytes()[0])
    }
}

/// The puts in a ring, in order: not more than it has slots.
#[derive(Debug)]
pub(super) struct Running {
    names: Box<[Name; SLOTS]>,
    /// Where the first is.
    first: u8,
    len: usize,
}

impl Default for Running {
    fn default() -> Running {
        Running { names: Box::new([Name(0); SLOTS]), first: 0, len: 0 }
    }
}

// A place is a byte.
const _: () = assert!(SLOTS == 256);

impl Running {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more. The ring has taken it, so there is a place.
    #[inline]
    pub(super) fn push(&mut self, name: Name) {
        debug_assert!(self.len < SLOTS, "more puts than slots");
        let at = self.first.wrapping_add(self.len.to_le_bytes()[0]);
        self.names[usize::from(at)] = name;
        self.len += 1;
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Name> {
        (self.len > 0).then(|| self.names[usize::from(self.first)])
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Name> {
        let name = self.first()?;
        (self.first, self.len) = (self.first.wrapping_add(1), self.len - 1);
        Some(name)
    }
}
