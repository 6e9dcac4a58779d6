//! The trait of what combines elements, and the operations of MPI 4.1 §6.9.2.

use crate::{EngineError, Typed};
use gapless_dtype::Primitive;
use gapless_mem::{Completion, Region, Space};
use std::ops::Range;

/// A predefined reduction operation (MPI 4.1 §6.9.2, §6.9.4, §12.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// `MPI_MAX`: the larger.
    Max,
    /// `MPI_MIN`: the smaller.
    Min,
    /// `MPI_SUM`; integers wrap.
    Sum,
    /// `MPI_PROD`; integers wrap.
    Prod,
    /// `MPI_LAND`: logical and; the result is 0 or 1.
    Land,
    /// `MPI_BAND`: bitwise and.
    Band,
    /// `MPI_LOR`: logical or.
    Lor,
    /// `MPI_BOR`: bitwise or.
    Bor,
    /// `MPI_LXOR`: logical exclusive or.
    Lxor,
    /// `MPI_BXOR`: bitwise exclusive or.
    Bxor,
    /// `MPI_MAXLOC`: the larger value with its index; the smaller index where values are equal.
    MaxLoc,
    /// `MPI_MINLOC`: the smaller value with its index; the smaller index where values are equal.
    MinLoc,
    /// `MPI_REPLACE`: the source.
    Replace,
    /// `MPI_NO_OP`: the target stays.
    NoOp,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [ReduceOp; 14] = [
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Land,
        ReduceOp::Band,
        ReduceOp::Lor,
        ReduceOp::Bor,
        ReduceOp::Lxor,
        ReduceOp::Bxor,
        ReduceOp::MaxLoc,
        ReduceOp::MinLoc,
        ReduceOp::Replace,
        ReduceOp::NoOp,
    ];

    /// MPI's name, e.g. `MPI_SUM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Max => "MPI_MAX",
            ReduceOp::Min => "MPI_MIN",
            ReduceOp::Sum => "MPI_SUM",
            ReduceOp::Prod => "MPI_PROD",
            ReduceOp::Land => "MPI_LAND",
            ReduceOp::Band => "MPI_BAND",
            ReduceOp::Lor => "MPI_LOR",
            ReduceOp::Bor => "MPI_BOR",
            ReduceOp::Lxor => "MPI_LXOR",
            ReduceOp::Bxor => "MPI_BXOR",
            ReduceOp::MaxLoc => "MPI_MAXLOC",
            ReduceOp::MinLoc => "MPI_MINLOC",
            ReduceOp::Replace => "MPI_REPLACE",
            ReduceOp::NoOp => "MPI_NO_OP",
        }
    }
}

/// Combines packed elements into a buffer, by layout. Object-safe; callable from any thread.
pub trait Reducer: Send + Sync {
    /// Whether the operation is defined for the type, and this reducer can do it.
    fn supports(&self, op: ReduceOp, primitive: Primitive) -> bool;

    /// Whether it works on memory of this space.
    fn serves(&self, space: Space) -> bool;

    /// Combines the packed elements of `src` into elements of `dst`: each becomes
    /// `src op dst`, as `MPI_Reduce_local` does. `range` is that of `dst`'s packed stream, in
    /// bytes, cut at element boundaries and as long as `src`. Every element of `dst` must be a
    /// `primitive`; in `src` elements stand without padding.
    ///
    /// # Safety
    /// As for [`Engine::unpack`](crate::Engine::unpack).
    ///
    /// # Errors
    /// [`EngineError::UndefinedOp`]; [`EngineError::NotUniform`] if `dst` holds other types;
    /// [`EngineError::SplitElement`]; ranges, lengths and spaces that do not fit.
    unsafe fn reduce(
        &self,
        op: ReduceOp,
        primitive: Primitive,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError>;
}
