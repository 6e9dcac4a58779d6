//! Short messages' buffers: memory of the host without gaps, as an address and a length.
//!
//! A [`Span`] is a [`Buffer`] in the most frequent case, in a quarter of the bytes. Bytes go in and out of it by
//! words that are kept in registers. A word that is assembled in memory from shorter stores cannot be forwarded to
//! the load that follows. That load then waits until all earlier stores have reached the cache, and the stores of the
//! message before wait for the receiver's cache. That took longer than all the rest.
//!
//! It stands for the same promise as a [`Buffer`]: the memory is valid, and nothing else touches it, until the
//! request ends.

use crate::buffer::{self, Buffer};
use gapless_bml::{Fragment, ReceiveTarget};
use gapless_dtype::Layout;
use gapless_engine::Typed;
use gapless_mem::{Region, Space};

/// A user's buffer of host memory without gaps, promised until its request ends.
#[derive(Debug)]
pub(crate) struct Span {
    address: u64,
    bytes: u64,
    /// `None` for bytes.
    layout: Option<Layout>,
    count: u64,
}

/// Where a buffer without gaps in host memory begins, and how many bytes it has; `None` for all others.
#[inline]
pub(crate) fn plain(typed: &Typed) -> Option<(u64, u64)> {
    match (typed.region().space(), typed.contiguous_start()) {
        (Space::Host, Some(at)) => {
            Some((typed.region().start().wrapping_add(at), typed.packed_bytes()))
        }
        _ => None,
    }
}

impl Span {
    /// No memory.
    pub(crate) fn nothing() -> Span {
        Span { address: 0, bytes: 0, layout: None, count: 0 }
    }

    /// Becomes no memory, so that nothing is left to drop. The caller has used it for the last time.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        if self.layout.is_some() {
            self.layout = None;
        }
    }

    /// Its length.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the promise for `typed`, which is [plain] and whose span begins at displacement 0: there, and as many
    /// bytes long.
    ///
    /// # Safety
    /// Until the request that this is given to has ended, `typed` describes memory that is valid for
    /// reads and writes, and nothing else touches it.
    #[inline(always)] // field by field
    pub(crate) unsafe fn promise(&mut self, typed: &Typed, (address, bytes): (u64, u64)) {
        (self.address, self.bytes, self.count) = (address, bytes, typed.count());
        self.let_go();
        if let Some(layout) = typed.own_layout() {
            self.layout = Some(layout.clone());
        }
    }

    /// Copies the first `len` bytes of `words` into it, if it has exactly that length; returns whether it has.
    #[inline]
    pub(crate) fn put(&self, words: &[u64], len: usize) -> bool {
        if self.bytes != len as u64 {
            return false;
        }
        // SAFETY: the promise this stands for; its request has not ended. It has `len` bytes.
        unsafe { put_words(self.address, words, len) };
        true
    }

    /// Copies the `len` bytes of a message that follow its first `offset` into this buffer, if it has exactly that
    /// length; returns whether it has.
    #[inline]
    pub(crate) fn put_fragment(&self, fragment: &Fragment, offset: u64, len: u64) -> bool {
        if self.bytes != len {
            return false;
        }
        let to = Region::new(Space::Host, self.address, 0, self.bytes);
        // SAFETY: the promise this stands for; its request has not ended.
        unsafe { buffer::copy_from(fragment, offset, &to) }
    }

    /// Where the transport may put a message of exactly this length, whose head has `skip` bytes, all at once;
    /// described in `region`.
    pub(crate) fn receive_target<'r>(
        &'r self,
        region: &'r mut Region,
        skip: usize,
    ) -> Option<ReceiveTarget<'r>> {
        *region = Region::new(Space::Host, self.address, 0, self.bytes);
        // SAFETY: the promise this stands for; its request has not ended, and is borrowed as long as the target.
        unsafe { ReceiveTarget::new(skip, std::slice::from_ref(region), false) }
    }

    /// The same buffer in full, on which engine number `engine` works.
    pub(crate) fn into_buffer(self, engine: usize) -> Buffer {
        let region = Region::new(Space::Host, self.address, 0, self.bytes);
        let typed = match &self.layout {
            None => Typed::contiguous(region),
            Some(layout) => Typed::new(region, 0, layout, self.count)
                .expect("instances without gaps from displacement 0 on fill their bytes"),
        };
        // SAFETY: the promise this stands for: until its request has ended, which keeps the buffer.
        unsafe { Buffer::promised(&typed, engine) }
    }
}

