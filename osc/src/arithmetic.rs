//! What an accumulation does with elements: the operation, the basic type, and how single ones are combined quickly.
//!
//! Elements of 1, 2, 4 and 8 bytes that are numbers lie at multiples of their length, so nobody sees one half written. Complex
//! numbers, pairs and `long double` may lie anywhere.

use crate::error::WindowError;
use gapless_dtype::Primitive;
use gapless_engine::{EngineError, Operand, PackedFold, ReduceOp, Typed};
use gapless_mem::Number;
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_longlong, c_short};

/// Whether elements can be compared and swapped: integers, logicals and bytes (MPI 4.1 §12.3.4).
#[inline]
pub(crate) fn is_swapped(primitive: Primitive) -> bool {
    ReduceOp::Bor.is_defined_for(primitive) || ReduceOp::Lor.is_defined_for(primitive)
}

/// An operation on elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    op: ReduceOp,
    primitive: Primitive,
    /// Packed bytes of an element.
    width: usize,
    fold: Option<PackedFold>,
    quick: Option<Quick>,
}

/// What needs no loop of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quick {
    Keep,
    Replace,
    Add,
    AddDouble,
    AddFloat,
}

impl Quick {
    fn of(op: ReduceOp, primitive: Primitive) -> Option<Quick> {
        Some(match (op, primitive) {
            (ReduceOp::NoOp, _) => Quick::Keep,
            (ReduceOp::Replace, _) => Quick::Replace,
            (ReduceOp::Sum, Primitive::Double) => Quick::AddDouble,
            (ReduceOp::Sum, Primitive::Float) => Quick::AddFloat,
            (ReduceOp::Sum, primitive) if is_integer(primitive) => Quick::Add,
            _ => return None,
        })
    }

    /// The same of what most programs accumulate, with the bytes of a number.
    #[inline]
    pub(crate) fn of_number(op: ReduceOp, number: Primitive) -> Option<(Quick, usize)> {
        use Primitive as P;
        let (add, width) = match number {
            P::Int8 | P::Uint8 | P::SignedChar | P::UnsignedChar => (Quick::Add, 1),
            P::Int16 | P::Uint16 => (Quick::Add, 2),
            P::Int32 | P::Uint32 => (Quick::Add, 4),
            P::Int64 | P::Uint64 | P::Count | P::Offset => (Quick::Add, 8),
            P::Short | P::UnsignedShort => (Quick::Add, size_of::<c_short>()),
            P::Int | P::Unsigned => (Quick::Add, size_of::<c_int>()),
            P::Long | P::UnsignedLong => (Quick::Add, size_of::<c_long>()),
            P::LongLong | P::UnsignedLongLong => (Quick::Add, size_of::<c_longlong>()),
            P::Aint => (Quick::Add, size_of::<isize>()),
            P::Float => (Quick::AddFloat, 4),
            P::Double => (Quick::AddDouble, 8),
            _ => return None,
        };
        let quick = match op {
            ReduceOp::Sum => add,
            ReduceOp::Replace => Quick::Replace,
            ReduceOp::NoOp => Quick::Keep,
            _ => return None,
        };
        Some((quick, width))
    }

    /// What it adds, if it adds numbers of so many bytes.
    #[inline]
    pub(crate) fn sum(self, width: usize) -> Option<Number> {
        Some(match (self, width) {
            (Quick::AddDouble, 8) => Number::F64,
            (Quick::AddFloat, 4) => Number::F32,
            (Quick::Add, 8) => Number::I64,
            (Quick::Add, 4) => Number::I32,
            (Quick::Add, 2) => Number::I16,
            (Quick::Add, 1) => Number::I8,
            _ => return None,
        })
    }

    /// The element that an atomic one becomes; `None` if it stays. Elements are in native order.
    #[inline]
    pub(crate) fn change(self, old: u64, operand: u64) -> Option<u64> {
        Some(match self {
            Quick::Keep => return None,
            Quick::Replace => operand,
            Quick::Add => old.wrapping_add(operand),
            Quick::AddDouble => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
            Quick::AddFloat => {
                let [old, operand] = [old, operand].map(|bits| f32::from_bits(low(bits)));
                u64::from((old + operand).to_bits())
            }
        })
    }
}

fn is_integer(primitive: Primitive) -> bool {
    ReduceOp::Sum.is_defined_for(primitive) && ReduceOp::Bor.is_defined_for(primitive)
}

/// The element of a buffer; bytes are octets to operations that bytes do not have.
fn element(op: ReduceOp, buffer: &Typed, operand: Operand) -> Result<Primitive, EngineError> {
    Ok(op.element(buffer.layout(), operand)?.unwrap_or(match op.is_defined_for(Primitive::Byte) {
        true => Primitive::Byte,
        false => Primitive::Uint8,
    }))
}

impl Arithmetic {
    /// # Errors
    /// The operation is not defined for the type, or the machine has no arithmetic for it.
    pub(crate) fn new(op: ReduceOp, primitive: Primitive) -> Result<Arithmetic, EngineError> {
        if !op.is_defined_for(primitive) {
            return Err(EngineError::UndefinedOp { op: op.name(), primitive });
        }
        let moves = matches!(op, ReduceOp::Replace | ReduceOp::NoOp);
        let fold = PackedFold::new(op, primitive);
        if fold.is_none() && !moves {
            return Err(EngineError::NoArithmetic { primitive });
        }
        let width = usize::try_from(primitive.size_bytes()).unwrap_or(1);
        Ok(Arithmetic { op, primitive, width, fold, quick: Quick::of(op, primitive) })
    }

