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
    /// The address of its first byte.
    start: usize,
    bytes: u64,
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
        self.load_many(offset, from, into)
    }

    fn load_many(&self, offset: u64, from: *mut u8, into: &mut [u8]) -> Result<(), DeviceError> {
        if into.len() >= LONG && has_wide() {
            let head = from.addr().wrapping_neg() % WIDE;
            let lines = (into.len() - head) / LINE;
            let (first, rest) = into.split_at_mut(head);
            let (middle, last) = rest.split_at_mut(lines * LINE);
            self.load(offset, first)?;
            // SAFETY: the lines lie inside the memory, from a multiple of 16 bytes on, as `place` has checked; `new`'s
            // caller vouches for it. `middle` is borrowed exclusively and as long.
            unsafe { wide::load(from.wrapping_add(head), middle.as_mut_ptr(), lines) };
            return self.load(offset + (head + lines * LINE) as u64, last);
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
        self.store_many(offset, to, from)
    }

    fn store_many(&self, offset: u64, to: *mut u8, from: &[u8]) -> Result<(), DeviceError> {
        if from.len() >= LONG && has_wide() {
            let head = to.addr().wrapping_neg() % WIDE;
            let lines = (from.len() - head) / LINE;
            let (first, rest) = from.split_at(head);
            let (middle, last) = rest.split_at(lines * LINE);
            self.store(offset, first)?;
            // SAFETY: as in `load`; `middle` is borrowed, and as long.
            unsafe { wide::store(to.wrapping_add(head), middle.as_ptr(), lines) };
            return self.store(offset + (head + lines * LINE) as u64, last);
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

/// Bytes that an instruction moves as a whole, where the processor says so.
const WIDE: usize = 16;
/// Bytes of a turn of the loops that do.
const LINE: usize = 64;
/// From so many bytes on they are worth it.
const LONG: usize = 128;

/// Whether instructions move 16 bytes as a whole that lie at a multiple of 16: Intel and AMD promise it of processors with
/// AVX.
#[inline]
fn has_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Copies of whole lines from or to memory that others access. The language has no atomic access of 16 bytes; to it, each
/// of these functions is a loop of relaxed atomic accesses of the same bytes, which is what the instructions do.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;

    /// Lines of 64 bytes, by an instruction that reads 16 bytes and one that writes them; at least one line.
    macro_rules! copy {
        ($read:literal, $write:literal, $from:ident, $to:ident, $lines:ident) => {
            asm!(
                "2:",
                concat!($read, " xmm0, [{from}]"),
                concat!($read, " xmm1, [{from} + 16]"),
                concat!($read, " xmm2, [{from} + 32]"),
                concat!($read, " xmm3, [{from} + 48]"),
                concat!($write, " [{to}], xmm0"),
                concat!($write, " [{to} + 16], xmm1"),
                concat!($write, " [{to} + 32], xmm2"),
                concat!($write, " [{to} + 48], xmm3"),
                "add {from}, 64",
                "add {to}, 64",
                "sub {lines}, 1",
                "jnz 2b",
                from = inout(reg) $from => _,
                to = inout(reg) $to => _,
                lines = inout(reg) $lines => _,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                options(nostack),
            )
        };
    }

    /// # Safety
    /// `from` is at a multiple of 16, and `lines` times 64 bytes from there on are valid for reads, and touched by atomics
    /// only; `to` is as long, valid for writes, and nobody else's.
    pub(super) unsafe fn load(from: *const u8, to: *mut u8, lines: usize) {
        if lines > 0 {
            // SAFETY: reads and writes what the caller vouches for, and changes no other memory.
            unsafe { copy!("movaps", "movups", from, to, lines) };
        }
    }

    /// # Safety
    /// `to` is at a multiple of 16, and `lines` times 64 bytes from there on are valid for writes, and touched by atomics
    /// only; `from` is as long, valid for reads, and nobody writes it.
    pub(super) unsafe fn store(to: *mut u8, from: *const u8, lines: usize) {
        if lines > 0 {
            // SAFETY: as in `load`.
            unsafe { copy!("movups", "movaps", from, to, lines) };
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod wide {
    /// # Safety
    /// Never called.
    pub(super) unsafe fn load(_: *const u8, _: *mut u8, _: usize) {}

    /// # Safety
    /// Never called.
    pub(super) unsafe fn store(_: *mut u8, _: *const u8, _: usize) {}
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
    fn long_copies_touch_what_they_are_to() {
        const ALL: usize = 700;
        let memory = memory(ALL as u64);
        let number = |at: usize| u8::try_from(at % 251).unwrap();
        for at in (0..40).chain([100]) {
            for len in (LONG - 2..LONG + 70).chain([500, 512, 513, ALL - at]) {
                let len = len.min(ALL - at);
                let bytes: Vec<u8> = (0..len).map(|i| number(i + at + len)).collect();
                memory.store(0, &[0xEE; ALL]).unwrap();
                memory.store(at as u64, &bytes).unwrap();
                let mut all = [0; ALL];
                memory.load(0, &mut all).unwrap();
                assert_eq!(all[at..at + len], bytes, "{at} {len}");
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xEE));
                // Where it goes to lies anywhere.
                let mut part = vec![0xDD; len + 3];
                memory.load(at as u64, &mut part[1..=len]).unwrap();
                assert_eq!(part[1..=len], bytes);
                assert_eq!((part[0], part[len + 1]), (0xDD, 0xDD));
            }
        }
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
