//! LAMMPS (molecular dynamics): the properties of atoms that a neighbour needs to know.
//!
//! Each property is an array of doubles, `local + sent` atoms long, allocated back to back:
//! positions (three per atom) first. Listed atoms are sent from all over the arrays; they arrive
//! behind the receiver's own ones, contiguous in each array.

use gapless_dtype::Datatype;

use crate::{
    case::{Case, DOUBLE, Side, array_bytes, double, signed},
    error::LayoutError,
    families::Family,
    index_list::{IndexList, runs, scaled},
};

/// Doubles of an atom's position.
const POSITION: u64 = 3;

/// DDTBench's numbers of (local, sent) atoms with all properties.
pub const FULL: [(u64, u64); 3] = [(1907, 1662), (2597, 2243), (3534, 3062)];
/// DDTBench's numbers of (local, sent) atoms in style *atomic*.
pub const ATOMIC: [(u64, u64); 3] = [(1217, 114), (2157, 145), (4084, 243)];

/// Style *full*: position, tag, type, mask, charge and molecule of `sent` among `local` atoms.
///
/// # Errors
/// [`LayoutError`] if the list cannot be made or the arrays are too large.
pub fn full(local: u64, sent: u64, lists: IndexList) -> Result<Case, LayoutError> {
    atoms("lammps-full", "full", Family::LammpsFull, 5, local, sent, lists)
}

/// Style *atomic*: position, tag, type and mask of `sent` among `local` atoms.
///
/// # Errors
/// As [`full`].
pub fn atomic(local: u64, sent: u64, lists: IndexList) -> Result<Case, LayoutError> {
    atoms("lammps-atomic", "atomic", Family::LammpsAtomic, 3, local, sent, lists)
}

/// `scalars` is the number of properties of one double each, after the position.
fn atoms(
    layout: &'static str,
    style: &str,
    family: Family,
    scalars: u64,
    local: u64,
    sent: u64,
    lists: IndexList,
) -> Result<Case, LayoutError> {
    let length = local.checked_add(sent).ok_or(LayoutError::TooLarge { layout })?;
    let bytes = array_bytes(layout, &[DOUBLE, POSITION + scalars, length])?;
    let list = lists.take(layout, local, sent, 0)?;

    let positions = Datatype::indexed_block(POSITION, &scaled(&list, 3), &double())?;
    let scalar = Datatype::indexed_block(1, &list, &double())?;
    let positions_in = Datatype::contiguous(POSITION * sent, &double())?;
    let scalar_in = Datatype::contiguous(sent, &double())?;

    let mut out = (vec![0], vec![positions]);
    let mut into = (vec![signed(layout, DOUBLE * POSITION * local)?], vec![positions_in]);
    for field in 0..scalars {
        let base = DOUBLE * length * (POSITION + field);
        out.0.push(signed(layout, base)?);
        out.1.push(scalar.clone());
        into.0.push(signed(layout, base + DOUBLE * local)?);
        into.1.push(scalar_in.clone());
    }
    let ones = vec![1; out.1.len()];
    Ok(Case {
        name: format!("LAMMPS {style} {local},{sent}{}", lists.suffix()),
        family,
        send: Side::one(Datatype::structure(&ones, &out.0, &out.1)?, 0, bytes),
        recv: Side::one(Datatype::structure(&ones, &into.0, &into.1)?, 0, bytes),
        payload_bytes: DOUBLE * (POSITION + scalars) * sent,
        // No atom sent is the last of its array, so arrays never merge with each other.
        expected_send_blocks: Some((1 + scalars) * runs(&list)),
        expected_recv_blocks: Some(1 + scalars),
    })
}
