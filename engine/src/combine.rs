//! What the operations mean for each basic type: a loop over elements in memory, picked once per call.
//!
//! [`elements`] says what becomes of two elements, [`fold`] has the loops.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the only arithmetic on this type is assembly")]
mod long_double;

#[allow(unsafe_code, reason = "reads and writes elements by address")]
mod binary16;
#[allow(unsafe_code, reason = "vouches for types without padding and invalid values")]
mod elements;
#[allow(unsafe_code, reason = "reads and writes elements by address")]
mod fold;

use crate::ReduceOp;
use elements::{
    Band, Bfloat16, Binary16, Bor, Bxor, Complex, Land, LocPair, Lor, Lxor, Max, MaxLoc, Min,
    MinLoc, Prod, Sum,
};
use fold::fold;
pub(crate) use fold::{Fold, Level, SOURCES_MAX};
use gapless_dtype::Primitive;
use std::ffi::{c_int, c_long, c_short};

/// Integers: values that compare as `$ordered`, all else as the unsigned type of their width.
macro_rules! integer {
    ($op:expr, $level:expr, $ordered:ty, $bits:ty) => {
        match $op {
            ReduceOp::Max => Some(fold::<$ordered, Max>($level)),
            ReduceOp::Min => Some(fold::<$ordered, Min>($level)),
            ReduceOp::Sum => Some(fold::<$bits, Sum>($level)),
            ReduceOp::Prod => Some(fold::<$bits, Prod>($level)),
            ReduceOp::Land => Some(fold::<$bits, Land>($level)),
            ReduceOp::Lor => Some(fold::<$bits, Lor>($level)),
            ReduceOp::Lxor => Some(fold::<$bits, Lxor>($level)),
            ReduceOp::Band => Some(fold::<$bits, Band>($level)),
            ReduceOp::Bor => Some(fold::<$bits, Bor>($level)),
            ReduceOp::Bxor => Some(fold::<$bits, Bxor>($level)),
            _ => None,
        }
    };
}

macro_rules! ordered {
    ($op:expr, $level:expr, $t:ty) => {
        match $op {
            ReduceOp::Max => Some(fold::<$t, Max>($level)),
            ReduceOp::Min => Some(fold::<$t, Min>($level)),
            _ => None,
        }
    };
}

macro_rules! real {
    ($op:expr, $level:expr, $t:ty) => {
        match $op {
            ReduceOp::Sum => Some(fold::<$t, Sum>($level)),
            ReduceOp::Prod => Some(fold::<$t, Prod>($level)),
            _ => ordered!($op, $level, $t),
        }
    };
}

macro_rules! complex {
    ($op:expr, $level:expr, $t:ty) => {
        match $op {
            ReduceOp::Sum => Some(fold::<Complex<$t>, Sum>($level)),
            ReduceOp::Prod => Some(fold::<Complex<$t>, Prod>($level)),
            _ => None,
        }
    };
}

macro_rules! pair {
    ($op:expr, $level:expr, $t:ty, $index:ty) => {
        match $op {
            ReduceOp::MaxLoc => Some(fold::<LocPair<$t, $index>, MaxLoc>($level)),
            ReduceOp::MinLoc => Some(fold::<LocPair<$t, $index>, MinLoc>($level)),
            _ => None,
        }
    };
}

