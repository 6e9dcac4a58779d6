//! `MPI_Type_create_subarray` (MPI 4.1 §5.1.3).
//!
//! A box cut out of a full array, whose bounds are the full array's. It is kept together with the
//! tree it stands for: rows of the fastest dimension, one `hvector` per further dimension, moved to
//! the box's corner, resized to the full array.

use super::{Recipe, SubarrayRecipe};
use crate::contents::{Combiner, Contents, Order};
use crate::datatype::Datatype;
use crate::error::{Argument, Problem, Quantity, TypeError};

const SUBARRAY: Combiner = Combiner::Subarray;

impl Datatype {
    /// The box of `subsizes` elements at `starts` in an array of `sizes` elements of type `old`,
    /// stored in `order`. Dimensions are listed in the array's own order; indices start at 0.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Order, Primitive};
    ///
    /// // The right-hand column of a 3 × 4 array of ints.
    /// let int = Datatype::from(Primitive::Int);
    /// let halo = Datatype::subarray(&[3, 4], &[3, 1], &[0, 3], Order::C, &int)?;
    /// assert_eq!((halo.size(), halo.extent(), halo.true_lb()), (12, 48, 12));
    /// # Ok::<(), gapless_dtype::TypeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no dimension, the lists differ in length, a size or subsize is zero, the box
    /// reaches out of the array, the full array's bytes overflow 64 bits, or the tree gets too
    /// deep.
    pub fn subarray(
        sizes: &[u64],
        subsizes: &[u64],
        starts: &[u64],
        order: Order,
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        check(sizes, subsizes, starts)?;
        let blame = Argument::whole("sizes");
        let lowered =
            lower(sizes, subsizes, starts, order, old).map_err(|e| e.within(SUBARRAY, blame))?;
        let (size, bounds) = (lowered.size(), lowered.bounds());
        let recipe = SubarrayRecipe {
            sizes: sizes.into(),
            subsizes: subsizes.into(),
            starts: starts.into(),
            order,
            old: old.clone(),
            lowered,
        };
        Datatype::assemble(Recipe::Subarray(Box::new(recipe)), size, bounds, blame)
    }
}

impl SubarrayRecipe {
    pub(super) fn contents(&self) -> Contents<'_> {
        Contents::Subarray {
            sizes: &self.sizes,
            subsizes: &self.subsizes,
            starts: &self.starts,
            order: self.order,
            old: &self.old,
        }
    }
}

fn check(sizes: &[u64], subsizes: &[u64], starts: &[u64]) -> Result<(), TypeError> {
    let wrong = |argument, problem| Err(TypeError::argument(SUBARRAY, argument, problem));
    let dims = ("sizes", sizes.len());
    if sizes.is_empty() {
        return wrong(Argument::whole("sizes"), Problem::Empty);
    }
    TypeError::check_length(SUBARRAY, ("subsizes", subsizes.len()), dims)?;
    TypeError::check_length(SUBARRAY, ("starts", starts.len()), dims)?;
    for (i, ((&size, &subsize), &start)) in sizes.iter().zip(subsizes).zip(starts).enumerate() {
        for (name, value) in [("sizes", size), ("subsizes", subsize)] {
            if value < 1 {
                return wrong(Argument::entry(name, i), Problem::Below { value, least: 1 });
            }
        }
        for (name, value, most) in
            [("subsizes", subsize, size), ("starts", start, size.saturating_sub(subsize))]
        {
            if value > most {
                return wrong(Argument::entry(name, i), Problem::Above { value, most });
            }
        }
    }
    Ok(())
}

fn lower(
    sizes: &[u64],
    subsizes: &[u64],
    starts: &[u64],
    order: Order,
    old: &Datatype,
) -> Result<Datatype, TypeError> {
    let mut corner = 0_i128;
    let mut dimension = Dimension::innermost(SUBARRAY, old);
    let mut inner = old.clone();
    for (nth, i) in fastest_first(order, sizes.len()).enumerate() {
        corner += i128::from(starts[i]) * i128::from(dimension.stride);
        inner = match nth {
            0 => Datatype::contiguous(subsizes[i], &inner)?,
            _ => Datatype::hvector(subsizes[i], 1, dimension.stride, &inner)?,
        };
        dimension = dimension.outward(sizes[i])?;
    }
    if corner != 0 {
        // Fits: the corner lies inside the full array, whose extent does.
        let corner = i64::try_from(corner).map_err(|_| dimension.overflow())?;
        inner = Datatype::hindexed_block(1, &[corner], &inner)?;
    }
    Datatype::resized(0, dimension.stride, &inner)
}

/// Indices of `dims` dimensions from the one that is contiguous in memory outwards.
pub(super) fn fastest_first(order: Order, dims: usize) -> impl Iterator<Item = usize> {
    (0..dims).map(move |nth| match order {
        Order::Fortran => nth,
        Order::C => dims - 1 - nth,
    })
}

/// Walks an array's dimensions outwards: `stride` is the bytes from one index of the current
/// dimension to the next.
#[derive(Clone, Copy)]
pub(super) struct Dimension {
    combiner: Combiner,
    pub(super) stride: i64,
}

impl Dimension {
    pub(super) fn innermost(combiner: Combiner, old: &Datatype) -> Dimension {
        Dimension { combiner, stride: old.extent() }
    }

    /// Past a dimension of `size` indices; behind the last one, `stride` is the array's extent.
    pub(super) fn outward(self, size: u64) -> Result<Dimension, TypeError> {
        let stride = i128::from(self.stride) * i128::from(size);
        let stride = i64::try_from(stride).map_err(|_| self.overflow())?;
        Ok(Dimension { stride, ..self })
    }

    pub(super) fn overflow(self) -> TypeError {
        TypeError::overflow(self.combiner, Quantity::Bounds, Argument::whole("sizes"))
    }
}
