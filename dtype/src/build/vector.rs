//! `MPI_Type_vector` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

impl Datatype {
    /// `count` blocks of `blocklength` copies of `old`; blocks start `stride` extents of `old`
    /// apart, which may be negative.
    ///
    /// # Errors
    ///
    /// If the size, a displacement or a bound overflows 64 bits, or the tree gets too deep.
    pub fn vector(
        count: u64,
        blocklength: u64,
        stride: i64,
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        let (counts, reach) = (Argument::whole("count"), Argument::whole("stride"));
        let mut placement = Placement::of(Combiner::Vector, old);
        let stride_bytes = i128::from(stride) * i128::from(old.extent());
        placement.blocks(count, blocklength, stride_bytes, reach)?;
        let (size, bounds) = placement.total(old, counts, reach)?;
        let recipe = Recipe::Vector { count, blocklength, stride, old: old.clone() };
        Datatype::assemble(recipe, size, bounds, reach)
    }
}
