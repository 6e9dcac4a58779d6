//! The loops: elements of two to four sources, combined from left to right into a target.
//!
//! A loop writes a piece of results to the stack, and then to the target. So the target may be one of the sources,
//! and compilers see that stores change no source: they vectorise the loop without asking whether buffers overlap.
//! The piece stays in the first-level cache, and the second store costs little beside what comes from further away.

use super::elements::{Binary, Plain};
use std::mem::MaybeUninit;

/// Combines `count` elements of each of the sources, at least two and at most [`SOURCES_MAX`], from left to right
/// into `dst`.
///
/// # Safety
/// - Each source may be read, and `dst` may be written, for `count` elements.
/// - A source either is at `dst` or does not overlap it there.
/// - Nobody else writes the sources or touches `dst` meanwhile, but other processes: then elements are arbitrary.
/// - The processor has what the [`Level`] needs that the function was made for.
pub(crate) type Fold = unsafe fn(srcs: &[*const u8], dst: *mut u8, count: usize);

/// As many sources as one loop reads.
pub(crate) const SOURCES_MAX: usize = 4;

/// Which instructions may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Those that every processor of the target has.
    Baseline,
    /// AVX2 and conversions of binary16 (F16C).
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Level {
    /// The best that this processor has.
    #[inline]
    pub(crate) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return Level::Avx2;
        }
        Level::Baseline
    }
}

/// The loop for an element, an operation, and chunks of `LANES` elements.
pub(super) fn fold<T: Plain, O: Binary<T>>(level: Level) -> Fold {
    match level {
        Level::Baseline => baseline::<T, O>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::<T, O>,
    }
}

/// # Safety
/// As [`Fold`].
unsafe fn baseline<T: Plain, O: Binary<T>>(srcs: &[*const u8], dst: *mut u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { any::<T, O>(srcs, dst, count) }
}

/// # Safety
/// As [`Fold`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<T: Plain, O: Binary<T>>(srcs: &[*const u8], dst: *mut u8, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { any::<T, O>(srcs, dst, count) }
}

/// # Safety
/// As [`Fold`].
#[inline(always)]
unsafe fn any<T: Plain, O: Binary<T>>(srcs: &[*const u8], dst: *mut u8, count: usize) {
    match *srcs {
        // SAFETY: the caller's promise.
        [a, b] => unsafe { pieces::<T, O, 2>([a, b], dst, count) },
        // SAFETY: the caller's promise.
        [a, b, c] => unsafe { pieces::<T, O, 3>([a, b, c], dst, count) },
        // SAFETY: the caller's promise.
        [a, b, c, d] => unsafe { pieces::<T, O, 4>([a, b, c, d], dst, count) },
        _ => unreachable!("a loop is given two to four sources"),
    }
}

/// Bytes of results that are written at a time.
const PIECE_BYTES: usize = 1 << 10;

/// Results on the stack.
#[repr(align(64))]
struct FoldPiece(MaybeUninit<[u8; PIECE_BYTES]>);

/// # Safety
/// As [`Fold`].
#[inline(always)]
unsafe fn pieces<T: Plain, O: Binary<T>, const N: usize>(
    srcs: [*const u8; N],
    dst: *mut u8,
    count: usize,
) {
    let whole = PIECE_BYTES / size_of::<T>();
    let mut done = 0;
    while count - done >= whole {
        // SAFETY: `whole` elements from `done` on are among the `count`; the caller's promise.
        unsafe { piece::<T, O, N>(srcs, dst, done * size_of::<T>(), whole) };
        done += whole;
    }
    // SAFETY: the elements that are left, fewer than a piece; the caller's promise.
    unsafe { piece::<T, O, N>(srcs, dst, done * size_of::<T>(), count - done) };
}

/// Combines `count` elements that begin `at` bytes into sources and target.
///
/// # Safety
/// As [`Fold`] for these elements, no more than fill a [`FoldPiece`].
#[inline(always)]
unsafe fn piece<T: Plain, O: Binary<T>, const N: usize>(
    srcs: [*const u8; N],
    dst: *mut u8,
    at: usize,
    count: usize,
) {
    let from = srcs.map(|src| src.wrapping_add(at).cast::<T>());
    let mut results = FoldPiece(MaybeUninit::uninit());
    let to = results.0.as_mut_ptr().cast::<T>();
    for element in 0..count {
        let load = |source: usize| {
            // SAFETY: element `element` of the source; the caller's promise. Any bytes are a plain value.
            unsafe { from[source].wrapping_add(element).read_unaligned() }
        };
        let mut left = load(0);
        for source in 1..N {
            left = O::apply(left, load(source));
        }
        // SAFETY: a piece has room for `count` elements, at an address that suits all of them.
        unsafe { to.wrapping_add(element).write(left) };
    }
    let dst = dst.wrapping_add(at);
    // SAFETY: `count` elements have been written to the piece, which is no user's buffer; the caller's promise
    // about the target. A source that lies there has been read.
    unsafe { std::ptr::copy_nonoverlapping(to.cast::<u8>(), dst, count * size_of::<T>()) };
}
