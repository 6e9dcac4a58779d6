//! `MPI_Type_contiguous` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

impl Datatype {
    /// `count` copies of `old`, one extent apart.
    ///
    /// # Errors
    ///
    /// If the size or a bound overflows 64 bits, or the tree gets too deep.
    pub fn contiguous(count: u64, old: &Datatype) -> Result<Datatype, TypeError> {
        let blame = Argument::whole("count");
        let mut placement = Placement::of(Combiner::Contiguous, old);
        placement.block(0, count, blame)?;
        let (size, bounds) = placement.total(old, blame, blame)?;
        let recipe = Recipe::Contiguous { count, old: old.clone() };
        Datatype::assemble(recipe, size, bounds, blame)
    }
}
