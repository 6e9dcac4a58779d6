//! What sort of number a basic type is, whatever C calls it.

use super::Primitive;

/// What the bits of a number mean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Signed,
    Unsigned,
    /// It depends on the C compiler which.
    EitherSign,
    Float,
    BFloat,
    LongDouble,
    Bool,
    /// Bytes, which may be anything.
    Untyped,
    /// No number: signatures have its two parts.
    Pair,
}

impl Sort {
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Sort::Signed | Sort::Unsigned)
    }
}

/// The sort of a basic type, and its size in bytes; of a complex number, those of its parts.
pub(crate) fn kind(basic: Primitive) -> (Sort, u64) {
    use Primitive as P;
    let sort = match basic {
        P::SignedChar | P::Short | P::Int | P::Long | P::LongLong => Sort::Signed,
        P::Int8 | P::Int16 | P::Int32 | P::Int64 | P::Aint | P::Count | P::Offset => Sort::Signed,
        P::UnsignedChar | P::UnsignedShort | P::Unsigned => Sort::Unsigned,
        P::UnsignedLong | P::UnsignedLongLong => Sort::Unsigned,
        P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => Sort::Unsigned,
        P::Char | P::Wchar => Sort::EitherSign,
        P::Float16 | P::Float | P::Double => Sort::Float,
        P::BFloat16 => Sort::BFloat,
        P::LongDouble | P::LongDoubleComplex => Sort::LongDouble,
        P::FloatComplex => return kind(P::Float),
        P::DoubleComplex => return kind(P::Double),
        P::Bool => Sort::Bool,
        P::Byte | P::Packed => Sort::Untyped,
        _ => Sort::Pair,
    };
    (sort, basic.size_bytes())
}