/// An address of this process.
#[inline(always)]
fn address_of(address: u64) -> usize {
    usize::try_from(address).expect("it was an address")
}

/// Copies `len` bytes from `from` to the start of `words`, which has room for them.
///
/// # Safety
/// `len` bytes from `from` on are memory that is valid for reads, which nothing writes meanwhile.
#[inline(always)] // with a constant length there is little left of it
pub(crate) unsafe fn get_words(from: u64, words: &mut [u64], len: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(address_of(from));
    let words = &mut words[..len.div_ceil(8)];
    if len > 64 {
        // SAFETY: the caller vouches for the source; the target is as long, and nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(from, words.as_mut_ptr().cast::<u8>(), len) };
        return;
    }
    let whole = len / 8;
    for (at, word) in words[..whole].iter_mut().enumerate() {
        // SAFETY: `8 * at + 8` is at most `len`.
        *word = unsafe { from.wrapping_add(8 * at).cast::<u64>().read_unaligned() };
    }
    if let Some(word) = words.get_mut(whole) {
        let mut at = 8 * whole;
        let mut rest = 0u64;
        let mut shift = 0;
        if len & 4 != 0 {
            // SAFETY: four bytes of those up to `len` are left.
            rest = u64::from(u32::from_le(unsafe {
                from.wrapping_add(at).cast::<u32>().read_unaligned()
            }));
            (at, shift) = (at + 4, 32);
        }
        if len & 2 != 0 {
            // SAFETY: two bytes are left.
            let two = u16::from_le(unsafe { from.wrapping_add(at).cast::<u16>().read_unaligned() });
            rest |= u64::from(two) << shift;
            (at, shift) = (at + 2, shift + 16);
        }
        if len & 1 != 0 {
            // SAFETY: one byte is left.
            rest |= u64::from(unsafe { from.wrapping_add(at).read() }) << shift;
        }
        *word = rest.to_le();
    }
}

/// Copies the first `len` bytes of `words` to `to`.
///
/// # Safety
/// `len` bytes from `to` on are memory that is valid for writes, which nothing else touches meanwhile.
///
/// # Panics
/// There are not as many words.
#[inline(always)]
pub(crate) unsafe fn put_words(to: u64, words: &[u64], len: usize) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(address_of(to));
    let words = &words[..len.div_ceil(8)];
    if len > 64 {
        // SAFETY: the caller vouches for the target; the source is as long, and private.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), to, len) };
        return;
    }
    let whole = len / 8;
    for (at, word) in words[..whole].iter().enumerate() {
        // SAFETY: `8 * at + 8` is at most `len`.
        unsafe { to.wrapping_add(8 * at).cast::<u64>().write_unaligned(*word) };
    }
    if let Some(word) = words.get(whole) {
        let mut at = 8 * whole;
        let [a, b, c, d, e, f, g, _] = word.to_ne_bytes();
        let mut rest = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
        if len & 4 != 0 {
            let four = u32::from_ne_bytes([a, b, c, d]);
            // SAFETY: four bytes of those up to `len` are left.
            unsafe { to.wrapping_add(at).cast::<u32>().write_unaligned(four) };
            (at, rest) = (at + 4, rest >> 32);
        }
        let [a, b, c, ..] = rest.to_le_bytes();
        let mut last = a;
        if len & 2 != 0 {
            // SAFETY: two bytes are left.
            unsafe {
                to.wrapping_add(at).cast::<u16>().write_unaligned(u16::from_ne_bytes([a, b]))
            };
            (at, last) = (at + 2, c);
        }
        if len & 1 != 0 {
            // SAFETY: one byte is left.
            unsafe { to.wrapping_add(at).write(last) };
        }
    }
}

