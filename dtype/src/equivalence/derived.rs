//! What `#[derive(Datatype)]` calls. Not for use by hand.

use crate::datatype::Datatype;
use crate::layout::Layout;
use std::sync::OnceLock;

/// Where the layout of a type is kept.
pub type Slot = OnceLock<Layout>;

/// The datatype of a struct: its fields at their offsets in bytes, in the order given; the extent is the struct's size.
/// So bytes between fields are gaps, whatever the alignment is.
///
/// # Panics
/// Types nest too deep.
#[must_use]
pub fn structure<T>(fields: &[(usize, Datatype)]) -> Datatype {
    let displacements: Vec<i64> = fields.iter().map(|(offset, _)| signed(*offset)).collect();
    let types: Vec<Datatype> = fields.iter().map(|(_, datatype)| datatype.clone()).collect();
    let made = Datatype::structure(&vec![1; fields.len()], &displacements, &types)
        .and_then(|fields| Datatype::resized(0, signed(size_of::<T>()), &fields));
    made.unwrap_or_else(|error| panic!("{}: {error}", std::any::type_name::<T>()))
}

/// What [`Equivalence::layout`](crate::Equivalence::layout) is of a type that has a slot of its own.
///
/// # Panics
/// As [`structure`].
pub fn layout(slot: &'static Slot, datatype: fn() -> Datatype) -> &'static Layout {
    slot.get_or_init(|| super::commit(&datatype()))
}

/// The bytes of a field that lies at `offset` in a struct.
#[must_use]
pub fn field<F>(bytes: &[u8], offset: usize) -> &[u8] {
    bytes.get(offset..).and_then(|rest| rest.get(..size_of::<F>())).unwrap_or(&[])
}

/// No type has more bytes than that.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
