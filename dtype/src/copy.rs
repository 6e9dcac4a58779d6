//! The copy loops: runs of user memory to or from packed bytes. All of the crate's unsafe copying is here
//! and in `copy/`.
//!
//! User memory may be shared with another process that writes at the same time, so no reference to it is
//! ever formed: bytes move by raw copies, and what a racing writer does to them shows in the data and
//! nowhere else. Lengths are dispatched once per series of equal runs, so that the loops over small
//! blocks are made of fixed-size moves.
//!
//! Owner of the memory: the caller of the convertor. Units: bytes.
//!
//! # What is where
//!
//! - which loop: `method` (stores and instructions), `trial` (which of two ways is quicker here), `past_trial` (what a
//!   large copy found out for its next part);
//! - by shape: `rows`, `lines`, `tile`, `transpose`, `mirror` (equal layouts), `apart` (words far apart);
//! - around the cache: `stream`, `nontemporal`; by the C library: `pieces`.

mod apart;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its loops are the processor's"))]
mod lines;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its loops are the processor's"))]
mod method;
mod mirror;
mod nontemporal;
mod past_trial;
mod pieces;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its loops are the processor's"))]
mod rows;
mod stream;
mod tile;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, reason = "its loops are the processor's")
)]
mod transpose;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its loops are the processor's"))]
mod trial;

use std::ptr;

pub(crate) use method::{Level, Method, STREAM_MIN, sample};
pub(crate) use mirror::Mirror;
pub(crate) use past_trial::{keep, past_trial};
pub(crate) use stream::{Gather, Scatter};

use crate::program::{AffineLengths, Axis, Flow, Sink, Windows};
use crate::run::in_memory;
use lines::Dense;
use pieces::copy_long;
use rows::Rows;

/// No prefetcher follows listed places, so the line of the block this many further on is asked for; when unpacking
/// to be written, since stores wait for their lines one by one. Measured on a Zen 5, 8 MiB,
/// against `memcpy`: blocks of 24 bytes in memory's order 0.44 without, 0.47 sixteen ahead, 0.50 this far; shuffled
/// 0.26, 0.29, 0.33. Packing shuffled blocks on a busy machine rises from 0.08 to 0.27.
const AHEAD: usize = 64;

/// Loads from lists in memory's order are followed by prefetchers, and better not asked for: single doubles fall from
/// 0.37 to 0.18. A list is not in order where the block that far on lies further off, in bytes.
const NEAR: u64 = 16 << 10;

/// Runs this far apart are on pages that no prefetcher follows: so many runs on, lines are asked for, as near as the
/// second-level cache, since runs whole pages apart share a set of the first. Single lines of 262144 pages are packed
/// in 0.7 of the time, and unpacked in 0.66; half as far ahead in 0.8.
const SPARSE: u64 = 1024;
const SPARSE_AHEAD: u64 = 64;
/// Longer runs reach into too many lines.
const SPARSE_LEN: u64 = 64;

/// All lines of the run of a list that is so many runs further on are asked for, if the list has so many bytes: from
/// memory, 4 MiB of runs of 8 to 512 bytes are packed in 0.89 to 0.95 of the time and unpacked in 0.81 to 0.86, on a Zen
/// 3 and a Xeon with 300 MiB of cache. Asking for the first line or two is no better than for none.
const LISTED_AHEAD: usize = 8;
const LISTED_MIN: u64 = 16 << 10;
/// Prefetchers follow longer runs behind so many bytes.
const LISTED_LEN: usize = 512;

/// Copies what a walk yields: out of user memory where `PACK`, into it otherwise.
pub(crate) struct Copier<const PACK: bool> {
    user: *mut u8,
    packed: *mut u8,
    level: Level,
}

impl<const PACK: bool> Copier<PACK> {
    /// Runs go between `user` plus their displacement and consecutive bytes from `packed` on.
    ///
    /// # Safety
    ///
    /// Until this value is dropped, for every run that it is handed: the run's bytes, relative to `user`,
    /// and as many bytes at `packed`, after those of earlier runs, lie in memory that the pointers may
    /// access, readable on the side copied from (`user` where `PACK`) and writable on the other, and the
    /// packed bytes overlap no run. Where `PACK`, nothing is written through `user`.
    pub(crate) unsafe fn new(level: Level, user: *mut u8, packed: *mut u8) -> Copier<PACK> {
        Copier { user, packed, level }
    }

    fn at(&self, disp: i64) -> *mut u8 {
        shifted(self.user, disp)
    }

