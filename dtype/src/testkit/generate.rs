//! Random datatypes: every constructor, nested, with the corner cases MPI allows.
//!
//! A type grows from the top: a constructor is drawn, then how many copies it makes, then the old
//! types in what is left of the byte budget, and last the placement, which depends on the old
//! type's bounds. Placement is *tidy* (copies beside each other, with or without gaps, forwards,
//! backwards or shuffled) or *wild* (any small number). Tidy types rarely overlap; where overlaps
//! are not wanted, what still overlaps is drawn again.

mod place;

use self::place::{RandomBlocks, Span};
use super::rng::Rng;
use crate::naive::Typemap;
use crate::{Datatype, Distribution, Order, Primitive};

/// Most instances that the checks put behind one another; disjointness is judged over as many.
pub const INSTANCES_MAX: u64 = 4;

/// What random types may look like.
#[derive(Clone, Debug)]
pub struct Params {
    /// Deepest nesting of constructors, at least 1. The depth is drawn evenly from `1..=depth_max`.
    pub depth_max: u32,
    /// Most payload bytes of one instance.
    pub bytes_max: u64,
    /// Most bytes between the first and the last byte that [`INSTANCES_MAX`] instances touch,
    /// counting from the origin.
    pub span_max: u64,
    /// Most copies that one list of blocks or fields, or one dimension, makes of its old type.
    pub copies_max: u64,
    /// Whether a byte may occur more than once. Such types can be packed, not unpacked.
    pub overlaps: bool,
    /// Least number of maximal runs in one instance; 0 admits empty types.
    pub blocks_min: usize,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            depth_max: 5,
            bytes_max: 1024,
            span_max: 1 << 15,
            copies_max: 12,
            overlaps: true,
            blocks_min: 0,
        }
    }
}

impl Params {
    /// Types that may be unpacked: no byte occurs twice in [`INSTANCES_MAX`] instances.
    pub fn disjoint() -> Params {
        Params { overlaps: false, ..Params::default() }
    }

    /// Whether `datatype` is one of the types described.
    pub fn admit(&self, datatype: &Datatype) -> bool {
        let Ok(typemap) = Typemap::with_steps(datatype, 1 << 14) else {
            return false;
        };
        self.admit_typemap(&typemap)
    }

    fn admit_typemap(&self, typemap: &Typemap) -> bool {
        if typemap.size() > self.bytes_max || !self.span_fits(typemap) {
            return false;
        }
        if self.blocks_min > 0 {
            let blocks = typemap.runs(1).map_or(0, |runs| runs.len());
            if blocks < self.blocks_min {
                return false;
            }
        }
        self.overlaps || typemap.is_disjoint(INSTANCES_MAX)
    }

    fn span_fits(&self, typemap: &Typemap) -> bool {
        let last = i128::from(typemap.extent()) * i128::from(INSTANCES_MAX - 1);
        let low = i128::from(typemap.true_lb()) + last.min(0);
        let high = i128::from(typemap.true_ub()) + last.max(0);
        high.max(0) - low.min(0) <= i128::from(self.span_max)
    }
}

/// A random datatype as `params` describe, with its typemap.
///
/// The same state of `rng` and the same `params` give the same type.
pub fn random_sample(rng: &mut Rng, params: &Params) -> (Datatype, Typemap) {
    for attempt in 0..1000_u32 {
        let depth = 1 + rng.below(u64::from(params.depth_max.max(1)));
        let wild = rng.chance(if params.overlaps { 40 } else { 15 });
        // Types that will not fit are drawn again with less to place.
        let budget = params.bytes_max >> (attempt / 16).min(8);
        let mut grower = Grower { rng: &mut *rng, copies_max: params.copies_max, wild };
        let Some(datatype) = grower.grow(u32::try_from(depth).unwrap_or(1), budget) else {
            continue;
        };
        let Ok(typemap) = Typemap::with_steps(&datatype, 1 << 14) else {
            continue;
        };
        if params.admit_typemap(&typemap) {
            return (datatype, typemap);
        }
    }
    let column = Datatype::vector(2, 1, 2, &Primitive::Byte.into()).expect("a small vector");
    let typemap = Typemap::of(&column).expect("a small vector");
    (column, typemap)
}

/// A random datatype as `params` describe; see [`random_sample`].
pub fn random_datatype(rng: &mut Rng, params: &Params) -> Datatype {
    random_sample(rng, params).0
}

struct Grower<'a> {
    rng: &'a mut Rng,
    copies_max: u64,
    wild: bool,
}

