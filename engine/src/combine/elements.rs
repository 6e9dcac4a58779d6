//! Elements as values, and what the operations do to two of them.
//!
//! Elements are read where they lie, at any address, so every bit pattern must be a value and there is no padding.

use half::f16;

/// A type that can be read from any bytes of its size.
///
/// # Safety
/// Every bit pattern is a value, and no byte is padding.
pub(super) unsafe trait Plain: Copy {}

/// What `MPI_SUM` and `MPI_PROD` need.
pub(super) trait Number: Plain {
    fn plus(self, right: Self) -> Self;
    fn minus(self, right: Self) -> Self;
    fn times(self, right: Self) -> Self;
}

/// What `MPI_MAX` and `MPI_MIN` need.
pub(super) trait Ordered: Plain {
    /// Whether the larger of the two is this, the right operand: if it is larger, or a NaN.
    fn above(self, left: Self) -> bool;
    /// Whether the smaller of the two is this, the right operand: if it is smaller, or a NaN.
    fn below(self, left: Self) -> bool;
}

macro_rules! ordered {
    ($($t:ty),*) => {$(
        impl Ordered for $t {
            #[inline(always)]
            fn above(self, left: Self) -> bool {
                (self > left) | is_nan(self)
            }
            #[inline(always)]
            fn below(self, left: Self) -> bool {
                (self < left) | is_nan(self)
            }
        }
    )*};
}
ordered!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128, f32, f64);
#[cfg(target_arch = "x86_64")]
ordered!(super::long_double::LongDouble);

/// What the logical operations need.
pub(super) trait Truth: Plain {
    fn is_true(self) -> bool;
    fn from_truth(truth: bool) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        // SAFETY: an integer.
        unsafe impl Plain for $t {}
        impl Number for $t {
            #[inline(always)]
            fn plus(self, right: Self) -> Self {
                self.wrapping_add(right)
            }
            #[inline(always)]
            fn minus(self, right: Self) -> Self {
                self.wrapping_sub(right)
            }
            #[inline(always)]
            fn times(self, right: Self) -> Self {
                self.wrapping_mul(right)
            }
        }
        impl Truth for $t {
            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0
            }
            #[inline(always)]
            fn from_truth(truth: bool) -> Self {
                truth.into()
            }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! reals {
    ($($t:ty),*) => {$(
        // SAFETY: a float, or an integer that stands for one.
        unsafe impl Plain for $t {}
        impl Number for $t {
            #[inline(always)]
            fn plus(self, right: Self) -> Self {
                self + right
            }
            #[inline(always)]
            fn minus(self, right: Self) -> Self {
                self - right
            }
            #[inline(always)]
            fn times(self, right: Self) -> Self {
                self * right
            }
        }
    )*};
}
reals!(f32, f64);

/// A float of 16 bits: a sign, an exponent, a fraction. It compares without being widened.
macro_rules! short_float {
    ($name:ident, $infinity:literal, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(super) struct $name(u16);

        // SAFETY: an integer that stands for a float.
        unsafe impl Plain for $name {}

        impl $name {
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0 & 0x7fff > $infinity
            }

            /// A number in the order of the floats; the same for both zeros.
            #[inline(always)]
            fn rank(self) -> i16 {
                let sign = self.0.cast_signed() >> 15;
                let magnitude = (self.0 & 0x7fff).cast_signed();
                (magnitude ^ sign).wrapping_sub(sign)
            }
        }

        impl Ordered for $name {
            #[inline(always)]
            fn above(self, left: Self) -> bool {
                let key = |x: Self| if x.is_nan() { i16::MAX } else { x.rank() };
                key(self) > key(left)
            }
            #[inline(always)]
            fn below(self, left: Self) -> bool {
                let key = |x: Self| if x.is_nan() { i16::MIN } else { x.rank() };
                key(self) < key(left)
            }
        }
    };
}
short_float!(Binary16, 0x7c00, "IEEE binary16.");
short_float!(Bfloat16, 0x7f80, "The upper half of a binary32.");

