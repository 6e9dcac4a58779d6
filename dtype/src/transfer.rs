//! Layout to layout: the packed bytes of one cursor go to the places of another. Where a side is contiguous this is a
//! pack or an unpack; where both have the same layout, the program is walked once for both. Two different layouts of
//! long runs are copied run by run: both sides' runs are listed a batch at a time, and the shorter of the two at hand is
//! copied. Where runs are short, that costs more than a second copy: then pieces are packed into a buffer that stays in
//! the cache, and unpacked from there, each by the loops that suit its layout.

use crate::convertor::{Convertor, ConvertorError};
use crate::copy::{Method, Mirror, copy, shifted};
use crate::run::{Run, in_memory};
use std::mem::MaybeUninit;

/// Runs listed at a time, on the stack: enough to spread the cost of finding one's place, few enough to
/// stay in the first-level cache.
const BATCH: usize = 128;

/// Runs of fewer bytes than this, on average, are short.
const SHORT: u64 = 512;
/// Bytes that are packed at a time: a few rows of a matrix, so that its columns are unpacked by whole cache lines, and
/// short enough for the second-level cache.
const PIECE: usize = 256 << 10;
/// A message up to this length needs no allocation.
const FEW: usize = 4 << 10;

/// Copies at most `max_bytes` packed bytes from where `src` stands to where `dst` stands, over slices;
/// both cursors advance by what is returned, which is less only where a side ends. `from_origin` and
/// `to_origin` are the indices of displacement 0.
///
/// # Errors
///
/// [`ConvertorError::OutOfBounds`] where a slice does not hold all instances; nothing has happened.
pub fn transfer(
    src: &mut Convertor,
    from: &[u8],
    from_origin: usize,
    dst: &mut Convertor,
    to: &mut [u8],
    to_origin: usize,
    max_bytes: u64,
) -> Result<u64, ConvertorError> {
    transfer_in(Method::BEST, (src, from, from_origin), (dst, to, to_origin), max_bytes)
}

/// As [`transfer`], by a certain method: from a cursor over a slice and an origin in it to another.
pub(crate) fn transfer_in(
    method: Method,
    (src, from, from_origin): (&mut Convertor, &[u8], usize),
    (dst, to, to_origin): (&mut Convertor, &mut [u8], usize),
    max_bytes: u64,
) -> Result<u64, ConvertorError> {
    src.check(from_origin, from.len())?;
    dst.check(to_origin, to.len())?;
    let from = from.as_ptr().wrapping_add(from_origin);
    let to = to.as_mut_ptr().wrapping_add(to_origin);
    // SAFETY: all runs of both sides lie within their bounds, which were found inside the slices, and a
    // shared and an exclusive slice do not overlap.
    Ok(unsafe { transfer_by(method, src, from, dst, to, max_bytes) })
}

/// As [`transfer`], over memory that is only known by its address.
///
/// # Safety
///
/// - Every byte of the source's runs, at `src_origin` plus its displacement, may be read through
///   `src_origin`, and every byte of the destination's runs may be written through `dst_origin`; gaps on
///   either side are not touched.
/// - No run of the source overlaps one of the destination.
/// - Other processes may access both at the same time; other threads of this process must not.
pub unsafe fn transfer_raw(
    src: &mut Convertor,
    src_origin: *const u8,
    dst: &mut Convertor,
    dst_origin: *mut u8,
    max_bytes: u64,
) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { transfer_by(Method::BEST, src, src_origin, dst, dst_origin, max_bytes) }
}

