//! Users' operations: elements are brought into two vectors of the call's own, where the user's function combines
//! them, and the result is brought to the target. So the function sees no memory that anybody else may touch, and
//! elements lie as it wants them, whatever the buffers' layouts are.

use super::{cursor, origin};
use crate::user_op::Form;
use crate::{EngineError, Typed, UserOp, Vectors};
use gapless_dtype::{Convertor, transfer_raw};
use gapless_mem::DeviceError;
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a vector, unless an element is larger: two fit into the first-level cache.
const VECTOR_BYTES: usize = 8 << 10;

/// Sources whose cursors stay on the stack.
const SOURCES_FEW: usize = 4;

/// Most elements of a call: their number fits the `int` of an `MPI_User_function`.
const LEN_MAX: u64 = 1 << 20;

const LINE: usize = 64;

/// Memory of vectors, as aligned as users are told.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; LINE]);

/// A buffer, from some byte of its packed stream on: a cursor and the origin that it counts from.
type Side = (Convertor, *mut u8);

fn side(typed: &Typed, range: &Range<u64>) -> Result<Side, EngineError> {
    Ok((cursor(typed, &typed.window(range)?)?, origin(typed)?))
}

/// How elements lie in vectors, and how many go into one.
struct Frame<'a> {
    op: &'a UserOp,
    /// Elements of a call.
    len: u64,
    /// Bytes of a vector.
    bytes: usize,
    /// Where displacement 0 of the first element is.
    origin: usize,
}

impl Frame<'_> {
    /// Vectors for up to `elements` elements, at least one.
    fn of(op: &UserOp, elements: u64) -> Result<Frame<'_>, EngineError> {
        let element = op.element();
        let (one, step) = match op.form() {
            Form::Packed => (op.bytes(), op.bytes()),
            Form::Typed => (span(op, 1)?, element.extent().unsigned_abs()),
        };
        // Elements that interleave take far more room than their share.
        let budget =
            if one <= VECTOR_BYTES as u64 { VECTOR_BYTES as u64 } else { one.saturating_mul(2) };
        let more = (budget - one).checked_div(step).unwrap_or(0);
        let len = more.saturating_add(1).min(elements).min(LEN_MAX);
        let (bytes, origin) = match op.form() {
            Form::Packed => (len.saturating_mul(one), 0),
            Form::Typed => (span(op, len)?, before(op, len)?),
        };
        let origin = usize::try_from(origin).map_err(|_| too_large(bytes))?;
        let bytes = usize::try_from(bytes).map_err(|_| too_large(bytes))?;
        Ok(Frame { op, len, bytes, origin })
    }

    /// Brings the next `len` elements of a buffer into a vector.
    ///
    /// # Safety
    /// They may be read; the vector is one of this frame, and `len` at most the frame's.
    unsafe fn load(&self, from: &mut Side, vector: &mut [u8], len: u64) -> Result<(), EngineError> {
        let (cursor, place) = from;
        let bytes = len * self.op.bytes();
        match self.op.form() {
            // SAFETY: the caller's promise; a vector has room for `len` packed elements, and is no user's buffer.
            Form::Packed => unsafe { cursor.pack_raw(*place, vector.as_mut_ptr(), bytes) },
            Form::Typed => {
                let mut elements = Convertor::new(self.op.element(), len)?;
                let to = vector.as_mut_ptr().wrapping_add(self.origin);
                // SAFETY: the caller's promise; `len` elements lie inside a vector whose origin is at `to`.
                unsafe { transfer_raw(cursor, *place, &mut elements, to, bytes) }
            }
        };
        Ok(())
    }

    /// Brings `len` elements of a vector to the next ones of a buffer.
    ///
    /// # Safety
    /// They may be written; the vector is one of this frame, and `len` at most the frame's.
    unsafe fn store(&self, vector: &[u8], to: &mut Side, len: u64) -> Result<(), EngineError> {
        let (cursor, place) = to;
        let bytes = len * self.op.bytes();
        match self.op.form() {
            // SAFETY: the caller's promise; a vector has `len` packed elements, and is no user's buffer.
            Form::Packed => unsafe { cursor.unpack_raw(vector.as_ptr(), *place, bytes) },
            Form::Typed => {
                let mut elements = Convertor::new(self.op.element(), len)?;
                let from = vector.as_ptr().wrapping_add(self.origin);
                // SAFETY: the caller's promise; `len` elements lie inside a vector whose origin is at `from`.
                unsafe { transfer_raw(&mut elements, from, cursor, *place, bytes) }
            }
        };
        Ok(())
    }
}

