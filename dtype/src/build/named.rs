//! Builders for the two constructors with many arguments: each is named, and what can be left out has a default.

use crate::contents::{Combiner, Distribution, Order};
use crate::datatype::Datatype;
use crate::error::{Argument, Problem, TypeError};

/// A box in an array ([`Datatype::subarray`]), by named arguments.
///
/// ```
/// use gapless_dtype::{Equivalence, Subarray};
///
/// // The face in front of the last index of a 6 × 6 × 6 array.
/// let double = f64::datatype();
/// let face = Subarray::of(&double).sizes([6, 6, 6]).starts([0, 0, 4]).subsizes([6, 6, 1]).build()?;
/// assert_eq!((face.size(), face.true_lb()), (36 * 8, 4 * 8));
/// // From the starts to the ends of the dimensions, unless said otherwise.
/// let corner = Subarray::of(&double).sizes([6, 6]).starts([4, 3]).build()?;
/// assert_eq!(corner.size(), 2 * 3 * 8);
///
/// let error = Subarray::of(&double).sizes([6, 6]).starts([4, 6]).build().unwrap_err();
/// assert_eq!(error.to_string(), "subarray: starts[1] is 6, more than 5");
/// # Ok::<(), gapless_dtype::TypeError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`build` makes the datatype"]
pub struct Subarray<'t> {
    old: &'t Datatype,
    sizes: Option<Vec<u64>>,
    subsizes: Option<Vec<u64>>,
    starts: Option<Vec<u64>>,
    order: Order,
}

impl<'t> Subarray<'t> {
    /// Of elements of this type.
    pub fn of(old: &'t Datatype) -> Subarray<'t> {
        Subarray { old, sizes: None, subsizes: None, starts: None, order: Order::C }
    }

    /// Elements of each dimension of the whole array. Must be given.
    pub fn sizes(self, sizes: impl Into<Vec<u64>>) -> Self {
        Subarray { sizes: Some(sizes.into()), ..self }
    }

    /// Elements of each dimension of the box; else all from the starts to the ends.
    pub fn subsizes(self, subsizes: impl Into<Vec<u64>>) -> Self {
        Subarray { subsizes: Some(subsizes.into()), ..self }
    }

    /// The box's first index in each dimension; else 0.
    pub fn starts(self, starts: impl Into<Vec<u64>>) -> Self {
        Subarray { starts: Some(starts.into()), ..self }
    }

    /// How the array is stored; else in C's order: the last dimension is contiguous.
    pub fn order(self, order: Order) -> Self {
        Subarray { order, ..self }
    }

    /// Makes the datatype.
    ///
    /// # Errors
    /// As [`Datatype::subarray`]; [`Problem::Missing`].
    pub fn build(&self) -> Result<Datatype, TypeError> {
        const WHICH: Combiner = Combiner::Subarray;
        let sizes = given(self.sizes.as_deref(), WHICH, "sizes")?;
        let starts = self.starts.clone().unwrap_or_else(|| vec![0; sizes.len()]);
        let subsizes = match &self.subsizes {
            Some(subsizes) => subsizes.clone(),
            None => rest(sizes, &starts)?,
        };
        Datatype::subarray(sizes, &subsizes, &starts, self.order, self.old)
    }
}

/// From the starts to the ends.
fn rest(sizes: &[u64], starts: &[u64]) -> Result<Vec<u64>, TypeError> {
    const WHICH: Combiner = Combiner::Subarray;
    TypeError::check_length(WHICH, ("starts", starts.len()), ("sizes", sizes.len()))?;
    let mut subsizes = Vec::with_capacity(sizes.len());
    for (i, (&size, &start)) in sizes.iter().zip(starts).enumerate() {
        if start >= size && size > 0 {
            let problem = Problem::Above { value: start, most: size - 1 };
            return Err(TypeError::argument(WHICH, Argument::entry("starts", i), problem));
        }
        // An empty dimension is refused with its own name.
        subsizes.push(size.saturating_sub(start));
    }
    Ok(subsizes)
}

/// What one process holds of a distributed array ([`Datatype::darray`]), by named arguments.
///
/// ```
/// use gapless_dtype::{Darray, Distribution, Equivalence};
///
/// // Rank 3 of a 2 × 2 grid of processes has the lower right quarter of a 100 × 100 matrix.
/// let double = f64::datatype();
/// let mine = Darray::of(&double).gsizes([100, 100]).psizes([2, 2]).rank(3).build()?;
/// assert_eq!((mine.size(), mine.true_lb()), (50 * 50 * 8, (50 * 100 + 50) * 8));
/// // Columns in blocks of 8, dealt out to four processes.
/// let columns = Darray::of(&double)
///     .gsizes([100, 100])
///     .psizes([1, 4])
///     .distribs([Distribution::None, Distribution::Cyclic])
///     .dargs([None, Some(8)])
///     .rank(0)
///     .build()?;
/// assert_eq!(columns.size(), 100 * 28 * 8);
///
/// let error = Darray::of(&double).gsizes([100]).psizes([4]).build().unwrap_err();
/// assert_eq!(error.to_string(), "darray: rank is not given");
/// # Ok::<(), gapless_dtype::TypeError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`build` makes the datatype"]
pub struct Darray<'t> {
    old: &'t Datatype,
    rank: Option<u64>,
    gsizes: Option<Vec<u64>>,
    psizes: Option<Vec<u64>>,
    distribs: Option<Vec<Distribution>>,
    dargs: Option<Vec<Option<u64>>>,
    order: Order,
}

