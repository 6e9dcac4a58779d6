//! `MPI_Type_dup` (MPI 4.1 §5.1.10).

use super::Recipe;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

impl Datatype {
    /// A new type like this one.
    ///
    /// # Errors
    ///
    /// If the tree gets too deep.
    pub fn dup(&self) -> Result<Datatype, TypeError> {
        let recipe = Recipe::Dup { old: self.clone() };
        Datatype::assemble(recipe, self.size(), self.bounds(), Argument::whole("old"))
    }
}
