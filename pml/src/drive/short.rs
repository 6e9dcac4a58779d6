//! The fast path of short messages: eager ones in standard mode, between plain host memory on both sides, small
//! enough to be passed to and by the transport by value.
//!
//! Most messages of most programs are like this, so both ends have a path with only the necessary work. It first
//! checks all conditions; if one does not hold, nothing has been changed, and `drive/send.rs` or `drive/core.rs`
//! handle the message. The bytes on the wire are the same.

use crate::buffer;
use crate::buffer::span;
use crate::buffer::span::{Span, get_words, plain, put_words};
use crate::comm::Comm;
use crate::drive::core::Core;
use crate::drive::receive_target::words_of;
use crate::drive::send::{ZERO_COPY_MIN, eager_payload};
use crate::links::AM_TAG;
use crate::protocol::Protocol;
use crate::requests::{InlineRecv, Submitted};
use crate::status::{RequestId, Status};
use crate::wire::{self, EAGER_BYTES, EAGER_STANDARD, EAGER_WORDS, Label, to_usize};
use gapless_bml::{
    Bml, Fragment, Next, Rank, ReceiveTarget, SHORT_BYTES, Short, Token, ZeroCopyMessage,
    ZeroCopyResult,
};
use gapless_engine::Typed;
use gapless_mem::{Region, Space};
use zerocopy::IntoBytes;

/// Words of a message that fits a line of the shared-memory transport.
const LINE_WORDS: usize = 7;
/// Words of a message that fits a few lines.
const MEDIUM_WORDS: usize = 4 * LINE_WORDS;
/// Words of the longest message that is passed by value.
const WORDS: usize = SHORT_BYTES / 8;
/// Most bytes of data.
const DATA_MAX: u64 = (SHORT_BYTES - EAGER_BYTES) as u64;

/// One of this many posted receives checks whether messages have come.
const POSTS_PER_LOOK: u32 = 16;

/// A receive that is waited for and not posted, because nothing can come between it and the next message of its source.
/// If that message is the expected one, nothing needs matching.
#[derive(Debug)]
pub struct Awaited {
    /// The exact header of the message.
    header: [u64; EAGER_WORDS],
    /// The memory that it is written to: every caller renews the promise for it.
    address: u64,
    bytes: u64,
    peer: u32,
    rank: u32,
    tag: i32,
}

impl Awaited {
    /// How it has ended, once it was taken.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        let Awaited { rank, tag, bytes, .. } = *self;
        Status { source: rank, tag, bytes, protocol: Protocol::Eager }
    }
}

impl Core {
    /// Sends at once if possible; `None`, with nothing done, otherwise.
    ///
    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads, and nothing writes it.
    #[inline]
    pub(crate) unsafe fn send_short(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
    ) -> Option<Submitted> {
        let (address, bytes) = plain(buffer)?;
        let tuning = &self.config.tuning;
        if bytes > tuning.eager_bytes_sure.min(tuning.eager_bytes_max) || tag < 0 {
            return None;
        }
        let route = self.comms.route(comm, rank)?;
        let peer = route.process;
        if !matches!(self.config.force, None | Some(Protocol::Eager)) || self.host.is_none() {
            return None;
        }
        let state = &mut self.links[peer];
        if state.lost.is_some() || !state.outbox.is_empty() {
            return None;
        }
        if bytes > DATA_MAX {
            // SAFETY: the caller's promise is passed on.
            return unsafe { self.send_in_slot(bml, comm, buffer, (peer, rank, tag)) };
        }
        let sequence = state.next_sequence;
        let digest = self.digests.words(buffer.layout(), buffer.count());
        let header = wire::eager_words((route.there, tag, sequence), digest);
        let len = to_usize(bytes);
        let sent = if len <= 8 * (LINE_WORDS - EAGER_WORDS) {
            // SAFETY: the caller's promise is passed on.
            unsafe { fill_and_send::<LINE_WORDS>(bml, peer, header, address, len) }
        } else if len <= 8 * (MEDIUM_WORDS - EAGER_WORDS) {
            // SAFETY: as above.
            unsafe { fill_and_send::<MEDIUM_WORDS>(bml, peer, header, address, len) }
        } else {
            // SAFETY: as above.
            unsafe { fill_and_send::<WORDS>(bml, peer, header, address, len) }
        };
        if !sent {
            return None;
        }
        state.next_sequence = sequence.wrapping_add(1);
        let status = Status { source: rank, tag, bytes, protocol: Protocol::Eager };
        Some(Submitted { status, peer, sequence })
    }

