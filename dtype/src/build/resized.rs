//! `MPI_Type_create_resized` (MPI 4.1 §5.1.7).

use super::Recipe;
use crate::bounds::Span;
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, Quantity, TypeError};

impl Datatype {
    /// `old` with its lower bound set to `lb` and its upper bound to `lb + extent`, in bytes.
    ///
    /// The data do not change. The bounds set are sticky: types made from this one take theirs
    /// from them (see MPI 4.1 §5.1.6). A negative extent is legal.
    ///
    /// # Errors
    ///
    /// If `lb + extent` overflows 64 bits, or the tree gets too deep.
    pub fn resized(lb: i64, extent: i64, old: &Datatype) -> Result<Datatype, TypeError> {
        let blame = Argument::whole("extent");
        let markers = Span {
            lo: lb,
            hi: lb
                .checked_add(extent)
                .ok_or_else(|| TypeError::overflow(Combiner::Resized, Quantity::Bounds, blame))?,
        };
        let recipe = Recipe::Resized { lb, extent, old: old.clone() };
        Datatype::assemble(recipe, old.size(), old.bounds().with_markers(markers), blame)
    }
}
