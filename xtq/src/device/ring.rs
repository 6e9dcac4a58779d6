//! The initiator's end of a ring: puts go into it by plain stores, and what became of them is read out of it.

use super::layout::{
    INLINE_BYTES, PACKET_UNITS, RING_STATE, RING_WANTED, RingShape, SLOT_BYTES, SLOTS,
    STATUS_ENDED, STATUS_FAILED, STATUS_MALFORMED, UNIT_BYTES, arena_bytes, sequence_of, slot_of,
};
use super::short::Short;
use super::{Failure, state};
use crate::error::Refusal;
use crate::gather::{GatherInto, PayloadBytes};
use crate::packet::{Packet, PacketWords, body_lengths};
use gapless_mem::{DeviceError, Lease, Words};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Why a put does not go into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// All slots, or the bytes for bodies, are taken: take [outcomes](Lane::next) out first.
    #[error("the ring is full")]
    Full,
    /// A body that never fits.
    #[error("a body of {bytes} bytes, in a ring that has {max} for them")]
    TooLong {
        /// The body's length.
        bytes: usize,
        /// The longest.
        max: usize,
    },
    /// The packet says other lengths. Such a slot would never be whole, and nothing behind it would run.
    #[error("{arguments} bytes of arguments and {payload} of payload, and the packet says others")]
    Lengths {
        /// The arguments' length.
        arguments: usize,
        /// The payload's.
        payload: usize,
    },
}

/// Words of a unit.
const UNIT_WORDS: usize = UNIT_BYTES / 8;

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Its task has ended.
    Ended,
    /// The task has failed.
    Failed(Failure),
    /// The target did not take it.
    Refused(Refusal),
    /// The target found no packet; or it says what no worker says.
    Malformed,
}

impl PutOutcome {
    fn of(word: u64) -> PutOutcome {
        let [_, _, code, zero, value @ ..] = word.to_le_bytes();
        let value = u32::from_le_bytes(value);
        match (code, zero) {
            (STATUS_ENDED, 0) => PutOutcome::Ended,
            (STATUS_FAILED, 0) => PutOutcome::Failed(Failure::of(value)),
            (STATUS_MALFORMED, _) => PutOutcome::Malformed,
            (code, 0) => {
                Refusal::decode(code, value).map_or(PutOutcome::Malformed, PutOutcome::Refused)
            }
            _ => PutOutcome::Malformed,
        }
    }
}

/// The initiator's end of a ring. One thread uses it at a time; the worker's statuses come in the order of the puts.
#[derive(Debug)]
pub struct Lane {
    words: Words,
    /// Puts so far.
    position: u64,
    /// Puts whose outcome was taken.
    taken: u64,
    /// Units that the last put into each slot has used.
    used: Box<[u8; SLOTS]>,
    arena: Arena,
}

/// Bytes for long bodies, given out in order.
#[derive(Debug)]
struct Arena {
    bytes: usize,
    /// Where the next body goes, and where the oldest begins that is in use.
    head: usize,
    tail: usize,
    /// By position: where the next one begins.
    ends: VecDeque<(u64, usize)>,
}

impl Arena {
    /// A place for `len` bytes, a multiple of 16.
    fn take(&mut self, position: u64, len: usize) -> Option<usize> {
        let len = len.next_multiple_of(UNIT_BYTES);
        // A put of this position took a place, and its source panicked.
        if self.ends.back().is_some_and(|(of, _)| *of == position) {
            self.ends.pop_back();
            self.head = self.ends.back().map_or(self.tail, |(_, end)| *end);
        }
        if self.ends.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        let free = if self.ends.is_empty() || self.head > self.tail {
            self.bytes - self.head
        } else {
            self.tail - self.head
        };
        let at = match len <= free {
            true => self.head,
            // From the start anew.
            false if self.head > self.tail && len <= self.tail => 0,
            false => return None,
        };
        self.head = at + len;
        self.ends.push_back((position, self.head));
        Some(at)
    }

