//! Pairs of a value and an index, for `MPI_MINLOC` and `MPI_MAXLOC` (MPI 4.1 §6.9.4): C's six, whose indices are `int`,
//! Fortran's, whose indices are of the value's type, and those of the other numbers of 32 and 64 bits.

use super::{PairPart, Primitive, kind};
use Primitive as P;

impl Primitive {
    /// Whether this is a value-index pair for `MPI_MINLOC` and `MPI_MAXLOC`.
    pub const fn is_pair(self) -> bool {
        let code = self as u8;
        (P::FloatInt as u8 <= code && code <= P::Uint64Uint64 as u8)
            || matches!(self, P::TwoFloat | P::TwoDouble)
    }

    /// Bytes from one item to the next in an array; includes the gaps of pair types.
    pub const fn extent_bytes(self) -> u64 {
        match self.is_pair() {
            true => (self.index_displacement() + self.items().1.size_bytes())
                .next_multiple_of(self.alignment_bytes()),
            false => self.size_bytes(),
        }
    }

    /// The primitive's typemap: one item, or for a pair type its value and its index.
    pub fn parts(self) -> impl ExactSizeIterator<Item = PairPart> + Clone {
        let (value, index) = self.items();
        let items = if self.is_pair() { 2 } else { 1 };
        [(value, 0), (index, self.index_displacement())].into_iter().take(items)
    }

    /// The pair type of just this value and this index, if there is one.
    pub fn pair_of(value: Primitive, index: Primitive) -> Option<Primitive> {
        Self::pairs().find(|pair| pair.items() == (value, index))
    }

    /// The pair type of such a value and such an index: numbers of the same sort and size, whatever C calls them.
    pub fn pair_like(value: Primitive, index: Primitive) -> Option<Primitive> {
        // A complex number is none of its parts.
        let alike =
            |one: P, other: P| kind(one) == kind(other) && one.size_bytes() == other.size_bytes();
        let fits = |pair: &P| alike(pair.items().0, value) && alike(pair.items().1, index);
        Self::pairs().find(fits)
    }

    fn pairs() -> impl Iterator<Item = Primitive> {
        Self::ALL.into_iter().filter(|primitive| primitive.is_pair())
    }

    /// A pair's value and index; any other primitive itself, twice.
    pub(super) const fn items(self) -> (Primitive, Primitive) {
        match self {
            P::FloatInt => (P::Float, P::Int),
            P::DoubleInt => (P::Double, P::Int),
            P::LongInt => (P::Long, P::Int),
            P::ShortInt => (P::Short, P::Int),
            P::TwoInt => (P::Int, P::Int),
            P::LongDoubleInt => (P::LongDouble, P::Int),
            P::FloatInt64 => (P::Float, P::Int64),
            P::FloatUint32 => (P::Float, P::Uint32),
            P::FloatUint64 => (P::Float, P::Uint64),
            P::DoubleInt64 => (P::Double, P::Int64),
            P::DoubleUint32 => (P::Double, P::Uint32),
            P::DoubleUint64 => (P::Double, P::Uint64),
            P::Int32Int64 => (P::Int32, P::Int64),
            P::Int32Uint32 => (P::Int32, P::Uint32),
            P::Int32Uint64 => (P::Int32, P::Uint64),
            P::Int64Int64 => (P::Int64, P::Int64),
            P::Int64Uint32 => (P::Int64, P::Uint32),
            P::Int64Uint64 => (P::Int64, P::Uint64),
            P::Uint32Int32 => (P::Uint32, P::Int32),
            P::Uint32Int64 => (P::Uint32, P::Int64),
            P::Uint32Uint32 => (P::Uint32, P::Uint32),
            P::Uint32Uint64 => (P::Uint32, P::Uint64),
            P::Uint64Int32 => (P::Uint64, P::Int32),
            P::Uint64Int64 => (P::Uint64, P::Int64),
            P::Uint64Uint32 => (P::Uint64, P::Uint32),
            P::Uint64Uint64 => (P::Uint64, P::Uint64),
            P::TwoFloat => (P::Float, P::Float),
            P::TwoDouble => (P::Double, P::Double),
            other => (other, other),
        }
    }

    /// Where the index of a pair lies: behind the value, aligned.
    const fn index_displacement(self) -> u64 {
        let (value, index) = self.items();
        value.size_bytes().next_multiple_of(index.alignment_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_short};

    #[test]
    fn pairs_are_laid_out_like_c_structs() {
        #[repr(C)]
        struct ShortInt(c_short, c_int);
        #[repr(C)]
        struct DoubleInt(f64, c_int);
        #[repr(C)]
        struct FloatInt64(f32, i64);
        assert_eq!(P::ShortInt.extent_bytes(), size_of::<ShortInt>() as u64);
        assert_eq!(P::DoubleInt.extent_bytes(), size_of::<DoubleInt>() as u64);
        assert_eq!(P::FloatInt64.extent_bytes(), size_of::<FloatInt64>() as u64);
        assert_eq!((P::ShortInt.size_bytes(), P::FloatInt64.size_bytes()), (6, 12));
        let behind = |pair: P| pair.parts().nth(1);
        assert_eq!(behind(P::ShortInt), Some((P::Int, std::mem::offset_of!(ShortInt, 1) as u64)));
        let at = std::mem::offset_of!(FloatInt64, 1) as u64;
        assert_eq!(behind(P::FloatInt64), Some((P::Int64, at)));
        assert!(P::Double.parts().eq([(P::Double, 0)]));
    }

    #[test]
    fn a_pair_is_found_by_its_items_and_by_their_like() {
        for pair in P::ALL {
            assert_eq!(pair.is_pair(), pair.parts().len() == 2);
            let (value, index) = pair.items();
            assert!(!pair.is_pair() || P::pair_of(value, index) == Some(pair), "{pair}");
        }
        for (value, index, pair) in [
            (P::Double, P::Int32, Some(P::DoubleInt)),
            (P::Int32, P::Int32, Some(P::TwoInt)),
            (P::Double, P::Uint64, Some(P::DoubleUint64)),
            (P::Float, P::UnsignedLongLong, Some(P::FloatUint64)),
            (P::Int16, P::Int32, Some(P::ShortInt)),
            (P::FloatComplex, P::Int, None),
            (P::Double, P::Double, Some(P::TwoDouble)),
            (P::Double, P::Float, None),
            (P::BFloat16, P::Int, None),
            (P::Int, P::Double, None),
        ] {
            assert_eq!(P::pair_like(value, index), pair, "{value} and {index}");
        }
    }
}
