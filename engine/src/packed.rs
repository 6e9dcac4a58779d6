//! Predefined operations on packed elements in memory that nobody shares: no buffers to describe, no checks to repeat.

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
        let mut into = [7; 4];
        fold.blocks(&[], 4, &mut into);
        fold.blocks(&[1, 2, 3], 4, &mut into);
        assert_eq!(into, [7; 4], "no block");
    }

    #[test]
    fn some_operations_have_no_loop() {
        assert!(PackedFold::new(ReduceOp::Band, Primitive::Float).is_none());
        assert!(PackedFold::new(ReduceOp::Replace, Primitive::Float).is_none());
    }
}