impl Grower<'_> {
    /// A type of exactly `depth` constructors on its longest path and about `budget` bytes, or
    /// `None` where the drawn arguments are not legal.
    fn grow(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        if depth == 0 {
            return Some(self.primitive(budget));
        }
        match self.rng.below(14) {
            0 => self.grow(depth - 1, budget)?.dup().ok(),
            1 => self.contiguous(depth, budget),
            2 | 3 => self.vector(depth, budget),
            4 => self.hvector(depth, budget),
            5 => self.indexed(depth, budget, true),
            6 => self.indexed(depth, budget, false),
            7 => self.indexed_block(depth, budget, true),
            8 => self.indexed_block(depth, budget, false),
            9 | 10 => self.structure(depth, budget),
            11 => self.subarray(depth, budget),
            12 => self.darray(depth, budget),
            _ => self.resized(depth, budget),
        }
    }

    fn primitive(&mut self, budget: u64) -> Datatype {
        const USUAL: [Primitive; 6] = [
            Primitive::Byte,
            Primitive::Char,
            Primitive::Short,
            Primitive::Int,
            Primitive::Double,
            Primitive::DoubleInt,
        ];
        let any = if self.rng.chance(60) {
            *self.rng.pick(&USUAL)
        } else {
            *self.rng.pick(&Primitive::ALL)
        };
        if any.size_bytes() <= budget.max(2) { any.into() } else { Primitive::Char.into() }
    }

    /// How many copies a constructor makes when `depth` levels share `budget` bytes.
    fn copies(&mut self, depth: u32, budget: u64) -> u64 {
        if self.rng.chance(3) {
            return 0;
        }
        let mut most = 1;
        while most < self.copies_max && (most + 1_u64).saturating_pow(depth) <= (budget / 4).max(1)
        {
            most += 1;
        }
        let least = if self.rng.chance(50) { 3 } else { 1 };
        1 + self.rng.below(most.max(least))
    }

    fn contiguous(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let count = self.copies(depth, budget);
        let old = self.grow(depth - 1, budget / count.max(1))?;
        Datatype::contiguous(count, &old).ok()
    }

    /// Splits copies into blocks of equal length: (blocks, length).
    fn split(&mut self, copies: u64) -> (u64, u64) {
        if self.rng.chance(3) {
            return (copies, 0);
        }
        let length = if self.rng.chance(50) { 1 } else { 1 + self.rng.below(copies.clamp(1, 4)) };
        ((copies / length).max(u64::from(copies > 0)), length)
    }

    fn vector(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let copies = self.copies(depth, budget);
        let (count, length) = self.split(copies);
        let old = self.grow(depth - 1, budget / (count * length).max(1))?;
        let stride = if self.wild {
            self.rng.between(-5, 5)
        } else {
            let step = Span::elements(&old, length).len() + self.gap(4);
            if self.rng.chance(30) { -step } else { step }
        };
        Datatype::vector(count, length, stride, &old).ok()
    }

    fn hvector(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let copies = self.copies(depth, budget);
        let (count, length) = self.split(copies);
        let old = self.grow(depth - 1, budget / (count * length).max(1))?;
        let stride = if self.wild {
            self.rng.between(-60, 60)
        } else {
            let step = Span::bytes(&old, length).len() + self.gap(24);
            if self.rng.chance(30) { -step } else { step }
        };
        Datatype::hvector(count, length, stride, &old).ok()
    }

    /// A gap between neighbours; often none, so that runs merge.
    fn gap(&mut self, most: i64) -> i64 {
        match self.rng.below(10) {
            0..=2 => 0,
            3..=8 => self.rng.between(1, most),
            _ => self.rng.between(1, most * 8),
        }
    }

    fn indexed(&mut self, depth: u32, budget: u64, elements: bool) -> Option<Datatype> {
        let blocks = self.copies(depth, budget);
        let lengths = self.lengths(blocks);
        let copies: u64 = lengths.iter().sum();
        let old = self.grow(depth - 1, budget / copies.max(1))?;
        let spans: Vec<Span> = lengths
            .iter()
            .map(|&n| if elements { Span::elements(&old, n) } else { Span::bytes(&old, n) })
            .collect();
        let displacements = self.place(&spans, elements);
        if elements {
            Datatype::indexed(&lengths, &displacements, &old).ok()
        } else {
            Datatype::hindexed(&lengths, &displacements, &old).ok()
        }
    }

    fn indexed_block(&mut self, depth: u32, budget: u64, elements: bool) -> Option<Datatype> {
        let copies = self.copies(depth, budget);
        let (blocks, length) = self.split(copies);
        let old = self.grow(depth - 1, budget / (blocks * length).max(1))?;
        let span = if elements { Span::elements(&old, length) } else { Span::bytes(&old, length) };
        let displacements = self.place(&vec![span; usize::try_from(blocks).ok()?], elements);
        if elements {
            Datatype::indexed_block(length, &displacements, &old).ok()
        } else {
            Datatype::hindexed_block(length, &displacements, &old).ok()
        }
    }

    /// Block lengths: random, or advancing by a constant as in a triangle.
    fn lengths(&mut self, blocks: u64) -> Vec<u64> {
        match self.rng.below(4) {
            0 => (0..blocks).map(|at| blocks - at).collect(),
            1 => (0..blocks).map(|at| 1 + at).collect(),
            _ => (0..blocks).map(|_| *self.rng.pick(&[0, 1, 1, 1, 2, 2, 3])).collect(),
        }
    }

    fn place(&mut self, spans: &[Span], elements: bool) -> Vec<i64> {
        let most = if elements { 4 } else { 24 };
        if self.wild {
            return spans.iter().map(|_| self.rng.between(-most * 2, most * 3)).collect();
        }
        let step_constant = self.rng.chance(25);
        RandomBlocks { gap_max: most, step_constant }.place(self.rng, spans)
    }

    fn structure(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let fields = if self.rng.chance(2) { 0 } else { 1 + self.rng.index(4) };
        let deepest = self.rng.index(fields);
        let share = budget / u64::try_from(fields.max(1)).ok()?;
        let (mut lengths, mut types) = (Vec::new(), Vec::new());
        for field in 0..fields {
            let length = *self.rng.pick(&[0, 1, 1, 1, 1, 2, 2, 3]);
            let below = if field == deepest {
                depth - 1
            } else {
                u32::try_from(self.rng.below(u64::from(depth))).ok()?
            };
            types.push(self.grow(below, share / length.max(1))?);
            lengths.push(length);
        }
        let spans: Vec<Span> =
            types.iter().zip(&lengths).map(|(old, &n)| Span::bytes(old, n)).collect();
        let displacements = self.place(&spans, false);
        Datatype::structure(&lengths, &displacements, &types).ok()
    }

    fn order(&mut self) -> Order {
        if self.rng.chance(50) { Order::C } else { Order::Fortran }
    }

    fn subarray(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let mut room = self.copies(depth, budget).max(1);
        let dims = 1 + self.rng.index(3);
        let (mut sizes, mut subsizes, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..dims {
            let subsize = 1 + self.rng.below(room.min(4));
            let size = subsize + self.rng.below(3);
            room /= subsize;
            starts.push(self.rng.below(size - subsize + 1));
            sizes.push(size);
            subsizes.push(subsize);
        }
        let copies: u64 = subsizes.iter().product();
        let old = self.grow(depth - 1, budget / copies)?;
        Datatype::subarray(&sizes, &subsizes, &starts, self.order(), &old).ok()
    }

    fn darray(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let mut room = self.copies(depth, budget).max(1);
        let dims = 1 + self.rng.index(3);
        let (mut gsizes, mut psizes) = (Vec::new(), Vec::new());
        let (mut distribs, mut dargs) = (Vec::new(), Vec::new());
        for _ in 0..dims {
            let local = 1 + self.rng.below(room.min(4));
            room /= local;
            let distrib = *self.rng.pick(&[
                Distribution::Block,
                Distribution::Cyclic,
                Distribution::Cyclic,
                Distribution::None,
            ]);
            let none = matches!(distrib, Distribution::None);
            let procs = if none { 1 } else { 1 + self.rng.below(3) };
            let gsize = (local * procs).saturating_sub(self.rng.below(procs)).max(1);
            let darg = match distrib {
                Distribution::Block if self.rng.chance(40) => {
                    Some(gsize.div_ceil(procs) + self.rng.below(2))
                }
                Distribution::Cyclic if self.rng.chance(60) => Some(1 + self.rng.below(3)),
                _ => None,
            };
            gsizes.push(gsize);
            psizes.push(procs);
            distribs.push(distrib);
            dargs.push(darg);
        }
        let size: u64 = psizes.iter().product();
        let elements: u64 = gsizes.iter().product();
        let old = self.grow(depth - 1, budget / elements.div_ceil(size).max(1))?;
        let (rank, order) = (self.rng.below(size), self.order());
        Datatype::darray(size, rank, &gsizes, &distribs, &dargs, &psizes, order, &old).ok()
    }

    fn resized(&mut self, depth: u32, budget: u64) -> Option<Datatype> {
        let old = self.grow(depth - 1, budget)?;
        let whole = old.true_extent();
        let lb = *self.rng.pick(&[0, 0, old.true_lb(), -8, 4]);
        let extent = match self.rng.below(8) {
            0 => -whole - self.gap(8),
            // Smaller than the data: copies interleave, or overlap.
            1 => *self.rng.pick(&[1, 2, 4, 8, 16]),
            2 if self.wild => 0,
            _ => whole + self.gap(16),
        };
        Datatype::resized(lb, extent, &old).ok()
    }
}
