//! The matrices of the GPU datatype papers: doubles, column-major, N from 512 to 16384.
//!
//! Read first: Wu et al., "GPU-Aware Non-contiguous Data Movement in Open MPI" (HPDC 2016), §5:
//! sub-matrix (V), triangle (T), stair triangle and transpose (X).

use gapless_dtype::Datatype;

use crate::{
    case::{Case, DOUBLE, Side, array_bytes, double, signed},
    error::LayoutError,
    families::Family,
};

/// V: the first `n` rows of a 2n × n matrix: vector(n, n, 2n); the peer receives the same.
///
/// # Errors
/// [`LayoutError`] if `n` is 0 or the matrix exceeds [`MAX_BUFFER_BYTES`](crate::MAX_BUFFER_BYTES).
pub fn v(n: u64) -> Result<Case, LayoutError> {
    let side = v_side(n)?;
    Ok(Case {
        name: format!("V n={n}"),
        family: Family::V,
        recv: side.clone(),
        send: side,
        payload_bytes: DOUBLE * n * n,
        expected_send_blocks: Some(n),
        expected_recv_blocks: Some(n),
    })
}

/// V sent, n² contiguous doubles received.
///
/// # Errors
/// As [`v`].
pub fn v_contiguous(n: u64) -> Result<Case, LayoutError> {
    Ok(Case {
        name: format!("V-contiguous n={n}"),
        family: Family::VContiguous,
        send: v_side(n)?,
        recv: contiguous_side(n * n)?,
        payload_bytes: DOUBLE * n * n,
        expected_send_blocks: Some(n),
        expected_recv_blocks: Some(1),
    })
}

/// T: the lower triangle of an n × n matrix. Column j has n − j elements from j(n + 1) on.
///
/// # Errors
/// As [`v`].
pub fn t(n: u64) -> Result<Case, LayoutError> {
    let side = lower_triangle("t", n, 1)?;
    Ok(Case {
        name: format!("T n={n}"),
        family: Family::T,
        recv: side.clone(),
        send: side,
        payload_bytes: 4 * n * (n + 1),
        expected_send_blocks: Some(n),
        expected_recv_blocks: Some(n),
    })
}

/// The stair triangle that contains T: steps of `nb` columns, each as long as its first one.
/// Wu takes `nb` as a multiple of the CUDA block (256), so that work divides evenly. `nb` = 1 is T.
///
/// # Errors
/// As [`v`]; also if `nb` is 0 or does not divide `n`.
pub fn stair(n: u64, nb: u64) -> Result<Case, LayoutError> {
    let side = lower_triangle("stair", n, nb)?;
    Ok(Case {
        name: format!("stair n={n} nb={nb}"),
        family: Family::Stair,
        recv: side.clone(),
        send: side,
        payload_bytes: 4 * n * (n + nb),
        // The first step is whole columns: one run.
        expected_send_blocks: Some(n - nb + 1),
        expected_recv_blocks: Some(n - nb + 1),
    })
}

/// X: an n × n matrix sent row by row, received contiguously, hence transposed.
///
/// # Errors
/// As [`v`].
pub fn x(n: u64) -> Result<Case, LayoutError> {
    Ok(Case { name: format!("X n={n}"), ..x_rectangle(n, n)? })
}

/// X of a matrix of `rows` × `columns`: contiguous(rows of resized(vector(columns, 1, rows), 8)).
///
/// # Errors
/// As [`v`], for either number.
pub fn x_rectangle(rows: u64, columns: u64) -> Result<Case, LayoutError> {
    let bytes = array_bytes("x", &[DOUBLE, rows, columns])?;
    let row = Datatype::vector(columns, 1, signed("x", rows)?, &double())?;
    let row = Datatype::resized(0, signed("x", DOUBLE)?, &row)?;
    let cells = rows * columns;
    Ok(Case {
        name: format!("X {rows}x{columns}"),
        family: Family::X,
        send: Side::one(Datatype::contiguous(rows, &row)?, 0, bytes),
        recv: contiguous_side(cells)?,
        payload_bytes: bytes,
        // A single row or column is contiguous.
        expected_send_blocks: Some(if rows == 1 || columns == 1 { 1 } else { cells }),
        expected_recv_blocks: Some(1),
    })
}

fn v_side(n: u64) -> Result<Side, LayoutError> {
    let bytes = array_bytes("v", &[2, DOUBLE, n, n])?;
    let datatype = Datatype::vector(n, n, signed("v", 2 * n)?, &double())?;
    Ok(Side::one(datatype, 0, bytes))
}

fn contiguous_side(doubles: u64) -> Result<Side, LayoutError> {
    Ok(Side::one(Datatype::contiguous(doubles, &double())?, 0, DOUBLE * doubles))
}

fn lower_triangle(layout: &'static str, n: u64, nb: u64) -> Result<Side, LayoutError> {
    let bytes = array_bytes(layout, &[DOUBLE, n, n])?;
    if nb == 0 || !n.is_multiple_of(nb) {
        return Err(LayoutError::Parameters { layout, rule: "the step must divide the size" });
    }
    let top = |column: u64| column - column % nb;
    let lengths: Vec<u64> = (0..n).map(|column| n - top(column)).collect();
    let displacements = (0..n)
        .map(|column| signed(layout, column * n + top(column)))
        .collect::<Result<Vec<i64>, _>>()?;
    let datatype = Datatype::indexed(&lengths, &displacements, &double())?;
    Ok(Side::one(datatype, 0, bytes))
}
