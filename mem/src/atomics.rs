//! Memory that others read and write at the same time, by any number of bytes: every access is atomic, so that nothing
//! another thread or process does there is a race. [`Words`](crate::Words) is the same for those who need no more than
//! words.

mod runs;
#[cfg(test)]
mod tests;
mod wide;

pub use runs::{Number, Runs, Sums};

use crate::{DeviceError, Lease, Region};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// From so many bytes on, instructions that move 32 bytes are worth it.
const LONG: usize = 128;

/// Memory, kept alive by its lease, that is read and written by atomic accesses alone.
///
/// Bytes are copied in and out, in words where they lie at multiples of a word: a number that lies at a multiple of its
/// length, of 1, 2, 4 or 8 bytes, is read and written as a whole. On x86-64, contiguous spans of 128 bytes and more are
/// moved by instructions of 32 bytes. They keep numbers whole, too, which is known but not promised in writing
/// (`atomics/wide.rs`). Everything else may be seen half written. Copies are not ordered among each other; fences, locks
/// and messages order them.
#[derive(Clone, Debug)]
pub struct Atomics {
    lease: Lease,
    /// The address of its first byte.
    start: usize,
    bytes: u64,
}

/// An element that is read, changed and written by a loop of compare-and-swap.
macro_rules! updated {
    ($atomic:ty, $int:ty, $at:expr, $change:expr) => {{
        // SAFETY: `new`'s caller guarantees memory that is valid for reads and writes while the lease lives, which the
        // caller of this holds, and that is touched by atomics or devices only; `place` has found the element inside and aligned.
        let place = unsafe { <$atomic>::from_ptr($at.cast::<$int>()) };
        let mut old = place.load(Ordering::Acquire);
        loop {
            let Some(new) = $change(u64::from(old)) else { return Ok(u64::from(old)) };
            #[allow(clippy::cast_possible_truncation, trivial_numeric_casts, reason = "an element has so many bits")]
            let new = new as $int;
            match place.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(u64::from(old)),
                Err(found) => old = found,
            }
        }
    }};
}

/// A copy of one element, if the bytes are one.
macro_rules! one {
    ($atomic:ty, $int:ty, $at:expr) => {
        // SAFETY: as in `updated`; the caller has looked at its alignment.
        unsafe { <$atomic>::from_ptr($at.cast::<$int>()) }
    };
}

impl Atomics {
    /// The memory of `lease`.
    ///
    /// # Safety
    /// While a clone of the lease lives, its region describes initialised memory that is valid for reads and writes, and
    /// that this process touches through atomic accesses only, by this value, its clones, or others like it, or by
    /// devices; except for a time in which nobody accesses it through any of them.
    ///
    /// # Errors
    /// The CPU must not touch the space.
    pub unsafe fn new(lease: Lease) -> Result<Atomics, DeviceError> {
        let region = lease.region();
        match region.as_ptr() {
            Some(start) => {
                Ok(Atomics { start: start.expose_provenance(), bytes: region.len(), lease })
            }
            None => Err(wrong_space(&region)),
        }
    }

    /// Bytes of it.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, and what keeps it.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Where the byte at `offset` lies, modulo `alignment`, a power of two: 0 if an element may lie there.
    #[must_use]
    #[inline]
    pub fn misalignment(&self, offset: u64, alignment: u64) -> u64 {
        (self.start as u64).wrapping_add(offset) & (alignment - 1)
    }

    /// The address of `len` bytes from `offset` on.
    #[inline]
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8, DeviceError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.bytes => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(std::ptr::with_exposed_provenance_mut(self.start.wrapping_add(at)))
            }
            _ => Err(self.outside(offset, len)),
        }
    }

    #[cold]
    fn outside(&self, offset: u64, len: usize) -> DeviceError {
        match self.lease.region().sub(offset, len as u64) {
            Err(error) => error.into(),
            Ok(region) => wrong_space(&region),
        }
    }

    /// Copies `into.len()` bytes out, from `offset` on.
    ///
    /// # Errors
    /// They do not lie inside.
    #[inline]
    pub fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.place(offset, into.len())?;
        if into.len() == 8 && from.cast::<u64>().is_aligned() {
            into.copy_from_slice(&one!(AtomicU64, u64, from).load(Ordering::Relaxed).to_ne_bytes());
            return Ok(());
        }
        copy_out(from, into);
        Ok(())
    }

    /// Copies `from` in, from `offset` on.
    ///
    /// # Errors
    /// The bytes do not lie inside; nothing is written.
    #[inline]
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let to = self.place(offset, from.len())?;
        if let Ok(word) = <[u8; 8]>::try_from(from)
            && to.cast::<u64>().is_aligned()
        {
            one!(AtomicU64, u64, to).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            return Ok(());
        }
        copy_in(to, from);
        Ok(())
    }

    /// Replaces the element of `width` bytes (1, 2, 4 or 8) at `offset` by what `change` makes of it, atomically: `change`
    /// may be called several times. If it gives `None`, the element stays. Gives what was there; in the lower bytes, in
    /// native order. Ordered: what was written before is seen by whoever finds what this left.
    ///
    /// # Errors
    /// It does not lie inside, or not at a multiple of its length; no element has that width.
    #[inline]
    pub fn update(
        &self,
        offset: u64,
        width: usize,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, DeviceError> {
        let at = self.place(offset, width)?;
        if self.misalignment(offset, (width as u64).max(1)) != 0 {
            return Err(DeviceError::Unsupported { what: "an element that is not aligned" });
        }
        match width {
            1 => updated!(AtomicU8, u8, at, change),
            2 => updated!(AtomicU16, u16, at, change),
            4 => updated!(AtomicU32, u32, at, change),
            8 => updated!(AtomicU64, u64, at, change),
            _ => Err(DeviceError::Unsupported { what: "an atomic element of such a width" }),
        }
    }
}