    /// The put of this position is over.
    fn give_back(&mut self, position: u64) {
        if let Some((_, end)) = self.ends.front().filter(|(of, _)| *of == position) {
            self.tail = *end;
            self.ends.pop_front();
        }
    }
}

impl Lane {
    /// The end of a ring in this memory, which the target has given to the worker, and which nobody has put into.
    ///
    /// # Errors
    /// Too short, not aligned, or memory that the CPU must not touch.
    ///
    /// # Safety
    /// The memory is a ring's, zeroed at first, and nobody else of this process touches it, but a
    /// [`WorkerTarget`](super::WorkerTarget) that has it as a ring.
    #[allow(unsafe_code, reason = "views memory as words")]
    pub unsafe fn new(memory: Lease, shape: RingShape) -> Result<Lane, DeviceError> {
        if memory.region().len() < shape.bytes() || !shape.arena_bytes.is_multiple_of(16) {
            return Err(DeviceError::Unsupported { what: "a ring in memory of this length" });
        }
        // SAFETY: the lease keeps the memory; the caller vouches that it is touched as words alone.
        let words = unsafe { Words::new(memory) }?;
        let bytes = usize::try_from(shape.arena_bytes).unwrap_or(0);
        let arena = Arena { bytes, head: 0, tail: 0, ends: VecDeque::new() };
        Ok(Lane { words, position: 0, taken: 0, used: Box::new([0; SLOTS]), arena })
    }

    #[inline]
    fn word(&self, byte: usize) -> &AtomicU64 {
        // `new` has found all of the ring inside.
        &self.words.all()[byte / 8]
    }

