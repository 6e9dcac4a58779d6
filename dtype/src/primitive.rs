//! The predefined types: the leaves of every datatype tree.
//!
//! All named C types of MPI 4.1 (§3.2.2, Table 3.2 and §6.9.4 for the value-index pairs), the Fortran types that no C
//! type has the kind and size of, and the two 16-bit floats that accelerators use. A primitive is a plain tag; sizes
//! are those of the C compiler for this target, in bytes. Two processes whose targets disagree about them must not talk
//! to each other; that is checked where they connect, not here.
//!
//! Read first: MPI 4.1 §3.2.2 (types), §6.9.4 (`MPI_MINLOC` pairs).

use std::ffi::{c_int, c_long, c_longlong, c_short};
use std::fmt;

mod pair;
mod sort;

use Primitive as P;
pub(crate) use sort::{Sort, kind};

/// A predefined datatype: a basic type of MPI 4.1 for C, a value-index pair, or a 16-bit float. Pairs with indices of 64 bits
/// or without sign are not MPI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Primitive {
    /// `char`: printable character.
    Char,
    /// `signed char`: integer.
    SignedChar,
    /// `unsigned char`: integer.
    UnsignedChar,
    /// `wchar_t`.
    Wchar,
    /// `signed short int`.
    Short,
    /// `unsigned short int`.
    UnsignedShort,
    /// `signed int`.
    Int,
    /// `unsigned int`.
    Unsigned,
    /// `signed long int`.
    Long,
    /// `unsigned long int`.
    UnsignedLong,
    /// `signed long long int`.
    LongLong,
    /// `unsigned long long int`.
    UnsignedLongLong,
    /// `int8_t`.
    Int8,
    /// `int16_t`.
    Int16,
    /// `int32_t`.
    Int32,
    /// `int64_t`.
    Int64,
    /// `uint8_t`.
    Uint8,
    /// `uint16_t`.
    Uint16,
    /// `uint32_t`.
    Uint32,
    /// `uint64_t`.
    Uint64,
    /// `MPI_Aint`: an address-sized integer.
    Aint,
    /// `MPI_Count`: 64-bit.
    Count,
    /// `MPI_Offset`: 64-bit.
    Offset,
    /// IEEE binary16.
    Float16,
    /// bfloat16: the upper half of a `float`.
    BFloat16,
    /// `float`.
    Float,
    /// `double`.
    Double,
    /// `long double`.
    LongDouble,
    /// `_Bool`.
    Bool,
    /// `float _Complex`.
    FloatComplex,
    /// `double _Complex`.
    DoubleComplex,
    /// `long double _Complex`.
    LongDoubleComplex,
    /// Uninterpreted bytes; matches any signature of its size.
    Byte,
    /// Bytes made by an explicit pack; matches any signature of its size.
    Packed,
    /// `struct { float value; int index; }`.
    FloatInt,
    /// `struct { double value; int index; }`; has a trailing gap.
    DoubleInt,
    /// `struct { long value; int index; }`; has a trailing gap.
    LongInt,
    /// `struct { short value; int index; }`; has a gap in the middle.
    ShortInt,
    /// `struct { int value; int index; }` (`MPI_2INT`).
    TwoInt,
    /// `struct { long double value; int index; }`; has a trailing gap.
    LongDoubleInt,
    /// `struct { float value; int64_t index; }`.
    FloatInt64,
    /// `struct { float value; uint32_t index; }`.
    FloatUint32,
    /// `struct { float value; uint64_t index; }`.
    FloatUint64,
    /// `struct { double value; int64_t index; }`.
    DoubleInt64,
    /// `struct { double value; uint32_t index; }`.
    DoubleUint32,
    /// `struct { double value; uint64_t index; }`.
    DoubleUint64,
    /// `struct { int32_t value; int64_t index; }`.
    Int32Int64,
    /// `struct { int32_t value; uint32_t index; }`.
    Int32Uint32,
    /// `struct { int32_t value; uint64_t index; }`.
    Int32Uint64,
    /// `struct { int64_t value; int64_t index; }`.
    Int64Int64,
    /// `struct { int64_t value; uint32_t index; }`.
    Int64Uint32,
    /// `struct { int64_t value; uint64_t index; }`.
    Int64Uint64,
    /// `struct { uint32_t value; int32_t index; }`.
    Uint32Int32,
    /// `struct { uint32_t value; int64_t index; }`.
    Uint32Int64,
    /// `struct { uint32_t value; uint32_t index; }`.
    Uint32Uint32,
    /// `struct { uint32_t value; uint64_t index; }`.
    Uint32Uint64,
    /// `struct { uint64_t value; int32_t index; }`.
    Uint64Int32,
    /// `struct { uint64_t value; int64_t index; }`.
    Uint64Int64,
    /// `struct { uint64_t value; uint32_t index; }`.
    Uint64Uint32,
    /// `struct { uint64_t value; uint64_t index; }`.
    Uint64Uint64,
    /// `INTEGER(16)`: 128-bit.
    Int128,
    /// `REAL(16)`: IEEE binary128. It can be moved; no operation but `MPI_REPLACE` and `MPI_NO_OP` is there for it.
    Float128,
    /// `COMPLEX(2)`: two of binary16.
    Float16Complex,
    /// `COMPLEX(16)`: two of binary128, which can be moved.
    Float128Complex,
    /// `LOGICAL(2)`.
    Bool16,
    /// `LOGICAL(4)`.
    Bool32,
    /// `LOGICAL(8)`.
    Bool64,
    /// `LOGICAL(16)`.
    Bool128,
    /// Two of Fortran's `REAL`: a value, and an index that is a whole number.
    TwoFloat,
    /// Two of `DOUBLE PRECISION`: a value, and an index that is a whole number.
    TwoDouble,
}

