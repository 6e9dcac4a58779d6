//! Weights that change from one sharding to another: what one pair of ranks exchanges.
//!
//! Matrices are row-major, of 16-bit floats, and are divided among ranks in equal blocks. Column- and row-parallel are
//! the two ways of tensor parallelism; fully sharded data parallelism divides rows; expert parallelism gives whole
//! matrices.

use gapless_dtype::{Datatype, Primitive};

use crate::{
    case::{Case, Side, array_bytes, signed},
    error::LayoutError,
    families::Family,
};

const LAYOUT: &str = "reshard";
const ELEMENT: u64 = 2;

/// Edges of matrices, as models have them.
pub const EDGES: [u64; 3] = [2048, 4096, 8192];

/// A stack of matrices of `rows` × `columns` that a rank has, of which a part moves.
struct Local {
    matrices: u64,
    rows: u64,
    columns: u64,
}

impl Local {
    /// The last of `matrices` matrices, of `rows` rows and of `columns` columns; and their blocks.
    fn last(&self, matrices: u64, rows: u64, columns: u64) -> Result<(Side, u64), LayoutError> {
        let bytes = array_bytes(LAYOUT, &[ELEMENT, self.matrices, self.rows, self.columns])?;
        let row = Datatype::contiguous(columns, &Primitive::BFloat16.into())?;
        let pitch = ELEMENT * self.columns;
        let matrix = Datatype::hvector(rows, 1, signed(LAYOUT, pitch)?, &row)?;
        let step = signed(LAYOUT, pitch * self.rows)?;
        let origin = (self.matrices - matrices) * self.rows * pitch
            + (self.rows - rows) * pitch
            + (self.columns - columns) * ELEMENT;
        let blocks = match (columns == self.columns, rows == self.rows) {
            (true, true) => 1,
            (true, false) => matrices,
            (false, _) => matrices * rows,
        };
        let stack = Datatype::hvector(matrices, 1, step, &matrix)?;
        Ok((Side::one(stack, origin, bytes), blocks))
    }
}

/// The messages of the catalogue, from the one rank's point of view that has the last of everything: an n × n matrix
/// over four ranks (fully sharded: over eight), or eight experts of n × n/2 over four ranks.
pub(crate) fn catalogue(n: u64) -> Result<Vec<Case>, LayoutError> {
    if n == 0 || !n.is_multiple_of(8) {
        let rule = "the number of ranks, 8, must divide the edge";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }
    array_bytes(LAYOUT, &[ELEMENT, 4, n, n])?;
    let matrix = |rows, columns| Local { matrices: 1, rows, columns };
    let columns = || matrix(n, n / 4).last(1, n / 4, n / 4);
    let rows = || matrix(n / 4, n).last(1, n / 4, n / 4);
    let sharded = || matrix(n / 8, n).last(1, n / 8, n / 4);
    let tensor = || matrix(n, n / 4).last(1, n / 8, n / 4);
    let whole_experts = || Local { matrices: 2, rows: n, columns: n / 2 }.last(2, n, n / 8);
    let all_experts = || Local { matrices: 8, rows: n, columns: n / 8 }.last(2, n, n / 8);
    let case = |label, (send, sent): (Side, u64), (recv, received): (Side, u64)| Case {
        name: format!("reshard n={n} {label}"),
        family: Family::Reshard,
        payload_bytes: send.payload_bytes(),
        send,
        recv,
        expected_send_blocks: Some(sent),
        expected_recv_blocks: Some(received),
    };
    Ok(vec![
        case("columns to rows", columns()?, rows()?),
        case("rows to columns", rows()?, columns()?),
        case("fully sharded to columns", sharded()?, tensor()?),
        case("experts to columns", whole_experts()?, all_experts()?),
        case("columns to experts", all_experts()?, whole_experts()?),
    ])
}
