//! Copies by the C library, in pieces where whole ones are slow.
//!
//! The GNU C library before 2.40 copies 4 KiB to the size of the second-level cache by `rep movsb` on AMD's processors
//! since Zen 3, too. Where the target begins 1 to 31 bytes behind the source, in their pages, that takes 13 to 20 times as
//! long (20 KiB and 260 KiB, in caches) as its loops of vector instructions, by which it copies what is shorter; elsewhere
//! 0.6 to 1.3 times as long. Messages of 2 MiB without gaps between two processes of a Zen 3 took 190 to 260 µs, and 125
//! to 150 without `rep movsb`.
//!
//! Units: bytes.

use std::ptr;

/// The longest copy that the C library never makes by `rep movsb`.
const PIECE: usize = 2 << 10;

/// Longer ones it makes by its loops again, and around the cache.
const LONGEST: usize = 1 << 20;

/// # Safety
///
/// As [`copy`](super::copy).
#[inline]
pub(super) unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    if len <= PIECE || len > LONGEST || !in_pieces(from, to) {
        // SAFETY: the caller's promise.
        return unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    for at in (0..len).step_by(PIECE) {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: a piece of `len` bytes; the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, PIECE.min(len - at)) };
    }
}

/// Whether `rep movsb` is slow between these places: the target begins up to half a cache line behind the source, a
/// multiple of 4 KiB apart.
fn in_pieces(from: *const u8, to: *mut u8) -> bool {
    cfg!(all(target_arch = "x86_64", target_env = "gnu"))
        && (1..32).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_none_beside() {
        for len in
            [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5 * PIECE + 77, LONGEST, LONGEST + 1]
        {
            let from: Vec<u8> = (0..=250).cycle().take(len).collect();
            let mut to = vec![0xEE; len + 2];
            // SAFETY: as many bytes of two vectors.
            unsafe { copy_long(from.as_ptr(), to[1..].as_mut_ptr(), len) };
            assert!(to[1..=len] == from, "{len} bytes");
            assert_eq!((to[0], to[len + 1]), (0xEE, 0xEE), "{len} bytes");
        }
    }
}