    /// The packed place of the next `bytes` bytes.
    fn take(&mut self, bytes: u64) -> *mut u8 {
        let here = self.packed;
        self.packed = here.wrapping_add(in_memory(bytes));
        here
    }
}

/// Calls `$f::<PACK, LEN>` with `$len` as a constant, or evaluates `$otherwise`.
macro_rules! with_fixed_len {
    ($len:expr, $f:ident, $args:tt, $otherwise:expr) => {
        with_fixed_len!(@ $len, $f, $args, $otherwise,
            1 2 3 4 5 6 7 8 9 10 12 14 16 20 24 28 32 36 40 44 48 56 60 64 72 80 96 112 120 128)
    };
    (@ $len:expr, $f:ident, $args:tt, $otherwise:expr, $($fixed:literal)*) => {
        match $len {
            $($fixed => with_fixed_len!(@call $f $fixed $args),)*
            _ => $otherwise,
        }
    };
    (@call $f:ident $fixed:literal ($($arg:expr),*)) => {
        // SAFETY: the caller of `Copier::new` promised that every run handed over, and its packed bytes,
        // may be accessed; these are those runs, `$fixed` bytes each.
        unsafe { $f::<PACK, $fixed>($($arg),*) }
    };
}

impl<const PACK: bool> Sink for Copier<PACK> {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        let (user, packed) = (self.at(disp), self.take(len));
        // SAFETY: `new`'s caller promised it of this run.
        unsafe { move_bytes::<PACK>(user, packed, in_memory(len)) };
        Flow::Continue(())
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        let (user, packed) = (self.at(disp), self.take(len * count));
        let axis = Axis { count, stride };
        if len > rows::SHORTEST && count > 1 {
            let lens = AffineLengths { len, len_step: 0 };
            let rows = Rows { user, packed, step: stride, lens, count };
            // SAFETY: `new`'s caller promised it of these runs.
            if unsafe { rows.run::<PACK>(self.level) } {
                return Flow::Continue(());
            }
        }
        if len <= SPARSE_LEN && stride.unsigned_abs() >= SPARSE && count >= SPARSE_AHEAD {
            with_fixed_len!(len, move_sparse, (user, packed, axis), {
                // SAFETY: as above, for `count` runs of `len` bytes.
                unsafe { move_strided_any::<PACK>(user, packed, axis, in_memory(len)) }
            });
            return Flow::Continue(());
        }
        with_fixed_len!(len, move_strided, (user, packed, axis), {
            // SAFETY: as above, for `count` runs of `len` bytes.
            unsafe { move_strided_any::<PACK>(user, packed, axis, in_memory(len)) }
        });
        Flow::Continue(())
    }

    fn grid(&mut self, disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        if tile::pays(PACK, outer, inner, len) {
            let (user, packed) = (self.at(disp), self.take(len * inner.count * outer.count));
            // SAFETY: as above, for all runs of the grid; `pays` made sure that their order is free.
            unsafe {
                tile::move_grid::<PACK, false>(self.level.known(), user, packed, outer, inner, len)
            };
            return Flow::Continue(());
        }
        let mut disp = disp;
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }

    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        let (user, packed) = (self.at(base), self.take(len * disps.len() as u64));
        with_fixed_len!(len, move_blocks, (user, packed, disps), {
            // SAFETY: as above, for a run of `len` bytes at each displacement.
            unsafe { move_blocks_any::<PACK>(user, packed, disps, in_memory(len)) }
        });
        Flow::Continue(())
    }

    fn dense(&mut self, base: i64, disps: &[i64], len: u64, windows: &Windows<'_>) -> Flow {
        let user = self.at(base.wrapping_add(windows.disp));
        let dense = Dense::of(windows, user, self.packed);
        // SAFETY: `new`'s caller promised it of these blocks.
        if unsafe { dense.run::<PACK, false>(self.level) } {
            self.take(windows.bytes);
            return Flow::Continue(());
        }
        self.blocks(base, disps, len)
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        let (user, packed) = (self.at(base), self.packed);
        self.packed = match starts[disps.len()] - starts[0] >= LISTED_MIN {
            // SAFETY: `new`'s caller promised it of these runs.
            true => unsafe { move_list::<PACK, true>(user, packed, disps, starts) },
            // SAFETY: as above.
            false => unsafe { move_list::<PACK, false>(user, packed, disps, starts) },
        };
        Flow::Continue(())
    }

    fn affine(&mut self, disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        let mut user = self.at(disp);
        let mut packed = self.packed;
        let rows = Rows { user, packed, step, lens, count };
        // SAFETY: `new`'s caller promised it of these runs.
        if unsafe { rows.run::<PACK>(self.level) } {
            self.packed = packed.wrapping_add(in_memory(lens.before(count).unwrap_or(0)));
            return Flow::Continue(());
        }
        for j in 0..count {
            let len = in_memory(lens.at(j));
            // SAFETY: `new`'s caller promised it of this run.
            unsafe { move_bytes::<PACK>(user, packed, len) };
            user = shifted(user, step);
            packed = packed.wrapping_add(len);
        }
        self.packed = packed;
        Flow::Continue(())
    }
}

