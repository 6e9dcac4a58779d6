//! Memory that operations work on, another place each time.
//!
//! An [`Arena`] is one large, filled allocation; a [`Rotating`] finds the places in it where one side
//! of a message can lie without sharing a cache line with another place, and goes round them in
//! shuffled order. Places of sparse layouts interleave, so that a face of a cube needs no gigabytes.
//!
//! Two arenas take part in an operation. In each, the places touch more than twice the last-level
//! cache before the first one's turn comes again: more than four times together.

use std::ops::Range;

use gapless_cli::pingpong::{LINE, Places};
use gapless_dtype::{Convertor, Datatype, Primitive};
use gapless_layouts::Side;
use gapless_report::{Bytes, last_level_cache_bytes};

use crate::error::Failure;
use crate::memories::index;
use crate::random::Random;

/// What the last-level cache is taken to be where the kernel does not tell.
pub const CACHE_BYTES_ASSUMED: u64 = 32 << 20;
/// An arena is not made larger than this.
pub const ARENA_BYTES_MAX: u64 = 512 << 20;
/// Arenas begin at a page, as large buffers of a careful program do.
const PAGE: usize = 4096;

/// How far operations rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The last-level cache, in bytes.
    pub cache_bytes: u64,
    /// Whether that is a guess, because the kernel does not tell.
    pub assumed: bool,
    /// Bytes that the places of each side touch together, at least, if the arena holds as many.
    pub wanted_bytes: u64,
}

impl Rotation {
    /// As far as this machine's cache asks for.
    #[must_use]
    pub fn of_machine() -> Rotation {
        let told = last_level_cache_bytes();
        let cache_bytes = told.unwrap_or(CACHE_BYTES_ASSUMED);
        Rotation { cache_bytes, assumed: told.is_none(), wanted_bytes: 2 * cache_bytes }
    }

    /// Hardly at all, to see whether an experiment works.
    #[must_use]
    pub fn token() -> Rotation {
        Rotation { wanted_bytes: 128 << 10, ..Rotation::of_machine() }
    }

    /// Bytes of an arena in which each of these sides rotates, as far as [`ARENA_BYTES_MAX`] allows.
    ///
    /// # Errors
    /// [`Failure::TooBig`], with the name of the side that does not fit at all.
    pub fn arena_bytes<'a>(
        &self,
        sides: impl IntoIterator<Item = (&'a str, &'a Side)>,
    ) -> Result<u64, Failure> {
        let mut most = LINE;
        for (name, side) in sides {
            let (low, high) = side.touched().unwrap_or((0, 0));
            let low = low.min(i64::try_from(side.origin).unwrap_or(low));
            // Its first byte may be anywhere in a line.
            let span = (high - low).cast_unsigned().max(side.payload_bytes()) + 2 * LINE;
            if span > ARENA_BYTES_MAX {
                let (needed, most) = (Bytes(span), Bytes(ARENA_BYTES_MAX));
                return Err(Failure::TooBig { case: name.to_owned(), needed, most });
            }
            let places = self.wanted_bytes / side.payload_bytes().max(1) + 2;
            most = most.max(span.saturating_mul(places).min(ARENA_BYTES_MAX));
        }
        Ok(most)
    }
}

/// Memory filled with numbers that look random, so that every page is there and no two lines agree.
pub struct Arena {
    memory: Vec<u8>,
    start: usize,
}

