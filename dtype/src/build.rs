//! The constructors, one file each, and what they share.
//!
//! Every constructor does the same: check the arguments, find the least and greatest displacement
//! at which it places copies of the old type and how many copies there are, and make the node from
//! the old type's size and bounds. All arithmetic is checked; intermediate products are taken in
//! 128 bits, where 64-bit arguments cannot overflow silently. Displacements are in bytes.

mod contiguous;
mod darray;
mod dup;
mod hindexed;
mod hindexed_block;
mod hvector;
mod indexed;
mod indexed_block;
mod named;
mod resized;
mod structure;
mod subarray;
mod vector;

pub use named::{Darray, Subarray};

use crate::bounds::{Bounds, Shifts};
use crate::contents::{Combiner, Contents, Distribution, Order};
use crate::datatype::Datatype;
use crate::error::{Argument, Quantity, TypeError};
use crate::optimize::Lengths;
use crate::primitive::Primitive;

/// A constructor's arguments, owned: what [`Contents`] borrows from.
pub(crate) enum Recipe {
    Primitive(Primitive),
    Dup { old: Datatype },
    Contiguous { count: u64, old: Datatype },
    Vector { count: u64, blocklength: u64, stride: i64, old: Datatype },
    Hvector { count: u64, blocklength: u64, stride_bytes: i64, old: Datatype },
    Indexed { blocklengths: Box<[u64]>, displacements: Box<[i64]>, old: Datatype },
    Hindexed { blocklengths: Box<[u64]>, displacements_bytes: Box<[i64]>, old: Datatype },
    IndexedBlock { blocklength: u64, displacements: Box<[i64]>, old: Datatype },
    HindexedBlock { blocklength: u64, displacements_bytes: Box<[i64]>, old: Datatype },
    Struct { blocklengths: Box<[u64]>, displacements_bytes: Box<[i64]>, types: Box<[Datatype]> },
    Subarray(Box<SubarrayRecipe>),
    Darray(Box<DarrayRecipe>),
    Resized { lb: i64, extent: i64, old: Datatype },
}

/// Arguments of a subarray and the tree it stands for.
pub(crate) struct SubarrayRecipe {
    sizes: Box<[u64]>,
    subsizes: Box<[u64]>,
    starts: Box<[u64]>,
    order: Order,
    old: Datatype,
    lowered: Datatype,
}

/// Arguments of a darray and the tree it stands for.
pub(crate) struct DarrayRecipe {
    size: u64,
    rank: u64,
    gsizes: Box<[u64]>,
    distribs: Box<[Distribution]>,
    dargs: Box<[Option<u64>]>,
    psizes: Box<[u64]>,
    order: Order,
    old: Datatype,
    lowered: Datatype,
}

impl Recipe {
    pub(crate) fn lowered(&self) -> Option<&Datatype> {
        match self {
            Recipe::Subarray(recipe) => Some(&recipe.lowered),
            Recipe::Darray(recipe) => Some(&recipe.lowered),
            _ => None,
        }
    }

    pub(crate) fn contents(&self) -> Contents<'_> {
        match self {
            Recipe::Primitive(primitive) => Contents::Primitive(*primitive),
            Recipe::Dup { old } => Contents::Dup { old },
            &Recipe::Contiguous { count, ref old } => Contents::Contiguous { count, old },
            &Recipe::Vector { count, blocklength, stride, ref old } => {
                Contents::Vector { count, blocklength, stride, old }
            }
            &Recipe::Hvector { count, blocklength, stride_bytes, ref old } => {
                Contents::Hvector { count, blocklength, stride_bytes, old }
            }
            Recipe::Indexed { blocklengths, displacements, old } => {
                Contents::Indexed { blocklengths, displacements, old }
            }
            Recipe::Hindexed { blocklengths, displacements_bytes, old } => {
                Contents::Hindexed { blocklengths, displacements_bytes, old }
            }
            &Recipe::IndexedBlock { blocklength, ref displacements, ref old } => {
                Contents::IndexedBlock { blocklength, displacements, old }
            }
            &Recipe::HindexedBlock { blocklength, ref displacements_bytes, ref old } => {
                Contents::HindexedBlock { blocklength, displacements_bytes, old }
            }
            Recipe::Struct { blocklengths, displacements_bytes, types } => {
                Contents::Struct { blocklengths, displacements_bytes, types }
            }
            Recipe::Subarray(recipe) => recipe.contents(),
            Recipe::Darray(recipe) => recipe.contents(),
            &Recipe::Resized { lb, extent, ref old } => Contents::Resized { lb, extent, old },
        }
    }
}

/// Where a constructor places copies of one old type, and how many.
struct Placement {
    combiner: Combiner,
    /// The old type's extent.
    extent: i64,
    copies: u128,
    shifts: Option<Shifts>,
}

impl Placement {
    fn of(combiner: Combiner, old: &Datatype) -> Placement {
        Placement { combiner, extent: old.extent(), copies: 0, shifts: None }
    }

