//! Subarray and darray, from MPI 4.1 §5.1.3 and §5.1.4 by walking indices: an element of the full
//! array belongs to the type if, on each axis, its index is among those selected.

use super::expand::{Draft, Steps};
use super::{NaiveError, Typemap};
use crate::{Distribution, Order};

/// The selected indices of one axis, ascending.
pub(super) type Axis = Vec<u64>;

/// A subarray selects `start .. start + subsize` on each axis.
pub(super) fn subarray_axes(
    subsizes: &[u64],
    starts: &[u64],
    steps: &mut Steps,
) -> Result<Vec<Axis>, NaiveError> {
    let mut axes = Vec::new();
    for (&subsize, &start) in subsizes.iter().zip(starts) {
        let mut axis = Axis::new();
        for index in start..start + subsize {
            steps.take(1)?;
            axis.push(index);
        }
        axes.push(axis);
    }
    Ok(axes)
}

/// A distributed array gives index `i` of an axis to process `(i / block) mod p`; the process grid
/// is row-major whatever the array's order (MPI 4.1 §5.1.4).
pub(super) fn darray_axes(
    rank: u64,
    gsizes: &[u64],
    distribs: &[Distribution],
    dargs: &[Option<u64>],
    psizes: &[u64],
    steps: &mut Steps,
) -> Result<Vec<Axis>, NaiveError> {
    let mut axes = vec![Axis::new(); gsizes.len()];
    let mut rest = rank;
    for dim in (0..gsizes.len()).rev() {
        let (gsize, procs) = (gsizes[dim], psizes[dim]);
        let coordinate = rest % procs;
        rest /= procs;
        let block = match (distribs[dim], dargs[dim]) {
            (Distribution::None, _) => gsize,
            (Distribution::Block, None) => gsize.div_ceil(procs),
            (Distribution::Cyclic, None) => 1,
            (_, Some(block)) => block,
        };
        for index in 0..gsize {
            steps.take(1)?;
            if (index / block) % procs == coordinate {
                axes[dim].push(index);
            }
        }
    }
    Ok(axes)
}

impl Draft {
    /// Places `old` at every selected element of an array of `sizes`, last axis fastest in C
    /// order, first axis fastest in Fortran order; bounds are those of the full array.
    pub(super) fn array(
        &mut self,
        old: &Typemap,
        sizes: &[u64],
        axes: &[Axis],
        order: Order,
        steps: &mut Steps,
    ) -> Result<(), NaiveError> {
        // Axes from slowest to fastest.
        let mut by_speed: Vec<usize> = (0..sizes.len()).collect();
        if matches!(order, Order::Fortran) {
            by_speed.reverse();
        }
        let mut elements: i128 = 1;
        for &size in sizes {
            elements = elements.checked_mul(i128::from(size)).ok_or(NaiveError::Overflow)?;
            i64::try_from(elements).map_err(|_| NaiveError::Overflow)?;
        }
        self.walk(old, sizes, axes, &by_speed, 0, steps)?;
        self.mark(0, elements * i128::from(old.extent()));
        Ok(())
    }

    fn walk(
        &mut self,
        old: &Typemap,
        sizes: &[u64],
        axes: &[Axis],
        by_speed: &[usize],
        element: i128,
        steps: &mut Steps,
    ) -> Result<(), NaiveError> {
        let Some((&axis, faster)) = by_speed.split_first() else {
            return self.place(old, element * i128::from(old.extent()), steps);
        };
        for &index in &axes[axis] {
            steps.take(1)?;
            let element = element * i128::from(sizes[axis]) + i128::from(index);
            self.walk(old, sizes, axes, faster, element, steps)?;
        }
        Ok(())
    }
}