impl<'t> Darray<'t> {
    /// Of elements of this type.
    pub fn of(old: &'t Datatype) -> Darray<'t> {
        let order = Order::C;
        Darray { old, rank: None, gsizes: None, psizes: None, distribs: None, dargs: None, order }
    }

    /// Whose share it is: a rank in the grid, in row-major order. Must be given.
    pub fn rank(self, rank: u64) -> Self {
        Darray { rank: Some(rank), ..self }
    }

    /// Elements of each dimension of the whole array. Must be given.
    pub fn gsizes(self, gsizes: impl Into<Vec<u64>>) -> Self {
        Darray { gsizes: Some(gsizes.into()), ..self }
    }

    /// Processes in each dimension of the grid; their product is how many processes there are. Must be given.
    pub fn psizes(self, psizes: impl Into<Vec<u64>>) -> Self {
        Darray { psizes: Some(psizes.into()), ..self }
    }

    /// How each dimension is dealt out; else in blocks.
    pub fn distribs(self, distribs: impl Into<Vec<Distribution>>) -> Self {
        Darray { distribs: Some(distribs.into()), ..self }
    }

    /// The block size of each dimension; else, and where it is `None`, MPI's default.
    pub fn dargs(self, dargs: impl Into<Vec<Option<u64>>>) -> Self {
        Darray { dargs: Some(dargs.into()), ..self }
    }

    /// How the array is stored; else in C's order: the last dimension is contiguous.
    pub fn order(self, order: Order) -> Self {
        Darray { order, ..self }
    }

    /// Makes the datatype.
    ///
    /// # Errors
    /// As [`Datatype::darray`]; [`Problem::Missing`].
    pub fn build(&self) -> Result<Datatype, TypeError> {
        const WHICH: Combiner = Combiner::Darray;
        let gsizes = given(self.gsizes.as_deref(), WHICH, "gsizes")?;
        let psizes = given(self.psizes.as_deref(), WHICH, "psizes")?;
        let rank = given(self.rank, WHICH, "rank")?;
        let dims = gsizes.len();
        let distribs = self.distribs.clone().unwrap_or_else(|| vec![Distribution::Block; dims]);
        let dargs = self.dargs.clone().unwrap_or_else(|| vec![None; dims]);
        // One that is too large for 64 bits is refused as a product, one of a grid without processes by its entry.
        let product = psizes.iter().fold(1u64, |product, &p| product.saturating_mul(p.max(1)));
        let order = self.order;
        Datatype::darray(product, rank, gsizes, &distribs, &dargs, psizes, order, self.old)
    }
}

/// An argument that has no default.
fn given<T>(argument: Option<T>, which: Combiner, name: &'static str) -> Result<T, TypeError> {
    argument.ok_or_else(|| TypeError::argument(which, Argument::whole(name), Problem::Missing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Equivalence;

    fn message(made: Result<Datatype, TypeError>) -> String {
        made.unwrap_err().to_string()
    }

    #[test]
    fn builders_make_what_constructors_make() {
        let int = i32::datatype();
        let built = Subarray::of(&int).sizes([4, 5]).subsizes([2, 3]).starts([1, 2]);
        let plain = Datatype::subarray(&[4, 5], &[2, 3], &[1, 2], Order::C, &int).unwrap();
        assert!(built.build().unwrap().same_structure(&plain));
        let plain = Datatype::subarray(&[4, 5], &[2, 3], &[1, 2], Order::Fortran, &int).unwrap();
        assert!(built.order(Order::Fortran).build().unwrap().same_structure(&plain));
        let whole = Datatype::subarray(&[4, 5], &[4, 5], &[0, 0], Order::C, &int).unwrap();
        assert!(Subarray::of(&int).sizes(vec![4, 5]).build().unwrap().same_structure(&whole));

        let (distribs, dargs) = ([Distribution::Block; 2], [None; 2]);
        for rank in 0..6 {
            let plain =
                Datatype::darray(6, rank, &[9, 7], &distribs, &dargs, &[3, 2], Order::C, &int);
            let built = Darray::of(&int).gsizes([9, 7]).psizes([3, 2]).rank(rank).build();
            assert!(built.unwrap().same_structure(&plain.unwrap()));
        }
    }

    #[test]
    fn arguments_are_named() {
        let int = &i32::datatype();
        let sub = || Subarray::of(int);
        assert_eq!(message(sub().starts([1]).build()), "subarray: sizes is not given");
        assert_eq!(message(sub().sizes([]).build()), "subarray: sizes is empty");
        assert_eq!(message(sub().sizes([3, 0]).build()), "subarray: sizes[1] is 0, less than 1");
        assert_eq!(
            message(sub().sizes([3, 4]).starts([1]).build()),
            "subarray: starts has 1 entries, but sizes has 2"
        );
        assert_eq!(
            message(sub().sizes([3, 4]).subsizes([3, 3]).starts([0, 2]).build()),
            "subarray: starts[1] is 2, more than 1"
        );
        let share = || Darray::of(int).gsizes([8, 8]).psizes([2, 2]).rank(0);
        assert_eq!(message(Darray::of(int).rank(0).build()), "darray: gsizes is not given");
        let grid = Darray::of(int).gsizes([8]).rank(0);
        assert_eq!(message(grid.build()), "darray: psizes is not given");
        assert_eq!(message(share().rank(4).build()), "darray: rank is 4, more than 3");
        assert_eq!(
            message(share().psizes([4]).build()),
            "darray: psizes has 1 entries, but gsizes has 2"
        );
        assert_eq!(message(share().psizes([4, 0]).build()), "darray: psizes[1] is 0, less than 1");
        assert_eq!(
            message(share().dargs([None]).build()),
            "darray: dargs has 1 entries, but gsizes has 2"
        );
        assert!(message(share().psizes([u64::MAX, 2]).build()).contains("psizes multiplies to"));
    }
}