    /// Adds a block of `blocklength` copies, the first one `start` bytes from the origin.
    fn block(&mut self, start: i128, blocklength: u64, blame: Argument) -> Result<(), TypeError> {
        if blocklength == 0 {
            return Ok(());
        }
        let last = i128::from(blocklength - 1).saturating_mul(self.extent.into());
        let last = start.saturating_add(last);
        let shifts = Shifts::new(start.min(last), start.max(last))
            .ok_or_else(|| TypeError::overflow(self.combiner, Quantity::Displacement, blame))?;
        self.shifts = Some(self.shifts.map_or(shifts, |s| s.union(shifts)));
        // Cannot overflow: lists have fewer than 2^64 entries of less than 2^64 each.
        self.copies += u128::from(blocklength);
        Ok(())
    }

    /// Adds block i of `blocklengths[i]` copies at `displacements[i] × unit` bytes; `list` is to blame.
    ///
    /// Making a type of a million blocks takes as long as this loop: where no product can overflow, it has
    /// 64 bits, which takes far less than checked sums of 128 bits do.
    fn listed(
        &mut self,
        displacements: &[i64],
        blocklengths: Lengths<'_>,
        unit: i64,
        list: &'static str,
    ) -> Result<(), TypeError> {
        let lengths = |i: usize| blocklengths.at(i);
        let ends =
            displacements.iter().fold((i64::MAX, i64::MIN), |(a, b), &d| (a.min(d), b.max(d)));
        let (least, greatest) = ends;
        let far = least.unsigned_abs().max(greatest.unsigned_abs());
        let long = match blocklengths {
            Lengths::Equal(n) => n,
            Lengths::Listed(lengths) => lengths.iter().fold(0, |bits, n| bits | n),
        };
        let reach = i128::from(far).checked_mul(i128::from(unit.unsigned_abs()));
        let block = (i128::from(long) + 1).checked_mul(i128::from(self.extent.unsigned_abs()));
        let most = reach.zip(block).and_then(|(reach, block)| reach.checked_add(block));
        if most.is_none_or(|most| most > i128::from(i64::MAX)) {
            for (i, &displacement) in displacements.iter().enumerate() {
                let start = i128::from(displacement) * i128::from(unit);
                self.block(start, lengths(i), Argument::entry(list, i))?;
            }
            return Ok(());
        }
        let mut shifts = Shifts { least: i64::MAX, greatest: i64::MIN };
        let mut copies = 0u128;
        match blocklengths {
            Lengths::Equal(0) => {}
            Lengths::Equal(n) => {
                let last = (n - 1).cast_signed() * self.extent;
                for displacement in displacements.first().iter().flat_map(|_| [least, greatest]) {
                    let start = displacement * unit;
                    let here = Shifts {
                        least: start.min(start + last),
                        greatest: start.max(start + last),
                    };
                    shifts = shifts.union(here);
                }
                copies = u128::from(n) * displacements.len() as u128;
            }
            Lengths::Listed(lengths) => {
                for (&displacement, &n) in displacements.iter().zip(lengths) {
                    let start = displacement * unit;
                    let last = start + n.saturating_sub(1).cast_signed() * self.extent;
                    if n > 0 {
                        shifts.least = shifts.least.min(start.min(last));
                        shifts.greatest = shifts.greatest.max(start.max(last));
                    }
                    copies += u128::from(n);
                }
            }
        }
        if copies > 0 {
            self.shifts = Some(self.shifts.map_or(shifts, |s| s.union(shifts)));
        }
        self.copies += copies;
        Ok(())
    }

    /// Adds `count` blocks, each `stride` bytes behind the one before.
    fn blocks(
        &mut self,
        count: u64,
        blocklength: u64,
        stride: i128,
        blame: Argument,
    ) -> Result<(), TypeError> {
        let Some(steps) = count.checked_sub(1) else {
            return Ok(());
        };
        self.block(0, blocklength, blame)?;
        // Everything between the first and the last block lies between them.
        self.block(i128::from(steps).saturating_mul(stride), blocklength, blame)?;
        self.copies = u128::from(count) * u128::from(blocklength);
        Ok(())
    }

    /// Size and bounds of all copies together; `copies` and `reach` are the arguments to blame
    /// if there are too many or they reach too far.
    fn total(
        &self,
        old: &Datatype,
        copies: Argument,
        reach: Argument,
    ) -> Result<(u64, Bounds), TypeError> {
        let size = u128::from(old.size())
            .checked_mul(self.copies)
            .or((old.size() == 0).then_some(0))
            .and_then(|size| u64::try_from(size).ok())
            .ok_or_else(|| TypeError::overflow(self.combiner, Quantity::Size, copies))?;
        let bounds = match self.shifts {
            None => Bounds::EMPTY,
            Some(shifts) => old
                .bounds()
                .placed(shifts)
                .ok_or_else(|| TypeError::overflow(self.combiner, Quantity::Bounds, reach))?,
        };
        Ok((size, bounds))
    }
}

#[cfg(test)]
pub(crate) mod tests;
