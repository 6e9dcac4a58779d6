//! Memory with places for a layout, one after another in a fixed order that looks unordered, until as
//! many bytes as the rotation asks for have been touched. As `arena` and `turn` in `peers.c`. Units: bytes.

use std::error::Error;

use gapless::SharedBuf;

use crate::layouts::{LINE, Laid, index};

const PAGE: usize = 4096;

/// Ordinary memory, or memory that the peer can map.
pub(crate) enum ArenaMemory {
    Heap(Vec<u8>),
    Shared(SharedBuf),
}

/// Filled memory and the places in it.
pub(crate) struct Arena {
    memory: ArenaMemory,
    start: usize,
    step: usize,
    many: usize,
    between: usize,
    places: usize,
    stride: usize,
    at: usize,
}

impl Arena {
    pub(crate) fn new(
        laid: &Laid,
        rotation: u64,
        allocate: impl FnOnce(usize) -> Result<ArenaMemory, Box<dyn Error>>,
    ) -> Result<Arena, Box<dyn Error>> {
        let places = (rotation / laid.payload.max(1) + 2).min(1 << 16);
        let last = (places - 1) / laid.many * laid.period + (laid.many - 1) * laid.step;
        let len = index(last + laid.span + LINE);
        let mut memory = allocate(len + PAGE)?;
        let all = memory.bytes_mut();
        let start = all.as_ptr().align_offset(PAGE);
        for (i, word) in all[start..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (8 * i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
        }
        let places = index(places);
        let mut stride = places / 2 + 1;
        while places > 1 && greatest_divisor(stride, places) != 1 {
            stride += 1;
        }
        let (step, many, between) = (index(laid.step), index(laid.many), index(laid.period));
        Ok(Arena { memory, start, step, many, between, places, stride, at: 0 })
    }

    /// Where the next place is.
    pub(crate) fn turn(&mut self) -> usize {
        self.at = (self.at + self.stride) % self.places;
        self.start + self.at % self.many * self.step + self.at / self.many * self.between
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl ArenaMemory {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            ArenaMemory::Heap(memory) => memory,
            ArenaMemory::Shared(memory) => memory,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            ArenaMemory::Heap(memory) => memory,
            ArenaMemory::Shared(memory) => memory,
        }
    }
}

fn greatest_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::contiguous;

    #[test]
    fn all_places_have_their_turn() {
        let laid = contiguous(1000).unwrap();
        for rotation in [0, 5_000, 7_000, 16_000] {
            let heap = |len| Ok(ArenaMemory::Heap(vec![0; len]));
            let mut arena = Arena::new(&laid, rotation, heap).unwrap();
            let mut seen: Vec<usize> = (0..arena.places).map(|_| arena.turn()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), arena.places);
            assert!(seen.iter().all(|place| place + 1000 <= arena.bytes().len()));
        }
    }
}
