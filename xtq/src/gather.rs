//! Payloads that lie in several places. Their bytes are gathered where they are to go: straight into the transport's
//! memory, a slot of a ring or the ring's memory for long bodies.
//!
//! ```text
//! Payload ──► Part ──► Gather::gather ──► Place: a message's memory, words of a ring, bytes
//!                      (pieces; a layer above: layouts)
//! ```
//!
//! The put owns what is gathered until the target has accepted it. It is only read, so a byte may be named twice.

use crate::buffer::Payload;
use gapless_bml::RailSlot;
use gapless_mem::{DeviceError, Region};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that lie in several places, or are made on the way, for [`Payload::gathered`]: so a layer above puts what it
/// alone can read.
///
/// It is called, and dropped, under the lock of the end that puts, and perhaps under those of layers above. So neither may
/// call them, wait or panic. A put that is refused for now is gathered again.
pub trait Gather: Send + Sync {
    /// How many bytes there are: the same number each time.
    fn bytes(&self) -> usize;

    /// Writes the bytes from `from` on into the place, until that is [full](GatherInto::left). What it leaves out is 0
    /// there.
    fn gather(&self, from: usize, into: &mut GatherInto<'_>);
}

/// Where gathered bytes go, one behind the other.
pub struct GatherInto<'a> {
    to: To<'a>,
    left: usize,
}

