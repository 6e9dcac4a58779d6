//! Reading and writing memory by address: the only place in this crate that does.
//!
//! No reference to described memory is ever formed (another process may be writing it); bytes are
//! copied in or out. The caller proves that the description is true.

use crate::{DeviceError, OutOfRange, Region};

#[inline]
fn pointer(region: &Region, offset: u64, len: usize) -> Result<*mut u8, DeviceError> {
    let piece = region.sub(offset, len as u64)?;
    piece.as_ptr().ok_or_else(|| DeviceError::WrongSpace {
        device: "the CPU".to_owned(),
        space: region.space(),
    })
}

/// The longest copy that the C library never makes by `rep movsb`.
const PIECE: usize = 2 << 10;

/// Copies by the C library: in pieces of a length that it never copies by `rep movsb`, where whole ones are slow. See
/// `dtype/src/copy/pieces.rs`, which does the same for layouts.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline]
unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
    const LONGEST: usize = 1 << 20;
    let apart = from.addr().abs_diff(to.addr()) >= len;
    if len <= PIECE || len > LONGEST || !apart || !in_pieces(from, to) {
        // SAFETY: the caller's promise; `copy` allows overlap.
        return unsafe { std::ptr::copy(from, to, len) };
    }
    for at in (0..len).step_by(PIECE) {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: a piece of `len` bytes, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, PIECE.min(len - at)) };
    }
}

/// Whether `rep movsb` is slow between these places: the target begins up to half a cache line behind the source, a
/// multiple of 4 KiB apart.
fn in_pieces(from: *const u8, to: *mut u8) -> bool {
    cfg!(all(target_arch = "x86_64", target_env = "gnu"))
        && (1..32).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

/// Copies `into.len()` bytes out of `region`, from `offset` on.
///
/// # Safety
/// `region` describes readable memory. If another process writes it meanwhile, the bytes read are
/// any mixture.
///
/// # Errors
/// The bytes do not lie inside, or the CPU must not touch the space.
#[inline]
pub unsafe fn read(region: &Region, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
    let from = pointer(region, offset, into.len())?;
    // SAFETY: `from` is valid for `into.len()` reads: the piece lies inside `region` (checked by
    // `pointer`), which the caller guarantees readable. `into` is exclusive, so it cannot overlap.
    unsafe { move_bytes(from, into.as_mut_ptr(), into.len()) };
    Ok(())
}

/// Copies `from` into `region`, from `offset` on.
///
/// # Safety
/// `region` describes writable memory that no reference of this process covers.
///
/// # Errors
/// The bytes do not lie inside, or the CPU must not touch the space.
#[inline]
pub unsafe fn write(region: &Region, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
    let to = pointer(region, offset, from.len())?;
    // SAFETY: `to` is valid for `from.len()` writes: the piece lies inside `region` (checked by
    // `pointer`), which the caller guarantees writable and free of references, `from` included.
    unsafe { move_bytes(from.as_ptr(), to, from.len()) };
    Ok(())
}

/// Copies `src` to `dst`, which may overlap.
///
/// # Safety
/// `src` describes readable and `dst` writable memory that no reference of this process covers.
///
/// # Errors
/// Unequal lengths, or the CPU must not touch one of the spaces.
#[inline]
pub unsafe fn copy(dst: &Region, src: &Region) -> Result<(), DeviceError> {
    if dst.len() != src.len() {
        return Err(DeviceError::LengthMismatch { src_len: src.len(), dst_len: dst.len() });
    }
    let len = usize::try_from(src.len()).map_err(|_| OutOfRange {
        offset: 0,
        len: src.len(),
        region_len: src.len(),
        space: src.space(),
    })?;
    let from = pointer(src, 0, len)?;
    let to = pointer(dst, 0, len)?;
    // SAFETY: both pointers are valid for `len` bytes by the caller's guarantee and the checks
    // above.
    unsafe { move_bytes(from, to, len) };
    Ok(())
}

/// Asks the processor for the cache lines of a region that will soon be written; only a hint, which other threads may
/// cost a miss. Nothing where the CPU must not touch the space.
#[inline]
pub fn prefetch_to_write(region: &Region) {
    #[cfg(target_arch = "x86_64")]
    prefetch_lines(region, |line| {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: prefetching accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(line) };
    });
    #[cfg(not(target_arch = "x86_64"))]
    let _ = region;
}

