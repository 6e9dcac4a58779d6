//! Which elements operations take: the window's, and others if a layout says so; what is fetched has those of what is given.

use crate::error::WindowError;
use crate::place::Place;
use gapless_dtype::{AnyBits, ElementType, FitError, Primitive};
use gapless_engine::{ReduceOp, Typed};

/// Whether what lies at a displacement as it lies here has the elements of a window of `T`s. A layout of the target's says
/// what it has there.
///
/// # Errors
/// [`WindowError::Mismatch`].
pub fn check_elements<T: AnyBits>(
    call: &'static str,
    typed: &Typed,
    at: &Place,
) -> Result<(), WindowError> {
    if at.plain().is_none() || typed.packed_bytes() == 0 {
        return Ok(());
    }
    let Some(layout) = typed.own_layout() else { return Ok(()) };
    // Where they lie does not matter.
    let Err(FitError::Type { basic, element }) = ElementType::of::<T>().check(layout, 1) else {
        return Ok(());
    };
    let why = format!(
        "{call} of {basic}, and the window has {element}; if that is meant, `Place::typed` says so"
    );
    Err(WindowError::Mismatch { why })
}

/// Whether a window of `T`s may take elements of this basic type, as far as a quick look tells.
#[inline]
#[must_use]
pub fn takes<T: AnyBits>(element: Primitive) -> bool {
    T::BASIC == Some(element) || T::BASIC == Some(Primitive::Uint8) || element == Primitive::Uint8
}

/// Refuses a layout of a buffer to be filled that has a byte twice.
///
/// # Errors
/// [`WindowError::Overlapping`].
pub fn check_apart(typed: &Typed) -> Result<(), WindowError> {
    match typed.overlaps() {
        true => Err(WindowError::Overlapping { count: typed.count() }),
        false => Ok(()),
    }
}

/// The buffer whose elements an operation that fetches works on: the operand; for `MPI_NO_OP`, which has none, the
/// result. Both must have the same elements.
///
/// # Errors
/// [`WindowError::Mismatch`].
pub fn operand<'t>(
    op: ReduceOp,
    origin: Option<&'t Typed>,
    result: &'t Typed,
) -> Result<&'t Typed, WindowError> {
    if op == ReduceOp::NoOp {
        return Ok(result);
    }
    let mismatch = |why| WindowError::Mismatch { why };
    let given = origin.ok_or_else(|| mismatch(format!("{} of nothing", op.name())))?;
    // That is so of pages at any indices.
    if given.layout().id() == result.layout().id() && given.count() == result.count() {
        return Ok(given);
    }
    let digest = |typed: &Typed| typed.layout().signature().digest(typed.count());
    if given.packed_bytes() == result.packed_bytes() && digest(given) == digest(result) {
        return Ok(given);
    }
    Err(mismatch(format!("{} is given, and {} fetched", digest(given), digest(result))))
}