/// The loop for one operation on elements of one type; `None` where the machine has no arithmetic for the type, and
/// where MPI does not define the operation.
pub(crate) fn combine(level: Level, op: ReduceOp, primitive: Primitive) -> Option<Fold> {
    use Primitive as P;
    if !op.is_defined_for(primitive) {
        return None;
    }
    match primitive {
        P::SignedChar | P::UnsignedChar | P::Short | P::UnsignedShort => {
            integers(level, op, primitive)
        }
        P::Int | P::Unsigned | P::Long | P::UnsignedLong => integers(level, op, primitive),
        P::LongLong | P::UnsignedLongLong => integers(level, op, primitive),
        P::Int8 | P::Int16 | P::Int32 | P::Int64 => integers(level, op, primitive),
        P::Int128 => integer!(op, level, i128, u128),
        P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => integers(level, op, primitive),
        P::Aint | P::Count | P::Offset => integers(level, op, primitive),
        // `_Bool` and bytes are octets to the operations that they have.
        P::Bool | P::Byte => integer!(op, level, u8, u8),
        // Any bits but 0 are true; the result is 0 or 1.
        P::Bool16 => integer!(op, level, u16, u16),
        P::Bool32 => integer!(op, level, u32, u32),
        P::Bool64 => integer!(op, level, u64, u64),
        P::Bool128 => integer!(op, level, u128, u128),
        P::Float16 => match op {
            ReduceOp::Sum => Some(binary16::sum(level)),
            ReduceOp::Prod => Some(binary16::product(level)),
            _ => ordered!(op, level, Binary16),
        },
        P::BFloat16 => real!(op, level, Bfloat16),
        P::Float => real!(op, level, f32),
        P::Double => real!(op, level, f64),
        P::Float16Complex => complex!(op, level, Binary16),
        P::FloatComplex => complex!(op, level, f32),
        P::DoubleComplex => complex!(op, level, f64),
        P::FloatInt => pair!(op, level, f32, c_int),
        P::DoubleInt => pair!(op, level, f64, c_int),
        P::LongInt => pair!(op, level, c_long, c_int),
        P::ShortInt => pair!(op, level, c_short, c_int),
        P::TwoInt => pair!(op, level, c_int, c_int),
        P::FloatInt64 => pair!(op, level, f32, i64),
        P::FloatUint32 => pair!(op, level, f32, u32),
        P::FloatUint64 => pair!(op, level, f32, u64),
        P::DoubleInt64 => pair!(op, level, f64, i64),
        P::DoubleUint32 => pair!(op, level, f64, u32),
        P::DoubleUint64 => pair!(op, level, f64, u64),
        P::Int32Int64 => pair!(op, level, i32, i64),
        P::Int32Uint32 => pair!(op, level, i32, u32),
        P::Int32Uint64 => pair!(op, level, i32, u64),
        P::Int64Int64 => pair!(op, level, i64, i64),
        P::Int64Uint32 => pair!(op, level, i64, u32),
        P::Int64Uint64 => pair!(op, level, i64, u64),
        P::Uint32Int32 => pair!(op, level, u32, i32),
        P::Uint32Int64 => pair!(op, level, u32, i64),
        P::Uint32Uint32 => pair!(op, level, u32, u32),
        P::Uint32Uint64 => pair!(op, level, u32, u64),
        P::Uint64Int32 => pair!(op, level, u64, i32),
        P::Uint64Int64 => pair!(op, level, u64, i64),
        P::Uint64Uint32 => pair!(op, level, u64, u32),
        P::Uint64Uint64 => pair!(op, level, u64, u64),
        P::TwoFloat => pair!(op, level, f32, f32),
        P::TwoDouble => pair!(op, level, f64, f64),
        P::LongDouble | P::LongDoubleComplex | P::LongDoubleInt => {
            long_doubles(level, op, primitive)
        }
        P::Char | P::Wchar | P::Packed => None,
        // No processor has them, and no library here.
        P::Float128 | P::Float128Complex => None,
    }
}

/// C's integers, whatever their width is here.
fn integers(level: Level, op: ReduceOp, primitive: Primitive) -> Option<Fold> {
    use Primitive as P;
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
    match (primitive.size_bytes(), is_unsigned) {
        (1, false) => integer!(op, level, i8, u8),
        (1, true) => integer!(op, level, u8, u8),
        (2, false) => integer!(op, level, i16, u16),
        (2, true) => integer!(op, level, u16, u16),
        (4, false) => integer!(op, level, i32, u32),
        (4, true) => integer!(op, level, u32, u32),
        (8, false) => integer!(op, level, i64, u64),
        (8, true) => integer!(op, level, u64, u64),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn long_doubles(level: Level, op: ReduceOp, primitive: Primitive) -> Option<Fold> {
    use long_double::LongDouble;
    match primitive {
        Primitive::LongDoubleComplex => complex!(op, level, LongDouble),
        Primitive::LongDoubleInt => pair!(op, level, LongDouble, c_int),
        _ => real!(op, level, LongDouble),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn long_doubles(_: Level, _: ReduceOp, _: Primitive) -> Option<Fold> {
    None
}

#[cfg(test)]
mod tests;
