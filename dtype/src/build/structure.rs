//! `MPI_Type_create_struct` (MPI 4.1 §5.1.2).

use super::{Placement, Recipe};
use crate::bounds::Bounds;
use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, Quantity, TypeError};

impl Datatype {
    /// Blocks of `blocklengths[i]` copies of `types[i]`, each starting `displacements_bytes[i]`
    /// bytes from the origin, in the order listed.
    ///
    /// The extent is padded like a C struct's, to a multiple of the strictest alignment of the
    /// basic types inside, unless a member's bounds were set explicitly.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Primitive};
    ///
    /// // struct { double position[3]; char kind; }
    /// let types = [Primitive::Double.into(), Primitive::Char.into()];
    /// let particle = Datatype::structure(&[3, 1], &[0, 24], &types)?;
    /// assert_eq!((particle.size(), particle.extent()), (25, 32));
    /// # Ok::<(), gapless_dtype::TypeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the lists differ in length, the size, a displacement or a bound overflows 64 bits, or
    /// the tree gets too deep.
    pub fn structure(
        blocklengths: &[u64],
        displacements_bytes: &[i64],
        types: &[Datatype],
    ) -> Result<Datatype, TypeError> {
        const LIST: &str = "displacements_bytes";
        let members = ("blocklengths", blocklengths.len());
        let list = (LIST, displacements_bytes.len());
        TypeError::check_length(Combiner::Struct, list, members)?;
        TypeError::check_length(Combiner::Struct, ("types", types.len()), members)?;
        let (mut size, mut bounds) = (0_u64, Bounds::EMPTY);
        for (i, member) in types.iter().enumerate() {
            let (count, reach) = (Argument::entry("blocklengths", i), Argument::entry(LIST, i));
            let mut placement = Placement::of(Combiner::Struct, member);
            placement.block(displacements_bytes[i].into(), blocklengths[i], reach)?;
            let (member_size, member_bounds) = placement.total(member, count, reach)?;
            size = size
                .checked_add(member_size)
                .ok_or_else(|| TypeError::overflow(Combiner::Struct, Quantity::Size, count))?;
            bounds = bounds.union(member_bounds);
        }
        let recipe = Recipe::Struct {
            blocklengths: blocklengths.into(),
            displacements_bytes: displacements_bytes.into(),
            types: types.into(),
        };
        Datatype::assemble(recipe, size, bounds, Argument::whole(LIST))
    }
}
