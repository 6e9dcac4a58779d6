//! Predefined operations on packed elements: no buffers to describe, no checks to repeat.

use crate::ReduceOp;
use crate::combine::{Fold, Level, SOURCES_MAX, combine};
use gapless_dtype::Primitive;

/// An operation on elements of one basic type, which lie packed.
#[derive(Clone, Copy, Debug)]
pub struct PackedFold {
    fold: Fold,
    element: usize,
}

impl PackedFold {
    /// `None` if the operation is not defined for the type, only moves elements, or has no arithmetic here.
    #[must_use]
    pub fn new(op: ReduceOp, primitive: Primitive) -> Option<PackedFold> {
        let element = usize::try_from(primitive.size_bytes()).ok().filter(|bytes| *bytes > 0)?;
        Some(PackedFold { fold: combine(Level::best(), op, primitive)?, element })
    }

    /// How many sources are read before the target is written.
    pub const FIRST: usize = SOURCES_MAX;

    /// Combines `len` bytes of sources, from left to right, into `into`; without two sources nothing happens. What is no
    /// whole element at the end is left out.
    ///
    /// # Safety
    /// All sources are valid for reads of so many bytes, `into` for writes, and no reference covers it. A source shares no
    /// byte with `into`, unless it lies just there and is one of the first [`FIRST`](Self::FIRST). Only other processes may
    /// write the sources meanwhile: then what comes out is arbitrary.
    pub unsafe fn pointers(&self, sources: &[*const u8], into: *mut u8, len: usize) {
        /// What stays in the first-level cache while all sources are read.
        const PART: usize = 8 << 10;
        let whole = len / self.element * self.element;
        let part = (PART / self.element).max(1) * self.element;
        for start in (0..whole).step_by(part) {
            let count = (whole - start).min(part) / self.element;
            let Some((first, mut others)) = sources.split_first() else { return };
            let to = into.wrapping_add(start);
            let mut from = [first.wrapping_add(start); SOURCES_MAX];
            while !others.is_empty() {
                let (now, later) = others.split_at(others.len().min(SOURCES_MAX - 1));
                for (place, source) in from[1..].iter_mut().zip(now) {
                    *place = source.wrapping_add(start);
                }
                // SAFETY: two to four sources of `count` elements inside what the caller vouches for. One that is the target
                // is among the first four, so it is read before the target is written; in later turns the target itself
                // comes first. The loop was made for this processor.
                unsafe { (self.fold)(&from[..=now.len()], to, count) };
                (from[0], others) = (to.cast_const(), later);
            }
        }
    }

    /// Combines `left` with `right`, into `left`. What one has more than the other, or at the end is no whole element, is left
    /// out.
    pub fn onto(&self, left: &mut [u8], right: &[u8]) {
        let count = left.len().min(right.len()) / self.element;
        let to = left.as_mut_ptr();
        // SAFETY: two sources of `count` elements, which are borrowed; the target is the first of them. The loop was made for
        // this processor.
        unsafe { (self.fold)(&[to.cast_const(), right.as_ptr()], to, count) };
    }

