//! From a constructor tree to its typemap: every constructor places copies of its old type's
//! typemap at displacements, one after another.

use super::arrays;
use super::{NaiveError, Typemap, TypemapEntry};
use crate::{Contents, Datatype, Primitive};

/// What is left of the work one typemap may cost.
pub(super) struct Steps {
    left: u64,
    limit: u64,
}

impl Steps {
    pub(super) fn new(limit: u64) -> Steps {
        Steps { left: limit, limit }
    }

    pub(super) fn take(&mut self, steps: usize) -> Result<(), NaiveError> {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        let refused = NaiveError::TooLarge { limit: self.limit, what: "steps" };
        self.left = self.left.checked_sub(steps).ok_or(refused)?;
        Ok(())
    }
}

/// Writes out `datatype`, recursing into the types it was made of.
pub(super) fn expand(datatype: &Datatype, steps: &mut Steps) -> Result<Typemap, NaiveError> {
    let mut new = Draft::default();
    match datatype.contents() {
        Contents::Primitive(primitive) => new.basic(primitive),
        Contents::Dup { old } => return expand(old, steps),
        Contents::Contiguous { count, old } => {
            let old = expand(old, steps)?;
            for i in 0..count {
                new.place(&old, i128::from(i) * i128::from(old.extent()), steps)?;
            }
        }
        Contents::Vector { count, blocklength, stride, old } => {
            let old = expand(old, steps)?;
            let stride = i128::from(stride) * i128::from(old.extent());
            for i in 0..count {
                new.block(&old, blocklength, i128::from(i) * stride, steps)?;
            }
        }
        Contents::Hvector { count, blocklength, stride_bytes, old } => {
            let old = expand(old, steps)?;
            for i in 0..count {
                let first = i128::from(i) * i128::from(stride_bytes);
                new.block(&old, blocklength, first, steps)?;
            }
        }
        Contents::Indexed { blocklengths, displacements, old } => {
            let old = expand(old, steps)?;
            for (&length, &displacement) in blocklengths.iter().zip(displacements) {
                let first = i128::from(displacement) * i128::from(old.extent());
                new.block(&old, length, first, steps)?;
            }
        }
        Contents::Hindexed { blocklengths, displacements_bytes, old } => {
            let old = expand(old, steps)?;
            for (&length, &displacement) in blocklengths.iter().zip(displacements_bytes) {
                new.block(&old, length, i128::from(displacement), steps)?;
            }
        }
        Contents::IndexedBlock { blocklength, displacements, old } => {
            let old = expand(old, steps)?;
            for &displacement in displacements {
                let first = i128::from(displacement) * i128::from(old.extent());
                new.block(&old, blocklength, first, steps)?;
            }
        }
        Contents::HindexedBlock { blocklength, displacements_bytes, old } => {
            let old = expand(old, steps)?;
            for &displacement in displacements_bytes {
                new.block(&old, blocklength, i128::from(displacement), steps)?;
            }
        }
        Contents::Struct { blocklengths, displacements_bytes, types } => {
            for (field, old) in types.iter().enumerate() {
                let old = expand(old, steps)?;
                let first = i128::from(displacements_bytes[field]);
                new.block(&old, blocklengths[field], first, steps)?;
            }
        }
        Contents::Subarray { sizes, subsizes, starts, order, old } => {
            let old = expand(old, steps)?;
            let axes = arrays::subarray_axes(subsizes, starts, steps)?;
            new.array(&old, sizes, &axes, order, steps)?;
        }
        Contents::Darray { size: _, rank, gsizes, distribs, dargs, psizes, order, old } => {
            let old = expand(old, steps)?;
            let axes = arrays::darray_axes(rank, gsizes, distribs, dargs, psizes, steps)?;
            new.array(&old, gsizes, &axes, order, steps)?;
        }
        Contents::Resized { lb, extent, old } => {
            new.place(&expand(old, steps)?, 0, steps)?;
            new.lb_marker = Some(i128::from(lb));
            new.ub_marker = Some(i128::from(lb) + i128::from(extent));
        }
    }
    new.finish()
}

