//! `MPI_Type_indexed` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};
use crate::optimize::Lengths;

impl Datatype {
    /// Blocks of `blocklengths[i]` copies of `old`, each starting `displacements[i]` extents of `old`
    /// from the origin, in the order listed.
    ///
    /// # Errors
    ///
    /// If the lists differ in length, the size, a displacement or a bound overflows 64 bits, or
    /// the tree gets too deep.
    pub fn indexed(
        blocklengths: &[u64],
        displacements: &[i64],
        old: &Datatype,
    ) -> Result<Datatype, TypeError> {
        const LIST: &str = "displacements";
        TypeError::check_length(
            Combiner::Indexed,
            (LIST, displacements.len()),
            ("blocklengths", blocklengths.len()),
        )?;
        let mut placement = Placement::of(Combiner::Indexed, old);
        placement.listed(displacements, Lengths::Listed(blocklengths), old.extent(), LIST)?;
        let reach = Argument::whole(LIST);
        let (size, bounds) = placement.total(old, Argument::whole("blocklengths"), reach)?;
        let recipe = Recipe::Indexed {
            blocklengths: blocklengths.into(),
            displacements: displacements.into(),
            old: old.clone(),
        };
        Datatype::assemble(recipe, size, bounds, reach)
    }
}
