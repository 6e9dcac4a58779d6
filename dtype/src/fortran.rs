//! Fortran's types by what they can hold: the parameters of `SELECTED_REAL_KIND` and `SELECTED_INT_KIND`, or bytes
//! (MPI 4.1 §19.1.5).

use crate::primitive::Primitive;
use Primitive as P;

/// What `MPI_Type_match_size` is asked for (`MPI_TYPECLASS_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TypeClass {
    /// `MPI_TYPECLASS_INTEGER`.
    Integer,
    /// `MPI_TYPECLASS_REAL`.
    Real,
    /// `MPI_TYPECLASS_COMPLEX`.
    Complex,
}

/// Digits, decimal exponent, and the type that has them, in ascending order; x87's extended format stands between `double`
/// and binary128, where `long double` is that.
const REALS: &[(u32, u32, Primitive)] = &[
    (6, 37, P::Float),
    (15, 307, P::Double),
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    (18, 4931, P::LongDouble),
    (33, 4931, P::Float128),
];

impl Primitive {
    /// The type of a class that has so many bytes (`MPI_Type_match_size`); `None` if there is none.
    pub fn match_size(class: TypeClass, bytes: u64) -> Option<Primitive> {
        let types: &[Primitive] = match class {
            TypeClass::Integer => &[P::Int8, P::Int16, P::Int32, P::Int64, P::Int128],
            TypeClass::Real => &[P::Float16, P::Float, P::Double, P::Float128],
            TypeClass::Complex => {
                &[P::Float16Complex, P::FloatComplex, P::DoubleComplex, P::Float128Complex]
            }
        };
        types.iter().copied().find(|known| known.size_bytes() == bytes)
    }

    /// The shortest integer with all numbers below 10 to the power of `range` (`MPI_Type_create_f90_integer`).
    pub fn f90_integer(range: u32) -> Option<Primitive> {
        let integers =
            [(2, P::Int8), (4, P::Int16), (9, P::Int32), (18, P::Int64), (38, P::Int128)];
        integers.into_iter().find(|(most, _)| range <= *most).map(|(_, integer)| integer)
    }

    /// The shortest real with so many decimal digits and such a decimal exponent (`MPI_Type_create_f90_real`). What is
    /// `None` is not asked for.
    pub fn f90_real(precision: Option<u32>, range: Option<u32>) -> Option<Primitive> {
        let (digits, exponent) = (precision.unwrap_or(0), range.unwrap_or(0));
        let fits = |(p, r, _): &&(u32, u32, Primitive)| digits <= *p && exponent <= *r;
        REALS.iter().find(fits).map(|(.., real)| *real)
    }

    /// Two of what [`f90_real`](Self::f90_real) gives (`MPI_Type_create_f90_complex`).
    pub fn f90_complex(precision: Option<u32>, range: Option<u32>) -> Option<Primitive> {
        Some(match Self::f90_real(precision, range)? {
            P::Float => P::FloatComplex,
            P::Double => P::DoubleComplex,
            P::LongDouble => P::LongDoubleComplex,
            _ => P::Float128Complex,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_choose_the_type() {
        for class in [TypeClass::Integer, TypeClass::Real, TypeClass::Complex] {
            for bytes in 0..40 {
                let found = P::match_size(class, bytes);
                assert!(found.is_none_or(|it| it.size_bytes() == bytes), "{class:?} {bytes}");
            }
        }
        assert_eq!(P::match_size(TypeClass::Complex, 8), Some(P::FloatComplex));
        assert_eq!(P::match_size(TypeClass::Real, 1), None);
        assert_eq!(
            [2, 3, 9, 10, 18].map(P::f90_integer).map(|it| it.unwrap().size_bytes()),
            [1, 2, 4, 8, 8]
        );
        assert_eq!((P::f90_integer(38), P::f90_integer(39)), (Some(P::Int128), None));
        assert_eq!(P::f90_real(Some(6), Some(37)), Some(P::Float));
        assert_eq!(P::f90_real(Some(6), Some(38)), Some(P::Double));
        assert_eq!(P::f90_real(Some(15), None), Some(P::Double));
        assert_eq!(P::f90_real(None, Some(308)).map(P::size_bytes), Some(16));
        assert_eq!(P::f90_real(Some(33), Some(4931)), Some(P::Float128));
        assert_eq!(P::f90_real(Some(34), None), None);
        assert_eq!(P::f90_complex(Some(7), None), Some(P::DoubleComplex));
    }
}
