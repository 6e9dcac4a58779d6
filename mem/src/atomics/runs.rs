//! Equal runs of bytes at equal distances, straight from where they lie to where they are to lie; and sums in place.

use super::{Atomics, LONG, copy_in, copy_out, wide};
use crate::DeviceError;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// `count` runs of `len` bytes; each begins `stride` bytes behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Where the first one begins.
    pub offset: u64,
    /// From one to the next.
    pub stride: i64,
    /// Bytes of one.
    pub len: usize,
    /// How many there are.
    pub count: usize,
}

impl Runs {
    /// Bytes of all.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.count)
    }
}

/// Numbers that are added. Those of integers wrap, so they may have a sign or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they say what they are")]
pub enum Number {
    F64,
    F32,
    I64,
    I32,
    I16,
    I8,
}

impl Number {
    /// Bytes of one.
    #[must_use]
    #[inline]
    pub fn bytes(self) -> usize {
        match self {
            Number::F64 | Number::I64 => 8,
            Number::F32 | Number::I32 => 4,
            Number::I16 => 2,
            Number::I8 => 1,
        }
    }
}

/// Numbers to which others are to be added.
#[derive(Debug)]
pub struct Sums<'m> {
    /// As [`Atomics::place`] has found it, for `len` bytes.
    to: *mut u8,
    number: Number,
    len: usize,
    memory: PhantomData<&'m Atomics>,
}

impl Sums<'_> {
    /// Adds so many numbers, or as many as there are; as [`Atomics::add`].
    #[inline]
    pub fn add(&self, from: &[u8]) {
        let len = self.len.min(from.len()) / self.number.bytes() * self.number.bytes();
        if len >= LONG && wide::is_there() {
            // SAFETY: `place` has found the bytes inside, and they are aligned; `from` is borrowed, and as long.
            unsafe { add_long(self.to, len, self.number, from.as_ptr()) };
            return;
        }
        let runs = Runs { offset: 0, stride: 0, len, count: 1 };
        // SAFETY: as above.
        unsafe { add_all(self.to, &runs, self.number, (from.as_ptr(), 0)) };
    }
}

/// Adds numbers one by one, of so many runs.
macro_rules! one_by_one {
    ($atomic:ty, $int:ty, ($to:ident, $runs:ident), ($from:ident, $stride:ident), $add:expr) => {
        for _ in 0..$runs.count {
            // SAFETY: the caller of `add_all` vouches for the bytes of each run.
            let run = unsafe { std::slice::from_raw_parts($from, $runs.len) };
            let mut at = $to;
            for number in run.chunks_exact(size_of::<$int>()) {
                // SAFETY: `new`'s caller guarantees memory that is valid for reads and writes while the lease lives, which
                // the caller of this holds, and that is touched by atomics only. The run lies inside, and aligned.
                let place = unsafe { <$atomic>::from_ptr(at.cast::<$int>()) };
                let number = <$int>::from_ne_bytes(number.try_into().unwrap_or_default());
                place.store($add(place.load(Ordering::Relaxed), number), Ordering::Relaxed);
                at = at.wrapping_add(size_of::<$int>());
            }
            $to = further($to, $runs.stride);
            $from = $from.wrapping_offset($stride);
        }
    };
}

/// The place of the next run, which lies inside: so the distance fits.
#[inline]
fn further(at: *mut u8, stride: i64) -> *mut u8 {
    at.wrapping_offset(isize::try_from(stride).unwrap_or(0))
}

/// Whether runs are whole words, the first of which begins here.
#[inline]
fn are_words(first: *mut u8, runs: &Runs) -> bool {
    first.cast::<u64>().is_aligned() && runs.len.is_multiple_of(8) && runs.stride % 8 == 0
}

impl Atomics {
    /// Where the first of some runs begins, if all lie inside.
    #[inline]
    fn runs(&self, runs: &Runs) -> Result<*mut u8, DeviceError> {
        let Some(last) = runs.count.checked_sub(1) else { return self.place(runs.offset, 0) };
        let far = i128::from(runs.stride) * last as i128;
        let (first, last) = (i128::from(runs.offset), i128::from(runs.offset) + far);
        let (low, high) = (first.min(last), first.max(last) + runs.len as i128);
        match (u64::try_from(low), usize::try_from(high - low)) {
            (Ok(low), Ok(len)) => {
                self.place(low, len)?;
                self.place(runs.offset, runs.len)
            }
            _ => Err(self.outside(u64::MAX, runs.len)),
        }
    }