    /// Puts that are on their way, or whose outcome was not taken.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.position - self.taken
    }

    /// Puts so far, and of how many the outcome was taken.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.position, self.taken)
    }

    /// Where in the arena the body of a put lies that is too long for its slot.
    pub(crate) fn long_body_at(&self, position: u64) -> u64 {
        let unit = RingShape::slot_at(position) + PACKET_UNITS * UNIT_BYTES;
        self.word(unit + 8).load(Ordering::Relaxed)
    }

    /// What another ring says, of which this one is a copy: its worker's state, and statuses from this position on. Whether
    /// the first of them has come.
    pub(crate) fn learn(
        &self,
        state: u64,
        first: u64,
        statuses: impl Iterator<Item = u64>,
    ) -> bool {
        let mut has_come = false;
        for (position, status) in (first..self.position).zip(statuses) {
            let is_new = status & 0xFFFF == u64::from(sequence_of(position));
            has_come |= position == first && is_new;
            self.word(RingShape::status_at(position)).store(status, Ordering::Release);
        }
        if matches!(state, state::STARTING | state::RUNNING) {
            // The wish has come true.
            self.word(RING_WANTED).store(0, Ordering::Relaxed);
        }
        self.word(RING_STATE).store(state, Ordering::Release);
        has_come
    }

    /// Writes a packet and its body, given in two parts (arguments, payload), whose lengths the packet says. The worker
    /// may run it from now on; [`announce`](Lane::announce) sees to it that there is one. Gives the put's number,
    /// from 0.
    ///
    /// # Errors
    /// No room now, or never; lengths that are not the packet's.
    #[inline]
    pub fn put(&mut self, packet: &Packet, body: [&[u8]; 2]) -> Result<u64, RingError> {
        self.put_part(&packet.words(), body[0], PayloadBytes::One(body[1]))
    }

    /// The same, with a payload that may lie in several places: it is gathered into the slot, or the arena.
    #[inline]
    pub(crate) fn put_part(
        &mut self,
        packet: &PacketWords,
        arguments: &[u8],
        payload: PayloadBytes<'_>,
    ) -> Result<u64, RingError> {
        let lengths = [arguments.len(), payload.len()];
        if let PayloadBytes::One(payload) = payload
            && let Some(short) = Short::of(arguments, payload)
        {
            return self.put_short(packet, &short);
        }
        self.admit(packet, lengths)?;
        if lengths[0] + lengths[1] <= INLINE_BYTES {
            let mut gathered = [0; INLINE_BYTES];
            let gathered = &mut gathered[..payload.len()];
            // Memory takes all.
            let _ = payload.write(GatherInto::memory(gathered));
            if let Some(short) = Short::of(arguments, gathered) {
                return self.put_short(packet, &short);
            }
        }
        let bytes = arena_bytes(lengths[0], lengths[1]);
        if bytes.next_multiple_of(UNIT_BYTES) > self.arena.bytes {
            return Err(RingError::TooLong { bytes, max: self.arena.bytes });
        }
        let place = self.arena.take(self.position, bytes).ok_or(RingError::Full)?;
        self.fill_arena(place, arguments, payload);
        let (slot, sequence) = self.slot();
        store(slot, sequence, PACKET_UNITS, [0, place as u64]);
        Ok(self.seal(packet, PACKET_UNITS + 1))
    }

    /// The same, with a body that lies in the slot.
    #[inline]
    pub(crate) fn put_short(
        &mut self,
        packet: &PacketWords,
        body: &Short,
    ) -> Result<u64, RingError> {
        self.admit(packet, body.lengths())?;
        let (slot, sequence) = self.slot();
        let mut units = PACKET_UNITS;
        body.each_unit(|unit, halves| {
            store(slot, sequence, PACKET_UNITS + unit, halves);
            units = PACKET_UNITS + unit + 1;
        });
        Ok(self.seal(packet, units))
    }

    /// The slot of the next put, if it is free.
    #[inline]
    pub(crate) fn free_slot(&self) -> Option<u8> {
        // Below 256.
        (self.pending() < SLOTS as u64).then(|| slot_of(self.position).to_le_bytes()[0])
    }

    /// Whether a put with a body of these lengths may go into the next slot.
    #[inline]
    fn admit(&self, packet: &PacketWords, lengths: [usize; 2]) -> Result<(), RingError> {
        if body_lengths(packet) != lengths {
            let [arguments, payload] = lengths;
            return Err(RingError::Lengths { arguments, payload });
        }
        self.free_slot().map(drop).ok_or(RingError::Full)
    }

    /// The words of the next slot, and its sequence number.
    #[inline]
    fn slot(&self) -> (&[AtomicU64; SLOT_BYTES / 8], u64) {
        let at = RingShape::slot_at(self.position) / 8;
        // `new` has found all of the ring inside.
        (&self.words.all()[at..].as_chunks().0[0], sequence_of(self.position).into())
    }

    /// Writes the packet of the next slot, whose units are so many. Gives the put's number.
    #[inline]
    fn seal(&mut self, packet: &PacketWords, units: usize) -> u64 {
        let position = self.position;
        let (slot, sequence) = self.slot();
        for (unit, halves) in packet.as_chunks().0.iter().enumerate() {
            store(slot, sequence, unit, *halves);
        }
        // Units of an earlier put, which might have this sequence after 16 million others.
        let before = usize::from(self.used[slot_of(position)]);
        for unit in units..before {
            slot[unit * UNIT_WORDS].store(0, Ordering::Relaxed);
        }
        self.used[slot_of(position)] = u8::try_from(units).unwrap_or(u8::MAX);
        self.position += 1;
        position
    }

    fn fill_arena(&self, place: usize, arguments: &[u8], payload: PayloadBytes<'_>) {
        let behind = arguments.len().next_multiple_of(UNIT_BYTES);
        for (from, part) in [(0, PayloadBytes::One(arguments)), (behind, payload)] {
            let first = (RingShape::ARENA_AT + place + from) / 8;
            // Words take all.
            let _ = part.write(GatherInto::words(&self.words.all()[first..], part.len()));
        }
    }

    /// After puts: whether a worker is there. If not, the target is asked for one, and starts it when it next
    /// [looks](super::WorkerTarget::advance).
    #[inline]
    pub fn announce(&self) -> bool {
        state::announce(self.word(RING_STATE), self.word(RING_WANTED))
    }

    /// Whether a worker was asked for, and none has been started since.
    pub(crate) fn is_wanted(&self) -> bool {
        self.word(RING_WANTED).load(Ordering::Acquire) != 0
    }

    /// Whether a worker is there, or is about to be; one load.
    #[inline]
    pub(crate) fn has_worker(&self) -> bool {
        state::is_here(self.word(RING_STATE))
    }

    /// Whether a worker is there; if not, and puts are pending, the target is asked for one.
    pub fn is_served(&self) -> bool {
        let state = self.word(RING_STATE);
        match self.pending() {
            0 => state.load(Ordering::Acquire) == state::RUNNING,
            _ => state::insist(state, self.word(RING_WANTED)),
        }
    }

    /// The next outcome, in the order of the puts, if it is known. What the task has written can be seen then.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it is asked again after `None`")]
    pub fn next(&mut self) -> Option<(u64, PutOutcome)> {
        if self.taken == self.position {
            return None;
        }
        let position = self.taken;
        let word = self.word(RingShape::status_at(position)).load(Ordering::Acquire);
        if word & 0xFFFF != u64::from(sequence_of(position)) {
            return None;
        }
        self.arena.give_back(position);
        self.taken += 1;
        Some((position, PutOutcome::of(word)))
    }
}

