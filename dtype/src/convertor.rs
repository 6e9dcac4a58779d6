//! The convertor: a cursor over the packed bytes of `count` instances of a layout.
//!
//! Its whole state is a packed position. Every call finds its place from there, in time logarithmic in the
//! number of blocks, so positioning is free, fragments may be handled in any order, and nothing is
//! allocated, ever. Between the ends of a call's range the program's loops run whole.
//!
//! Read first: `program/walk.rs` (how places are found) and `copy.rs` (how bytes move). Units: bytes.

mod collect;

use crate::copy::{Copier, Gather, Method, STREAM_MIN, Scatter, keep, past_trial, sample};
use crate::layout::Layout;
use crate::pages::Pages;
use crate::program::{Axis, Flow, Op, OpId, Sink};
use crate::run::{Run, in_memory};
use collect::Collector;
use std::fmt;

/// Two programs' lists are compared if there are this many bytes to move for each entry: then that costs nothing beside
/// the copy, and long runs are moved in the order and manner of one layout.
const BYTES_AN_ENTRY: u64 = 512;

/// Packs, unpacks and lists runs of `count` instances of a layout, from any packed byte on.
///
/// A clone is an independent cursor at the same position.
///
/// ```
/// use gapless_dtype::{Convertor, Datatype, Primitive};
///
/// // The second column of a 2 × 3 matrix of bytes.
/// let column = Datatype::vector(2, 1, 3, &Datatype::from(Primitive::Byte))?;
/// let mut convertor = Convertor::new(&column.commit()?, 1)?;
/// let mut packed = [0; 2];
/// assert_eq!(convertor.pack(b"abcdef", 1, &mut packed)?, 2);
/// assert_eq!(&packed, b"be");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Convertor {
    layout: Layout,
    /// Where the instances lie, if that is not at one step.
    pages: Option<Pages>,
    top: Top,
    count: u64,
    position: u64,
    size: u64,
    bounds: Option<(i64, i64)>,
}

/// The instances as one op, in the form that walks fastest.
#[derive(Clone, Copy, Debug)]
enum Top {
    Empty,
    /// One run, however many instances.
    Run {
        disp: i64,
    },
    /// One instance.
    Once {
        disp: i64,
        op: OpId,
    },
    /// The instances, or a loop that they continue.
    Loop {
        disp: i64,
        axis: Axis,
        body: OpId,
    },
    /// An instance at the place of each page.
    Pages {
        disp: i64,
        page: OpId,
    },
}

/// Why a convertor could not be made, positioned, or used on a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertorError {
    /// The instances' packed size or their bounds do not fit 63 bits.
    Overflow {
        /// Instances asked for.
        count: u64,
        /// Packed bytes of one.
        size: u64,
        /// Bytes from one to the next.
        extent: i64,
    },
    /// The position lies behind the last packed byte.
    Position {
        /// The position asked for.
        position: u64,
        /// Packed bytes of all instances.
        size: u64,
    },
    /// The instances reach out of the slice.
    OutOfBounds {
        /// Lowest byte touched, relative to the origin.
        lo: i64,
        /// One past the highest byte touched, relative to the origin.
        hi: i64,
        /// Where displacement 0 is in the slice.
        origin: usize,
        /// Bytes in the slice.
        len: usize,
    },
}

impl fmt::Display for ConvertorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { count, size, extent } => write!(
                f,
                "{count} instances of {size} bytes, {extent} bytes apart, overflow 63 bits"
            ),
            Self::Position { position, size } => {
                write!(f, "cannot position at packed byte {position} of {size}")
            }
            Self::OutOfBounds { lo, hi, origin, len } => write!(
                f,
                "the instances touch bytes {lo}..{hi} from the origin, \
                 which is at {origin} in a slice of {len} bytes"
            ),
        }
    }
}

impl std::error::Error for ConvertorError {}

