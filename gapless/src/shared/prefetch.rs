//! Memory that a thread brings near while it waits for a message into it, or out of it.
//!
//! A processor that waits has nothing else to do, and copies sooner what is in its cache already. Messages between two
//! processes, from memory to memory: of 16 KiB take 0.90 and 0.92 of the time so on a Zen 3 and on a Xeon with 300 MiB
//! of cache, of 64 KiB 0.85 and 0.89. Only buffers without gaps are brought near.
//!
//! Prefetches are hints: nothing is read or written. Units: bytes.

use gapless_engine::Typed;
use gapless_mem::{Region, prefetch_to_read, prefetch_to_write};

/// What is asked for between two polls: it takes about as long as a poll.
const SOME: u64 = 1 << 10;

/// Shorter messages come before a prefetch pays.
const LEAST: u64 = 4 << 10;

/// No more is brought near: this much stays in a second-level cache, with what else is read and written for the
/// message.
const MOST: u64 = 64 << 10;

/// What is still to be brought near.
#[derive(Debug)]
pub(crate) struct Prefetch {
    rest: Option<Region>,
    /// Whether it will be written.
    written: bool,
}

impl Prefetch {
    pub(crate) const NOTHING: Prefetch = Prefetch { rest: None, written: false };

    /// A buffer that is received into.
    pub(crate) fn to_write(buffer: &Typed) -> Prefetch {
        Prefetch { rest: start_of(buffer), written: true }
    }

    /// A buffer that is sent.
    pub(crate) fn to_read(buffer: &Typed) -> Prefetch {
        Prefetch { rest: start_of(buffer), written: false }
    }

    /// Asks for the next lines.
    #[inline]
    pub(crate) fn some(&mut self) {
        let Some(next) = self.next() else { return };
        if self.written {
            prefetch_to_write(&next);
        } else {
            prefetch_to_read(&next);
        }
    }

    fn next(&mut self) -> Option<Region> {
        let rest = self.rest.take()?;
        let len = rest.len().min(SOME);
        if len < rest.len() {
            self.rest = rest.sub(len, rest.len() - len).ok();
        }
        rest.sub(0, len).ok()
    }
}

/// What of a buffer is brought near.
fn start_of(buffer: &Typed) -> Option<Region> {
    let region = buffer.as_contiguous().filter(|region| region.len() >= LEAST)?;
    region.sub(0, region.len().min(MOST)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    fn parts(mut prefetch: Prefetch) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| prefetch.next()).map(|part| (part.start(), part.len())).collect()
    }

    #[test]
    fn every_line_has_its_turn_and_none_beside() {
        for len in [LEAST, LEAST + 1, 10_000, MOST, MOST + 5000] {
            let memory = vec![0u8; usize::try_from(len).unwrap()];
            let mut at = memory.as_ptr().addr() as u64;
            let end = at + len.min(MOST);
            for (address, len) in parts(Prefetch::to_read(&Typed::contiguous(Region::of(&memory))))
            {
                assert!(address == at && len > 0 && len <= SOME);
                at += len;
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn short_buffers_and_those_with_gaps_are_left_alone() {
        let mut memory = vec![0u8; 1 << 16];
        let short = Typed::contiguous(Region::of(&memory[..4095]));
        assert!(parts(Prefetch::to_read(&short)).is_empty());
        let column = Datatype::vector(1024, 4, 16, &Primitive::Int.into()).unwrap();
        let column = column.commit().unwrap();
        let gaps = Typed::new(Region::of_mut(&mut memory), 0, &column, 1).unwrap();
        assert!(parts(Prefetch::to_write(&gaps)).is_empty());
        let mut whole = Prefetch::to_write(&Typed::contiguous(Region::of_mut(&mut memory)));
        (0..100).for_each(|_| whole.some());
        assert!(whole.next().is_none() && parts(Prefetch::NOTHING).is_empty());
    }
}