impl Number for Binary16 {
    #[inline(always)]
    fn plus(self, right: Self) -> Self {
        Binary16((f16::from_bits(self.0) + f16::from_bits(right.0)).to_bits())
    }
    #[inline(always)]
    fn minus(self, right: Self) -> Self {
        Binary16((f16::from_bits(self.0) - f16::from_bits(right.0)).to_bits())
    }
    #[inline(always)]
    fn times(self, right: Self) -> Self {
        Binary16((f16::from_bits(self.0) * f16::from_bits(right.0)).to_bits())
    }
}

impl Bfloat16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// The nearest one, ties to even, without a branch, so that compilers vectorise it. A NaN has to be one that
    /// came of widened values: its lower half is zero, so rounding leaves it a NaN.
    #[inline(always)]
    fn narrow(value: f32) -> Bfloat16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        Bfloat16(rounded as u16)
    }
}

impl Number for Bfloat16 {
    #[inline(always)]
    fn plus(self, right: Self) -> Self {
        Bfloat16::narrow(self.widen() + right.widen())
    }
    #[inline(always)]
    fn minus(self, right: Self) -> Self {
        Bfloat16::narrow(self.widen() - right.widen())
    }
    #[inline(always)]
    fn times(self, right: Self) -> Self {
        Bfloat16::narrow(self.widen() * right.widen())
    }
}

/// A complex number, as C and Fortran have it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Complex<T> {
    re: T,
    im: T,
}

// SAFETY: two values without padding between them: `repr(C)`, and both are of one type.
unsafe impl<T: Plain> Plain for Complex<T> {}

impl<T: Number> Number for Complex<T> {
    #[inline(always)]
    fn plus(self, right: Self) -> Self {
        Complex { re: self.re.plus(right.re), im: self.im.plus(right.im) }
    }
    #[inline(always)]
    fn minus(self, right: Self) -> Self {
        Complex { re: self.re.minus(right.re), im: self.im.minus(right.im) }
    }
    #[inline(always)]
    fn times(self, right: Self) -> Self {
        Complex {
            re: self.re.times(right.re).minus(self.im.times(right.im)),
            im: self.re.times(right.im).plus(self.im.times(right.re)),
        }
    }
}

/// A value and its index, packed.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct LocPair<T, I> {
    pub(super) value: T,
    pub(super) index: I,
}

// SAFETY: both parts are, and a packed struct has no padding.
unsafe impl<T: Plain, I: Plain> Plain for LocPair<T, I> {}

