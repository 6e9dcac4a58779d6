//! What the operations mean for each basic type: pure functions of two elements, picked once per
//! call as a function over packed bytes. `src op dst` replaces `dst`.

use crate::ReduceOp;
use gapless_dtype::Primitive;
use half::{bf16, f16};
use num_complex::Complex;
use std::ffi::{c_int, c_long, c_longlong, c_short, c_uint, c_ulong, c_ulonglong, c_ushort};

/// Combines elements of `src` into `dst`, both packed and of one length, a multiple of the size.
pub(crate) type Combine = fn(src: &[u8], dst: &mut [u8]);

/// A plain element: read from and written to unaligned bytes.
trait Element: Copy {
    const BYTES: usize = size_of::<Self>();
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
}

macro_rules! element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            fn load(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$t>()];
                array.copy_from_slice(bytes);
                <$t>::from_ne_bytes(array)
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
element!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, f16, bf16);

impl<T: Element> Element for Complex<T> {
    const BYTES: usize = 2 * T::BYTES;
    fn load(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(T::BYTES);
        Complex { re: T::load(re), im: T::load(im) }
    }
    fn store(self, bytes: &mut [u8]) {
        let (re, im) = bytes.split_at_mut(T::BYTES);
        self.re.store(re);
        self.im.store(im);
    }
}

/// A value and its index, packed.
#[derive(Clone, Copy)]
struct Pair<T> {
    value: T,
    index: c_int,
}

impl<T: Element> Element for Pair<T> {
    const BYTES: usize = T::BYTES + size_of::<c_int>();
    fn load(bytes: &[u8]) -> Self {
        let (value, index) = bytes.split_at(T::BYTES);
        Pair { value: T::load(value), index: c_int::load(index) }
    }
    fn store(self, bytes: &mut [u8]) {
        let (value, index) = bytes.split_at_mut(T::BYTES);
        self.value.store(value);
        self.index.store(index);
    }
}

fn each<T: Element>(src: &[u8], dst: &mut [u8], op: impl Fn(T, T) -> T) {
    for (from, to) in src.chunks_exact(T::BYTES).zip(dst.chunks_exact_mut(T::BYTES)) {
        op(T::load(from), T::load(to)).store(to);
    }
}

macro_rules! integer {
    ($t:ty, $op:expr) => {
        match $op {
            ReduceOp::Max => Some(|s, d| each::<$t>(s, d, |a, b| a.max(b))),
            ReduceOp::Min => Some(|s, d| each::<$t>(s, d, |a, b| a.min(b))),
            ReduceOp::Sum => Some(|s, d| each::<$t>(s, d, |a, b| a.wrapping_add(b))),
            ReduceOp::Prod => Some(|s, d| each::<$t>(s, d, |a, b| a.wrapping_mul(b))),
            ReduceOp::Land => Some(|s, d| each::<$t>(s, d, |a, b| (a != 0 && b != 0).into())),
            ReduceOp::Lor => Some(|s, d| each::<$t>(s, d, |a, b| (a != 0 || b != 0).into())),
            ReduceOp::Lxor => Some(|s, d| each::<$t>(s, d, |a, b| ((a != 0) != (b != 0)).into())),
            ReduceOp::Band => Some(|s, d| each::<$t>(s, d, |a, b| a & b)),
            ReduceOp::Bor => Some(|s, d| each::<$t>(s, d, |a, b| a | b)),
            ReduceOp::Bxor => Some(|s, d| each::<$t>(s, d, |a, b| a ^ b)),
            _ => None,
        }
    };
}

macro_rules! real {
    ($t:ty, $op:expr) => {
        match $op {
            // A NaN on either side stays: the comparison picks it, `max` would drop it.
            ReduceOp::Max => {
                Some(|s, d| each::<$t>(s, d, |a, b| if b > a || b != b { b } else { a }))
            }
            ReduceOp::Min => {
                Some(|s, d| each::<$t>(s, d, |a, b| if b < a || b != b { b } else { a }))
            }
            ReduceOp::Sum => Some(|s, d| each::<$t>(s, d, |a, b| a + b)),
            ReduceOp::Prod => Some(|s, d| each::<$t>(s, d, |a, b| a * b)),
            _ => None,
        }
    };
}

