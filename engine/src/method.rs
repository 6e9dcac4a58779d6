//! What a call of a reducer comes down to, and the checks that all reducers share.

use crate::{EngineError, Op, Operand, ReduceOp, Typed, UserOp};
use gapless_dtype::Primitive;
use std::ops::Range;

/// How a [`Reducer`](crate::Reducer) combines elements, once operation and datatype are known to go together.
#[derive(Clone, Copy, Debug)]
pub enum Method<'a> {
    /// The result is the source of this number.
    Move(usize),
    /// An operation of MPI's combines elements of one basic or pair type, for which it is defined.
    Combine(ReduceOp, Primitive),
    /// A user's function combines the elements.
    Call(&'a UserOp),
}

impl<'a> Method<'a> {
    /// What becomes of these buffers, and the bytes that a range is cut at multiples of. Whoever implements
    /// [`Reducer`](crate::Reducer) begins a call with this; ranges, places and spaces are not looked at.
    ///
    /// # Errors
    /// [`EngineError::NoSource`], [`EngineError::UndefinedOp`], [`EngineError::MixedElements`],
    /// [`EngineError::NotUniform`], [`EngineError::OtherElements`].
    #[inline]
    pub fn of(op: &'a Op, srcs: &[Typed], dst: &Typed) -> Result<(Method<'a>, u64), EngineError> {
        let Some(last) = srcs.len().checked_sub(1) else { return Err(EngineError::NoSource) };
        let (method, element_bytes) = match op {
            Op::Predefined(ReduceOp::Replace) => (Method::Move(last), 1),
            Op::Predefined(ReduceOp::NoOp) => (Method::Move(0), 1),
            Op::Predefined(op) => {
                let primitive = common(*op, srcs, dst)?;
                op.check(primitive)?;
                (Method::Combine(*op, primitive), primitive.size_bytes())
            }
            Op::User(op) => {
                for (operand, side) in operands(srcs, dst) {
                    op.check(side.layout(), side.count(), operand)?;
                }
                (Method::Call(op), op.bytes())
            }
        };
        match last {
            0 => Ok((Method::Move(0), element_bytes)),
            _ => Ok((method, element_bytes)),
        }
    }

    /// How many elements a range has.
    ///
    /// # Errors
    /// [`EngineError::SplitElement`].
    #[inline]
    pub fn elements(range: &Range<u64>, element_bytes: u64) -> Result<u64, EngineError> {
        let Range { start, end } = *range;
        let elements =
            whole(start, element_bytes).and(whole(end.saturating_sub(start), element_bytes));
        elements.ok_or(EngineError::SplitElement { start, end, element_bytes })
    }
}

/// All buffers, the target first, with what errors call them.
pub(crate) fn operands<'a>(
    srcs: &'a [Typed],
    dst: &'a Typed,
) -> impl Iterator<Item = (Operand, &'a Typed)> + Clone {
    let sources = srcs.iter().enumerate().map(|(number, src)| (Operand::Source(number), src));
    [(Operand::Target, dst)].into_iter().chain(sources)
}

/// The one type of all elements; bytes if no buffer says.
fn common(op: ReduceOp, srcs: &[Typed], dst: &Typed) -> Result<Primitive, EngineError> {
    let mut common = None;
    let mut known = None;
    for (operand, side) in operands(srcs, dst) {
        // Plain bytes have no layout of their own, and most buffers have one and the same.
        let Some(layout) = side.own_layout() else { continue };
        if known.replace(layout.id()) == Some(layout.id()) {
            continue;
        }
        let Some(found) = op.element(layout, operand)? else { continue };
        let primitive = *common.get_or_insert(found);
        if found != primitive {
            return Err(EngineError::NotUniform { operand, found, primitive });
        }
    }
    Ok(common.unwrap_or(Primitive::Byte))
}

/// How many elements these bytes are, if they are whole ones.
fn whole(bytes: u64, element_bytes: u64) -> Option<u64> {
    // A division takes longer than all other checks, and most sizes need none.
    let (elements, rest) = match element_bytes.is_power_of_two() {
        true => (bytes >> element_bytes.trailing_zeros(), bytes & (element_bytes - 1)),
        false => (bytes / element_bytes, bytes % element_bytes),
    };
    (rest == 0).then_some(elements)
}
