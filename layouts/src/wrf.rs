//! WRF (weather): the halo of nine float arrays in one message.
//!
//! Four 2-D arrays (d1, d3), three 3-D (d1, 65, d3) and two 4-D (d1, 65, d3, 2), axes x, z, y,
//! scalar, allocated back to back in this order. Sent is the box s1 × 65 × s3 from (i0, 0, j0), of
//! the 4-D arrays only that of scalar 1. DDTBench describes it in two ways with one typemap.

use std::fmt;

use gapless_dtype::{Datatype, Order};

use crate::{
    case::{Case, FLOAT, Side, array_bytes, float, signed},
    error::LayoutError,
    families::Family,
};

const LAYOUT: &str = "wrf";
/// Levels (z) of every 3-D and 4-D array.
const LEVELS: u64 = 65;
/// Number of arrays and the 2-D slices (d1, d3) in each.
const ARRAYS: [(u64, Rank); 3] = [(4, Rank::Two), (3, Rank::Three), (2, Rank::Four)];

#[derive(Clone, Copy)]
enum Rank {
    Two,
    Three,
    Four,
}

/// Along which axis the neighbour lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// The neighbour in x: narrow rows, many of them.
    X,
    /// The neighbour in y.
    Y,
}

/// How the boxes are described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Nested vectors displaced to the box's first element.
    Vectors,
    /// Subarrays in order C displaced to the array.
    Subarrays,
}

impl fmt::Display for Towards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Towards::X => "x",
            Towards::Y => "y",
        })
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Style::Vectors => "vec",
            Style::Subarrays => "sa",
        })
    }
}

/// The arrays' sizes and the box, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Edge of the square process grid that gives these numbers; part of the name only.
    pub grid: u64,
    /// Array size in x.
    pub d1: u64,
    /// Array size in y.
    pub d3: u64,
    /// First element in x.
    pub i0: u64,
    /// First element in y.
    pub j0: u64,
    /// Elements in x.
    pub s1: u64,
    /// Elements in y.
    pub s3: u64,
}

/// DDTBench's parameters towards x, by process grid.
pub const X: [Patch; 3] = [
    Patch { grid: 8, d1: 19, d3: 24, i0: 9, j0: 4, s1: 3, s3: 16 },
    Patch { grid: 4, d1: 24, d3: 34, i0: 14, j0: 4, s1: 3, s3: 26 },
    Patch { grid: 2, d1: 32, d3: 52, i0: 22, j0: 4, s1: 3, s3: 44 },
];

/// DDTBench's parameters towards y, by process grid.
pub const Y: [Patch; 5] = [
    Patch { grid: 8, d1: 19, d3: 24, i0: 4, j0: 7, s1: 11, s3: 3 },
    Patch { grid: 5, d1: 22, d3: 30, i0: 4, j0: 7, s1: 14, s3: 3 },
    Patch { grid: 4, d1: 24, d3: 34, i0: 4, j0: 7, s1: 16, s3: 3 },
    Patch { grid: 3, d1: 27, d3: 41, i0: 4, j0: 7, s1: 19, s3: 3 },
    Patch { grid: 2, d1: 32, d3: 52, i0: 5, j0: 7, s1: 23, s3: 3 },
];

