//! Users' buffers of random layouts, and random numbers.
use gapless_dtype::{Convertor, Datatype, Layout, Primitive};
use gapless_engine::Typed;
use gapless_mem::Region;

use crate::BufferBlocks;
use crate::schedule::Row;

/// Random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index below `end`, which is not 0.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// How buffers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Without gaps.
    Plain,
    /// As instances of a random datatype with gaps.
    Gaps,
    /// Each block on its own, in reverse order, with gaps.
    Apart,
}

/// A random layout of `ints` numbers in all: one instance, and how many.
fn layout(ints: u64, lie: Lie, random: &mut Random) -> (Layout, u64) {
    let int = Datatype::from(Primitive::Int32);
    if lie == Lie::Plain || ints == 0 {
        return (int.commit().unwrap(), ints);
    }
    let divisors: Vec<u64> = (1..=ints.min(40)).filter(|each| ints.is_multiple_of(*each)).collect();
    let each = divisors[usize::try_from(random.below(divisors.len() as u64)).unwrap()];
    let datatype = match random.below(3) {
        0 => Datatype::vector(each, 1, 2, &int),
        1 if each.is_multiple_of(2) => Datatype::vector(each / 2, 2, 5, &int),
        _ => Datatype::contiguous(each, &int),
    };
    let datatype = datatype.unwrap();
    let wide = Datatype::resized(0, datatype.extent() + 8, &datatype).unwrap();
    (wide.commit().unwrap(), ints / each)
}

/// One description within the memory of a row.
#[derive(Debug)]
struct Part {
    layout: Layout,
    count: u64,
    origin: usize,
    packed: usize,
}

/// A buffer.
#[derive(Debug)]
pub struct Held {
    memory: Vec<u8>,
    parts: Vec<Part>,
    whole: bool,
}

const GAP: u8 = 0xC7;

impl Held {
    /// A buffer of these blocks that holds `packed`.
    pub fn new(row: &Row, lie: Lie, packed: &[u8], random: &mut Random) -> Held {
        let whole = lie != Lie::Apart;
        let lens: Vec<u64> = match whole {
            true => vec![row.len()],
            false => {
                let range = |block| row.range(block);
                (0..row.blocks()).map(range).map(|range| range.end - range.start).collect()
            }
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut end = 12;
        for len in lens.iter().rev() {
            let (layout, count) = layout(len / 4, lie, random);
            let bounds = Convertor::new(&layout, count).unwrap().bounds();
            let high = usize::try_from(bounds.map_or(0, |bounds| bounds.1)).unwrap();
            let packed = usize::try_from(*len).unwrap();
            parts.push(Part { layout, count, origin: end, packed });
            // Sometimes blocks follow each other.
            end += high + usize::try_from(random.below(2) * 8).unwrap();
        }
        parts.reverse();
        let mut held = Held { memory: vec![GAP; end + 12], parts, whole };
        held.memory = held.with(packed);
        held
    }

    /// What the memory is with this content.
    fn with(&self, packed: &[u8]) -> Vec<u8> {
        let mut memory = vec![GAP; self.memory.len()];
        let mut at = 0;
        for part in &self.parts {
            let mut convertor = Convertor::new(&part.layout, part.count).unwrap();
            convertor.unpack(&packed[at..at + part.packed], &mut memory, part.origin).unwrap();
            at += part.packed;
        }
        memory
    }

    /// The blocks as an executor wants them. They are used while this lives, and nothing else touches it.
    pub fn blocks(&mut self) -> BufferBlocks {
        let region = Region::of_mut(&mut self.memory);
        let typed =
            |part: &Part| Typed::new(region, part.origin as u64, &part.layout, part.count).unwrap();
        let mut all: Vec<Typed> = self.parts.iter().map(typed).collect();
        match self.whole {
            true if all[0].packed_bytes() == 0 => BufferBlocks::None,
            true => BufferBlocks::Whole(all.remove(0)),
            false => BufferBlocks::Each(all),
        }
    }

    /// Its memory, which is used while this lives.
    pub fn region(&mut self) -> Region {
        Region::of_mut(&mut self.memory)
    }

    /// Whether the gaps between its bytes are untouched.
    ///
    /// # Errors
    /// The first byte that is wrong.
    pub fn holds_gaps(&self) -> Result<(), String> {
        let bytes = self.parts.iter().map(|part| part.packed).sum();
        let (zeros, ones) = (self.with(&vec![0; bytes]), self.with(&vec![1; bytes]));
        let is_gap = |at: &usize| zeros[*at] == ones[*at];
        match (0..zeros.len()).filter(is_gap).find(|at| self.memory[*at] != GAP) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at}, which lies in a gap, is {:#x}", self.memory[at])),
        }
    }

    /// Whether it holds this and nothing else has changed.
    ///
    /// # Errors
    /// The first byte that is wrong.
    pub fn holds(&self, packed: &[u8]) -> Result<(), String> {
        let expected = self.with(packed);
        match (0..expected.len()).find(|at| self.memory[*at] != expected[*at]) {
            None => Ok(()),
            Some(at) => {
                let (found, wanted) = (self.memory[at], expected[at]);
                Err(format!("byte {at} is {found:#x}, not {wanted:#x}"))
            }
        }
    }
}