impl Arena {
    /// `len` bytes, filled from `seed`.
    #[must_use]
    pub fn new(len: u64, seed: u64) -> Arena {
        let len = usize::try_from(len).expect("arenas are bounded far below the address space");
        let mut memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        memory.truncate(start + len);
        Random::new(seed).fill(&mut memory[start..]);
        Arena { memory, start }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// The bytes, to be written.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

/// One side of a message that lies at another place of its arena each time.
pub struct Rotating {
    /// A cursor over the side's instances.
    pub convertor: Convertor,
    /// Index of displacement 0 in a place.
    pub origin: usize,
    /// Maximal contiguous runs.
    pub blocks: u64,
    places: Places,
    at: usize,
}

impl Rotating {
    /// Finds the places of `side` in `arena` and shuffles them by `seed`.
    ///
    /// # Errors
    /// A datatype that does not commit, or an arena into which not one place fits.
    pub fn new(
        side: &Side,
        arena: &Arena,
        rotation: &Rotation,
        seed: u64,
    ) -> Result<Rotating, Failure> {
        let layout = side.datatype.commit()?;
        let most = arena.bytes().len() as u64;
        let found = Places::find(side, &layout, most, rotation.wanted_bytes);
        let mut places = found.ok_or_else(|| Failure::TooBig {
            case: format!("{side:?}"),
            needed: Bytes(side.buffer_bytes),
            most: Bytes(most),
        })?;
        places.shuffle(seed);
        Ok(Rotating {
            convertor: Convertor::new(&layout, side.count)?,
            origin: index(places.origin),
            blocks: layout.blocks_of(side.count).unwrap_or(u64::MAX),
            places,
            at: 0,
        })
    }

    /// Where in the arena the first place is.
    #[must_use]
    pub fn first(&self) -> Range<usize> {
        self.place(0)
    }

    /// Where the next operation works: the place after the last one's, or always the first if it is
    /// to be `resident`. The cursor is at the first packed byte.
    pub fn turn(&mut self, resident: bool) -> Range<usize> {
        self.convertor.seek(0).expect("every convertor has a beginning");
        if resident {
            return self.first();
        }
        self.at = if self.at + 1 == self.places.starts.len() { 0 } else { self.at + 1 };
        self.place(self.at)
    }

    /// Bytes in the cache lines that all places touch.
    #[must_use]
    pub fn reached_bytes(&self) -> u64 {
        self.places.reached_bytes()
    }

    fn place(&self, at: usize) -> Range<usize> {
        let start = index(self.places.starts[at]);
        start..start + index(self.places.buffer_bytes)
    }
}

/// `memcpy`, to compare with: from contiguous places to contiguous places, rotating as far as what it
/// is compared with.
///
/// It has arenas of its own. In shared ones it would find places in cache that the other had touched
/// just before, or the other way round.
pub struct Memcpy {
    rotation: Rotation,
    seed: u64,
    from: Arena,
    to: Arena,
}

/// [`Memcpy`] of one payload.
pub struct Copier<'a> {
    from: &'a Arena,
    to: &'a mut Arena,
    places: [Rotating; 2],
}

impl Memcpy {
    /// For payloads of these sizes, in bytes.
    ///
    /// # Errors
    /// [`Failure::TooBig`].
    pub fn new(
        payloads: impl IntoIterator<Item = u64>,
        rotation: Rotation,
        seed: u64,
    ) -> Result<Memcpy, Failure> {
        let sides: Vec<Side> = payloads.into_iter().map(contiguous).collect();
        let bytes = rotation.arena_bytes(sides.iter().map(|side| ("the payload", side)))?;
        let [from, to] = [5, 6].map(|salt| Arena::new(bytes, seed ^ salt));
        Ok(Memcpy { rotation, seed, from, to })
    }

    /// Copies of one payload.
    ///
    /// # Errors
    /// [`Failure::TooBig`] for a payload that was not announced.
    pub fn of(&mut self, payload_bytes: u64) -> Result<Copier<'_>, Failure> {
        let side = contiguous(payload_bytes);
        let from = Rotating::new(&side, &self.from, &self.rotation, self.seed ^ 7)?;
        let to = Rotating::new(&side, &self.to, &self.rotation, self.seed ^ 8)?;
        Ok(Copier { from: &self.from, to: &mut self.to, places: [from, to] })
    }
}

impl Copier<'_> {
    /// One copy, at another place or at the `resident` one.
    pub fn copy(&mut self, resident: bool) {
        let [from, to] = &mut self.places;
        let source = &self.from.bytes()[from.turn(resident)];
        let target = &mut self.to.bytes_mut()[to.turn(resident)];
        target.copy_from_slice(std::hint::black_box(source));
        std::hint::black_box(target);
    }
}

/// `bytes` bytes without gaps.
#[must_use]
pub fn contiguous(bytes: u64) -> Side {
    Side { datatype: Datatype::from(Primitive::Byte), count: bytes, origin: 0, buffer_bytes: bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_layouts::cases;

    #[test]
    fn places_go_round_without_overlap() {
        let case = &cases("v", Some(16)).unwrap()[0];
        let rotation = Rotation { cache_bytes: 0, assumed: true, wanted_bytes: 20_000 };
        let arena_bytes = rotation.arena_bytes([("V", &case.send)]).unwrap();
        let arena = Arena::new(arena_bytes, 1);
        let mut rotating = Rotating::new(&case.send, &arena, &rotation, 7).unwrap();
        assert!(rotating.reached_bytes() > 20_000);
        let places = rotating.places.starts.len();
        let mut seen: Vec<usize> = (0..places).map(|_| rotating.turn(false).start).collect();
        assert_eq!(rotating.turn(false).start, seen[0]);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), places);
        let resident = rotating.turn(true);
        assert_eq!(resident, rotating.turn(true));
    }

    #[test]
    fn memcpy_copies() {
        let mut memcpy = Memcpy::new([100, 5000], Rotation::token(), 1).unwrap();
        for payload in [100, 5000] {
            let mut copier = memcpy.of(payload).unwrap();
            copier.copy(true);
            let places = copier.places.each_ref().map(Rotating::first);
            let [from, to] = places;
            assert!(copier.from.bytes()[from] == copier.to.bytes()[to]);
        }
        assert!(memcpy.of(1 << 40).is_err());
    }

    #[test]
    fn arenas_are_aligned_filled_and_bounded() {
        let arena = Arena::new(10_000, 3);
        assert_eq!(arena.bytes().len(), 10_000);
        assert!(arena.bytes().as_ptr().addr().is_multiple_of(PAGE));
        let rotation = Rotation { cache_bytes: 0, assumed: true, wanted_bytes: 1 << 40 };
        assert_eq!(rotation.arena_bytes([("a", &contiguous(1))]).unwrap(), ARENA_BYTES_MAX);
        let error = rotation.arena_bytes([("big", &contiguous(1 << 30))]).unwrap_err();
        assert!(error.to_string().starts_with("big needs a buffer of 1.00 GiB"), "{error}");
    }
}