/// `pointer` moved by `bytes`, as address arithmetic: it need not stay within one object on the way.
#[inline]
pub(crate) fn shifted(pointer: *mut u8, bytes: i64) -> *mut u8 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "addresses wrap modulo their width, and displacements of accessible memory fit it"
    )]
    pointer.wrapping_offset(bytes as isize)
}

/// Asks for the line at `address` to be brought near; a hint that no address makes fault.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// As [`prefetch`], into the second-level cache only.
#[inline(always)]
fn prefetch_far(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetching accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// As [`prefetch`], for a line that will be written: it comes without other processors' copies.
#[inline(always)]
fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: prefetching accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Moves `LEN` bytes from user memory to packed bytes, or back.
///
/// # Safety
///
/// Both places are accessible for `LEN` bytes, the destination writable, and do not overlap.
#[inline(always)]
unsafe fn move_fixed<const PACK: bool, const LEN: usize>(user: *mut u8, packed: *mut u8) {
    let (from, to) = if PACK { (user, packed) } else { (packed, user) };
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, LEN) };
}

/// # Safety
///
/// As [`move_fixed`], for each of `axis.count` runs `axis.stride` apart and their packed bytes.
unsafe fn move_strided<const PACK: bool, const LEN: usize>(
    mut user: *mut u8,
    mut packed: *mut u8,
    axis: Axis,
) {
    for _ in 0..axis.count {
        // SAFETY: the caller's promise, for this run.
        unsafe { move_fixed::<PACK, LEN>(user, packed) };
        user = shifted(user, axis.stride);
        packed = packed.wrapping_add(LEN);
    }
}

/// As [`move_strided`], for runs so far apart that their lines are asked for.
///
/// # Safety
///
/// As [`move_strided`].
unsafe fn move_sparse<const PACK: bool, const LEN: usize>(
    mut user: *mut u8,
    mut packed: *mut u8,
    axis: Axis,
) {
    let ahead = axis.stride.wrapping_mul(SPARSE_AHEAD.cast_signed());
    for i in 0..axis.count {
        if i + SPARSE_AHEAD < axis.count {
            prefetch_far(shifted(user, ahead));
        }
        // SAFETY: the caller's promise, for this run.
        unsafe { move_fixed::<PACK, LEN>(user, packed) };
        user = shifted(user, axis.stride);
        packed = packed.wrapping_add(LEN);
    }
}

/// # Safety
///
/// As [`move_strided`], with runs of `len` bytes.
unsafe fn move_strided_any<const PACK: bool>(
    mut user: *mut u8,
    mut packed: *mut u8,
    axis: Axis,
    len: usize,
) {
    for _ in 0..axis.count {
        // SAFETY: the caller's promise, for this run.
        unsafe { move_bytes::<PACK>(user, packed, len) };
        user = shifted(user, axis.stride);
        packed = packed.wrapping_add(len);
    }
}

/// # Safety
///
/// As [`move_fixed`], for a run at each displacement from `user` and its packed bytes.
unsafe fn move_blocks<const PACK: bool, const LEN: usize>(
    user: *mut u8,
    mut packed: *mut u8,
    disps: &[i64],
) {
    for (i, disp) in disps.iter().enumerate() {
        if let Some(later) = disps.get(i + AHEAD) {
            if !PACK {
                prefetch_to_write(shifted(user, *later));
            } else if later.abs_diff(*disp) > NEAR {
                prefetch(shifted(user, *later));
            }
        }
        // SAFETY: the caller's promise, for this run.
        unsafe { move_fixed::<PACK, LEN>(shifted(user, *disp), packed) };
        packed = packed.wrapping_add(LEN);
    }
}

