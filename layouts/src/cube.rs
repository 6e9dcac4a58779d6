//! Cubes of doubles: one face of any depth, and the halo of all 26 neighbours.
//!
//! The faces are those that GPU stencil codes exchange. The halo is our own definition: the whole
//! exchange with 26 neighbours as one message, which is what a periodic domain of one peer sends.
//! Subarrays are in order C with the axes written z, y, x, so that x is the fastest.

use gapless_dtype::{Datatype, Order};

use crate::{
    case::{Axis, Case, DOUBLE, Side, array_bytes, double},
    error::LayoutError,
    families::Family,
};

/// Where a face starts on its normal axis: inside the domain, behind a stencil's ghost cells.
pub const FACE_START: u64 = 4;

/// The depths (cells) that faces and halos are measured at.
pub const DEPTHS: [u64; 2] = [1, 3];

/// A face of an `edge`³ cube, `depth` cells deep, starting at [`FACE_START`] on the `normal` axis.
///
/// # Errors
/// [`LayoutError`] if `depth` is 0, the face does not fit the cube, or the cube is too large.
pub fn face(normal: Axis, edge: u64, depth: u64) -> Result<Case, LayoutError> {
    let (layout, family, axis, blocks) = match normal {
        Axis::X => ("face-x", Family::FaceX, 2, edge.checked_mul(edge)),
        Axis::Y => ("face-y", Family::FaceY, 1, Some(edge)),
        Axis::Z => ("face-z", Family::FaceZ, 0, Some(1)),
    };
    let bytes = array_bytes(layout, &[DOUBLE, edge, edge, edge])?;
    if depth == 0 || edge < FACE_START || depth > edge - FACE_START {
        let rule = "a face of at least one cell starts at cell 4 and must end inside the cube";
        return Err(LayoutError::Parameters { layout, rule });
    }
    let (mut subsizes, mut starts) = ([edge; 3], [0; 3]);
    subsizes[axis] = depth;
    starts[axis] = FACE_START;
    let datatype = Datatype::subarray(&[edge; 3], &subsizes, &starts, Order::C, &double())?;
    let side = Side::one(datatype, 0, bytes);
    Ok(Case {
        name: format!("face {normal} n={edge} h={depth}"),
        family,
        recv: side.clone(),
        send: side,
        payload_bytes: DOUBLE * edge * edge * depth,
        expected_send_blocks: blocks,
        expected_recv_blocks: blocks,
    })
}

/// The halo of `edge`³ owned cells inside (edge + 2·depth)³: the 26 boxes next to the boundary,
/// sent in the order of their directions (x fastest, from −1), received into the ghost cells that
/// face them: what leaves towards a direction arrives from the opposite one.
///
/// # Errors
/// [`LayoutError`] if `depth` is 0 or above `edge`, or the cube is too large.
pub fn halo26(edge: u64, depth: u64) -> Result<Case, LayoutError> {
    const LAYOUT: &str = "halo26";
    let width = depth
        .checked_mul(2)
        .and_then(|ghosts| ghosts.checked_add(edge))
        .ok_or(LayoutError::TooLarge { layout: LAYOUT })?;
    let bytes = array_bytes(LAYOUT, &[DOUBLE, width, width, width])?;
    if depth == 0 || depth > edge {
        let rule = "a halo is at least one cell deep and no deeper than the cube";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }
    // Indexed by direction + 1.
    let sizes = [depth, edge, depth];
    let sources = [depth, depth, edge];
    let ghosts = [0, depth, edge + depth];
    let side = |starts: [u64; 3], mirrored: bool| -> Result<Side, LayoutError> {
        let boxes = directions()
            .map(|direction| {
                let at = direction.map(|d| if mirrored { 2 - d } else { d });
                let (subsizes, starts) = (at.map(|d| sizes[d]), at.map(|d| starts[d]));
                Datatype::subarray(&[width; 3], &subsizes, &starts, Order::C, &double())
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ones = vec![1; boxes.len()];
        let datatype = Datatype::structure(&ones, &vec![0; boxes.len()], &boxes)?;
        Ok(Side::one(datatype, 0, bytes))
    };
    // Rows never fill the array's width, so each row of each box stands alone.
    let blocks = 3 * width * width - edge * edge;
    Ok(Case {
        name: format!("halo26 n={edge} h={depth}"),
        family: Family::Halo26,
        send: side(sources, false)?,
        recv: side(ghosts, true)?,
        payload_bytes: DOUBLE * (width * width * width - edge * edge * edge),
        expected_send_blocks: Some(blocks),
        expected_recv_blocks: Some(blocks),
    })
}

/// The 26 directions as [z, y, x], each 0, 1 or 2 for −1, 0 and +1.
fn directions() -> impl Iterator<Item = [usize; 3]> {
    (0..27).filter(|&i| i != 13).map(|i| [i / 9, i / 3 % 3, i % 3])
}
