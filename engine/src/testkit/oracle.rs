//! What the operations mean, element by element, written out: what fast reductions are held against.

use crate::ReduceOp;
use gapless_dtype::Primitive;
use half::{bf16, f16};

/// Whether there is an answer for the operation on this type: if it is defined, unless for `long double`.
#[must_use]
pub fn knows(op: ReduceOp, primitive: Primitive) -> bool {
    let zero = vec![0; usize::try_from(primitive.size_bytes()).unwrap_or(0)];
    combined(op, primitive, &zero, &zero).is_some()
}

/// `left op right` for one element; `None` where the operation is not defined for the type, and for `long double`.
///
/// # Panics
/// If an operand is not as long as an element.
#[must_use]
pub fn combined(op: ReduceOp, primitive: Primitive, left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(primitive.size_bytes()).ok()?;
    assert_eq!((left.len(), right.len()), (size, size), "one element each");
    match op {
        ReduceOp::Replace => return Some(right.to_vec()),
        ReduceOp::NoOp => return Some(left.to_vec()),
        _ if !op.is_defined_for(primitive) => return None,
        _ => {}
    }
    if primitive.is_pair() {
        return located(op, primitive, left, right);
    }
    if complex_part(primitive).is_some() {
        return complex(op, primitive, left, right);
    }
    let result = arithmetic(op, decoded(primitive, left)?, decoded(primitive, right)?)?;
    Some(encoded(result, size))
}

/// All sources combined from left to right, packed; `None` as [`combined`] and if there is no source.
///
/// # Panics
/// If the sources are not as many whole elements each.
#[must_use]
pub fn folded(op: ReduceOp, primitive: Primitive, srcs: &[Vec<u8>]) -> Option<Vec<u8>> {
    let size = usize::try_from(primitive.size_bytes()).ok()?;
    let (first, others) = srcs.split_first()?;
    let mut result = first.clone();
    for source in others {
        assert_eq!(source.len(), result.len(), "as many elements in each source");
        let pairs = result.chunks(size).zip(source.chunks(size));
        let next: Option<Vec<_>> =
            pairs.map(|(left, right)| combined(op, primitive, left, right)).collect();
        result = next?.concat();
    }
    Some(result)
}

/// Whether packed elements are equal; a NaN is as good as any other.
#[must_use]
pub fn agree(primitive: Primitive, one: &[u8], other: &[u8]) -> bool {
    let parts: Vec<Primitive> = match complex_part(primitive) {
        Some(part) => vec![part; 2],
        None => primitive.parts().map(|(part, _)| part).collect(),
    };
    let (mut one, mut other) = (one, other);
    for part in parts.iter().cycle() {
        if one.is_empty() || other.is_empty() {
            break;
        }
        let size = usize::try_from(part.size_bytes()).unwrap_or(usize::MAX);
        let (Some((a, rest)), Some((b, more))) =
            (one.split_at_checked(size), other.split_at_checked(size))
        else {
            return false;
        };
        let is_nan = |bytes| match decoded(*part, bytes) {
            Some(Value::Half(x)) => x.is_nan(),
            Some(Value::Brain(x)) => x.is_nan(),
            Some(Value::Single(x)) => x.is_nan(),
            Some(Value::Double(x)) => x.is_nan(),
            _ => false,
        };
        if a != b && !(is_nan(a) && is_nan(b)) {
            return false;
        }
        (one, other) = (rest, more);
    }
    one.len() == other.len()
}

/// An element as a number.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Half(f16),
    Brain(bf16),
    Single(f32),
    Double(f64),
}

fn decoded(primitive: Primitive, bytes: &[u8]) -> Option<Value> {
    use Primitive as P;
    Some(match primitive {
        P::Float16 => Value::Half(f16::from_ne_bytes(bytes.try_into().ok()?)),
        P::BFloat16 => Value::Brain(bf16::from_ne_bytes(bytes.try_into().ok()?)),
        P::Float => Value::Single(f32::from_ne_bytes(bytes.try_into().ok()?)),
        P::Double => Value::Double(f64::from_ne_bytes(bytes.try_into().ok()?)),
        P::LongDouble | P::LongDoubleComplex | P::Float128 | P::Float128Complex => return None,
        _ => {
            let is_negative = match primitive {
                P::UnsignedChar | P::UnsignedShort | P::Unsigned | P::UnsignedLong => false,
                P::UnsignedLongLong | P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => false,
                P::Bool | P::Byte | P::Bool16 | P::Bool32 | P::Bool64 | P::Bool128 => false,
                _ => bytes.iter().copied().nth_back(0)? >= 0x80,
            };
            let mut wide = [if is_negative { 0xff } else { 0 }; 16];
            wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Value::Integer(i128::from_le_bytes(wide))
        }
    })
}