    /// Combines blocks, from left to right, into `into`: each as long as that, and `stride` bytes behind the one before.
    /// What is no whole block, or at the end no whole element, is left out. Without a block nothing happens.
    pub fn blocks(&self, blocks: &[u8], stride: usize, into: &mut [u8]) {
        let count = into.len() / self.element;
        let bytes = count * self.element;
        let mut blocks = blocks.chunks(stride.max(1)).filter_map(|block| block.get(..bytes));
        let Some(first) = blocks.next() else { return };
        let mut from = [first.as_ptr(); SOURCES_MAX];
        let mut combined = false;
        loop {
            let mut sources = 1;
            for (place, block) in from[1..].iter_mut().zip(blocks.by_ref()) {
                *place = block.as_ptr();
                sources += 1;
            }
            if sources == 1 {
                break;
            }
            let to = into.as_mut_ptr();
            // SAFETY: two to four sources of `count` elements: blocks that are borrowed, or, of a later turn, first the
            // target, which is borrowed exclusively and as long. The loop was made for this processor.
            unsafe { (self.fold)(&from[..sources], to, count) };
            from[0] = to.cast_const();
            combined = true;
        }
        if !combined {
            into[..bytes].copy_from_slice(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_combined_in_their_order() {
        let fold = PackedFold::new(ReduceOp::Sum, Primitive::Float).unwrap();
        let numbers = [1e8f32, 1.0, -1e8, 3.0, 0.5, 7.0, -2.0, 0.25, 1e-3];
        for count in 1..=numbers.len() {
            let mut memory = vec![0xEE; 12 * count];
            for (block, number) in memory.chunks_mut(12).zip(numbers) {
                block[..4].copy_from_slice(&number.to_ne_bytes());
                block[4..8].copy_from_slice(&(2.0 * number).to_ne_bytes());
            }
            // Two bytes at the end are no element.
            let mut into = [0xAA; 10];
            fold.blocks(&memory, 12, &mut into);
            let sum = |factor: f32| {
                let all = numbers[..count].iter().map(|number| factor * number);
                all.reduce(|left, right| left + right).unwrap().to_ne_bytes()
            };
            assert_eq!((&into[..4], &into[4..8]), (&sum(1.0)[..], &sum(2.0)[..]), "{count}");
            assert_eq!(into[8..], [0xAA; 2]);
        }
        let mut left = [1.0f32.to_ne_bytes(), 2.0f32.to_ne_bytes()].concat();
        fold.onto(&mut left, &[3.0f32.to_ne_bytes(), [7; 4]].concat()[..7]);
        assert_eq!(left, [4.0f32.to_ne_bytes(), 2.0f32.to_ne_bytes()].concat());
        let mut into = [7; 4];
        fold.blocks(&[], 4, &mut into);
        fold.blocks(&[1, 2, 3], 4, &mut into);
        assert_eq!(into, [7; 4], "no block");
    }

    #[test]
    fn sources_anywhere_are_combined_as_blocks_are() {
        let fold = PackedFold::new(ReduceOp::Sum, Primitive::Double).unwrap();
        for (ranks, count) in [(1, 3), (2, 1), (4, 5000), (7, 2500), (16, 1025)] {
            let number = |rank: usize, at: usize| ((rank * 7919 + at * 31) % 1013) as f64 / 7.0;
            let vectors: Vec<Vec<f64>> =
                (0..ranks).map(|rank| (0..count).map(|at| number(rank, at)).collect()).collect();
            let bytes: Vec<u8> =
                vectors.iter().flatten().flat_map(|number| number.to_ne_bytes()).collect();
            let mut expected = vec![0; 8 * count];
            fold.blocks(&bytes, 8 * count, &mut expected);
            let pointers: Vec<*const u8> =
                vectors.iter().map(|vector| vector.as_ptr().cast()).collect();
            // Three bytes more are no element.
            let mut into = vec![0u8; 8 * count + 3];
            // SAFETY: vectors of `count` numbers, and three bytes that are not looked at.
            unsafe { fold.pointers(&pointers, into.as_mut_ptr(), 8 * count) };
            assert!(ranks == 1 || into[..8 * count] == expected, "{ranks} {count}");
            // The target is the second source.
            if ranks > 1 {
                let mut own = vectors[1].clone();
                let target = own.as_mut_ptr().cast::<u8>();
                let mut pointers = pointers;
                pointers[1] = target.cast_const();
                // SAFETY: as above.
                unsafe { fold.pointers(&pointers, target, 8 * count) };
                let own: Vec<u8> = own.iter().flat_map(|number| number.to_ne_bytes()).collect();
                assert_eq!(own, expected, "{ranks} {count}");
            }
        }
    }

    #[test]
    fn some_operations_have_no_loop() {
        assert!(PackedFold::new(ReduceOp::Band, Primitive::Float).is_none());
        assert!(PackedFold::new(ReduceOp::Replace, Primitive::Float).is_none());
    }
}
