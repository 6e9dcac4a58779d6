//! `long double` of x86-64: 80 bits in 16 bytes, by the instructions of the x87, since Rust has no such type.
//! Results have zeros in the six bytes that hold nothing.

use super::elements::{Number, Plain};
use std::arch::asm;
use std::cmp::Ordering;

/// A `long double`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct LongDouble([u8; 16]);

// SAFETY: bytes.
unsafe impl Plain for LongDouble {}

macro_rules! arithmetic {
    ($name:ident, $instruction:literal) => {
        #[inline]
        fn $name(self, right: Self) -> Self {
            let mut result = LongDouble([0; 16]);
            // SAFETY: ten bytes are read at each of two values and ten written to a third, each of which has 16.
            // The x87's stack is empty before (all of it is declared clobbered) and after.
            unsafe {
                asm!(
                    "fld tbyte ptr [{left}]",
                    "fld tbyte ptr [{right}]",
                    $instruction,
                    "fstp tbyte ptr [{result}]",
                    left = in(reg) &raw const self,
                    right = in(reg) &raw const right,
                    result = in(reg) &raw mut result,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            result
        }
    };
}

impl Number for LongDouble {
    arithmetic!(plus, "faddp st(1), st");
    arithmetic!(minus, "fsubp st(1), st");
    arithmetic!(times, "fmulp st(1), st");
}

impl PartialEq for LongDouble {
    #[inline]
    fn eq(&self, right: &Self) -> bool {
        self.partial_cmp(right) == Some(Ordering::Equal)
    }
}

impl PartialOrd for LongDouble {
    #[inline]
    fn partial_cmp(&self, right: &Self) -> Option<Ordering> {
        let (above, below, unordered): (u8, u8, u8);
        // SAFETY: ten bytes are read at each of two values of 16. The x87's stack is empty before (all of it is
        // declared clobbered) and after: two loads, two pops.
        unsafe {
            asm!(
                "fld tbyte ptr [{right}]",
                "fld tbyte ptr [{left}]",
                "fucomip st, st(1)",
                "fstp st(0)",
                "seta {above}",
                "setb {below}",
                "setp {unordered}",
                left = in(reg) &raw const *self,
                right = in(reg) &raw const *right,
                above = out(reg_byte) above,
                below = out(reg_byte) below,
                unordered = out(reg_byte) unordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack, readonly),
            );
        }
        match (unordered, above, below) {
            (1, ..) => None,
            (_, 1, _) => Some(Ordering::Greater),
            (_, _, 1) => Some(Ordering::Less),
            _ => Some(Ordering::Equal),
        }
    }
}

#[cfg(test)]
impl LongDouble {
    /// The value, which a `long double` holds exactly.
    pub(super) fn of(value: f64) -> LongDouble {
        let mut result = LongDouble([0; 16]);
        // SAFETY: eight bytes are read, ten written; the x87's stack is empty before and after.
        unsafe {
            asm!(
                "fld qword ptr [{value}]",
                "fstp tbyte ptr [{result}]",
                value = in(reg) &raw const value,
                result = in(reg) &raw mut result,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_more_digits_than_a_double() {
        let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
        if preloaded.contains("vgpreload") {
            println!("SKIPPED: valgrind computes long double with the digits of double");
            return;
        }
        let tiny = LongDouble::of(2f64.powi(-60));
        let sum = LongDouble::of(1.0).plus(tiny);
        assert!(sum > LongDouble::of(1.0));
        assert!(sum.minus(LongDouble::of(1.0)) == tiny);
        assert_eq!(sum.0[10..], [0; 6]);
    }

    #[test]
    fn computes_and_compares() {
        let (two, three) = (LongDouble::of(2.0), LongDouble::of(3.0));
        assert!(two.times(three) == LongDouble::of(6.0));
        assert!(two.minus(three) == LongDouble::of(-1.0));
        assert_eq!(two.partial_cmp(&three), Some(Ordering::Less));
        assert_eq!(three.partial_cmp(&two), Some(Ordering::Greater));
        assert_eq!(LongDouble::of(f64::NAN).partial_cmp(&two), None);
    }
}