/// A typemap under construction. Bounds are wide so that only [`Draft::finish`] judges overflow.
#[derive(Default)]
pub(super) struct Draft {
    entries: Vec<TypemapEntry>,
    lb_marker: Option<i128>,
    ub_marker: Option<i128>,
}

impl Draft {
    /// The entries of a predefined type; pair types are C's `struct { value; index; }`, whose parts lie at multiples of
    /// their sizes.
    fn basic(&mut self, primitive: Primitive) {
        let mut end: i64 = 0;
        for (part, _) in primitive.parts() {
            let bytes = part.size_bytes().cast_signed();
            let displacement = if end == 0 { 0 } else { (end + bytes - 1) / bytes * bytes };
            self.entries.push(TypemapEntry { primitive: part, displacement });
            end = displacement + bytes;
        }
    }

    /// One copy of `old` moved by `displacement`, its markers with it.
    pub(super) fn place(
        &mut self,
        old: &Typemap,
        displacement: i128,
        steps: &mut Steps,
    ) -> Result<(), NaiveError> {
        steps.take(1 + old.entries.len())?;
        for entry in &old.entries {
            let moved = displacement + i128::from(entry.displacement);
            let displacement = i64::try_from(moved).map_err(|_| NaiveError::Overflow)?;
            self.entries.push(TypemapEntry { displacement, ..*entry });
        }
        if let Some(lb) = old.lb_marker {
            let moved = displacement + i128::from(lb);
            self.lb_marker = Some(self.lb_marker.map_or(moved, |least| least.min(moved)));
        }
        if let Some(ub) = old.ub_marker {
            let moved = displacement + i128::from(ub);
            self.ub_marker = Some(self.ub_marker.map_or(moved, |most| most.max(moved)));
        }
        Ok(())
    }

    /// A block: `length` copies of `old` from byte `first`, one extent apart.
    fn block(
        &mut self,
        old: &Typemap,
        length: u64,
        first: i128,
        steps: &mut Steps,
    ) -> Result<(), NaiveError> {
        steps.take(1)?;
        for j in 0..length {
            let displacement = first + i128::from(j) * i128::from(old.extent());
            self.place(old, displacement, steps)?;
        }
        Ok(())
    }

    /// The bounds of MPI 4.1 §5.1.7, from the entries and markers as they stand.
    fn finish(self) -> Result<Typemap, NaiveError> {
        let ends = |entry: &TypemapEntry| i128::from(entry.displacement) + i128::from(entry.len());
        let starts = |entry: &TypemapEntry| i128::from(entry.displacement);
        let true_lb = self.entries.iter().map(starts).min().unwrap_or(0);
        let true_ub = self.entries.iter().map(ends).max().unwrap_or(0);
        let lb = self.lb_marker.unwrap_or(true_lb);
        let ub = self.ub_marker.unwrap_or_else(|| {
            let alignment = self.entries.iter().map(|e| e.primitive.alignment_bytes()).max();
            let alignment = i128::from(alignment.unwrap_or(1));
            lb + (true_ub - lb + alignment - 1) / alignment * alignment
        });
        i64::try_from(ub - lb).map_err(|_| NaiveError::Overflow)?;
        i64::try_from(true_ub - true_lb).map_err(|_| NaiveError::Overflow)?;
        let narrow = |wide: i128| i64::try_from(wide).map_err(|_| NaiveError::Overflow);
        Ok(Typemap {
            lb_marker: self.lb_marker.map(narrow).transpose()?,
            ub_marker: self.ub_marker.map(narrow).transpose()?,
            lb: narrow(lb)?,
            ub: narrow(ub)?,
            true_lb: narrow(true_lb)?,
            true_ub: narrow(true_ub)?,
            size: self.entries.iter().map(|entry| entry.len().unsigned_abs()).sum(),
            entries: self.entries,
        })
    }

    /// Sets both markers, replacing what copies brought along.
    pub(super) fn mark(&mut self, lb: i128, ub: i128) {
        self.lb_marker = Some(lb);
        self.ub_marker = Some(ub);
    }
}