/// A place of each kind. It shrinks as it is written.
enum To<'a> {
    /// The memory of a message, from this byte on, and what went wrong.
    Message(&'a mut RailSlot, usize, Result<(), DeviceError>),
    Memory(&'a mut [u8]),
    Words(Words<'a>),
}

/// Words of memory that others may read and write.
struct Words<'a> {
    rest: &'a [AtomicU64],
    /// The first bytes of the next word.
    begun: [u8; 8],
    count: usize,
}

impl Words<'_> {
    fn store(&mut self, word: [u8; 8]) {
        if let Some((first, rest)) = self.rest.split_first() {
            first.store(u64::from_le_bytes(word), Ordering::Relaxed);
            self.rest = rest;
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        if self.count > 0 {
            let now = bytes.len().min(8 - self.count);
            self.begun[self.count..self.count + now].copy_from_slice(&bytes[..now]);
            (self.count, bytes) = (self.count + now, &bytes[now..]);
            if self.count < 8 {
                return;
            }
            self.store(self.begun);
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        let count = whole.len().min(self.rest.len());
        let (now, behind) = self.rest.split_at(count);
        for (word, bytes) in now.iter().zip(whole) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.rest = behind;
        self.begun = [0; 8];
        self.begun[..rest.len()].copy_from_slice(rest);
        self.count = rest.len();
    }
}

impl<'a> GatherInto<'a> {
    /// So many bytes of a message, from `at` on.
    pub(crate) fn message(slot: &'a mut RailSlot, at: usize, bytes: usize) -> GatherInto<'a> {
        GatherInto { to: To::Message(slot, at, Ok(())), left: bytes }
    }

    /// All of these bytes.
    pub(crate) fn memory(bytes: &'a mut [u8]) -> GatherInto<'a> {
        let left = bytes.len();
        GatherInto { to: To::Memory(bytes), left }
    }

    /// So many bytes, from the first of these words on.
    pub(crate) fn words(words: &'a [AtomicU64], bytes: usize) -> GatherInto<'a> {
        GatherInto { to: To::Words(Words { rest: words, begun: [0; 8], count: 0 }), left: bytes }
    }

    /// How many bytes it has still room for.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Writes these bytes, as far as there is room.
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        match &mut self.to {
            To::Message(slot, at, result) => {
                if let Err(error) = slot.write(*at, bytes) {
                    *result = Err(error);
                }
                *at += bytes.len();
            }
            To::Memory(rest) => {
                let (now, behind) = std::mem::take(rest).split_at_mut(bytes.len());
                now.copy_from_slice(bytes);
                *rest = behind;
            }
            To::Words(words) => words.write(bytes),
        }
    }

    /// The next `bytes` bytes of it, to be written through a pointer, or as many as there is room for. They count as
    /// written. They are valid for writes, and nobody else's, until this place is used again or dropped. `None` if only
    /// [`write`](GatherInto::write) reaches them.
    pub fn direct(&mut self, bytes: usize) -> Option<Region> {
        let bytes = bytes.min(self.left);
        let region = match &mut self.to {
            To::Message(slot, at, _) => {
                let region = slot.region().sub(*at as u64, bytes as u64).ok();
                let region = region.filter(|region| region.space().cpu_accessible())?;
                *at += bytes;
                region
            }
            To::Memory(rest) => {
                let (now, behind) = std::mem::take(rest).split_at_mut(bytes);
                *rest = behind;
                Region::of_mut(now)
            }
            To::Words(_) => return None,
        };
        self.left -= bytes;
        Some(region)
    }

    /// The next `bytes` bytes of it, if there are as many, as a place of their own.
    fn within(&mut self, bytes: usize, write: impl FnOnce(&mut GatherInto<'a>)) {
        let behind = self.left.saturating_sub(bytes);
        self.left -= behind;
        write(self);
        // What was left out.
        while self.left > 0 {
            self.write(&[0; 64]);
        }
        self.left = behind;
    }

    /// What became of it.
    fn finish(self) -> Result<(), DeviceError> {
        match self.to {
            To::Message(_, _, result) => result,
            To::Memory(_) => Ok(()),
            To::Words(mut words) => {
                if words.count > 0 {
                    words.store(words.begun);
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for GatherInto<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place with room for {} bytes", self.left)
    }
}

/// Bytes of a payload that are to be written somewhere.
#[derive(Clone, Copy)]
pub(crate) enum PayloadBytes<'a> {
    /// They lie one behind the other.
    One(&'a [u8]),
    /// So many from a byte on.
    Gathered(&'a dyn Gather, usize, usize),
}

impl<'a> PayloadBytes<'a> {
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            PayloadBytes::One(bytes) => bytes.len(),
            PayloadBytes::Gathered(_, _, len) => len,
        }
    }

    /// Those of its bytes that lie in `range`, which is inside.
    pub(crate) fn sub(self, range: Range<usize>) -> PayloadBytes<'a> {
        match self {
            PayloadBytes::One(bytes) => PayloadBytes::One(&bytes[range]),
            PayloadBytes::Gathered(source, from, _) => {
                PayloadBytes::Gathered(source, from + range.start, range.len())
            }
        }
    }

    /// Writes them into a place that has room for as many.
    pub(crate) fn write(self, mut place: GatherInto<'_>) -> Result<(), DeviceError> {
        match self {
            PayloadBytes::One(bytes) => place.write(bytes),
            PayloadBytes::Gathered(source, from, bytes) => {
                place.within(bytes, |place| source.gather(from, place));
            }
        }
        place.finish()
    }

    /// A copy.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        match self {
            PayloadBytes::One(bytes) => bytes.to_vec(),
            PayloadBytes::Gathered(..) => {
                let mut all = vec![0; self.len()];
                // Memory takes all.
                let _ = self.write(GatherInto::memory(&mut all));
                all
            }
        }
    }
}

/// Pieces, one behind the other.
pub(crate) struct Pieces {
    list: Vec<Payload>,
    /// How often pieces have pieces again.
    depth: u32,
    /// Where each ends.
    ends: Box<[usize]>,
}

impl Pieces {
    pub(crate) fn new(list: Vec<Payload>, depth: u32) -> Pieces {
        let ends = list.iter().scan(0usize, |end, piece| {
            // So many are refused when they are put.
            *end = end.saturating_add(piece.len());
            Some(*end)
        });
        Pieces { ends: ends.collect(), list, depth }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn into_list(self) -> Vec<Payload> {
        self.list
    }
}

impl Gather for Pieces {
    fn bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn gather(&self, from: usize, into: &mut GatherInto<'_>) {
        let first = self.ends.partition_point(|end| *end <= from);
        let begins = |at: usize| at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut skip = from.saturating_sub(begins(first));
        for piece in &self.list[first..] {
            if into.left() == 0 {
                return;
            }
            match piece.part() {
                PayloadBytes::One(bytes) => into.write(&bytes[skip..]),
                PayloadBytes::Gathered(source, _, bytes) => {
                    let rest = bytes.saturating_sub(skip);
                    into.within(rest, |into| source.gather(skip, into));
                }
            }
            skip = 0;
        }
    }
}

#[cfg(test)]
mod tests;
