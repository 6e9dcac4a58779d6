//! `MPI_Type_dup` (MPI 4.1 §5.1.10).

use super::Recipe;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

impl Datatype {
    /// A new type like this one, with the attributes that their keys' copy rules let through.
    ///
    /// # Errors
    ///
    /// If a copy callback refuses (then what was copied before is deleted again), or the tree gets
    /// too deep.
    pub fn dup(&self) -> Result<Datatype, TypeError> {
        let attributes = self.attributes().copied_from(self)?;
        let recipe = Recipe::Dup { old: self.clone() };
        let blame = Argument::whole("old");
        Datatype::with_attributes(recipe, self.size(), self.bounds(), blame, attributes)
    }
}