/// One basic item of a primitive and its displacement in bytes: the primitive's typemap.
pub type PairPart = (Primitive, u64);

const LONG_DOUBLE_BYTES: u64 = if cfg!(target_arch = "x86") { 12 } else { 16 };
const LONG_DOUBLE_ALIGNMENT: u64 = if cfg!(target_arch = "x86") { 4 } else { 16 };
const WCHAR_BYTES: u64 = if cfg!(windows) { 2 } else { 4 };

impl Primitive {
    /// Every primitive, in declaration order; a primitive's place is its `as u8` code.
    pub const ALL: [Primitive; 70] = [
        P::Char,
        P::SignedChar,
        P::UnsignedChar,
        P::Wchar,
        P::Short,
        P::UnsignedShort,
        P::Int,
        P::Unsigned,
        P::Long,
        P::UnsignedLong,
        P::LongLong,
        P::UnsignedLongLong,
        P::Int8,
        P::Int16,
        P::Int32,
        P::Int64,
        P::Uint8,
        P::Uint16,
        P::Uint32,
        P::Uint64,
        P::Aint,
        P::Count,
        P::Offset,
        P::Float16,
        P::BFloat16,
        P::Float,
        P::Double,
        P::LongDouble,
        P::Bool,
        P::FloatComplex,
        P::DoubleComplex,
        P::LongDoubleComplex,
        P::Byte,
        P::Packed,
        P::FloatInt,
        P::DoubleInt,
        P::LongInt,
        P::ShortInt,
        P::TwoInt,
        P::LongDoubleInt,
        P::FloatInt64,
        P::FloatUint32,
        P::FloatUint64,
        P::DoubleInt64,
        P::DoubleUint32,
        P::DoubleUint64,
        P::Int32Int64,
        P::Int32Uint32,
        P::Int32Uint64,
        P::Int64Int64,
        P::Int64Uint32,
        P::Int64Uint64,
        P::Uint32Int32,
        P::Uint32Int64,
        P::Uint32Uint32,
        P::Uint32Uint64,
        P::Uint64Int32,
        P::Uint64Int64,
        P::Uint64Uint32,
        P::Uint64Uint64,
        P::Int128,
        P::Float128,
        P::Float16Complex,
        P::Float128Complex,
        P::Bool16,
        P::Bool32,
        P::Bool64,
        P::Bool128,
        P::TwoFloat,
        P::TwoDouble,
    ];

    /// The primitive whose Rust counterpart is `T`.
    pub const fn of<T: Scalar>() -> Primitive {
        T::PRIMITIVE
    }