/// As [`prefetch_to_write`], of a region that will soon be read.
#[inline]
pub fn prefetch_to_read(region: &Region) {
    #[cfg(target_arch = "x86_64")]
    prefetch_lines(region, |line| {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    });
    #[cfg(not(target_arch = "x86_64"))]
    let _ = region;
}

/// Calls `prefetch` for an address in each line of a region that the CPU may touch.
#[cfg(target_arch = "x86_64")]
#[inline(always)] // a loop of one instruction
fn prefetch_lines(region: &Region, prefetch: impl Fn(*const i8)) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    let Some(start) = region.as_ptr() else { return };
    let len = usize::try_from(region.len()).unwrap_or(0);
    // From the start of the first line: a region need not begin one.
    let before = start.addr() % LINE;
    for at in (0..before + len).step_by(LINE) {
        prefetch(start.wrapping_sub(before).wrapping_add(at).cast_const().cast());
    }
}

/// Sets every byte of `region` to `value`.
///
/// # Safety
/// `region` describes writable memory that no reference of this process covers.
///
/// # Errors
/// The CPU must not touch the space.
pub unsafe fn fill(region: &Region, value: u8) -> Result<(), DeviceError> {
    let len = usize::try_from(region.len()).map_err(|_| OutOfRange {
        offset: 0,
        len: region.len(),
        region_len: region.len(),
        space: region.space(),
    })?;
    let to = pointer(region, 0, len)?;
    // SAFETY: `to` is valid for `len` writes by the caller's guarantee and the check above.
    unsafe { std::ptr::write_bytes(to, value, len) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;

    #[test]
    fn bytes_go_in_and_come_out() {
        let mut memory = [0u8; 8];
        let region = Region::of_mut(&mut memory);
        let mut out = [0u8; 3];
        // SAFETY: `region` describes `memory`, which nothing else touches meanwhile.
        unsafe { write(&region, 2, &[7, 8, 9]) }.unwrap();
        // SAFETY: as above.
        unsafe { read(&region, 2, &mut out) }.unwrap();
        assert_eq!(out, [7, 8, 9]);
        // SAFETY: as above; refused before anything is touched.
        assert!(unsafe { write(&region, 7, &[1, 2]) }.is_err());
    }

    /// Of lengths about those of pieces, apart and overlapping.
    #[test]
    fn long_copies_are_whole_and_touch_nothing_beside() {
        for len in [2047, 2048, 2049, 10_000, 1 << 20, (1 << 20) + 1] {
            for (from, to) in [(0, len), (len + 3, 1), (0, 5), (5, 0)] {
                let mut memory: Vec<u8> = (0..=250).cycle().take(2 * len + 8).collect();
                let mut expected = memory.clone();
                expected.copy_within(from..from + len, to);
                let region = Region::of_mut(&mut memory);
                let part = |at: usize| region.sub(at as u64, len as u64).unwrap();
                // SAFETY: `region` describes `memory`, which nothing else touches meanwhile.
                unsafe { copy(&part(to), &part(from)) }.unwrap();
                assert!(memory == expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn device_memory_is_refused() {
        let region = Region::new(Space::Cuda { device: 0 }, 64, 0, 8);
        // SAFETY: refused before anything is touched.
        let error = unsafe { fill(&region, 0) }.unwrap_err();
        assert!(matches!(error, DeviceError::WrongSpace { space: Space::Cuda { device: 0 }, .. }));
    }
}
