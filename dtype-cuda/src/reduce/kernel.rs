//! Which kernel does an operation of MPI's on a basic type, and with which mask. Pure.

use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;
use gapless_kernels::reduce::{Combine, CombineOperation, Element};

/// Flags of [`CombineOperation::Bits`]: which bits of `a & b` count, and which of `a ^ b`.
const AND: u64 = 0x0000_0000_ffff_ffff;
const XOR: u64 = 0xffff_ffff_0000_0000;
/// Results of [`CombineOperation::Logic`] for the operands 11, 10, 01, 00, highest bit first.
const LAND: u64 = 0b1000;
const LOR: u64 = 0b1110;
const LXOR: u64 = 0b0110;

/// Whether the result is one of the operands, whatever they are.
pub(super) fn only_moves(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Replace | ReduceOp::NoOp)
}

/// Some kernel.
pub(super) fn any() -> Combine {
    Combine::new(CombineOperation::Bits, Element::I8).expect("bytes have bits")
}

/// The kernel, and its mask; `None` where devices have no arithmetic for the type.
pub(super) fn of(op: ReduceOp, primitive: Primitive) -> Option<(Combine, u64)> {
    if only_moves(op) || !op.is_defined_for(primitive) {
        return None;
    }
    use Primitive as P;
    let real = |element| floating(op, element);
    let (operation, element, mask) = match primitive {
        P::Float16 => real(Element::F16)?,
        P::BFloat16 => real(Element::BF16)?,
        P::Float => real(Element::F32)?,
        P::Double => real(Element::F64)?,
        // The sum of complex numbers is that of their parts.
        P::FloatComplex if op == ReduceOp::Sum => (CombineOperation::Sum, Element::F32, 0),
        P::DoubleComplex if op == ReduceOp::Sum => (CombineOperation::Sum, Element::F64, 0),
        P::FloatComplex => (CombineOperation::Prod, Element::C32, 0),
        P::DoubleComplex => (CombineOperation::Prod, Element::C64, 0),
        P::FloatInt => located(op, Element::F32),
        P::DoubleInt => located(op, Element::F64),
        P::LongInt => located(op, Element::I64),
        P::ShortInt => located(op, Element::I16),
        P::TwoInt => located(op, Element::I32),
        P::LongDouble | P::LongDoubleComplex | P::LongDoubleInt => return None,
        P::Char | P::Wchar | P::Packed => return None,
        P::Float128 | P::Float128Complex | P::Float16Complex => return None,
        // Kernels compare indices of 32 bits with a sign. Integers have 64 bits at most.
        _ if primitive.is_pair() => return None,
        _ => integer(op, primitive)?,
    };
    Some((Combine::new(operation, element)?, mask))
}

fn floating(op: ReduceOp, element: Element) -> Option<(CombineOperation, Element, u64)> {
    match op {
        ReduceOp::Sum => Some((CombineOperation::Sum, element, 0)),
        ReduceOp::Prod => Some((CombineOperation::Prod, element, 0)),
        ReduceOp::Max => Some((CombineOperation::Order, element, 0)),
        ReduceOp::Min => Some((CombineOperation::Order, element, u64::MAX)),
        _ => None,
    }
}

fn located(op: ReduceOp, element: Element) -> (CombineOperation, Element, u64) {
    (CombineOperation::Loc, element, if op == ReduceOp::MinLoc { u64::MAX } else { 0 })
}

/// C's integers, bytes and `_Bool`, whatever their width is here.
fn integer(op: ReduceOp, primitive: Primitive) -> Option<(CombineOperation, Element, u64)> {
    use Primitive as P;
    let bits = u32::try_from(primitive.size_bytes()).ok()? * 8;
    let element = match bits {
        8 => Element::I8,
        16 => Element::I16,
        32 => Element::I32,
        64 => Element::I64,
        _ => return None,
    };
    let is_unsigned = matches!(
        primitive,
        P::UnsignedChar
            | P::UnsignedShort
            | P::Unsigned
            | P::UnsignedLong
            | P::UnsignedLongLong
            | P::Uint8
            | P::Uint16
            | P::Uint32
            | P::Uint64
    );
    // Flipped, signed integers are in the order of unsigned ones; all bits flipped, the order is turned around.
    let sign = if is_unsigned { 0 } else { 1 << (bits - 1) };
    let all = u64::MAX >> (64 - bits);
    // Bits have no width.
    let word = if bits < 32 { Element::I8 } else { Element::I32 };
    match op {
        ReduceOp::Max => Some((CombineOperation::Order, element, sign)),
        ReduceOp::Min => Some((CombineOperation::Order, element, all ^ sign)),
        ReduceOp::Sum => Some((CombineOperation::Sum, element, 0)),
        ReduceOp::Prod => Some((CombineOperation::Prod, element, 0)),
        ReduceOp::Land => Some((CombineOperation::Logic, element, LAND)),
        ReduceOp::Lor => Some((CombineOperation::Logic, element, LOR)),
        ReduceOp::Lxor => Some((CombineOperation::Logic, element, LXOR)),
        ReduceOp::Band => Some((CombineOperation::Bits, word, AND)),
        ReduceOp::Bor => Some((CombineOperation::Bits, word, AND | XOR)),
        ReduceOp::Bxor => Some((CombineOperation::Bits, word, XOR)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_all_operations_but_on_long_doubles_and_pairs_that_mpi_has_not() {
        for op in ReduceOp::ALL.into_iter().filter(|op| !only_moves(*op)) {
            for primitive in Primitive::ALL {
                use Primitive as P;
                let long =
                    matches!(primitive, P::LongDouble | P::LongDoubleComplex | P::LongDoubleInt);
                let fortran = primitive as u8 > P::Uint64Uint64 as u8
                    && !matches!(primitive, P::Bool16 | P::Bool32 | P::Bool64);
                let mpis = !primitive.is_pair() || primitive.name().starts_with("MPI_");
                let there = op.is_defined_for(primitive) && !long && !fortran && mpis;
                assert_eq!(of(op, primitive).is_some(), there, "{op:?} of {primitive}");
                if let Some((combine, _)) = of(op, primitive) {
                    // A range is cut at multiples of MPI's elements.
                    assert_eq!(primitive.size_bytes() % u64::from(combine.bytes()), 0);
                }
            }
        }
    }
}