    /// Starts a receive that is most likely for a short message; `None`, with nothing done, otherwise.
    ///
    /// # Safety
    /// As [`Pml::irecv`](crate::Pml::irecv).
    #[inline]
    pub(crate) unsafe fn recv_short(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
    ) -> Option<RequestId> {
        let engine = u8::try_from(self.host?).ok()?;
        let (address, bytes) = plain(buffer)?;
        if tag < 0
            || !self.matching.is_empty()
            || buffer.contiguous_start() != Some(buffer.origin())
        {
            return None;
        }
        let route = self.comms.route(comm, rank)?;
        let source = route.process;
        if !self.links[source].link_requested {
            return None;
        }
        let digest = self.digests.words(buffer.layout(), buffer.count());
        let (context, posted) = (route.here, &mut self.matching.posted);
        let inline = InlineRecv { engine, rank, peer: source, tag, context, digest };
        let label = Label { context, source, tag };
        // SAFETY: the caller's promise is passed on.
        let promise = |place: &mut Span| unsafe { place.promise(buffer, (address, bytes)) };
        let post = |index| posted.post_direct(label, index);
        let id = self.requests.insert_inline_recv(&inline, promise, post);
        self.matching.posted_inline = self.matching.posted_inline.wrapping_add(1);
        if self.matching.posted_inline.is_multiple_of(POSTS_PER_LOOK) {
            self.take_what_came(bml, source);
        }
        Some(id)
    }

    /// Gives messages of `from` that have come to their receives, up to the first that has none. A caller that posts
    /// many receives takes messages in batches in this way: looking for a message that is being written delays its
    /// writer.
    #[inline(never)]
    fn take_what_came(&mut self, bml: &mut Bml, from: u32) {
        for _ in 0..2 * POSTS_PER_LOOK {
            let take = |message: Short<'_>| self.take_short(from, message.words(), message.len());
            if bml.take_next(Rank(from), AM_TAG, take) != Next::Taken {
                return;
            }
        }
    }

    /// What to wait for instead of a posted receive; `None` if messages for this buffer are not short, or some other
    /// receive or message may come between.
    #[inline]
    pub(crate) fn comes_next(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
    ) -> Option<Awaited> {
        let (address, bytes) = plain(buffer)?;
        if tag < 0 || bytes > DATA_MAX || !self.matching.is_empty() {
            return None;
        }
        let route = self.comms.route(comm, rank)?;
        let peer = route.process;
        let label = Label { context: route.here, source: peer, tag };
        let state = &self.links[peer];
        if !state.link_requested || !self.matching.posted.is_free(label) {
            return None;
        }
        let sequence = state.reorder.next_in_order()?;
        let digest = self.digests.words(buffer.layout(), buffer.count());
        let header = wire::eager_words((route.here, tag, sequence), digest);
        span::expect(address, bytes, true);
        Some(Awaited { header, address, bytes, peer, rank, tag })
    }

