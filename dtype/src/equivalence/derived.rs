//! The datatypes of structs.

use crate::datatype::Datatype;

/// The datatype of a struct: its fields at their offsets in bytes, in the order given; the extent is the struct's size.
/// So bytes between fields are gaps, whatever the alignment is.
///
/// # Panics
/// Types nest too deep.
pub(super) fn structure<T>(fields: &[(usize, Datatype)]) -> Datatype {
    let displacements: Vec<i64> = fields.iter().map(|(offset, _)| signed(*offset)).collect();
    let types: Vec<Datatype> = fields.iter().map(|(_, datatype)| datatype.clone()).collect();
    let made = Datatype::structure(&vec![1; fields.len()], &displacements, &types)
        .and_then(|fields| Datatype::resized(0, signed(size_of::<T>()), &fields));
    made.unwrap_or_else(|error| panic!("{}: {error}", std::any::type_name::<T>()))
}

/// No type has more bytes than that.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
