//! `MPI_Type_create_darray` (MPI 4.1 §5.1.4): one process's share of a distributed array.
//!
//! Processes form a grid of `psizes`, ranks in row-major order whatever the array's order is. The
//! standard reduces every distribution to a cyclic one and defines the type by applying, from the
//! fastest dimension outwards, a one-dimensional `cyclic(darg, gsize, r, psize, old)`; the tree
//! kept beside the arguments is built just so, with byte strides in place of nested extents, and is
//! resized to the full array at the end.

use super::subarray::{Dimension, fastest_first};
use super::{DarrayRecipe, Recipe};
use crate::contents::{Combiner, Contents, Distribution, Order};
use crate::datatype::Datatype;
use crate::error::{Argument, Problem, Quantity, TypeError};

const DARRAY: Combiner = Combiner::Darray;

impl Datatype {
    /// The elements of type `old` that process `rank` of `size` holds of a global array of
    /// `gsizes` elements stored in `order`, distributed over a process grid of `psizes`.
    ///
    /// `distribs[i]` says how dimension `i` is dealt out and `dargs[i]` its block size; `None` is
    /// MPI's default: as even as possible for [`Distribution::Block`], 1 for
    /// [`Distribution::Cyclic`]. The block size of an undistributed dimension is ignored.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Distribution, Order, Primitive};
    ///
    /// // Ten elements in blocks of two dealt out to three processes; rank 1 has 2, 3, 8 and 9.
    /// let char = Datatype::from(Primitive::Char);
    /// let cyclic = [Distribution::Cyclic];
    /// let mine = Datatype::darray(3, 1, &[10], &cyclic, &[Some(2)], &[3], Order::C, &char)?;
    /// assert_eq!((mine.size(), mine.extent()), (4, 10));
    /// assert_eq!((mine.true_lb(), mine.true_ub()), (2, 10));
    /// # Ok::<(), gapless_dtype::TypeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no dimension or process, the lists differ in length, `rank` is not below `size`,
    /// a global or process grid size or a block size is zero, the grid's product is not `size`, an
    /// undistributed dimension has more than one process, blocks are too small to cover their
    /// dimension, the full array's bytes overflow 64 bits, or the tree gets too deep.
    #[expect(clippy::too_many_arguments, reason = "MPI's own argument list")]
    pub fn darray(
        size: u64,
        rank: u64,
        gsizes: &[u64],
        distribs: &[Distribution],
        dargs: &[Option<u64>],
        psizes: &[u64],
        order: Order,
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        check_grid(size, rank, gsizes, psizes)?;
        let dims = ("gsizes", gsizes.len());
        TypeError::check_length(DARRAY, ("distribs", distribs.len()), dims)?;
        TypeError::check_length(DARRAY, ("dargs", dargs.len()), dims)?;
        let mut shares = Vec::with_capacity(gsizes.len());
        let mut processes_left = size;
        let mut rank_left = rank;
        for i in 0..gsizes.len() {
            processes_left /= psizes[i];
            let coordinate = rank_left / processes_left;
            rank_left %= processes_left;
            shares.push(Share {
                gsize: gsizes[i],
                block: block_size(i, distribs[i], dargs[i], gsizes[i], psizes[i])?,
                processes: psizes[i],
                coordinate,
            });
        }
        let blame = Argument::whole("gsizes");
        let lowered = lower(&shares, order, old).map_err(|e| e.within(DARRAY, blame))?;
        let (bytes, bounds) = (lowered.size(), lowered.bounds());
        let recipe = DarrayRecipe {
            size,
            rank,
            gsizes: gsizes.into(),
            distribs: distribs.into(),
            dargs: dargs.into(),
            psizes: psizes.into(),
            order,
            old: old.clone(),
            lowered,
        };
        Datatype::assemble(Recipe::Darray(Box::new(recipe)), bytes, bounds, blame)
    }
}

impl DarrayRecipe {
    pub(super) fn contents(&self) -> Contents<'_> {
        Contents::Darray {
            size: self.size,
            rank: self.rank,
            gsizes: &self.gsizes,
            distribs: &self.distribs,
            dargs: &self.dargs,
            psizes: &self.psizes,
            order: self.order,
            old: &self.old,
        }
    }
}

fn wrong<T>(argument: Argument, problem: Problem) -> Result<T, TypeError> {
    Err(TypeError::argument(DARRAY, argument, problem))
}