/// # Safety
///
/// As [`move_blocks`], with runs of `len` bytes.
unsafe fn move_blocks_any<const PACK: bool>(
    user: *mut u8,
    mut packed: *mut u8,
    disps: &[i64],
    len: usize,
) {
    for disp in disps {
        // SAFETY: the caller's promise, for this run.
        unsafe { move_bytes::<PACK>(shifted(user, *disp), packed, len) };
        packed = packed.wrapping_add(len);
    }
}

/// Runs of a list, the `i`th of `starts[i + 1] - starts[i]` bytes; where `ASK`, with all lines asked for some time
/// before. Gives where the packed bytes end.
///
/// # Safety
///
/// As [`move_fixed`], for a run at each displacement from `user` and its packed bytes.
unsafe fn move_list<const PACK: bool, const ASK: bool>(
    user: *mut u8,
    mut packed: *mut u8,
    disps: &[i64],
    starts: &[u64],
) -> *mut u8 {
    let len = |ends: &[u64]| in_memory(ends[1] - ends[0]);
    for (i, (disp, ends)) in disps.iter().zip(starts.windows(2)).enumerate() {
        if ASK && let Some(later) = disps.get(i + LISTED_AHEAD) {
            let run = shifted(user, *later);
            // From the start of its first line: a run need not begin one.
            let before = run.addr() % nontemporal::LINE;
            let end = before + len(&starts[i + LISTED_AHEAD..]).min(LISTED_LEN);
            for at in (0..end).step_by(nontemporal::LINE) {
                let line = run.wrapping_sub(before).wrapping_add(at);
                if PACK { prefetch(line) } else { prefetch_to_write(line) }
            }
        }
        // SAFETY: the caller's promise, for this run.
        unsafe { move_bytes::<PACK>(shifted(user, *disp), packed, len(ends)) };
        packed = packed.wrapping_add(len(ends));
    }
    packed
}

/// # Safety
///
/// As [`move_fixed`], with `len` bytes.
#[inline(always)]
unsafe fn move_bytes<const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    let (from, to) = if PACK { (user, packed) } else { (packed, user) };
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, len) };
}

/// Copies `len` bytes; short ones without a call.
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    match len {
        0 => {}
        1..4 => {
            for i in 0..len {
                // SAFETY: one byte within both ranges.
                unsafe { ptr::copy_nonoverlapping(from.wrapping_add(i), to.wrapping_add(i), 1) };
            }
        }
        // SAFETY: 4 ≤ len ≤ 8, and the caller's promise.
        4..=8 => unsafe { copy_ends::<4>(from, to, len) },
        // SAFETY: 8 ≤ len ≤ 16, and the caller's promise.
        9..=16 => unsafe { copy_ends::<8>(from, to, len) },
        // SAFETY: 16 ≤ len ≤ 32, and the caller's promise.
        17..=32 => unsafe { copy_ends::<16>(from, to, len) },
        // SAFETY: 32 ≤ len ≤ 64, and the caller's promise.
        33..=64 => unsafe { copy_ends::<32>(from, to, len) },
        // SAFETY: the caller's promise.
        _ => unsafe { copy_long(from, to, len) },
    }
}

/// Copies the first and the last `HALF` bytes, which meet or overlap.
///
/// # Safety
///
/// As [`copy`], and `HALF ≤ len ≤ 2·HALF`.
#[inline(always)]
unsafe fn copy_ends<const HALF: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - HALF;
    // SAFETY: the first `HALF` of `len` readable bytes; an array of bytes has no alignment.
    let head = unsafe { from.cast::<[u8; HALF]>().read() };
    // SAFETY: the last `HALF` of `len` readable bytes.
    let tail = unsafe { from.wrapping_add(last).cast::<[u8; HALF]>().read() };
    // SAFETY: the first `HALF` of `len` writable bytes.
    unsafe { to.cast::<[u8; HALF]>().write(head) };
    // SAFETY: the last `HALF` of `len` writable bytes.
    unsafe { to.wrapping_add(last).cast::<[u8; HALF]>().write(tail) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_short_length_and_nothing_else() {
        let from: Vec<u8> = (1..=200).collect();
        for len in 0..=130 {
            for shift in 0..3 {
                let mut to = vec![0u8; 140];
                // SAFETY: 130 + 2 bytes fit both vectors, which are distinct.
                unsafe {
                    copy(from.as_ptr().wrapping_add(shift), to.as_mut_ptr().wrapping_add(1), len)
                };
                assert_eq!(to[1..=len], from[shift..shift + len]);
                assert!(to[0] == 0 && to[len + 1..].iter().all(|&b| b == 0));
            }
        }
    }
}