    /// The primitive with this code (`as u8`), if there is one.
    pub fn from_code(code: u8) -> Option<Primitive> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Bytes of data in one item (`MPI_Type_size`); gaps of pair types do not count.
    pub const fn size_bytes(self) -> u64 {
        match self {
            P::Char | P::SignedChar | P::UnsignedChar | P::Int8 | P::Uint8 => 1,
            P::Bool | P::Byte | P::Packed => 1,
            P::Short | P::UnsignedShort => size_of::<c_short>() as u64,
            P::Int | P::Unsigned => size_of::<c_int>() as u64,
            P::Long | P::UnsignedLong => size_of::<c_long>() as u64,
            P::LongLong | P::UnsignedLongLong => size_of::<c_longlong>() as u64,
            P::Int16 | P::Uint16 | P::Float16 | P::BFloat16 | P::Bool16 => 2,
            P::Int32 | P::Uint32 | P::Float | P::Bool32 | P::Float16Complex => 4,
            P::Int64 | P::Uint64 | P::Count | P::Offset | P::Double | P::FloatComplex => 8,
            P::Bool64 => 8,
            P::DoubleComplex | P::Int128 | P::Float128 | P::Bool128 => 16,
            P::Float128Complex => 32,
            P::Aint => size_of::<isize>() as u64,
            P::Wchar => WCHAR_BYTES,
            P::LongDouble => LONG_DOUBLE_BYTES,
            P::LongDoubleComplex => 2 * LONG_DOUBLE_BYTES,
            _ => {
                let (value, index) = self.items();
                value.size_bytes() + index.size_bytes()
            }
        }
    }

    /// The alignment that a C compiler gives the type, in bytes; a power of two.
    pub const fn alignment_bytes(self) -> u64 {
        match self {
            P::Short | P::UnsignedShort => align_of::<c_short>() as u64,
            P::Int | P::Unsigned => align_of::<c_int>() as u64,
            P::Long | P::UnsignedLong => align_of::<c_long>() as u64,
            P::LongLong | P::UnsignedLongLong => align_of::<c_longlong>() as u64,
            P::Int64 | P::Uint64 | P::Count | P::Offset => align_of::<i64>() as u64,
            P::Double | P::DoubleComplex => align_of::<f64>() as u64,
            P::FloatComplex => align_of::<f32>() as u64,
            P::Float16Complex => align_of::<u16>() as u64,
            P::Float128Complex => P::Float128.alignment_bytes(),
            P::LongDouble | P::LongDoubleComplex => LONG_DOUBLE_ALIGNMENT,
            _ if self.is_pair() => {
                let (value, index) = self.items();
                let (value, index) = (value.alignment_bytes(), index.alignment_bytes());
                if value > index { value } else { index }
            }
            _ => self.size_bytes(),
        }
    }

    /// Whether this is `MPI_BYTE` or `MPI_PACKED`, which match any signature of their size.
    pub const fn is_untyped(self) -> bool {
        matches!(self, P::Byte | P::Packed)
    }