/// Writes a unit of a slot, whose lowest 16 bits are 0.
#[inline]
fn store(slot: &[AtomicU64], sequence: u64, unit: usize, [low, high]: [u64; 2]) {
    let at = unit * UNIT_WORDS;
    // The half with the sequence last: who sees that sees the other.
    slot[at + 1].store(high, Ordering::Relaxed);
    slot[at].store(low | sequence, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source of a body panicked after the body had got its place; the next put has the same position.
    #[test]
    fn a_place_that_was_never_filled_is_given_back() {
        let mut arena = Arena { bytes: 1024, head: 0, tail: 0, ends: VecDeque::new() };
        for position in 0..100 {
            let places = [300, 200, 200].map(|len| arena.take(position, len));
            assert!(places.iter().all(Option::is_some), "{position}: {places:?}");
            assert_eq!(arena.ends.len(), if position == 0 { 1 } else { 2 });
            if position > 0 {
                arena.give_back(position - 1);
            }
        }
    }

    #[test]
    fn bodies_get_places_that_do_not_overlap() {
        let mut arena = Arena { bytes: 1024, head: 0, tail: 0, ends: VecDeque::new() };
        let mut held: VecDeque<(u64, std::ops::Range<usize>)> = VecDeque::new();
        let mut random = 7u64;
        let mut refused = 0;
        for position in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = 170 + usize::from(random.to_be_bytes()[0]) * 2;
            match arena.take(position, len) {
                Some(at) => {
                    let place = at..at + len;
                    assert!(place.end <= 1024 && at.is_multiple_of(16));
                    let apart = |other: &std::ops::Range<usize>| {
                        place.end <= other.start || other.end <= place.start
                    };
                    assert!(held.iter().all(|(_, other)| apart(other)), "{position}");
                    held.push_back((position, place));
                }
                None => {
                    refused += 1;
                    let (oldest, _) = held.pop_front().expect("an empty arena has room");
                    arena.give_back(oldest);
                }
            }
            if random.is_multiple_of(3)
                && let Some((oldest, _)) = held.pop_front()
            {
                // Puts without a body in the arena are over, too.
                arena.give_back(oldest + 10_000);
                arena.give_back(oldest);
            }
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn outcomes_are_read_as_they_are_written() {
        let word = |code, value| super::super::layout::status_word(9, code, value);
        assert_eq!(PutOutcome::of(word(64, 0)), PutOutcome::Ended);
        assert_eq!(PutOutcome::of(word(65, 3)), PutOutcome::Failed(Failure::Stopped));
        assert_eq!(
            PutOutcome::of(word(8, 77)),
            PutOutcome::Refused(Refusal::ReceiveBufferTooSmall { largest: 77 })
        );
        for code in [0, 12, 66, 255] {
            assert_eq!(PutOutcome::of(word(code, 0)), PutOutcome::Malformed);
        }
    }
}