    /// Copies runs in: the first one from `from`, each other `stride` bytes behind the one before.
    ///
    /// # Safety
    /// Each of them lies in memory that is initialised, and that nobody writes.
    ///
    /// # Errors
    /// Some do not lie inside; nothing is written.
    #[inline]
    pub unsafe fn store_runs(
        &self,
        runs: &Runs,
        mut from: *const u8,
        stride: isize,
    ) -> Result<(), DeviceError> {
        let mut to = self.runs(runs)?;
        if runs.len < LONG && are_words(to, runs) {
            match runs.len {
                // SAFETY: the caller's promise; the runs lie inside, and aligned.
                8 => unsafe { words_in::<8>(to, runs, from, stride) },
                // SAFETY: as above.
                64 => unsafe { words_in::<64>(to, runs, from, stride) },
                // SAFETY: as above.
                _ => unsafe { words_in::<0>(to, runs, from, stride) },
            }
            return Ok(());
        }
        for _ in 0..runs.count {
            // SAFETY: the caller's promise.
            copy_in(to, unsafe { std::slice::from_raw_parts(from, runs.len) });
            to = further(to, runs.stride);
            from = from.wrapping_offset(stride);
        }
        Ok(())
    }

    /// Copies runs out: the first one to `into`, each other `stride` bytes behind the one before.
    ///
    /// # Safety
    /// Each of these places is initialised, and nobody else touches it.
    ///
    /// # Errors
    /// Some runs do not lie inside; nothing is written.
    #[inline]
    pub unsafe fn load_runs(
        &self,
        runs: &Runs,
        mut into: *mut u8,
        stride: isize,
    ) -> Result<(), DeviceError> {
        let mut from = self.runs(runs)?;
        if runs.len < LONG && are_words(from, runs) {
            match runs.len {
                // SAFETY: the caller's promise; the runs lie inside, and aligned.
                8 => unsafe { words_out::<8>(from, runs, into, stride) },
                // SAFETY: as above.
                64 => unsafe { words_out::<64>(from, runs, into, stride) },
                // SAFETY: as above.
                _ => unsafe { words_out::<0>(from, runs, into, stride) },
            }
            return Ok(());
        }
        for _ in 0..runs.count {
            // SAFETY: the caller's promise.
            copy_out(from, unsafe { std::slice::from_raw_parts_mut(into, runs.len) });
            from = further(from, runs.stride);
            into = into.wrapping_offset(stride);
        }
        Ok(())
    }

    /// Numbers from `offset` on, to which others are to be added: checked, so that whoever adds under a lock is quick there.
    ///
    /// # Errors
    /// They do not lie inside, or not at multiples of their length; the bytes are no whole numbers.
    #[inline]
    pub fn sums(&self, offset: u64, number: Number, len: usize) -> Result<Sums<'_>, DeviceError> {
        let (to, width) = (self.place(offset, len)?, number.bytes());
        if self.misalignment(offset, width as u64) != 0 || !len.is_multiple_of(width) {
            return Err(DeviceError::Unsupported { what: "numbers that are not aligned" });
        }
        Ok(Sums { to, number, len, memory: PhantomData })
    }

    /// Adds numbers to those from `offset` on. Each is read and written as a whole. What others write to it in between is
    /// lost, so several threads that change the same numbers need a lock.
    ///
    /// # Errors
    /// As [`sums`](Atomics::sums).
    #[inline]
    pub fn add(&self, offset: u64, number: Number, from: &[u8]) -> Result<(), DeviceError> {
        self.sums(offset, number, from.len())?.add(from);
        Ok(())
    }

    /// Adds the numbers of runs: of the first one from `from`, each other `stride` bytes behind the one before. Otherwise as
    /// [`add`](Atomics::add).
    ///
    /// # Safety
    /// As [`store_runs`](Atomics::store_runs).
    ///
    /// # Errors
    /// As [`add`](Atomics::add).
    #[inline]
    pub unsafe fn add_runs(
        &self,
        runs: &Runs,
        number: Number,
        from: *const u8,
        stride: isize,
    ) -> Result<(), DeviceError> {
        let (to, width) = (self.runs(runs)?, number.bytes());
        let aligned = self.misalignment(runs.offset, width as u64) == 0
            && (runs.count < 2 || runs.stride.unsigned_abs().is_multiple_of(width as u64));
        if !aligned || !runs.len.is_multiple_of(width) {
            return Err(DeviceError::Unsupported { what: "numbers that are not aligned" });
        }
        // SAFETY: the caller's promise; the runs lie inside, and aligned.
        unsafe { add_all(to, runs, number, (from, stride)) };
        Ok(())
    }
}

