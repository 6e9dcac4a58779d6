//! `MPI_Type_create_hindexed_block` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};
use crate::optimize::Lengths;

impl Datatype {
    /// Blocks of `blocklength` copies of `old` each, starting `displacements_bytes[i]` bytes
    /// from the origin, in the order listed.
    ///
    /// # Errors
    ///
    /// If the size, a displacement or a bound overflows 64 bits, or the tree gets too deep.
    pub fn hindexed_block(
        blocklength: u64,
        displacements_bytes: &[i64],
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        const LIST: &str = "displacements_bytes";
        let mut placement = Placement::of(Combiner::HindexedBlock, old);
        placement.listed(displacements_bytes, Lengths::Equal(blocklength), 1, LIST)?;
        let reach = Argument::whole(LIST);
        let (size, bounds) = placement.total(old, Argument::whole("blocklength"), reach)?;
        let recipe = Recipe::HindexedBlock {
            blocklength,
            displacements_bytes: displacements_bytes.into(),
            old: old.clone(),
        };
        Datatype::assemble(recipe, size, bounds, reach)
    }
}
