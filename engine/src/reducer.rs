//! The trait of what combines elements.

use crate::{EngineError, Op, Typed};
use gapless_dtype::Layout;
use gapless_mem::{Completion, Space};
use std::ops::Range;

/// Combines elements of buffers, by layout. Object-safe; callable from any thread.
///
/// # Safety
/// As with an [`Engine`](crate::Engine), memory is granted and given back on a reducer's word. So an
/// implementation keeps these rules:
///
/// 1. [`reduce_into`](Reducer::reduce_into) writes the bytes of `dst`'s packed stream that take part and no others.
///    It reads nothing outside the regions.
/// 2. It touches them not before all of `after` have ended, and not once its completion has. An error means
///    that nothing was started, or that all that was started is over.
/// 3. What does not fit is refused before anything is touched: a range outside a packed stream or within
///    an element, other elements, memory of a space that it cannot work on.
/// 4. A call that panics has started nothing, or all that it has started is over. A user's function that panics
///    does not end the call so: that is [`EngineError::Panicked`].
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_dtype::Layout;
/// # use gapless_engine::{EngineError, Op, Reducer, Typed};
/// # use gapless_mem::{Completion, Space};
/// # use std::ops::Range;
/// struct Idle;
/// impl Reducer for Idle {
/// #   fn supports(&self, _: &Op, _: &Layout) -> bool { true }
/// #   fn serves(&self, _: Space) -> bool { true }
///     unsafe fn reduce_into(
///         &self,
///         op: &Op,
///         srcs: &[Typed],
///         dst: &Typed,
///         range: Range<u64>,
///         after: &[Completion],
///     ) -> Result<Completion, EngineError> {
///         Ok(Completion::Ready)
///     }
/// }
/// ```
pub unsafe trait Reducer: Send + Sync {
    /// Whether the operation is defined for buffers of this layout, and this reducer can do it.
    fn supports(&self, op: &Op, layout: &Layout) -> bool;

    /// Whether it works on memory of this space.
    fn serves(&self, space: Space) -> bool;

    /// Combines the sources, element by element and from left to right, into `dst`: each element becomes
    /// `(srcs[0] op srcs[1]) op srcs[2] …`, rounded after every operation. So the result is the same whatever the
    /// layouts are and however the stream is cut. Each source is read once, `dst` is written once. What `dst` held
    /// before has no part in the result, unless `dst` is among the sources. One source is copied.
    ///
    /// `range` is that of the packed streams, in bytes, cut at multiples of
    /// [`Op::element_bytes`]. A buffer whose packed stream is exactly as long as the range is the range's piece on
    /// its own ([`Typed::window`]): staging memory, say.
    ///
    /// Layouts may differ. All buffers hold the same elements: of one basic or pair type for MPI's operations, or the
    /// elements of the user's operation. Buffers of plain bytes (`MPI_BYTE`, [`Typed::contiguous`]) stand for
    /// anything, but the elements of one must be known for an operation that bytes do not have.
    ///
    /// # Safety
    /// Until the completion, the sources describe memory valid for reads that nothing else writes, and `dst`
    /// memory valid for reads and writes that nothing else touches. A source that overlaps `dst` is `dst`: of the
    /// same memory, origin, and layout, so that each element is where it is in `dst`. Memory that is shared with
    /// another process, and that no reference covers, may be touched meanwhile, as with
    /// [`Engine::pack`](crate::Engine::pack).
    ///
    /// # Errors
    /// [`EngineError::NoSource`]; [`EngineError::UndefinedOp`], [`EngineError::NoArithmetic`];
    /// [`EngineError::MixedElements`], [`EngineError::NotUniform`] and [`EngineError::OtherElements`], which name the
    /// buffer; [`EngineError::SplitElement`]; ranges and spaces that do not fit; [`EngineError::Panicked`].
    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError>;
}
