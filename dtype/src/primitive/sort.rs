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
        P::Int8 | P::Int16 | P::Int32 | P::Int64 | P::Int128 => Sort::Signed,
        P::Aint | P::Count | P::Offset => Sort::Signed,
        P::UnsignedChar | P::UnsignedShort | P::Unsigned => Sort::Unsigned,
        P::UnsignedLong | P::UnsignedLongLong => Sort::Unsigned,
        P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => Sort::Unsigned,
        P::Char | P::Wchar => Sort::EitherSign,
        P::Float16 | P::Float | P::Double | P::Float128 => Sort::Float,
        P::BFloat16 => Sort::BFloat,
        P::LongDouble | P::LongDoubleComplex => Sort::LongDouble,
        P::FloatComplex => return kind(P::Float),
        P::DoubleComplex => return kind(P::Double),
        P::Float16Complex => return kind(P::Float16),
        P::Float128Complex => return kind(P::Float128),
        P::Bool | P::Bool16 | P::Bool32 | P::Bool64 | P::Bool128 => Sort::Bool,
        P::Byte | P::Packed => Sort::Untyped,
        _ => Sort::Pair,
    };
    (sort, basic.size_bytes())
}

impl Primitive {
    /// The one type that stands for all integers of the same size, with or without sign: `Int64` for `long`, `long long`,
    /// `MPI_Aint`, `MPI_Count` and `MPI_Offset` of 64 bits. Every other type stands for itself, pairs too.
    ///
    /// Types that are told apart by name do not match (MPI 4.1 §3.3.1); what maps its types by this matches by kind
    /// and size.
    pub fn by_kind(self) -> Primitive {
        use Primitive as P;
        match kind(self) {
            (Sort::Signed, 1) => P::Int8,
            (Sort::Signed, 2) => P::Int16,
            (Sort::Signed, 4) => P::Int32,
            (Sort::Signed, 8) => P::Int64,
            (Sort::Unsigned, 1) => P::Uint8,
            (Sort::Unsigned, 2) => P::Uint16,
            (Sort::Unsigned, 4) => P::Uint32,
            (Sort::Unsigned, 8) => P::Uint64,
            _ => self,
        }
    }
}
