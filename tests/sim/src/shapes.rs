//! The buffers of a world: random layouts of one random element, so that every message fits every
//! receive that is long enough, and where each of their packed bytes lies, from the typemap alone.

use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_dtype::{Datatype, Layout, Primitive};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How many shapes there are.
pub(crate) const SHAPES: u8 = 8;
/// Bytes on both sides of a buffer that belong to nobody.
const MARGIN: usize = 24;

/// So many elements of one shape.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) layout: Layout,
    pub(crate) count: u64,
    /// Where each packed byte lies in the buffer.
    pub(crate) places: Vec<usize>,
    pub(crate) origin: u64,
    pub(crate) len: usize,
}

/// All shapes that a world has used.
#[derive(Debug)]
pub(crate) struct Shapes {
    element: Datatype,
    /// The element with no space around it, and with some.
    tight: Datatype,
    loose: Datatype,
    /// Packed bytes of an element.
    pub(crate) bytes: u64,
    known: BTreeMap<(u8, u64), Rc<Shape>>,
}

impl Shapes {
    pub(crate) fn new(seed: u64) -> Shapes {
        let mut rng = Rng::new(seed ^ 0x5a5a);
        let params = Params {
            depth_max: 3,
            bytes_max: 40,
            span_max: 1 << 11,
            copies_max: 4,
            ..Params::disjoint()
        };
        let drawn = random_datatype(&mut rng, &params);
        let size = Typemap::of(&drawn).map_or(0, |typemap| typemap.size());
        let element = if size > 0 { drawn } else { Primitive::Int.into() };
        let typemap = Typemap::of(&element).expect("a small type");
        let (low, extent) = (typemap.true_lb(), typemap.true_extent());
        let resized = |gap| Datatype::resized(low, extent + gap, &element).expect("a small type");
        let (tight, loose) = (resized(0), resized(1 + rng.between(0, 40)));
        Shapes { bytes: typemap.size(), tight, loose, element, known: BTreeMap::new() }
    }

    /// `elements` elements in one of the [`SHAPES`].
    pub(crate) fn shape(&mut self, shape: u8, elements: u64) -> Rc<Shape> {
        if let Some(known) = self.known.get(&(shape, elements)) {
            return Rc::clone(known);
        }
        let (datatype, count) = self.datatype(shape, elements);
        let made = Rc::new(make(&datatype, count));
        self.known.insert((shape, elements), Rc::clone(&made));
        made
    }

    fn datatype(&self, shape: u8, n: u64) -> (Datatype, u64) {
        let step = Typemap::of(&self.loose).expect("a small type").extent();
        let made = match shape {
            // Beyond four they may overlap.
            1 if n <= 4 => return (self.element.clone(), n),
            2 => return (self.loose.clone(), n),
            3 => Datatype::vector(n, 1, 2, &self.tight),
            4 => Datatype::hvector(n, 1, -step, &self.loose),
            5 => {
                let mut places: Vec<i64> =
                    (0i64..).map(|at| at * step).take(usize::try_from(n).unwrap_or(0)).collect();
                Rng::new(n).shuffle(&mut places);
                Datatype::hindexed_block(1, &places, &self.tight)
            }
            6 => Datatype::contiguous(n, &self.loose),
            // As bytes, which match anything of their size.
            7 => Datatype::contiguous(n * self.bytes, &Primitive::Byte.into()),
            _ => return (self.tight.clone(), n),
        };
        (made.expect("a type of a few thousand bytes"), 1)
    }
}

fn make(datatype: &Datatype, count: u64) -> Shape {
    let layout = datatype.commit().expect("a small type commits");
    let typemap = Typemap::of(datatype).expect("a small type");
    let places = typemap.displacements(count).expect("a small type");
    let low = places.iter().copied().min().unwrap_or(0).min(0);
    let high = places.iter().copied().max().map_or(0, |last| last + 1).max(0);
    let above_low = |at: i64| usize::try_from(at - low).expect("not below the lowest");
    let origin = above_low(0) + MARGIN;
    let places = places.iter().map(|at| above_low(*at) + MARGIN).collect();
    Shape { layout, count, places, origin: origin as u64, len: above_low(high) + 2 * MARGIN }
}

/// What the packed bytes of a message are: they follow from its number alone.
pub(crate) fn payload(message: u32, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(message) << 20 | 0xC0FFEE);
    let mut stream = vec![0; bytes];
    rng.fill(&mut stream);
    stream
}