fn wrong_space(region: &Region) -> DeviceError {
    DeviceError::WrongSpace { device: "the CPU".to_owned(), space: region.space() }
}

/// Copies out, from a place that [`Atomics::place`] has found.
#[inline]
fn copy_out(from: *mut u8, into: &mut [u8]) {
    if into.len() >= LONG && wide::is_there() {
        return long_out(from, into);
    }
    let (head, words) = split(from, into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(8 * words);
    narrow_loads(from, first);
    let mut at = from.wrapping_add(head);
    for word in middle.chunks_exact_mut(8) {
        word.copy_from_slice(&one!(AtomicU64, u64, at).load(Ordering::Relaxed).to_ne_bytes());
        at = at.wrapping_add(8);
    }
    narrow_loads(at, last);
}

/// Stores that lie across lines cost more than loads that do. So the destination is aligned to 32 bytes, unless a number
/// would be read in two parts then.
fn long_out(from: *mut u8, into: &mut [u8]) {
    let to = into.as_mut_ptr();
    let whole = to.addr().abs_diff(from.addr()).is_multiple_of(8);
    let (head, count) = wide::split(if whole { to } else { from }, into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(count * wide::WIDE);
    copy_out(from, first);
    // SAFETY: the middle lies inside the memory, from a multiple of 8 bytes on, as `place` has checked; `new`'s caller vouches
    // for it. `middle` is borrowed exclusively and as long. The processor has the instructions.
    unsafe { wide::copy(from.wrapping_add(head), middle.as_mut_ptr(), count) };
    copy_out(from.wrapping_add(head + count * wide::WIDE), last);
}

/// Copies in, to a place that [`Atomics::place`] has found.
#[inline]
fn copy_in(to: *mut u8, from: &[u8]) {
    if from.len() >= LONG && wide::is_there() {
        return long_in(to, from);
    }
    let (head, words) = split(to, from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(8 * words);
    narrow_stores(to, first);
    let mut at = to.wrapping_add(head);
    for word in middle.chunks_exact(8) {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        one!(AtomicU64, u64, at).store(word, Ordering::Relaxed);
        at = at.wrapping_add(8);
    }
    narrow_stores(at, last);
}

fn long_in(to: *mut u8, from: &[u8]) {
    let (head, count) = wide::split(to, from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(count * wide::WIDE);
    copy_in(to, first);
    // SAFETY: as in `long_out`; `middle` is borrowed, and as long.
    unsafe { wide::copy(middle.as_ptr(), to.wrapping_add(head), count) };
    copy_in(to.wrapping_add(head + count * wide::WIDE), last);
}

/// Bytes before the first multiple of a word, and whole words from there on.
#[inline]
fn split(at: *mut u8, len: usize) -> (usize, usize) {
    let head = at.addr().wrapping_neg() % 8;
    let head = head.min(len);
    (head, (len - head) / 8)
}

/// Fewer than eight bytes in the largest aligned pieces that there are: numbers are read as a whole.
#[inline]
fn narrow_loads(mut at: *mut u8, mut into: &mut [u8]) {
    while !into.is_empty() {
        let width = width_at(at, into.len());
        let (now, later) = into.split_at_mut(width);
        match width {
            4 => {
                now.copy_from_slice(&one!(AtomicU32, u32, at).load(Ordering::Relaxed).to_ne_bytes())
            }
            2 => {
                now.copy_from_slice(&one!(AtomicU16, u16, at).load(Ordering::Relaxed).to_ne_bytes())
            }
            _ => now[0] = one!(AtomicU8, u8, at).load(Ordering::Relaxed),
        }
        (at, into) = (at.wrapping_add(width), later);
    }
}

/// The same for writing.
#[inline]
fn narrow_stores(mut at: *mut u8, mut from: &[u8]) {
    while !from.is_empty() {
        let width = width_at(at, from.len());
        let (now, later) = from.split_at(width);
        match *now {
            [a, b, c, d] => {
                let value = u32::from_ne_bytes([a, b, c, d]);
                one!(AtomicU32, u32, at).store(value, Ordering::Relaxed);
            }
            [a, b] => {
                one!(AtomicU16, u16, at).store(u16::from_ne_bytes([a, b]), Ordering::Relaxed);
            }
            _ => one!(AtomicU8, u8, at).store(now[0], Ordering::Relaxed),
        }
        (at, from) = (at.wrapping_add(width), later);
    }
}

#[inline]
fn width_at(at: *mut u8, len: usize) -> usize {
    match at.addr() % 4 {
        0 if len >= 4 => 4,
        0 | 2 if len >= 2 => 2,
        _ => 1,
    }
}