/// As [`transfer_raw`], by a certain method.
///
/// # Safety
///
/// As [`transfer_raw`].
unsafe fn transfer_by(
    method: Method,
    src: &mut Convertor,
    src_origin: *const u8,
    dst: &mut Convertor,
    dst_origin: *mut u8,
    max_bytes: u64,
) -> u64 {
    let bytes = max_bytes.min(src.remaining()).min(dst.remaining());
    if let Some(disp) = dst.contiguous() {
        let to = shifted(dst_origin, disp.wrapping_add_unsigned(dst.position()));
        // SAFETY: the destination's next `bytes` bytes are one run at `to`; the caller's promise.
        let moved = unsafe { src.pack_by(method, src_origin, to, bytes) };
        dst.advance(moved);
        return moved;
    }
    if let Some(disp) = src.contiguous() {
        let from = shifted(src_origin.cast_mut(), disp.wrapping_add_unsigned(src.position()));
        // SAFETY: the source's next `bytes` bytes are one run at `from`; the caller's promise.
        let moved = unsafe { dst.unpack_by(method, from, dst_origin, bytes) };
        src.advance(moved);
        return moved;
    }
    if src.mirrors(dst, bytes) {
        // SAFETY: both sides' next `bytes` bytes are runs at the same displacements; the caller's promise.
        let mut mirror = unsafe { Mirror::new(method, bytes, src_origin, dst_origin) };
        // The sink never stops a walk.
        let _ = src.walk(src.position() + bytes, &mut mirror);
        mirror.finish();
        src.advance(bytes);
        dst.advance(bytes);
        return bytes;
    }
    if runs_are_short(src, dst) {
        // SAFETY: the caller's promise.
        unsafe { through_cache(method, src, src_origin, dst, dst_origin, bytes) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { zip(src, src_origin, dst, dst_origin, bytes) };
    }
    bytes
}

/// Whether the runs of either side are so short, on average, that a second copy through the cache is cheaper than to
/// look at each of them.
fn runs_are_short(src: &Convertor, dst: &Convertor) -> bool {
    let short = |side: &Convertor| {
        let layout = side.layout();
        layout.size() / layout.blocks().max(1) < SHORT
    };
    short(src) || short(dst)
}

/// Packs pieces into a buffer and unpacks them from there; both sides have `bytes` bytes left.
///
/// # Safety
///
/// As [`transfer_raw`].
unsafe fn through_cache(
    method: Method,
    src: &mut Convertor,
    src_origin: *const u8,
    dst: &mut Convertor,
    dst_origin: *mut u8,
    bytes: u64,
) {
    let mut few = [MaybeUninit::<u8>::uninit(); FEW];
    let mut many: Vec<MaybeUninit<u8>> = Vec::new();
    let (piece, room) = if bytes <= FEW as u64 {
        (few.as_mut_ptr(), FEW)
    } else {
        let room = PIECE.min(in_memory(bytes));
        if many.try_reserve_exact(room).is_err() {
            // SAFETY: the caller's promise.
            return unsafe { zip(src, src_origin, dst, dst_origin, bytes) };
        }
        (many.as_mut_ptr(), room)
    };
    let mut left = bytes;
    while left > 0 {
        let len = left.min(room as u64);
        // SAFETY: the source has `len` bytes left, the piece room for them, and it is this call's own; the caller's
        // promise about the rest.
        unsafe { src.pack_by(method, src_origin, piece.cast(), len) };
        // SAFETY: the destination has `len` bytes left, and as many were just written to the piece; the caller's
        // promise about the rest.
        unsafe { dst.unpack_by(method, piece.cast_const().cast(), dst_origin, len) };
        left -= len;
    }
}

/// Copies run by run; both sides have `bytes` bytes left.
///
/// # Safety
///
/// As [`transfer_raw`].
unsafe fn zip(
    src: &mut Convertor,
    src_origin: *const u8,
    dst: &mut Convertor,
    dst_origin: *mut u8,
    bytes: u64,
) {
    let mut from = Batch::new(bytes);
    let mut to = Batch::new(bytes);
    let mut left = bytes;
    while left > 0 {
        from.refill(src);
        to.refill(dst);
        while from.next < from.used && to.next < to.used {
            let (a, b) = (&mut from.runs[from.next], &mut to.runs[to.next]);
            let len = a.len.min(b.len);
            let source = shifted(src_origin.cast_mut(), a.displacement);
            let target = shifted(dst_origin, b.displacement);
            // SAFETY: `len` bytes of a run on each side; the caller's promise.
            unsafe { copy(source, target, in_memory(len)) };
            left -= len;
            from.next += usize::from(consume(a, len));
            to.next += usize::from(consume(b, len));
        }
    }
}

/// Takes `len` bytes off the front of a run; whether that was all of it.
fn consume(run: &mut Run, len: u64) -> bool {
    run.displacement = run.displacement.wrapping_add_unsigned(len);
    run.len -= len;
    run.len == 0
}

/// Runs of one side that are yet to be copied.
struct Batch {
    runs: [Run; BATCH],
    next: usize,
    used: usize,
    /// Bytes of the transfer that are not listed yet.
    unlisted: u64,
}

impl Batch {
    fn new(bytes: u64) -> Batch {
        Batch { runs: [Run::default(); BATCH], next: 0, used: 0, unlisted: bytes }
    }

    /// Lists the next runs when all listed ones are consumed.
    fn refill(&mut self, side: &mut Convertor) {
        if self.next == self.used {
            let (used, bytes) = side.iov(&mut self.runs, self.unlisted);
            self.unlisted -= bytes;
            (self.next, self.used) = (0, used);
        }
    }
}