/// One halo message of a patch; sent and received as the same type.
///
/// # Errors
/// [`LayoutError`] if the box is empty, as wide as the arrays or leaves them, or they are too large.
pub fn halo(towards: Towards, style: Style, patch: Patch) -> Result<Case, LayoutError> {
    let Patch { grid, d1, d3, i0, j0, s1, s3 } = patch;
    let slice = array_bytes(LAYOUT, &[FLOAT, d1, d3])?;
    let total_slices = ARRAYS.iter().map(|&(arrays, rank)| arrays * rank.slices()).sum();
    let bytes = array_bytes(LAYOUT, &[slice, total_slices])?;
    let inside = |start: u64, size: u64, of: u64| {
        size > 0 && size < of && start.checked_add(size).is_some_and(|end| end <= of)
    };
    if !inside(i0, s1, d1) || !inside(j0, s3, d3) {
        let rule = "the box must be smaller than the arrays and lie inside them";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }

    let (mut types, mut displacements, mut base) = (Vec::new(), Vec::new(), 0);
    for (arrays, rank) in ARRAYS {
        let (datatype, first) = match style {
            Style::Vectors => vectors(rank, patch)?,
            Style::Subarrays => (subarray(rank, patch)?, 0),
        };
        for _ in 0..arrays {
            types.push(datatype.clone());
            displacements.push(signed(LAYOUT, base + first)?);
            base += slice * rank.slices();
        }
    }
    let datatype = Datatype::structure(&vec![1; types.len()], &displacements, &types)?;

    let side = Side::one(datatype, 0, bytes);
    // Every row of every box: 4 two-dimensional boxes and 5 of 65 levels.
    let rows = (4 + 5 * LEVELS) * s3;
    Ok(Case {
        name: format!("WRF {towards} {style} {grid}x{grid}"),
        family: match (towards, style) {
            (Towards::X, Style::Vectors) => Family::WrfXVec,
            (Towards::X, Style::Subarrays) => Family::WrfXSa,
            (Towards::Y, Style::Vectors) => Family::WrfYVec,
            (Towards::Y, Style::Subarrays) => Family::WrfYSa,
        },
        recv: side.clone(),
        send: side,
        payload_bytes: rows * FLOAT * s1,
        expected_send_blocks: Some(rows),
        expected_recv_blocks: Some(rows),
    })
}

impl Rank {
    /// Size of an array in units of a (d1, d3) slice.
    fn slices(self) -> u64 {
        match self {
            Rank::Two => 1,
            Rank::Three => LEVELS,
            Rank::Four => 2 * LEVELS,
        }
    }
}

/// The box as nested vectors, and the byte of the array where it starts.
fn vectors(rank: Rank, patch: Patch) -> Result<(Datatype, u64), LayoutError> {
    let Patch { d1, d3, i0, j0, s1, s3, .. } = patch;
    let row = signed(LAYOUT, d1)?;
    if matches!(rank, Rank::Two) {
        return Ok((Datatype::vector(s3, s1, row, &float())?, FLOAT * (j0 * d1 + i0)));
    }
    let column_bytes = FLOAT * LEVELS * d1;
    let levels = Datatype::vector(LEVELS, s1, row, &float())?;
    let volume = Datatype::hvector(s3, 1, signed(LAYOUT, column_bytes)?, &levels)?;
    let first = column_bytes * j0 + FLOAT * i0;
    if matches!(rank, Rank::Three) {
        return Ok((volume, first));
    }
    let scalar_bytes = column_bytes * d3;
    let scalar = Datatype::hvector(1, 1, signed(LAYOUT, scalar_bytes)?, &volume)?;
    Ok((scalar, scalar_bytes + first))
}

/// The box as a subarray of the whole array.
fn subarray(rank: Rank, patch: Patch) -> Result<Datatype, LayoutError> {
    let Patch { d1, d3, i0, j0, s1, s3, .. } = patch;
    let sizes = [2, d3, LEVELS, d1];
    let subsizes = [1, s3, LEVELS, s1];
    let starts = [1, j0, 0, i0];
    let make = |sizes: &[u64], subsizes: &[u64], starts: &[u64]| {
        Datatype::subarray(sizes, subsizes, starts, Order::C, &float())
    };
    Ok(match rank {
        Rank::Two => make(&[d3, d1], &[s3, s1], &[j0, i0])?,
        Rank::Three => make(&sizes[1..], &subsizes[1..], &starts[1..])?,
        Rank::Four => make(&sizes, &subsizes, &starts)?,
    })
}
