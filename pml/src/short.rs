//! The straight way of short messages: eager ones in standard mode that are small enough to be handed to
//! and by the transport by value, between plain host memory on both sides.
//!
//! This is what most messages of most programs are, so both ends have a way that does nothing but what
//! they need. It is taken if everything is as usual; at the first thing that is not, nothing has been
//! changed, and `send.rs` or `core.rs` do all of it. The bytes on the wire are the same.

use crate::buffer::{self, Engines};
use crate::comm::Comm;
use crate::core::{AM_TAG, Core};
use crate::header::{self, EAGER_BYTES, EAGER_STANDARD, EAGER_WORDS};
use crate::matching::Label;
use crate::protocol::Protocol;
use crate::recv::Recv;
use crate::request::{Left, Status};
use crate::send::{eager_payload, to_usize};
use gapless_bml::{Bml, Fragment, Rank, SHORT_BYTES, Short, Token};
use gapless_engine::Typed;
use gapless_mem::{Completion, Region, Space};
use zerocopy::IntoBytes;

/// Words of a message that fits a line of the shared-memory transport.
const LINE_WORDS: usize = 7;
/// Words of the longest.
const WORDS: usize = SHORT_BYTES / 8;
/// Most bytes of data.
const DATA_MAX: u64 = (SHORT_BYTES - EAGER_BYTES) as u64;

/// What a receive of a named source expects, for a quick comparison with what comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The source's rank in the communicator.
    pub(crate) rank: u32,
    /// The word of the header that has the hash of all that the receive takes.
    pub(crate) hash: u64,
    /// Elements of that.
    pub(crate) elements: u64,
}