/// Bytes before displacement 0 of the first of `len` elements, in whole lines.
fn before(op: &UserOp, len: u64) -> Result<u64, EngineError> {
    let bounds = Convertor::new(op.element(), len)?.bounds();
    let low = bounds.map_or(0, |(low, _)| low.min(0).unsigned_abs());
    low.checked_next_multiple_of(LINE as u64).ok_or_else(|| too_large(low))
}

/// Bytes of a vector of `len` elements, laid out as the datatype says.
fn span(op: &UserOp, len: u64) -> Result<u64, EngineError> {
    let bounds = Convertor::new(op.element(), len)?.bounds();
    let high = bounds.map_or(0, |(_, high)| high.max(0).unsigned_abs());
    let before = before(op, len)?;
    before.checked_add(high).ok_or_else(|| too_large(before))
}

fn too_large(len: u64) -> EngineError {
    let (device, reason) = ("the CPU".to_owned(), "a vector for a user's function".to_owned());
    DeviceError::OutOfMemory { device, len, reason }.into()
}

/// Memory of a vector: of the stack, or of the heap if that is too small.
struct VectorMemory {
    stack: [MaybeUninit<CacheLine>; VECTOR_BYTES / LINE],
    heap: Vec<CacheLine>,
}

impl VectorMemory {
    const fn new() -> VectorMemory {
        VectorMemory { stack: [MaybeUninit::uninit(); VECTOR_BYTES / LINE], heap: Vec::new() }
    }

    /// A vector of zeros.
    fn vector(&mut self, bytes: usize) -> Result<&mut [u8], EngineError> {
        let lines = bytes.div_ceil(LINE);
        let lines = match self.stack.get_mut(..lines) {
            Some(lines) => {
                lines.iter_mut().for_each(|line| {
                    line.write(CacheLine([0; LINE]));
                });
                let (first, count) = (lines.as_mut_ptr().cast::<CacheLine>(), lines.len());
                // SAFETY: these lines, which are borrowed from here on; all of them were just written.
                unsafe { std::slice::from_raw_parts_mut(first, count) }
            }
            None => {
                let refused = self.heap.try_reserve_exact(lines);
                refused.map_err(|_| too_large(bytes as u64))?;
                self.heap.resize(lines, CacheLine([0; LINE]));
                &mut self.heap[..]
            }
        };
        let (at, room) = (lines.as_mut_ptr().cast::<u8>(), size_of_val(lines));
        // SAFETY: lines are bytes without padding, all of them written, borrowed for as long as the result.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, room.min(bytes)) })
    }
}

/// Combines elements by the user's function.
///
/// # Safety
/// As for [`Reducer::reduce_into`](crate::Reducer::reduce_into), with at least two sources; all buffers are in
/// memory that the CPU may touch and have a window of the range, which is whole elements.
#[inline(never)]
pub(super) unsafe fn reduce(
    op: &UserOp,
    srcs: &[Typed],
    dst: &Typed,
    range: &Range<u64>,
) -> Result<(), EngineError> {
    let mut sides = SmallVec::<[Side; SOURCES_FEW]>::new();
    for src in srcs {
        sides.push(side(src, range)?);
    }
    let mut target = side(dst, range)?;
    let mut elements = (range.end - range.start) / op.bytes();
    let frame = Frame::of(op, elements)?;
    let (mut one, mut other) = (VectorMemory::new(), VectorMemory::new());
    let (mut left, mut right) = (one.vector(frame.bytes)?, other.vector(frame.bytes)?);
    let Some((first, others)) = sides.split_first_mut() else { return Ok(()) };
    while elements > 0 {
        let len = elements.min(frame.len);
        // SAFETY: the caller's promise; `len` is at most what is left of the range.
        unsafe { frame.load(first, left, len) }?;
        for source in &mut *others {
            // SAFETY: as above.
            unsafe { frame.load(source, right, len) }?;
            let count = usize::try_from(len).unwrap_or(usize::MAX);
            let vectors =
                Vectors { invec: left, inoutvec: right, origin: frame.origin, len: count };
            op.call(vectors)?;
            std::mem::swap(&mut left, &mut right);
        }
        // SAFETY: as above.
        unsafe { frame.store(left, &mut target, len) }?;
        elements -= len;
    }
    Ok(())
}