impl Convertor {
    /// A cursor at the first packed byte of `count` instances, `extent` bytes apart.
    ///
    /// # Errors
    ///
    /// [`ConvertorError::Overflow`] where the instances' packed size or true bounds do not fit 63 bits.
    pub fn new(layout: &Layout, count: u64) -> Result<Convertor, ConvertorError> {
        let (size, extent) = (layout.size(), layout.extent());
        let overflow = ConvertorError::Overflow { count, size, extent };
        let mut convertor = Convertor {
            layout: layout.clone(),
            pages: None,
            top: Top::Empty,
            count,
            position: 0,
            size: 0,
            bounds: None,
        };
        let program = layout.committed();
        let (Some(root), Some((lo, hi))) = (program.root(), program.bounds()) else {
            return Ok(convertor);
        };
        if count == 0 {
            return Ok(convertor);
        }
        let total = i64::try_from(u128::from(size) * u128::from(count)).map_err(|_| overflow)?;
        // count ≤ size × count < 2^63, so this is below 2^126.
        let far = i128::from(count - 1) * i128::from(extent);
        let narrow = |bound: i128| i64::try_from(bound).map_err(|_| overflow);
        let lo = narrow(i128::from(lo) + far.min(0))?;
        let hi = narrow(i128::from(hi) + far.max(0))?;
        convertor.size = total.cast_unsigned();
        convertor.bounds = Some((lo, hi));
        let disp = root.disp;
        let instances = Top::Loop { disp, axis: Axis { count, stride: extent }, body: root.op };
        convertor.top = match *program.op(root.op) {
            Op::Run { len } if count == 1 || len.cast_signed() == extent => Top::Run { disp },
            _ if count == 1 => Top::Once { disp, op: root.op },
            Op::Loop { count: inner, stride, body }
                if i128::from(inner) * i128::from(stride) == i128::from(extent) =>
            {
                // The product is at most the packed size.
                Top::Loop { disp, axis: Axis { count: inner * count, stride }, body }
            }
            _ => instances,
        };
        Ok(convertor)
    }

    /// A cursor at the first packed byte of pages.
    #[must_use]
    pub fn of_pages(pages: &Pages) -> Convertor {
        let (layout, size) = (pages.page(), pages.packed_size());
        let top = match layout.committed().root().filter(|_| size > 0) {
            Some(root) => Top::Pages { disp: root.disp, page: root.op },
            None => Top::Empty,
        };
        Convertor {
            layout: layout.clone(),
            pages: Some(pages.clone()),
            top,
            count: pages.len(),
            position: 0,
            size,
            bounds: pages.bounds(),
        }
    }

    /// The layout, of pages that of a page.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Instances, or pages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Packed bytes of all instances.
    #[must_use]
    pub fn packed_size(&self) -> u64 {
        self.size
    }