/// Copies runs of whole words in, of `LEN` bytes if that is not 0.
///
/// # Safety
/// As [`Atomics::store_runs`], which has found `to`: a multiple of 8, as the distance is.
unsafe fn words_in<const LEN: usize>(
    mut to: *mut u8,
    runs: &Runs,
    mut from: *const u8,
    stride: isize,
) {
    let len = if LEN == 0 { runs.len } else { LEN };
    for _ in 0..runs.count {
        for at in (0..len).step_by(8) {
            // SAFETY: the caller's promise.
            let word = unsafe { from.wrapping_add(at).cast::<u64>().read_unaligned() };
            // SAFETY: as in `one_by_one`; each is a multiple of 8 bytes behind the first, which is aligned.
            let place = unsafe { AtomicU64::from_ptr(to.wrapping_add(at).cast::<u64>()) };
            place.store(word, Ordering::Relaxed);
        }
        to = further(to, runs.stride);
        from = from.wrapping_offset(stride);
    }
}

/// The same out.
///
/// # Safety
/// As [`Atomics::load_runs`], which has found `from`: a multiple of 8, as the distance is.
unsafe fn words_out<const LEN: usize>(
    mut from: *mut u8,
    runs: &Runs,
    mut into: *mut u8,
    stride: isize,
) {
    let len = if LEN == 0 { runs.len } else { LEN };
    for _ in 0..runs.count {
        for at in (0..len).step_by(8) {
            // SAFETY: as in `words_in`.
            let place = unsafe { AtomicU64::from_ptr(from.wrapping_add(at).cast::<u64>()) };
            let word = place.load(Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { into.wrapping_add(at).cast::<u64>().write_unaligned(word) };
        }
        from = further(from, runs.stride);
        into = into.wrapping_offset(stride);
    }
}

/// # Safety
/// As [`Atomics::add_runs`], which has found `to`; all numbers there are aligned.
unsafe fn add_all(
    mut to: *mut u8,
    runs: &Runs,
    number: Number,
    (mut from, stride): (*const u8, isize),
) {
    if runs.len >= LONG && wide::is_there() {
        for _ in 0..runs.count {
            // SAFETY: the caller's promise.
            unsafe { add_long(to, runs.len, number, from) };
            to = further(to, runs.stride);
            from = from.wrapping_offset(stride);
        }
        return;
    }
    match number {
        Number::F64 => one_by_one!(AtomicU64, u64, (to, runs), (from, stride), |old, number| {
            (f64::from_bits(old) + f64::from_bits(number)).to_bits()
        }),
        Number::F32 => one_by_one!(AtomicU32, u32, (to, runs), (from, stride), |old, number| {
            (f32::from_bits(old) + f32::from_bits(number)).to_bits()
        }),
        Number::I64 => one_by_one!(AtomicU64, u64, (to, runs), (from, stride), u64::wrapping_add),
        Number::I32 => one_by_one!(AtomicU32, u32, (to, runs), (from, stride), u32::wrapping_add),
        Number::I16 => one_by_one!(AtomicU16, u16, (to, runs), (from, stride), u16::wrapping_add),
        Number::I8 => one_by_one!(AtomicU8, u8, (to, runs), (from, stride), u8::wrapping_add),
    }
}

/// One long run.
///
/// # Safety
/// As [`add_all`], and [`wide::is_there`].
unsafe fn add_long(to: *mut u8, len: usize, number: Number, from: *const u8) {
    let (head, count) = wide::split(to, len);
    let done = head + count * wide::WIDE;
    let part = |len| Runs { offset: 0, stride: 0, len, count: 1 };
    // SAFETY: the first bytes of the run, fewer than are long.
    unsafe { add_all(to, &part(head), number, (from, 0)) };
    // SAFETY: those behind them.
    unsafe { wide::add(number, from.wrapping_add(head), to.wrapping_add(head), count) };
    let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
    // SAFETY: the last bytes, fewer than 32.
    unsafe { add_all(to, &part(len - done), number, (from, 0)) };
}
