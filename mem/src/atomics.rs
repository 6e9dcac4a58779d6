//! Memory that others read and write at the same time, by any number of bytes: every access is atomic, so that nothing
//! another thread or process does there is a race. [`Words`](crate::Words) is the same for those who need no more than
//! words.

use crate::{DeviceError, Lease, Region};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Memory, kept alive by its lease, that is read and written by atomic accesses alone.
///
/// Bytes are copied in and out, in words where they lie at multiples of a word: a number that lies at a multiple of its
/// length, of 1, 2, 4 or 8 bytes, is read and written as a whole. Everything else may be seen half written. Copies are not
/// ordered among each other; fences, locks and messages order them.
#[derive(Clone, Debug)]
pub struct Atomics {
    lease: Lease,
}

/// An element that is read, changed and written by a loop of compare-and-swap.
macro_rules! updated {
    ($atomic:ty, $int:ty, $at:expr, $change:expr) => {{
        // SAFETY: `new`'s caller guarantees memory that is valid for reads and writes while the lease lives, which the
        // caller of this holds, and that is touched by atomics only; `place` has found the element inside and aligned.
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
    /// that this process touches through atomic accesses only, by this value, its clones, or others like it; except
    /// for a time in which nobody accesses it through any of them.
    ///
    /// # Errors
    /// The CPU must not touch the space.
    pub unsafe fn new(lease: Lease) -> Result<Atomics, DeviceError> {
        let region = lease.region();
        match region.as_ptr() {
            Some(_) => Ok(Atomics { lease }),
            None => Err(wrong_space(&region)),
        }
    }

    /// Bytes of it.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.lease.region().len()
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
        self.lease.region().start().wrapping_add(offset) & (alignment - 1)
    }

    /// The address of `len` bytes from `offset` on.
    #[inline]
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8, DeviceError> {
        let region = self.lease.region().sub(offset, len as u64)?;
        region.as_ptr().ok_or_else(|| wrong_space(&region))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, HostDevice};
    use std::sync::Arc;

    fn memory(len: u64) -> Atomics {
        let region = HostDevice::new().allocate(len + 16).unwrap();
        // SAFETY: the memory is never freed.
        let lease = unsafe { Lease::new(region.sub(3, len).unwrap(), Arc::new(())) };
        // SAFETY: it is zeroed, and touched by this value alone.
        unsafe { Atomics::new(lease) }.unwrap()
    }

    #[test]
    fn bytes_go_in_and_come_out_wherever_they_lie() {
        let memory = memory(64);
        for at in 0..16 {
            for len in 0..40u8 {
                let bytes: Vec<u8> = (1..=len).collect();
                memory.store(0, &[0xEE; 64]).unwrap();
                memory.store(at, &bytes).unwrap();
                let mut all = [0; 64];
                memory.load(0, &mut all).unwrap();
                let from = usize::try_from(at).unwrap();
                let to = from + usize::from(len);
                assert_eq!(all[from..to], bytes);
                assert!(all[..from].iter().chain(&all[to..]).all(|byte| *byte == 0xEE));
                let mut part = vec![0; bytes.len()];
                memory.load(at, &mut part).unwrap();
                assert_eq!(part, bytes);
            }
        }
        assert!(memory.store(60, &[0; 5]).is_err());
        assert!(memory.load(65, &mut []).is_err());
    }

    #[test]
    fn elements_change_once() {
        let memory = memory(64);
        for (at, width) in [(5, 8), (13, 4), (17, 2), (19, 1)] {
            assert_eq!(memory.update(at, width, |old| Some(old.wrapping_sub(1))), Ok(0));
            let all = u64::MAX >> (64 - 8 * width);
            assert_eq!(memory.update(at, width, |_| None), Ok(all));
            assert_eq!(memory.update(at, width, |old| (old == 0).then_some(7)), Ok(all));
            assert_eq!(memory.update(at, width, |old| Some(old & 7)), Ok(all));
            assert_eq!(memory.update(at, width, |_| None), Ok(7));
        }
        assert!(memory.update(6, 8, Some).is_err());
        assert!(memory.update(5, 3, Some).is_err());
        assert!(memory.update(61, 4, Some).is_err());
    }

    #[test]
    fn device_memory_is_refused() {
        let region = Region::new(crate::Space::Cuda { device: 0 }, 64, 0, 8);
        // SAFETY: nobody uses the memory.
        let lease = unsafe { Lease::kept_by_caller(region) };
        // SAFETY: refused before anything is touched.
        assert!(matches!(unsafe { Atomics::new(lease) }, Err(DeviceError::WrongSpace { .. })));
    }
}
