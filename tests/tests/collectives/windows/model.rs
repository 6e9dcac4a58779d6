//! What windows are, without processes: bytes for each rank, changed one operation after the other.

use super::Random;
use gapless::{Datatype, Layout, Primitive, ReduceOp};
use gapless_engine::PackedFold;

/// Elements in some order at some places of a buffer.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) layout: Layout,
    pub(super) count: u64,
    /// Where each element begins, in the order of the packed stream.
    pub(super) places: Vec<usize>,
    pub(super) element: Primitive,
}

impl Shape {
    /// `elements` elements with gaps of random lengths, of which all lie in the first `4 * elements` places.
    pub(super) fn random(random: &mut Random, element: Primitive, elements: usize) -> Shape {
        let size = usize::try_from(element.size_bytes()).unwrap();
        let basic = Datatype::from(element);
        let number = |value: usize| i64::try_from(value).unwrap();
        let (datatype, count, places): (Datatype, u64, Vec<usize>) = match random.below(4) {
            // Without gaps.
            0 => (basic, elements as u64, (0..elements).collect()),
            1 => {
                let stride = 1 + random.below(4);
                let vector = Datatype::vector(elements as u64, 1, number(stride), &basic).unwrap();
                (vector, 1, (0..elements).map(|at| at * stride).collect())
            }
            2 => {
                // Blocks in any order.
                let mut blocks: Vec<usize> = (0..elements).map(|at| 4 * at + at % 3).collect();
                for at in (1..elements).rev() {
                    blocks.swap(at, random.below(at + 1));
                }
                let displacements: Vec<i64> = blocks.iter().map(|at| number(*at)).collect();
                let ones = vec![1; elements];
                (Datatype::indexed(&ones, &displacements, &basic).unwrap(), 1, blocks)
            }
            _ => {
                // Several instances, with a gap behind each.
                let extent = number(size * 3);
                let resized = Datatype::resized(0, extent, &basic).unwrap();
                (resized, elements as u64, (0..elements).map(|at| 3 * at).collect())
            }
        };
        let places = places.into_iter().map(|at| at * size).collect();
        Shape { layout: datatype.commit().unwrap(), count, places, element }
    }

    pub(super) fn size(&self) -> usize {
        usize::try_from(self.element.size_bytes()).unwrap()
    }

    /// The elements in a buffer, packed.
    pub(super) fn pack(&self, buffer: &[u8]) -> Vec<u8> {
        let size = self.size();
        self.places.iter().flat_map(|at| buffer[*at..at + size].iter().copied()).collect()
    }

    /// The other way round.
    pub(super) fn unpack(&self, packed: &[u8], buffer: &mut [u8]) {
        let size = self.size();
        for (at, element) in self.places.iter().zip(packed.chunks(size)) {
            buffer[*at..at + size].copy_from_slice(element);
        }
    }
}

/// `old op new`, element by element.
pub(super) fn combined(op: ReduceOp, element: Primitive, old: &[u8], new: &[u8]) -> Vec<u8> {
    match op {
        ReduceOp::Replace => new.to_vec(),
        ReduceOp::NoOp => old.to_vec(),
        op => {
            let fold = PackedFold::new(op, element).unwrap();
            let mut result = vec![0; old.len()];
            fold.blocks(&[old, new].concat(), old.len(), &mut result);
            result
        }
    }
}