/// Prefetches the memory that a message is about to be read from, or written to: all lines at once, early.
#[inline]
pub(crate) fn expect(address: u64, len: u64, writes: bool) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        const LINE: u64 = 64;
        let end = address.saturating_add(len.min(EXPECTED_MAX));
        let mut line = address & !(LINE - 1);
        while line < end {
            if writes {
                // SAFETY: a hint: it changes no memory and no register, and does not fault.
                unsafe {
                    std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            } else {
                // SAFETY: as above.
                unsafe {
                    std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
            line += LINE;
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, len, writes);
}

/// Bytes that are prefetched at most.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const EXPECTED_MAX: u64 = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn bytes_of_every_length_go_in_and_come_out_and_nothing_else_is_touched() {
        let bytes: Vec<u8> = (1..=100).collect();
        for len in 0..=bytes.len() - 8 {
            for start in 0..8 {
                let mut words = [u64::MAX; 13];
                let from = bytes[start..start + len].as_ptr().expose_provenance() as u64;
                // SAFETY: `bytes` is as long, and nobody writes it.
                unsafe { get_words(from, &mut words, len) };
                let mut out = [0xEEu8; 120];
                let to = out[start..].as_mut_ptr().expose_provenance() as u64;
                // SAFETY: `out` is as long, and nobody else touches it.
                unsafe { put_words(to, &words, len) };
                assert_eq!(out[start..start + len], bytes[start..start + len], "{len}");
                assert!(out[..start].iter().chain(&out[start + len..]).all(|&byte| byte == 0xEE));
            }
        }
    }

    #[test]
    fn only_plain_memory_is_a_span() {
        let mut memory = [0u8; 64];
        let region = Region::of_mut(&mut memory);
        let double = Datatype::from(Primitive::Double);
        let (one, gaps) = (double.commit().unwrap(), Datatype::vector(2, 1, 2, &double).unwrap());
        let span = |typed: &Typed| {
            let mut span = Span::nothing();
            let bytes =
                plain(typed).filter(|_| typed.contiguous_start() == Some(typed.origin()))?;
            // SAFETY: nothing is moved in or out.
            unsafe { span.promise(typed, bytes) };
            Some(span)
        };
        let (doubles, bytes) = (
            Typed::new(region, 8, &one, 3).unwrap(),
            Typed::contiguous(region.sub(8, 24).unwrap()),
        );
        for typed in [doubles, bytes] {
            let buffer = span(&typed).unwrap().into_buffer(7);
            let again = buffer.typed();
            let start_and_len =
                |typed: &Typed| typed.as_contiguous().map(|all| (all.start(), all.len()));
            assert_eq!((start_and_len(again), buffer.engine()), (start_and_len(&typed), 7));
            assert_eq!(
                again.layout().signature().digest(again.count()),
                typed.layout().signature().digest(typed.count())
            );
        }
        let gaps = Typed::new(region, 0, &gaps.commit().unwrap(), 1).unwrap();
        assert!(span(&gaps).is_none());
        let pinned = Region::new(Space::Pinned, region.start(), 0, 8);
        assert!(span(&Typed::contiguous(pinned)).is_none() && plain(&gaps).is_none());
        let late = Datatype::contiguous(2, &double).unwrap();
        let late = Datatype::indexed_block(1, &[3i64], &late).unwrap().commit().unwrap();
        let late = Typed::new(region, 0, &late, 1);
        assert!(late.is_ok_and(|late| plain(&late).is_some() && span(&late).is_none()));
    }
}