    /// Packed bytes before the cursor.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Packed bytes from the cursor on.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.size - self.position
    }

    /// The bytes that all instances touch, relative to the origin, gaps included: lowest, and one past
    /// the highest. `None` if there are none.
    #[must_use]
    pub fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds
    }

    /// Where the one run that the instances form begins, if they form one.
    #[must_use]
    pub fn contiguous(&self) -> Option<i64> {
        match self.top {
            Top::Run { disp } => Some(disp),
            _ => None,
        }
    }

    /// Moves the cursor to a packed byte; the end is a legal position.
    ///
    /// # Errors
    ///
    /// [`ConvertorError::Position`] behind the end; the cursor stays.
    pub fn seek(&mut self, packed_byte: u64) -> Result<(), ConvertorError> {
        if packed_byte > self.size {
            return Err(ConvertorError::Position { position: packed_byte, size: self.size });
        }
        self.position = packed_byte;
        Ok(())
    }

    /// Packs from the cursor on into `dst` until it is full or all is packed; returns how many bytes.
    /// `origin` is the index in `src` of displacement 0.
    ///
    /// # Errors
    ///
    /// [`ConvertorError::OutOfBounds`] where `src` does not hold all instances; nothing has happened.
    pub fn pack(
        &mut self,
        src: &[u8],
        origin: usize,
        dst: &mut [u8],
    ) -> Result<usize, ConvertorError> {
        self.pack_in(Method::BEST, src, origin, dst)
    }

    /// As [`pack`](Self::pack), by a certain method.
    pub(crate) fn pack_in(
        &mut self,
        method: Method,
        src: &[u8],
        origin: usize,
        dst: &mut [u8],
    ) -> Result<usize, ConvertorError> {
        self.check(origin, src.len())?;
        let len = self.limit(dst.len());
        let user = src.as_ptr().wrapping_add(origin);
        // SAFETY: every run lies within `bounds`, which `check` found inside `src`; `dst` holds `len`
        // bytes, and a shared and an exclusive slice do not overlap.
        unsafe { self.pack_by(method, user, dst.as_mut_ptr(), len as u64) };
        Ok(len)
    }

    /// Unpacks `src`, the packed bytes from the cursor on, until it or the layout ends; returns how many
    /// bytes. `origin` is the index in `dst` of displacement 0. Gaps stay untouched.
    ///
    /// # Errors
    ///
    /// [`ConvertorError::OutOfBounds`] where `dst` does not hold all instances; nothing has happened.
    pub fn unpack(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        origin: usize,
    ) -> Result<usize, ConvertorError> {
        self.unpack_in(Method::BEST, src, dst, origin)
    }

    /// As [`unpack`](Self::unpack), by a certain method.
    pub(crate) fn unpack_in(
        &mut self,
        method: Method,
        src: &[u8],
        dst: &mut [u8],
        origin: usize,
    ) -> Result<usize, ConvertorError> {
        self.check(origin, dst.len())?;
        let len = self.limit(src.len());
        let user = dst.as_mut_ptr().wrapping_add(origin);
        // SAFETY: every run lies within `bounds`, which `check` found inside `dst`; `src` holds `len`
        // bytes, and a shared and an exclusive slice do not overlap.
        unsafe { self.unpack_by(method, src.as_ptr(), user, len as u64) };
        Ok(len)
    }

    /// Writes the runs from the cursor on to `runs`, at most `max_bytes` bytes of them, and moves behind
    /// them. Returns how many runs and how many bytes. Adjacent runs come merged: a run is cut only where
    /// this call or the one before stopped at `max_bytes`.
    pub fn iov(&mut self, runs: &mut [Run], max_bytes: u64) -> (usize, u64) {
        let to = self.position + max_bytes.min(self.remaining());
        let mut collector = Collector::new(runs);
        // The collector stops the walk when it is full, and has counted what it took.
        let _ = self.walk(to, &mut collector);
        let (used, bytes) = collector.taken();
        self.position += bytes;
        (used, bytes)
    }

    /// Packs `len` bytes, or as many as are left, from the cursor on; returns how many.
    ///
    /// # Safety
    ///
    /// - Every byte of the runs packed, at `origin` plus its displacement, may be read through `origin`
    ///   (of absolute addresses: a null pointer with exposed provenance). [`bounds`](Self::bounds) spans
    ///   them; gaps need not be readable.
    /// - `dst` may be written for `len` bytes, none of which is among those.
    /// - Another process may write the source at the same time; the packed bytes are then any mixture of
    ///   old and new. Other threads of this process must not.
    #[inline]
    pub unsafe fn pack_raw(&mut self, origin: *const u8, dst: *mut u8, len: u64) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.pack_by(Method::BEST, origin, dst, len) }
    }

    /// As [`pack_raw`](Self::pack_raw), by a certain method.
    ///
    /// # Safety
    ///
    /// As [`pack_raw`](Self::pack_raw).
    pub(crate) unsafe fn pack_by(
        &mut self,
        method: Method,
        origin: *const u8,
        dst: *mut u8,
        len: u64,
    ) -> u64 {
        let len = len.min(self.remaining());
        let to = self.position + len;
        let place = |i| dst.cast_const().wrapping_add(in_memory(sample(i, len)));
        if method.may_stream(len) && (len < STREAM_MIN || method.streams(place)) {
            // SAFETY: the caller's promise about the runs of the next `len` bytes; nothing is written
            // through a gatherer's user pointer.
            let mut gather = unsafe { Gather::new(method, len, origin.cast_mut(), dst) };
            let _ = self.walk(to, &mut gather);
            gather.finish();
        } else {
            // SAFETY: as above.
            let mut copier = unsafe { Copier::<true>::new(method.level(), origin.cast_mut(), dst) };
            let _ = self.walk(to, &mut copier);
        }
        self.position = to;
        len
    }

    /// Unpacks `len` bytes, or as many as are left, from the cursor on; returns how many.
    ///
    /// # Safety
    ///
    /// - Every byte of the runs unpacked, at `origin` plus its displacement, may be written through
    ///   `origin`; gaps are not touched.
    /// - `src` may be read for `len` bytes, none of which is among those.
    /// - Another process may write the source, or read the destination, at the same time; other threads
    ///   of this process must not.
    #[inline]
    pub unsafe fn unpack_raw(&mut self, src: *const u8, origin: *mut u8, len: u64) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.unpack_by(Method::BEST, src, origin, len) }
    }

    /// As [`unpack_raw`](Self::unpack_raw), by a certain method.
    ///
    /// # Safety
    ///
    /// As [`unpack_raw`](Self::unpack_raw).
    pub(crate) unsafe fn unpack_by(
        &mut self,
        method: Method,
        src: *const u8,
        origin: *mut u8,
        len: u64,
    ) -> u64 {
        let len = len.min(self.remaining());
        let to = self.position + len;
        if method.may_stream(len) {
            // SAFETY: the caller's promise about the runs of the next `len` bytes; nothing is written
            // through an unpacking sink's packed pointer.
            let mut scatter = unsafe { Scatter::new(method, origin, src.cast_mut()) };
            let _ = self.walk(to, &mut scatter);
            scatter.finish();
        } else if method.may_stream_part(len, self.size) {
            let known = past_trial(origin, self.position);
            // SAFETY: as above.
            let mut scatter = unsafe { Scatter::part(method, known, origin, src.cast_mut()) };
            let _ = self.walk(to, &mut scatter);
            if let (None, Some(cold)) = (known, scatter.finish()) {
                keep(origin, self.position, cold);
            }
        } else {
            // SAFETY: as above.
            let mut copier =
                unsafe { Copier::<false>::new(method.level(), origin, src.cast_mut()) };
            let _ = self.walk(to, &mut copier);
        }
        self.position = to;
        len
    }

    /// Moves the cursor over bytes that are known to be left.
    pub(crate) fn advance(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.remaining());
        self.position += bytes;
    }

    /// Whether the next packed bytes of both have the same displacements, as far as is cheap to see beside moving
    /// `bytes` bytes.
    pub(crate) fn mirrors(&self, other: &Convertor, bytes: u64) -> bool {
        let same_step = match (&self.pages, &other.pages) {
            (None, None) => self.layout.extent() == other.layout.extent(),
            (Some(one), Some(another)) => {
                return self.position == other.position && one.is(another);
            }
            _ => return false,
        };
        self.position == other.position
            && (same_step || (self.count == 1 && other.count == 1))
            && self.layout.committed().alike(other.layout.committed(), bytes / BYTES_AN_ENTRY)
    }

    /// Hands the packed bytes from the cursor to `to` to the sink; the cursor stays.
    pub(crate) fn walk<S: Sink>(&self, to: u64, sink: &mut S) -> Flow {
        let (lo, hi) = (self.position, to);
        if lo >= hi {
            return Flow::Continue(());
        }
        let program = self.layout.committed();
        match self.top {
            Top::Empty => Flow::Continue(()),
            Top::Run { disp } => sink.run(disp.wrapping_add_unsigned(lo), hi - lo),
            Top::Once { disp, op } => program.walk(op, disp, lo, hi, sink),
            Top::Loop { disp, axis, body } => program.walk_loop(body, disp, axis, lo, hi, sink),
            Top::Pages { disp, page } => self.walk_pages(disp, page, to, sink),
        }
    }

    /// As [`walk`](Self::walk), of pages whose program is `op` at `disp`.
    fn walk_pages<S: Sink>(&self, disp: i64, op: OpId, to: u64, sink: &mut S) -> Flow {
        let Some(pages) = &self.pages else { return Flow::Continue(()) };
        let (program, size) = (self.layout.committed(), self.layout.size());
        let (mut page, mut lo) = (self.position / size, self.position % size);
        let mut left = to - self.position;
        while left > 0 {
            let len = left.min(size - lo);
            program.walk(op, disp.wrapping_add(pages.place(page)), lo, lo + len, sink)?;
            (page, lo, left) = (page + 1, 0, left - len);
        }
        Flow::Continue(())
    }

    /// How many of `room` bytes are left to convert.
    fn limit(&self, room: usize) -> usize {
        usize::try_from(self.remaining()).map_or(room, |left| left.min(room))
    }

    /// Whether all instances lie inside a slice of `len` bytes whose index `origin` is displacement 0.
    pub(crate) fn check(&self, origin: usize, len: usize) -> Result<(), ConvertorError> {
        let Some((lo, hi)) = self.bounds else { return Ok(()) };
        let (first, end) = (origin as i128 + i128::from(lo), origin as i128 + i128::from(hi));
        if first < 0 || end > len as i128 {
            return Err(ConvertorError::OutOfBounds { lo, hi, origin, len });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
