//! `MPI_Type_create_indexed_block` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};
use crate::optimize::Lengths;

impl Datatype {
    /// Blocks of `blocklength` copies of `old` each, starting `displacements[i]` extents of `old`
    /// from the origin, in the order listed.
    ///
    /// # Errors
    ///
    /// If the size, a displacement or a bound overflows 64 bits, or the tree gets too deep.
    pub fn indexed_block(
        blocklength: u64,
        displacements: &[i64],
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        const LIST: &str = "displacements";
        let mut placement = Placement::of(Combiner::IndexedBlock, old);
        placement.listed(displacements, Lengths::Equal(blocklength), old.extent(), LIST)?;
        let reach = Argument::whole(LIST);
        let (size, bounds) = placement.total(old, Argument::whole("blocklength"), reach)?;
        let recipe = Recipe::IndexedBlock {
            blocklength,
            displacements: displacements.into(),
            old: old.clone(),
        };
        Datatype::assemble(recipe, size, bounds, reach)
    }
}