macro_rules! complex {
    ($t:ty, $op:expr) => {
        match $op {
            ReduceOp::Sum => Some(|s, d| each::<Complex<$t>>(s, d, |a, b| a + b)),
            ReduceOp::Prod => Some(|s, d| each::<Complex<$t>>(s, d, |a, b| a * b)),
            _ => None,
        }
    };
}

macro_rules! pair {
    ($t:ty, $op:expr) => {
        match $op {
            ReduceOp::MaxLoc => {
                Some(|s, d| each::<Pair<$t>>(s, d, |a, b| located(a, b, a.value > b.value)))
            }
            ReduceOp::MinLoc => {
                Some(|s, d| each::<Pair<$t>>(s, d, |a, b| located(a, b, a.value < b.value)))
            }
            _ => None,
        }
    };
}

/// The pair that wins; equal values keep the smaller index (MPI 4.1 §6.9.4).
fn located<T: PartialEq>(a: Pair<T>, b: Pair<T>, a_wins: bool) -> Pair<T> {
    if a.value == b.value {
        let index = a.index.min(b.index);
        Pair { value: a.value, index }
    } else if a_wins {
        a
    } else {
        b
    }
}

fn logical(op: ReduceOp) -> Option<Combine> {
    match op {
        ReduceOp::Land => Some(|s, d| each::<u8>(s, d, |a, b| (a != 0 && b != 0).into())),
        ReduceOp::Lor => Some(|s, d| each::<u8>(s, d, |a, b| (a != 0 || b != 0).into())),
        ReduceOp::Lxor => Some(|s, d| each::<u8>(s, d, |a, b| ((a != 0) != (b != 0)).into())),
        _ => None,
    }
}

fn bitwise(op: ReduceOp) -> Option<Combine> {
    match op {
        ReduceOp::Band => Some(|s, d| each::<u8>(s, d, |a, b| a & b)),
        ReduceOp::Bor => Some(|s, d| each::<u8>(s, d, |a, b| a | b)),
        ReduceOp::Bxor => Some(|s, d| each::<u8>(s, d, |a, b| a ^ b)),
        _ => None,
    }
}

