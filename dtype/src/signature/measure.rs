//! What is known about a sequence of basic types as a whole: elements, bytes, hash.
//!
//! The hash of x₀ … xₙ₋₁ is Σ v(xᵢ)·Bⁿ⁻¹⁻ⁱ modulo the Mersenne prime 2^61 − 1, so that the hash of
//! a concatenation follows from the parts' hashes and Bⁿ, the `scale`; measures form a monoid
//! under concatenation and n copies take O(log n) steps.

use super::SignatureKind;
use crate::primitive::Primitive;

/// 2^61 − 1.
pub(super) const MODULUS: u64 = (1 << 61) - 1;

/// B, the base of the polynomial. Part of the wire format: both sides must hash alike.
const BASE: u64 = 0x1527_49a9_6d1b_37c5;

/// Spreads the primitives' small codes over the field.
const SPREAD: u64 = 0x0e3a_71c5_9b24_d86f;

const _: () = assert!(BASE < MODULUS && SPREAD < MODULUS);

/// A sequence of basic types, measured. Two are equal if their sequences are, by hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) elements: u64,
    pub(super) bytes: u64,
    hash: u64,
    /// B to the power of `elements`.
    scale: u64,
    /// Which basic types occur: bit c is that with code c; and [`BY_SIZE`].
    types: u128,
}

const _: () = assert!(Primitive::ALL.len() < 128);

/// The bit of elements that match anything of their size, whatever they are.
const BY_SIZE: u128 = 1 << 127;

/// The bits of the types that match anything of their size.
const UNTYPED: u128 = 1 << Primitive::Byte as u8 | 1 << Primitive::Packed as u8 | BY_SIZE;

impl PartialEq for Measure {
    fn eq(&self, other: &Measure) -> bool {
        (self.elements, self.bytes, self.hash) == (other.elements, other.bytes, other.hash)
    }
}

impl Measure {
    pub(super) const EMPTY: Measure =
        Measure { elements: 0, bytes: 0, hash: 0, scale: 1, types: 0 };

    /// One element.
    pub(super) fn of(basic: Primitive) -> Measure {
        Measure {
            elements: 1,
            bytes: basic.size_bytes(),
            // Never zero, so that the number of elements counts.
            hash: multiply(u64::from(basic as u8) + 1, SPREAD),
            scale: BASE,
            types: 1 << basic as u8,
        }
    }

    /// The same, which matches anything of its size.
    pub(super) fn by_size(self) -> Measure {
        Measure { types: self.types | BY_SIZE, ..self }
    }

    pub(super) fn hash(self) -> u64 {
        self.hash
    }

    pub(super) fn kind(self) -> SignatureKind {
        match (self.types & !UNTYPED != 0, self.types & UNTYPED != 0) {
            (true, true) => SignatureKind::Mixed,
            (false, true) => SignatureKind::Bytes,
            (_, false) => SignatureKind::Typed,
        }
    }

    /// The basic types that occur.
    pub(super) fn types(self) -> impl Iterator<Item = Primitive> {
        Primitive::ALL.into_iter().filter(move |basic| self.types & 1 << *basic as u8 != 0)
    }

    /// This, then `next`; numbers that overflow are capped.
    pub(super) fn then(self, next: Measure) -> Measure {
        Measure {
            elements: self.elements.saturating_add(next.elements),
            bytes: self.bytes.saturating_add(next.bytes),
            hash: add(multiply(self.hash, next.scale), next.hash),
            scale: multiply(self.scale, next.scale),
            types: self.types | next.types,
        }
    }

    /// What is left of this behind `first`, with which it begins. Which types occur is as of all of it.
    pub(super) fn after(self, first: Measure) -> Measure {
        let elements = self.elements - first.elements;
        let mut power = Measure { elements: 1, bytes: 0, hash: 0, scale: BASE, types: 0 };
        power = power.times(elements);
        let skipped = multiply(first.hash, power.scale);
        Measure {
            elements,
            bytes: self.bytes - first.bytes,
            hash: add(self.hash, (MODULUS - skipped) % MODULUS),
            scale: power.scale,
            types: self.types,
        }
    }

    /// This, then `next`; `None` if the bytes overflow. Elements are never more than bytes.
    pub(super) fn checked_then(self, next: Measure) -> Option<Measure> {
        self.bytes.checked_add(next.bytes)?;
        Some(self.then(next))
    }

    /// `count` copies; numbers that overflow are capped. Takes O(log count) steps.
    pub(super) fn times(self, mut count: u64) -> Measure {
        let mut total = Measure::EMPTY;
        let mut power = self;
        while count > 0 {
            if count & 1 == 1 {
                total = total.then(power);
            }
            power = power.then(power);
            count >>= 1;
        }
        total
    }

    /// `count` copies; `None` if the bytes overflow.
    pub(super) fn checked_times(self, count: u64) -> Option<Measure> {
        self.bytes.checked_mul(count)?;
        Some(self.times(count))
    }
}

/// Sum in the field; both below `MODULUS`.
fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= MODULUS { sum - MODULUS } else { sum }
}

/// Product in the field; both below `MODULUS`.
fn multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2^61 is 1 in the field: the high part counts like the low one. Both are below 2^61.
    let modulus = u128::from(MODULUS);
    let folded = (product & modulus) + (product >> 61);
    let reduced = if folded >= modulus { folded - modulus } else { folded };
    u64::try_from(reduced).expect("a field element is below 2^61")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_arithmetic_is_exact() {
        let mut x = 0x1234_5678_9abc_def1_u64 % MODULUS;
        for y in [0, 1, 2, BASE, SPREAD, MODULUS - 1] {
            for _ in 0..50 {
                let exact = u128::from(x) * u128::from(y) % u128::from(MODULUS);
                assert_eq!(u128::from(multiply(x, y)), exact);
                x = add(multiply(x, x), 12345);
                assert!(x < MODULUS);
            }
        }
    }

    #[test]
    fn copies_are_repeated_concatenation() {
        let unit = Measure::of(Primitive::Int).then(Measure::of(Primitive::Double));
        let mut long = Measure::EMPTY;
        for n in 0..40 {
            assert_eq!(unit.times(n), long);
            long = long.then(unit);
        }
    }

    #[test]
    fn what_is_left_behind_a_beginning_is_the_rest() {
        let unit = Measure::of(Primitive::Int).then(Measure::of(Primitive::Double));
        for (n, m) in [(0, 3), (3, 0), (2, 5), (7, 7)] {
            assert_eq!(unit.times(n + m).after(unit.times(n)).hash, unit.times(m).hash);
            assert_eq!(unit.times(n + m).after(unit.times(n)).scale, unit.times(m).scale);
        }
    }

    #[test]
    fn order_and_number_matter() {
        let (int, double) = (Measure::of(Primitive::Int), Measure::of(Primitive::Double));
        assert_ne!(int.then(double).hash(), double.then(int).hash());
        assert_ne!(int.hash(), int.then(int).hash());
        assert_ne!(Measure::of(Primitive::Char).hash(), 0);
    }

    #[test]
    fn capped_and_checked() {
        let unit = Measure::of(Primitive::Double);
        assert_eq!(unit.times(u64::MAX).bytes, u64::MAX);
        assert_eq!(unit.checked_times(u64::MAX), None);
        assert_eq!(unit.times(u64::MAX).checked_then(unit), None);
    }
}
