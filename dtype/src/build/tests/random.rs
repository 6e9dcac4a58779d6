//! Small random types for unit tests inside the crate. (The public strategies are in `testkit`.)

use crate::contents::{Distribution, Order};
use crate::datatype::Datatype;
use crate::primitive::Primitive;

/// Splitmix64: enough for drawing test cases.
pub(crate) struct Rng(u64);

/// The seed of this run: `GAPLESS_SEED` if set, else a fixed one.
pub(crate) fn seed() -> u64 {
    gapless_testkit::seed(20_260)
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform enough in `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn counts(&mut self, len: u64) -> Vec<u64> {
        (0..len).map(|_| self.below(3)).collect()
    }

    fn displacements(&mut self, len: u64, reach: i64) -> Vec<i64> {
        (0..len).map(|_| self.displacement(reach)).collect()
    }

    /// In `-reach..=reach`.
    fn displacement(&mut self, reach: i64) -> i64 {
        let span = u64::try_from(2 * reach + 1).unwrap();
        i64::try_from(self.below(span)).unwrap() - reach
    }

    fn order(&mut self) -> Order {
        match self.below(2) {
            0 => Order::C,
            _ => Order::Fortran,
        }
    }
}

/// A type of at most `depth` constructors, counts up to three, displacements of both signs.
pub(crate) fn datatype(rng: &mut Rng, depth: usize) -> Datatype {
    if depth == 0 || rng.below(8) == 0 {
        let all = Primitive::ALL;
        return all[usize::try_from(rng.below(all.len() as u64)).unwrap()].into();
    }
    let old = &datatype(rng, depth - 1);
    let len = rng.below(4);
    let made = match rng.below(12) {
        0 => old.dup(),
        1 => Datatype::contiguous(len, old),
        2 => Datatype::vector(len, rng.below(3), rng.displacement(4), old),
        3 => Datatype::hvector(len, rng.below(3), rng.displacement(40), old),
        4 => Datatype::indexed(&rng.counts(len), &rng.displacements(len, 4), old),
        5 => Datatype::hindexed(&rng.counts(len), &rng.displacements(len, 60), old),
        6 => Datatype::indexed_block(rng.below(3), &rng.displacements(len, 4), old),
        7 => Datatype::hindexed_block(rng.below(3), &rng.displacements(len, 60), old),
        8 => {
            let types: Vec<Datatype> = (0..len).map(|_| datatype(rng, depth - 1)).collect();
            Datatype::structure(&rng.counts(len), &rng.displacements(len, 60), &types)
        }
        9 => subarray(rng, old),
        10 => darray(rng, old),
        _ => Datatype::resized(rng.displacement(20), rng.displacement(40), old),
    };
    made.expect("small arguments are legal")
}

fn subarray(rng: &mut Rng, old: &Datatype) -> Result<Datatype, crate::error::TypeError> {
    let dims = 1 + rng.below(3);
    let sizes: Vec<u64> = (0..dims).map(|_| 1 + rng.below(3)).collect();
    let subsizes: Vec<u64> = sizes.iter().map(|&size| 1 + rng.below(size)).collect();
    let room = sizes.iter().zip(&subsizes).map(|(size, sub)| size - sub);
    let starts: Vec<u64> = room.map(|room| rng.below(room + 1)).collect();
    Datatype::subarray(&sizes, &subsizes, &starts, rng.order(), old)
}

fn darray(rng: &mut Rng, old: &Datatype) -> Result<Datatype, crate::error::TypeError> {
    let dims = 1 + rng.below(2);
    let (mut gsizes, mut distribs, mut dargs, mut psizes) = (vec![], vec![], vec![], vec![]);
    for _ in 0..dims {
        let (gsize, mut psize) = (1 + rng.below(6), 1 + rng.below(3));
        let default = rng.below(2) == 0;
        let (distrib, least) = match rng.below(3) {
            0 => (Distribution::Block, gsize.div_ceil(psize)),
            1 => (Distribution::Cyclic, 1),
            _ => {
                psize = 1;
                (Distribution::None, 1)
            }
        };
        gsizes.push(gsize);
        distribs.push(distrib);
        dargs.push((!default).then(|| least + rng.below(3)));
        psizes.push(psize);
    }
    let size = psizes.iter().product();
    let (rank, order) = (rng.below(size), rng.order());
    Datatype::darray(size, rank, &gsizes, &distribs, &dargs, &psizes, order, old)
}
