//! SPECFEM3D GLOBE (seismic waves): mesh points shared with a neighbour, and the plane of `mt`.

use gapless_dtype::Datatype;

use crate::{
    case::{Case, FLOAT, Side, array_bytes, float, signed},
    error::LayoutError,
    families::Family,
    index_list::{IndexList, runs, scaled},
};

/// Floats of a displacement.
const VECTOR: u64 = 3;

/// DDTBench's outer core: (points, shared).
pub const OC: [(u64, u64); 4] = [(3697, 493), (12857, 877), (38585, 1897), (88881, 3225)];
/// DDTBench's mantle and inner core: (points, shared) of each.
pub const CM: [((u64, u64), (u64, u64)); 4] = [
    ((39929, 1957), (1225, 245)),
    ((152_001, 3801), (7209, 801)),
    ((396_849, 7125), (22477, 1729)),
    ((834_917, 11797), (51153, 3009)),
];
/// DDTBench's planes of `mt`.
pub const MT: [u64; 4] = [5600, 6200, 6400, 7600];

/// Outer core: `shared` of `points` floats, listed.
///
/// # Errors
/// [`LayoutError`] if the list cannot be made or the array is too large.
pub fn oc(points: u64, shared: u64, lists: IndexList) -> Result<Case, LayoutError> {
    const LAYOUT: &str = "specfem3d-oc";
    let bytes = array_bytes(LAYOUT, &[FLOAT, points])?;
    let list = lists.take(LAYOUT, points, shared, 0)?;
    let side = Side::one(Datatype::indexed_block(1, &list, &float())?, 0, bytes);
    Ok(Case {
        name: format!("SPECFEM3D oc {points},{shared}{}", lists.suffix()),
        family: Family::Specfem3dOc,
        recv: side.clone(),
        send: side,
        payload_bytes: FLOAT * shared,
        expected_send_blocks: Some(runs(&list)),
        expected_recv_blocks: Some(runs(&list)),
    })
}

/// Crust and mantle, then inner core: listed vectors of two arrays that lie back to back, each
/// given as (points, shared).
///
/// # Errors
/// As [`oc`].
pub fn cm(
    mantle: (u64, u64),
    inner_core: (u64, u64),
    lists: IndexList,
) -> Result<Case, LayoutError> {
    const LAYOUT: &str = "specfem3d-cm";
    let all = mantle.0.checked_add(inner_core.0).ok_or(LayoutError::TooLarge { layout: LAYOUT })?;
    let bytes = array_bytes(LAYOUT, &[FLOAT, VECTOR, all])?;
    let first = lists.take(LAYOUT, mantle.0, mantle.1, 0)?;
    let second = lists.take(LAYOUT, inner_core.0, inner_core.1, 1)?;
    let vectors = |list: &[i64]| Datatype::indexed_block(VECTOR, &scaled(list, 3), &float());
    let second_base = signed(LAYOUT, FLOAT * VECTOR * mantle.0)?;
    let datatype =
        Datatype::structure(&[1, 1], &[0, second_base], &[vectors(&first)?, vectors(&second)?])?;
    // The mantle's last point is next to the inner core's first one.
    let last = signed(LAYOUT, mantle.0)? - 1;
    let joined = first.last() == Some(&last) && second.first() == Some(&0);
    let blocks = runs(&first) + runs(&second) - u64::from(joined);
    let side = Side::one(datatype, 0, bytes);
    Ok(Case {
        name: format!(
            "SPECFEM3D cm {},{},{},{}{}",
            mantle.0,
            mantle.1,
            inner_core.0,
            inner_core.1,
            lists.suffix()
        ),
        family: Family::Specfem3dCm,
        recv: side.clone(),
        send: side,
        payload_bytes: FLOAT * VECTOR * (mantle.1 + inner_core.1),
        expected_send_blocks: Some(blocks),
        expected_recv_blocks: Some(blocks),
    })
}

/// `mt`: every other vector of a (3, 2, n) array, received as 3n contiguous floats.
///
/// # Errors
/// [`LayoutError`] if `n` is 0 or the array is too large.
pub fn mt(n: u64) -> Result<Case, LayoutError> {
    const LAYOUT: &str = "specfem3d-mt";
    let bytes = array_bytes(LAYOUT, &[FLOAT, VECTOR, 2, n])?;
    let vector = Datatype::contiguous(VECTOR, &float())?;
    Ok(Case {
        name: format!("SPECFEM3D mt n={n}"),
        family: Family::Specfem3dMt,
        send: Side::one(Datatype::vector(n, 1, 2, &vector)?, 0, bytes),
        recv: Side::one(Datatype::contiguous(VECTOR * n, &float())?, 0, bytes / 2),
        payload_bytes: bytes / 2,
        expected_send_blocks: Some(n),
        expected_recv_blocks: Some(1),
    })
}
