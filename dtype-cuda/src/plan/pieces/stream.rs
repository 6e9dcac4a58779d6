//! Stores past the caches. What is written into staging memory is read next by the device, which seems to get lines
//! that lie dirty in some processor's cache more slowly than others; and a line that is written whole need not be
//! read before. On an H200 the first use of 4 M blocks with 8 writers fell from 1022 to 629 µs by it.

/// As aligned as a line.
#[repr(align(64))]
pub(super) struct Aligned<T>(pub(super) T);

/// Copies `from` to `to`, which is as long, past the caches where `to` is aligned to 16 bytes.
#[inline]
pub(super) fn stream(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        if to.as_ptr().addr().is_multiple_of(16) {
            let (to, rest) = to.as_chunks_mut::<16>();
            let (from, last) = from.as_chunks::<16>();
            for (to, from) in to.iter_mut().zip(from) {
                // SAFETY: 16 bytes are read where there are 16; SSE2 is part of the architecture.
                let value = unsafe { _mm_loadu_si128(from.as_ptr().cast::<__m128i>()) };
                // SAFETY: 16 bytes are written where there are 16, which are exclusively ours and
                // aligned to 16, as the first of them are; `settled` orders them before what is told of
                // them.
                unsafe { _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), value) };
            }
            rest.copy_from_slice(last);
            return;
        }
    }
    to.copy_from_slice(from);
}

/// What was stored so far is seen by whoever is told of it from now on.
pub(super) fn settled() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
