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
///
/// # Safety
/// As with an [`Engine`](crate::Engine), memory is granted and given back on a reducer's word. So an
/// implementation keeps these rules:
///
/// 1. [`reduce`](Reducer::reduce) writes the bytes `range` of `dst`'s packed stream and no others. It
///    reads nothing outside the two regions.
/// 2. It touches them not before all of `after` have ended, and not once its completion has. An error means
///    that nothing was started, or that all that was started is over.
/// 3. What does not fit is refused before anything is touched: a range outside the packed stream or within
///    an element, a `src` that is not as long, other elements, memory of a space that it cannot work on.
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_dtype::Primitive;
/// # use gapless_engine::{EngineError, ReduceOp, Reducer, Typed};
/// # use gapless_mem::{Completion, Region, Space};
/// # use std::ops::Range;
/// struct Idle;
/// impl Reducer for Idle {
/// #   fn supports(&self, _: ReduceOp, _: Primitive) -> bool { true }
/// #   fn serves(&self, _: Space) -> bool { true }
///     unsafe fn reduce(
///         &self,
///         op: ReduceOp,
///         primitive: Primitive,
///         src: Region,
///         dst: &Typed,
///         range: Range<u64>,
///         after: &[Completion],
///     ) -> Result<Completion, EngineError> {
///         Ok(Completion::Ready)
///     }
/// }
/// ```
pub unsafe trait Reducer: Send + Sync {
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
