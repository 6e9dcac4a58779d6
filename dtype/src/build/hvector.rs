//! `MPI_Type_create_hvector` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

impl Datatype {
    /// `count` blocks of `blocklength` copies of `old`; blocks start `stride_bytes` bytes apart,
    /// which may be negative.
    ///
    /// # Errors
    ///
    /// If the size, a displacement or a bound overflows 64 bits, or the tree gets too deep.
    pub fn hvector(
        count: u64,
        blocklength: u64,
        stride_bytes: i64,
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        let (counts, reach) = (Argument::whole("count"), Argument::whole("stride_bytes"));
        let mut placement = Placement::of(Combiner::Hvector, old);
        placement.blocks(count, blocklength, stride_bytes.into(), reach)?;
        let (size, bounds) = placement.total(old, counts, reach)?;
        let recipe = Recipe::Hvector { count, blocklength, stride_bytes, old: old.clone() };
        Datatype::assemble(recipe, size, bounds, reach)
    }
}