    /// Receives the awaited message, if it is the next one of its source and has arrived.
    ///
    /// # Safety
    /// For the time of this call, the memory that `awaited` was made for is valid for writes, and nothing else
    /// touches it. Nothing was received, started or cancelled since.
    #[inline]
    pub(crate) unsafe fn take_awaited(&mut self, bml: &mut Bml, awaited: &Awaited) -> Next {
        let Awaited { header, address, bytes, .. } = awaited;
        let next = bml.take_next(Rank(awaited.peer), AM_TAG, |message: Short<'_>| {
            let fits = message.len() as u64 == EAGER_BYTES as u64 + bytes;
            let Some((theirs, data)) = message.words().split_first_chunk::<EAGER_WORDS>() else {
                return false;
            };
            if !fits || theirs != header {
                return false;
            }
            // SAFETY: the caller's promise; as many bytes have come.
            unsafe { put_words(*address, data, message.len() - EAGER_BYTES) };
            true
        });
        if next == Next::Taken {
            self.links[awaited.peer].reorder.pass();
            self.requests.ended.ended(Protocol::Eager, *bytes);
        }
        next
    }

    /// Sends a message at once that is too long to be passed by value but certainly eager.
    ///
    /// # Safety
    /// As [`send_short`](Core::send_short).
    unsafe fn send_in_slot(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (peer, rank, tag): (u32, u32, i32),
    ) -> Option<Submitted> {
        let bytes = buffer.packed_bytes();
        if bytes > eager_payload(bml.limits(Rank(peer))?) {
            return None;
        }
        let digest = self.digests.words(buffer.layout(), buffer.count());
        let sequence = self.links[peer].next_sequence;
        let header = wire::eager_words((comm.context_at(rank), tag, sequence), digest);
        let status = Status { source: rank, tag, bytes, protocol: Protocol::Eager };
        if bytes >= ZERO_COPY_MIN
            // SAFETY: the caller's promise is passed on.
            && unsafe { send_zero_copy(bml, peer, &header, buffer) }
        {
            self.links[peer].next_sequence = sequence.wrapping_add(1);
            return Some(Submitted { status, peer, sequence });
        }
        let len = EAGER_BYTES + to_usize(bytes);
        let mut slot = self.reserve(bml, peer, len)?;
        // SAFETY: the caller's promise is for the time of this call.
        unsafe { buffer::copy_in(buffer, 0..bytes, &mut slot, EAGER_BYTES) }?.ok()?;
        slot.write(0, header.as_bytes()).ok()?;
        self.links[peer].next_sequence = sequence.wrapping_add(1);
        bml.send(slot, AM_TAG, Token::NONE);
        Some(Submitted { status, peer, sequence })
    }

    /// Gives a message to its receive, if it is the next one and its receive is posted and expects just
    /// such a message; `false`, with nothing changed, for everything else.
    #[inline]
    pub(crate) fn take_short(&mut self, from: u32, words: &[u64], len: usize) -> bool {
        let Some((header, data)) = words.split_first_chunk::<EAGER_WORDS>() else { return false };
        let Some(bytes) = len.checked_sub(EAGER_BYTES) else { return false };
        self.take_direct(from, header, |buffer| buffer.put(data, bytes))
    }

    /// As [`take_short`](Core::take_short), of a message in the transport's memory.
    pub(crate) fn take_fragment(&mut self, from: u32, fragment: &Fragment) -> bool {
        let mut header = [0; EAGER_WORDS];
        fragment.len() >= EAGER_BYTES
            && fragment.read(0, header.as_mut_bytes()).is_ok()
            && self.take_with_header(from, &header, fragment)
    }

    /// As [`take_fragment`](Core::take_fragment), once the header was read.
    #[inline(always)] // on short messages' path
    pub(crate) fn take_with_header(
        &mut self,
        from: u32,
        header: &[u64; EAGER_WORDS],
        fragment: &Fragment,
    ) -> bool {
        let Some(bytes) = fragment.len().checked_sub(EAGER_BYTES) else { return false };
        self.take_direct(from, header, |buffer| {
            buffer.put_fragment(fragment, EAGER_BYTES as u64, bytes as u64)
        })
    }

    /// Where the data of a message of `len` bytes goes that begins with `head`, if [`take_fragment`](Core::take_fragment)
    /// would take it.
    pub(crate) fn target_of_eager(
        &mut self,
        from: u32,
        head: &[u8],
        len: usize,
    ) -> Option<ReceiveTarget<'_>> {
        let (_, index, digest) = self.direct_receive(from, &words_of(head)?)?;
        let buffer = self.requests.inline_recv_buffer(index, digest)?;
        let fits = buffer.bytes() == len.checked_sub(EAGER_BYTES)? as u64;
        fits.then(|| buffer.receive_target(self.region_list.one(), EAGER_BYTES)).flatten()
    }

    /// Finds the receive that an eager message goes to, if no other can get the message; and the digest that the
    /// receive must expect.
    #[inline(always)] // on short messages' path
    fn direct_receive(
        &self,
        from: u32,
        header: &[u64; EAGER_WORDS],
    ) -> Option<(Label, u32, (u64, u64))> {
        let [first, second, hash, elements] = header.map(u64::from_le);
        let halves = |word: u64| (low(word), low(word >> 32));
        let ((kind, context), (tag, sequence)) = (halves(first), halves(second));
        let peer = &self.links[from];
        if kind != EAGER_STANDARD || peer.lost.is_some() || !peer.reorder.is_in_order(sequence) {
            return None;
        }
        let tag = tag.cast_signed();
        // That the receive names this process proves that it is in the group.
        let label = Label { context, source: from, tag };
        Some((label, self.matching.posted.find_direct(label)?, (hash, elements)))
    }

    /// Finds the receive of an eager message, and ends it if `put` puts the data there.
    #[inline]
    pub(crate) fn take_direct(
        &mut self,
        from: u32,
        header: &[u64; EAGER_WORDS],
        put: impl FnOnce(&Span) -> bool,
    ) -> bool {
        let Some((label, index, digest)) = self.direct_receive(from, header) else {
            return false;
        };
        if !self.requests.finish_inline_recv(index, digest, put) {
            return false;
        }
        self.links[from].reorder.pass();
        self.matching.posted.take_direct(label);
        true
    }
}

/// The lower half.
#[inline]
fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Sends a message straight out of a plain buffer; returns whether it left.
///
/// # Safety
/// For the time of this call, `buffer` describes memory that is valid for reads, and nothing writes it.
unsafe fn send_zero_copy(
    bml: &mut Bml,
    peer: u32,
    header: &[u64; EAGER_WORDS],
    buffer: &Typed,
) -> bool {
    let Some((address, bytes)) = plain(buffer) else { return false };
    let body = [Region::new(Space::Host, address, 0, bytes)];
    // SAFETY: the caller's promise is for the time of this call, and so is the message.
    let message = unsafe { ZeroCopyMessage::new(header.as_bytes(), &body) };
    message.is_some_and(|it| bml.send_zero_copy(Rank(peer), AM_TAG, &it) == ZeroCopyResult::Sent)
}

/// Assembles a message of `len` bytes of data in at most `N` words, and sends it; returns whether it left.
///
/// # Safety
/// `len` bytes from `address` on are memory that is valid for reads, and nothing writes it.
#[inline(always)] // with constant lengths there is little left of it
unsafe fn fill_and_send<const N: usize>(
    bml: &mut Bml,
    peer: u32,
    header: [u64; EAGER_WORDS],
    address: u64,
    len: usize,
) -> bool {
    let mut words = [0; N];
    words[..EAGER_WORDS].copy_from_slice(&header);
    // SAFETY: the caller's promise is passed on.
    unsafe { get_words(address, &mut words[EAGER_WORDS..], len) };
    bml.send_short(Rank(peer), AM_TAG, Short::new(&words, EAGER_BYTES + len))
}
