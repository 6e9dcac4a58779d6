//! FFT 2D: the transpose between the two passes, one pair of its all-to-all.
//!
//! Each of P ranks holds b = n / P columns of an n × n matrix of complex doubles: an (n, b) array.
//! A rank sends b rows of its columns to each rank, which receives them transposed.

use gapless_dtype::Datatype;

use crate::{
    case::{Case, DOUBLE, Side, array_bytes, double, signed},
    error::LayoutError,
    families::Family,
};

const LAYOUT: &str = "fft2d";
const COMPLEX: u64 = 2 * DOUBLE;

/// DDTBench's matrix edges.
pub const EDGES: [u64; 5] = [256, 512, 768, 1024, 1536];

/// What rank 0 of `ranks` sends to rank 1 (to itself if it is alone) and how that is received.
///
/// # Errors
/// [`LayoutError`] if `ranks` is 0 or does not divide `n`, or the array is too large.
pub fn transpose(n: u64, ranks: u64) -> Result<Case, LayoutError> {
    if n == 0 || ranks == 0 || !n.is_multiple_of(ranks) {
        let rule = "the number of ranks must divide n";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }
    let b = n / ranks;
    let bytes = array_bytes(LAYOUT, &[COMPLEX, n, b])?;
    let column = signed(LAYOUT, n)?;
    let complex = Datatype::contiguous(2, &double())?;

    let rows = Datatype::vector(b, b, column, &complex)?;
    let rows = Datatype::resized(0, signed(LAYOUT, COMPLEX * b)?, &rows)?;
    let row = Datatype::vector(b, 1, column, &complex)?;
    let row = Datatype::resized(0, signed(LAYOUT, COMPLEX)?, &row)?;
    let transposed = Datatype::contiguous(b, &row)?;

    let peer = u64::from(ranks > 1);
    Ok(Case {
        name: format!("FFT 2D n={n} P={ranks}"),
        family: Family::Fft2d,
        send: Side::one(rows, COMPLEX * b * peer, bytes),
        recv: Side::one(transposed, 0, bytes),
        payload_bytes: COMPLEX * b * b,
        // A rank that is alone sends its whole array.
        expected_send_blocks: Some(if ranks == 1 { 1 } else { b }),
        expected_recv_blocks: Some(b * b),
    })
}