    /// For an accumulation of `origin` into `target`.
    ///
    /// # Errors
    /// As [`new`](Arithmetic::new); elements of several types, or not the same at both ends.
    pub(crate) fn between(
        op: ReduceOp,
        origin: &Typed,
        target: &Typed,
    ) -> Result<Arithmetic, WindowError> {
        let theirs = element(op, target, Operand::Target)?;
        if op != ReduceOp::NoOp {
            let ours = element(op, origin, Operand::Source(0))?;
            if ours != theirs {
                let why = format!("{ours} at the origin, {theirs} at the target");
                return Err(WindowError::Mismatch { why });
            }
        }
        Arithmetic::known(op, theirs)
    }

    /// For an accumulation of `origin` into elements that are the same.
    ///
    /// # Errors
    /// As [`new`](Arithmetic::new); elements of several types.
    #[inline]
    pub(crate) fn of(op: ReduceOp, origin: &Typed) -> Result<Arithmetic, WindowError> {
        Arithmetic::known(op, element(op, origin, Operand::Target)?)
    }

    /// As [`new`](Arithmetic::new); remembers the last one.
    #[inline]
    fn known(op: ReduceOp, primitive: Primitive) -> Result<Arithmetic, WindowError> {
        thread_local! {
            static LAST: Cell<Option<Arithmetic>> = const { Cell::new(None) };
        }
        if let Some(last) = LAST.get()
            && last.op == op
            && last.primitive == primitive
        {
            return Ok(last);
        }
        let arithmetic = Arithmetic::new(op, primitive)?;
        LAST.set(Some(arithmetic));
        Ok(arithmetic)
    }

    pub(crate) fn op(&self) -> ReduceOp {
        self.op
    }

    pub(crate) fn primitive(&self) -> Primitive {
        self.primitive
    }

    /// Whether it adds integers.
    pub(crate) fn is_sum(&self) -> bool {
        matches!(self.quick, Some(Quick::Add))
    }

    /// What it adds, if it adds numbers that the processor reads and writes as a whole.
    #[inline]
    pub(crate) fn sum(&self) -> Option<Number> {
        self.quick.filter(|_| self.is_atomic()).and_then(|quick| quick.sum(self.width))
    }

    /// Packed bytes of an element.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Whether the processor reads and writes such elements as a whole, and they must be aligned for that.
    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.width, 1 | 2 | 4 | 8)
            && self.primitive.alignment_bytes() == self.width as u64
            && !self.primitive.is_pair()
    }

    /// The element that an atomic one becomes; `None` if it stays. Elements are in native order.
    #[inline]
    pub(crate) fn change(&self, old: u64, operand: u64) -> Option<u64> {
        if let Some(quick) = self.quick {
            return quick.change(old, operand);
        }
        let mut both = [0; 16];
        let (left, right) = both.split_at_mut(8);
        let (left, right) = (&mut left[..self.width], &mut right[..self.width]);
        write(old, left);
        write(operand, right);
        self.combine(left, right);
        Some(read(left))
    }

    /// Many elements: what `operand` makes of `old`.
    pub(crate) fn combine(&self, old: &mut [u8], operand: &[u8]) {
        match self.op {
            ReduceOp::NoOp => {}
            ReduceOp::Replace => old.copy_from_slice(operand),
            _ => {
                if let Some(fold) = &self.fold {
                    fold.onto(old, operand);
                }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn low(bits: u64) -> u32 {
    bits as u32
}

/// An element of 1, 2, 4 or 8 bytes as a number.
#[inline]
pub(crate) fn read(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => bytes.try_into().map_or(0, u64::from_ne_bytes),
    }
}

/// Writes a number of 1, 2, 4 or 8 bytes in native order.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the number has so many bits")]
pub(crate) fn write(value: u64, bytes: &mut [u8]) {
    match bytes.len() {
        1 => bytes[0] = value as u8,
        2 => bytes.copy_from_slice(&(value as u16).to_ne_bytes()),
        4 => bytes.copy_from_slice(&(value as u32).to_ne_bytes()),
        8 => bytes.copy_from_slice(&value.to_ne_bytes()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quick ways and the engine's loops agree.
    #[test]
    fn elements_change_as_the_engine_changes_them() {
        let numbers = [0u64, 1, 7, 0x40, 0x3F80_0000, 0x4000_1234_5678_9ABC, u64::MAX - 5];
        for op in ReduceOp::ALL {
            for primitive in Primitive::ALL {
                let Ok(arithmetic) = Arithmetic::new(op, primitive) else { continue };
                if !arithmetic.is_atomic() {
                    continue;
                }
                let width = arithmetic.width();
                let number = Quick::of_number(op, primitive);
                assert!(number.is_none_or(|(_, bytes)| bytes == width));
                for (old, operand) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
                    let (mut left, mut right) = (vec![0; width], vec![0; width]);
                    write(old, &mut left);
                    write(operand, &mut right);
                    let (old, operand) = (read(&left), read(&right));
                    let mut expected = left.clone();
                    arithmetic.combine(&mut expected, &right);
                    let mut new = left;
                    write(arithmetic.change(old, operand).unwrap_or(old), &mut new);
                    assert_eq!(new, expected, "{op:?} of {primitive}: {old:x} {operand:x}");
                    if let Some((quick, _)) = number {
                        write(quick.change(old, operand).unwrap_or(old), &mut new);
                        assert_eq!(new, expected, "{op:?} of {primitive}, quickly");
                    }
                }
            }
        }
    }
}