/// What an operation makes of two elements.
pub(super) trait Binary<T> {
    fn apply(left: T, right: T) -> T;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Max;
pub(super) struct Min;
pub(super) struct Land;
pub(super) struct Lor;
pub(super) struct Lxor;
pub(super) struct Band;
pub(super) struct Bor;
pub(super) struct Bxor;
pub(super) struct MaxLoc;
pub(super) struct MinLoc;

macro_rules! operation {
    ($op:ident, $t:ident: $($bound:ident)+, $left:ident, $right:ident, $result:expr) => {
        impl<$t: $($bound+)+> Binary<$t> for $op {
            #[inline(always)]
            fn apply($left: $t, $right: $t) -> $t {
                $result
            }
        }
    };
}

operation!(Sum, T: Number, left, right, left.plus(right));
operation!(Prod, T: Number, left, right, left.times(right));
operation!(Land, T: Truth, left, right, T::from_truth(left.is_true() & right.is_true()));
operation!(Lor, T: Truth, left, right, T::from_truth(left.is_true() | right.is_true()));
operation!(Lxor, T: Truth, left, right, T::from_truth(left.is_true() ^ right.is_true()));

macro_rules! bitwise {
    ($($t:ty),*) => {$(
        impl Binary<$t> for Band {
            #[inline(always)]
            fn apply(left: $t, right: $t) -> $t {
                left & right
            }
        }
        impl Binary<$t> for Bor {
            #[inline(always)]
            fn apply(left: $t, right: $t) -> $t {
                left | right
            }
        }
        impl Binary<$t> for Bxor {
            #[inline(always)]
            fn apply(left: $t, right: $t) -> $t {
                left ^ right
            }
        }
    )*};
}
bitwise!(u8, u16, u32, u64, u128);

/// Whether it is a NaN: only that is not equal to itself.
#[inline(always)]
#[expect(clippy::eq_op, reason = "the definition of NaN")]
fn is_nan<T: PartialEq + Copy>(value: T) -> bool {
    value != value
}

operation!(Max, T: Ordered, left, right, if right.above(left) { right } else { left });
operation!(Min, T: Ordered, left, right, if right.below(left) { right } else { left });

/// The pair that wins; of equal values, the one with the smaller index (MPI 4.1 §6.9.4).
#[inline(always)]
fn located<T: Plain + PartialOrd, I: Plain + PartialOrd>(
    left: LocPair<T, I>,
    right: LocPair<T, I>,
    wins: impl Fn(T, T) -> bool,
) -> LocPair<T, I> {
    let (l, r) = (left.value, right.value);
    let (i, j) = (left.index, right.index);
    if wins(l, r) || is_nan(l) {
        left
    } else if wins(r, l) || is_nan(r) || j < i {
        right
    } else {
        left
    }
}

impl<T: Plain + PartialOrd, I: Plain + PartialOrd> Binary<LocPair<T, I>> for MaxLoc {
    #[inline(always)]
    fn apply(left: LocPair<T, I>, right: LocPair<T, I>) -> LocPair<T, I> {
        located(left, right, |a, b| a > b)
    }
}

impl<T: Plain + PartialOrd, I: Plain + PartialOrd> Binary<LocPair<T, I>> for MinLoc {
    #[inline(always)]
    fn apply(left: LocPair<T, I>, right: LocPair<T, I>) -> LocPair<T, I> {
        located(left, right, |a, b| a < b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_is_rounded_as_by_its_own_crate() {
        for high in 0..=u16::MAX {
            assert_eq!(Bfloat16(high).widen().to_bits(), u32::from(high) << 16);
            // All that rounding looks at: ties, just below, just above, nothing.
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let (ours, theirs) = (Bfloat16::narrow(value), half::bf16::from_f32(value));
                match value.is_nan() {
                    true => assert!(low != 0 || ours.is_nan(), "{value:e}"),
                    false => assert_eq!(ours.0, theirs.to_bits(), "{value:e}"),
                }
            }
        }
    }

    #[test]
    fn short_floats_compare_as_numbers_do() {
        let near =
            |bits: u16| [bits, bits.wrapping_add(1), bits ^ 0x8000, 0, 0x8000, 0x7c00, 0x7f80];
        for (a, b) in (0..=u16::MAX).flat_map(|a| near(a).map(|b| (a, b))) {
            let (x, y) = (f16::from_bits(a).to_f32(), f16::from_bits(b).to_f32());
            if !x.is_nan() {
                assert_eq!(Binary16(b).above(Binary16(a)), y.above(x), "{x} {y}");
                assert_eq!(Binary16(b).below(Binary16(a)), y.below(x), "{x} {y}");
            }
            let (x, y) = (Bfloat16(a).widen(), Bfloat16(b).widen());
            if !x.is_nan() {
                assert_eq!(Bfloat16(b).above(Bfloat16(a)), y.above(x), "{x} {y}");
                assert_eq!(Bfloat16(b).below(Bfloat16(a)), y.below(x), "{x} {y}");
            }
        }
        let nan = Binary16(0x7e00);
        assert!(!Binary16(0x3c00).above(nan) && !Binary16(0x3c00).below(nan), "a NaN stays");
    }
}
