//! Sums and products of binary16 with the processor's own conversions: widened to binary32, combined, and rounded
//! after every operation, as [`half::f16`] does it element by element. Rounding twice changes nothing: binary32 has
//! more than twice the digits.

use super::elements::{Binary, Binary16, Prod, Sum};
use super::fold::{Fold, Level, fold};

/// The loop for sums.
pub(super) fn sum(level: Level) -> Fold {
    match level {
        Level::Baseline => fold::<Binary16, Sum>(level),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::f16c::<Sum, false>,
    }
}

/// The loop for products.
pub(super) fn product(level: Level) -> Fold {
    match level {
        Level::Baseline => fold::<Binary16, Prod>(level),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::f16c::<Prod, true>,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Binary, Binary16, Level, fold};
    use crate::combine::SOURCES_MAX;
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_ps,
        _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_mul_ps,
    };

    /// Elements in a register.
    const LANES: usize = 8;

    /// Sums, or products if `MULTIPLIES`; `O` says the same of single elements.
    ///
    /// # Safety
    /// As [`Fold`](super::Fold), on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn f16c<O: Binary<Binary16>, const MULTIPLIES: bool>(
        srcs: &[*const u8],
        dst: *mut u8,
        count: usize,
    ) {
        let whole = count / LANES;
        match *srcs {
            // SAFETY: the caller's promise, for the elements of whole registers.
            [a, b] => unsafe { registers::<MULTIPLIES, 2>([a, b], dst, whole) },
            // SAFETY: as above.
            [a, b, c] => unsafe { registers::<MULTIPLIES, 3>([a, b, c], dst, whole) },
            // SAFETY: as above.
            [a, b, c, d] => unsafe { registers::<MULTIPLIES, 4>([a, b, c, d], dst, whole) },
            _ => unreachable!("a loop is given two to four sources"),
        }
        let done = whole * LANES * size_of::<Binary16>();
        let mut rest = [std::ptr::null(); SOURCES_MAX];
        for (rest, src) in rest.iter_mut().zip(srcs) {
            *rest = src.wrapping_add(done);
        }
        let tail = fold::<Binary16, O>(Level::Baseline);
        // SAFETY: the elements that are left; the caller's promise.
        unsafe { tail(&rest[..srcs.len()], dst.wrapping_add(done), count - whole * LANES) };
    }

    /// # Safety
    /// As [`Fold`](super::Fold) for `count` registers of elements, on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn registers<const MULTIPLIES: bool, const N: usize>(
        srcs: [*const u8; N],
        dst: *mut u8,
        count: usize,
    ) {
        for at in (0..count).map(|register| register * size_of::<__m128i>()) {
            let load = |source: usize| {
                let from = srcs[source].wrapping_add(at).cast::<__m128i>();
                // SAFETY: the caller's promise; a register of elements is 16 bytes, and may lie anywhere.
                unsafe { _mm_loadu_si128(from) }
            };
            let mut left = load(0);
            for source in 1..N {
                let (l, r) = (_mm256_cvtph_ps(left), _mm256_cvtph_ps(load(source)));
                let result = if MULTIPLIES { _mm256_mul_ps(l, r) } else { _mm256_add_ps(l, r) };
                left = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(result);
            }
            let to = dst.wrapping_add(at).cast::<__m128i>();
            // SAFETY: the caller's promise; a source that is at `dst` has been read so far.
            unsafe { _mm_storeu_si128(to, left) };
        }
    }
}
