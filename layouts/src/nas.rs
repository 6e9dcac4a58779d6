//! NAS LU and NAS MG: edges of a grid of cells, faces of a cube.
//!
//! In both, what is sent from the last owned cells arrives in the neighbour's ghost cells, so the
//! two sides have one type and different origins.

use gapless_dtype::Datatype;

use crate::{
    case::{Axis, Case, DOUBLE, Side, array_bytes, double, signed},
    error::LayoutError,
    families::Family,
};

/// Doubles of a cell of LU.
const CELL: u64 = 5;
const CELL_BYTES: u64 = CELL * DOUBLE;

/// Grid edges of LU that DDTBench sets.
pub const LU_EDGES: [u64; 7] = [12, 33, 64, 102, 162, 408, 1020];
/// Third dimension of MG's arrays, (2c − 2, c, c), that DDTBench sets.
pub const MG_EDGES: [u64; 4] = [18, 66, 130, 258];

/// LU in x: a contiguous row of `n` cells of a (5, n+2, n+2) array, from cell (1, n) to (1, 0).
///
/// # Errors
/// [`LayoutError`] if `n` is 0 or the grid is too large.
pub fn lu_x(n: u64) -> Result<Case, LayoutError> {
    let grid = LuGrid::new("nas-lu-x", n)?;
    let row = Datatype::contiguous(CELL * n, &double())?;
    Ok(grid.case(Axis::X, &row, (1, n), (1, 0), 1))
}

/// LU in y: a column of `n` cells of a (5, n+2, n+2) array, from cell (n, 1) to (0, 1).
///
/// # Errors
/// As [`lu_x`].
pub fn lu_y(n: u64) -> Result<Case, LayoutError> {
    let grid = LuGrid::new("nas-lu-y", n)?;
    let cell = Datatype::contiguous(CELL, &double())?;
    let column = Datatype::vector(n, 1, signed("nas-lu-y", n + 2)?, &cell)?;
    Ok(grid.case(Axis::Y, &column, (n, 1), (0, 1), n))
}

/// The face of MG's (a, b, c) array normal to `axis`, without the edges of the array.
///
/// # Errors
/// [`LayoutError`] if a dimension is below 3 or the array too large.
pub fn mg(axis: Axis, a: u64, b: u64, c: u64) -> Result<Case, LayoutError> {
    let (layout, family) = match axis {
        Axis::X => ("nas-mg-x", Family::NasMgX),
        Axis::Y => ("nas-mg-y", Family::NasMgY),
        Axis::Z => ("nas-mg-z", Family::NasMgZ),
    };
    let bytes = array_bytes(layout, &[DOUBLE, a, b, c])?;
    if a.min(b).min(c) < 3 {
        return Err(LayoutError::Parameters { layout, rule: "every dimension must be at least 3" });
    }
    let (row, plane) = (signed(layout, a)?, signed(layout, a * b)?);
    // The face, its first element where sent and where received, blocks and doubles in each.
    let (datatype, from, to, blocks, length) = match axis {
        Axis::X => {
            let column = Datatype::vector(b - 2, 1, row, &double())?;
            let plane_bytes = signed(layout, DOUBLE * a * b)?;
            let face = Datatype::hvector(c - 2, 1, plane_bytes, &column)?;
            (face, (a - 2, 1, 1), (a - 1, 1, 1), (b - 2) * (c - 2), 1)
        }
        Axis::Y => {
            let face = Datatype::vector(c - 2, a - 2, plane, &double())?;
            (face, (1, b - 2, 1), (1, b - 1, 1), c - 2, a - 2)
        }
        Axis::Z => {
            let face = Datatype::vector(b - 2, a - 2, row, &double())?;
            (face, (1, 1, 1), (1, 1, 0), b - 2, a - 2)
        }
    };
    let origin = |(i, j, k): (u64, u64, u64)| DOUBLE * (i + a * (j + b * k));
    Ok(Case {
        name: format!("NAS MG {axis} {a},{b},{c}"),
        family,
        payload_bytes: DOUBLE * blocks * length,
        send: Side::one(datatype.clone(), origin(from), bytes),
        recv: Side::one(datatype, origin(to), bytes),
        expected_send_blocks: Some(blocks),
        expected_recv_blocks: Some(blocks),
    })
}

/// A square of `n` × `n` cells with a ghost cell on each side.
struct LuGrid {
    n: u64,
    width: u64,
    bytes: u64,
}

impl LuGrid {
    fn new(layout: &'static str, n: u64) -> Result<LuGrid, LayoutError> {
        if n == 0 {
            return Err(LayoutError::Parameters { layout, rule: "the grid needs a cell" });
        }
        let width = n.checked_add(2).ok_or(LayoutError::TooLarge { layout })?;
        let bytes = array_bytes(layout, &[CELL_BYTES, width, width])?;
        Ok(LuGrid { n, width, bytes })
    }

    fn case(
        &self,
        axis: Axis,
        edge: &Datatype,
        from: (u64, u64),
        to: (u64, u64),
        blocks: u64,
    ) -> Case {
        let origin = |(i, j): (u64, u64)| CELL_BYTES * (i + j * self.width);
        Case {
            name: format!("NAS LU {axis} n={}", self.n),
            family: if axis == Axis::X { Family::NasLuX } else { Family::NasLuY },
            send: Side::one(edge.clone(), origin(from), self.bytes),
            recv: Side::one(edge.clone(), origin(to), self.bytes),
            payload_bytes: CELL_BYTES * self.n,
            expected_send_blocks: Some(blocks),
            expected_recv_blocks: Some(blocks),
        }
    }
}
