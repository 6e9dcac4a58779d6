//! Long contiguous spans of memory that others access, by instructions that move 32 bytes.
//!
//! To the language, each function here is a loop of relaxed atomic accesses of the numbers that the bytes are.
//!
//! **Numbers stay whole.** What others access begins at a multiple of 8. Processors with AVX move 16 bytes at a
//! multiple of 16 as a whole; Intel and AMD promise that. For 32 bytes, or other places, they promise nothing in
//! writing: processors move them as a whole, or in parts that end at multiples of 8, as halves and cache lines do. So
//! no number of 1 to 8 bytes is seen half written that lies at a multiple of its length. Java's virtual machines copy
//! arrays of numbers like that, which must not be seen half written either. Longer spans, both ends of which begin at
//! multiples of 8, are moved by `rep movsq`: the manuals describe it as a loop of words, but do not say that fast
//! strings keep each whole.

/// Bytes that an instruction moves.
pub(super) const WIDE: usize = 32;

/// Whether the processor has the instructions.
#[inline]
pub(super) fn is_there() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Of so many bytes, at least [`WIDE`]: those before the first multiple of that, and how often it fits from there on.
#[inline]
pub(super) fn split(at: *mut u8, len: usize) -> (usize, usize) {
    let head = at.addr().wrapping_neg() % WIDE;
    (head, (len - head) / WIDE)
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{add, copy};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::Number;
    use std::arch::asm;

    /// From so many turns of 32 bytes on, `rep movsq` is worth its start: a processor with fast strings takes lines
    /// that are written whole without reading them first (`bench/results/cpu/osc`).
    const STRING: usize = 32 * 1024 / super::WIDE;

    /// Whether `rep movsq` is fast, and keeps words whole. On some processors it is slow if the destination lies 1 to
    /// 63 bytes behind the source, modulo 4096.
    fn is_string(from: *const u8, to: *mut u8, count: usize) -> bool {
        let behind = to.addr().wrapping_sub(from.addr()) % 4096;
        count >= STRING
            && (from.addr() | to.addr()).is_multiple_of(8)
            && !(1..64).contains(&behind)
            && std::arch::is_x86_feature_detected!("ermsb")
    }

    /// Four turns at once as long as there are so many, then one after the other.
    macro_rules! turns {
        ($from:ident, $to:ident, $count:ident, [$($four:expr),+], [$($one:expr),+]) => {
            // SAFETY: reads and writes what the caller of the function vouches for, and changes no other memory.
            unsafe {
                asm!(
                    "cmp {count}, 4",
                    "jb 3f",
                    "2:",
                    $($four,)+
                    "vmovups [{to}], ymm0",
                    "vmovups [{to} + 32], ymm1",
                    "vmovups [{to} + 64], ymm2",
                    "vmovups [{to} + 96], ymm3",
                    "sub {from}, -128",
                    "sub {to}, -128",
                    "sub {count}, 4",
                    "cmp {count}, 4",
                    "jae 2b",
                    "3:",
                    "test {count}, {count}",
                    "jz 5f",
                    "4:",
                    $($one,)+
                    "vmovups [{to}], ymm0",
                    "add {from}, 32",
                    "add {to}, 32",
                    "sub {count}, 1",
                    "jnz 4b",
                    "5:",
                    "vzeroupper",
                    from = inout(reg) $from => _,
                    to = inout(reg) $to => _,
                    count = inout(reg) $count => _,
                    // All of them: `vzeroupper` clears their upper halves.
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack),
                )
            }
        };
    }

    macro_rules! sums {
        ($from:ident, $to:ident, $count:ident, $add:literal) => {
            turns!(
                $from,
                $to,
                $count,
                [
                    "vmovups ymm0, [{to}]",
                    "vmovups ymm1, [{to} + 32]",
                    "vmovups ymm2, [{to} + 64]",
                    "vmovups ymm3, [{to} + 96]",
                    concat!($add, " ymm0, ymm0, [{from}]"),
                    concat!($add, " ymm1, ymm1, [{from} + 32]"),
                    concat!($add, " ymm2, ymm2, [{from} + 64]"),
                    concat!($add, " ymm3, ymm3, [{from} + 96]")
                ],
                ["vmovups ymm0, [{to}]", concat!($add, " ymm0, ymm0, [{from}]")]
            )
        };
    }

    /// Copies; one side may be touched by others, who use atomics only. It begins at a multiple of 8. What is read is
    /// fetched 512 bytes ahead, which never faults; long spans go word by word, by `rep movsq`.
    ///
    /// # Safety
    /// `count` times 32 bytes are valid for reads from `from` on, and for writes from `to` on. One side is nobody
    /// else's.
    /// [`is_there`](super::is_there).
    pub(in super::super) unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
        if is_string(from, to, count) {
            // SAFETY: reads and writes what the caller vouches for; the direction flag is clear, as everywhere.
            unsafe {
                asm!(
                    "rep movsq",
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    inout("rcx") count * (super::WIDE / 8) => _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        turns!(
            from,
            to,
            count,
            [
                "prefetcht0 [{from} + 512]",
                "prefetcht0 [{from} + 576]",
                "vmovups ymm0, [{from}]",
                "vmovups ymm1, [{from} + 32]",
                "vmovups ymm2, [{from} + 64]",
                "vmovups ymm3, [{from} + 96]"
            ],
            ["vmovups ymm0, [{from}]"]
        );
    }

    /// Adds numbers to those at `to`, which begins at a multiple of 8, and which others may touch by atomics.
    ///
    /// # Safety
    /// `count` times 32 bytes are valid for reads from `from` on, and nobody writes them; for reads and writes from
    /// `to` on.
    /// [`is_there`](super::is_there).
    pub(in super::super) unsafe fn add(number: Number, from: *const u8, to: *mut u8, count: usize) {
        match number {
            Number::F64 => sums!(from, to, count, "vaddpd"),
            Number::F32 => sums!(from, to, count, "vaddps"),
            Number::I64 => sums!(from, to, count, "vpaddq"),
            Number::I32 => sums!(from, to, count, "vpaddd"),
            Number::I16 => sums!(from, to, count, "vpaddw"),
            Number::I8 => sums!(from, to, count, "vpaddb"),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{add, copy};

#[cfg(not(target_arch = "x86_64"))]
mod other {
    /// # Safety
    /// Never called.
    pub(in super::super) unsafe fn copy(_: *const u8, _: *mut u8, _: usize) {}

    /// # Safety
    /// Never called.
    pub(in super::super) unsafe fn add(_: crate::Number, _: *const u8, _: *mut u8, _: usize) {}
}