fn encoded(value: Value, size: usize) -> Vec<u8> {
    match value {
        // What does not fit is cut off: integers wrap.
        Value::Integer(x) => x.to_le_bytes()[..size].to_vec(),
        Value::Half(x) => x.to_ne_bytes().to_vec(),
        Value::Brain(x) => x.to_ne_bytes().to_vec(),
        Value::Single(x) => x.to_ne_bytes().to_vec(),
        Value::Double(x) => x.to_ne_bytes().to_vec(),
    }
}

macro_rules! float {
    ($op:expr, $a:expr, $b:expr) => {
        match $op {
            ReduceOp::Sum => Some($a + $b),
            ReduceOp::Prod => Some($a * $b),
            ReduceOp::Max if $a.is_nan() => Some($a),
            ReduceOp::Min if $a.is_nan() => Some($a),
            ReduceOp::Max => Some(if $b.is_nan() || $b > $a { $b } else { $a }),
            ReduceOp::Min => Some(if $b.is_nan() || $b < $a { $b } else { $a }),
            _ => None,
        }
    };
}

fn arithmetic(op: ReduceOp, left: Value, right: Value) -> Option<Value> {
    match (left, right) {
        (Value::Integer(a), Value::Integer(b)) => {
            let (x, y) = (a != 0, b != 0);
            Some(Value::Integer(match op {
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Prod => a.wrapping_mul(b),
                ReduceOp::Land => (x && y).into(),
                ReduceOp::Lor => (x || y).into(),
                ReduceOp::Lxor => (x != y).into(),
                ReduceOp::Band => a & b,
                ReduceOp::Bor => a | b,
                ReduceOp::Bxor => a ^ b,
                _ => return None,
            }))
        }
        (Value::Half(a), Value::Half(b)) => float!(op, a, b).map(Value::Half),
        (Value::Brain(a), Value::Brain(b)) => float!(op, a, b).map(Value::Brain),
        (Value::Single(a), Value::Single(b)) => float!(op, a, b).map(Value::Single),
        (Value::Double(a), Value::Double(b)) => float!(op, a, b).map(Value::Double),
        _ => None,
    }
}

/// What a complex number has two of.
fn complex_part(primitive: Primitive) -> Option<Primitive> {
    Some(match primitive {
        Primitive::Float16Complex => Primitive::Float16,
        Primitive::FloatComplex => Primitive::Float,
        Primitive::DoubleComplex => Primitive::Double,
        _ => return None,
    })
}

fn complex(op: ReduceOp, primitive: Primitive, left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let part = complex_part(primitive)?;
    let size = usize::try_from(part.size_bytes()).ok()?;
    let split = |bytes: &[u8]| {
        let (re, im) = bytes.split_at(size);
        Some((decoded(part, re)?, decoded(part, im)?))
    };
    let ((a, b), (c, d)) = (split(left)?, split(right)?);
    let (re, im) = match (op, a, b, c, d) {
        (ReduceOp::Sum, ..) => (arithmetic(op, a, c)?, arithmetic(op, b, d)?),
        (_, Value::Half(a), Value::Half(b), Value::Half(c), Value::Half(d)) => {
            (Value::Half(a * c - b * d), Value::Half(a * d + b * c))
        }
        (_, Value::Single(a), Value::Single(b), Value::Single(c), Value::Single(d)) => {
            (Value::Single(a * c - b * d), Value::Single(a * d + b * c))
        }
        (_, Value::Double(a), Value::Double(b), Value::Double(c), Value::Double(d)) => {
            (Value::Double(a * c - b * d), Value::Double(a * d + b * c))
        }
        _ => return None,
    };
    Some([encoded(re, size), encoded(im, size)].concat())
}

fn located(op: ReduceOp, primitive: Primitive, left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let mut parts = primitive.parts().map(|(part, _)| part);
    let (value, kind) = (parts.next()?, parts.next()?);
    let size = usize::try_from(value.size_bytes()).ok()?;
    let number = |pair: &[u8]| decoded(value, &pair[..size]);
    let index = |pair: &[u8]| decoded(kind, &pair[size..]);
    let is_later = match (index(left)?, index(right)?) {
        (Value::Integer(i), Value::Integer(j)) => j < i,
        (Value::Single(i), Value::Single(j)) => j < i,
        (Value::Double(i), Value::Double(j)) => j < i,
        _ => return None,
    };
    let compare = if op == ReduceOp::MaxLoc { ReduceOp::Max } else { ReduceOp::Min };
    let (l, r) = (number(left)?, number(right)?);
    let is_tie = match (l, r) {
        (Value::Single(a), Value::Single(b)) => a == b,
        (Value::Double(a), Value::Double(b)) => a == b,
        _ => left[..size] == right[..size],
    };
    let left_wins = match is_tie {
        true => !is_later,
        false => encoded(arithmetic(compare, l, r)?, size) == left[..size],
    };
    Some(if left_wins { left.to_vec() } else { right.to_vec() })
}
