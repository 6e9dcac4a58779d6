//! Packed bytes on their way around the cache: small pieces are gathered in a buffer that stays in the
//! first-level cache, and leave it as whole lines.

use std::mem::MaybeUninit;

use super::copy;
use super::nontemporal::{LINE, fence, lines};

/// Bytes gathered at a time: some lines, of which the last may be left over.
const CAPACITY: usize = 2048 + LINE;

#[repr(align(64))]
struct Lines(MaybeUninit<[u8; CAPACITY]>);

/// The packed bytes behind the last that were stored.
pub(super) struct Stage {
    lines: Lines,
    /// Where the buffer's first byte belongs: the beginning of a line.
    to: *mut u8,
    /// Bytes at the buffer's beginning that are not ours: those of the line before the first packed byte.
    skipped: usize,
    /// Bytes in the buffer, skipped ones included; less than a line when nothing has been added.
    filled: usize,
}

impl Stage {
    /// Consecutive packed bytes will be stored from `to` on.
    ///
    /// # Safety
    ///
    /// Until it is dropped: as many bytes as are [added](Self::added) and passed over, from `to` on, may
    /// be written.
    pub(super) unsafe fn new(to: *mut u8) -> Stage {
        let skipped = to.addr() % LINE;
        let lines = Lines(MaybeUninit::uninit());
        Stage { lines, to: to.wrapping_sub(skipped), skipped, filled: skipped }
    }

    fn buffer(&mut self) -> *mut u8 {
        self.lines.0.as_mut_ptr().cast()
    }

    /// A place for up to as many bytes as are returned: at least `least`, which is at most 2 KiB.
    pub(super) fn room(&mut self, least: usize) -> (*mut u8, usize) {
        debug_assert!(least <= CAPACITY - LINE);
        if CAPACITY - self.filled < least {
            self.store_lines();
        }
        let filled = self.filled;
        (self.buffer().wrapping_add(filled), CAPACITY - filled)
    }

    /// Takes over bytes that were written where [`room`](Self::room) said.
    ///
    /// # Safety
    ///
    /// `bytes` bytes have been written there, and that many fit.
    pub(super) unsafe fn added(&mut self, bytes: usize) {
        self.filled += bytes;
        debug_assert!(self.filled <= CAPACITY);
    }

    /// Stores everything; returns where the next packed byte belongs, for a run that bypasses the buffer.
    pub(super) fn settle(&mut self) -> *mut u8 {
        self.store_lines();
        let (from, to) = (self.buffer().wrapping_add(self.skipped), self.to);
        // SAFETY: the buffer holds `filled` bytes, less than a line, and all but the skipped ones belong
        // at `to`; the buffer is ours.
        unsafe { copy(from, to.wrapping_add(self.skipped), self.filled - self.skipped) };
        self.skipped = self.filled;
        to.wrapping_add(self.filled)
    }

    /// Passes over `bytes` packed bytes that were stored where [`settle`](Self::settle) said.
    pub(super) fn pass(&mut self, bytes: usize) {
        let next = self.to.wrapping_add(self.filled + bytes);
        self.skipped = next.addr() % LINE;
        self.filled = self.skipped;
        self.to = next.wrapping_sub(self.skipped);
    }

    /// Stores what is left, visible to whoever is told of it.
    pub(super) fn finish(&mut self) {
        self.settle();
        fence();
    }

    /// Stores whole lines; what is left moves to the buffer's beginning.
    fn store_lines(&mut self) {
        let whole = self.filled / LINE * LINE;
        if whole == 0 {
            return;
        }
        let buffer = self.buffer();
        let mut at = 0;
        if self.skipped > 0 {
            let skipped = self.skipped;
            // SAFETY: the rest of the first line is in the buffer and belongs to packed bytes; the bytes before
            // it belong to somebody else.
            unsafe {
                copy(buffer.wrapping_add(skipped), self.to.wrapping_add(skipped), LINE - skipped)
            };
            at = LINE;
        }
        while at < whole {
            // SAFETY: a line of the buffer, filled, and its line among the packed bytes.
            unsafe { lines::<1>(buffer.wrapping_add(at), self.to.wrapping_add(at)) };
            at += LINE;
        }
        self.filled -= whole;
        self.skipped = 0;
        // SAFETY: less than a line, `whole` and so at least a line behind where it goes; both in the buffer.
        unsafe { copy(buffer.wrapping_add(whole), buffer, self.filled) };
        self.to = self.to.wrapping_add(whole);
    }
}