impl Core {
    /// Sends at once what can be; `None`, with nothing done, for everything else.
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
    ) -> Option<Left> {
        let bytes = buffer.packed_bytes();
        let tuning = &self.config.tuning;
        if bytes > tuning.eager_bytes_sure.min(tuning.eager_bytes_max) {
            return None;
        }
        let whole = buffer.as_contiguous().filter(|whole| whole.space() == Space::Host)?;
        let peer = comm.process(rank).ok()?;
        if tag < 0 || self.config.force.is_some() || self.comms.check(comm).is_err() {
            return None;
        }
        self.host?;
        let state = &mut self.peers[peer as usize];
        if state.lost.is_some() || !state.outbox.is_empty() {
            return None;
        }
        if bytes > DATA_MAX {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.send_in_slot(bml, comm, buffer, (peer, rank, tag)) };
        }
        let sequence = state.next_sequence;
        let (digest, hash) = self.digests.with_word(buffer.layout(), buffer.count());
        let place = (comm.context_at(rank), tag, sequence);
        let header = header::eager_words(place, (hash, digest.elements));
        let len = EAGER_BYTES + usize::try_from(bytes).ok()?;
        let sent = if len <= LINE_WORDS * 8 {
            // SAFETY: the caller vouches for `whole`.
            unsafe { fill_and_send::<LINE_WORDS>(bml, peer, header, &whole, len) }
        } else {
            // SAFETY: as above.
            unsafe { fill_and_send::<WORDS>(bml, peer, header, &whole, len) }
        };
        if !sent {
            return None;
        }
        state.next_sequence = sequence.wrapping_add(1);
        let status = Status { source: rank, tag, bytes, protocol: Protocol::Eager };
        Some(Left { status, peer, sequence })
    }

    /// Sends at once what is too long to be handed over by value and still certainly eager.
    ///
    /// # Safety
    /// As [`send_short`](Core::send_short).
    unsafe fn send_in_slot(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (peer, rank, tag): (u32, u32, i32),
    ) -> Option<Left> {
        let (bytes, engine) = (buffer.packed_bytes(), self.host?);
        if bytes > eager_payload(bml.limits(Rank(peer))?) {
            return None;
        }
        let len = EAGER_BYTES + to_usize(bytes);
        let mut slot = self.reserve(bml, peer, len)?;
        // SAFETY: the caller's promise is handed on; it is done when this returns, because both are
        // memory of the host.
        let packed =
            unsafe { buffer::pack(&self.engines, engine, buffer, 0..bytes, &slot, EAGER_BYTES) };
        let Ok(Completion::Ready) = packed else { return None };
        let (digest, hash) = self.digests.with_word(buffer.layout(), buffer.count());
        let state = &mut self.peers[peer as usize];
        let sequence = state.next_sequence;
        let place = (comm.context_at(rank), tag, sequence);
        let header = header::eager_words(place, (hash, digest.elements));
        slot.write(0, header.as_bytes()).ok()?;
        state.next_sequence = sequence.wrapping_add(1);
        bml.send(slot, AM_TAG, Token::NONE);
        let status = Status { source: rank, tag, bytes, protocol: Protocol::Eager };
        Some(Left { status, peer, sequence })
    }

    /// Gives a message to its receive, if it is the next one and its receive is posted and expects just
    /// such a message; `false`, with nothing changed, for everything else.
    #[inline]
    pub(crate) fn take_short(&mut self, from: u32, words: &[u64], len: usize) -> bool {
        let Some((header, data)) = words.split_first_chunk::<EAGER_WORDS>() else { return false };
        let Some(bytes) = len.checked_sub(EAGER_BYTES) else { return false };
        let Some(data) = data.as_bytes().get(..bytes) else { return false };
        self.take_straight(from, header, bytes, |recv, _| recv.buffer.put(data))
    }

    /// As [`take_short`](Core::take_short), of a message in the transport's memory.
    pub(crate) fn take_longer(&mut self, from: u32, fragment: &Fragment) -> bool {
        let mut header = [0; EAGER_WORDS];
        let Some(bytes) = fragment.len().checked_sub(EAGER_BYTES) else { return false };
        if fragment.read(0, header.as_mut_bytes()).is_err() {
            return false;
        }
        self.take_straight(from, &header, bytes, |recv, engines| {
            let fits =
                recv.buffer.typed().as_contiguous().is_some_and(|whole| {
                    whole.space() == Space::Host && whole.len() == bytes as u64
                });
            let data = fragment.region().sub(EAGER_BYTES as u64, bytes as u64);
            let Some(data) = data.ok().filter(|data| fits && data.space().cpu_accessible()) else {
                return false;
            };
            matches!(recv.buffer.unpack(engines, data, 0..data.len()), Ok(Completion::Ready))
        })
    }

    /// Finds the receive of an eager message of `bytes`, and ends it if `put` puts the data there.
    #[inline]
    fn take_straight(
        &mut self,
        from: u32,
        header: &[u64; EAGER_WORDS],
        bytes: usize,
        put: impl FnOnce(&Recv, &Engines) -> bool,
    ) -> bool {
        let [first, second, hash, elements] = header.map(u64::from_le);
        let halves = |word: u64| (low(word), low(word >> 32));
        let ((kind, context), (tag, sequence)) = (halves(first), halves(second));
        let peer = &mut self.peers[from as usize];
        if kind != EAGER_STANDARD || peer.lost.is_some() || !peer.reorder.is_straight(sequence) {
            return false;
        }
        let tag = tag.cast_signed();
        // That the receive names this process proves that it is in the group.
        let label = Label { context, source: from, tag };
        let Some(index) = self.posted.straight(label) else { return false };
        let Some((recv, expected)) = self.requests.expecting(index) else { return false };
        if expected.hash != hash || expected.elements != elements || !put(recv, &self.engines) {
            return false;
        }
        let (source, bytes) = (expected.rank, bytes as u64);
        self.posted.take_straight(label);
        self.peers[from as usize].reorder.pass();
        self.requests.finish_at(index, Status { source, tag, bytes, protocol: Protocol::Eager });
        true
    }
}

/// The lower half.
#[inline]
fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Puts a message of `len` bytes together in at most `N` words, and sends it; whether it left.
///
/// # Safety
/// `data` describes memory that is valid for reads, and nothing writes it.
#[inline(always)] // with constant lengths there is little left of it
unsafe fn fill_and_send<const N: usize>(
    bml: &mut Bml,
    peer: u32,
    header: [u64; EAGER_WORDS],
    data: &Region,
    len: usize,
) -> bool {
    let mut words = [0; N];
    words[..EAGER_WORDS].copy_from_slice(&header);
    // SAFETY: the caller's promise is handed on.
    if unsafe { buffer::read_words(data, &mut words[EAGER_WORDS..]) }.is_err() {
        return false;
    }
    bml.send_short(Rank(peer), AM_TAG, Short::new(&words, len))
}