    /// MPI's name of the type, for example `MPI_DOUBLE`; of types that MPI does not have, one that begins with `GAPLESS_`.
    pub const fn name(self) -> &'static str {
        match self {
            P::Char => "MPI_CHAR",
            P::SignedChar => "MPI_SIGNED_CHAR",
            P::UnsignedChar => "MPI_UNSIGNED_CHAR",
            P::Wchar => "MPI_WCHAR",
            P::Short => "MPI_SHORT",
            P::UnsignedShort => "MPI_UNSIGNED_SHORT",
            P::Int => "MPI_INT",
            P::Unsigned => "MPI_UNSIGNED",
            P::Long => "MPI_LONG",
            P::UnsignedLong => "MPI_UNSIGNED_LONG",
            P::LongLong => "MPI_LONG_LONG",
            P::UnsignedLongLong => "MPI_UNSIGNED_LONG_LONG",
            P::Int8 => "MPI_INT8_T",
            P::Int16 => "MPI_INT16_T",
            P::Int32 => "MPI_INT32_T",
            P::Int64 => "MPI_INT64_T",
            P::Uint8 => "MPI_UINT8_T",
            P::Uint16 => "MPI_UINT16_T",
            P::Uint32 => "MPI_UINT32_T",
            P::Uint64 => "MPI_UINT64_T",
            P::Aint => "MPI_AINT",
            P::Count => "MPI_COUNT",
            P::Offset => "MPI_OFFSET",
            P::Float16 => "GAPLESS_FLOAT16",
            P::BFloat16 => "GAPLESS_BFLOAT16",
            P::Float => "MPI_FLOAT",
            P::Double => "MPI_DOUBLE",
            P::LongDouble => "MPI_LONG_DOUBLE",
            P::Bool => "MPI_C_BOOL",
            P::FloatComplex => "MPI_C_FLOAT_COMPLEX",
            P::DoubleComplex => "MPI_C_DOUBLE_COMPLEX",
            P::LongDoubleComplex => "MPI_C_LONG_DOUBLE_COMPLEX",
            P::Byte => "MPI_BYTE",
            P::Packed => "MPI_PACKED",
            P::FloatInt => "MPI_FLOAT_INT",
            P::DoubleInt => "MPI_DOUBLE_INT",
            P::LongInt => "MPI_LONG_INT",
            P::ShortInt => "MPI_SHORT_INT",
            P::TwoInt => "MPI_2INT",
            P::LongDoubleInt => "MPI_LONG_DOUBLE_INT",
            P::FloatInt64 => "GAPLESS_FLOAT_INT64",
            P::FloatUint32 => "GAPLESS_FLOAT_UINT32",
            P::FloatUint64 => "GAPLESS_FLOAT_UINT64",
            P::DoubleInt64 => "GAPLESS_DOUBLE_INT64",
            P::DoubleUint32 => "GAPLESS_DOUBLE_UINT32",
            P::DoubleUint64 => "GAPLESS_DOUBLE_UINT64",
            P::Int32Int64 => "GAPLESS_INT32_INT64",
            P::Int32Uint32 => "GAPLESS_INT32_UINT32",
            P::Int32Uint64 => "GAPLESS_INT32_UINT64",
            P::Int64Int64 => "GAPLESS_INT64_INT64",
            P::Int64Uint32 => "GAPLESS_INT64_UINT32",
            P::Int64Uint64 => "GAPLESS_INT64_UINT64",
            P::Uint32Int32 => "GAPLESS_UINT32_INT32",
            P::Uint32Int64 => "GAPLESS_UINT32_INT64",
            P::Uint32Uint32 => "GAPLESS_UINT32_UINT32",
            P::Uint32Uint64 => "GAPLESS_UINT32_UINT64",
            P::Uint64Int32 => "GAPLESS_UINT64_INT32",
            P::Uint64Int64 => "GAPLESS_UINT64_INT64",
            P::Uint64Uint32 => "GAPLESS_UINT64_UINT32",
            P::Uint64Uint64 => "GAPLESS_UINT64_UINT64",
            P::Int128 => "MPI_INTEGER16",
            P::Float128 => "MPI_REAL16",
            P::Float16Complex => "MPI_COMPLEX4",
            P::Float128Complex => "MPI_COMPLEX32",
            P::Bool16 => "MPI_LOGICAL2",
            P::Bool32 => "MPI_LOGICAL4",
            P::Bool64 => "MPI_LOGICAL8",
            P::Bool128 => "MPI_LOGICAL16",
            P::TwoFloat => "MPI_2REAL",
            P::TwoDouble => "MPI_2DOUBLE_PRECISION",
        }
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that has a primitive of the same representation.
///
/// ```
/// use gapless_dtype::Primitive;
///
/// assert_eq!(Primitive::of::<f64>(), Primitive::Double);
/// ```
pub trait Scalar: Copy {
    /// The primitive with this type's size, alignment and meaning.
    const PRIMITIVE: Primitive;
}

macro_rules! scalars {
    ($($rust:ty => $primitive:ident),* $(,)?) => {
        $(
            impl Scalar for $rust {
                const PRIMITIVE: Primitive = Primitive::$primitive;
            }
            const _: () = assert!(size_of::<$rust>() as u64 == Primitive::$primitive.size_bytes());
            const _: () =
                assert!(align_of::<$rust>() as u64 == Primitive::$primitive.alignment_bytes());
        )*
    };
}

scalars! {
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    isize => Aint, bool => Bool,
    f32 => Float, f64 => Double,
}

#[cfg(feature = "half")]
scalars! { half::f16 => Float16, half::bf16 => BFloat16 }

#[cfg(feature = "num-complex")]
scalars! { num_complex::Complex<f32> => FloatComplex, num_complex::Complex<f64> => DoubleComplex }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_places_in_all() {
        for (place, primitive) in Primitive::ALL.into_iter().enumerate() {
            assert_eq!(primitive as usize, place);
            assert_eq!(Primitive::from_code(u8::try_from(place).unwrap()), Some(primitive));
        }
        assert_eq!(Primitive::from_code(70), None);
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = Primitive::ALL.iter().map(|p| p.name()).collect();
        assert_eq!(names.len(), Primitive::ALL.len());
    }

    #[test]
    fn parts_sum_to_the_size_and_stay_inside_the_extent() {
        for p in Primitive::ALL {
            assert_eq!(p.parts().map(|(part, _)| part.size_bytes()).sum::<u64>(), p.size_bytes());
            let end = p.parts().map(|(q, at)| at + q.size_bytes()).max();
            assert!(end <= Some(p.extent_bytes()));
            assert!(p.alignment_bytes().is_power_of_two());
        }
    }
}
