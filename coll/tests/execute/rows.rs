//! Users' buffers of random layouts, and random numbers.
use gapless_coll::{Blocks, Row};
use gapless_dtype::{Convertor, Datatype, Layout, Primitive};
use gapless_engine::Typed;
use gapless_mem::Region;

/// Random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// How buffers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
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
struct Part {
    layout: Layout,
    count: u64,
    origin: usize,
    packed: usize,
}

/// A buffer.
pub(crate) struct Held {
    memory: Vec<u8>,
    parts: Vec<Part>,
    whole: bool,
}

const GAP: u8 = 0xC7;

impl Held {
    /// A buffer of these blocks that holds `packed`.
    pub(crate) fn new(row: &Row, lie: Lie, packed: &[u8], random: &mut Random) -> Held {
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
    pub(crate) fn blocks(&mut self) -> Blocks {
        let region = Region::of_mut(&mut self.memory);
        let typed =
            |part: &Part| Typed::new(region, part.origin as u64, &part.layout, part.count).unwrap();
        let mut all: Vec<Typed> = self.parts.iter().map(typed).collect();
        match self.whole {
            true if all[0].packed_bytes() == 0 => Blocks::None,
            true => Blocks::Whole(all.remove(0)),
            false => Blocks::Each(all),
        }
    }

    /// Whether it holds this and nothing else has changed.
    pub(crate) fn assert_holds(&self, packed: &[u8], what: &dyn Fn() -> String) {
        let expected = self.with(packed);
        if let Some(at) = (0..expected.len()).find(|at| self.memory[*at] != expected[*at]) {
            let (found, wanted) = (self.memory[at], expected[at]);
            panic!("{}: byte {at} is {found:#x}, not {wanted:#x}", what());
        }
    }
}