/// The function for one operation and type, or `None` where MPI does not define it (and for
/// `long double`, which Rust has no arithmetic for).
pub(crate) fn combine(op: ReduceOp, primitive: Primitive) -> Option<Combine> {
    use Primitive as P;
    match op {
        ReduceOp::Replace => return Some(|s, d| d.copy_from_slice(s)),
        ReduceOp::NoOp => return Some(|_, _| ()),
        _ => {}
    }
    match primitive {
        P::SignedChar | P::Int8 => integer!(i8, op),
        P::UnsignedChar | P::Uint8 => integer!(u8, op),
        P::Short => integer!(c_short, op),
        P::UnsignedShort => integer!(c_ushort, op),
        P::Int => integer!(c_int, op),
        P::Unsigned => integer!(c_uint, op),
        P::Long => integer!(c_long, op),
        P::UnsignedLong => integer!(c_ulong, op),
        P::LongLong => integer!(c_longlong, op),
        P::UnsignedLongLong => integer!(c_ulonglong, op),
        P::Int16 => integer!(i16, op),
        P::Int32 => integer!(i32, op),
        P::Int64 | P::Count | P::Offset => integer!(i64, op),
        P::Uint16 => integer!(u16, op),
        P::Uint32 => integer!(u32, op),
        P::Uint64 => integer!(u64, op),
        P::Aint if primitive.size_bytes() == 8 => integer!(i64, op),
        P::Aint => integer!(i32, op),
        P::Float16 => real!(f16, op),
        P::BFloat16 => real!(bf16, op),
        P::Float => real!(f32, op),
        P::Double => real!(f64, op),
        P::FloatComplex => complex!(f32, op),
        P::DoubleComplex => complex!(f64, op),
        P::Bool => logical(op),
        P::Byte => bitwise(op),
        P::FloatInt => pair!(f32, op),
        P::DoubleInt => pair!(f64, op),
        P::LongInt => pair!(c_long, op),
        P::ShortInt => pair!(c_short, op),
        P::TwoInt => pair!(c_int, op),
        P::Char
        | P::Wchar
        | P::Packed
        | P::LongDouble
        | P::LongDoubleComplex
        | P::LongDoubleInt => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T: Element>(op: ReduceOp, primitive: Primitive, a: T, b: T) -> T {
        let (mut src, mut dst) = (vec![0; T::BYTES], vec![0; T::BYTES]);
        a.store(&mut src);
        b.store(&mut dst);
        combine(op, primitive).unwrap()(&src, &mut dst);
        T::load(&dst)
    }

    #[test]
    fn each_operation_means_what_mpi_says() {
        let int = |op, a: i32, b: i32| run(op, Primitive::Int, a, b);
        assert_eq!(int(ReduceOp::Max, -3, 2), 2);
        assert_eq!(int(ReduceOp::Min, -3, 2), -3);
        assert_eq!(int(ReduceOp::Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(int(ReduceOp::Prod, -3, 2), -6);
        assert_eq!(int(ReduceOp::Land, 4, 2), 1);
        assert_eq!(int(ReduceOp::Lor, 0, 0), 0);
        assert_eq!(int(ReduceOp::Lxor, 4, 2), 0);
        assert_eq!(int(ReduceOp::Band, 6, 3), 2);
        assert_eq!(int(ReduceOp::Bor, 6, 3), 7);
        assert_eq!(int(ReduceOp::Bxor, 6, 3), 5);
        assert_eq!(int(ReduceOp::Replace, 6, 3), 6);
        assert_eq!(int(ReduceOp::NoOp, 6, 3), 3);
    }

    #[test]
    fn reals_complexes_and_halves() {
        assert_eq!(run(ReduceOp::Sum, Primitive::Double, 1.5, 2.0), 3.5);
        assert!(run(ReduceOp::Max, Primitive::Float, f32::NAN, 2.0).is_nan());
        assert!(run(ReduceOp::Min, Primitive::Float, 2.0, f32::NAN).is_nan());
        let two = f16::from_f32(2.0);
        assert_eq!(run(ReduceOp::Prod, Primitive::Float16, two, two), f16::from_f32(4.0));
        let i = Complex::new(0.0, 1.0);
        assert_eq!(run(ReduceOp::Prod, Primitive::DoubleComplex, i, i), Complex::new(-1.0, 0.0));
        assert!(combine(ReduceOp::Max, Primitive::DoubleComplex).is_none());
    }

    #[test]
    fn equal_values_keep_the_smaller_index() {
        fn at<T>(value: T, index: i32) -> Pair<T> {
            Pair { value, index }
        }
        let max = |a, b| run(ReduceOp::MaxLoc, Primitive::DoubleInt, a, b);
        let won = max(at(2.0, 7), at(2.0, 3));
        assert_eq!((won.value, won.index), (2.0, 3));
        let won = max(at(1.0, 0), at(2.0, 3));
        assert_eq!((won.value, won.index), (2.0, 3));
        let won = run(ReduceOp::MinLoc, Primitive::ShortInt, at(1i16, 9), at(2, 3));
        assert_eq!((won.value, won.index), (1, 9));
    }

    #[test]
    fn every_packed_element_has_its_primitives_size() {
        // A wrong size would leave the tail of a chunk untouched by REPLACE's siblings.
        for primitive in Primitive::ALL {
            for op in [ReduceOp::Sum, ReduceOp::MaxLoc, ReduceOp::Lor, ReduceOp::Bor] {
                let Some(function) = combine(op, primitive) else { continue };
                let size = usize::try_from(primitive.size_bytes()).unwrap();
                let mut dst = vec![0u8; 3 * size];
                function(&vec![1u8; 3 * size], &mut dst);
                for element in dst.chunks(size) {
                    assert!(element.iter().any(|&byte| byte != 0), "{op:?} {primitive}");
                }
            }
        }
    }
}
