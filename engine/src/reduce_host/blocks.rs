//! MPI's operations: loops over elements where they lie packed, or over blocks of them.

use super::{cursor, origin};
use crate::combine::{Fold, SOURCES_MAX};
use crate::{EngineError, Typed};
use gapless_dtype::Convertor;
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a block: one of each source of a loop and one of the result fit into the first-level cache.
const BLOCK_BYTES: usize = 4 << 10;

/// A block on the stack.
#[repr(align(64))]
struct ReduceBlock(MaybeUninit<[u8; BLOCK_BYTES]>);

impl ReduceBlock {
    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Where the range lies, if it is one contiguous span of memory.
fn place(typed: &Typed, range: &Range<u64>) -> Result<Option<*mut u8>, EngineError> {
    let Some(whole) = typed.as_contiguous() else { return Ok(None) };
    let window = typed.window(range)?;
    Ok(whole.sub(window.start, window.end - window.start)?.as_ptr())
}

/// A buffer, from some byte of its packed stream on.
enum Side {
    /// The rest is one contiguous span from here on.
    At(*mut u8),
    /// The rest is where the cursor says, from this origin.
    By(Convertor, *mut u8),
}

impl Side {
    fn of(typed: &Typed, range: &Range<u64>) -> Result<Side, EngineError> {
        Ok(match place(typed, range)? {
            Some(place) => Side::At(place),
            None => Side::By(cursor(typed, &typed.window(range)?)?, origin(typed)?),
        })
    }

    /// Where the next bytes can be read in one contiguous span: there, or in `block` after they were packed into it.
    ///
    /// # Safety
    /// The next `bytes` bytes may be read; `block` may be written for as many, and is none of them.
    unsafe fn take(&mut self, bytes: usize, block: *mut u8) -> *const u8 {
        match self {
            Side::At(place) => {
                let here = *place;
                *place = here.wrapping_add(bytes);
                here
            }
            Side::By(cursor, origin) => {
                // SAFETY: the caller's promise.
                unsafe { cursor.pack_raw(*origin, block, bytes as u64) };
                block
            }
        }
    }

    /// Where the next bytes can be written in one contiguous span: there, or `block`, which [`put`](Side::put) unpacks.
    fn room(&self, block: *mut u8) -> *mut u8 {
        match self {
            Side::At(place) => *place,
            Side::By(..) => block,
        }
    }

    /// Ends the writing of bytes to what [`room`](Side::room) answered.
    ///
    /// # Safety
    /// The next `bytes` bytes may be written, and read at `written`, which is what `room` answered.
    unsafe fn put(&mut self, bytes: usize, written: *const u8) {
        match self {
            Side::At(place) => *place = place.wrapping_add(bytes),
            Side::By(cursor, origin) => {
                // SAFETY: the caller's promise.
                unsafe { cursor.unpack_raw(written, *origin, bytes as u64) };
            }
        }
    }
}

/// Where sources and target lie, if each is one contiguous span and one loop reads all of them.
pub(super) struct Places {
    from: [*const u8; SOURCES_MAX],
    sources: usize,
    to: *mut u8,
}

impl Places {
    /// `None` if they do not lie so, or not in memory that the CPU may touch.
    ///
    /// # Errors
    /// A range that is none of a buffer's.
    #[inline]
    pub(super) fn of(
        srcs: &[Typed],
        dst: &Typed,
        range: &Range<u64>,
    ) -> Result<Option<Places>, EngineError> {
        let mut from = [std::ptr::null(); SOURCES_MAX];
        if srcs.len() > from.len() {
            return Ok(None);
        }
        for (from, src) in from.iter_mut().zip(srcs) {
            let Some(at) = place(src, range)? else { return Ok(None) };
            *from = at.cast_const();
        }
        let to = place(dst, range)?;
        Ok(to.map(|to| Places { from, sources: srcs.len(), to }))
    }

    /// Combines `count` elements.
    ///
    /// # Safety
    /// As [`Fold`], for the buffers that this was made of.
    pub(super) unsafe fn fold(&self, fold: Fold, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { fold(&self.from[..self.sources], self.to, count) };
    }
}

/// Combines elements of `element_bytes` bytes, a block of them at a time.
///
/// # Safety
/// As for [`Reducer::reduce_into`](crate::Reducer::reduce_into), with at least two sources; all buffers are in
/// memory that the CPU may touch and have a window of the range, which is whole elements; the loop is for this
/// processor.
#[inline(never)]
pub(super) unsafe fn reduce(
    fold: Fold,
    element_bytes: u64,
    srcs: &[Typed],
    dst: &Typed,
    range: &Range<u64>,
) -> Result<(), EngineError> {
    let mut sides = SmallVec::<[Side; SOURCES_MAX]>::new();
    for src in srcs {
        sides.push(Side::of(src, range)?);
    }
    let mut target = Side::of(dst, range)?;
    let mut packed = [const { ReduceBlock(MaybeUninit::uninit()) }; SOURCES_MAX];
    let mut result = ReduceBlock(MaybeUninit::uninit());
    // No element is larger than a block.
    let element = usize::try_from(element_bytes).unwrap_or(BLOCK_BYTES);
    let block = BLOCK_BYTES / element * element;
    let mut left = range.end - range.start;
    while left > 0 {
        let bytes = usize::try_from(left).map_or(block, |left| left.min(block));
        let room = target.room(result.at());
        let mut combined = None;
        let mut rest = &mut sides[..];
        while !rest.is_empty() {
            // What was combined so far is the first source of the next loop.
            let mut from = [std::ptr::null(); SOURCES_MAX];
            let carried = usize::from(combined.is_some());
            from[0] = combined.unwrap_or(std::ptr::null());
            let (now, later) = rest.split_at_mut(rest.len().min(SOURCES_MAX - carried));
            for ((from, side), block) in from[carried..].iter_mut().zip(&mut *now).zip(&mut packed)
            {
                // SAFETY: the caller's promise; `bytes` is at most the rest of the range and a block.
                *from = unsafe { side.take(bytes, block.at()) };
            }
            // A target that is a later source must not change before that is read.
            let to = if later.is_empty() { room } else { result.at() };
            // SAFETY: sources were taken for `bytes` bytes, which are whole elements. The target is a block, which
            // is no source but what was carried, or the buffer, whose overlapping sources lie exactly there.
            unsafe { fold(&from[..carried + now.len()], to, bytes / element) };
            combined = Some(to.cast_const());
            rest = later;
        }
        // SAFETY: the result of these `bytes` bytes was written to `room`; the caller's promise.
        unsafe { target.put(bytes, room) };
        left -= bytes as u64;
    }
    Ok(())
}