fn check_grid(size: u64, rank: u64, gsizes: &[u64], psizes: &[u64]) -> Result<(), TypeError> {
    if size < 1 {
        let problem = Problem::Below { value: size, least: 1 };
        return wrong(Argument::whole("size"), problem);
    }
    if rank >= size {
        let problem = Problem::Above { value: rank, most: size - 1 };
        return wrong(Argument::whole("rank"), problem);
    }
    if gsizes.is_empty() {
        return wrong(Argument::whole("gsizes"), Problem::Empty);
    }
    let dims = ("gsizes", gsizes.len());
    TypeError::check_length(DARRAY, ("psizes", psizes.len()), dims)?;
    for (name, list) in [("gsizes", gsizes), ("psizes", psizes)] {
        if let Some(i) = list.iter().position(|&value| value < 1) {
            let problem = Problem::Below { value: 0, least: 1 };
            return wrong(Argument::entry(name, i), problem);
        }
    }
    let product = psizes.iter().fold(1_u128, |product, &p| product.saturating_mul(p.into()));
    if product != u128::from(size) {
        let problem = Problem::Product { product, required: size };
        return wrong(Argument::whole("psizes"), problem);
    }
    Ok(())
}

/// The block size of the cyclic distribution that dimension `i`'s distribution amounts to.
fn block_size(
    i: usize,
    distribution: Distribution,
    darg: Option<u64>,
    gsize: u64,
    psize: u64,
) -> Result<u64, TypeError> {
    if distribution == Distribution::None {
        if psize != 1 {
            let problem = Problem::Not { value: psize, required: 1 };
            return wrong(Argument::entry("psizes", i), problem);
        }
        return Ok(gsize);
    }
    let even = gsize.div_ceil(psize);
    let least = match distribution {
        Distribution::Block => even,
        _ => 1,
    };
    match darg {
        None => Ok(least),
        Some(value) if value < least => {
            wrong(Argument::entry("dargs", i), Problem::Below { value, least })
        }
        Some(value) => Ok(value),
    }
}

/// One process's share of one dimension: blocks of `block` indices dealt out cyclically.
struct Share {
    gsize: u64,
    block: u64,
    processes: u64,
    coordinate: u64,
}

fn lower(shares: &[Share], order: Order, old: &Datatype) -> Result<Datatype, TypeError> {
    let mut dimension = Dimension::innermost(DARRAY, old);
    let mut inner = old.clone();
    for i in fastest_first(order, shares.len()) {
        inner = shares[i].select(dimension.stride, &inner)?;
        dimension = dimension.outward(shares[i].gsize)?;
    }
    Datatype::resized(0, dimension.stride, &inner)
}

impl Share {
    /// This share's copies of `inner`, which lie `stride` bytes apart in the full array.
    fn select(&self, stride: i64, inner: &Datatype) -> Result<Datatype, TypeError> {
        let blocks = self.gsize.div_ceil(self.block);
        if self.coordinate >= blocks {
            return Datatype::contiguous(0, inner);
        }
        let mine = (blocks - self.coordinate).div_ceil(self.processes);
        // Indices of the array: all below gsize, or multiplied only if a second block is there.
        let first = self.coordinate * self.block;
        let row = |len: u64| match stride == inner.extent() {
            true => Datatype::contiguous(len, inner),
            false => Datatype::hvector(len, 1, stride, inner),
        };
        let last_block = self.coordinate + (mine - 1) * self.processes;
        let last = last_block * self.block;
        let last_len = self.block.min(self.gsize - last);
        if mine == 1 {
            return placed(&[(first, row(last_len)?)], stride);
        }
        let period = offset(self.processes * self.block, stride)?;
        let full = |count: u64| Datatype::hvector(count, 1, period, &row(self.block)?);
        match last_len == self.block {
            true => placed(&[(first, full(mine)?)], stride),
            false => placed(&[(first, full(mine - 1)?), (last, row(last_len)?)], stride),
        }
    }
}

/// Types at array indices `stride` bytes apart, in order.
fn placed(pieces: &[(u64, Datatype)], stride: i64) -> Result<Datatype, TypeError> {
    let displacements = pieces
        .iter()
        .map(|&(index, _)| offset(index, stride))
        .collect::<Result<Vec<i64>, TypeError>>()?;
    match pieces {
        [(0, only)] => Ok(only.clone()),
        [(_, only)] => Datatype::hindexed_block(1, &displacements, only),
        _ => {
            let types: Vec<Datatype> = pieces.iter().map(|(_, piece)| piece.clone()).collect();
            Datatype::structure(&vec![1; pieces.len()], &displacements, &types)
        }
    }
}

/// Displacement of an array index in bytes.
fn offset(index: u64, stride: i64) -> Result<i64, TypeError> {
    i64::try_from(i128::from(index) * i128::from(stride))
        .map_err(|_| TypeError::overflow(DARRAY, Quantity::Displacement, Argument::whole("gsizes")))
}
