//! MILC su3 zdown (lattice QCD): the z face of a four-dimensional lattice of su3 vectors.
//!
//! The lattice is (6, X, Y, Z, T) floats: three complex numbers per site, even sites first, so a
//! face is 2T pieces of half a plane.

use gapless_dtype::Datatype;

use crate::{
    case::{Case, FLOAT, Side, array_bytes, float, signed},
    error::LayoutError,
    families::Family,
};

const LAYOUT: &str = "milc";
/// Floats of an su3 vector.
const SITE: u64 = 6;

/// DDTBench's lattices, (X, Y, Z, T).
pub const LATTICES: [[u64; 4]; 4] =
    [[8, 8, 8, 8], [8, 8, 8, 16], [8, 16, 16, 16], [16, 16, 16, 16]];

/// The z face of a lattice (X, Y, Z, T).
///
/// # Errors
/// [`LayoutError`] if X·Y is odd, Z is below 2, a dimension is 0 or the lattice is too large.
pub fn su3_zdown(lattice: [u64; 4]) -> Result<Case, LayoutError> {
    let [x, y, z, t] = lattice;
    let bytes = array_bytes(LAYOUT, &[FLOAT, SITE, x, y, z, t])?;
    if x * y % 2 != 0 || z < 2 {
        let rule = "a plane needs an even number of sites and the lattice two planes";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }
    let su3 = Datatype::contiguous(SITE, &float())?;
    let half_plane = x * y / 2;
    let parity = Datatype::vector(t, half_plane, signed(LAYOUT, half_plane * z)?, &su3)?;
    let datatype = Datatype::hvector(2, 1, signed(LAYOUT, bytes / 2)?, &parity)?;
    let side = Side::one(datatype, 0, bytes);
    Ok(Case {
        name: format!("MILC {x},{y},{z},{t}"),
        family: Family::Milc,
        recv: side.clone(),
        send: side,
        payload_bytes: 2 * t * half_plane * SITE * FLOAT,
        expected_send_blocks: Some(2 * t),
        expected_recv_blocks: Some(2 * t),
    })
}
