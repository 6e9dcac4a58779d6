//! What comes from one peer: bytes of a stream that become messages.
//!
//! Short messages arrive in the inbox, many with one call, and are offered from there by value. A longer one has a
//! buffer as soon as its header is known, and the rest of it is read straight into that; the same call reads what
//! follows into the inbox. What is in the inbox has to be copied, so little is read ahead of a message that is likely
//! to be long: one behind a long one.
//!
//! A message is likely to be as long as the one before it. Behind a long one, the first bytes of the next are read into the
//! inbox, and as many as fit there straight into its buffer, with one call. If it turns out to be a shorter message,
//! what was read is put together in the inbox.
//!
//! If the sink knows where a long message goes ([`Sink::receive_target`]), the rest of it is read straight to there,
//! and no buffer is needed. A message that may not stay there in part goes there only if all that is missing has come;
//! else it goes into a buffer: nothing of it may be seen in memory whose owner might still take it back. While messages
//! have targets, only the beginning of the next is read.

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::counts::Counts;
use crate::outbound::{SMALL_BYTES, SMALL_EACH};
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{
    AmTag, Event, Fragment, LinkError, PeerId, ReceiveTarget, SHORT_BYTES, Short, Sink,
    TargetAnswer,
};
use gapless_mem::{Device, DeviceError};
use std::io::IoSliceMut;
use std::sync::Arc;

/// Bytes read ahead.
const INBOX_BYTES: usize = 17 << 10;
/// Bytes read beyond a body that has a long buffer: the next header, and a message that is very short.
const BEYOND_BYTES: usize = 64;
/// Behind a message of so many bytes, no more than that is read ahead, either: to copy so many takes longer than to
/// call the system once more.
const LONG_BYTES: usize = 8 << 10;
/// Messages from this length on go to targets in which parts of them may not stay.
const TENTATIVE_BYTES: usize = 32 << 10;
/// Of a message that is read with its header, so many bytes land in the inbox.
const FRONT_BYTES: usize = BEYOND_BYTES - HEADER_BYTES;
/// So much of it is read: it fits the inbox with what was read beyond it.
const GUESS_BYTES: usize = INBOX_BYTES - 2 * BEYOND_BYTES;
/// Calls that read, in one poll.
const READS: usize = 8;
/// A message that is not here in full.
struct Partial {
    tag: AmTag,
    body: Body,
    len: usize,
    got: usize,
}

/// Where the bytes of a message are that is not here in full.
enum Body {
    Buffer(Buffer),
    /// The same; what is missing goes to the message's target if all of it has come.
    Tentative(Buffer),
    /// The body lies in its target. The message begins so.
    AtTarget([u8; FRONT_BYTES]),
}

/// What became of an attempt to read.
enum Filled {
    /// So many bytes have come, and for so many there was room.
    Read(usize, usize),
    /// Nothing has come.
    Nothing,
    /// Nothing may be read in this poll.
    Held,
    NoBuffer,
}

/// Whether to read straight to a target is quicker than to copy: where parts may not stay, it takes two calls more.
fn pays(target: &ReceiveTarget<'_>, len: usize) -> bool {
    target.keeps() || len >= TENTATIVE_BYTES
}

/// Whether a target is for all of a message but its head.
fn fits(target: &ReceiveTarget<'_>, len: usize) -> bool {
    target.skip() <= FRONT_BYTES && target.skip() + target.len() == len
}

/// Where reading stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// All that has come was read.
    Dry,
    /// There may be more: it was enough for this poll, or the sink has no room.
    More,
    /// There is no buffer until the receiver gives one back.
    NoBuffer,
    /// The stream has ended, for this reason. All that came in full was delivered.
    End(LinkError),
}

/// The way from one peer.
pub(crate) struct Inbound {
    inbox: Box<[u8]>,
    /// Where in the inbox lies what was not looked at.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// How long the last message is whose header was read.
    last: usize,
    /// The buffer of the message whose header is in the inbox, how many bytes of it are there, and where in the inbox
    /// lies what is behind those.
    guessed: Option<(Buffer, usize, usize)>,
    /// The last long message had a target.
    had_target: bool,
    /// A message that nobody had room for.
    stuck: Option<(AmTag, Fragment)>,
    small: HeapPool,
    large: HeapPool,
    counts: Counts,
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbound with {} bytes that wait", self.end - self.start)
    }
}

/// What became of the next message.
enum InboundStep {
    /// One of so many bytes is delivered.
    Delivered(usize),
    /// It was none, but a count.
    Noted,
    /// It is not here in full.
    Incomplete,
    NoRoom,
    NoBuffer,
}

impl Inbound {
    pub(crate) fn new(config: &TcpConfig) -> Inbound {
        Inbound {
            inbox: vec![0; INBOX_BYTES].into(),
            start: 0,
            end: 0,
            partial: None,
            last: 0,
            guessed: None,
            had_target: false,
            stuck: None,
            small: HeapPool::new(SMALL_EACH * config.buffers, SMALL_BYTES),
            large: HeapPool::new(config.buffers, config.fragment_bytes),
            counts: Counts::new(config.buffers),
        }
    }

    /// Has a device know the long buffers.
    pub(crate) fn attach(&self, device: &Arc<dyn Device>) -> Result<(), DeviceError> {
        self.large.attach(device)
    }

    /// Has it forget them.
    ///
    /// # Safety
    /// As for [`HeapPool::detach`].
    #[allow(unsafe_code, reason = "hands on what its caller has found out of a device")]
    pub(crate) unsafe fn detach(&self, device: &Arc<dyn Device>) {
        // SAFETY: the caller's promise.
        unsafe { self.large.detach(device) };
    }

    /// How many of the peer's retained messages have come in full, modulo 2¹⁶: the peer is told now.
    pub(crate) fn tell(&mut self) -> u16 {
        self.counts.tell()
    }

    /// Whether the peer waits for the count: at once, or if nothing else has told it for a while.
    pub(crate) fn owes(&self, at_once: bool) -> bool {
        self.counts.owes(at_once)
    }

    /// Whether the peer is to be told of our count once nothing more has come.
    pub(crate) fn owes_much(&self) -> bool {
        self.counts.owes_much()
    }

    /// What the peer has told of our retained messages since this was last asked.
    pub(crate) fn take_confirmed(&mut self) -> Option<u16> {
        self.counts.confirmed.take()
    }

    /// Delivers at most `batch` messages; how many it were, whether anything was read, and why it stopped. `offers`
    /// says whether messages may be offered in this poll, and is made false by one that is given as an event. The
    /// buffers of a peer that is `closing` are not limited: what it has said is bounded by what the system holds. Who
    /// asks for one message gives it no target.
    pub(crate) fn receive(
        &mut self,
        connection: &mut Connection,
        from: PeerId,
        sink: &mut dyn Sink,
        batch: usize,
        offers: &mut bool,
        closing: bool,
    ) -> (usize, bool, Stop) {
        let (mut count, mut heard, mut dry, mut reads) = (0, false, false, 0);
        let targets = batch > 1 && connection.is_plain();
        loop {
            while count < batch {
                match self.deliver(from, sink, offers, targets, closing) {
                    Ok(InboundStep::Delivered(len)) => {
                        count += 1;
                        self.counts.had(len);
                    }
                    Ok(InboundStep::Noted) => {}
                    Ok(InboundStep::Incomplete) => break,
                    Ok(InboundStep::NoRoom) => return (count, heard, Stop::More),
                    Ok(InboundStep::NoBuffer) => return (count, heard, Stop::NoBuffer),
                    Err(error) => return (count, heard, Stop::End(error)),
                }
            }
            if count >= batch {
                return (count, heard, Stop::More);
            }
            if dry {
                return (count, heard, Stop::Dry);
            }
            if reads == READS {
                return (count, heard, Stop::More);
            }
            reads += 1;
            match self.fill(connection, from, sink, targets && *offers, closing) {
                Ok(Filled::Read(read, all)) => {
                    (heard, dry) = (true, read < all && !connection.has_more())
                }
                Ok(Filled::Nothing) => return (count, heard, Stop::Dry),
                Ok(Filled::Held) => return (count, heard, Stop::More),
                Ok(Filled::NoBuffer) => return (count, heard, Stop::NoBuffer),
                Err(error) => return (count, heard, Stop::End(error)),
            }
        }
    }

    /// Reads once. `targets` says whether the sink may be asked for some.
    fn fill(
        &mut self,
        connection: &mut Connection,
        from: PeerId,
        sink: &mut dyn Sink,
        targets: bool,
        closing: bool,
    ) -> Result<Filled, LinkError> {
        if self.start > 0 {
            // Less than a header and a short message.
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(filled) = self.fill_target(connection, from, sink, targets, closing)? {
            return Ok(filled);
        }
        if self.partial.is_none()
            && self.end == 0
            && self.last >= LONG_BYTES
            && !self.had_target
            && let Some(body) = self.large.buffer(self.large.buffer_bytes())
        {
            return self.fill_guessed(connection, body, self.last.min(GUESS_BYTES));
        }
        let (body, ahead): (&mut [u8], bool) = match &mut self.partial {
            Some(Partial { body: Body::Buffer(body), got, .. }) => {
                let ahead = body.len() <= SMALL_BYTES;
                (&mut body[*got..], ahead)
            }
            // What is here is a header in part, or a short message in part.
            _ => (&mut [], self.last < LONG_BYTES || self.end >= HEADER_BYTES),
        };
        let missing = body.len();
        let inbox = &mut self.inbox[self.end..if ahead { INBOX_BYTES } else { BEYOND_BYTES }];
        let all = missing + inbox.len();
        let read = match connection.read(&mut [IoSliceMut::new(body), IoSliceMut::new(inbox)])? {
            Some(0) => return Err(connection.closed()),
            Some(read) => read,
            None => return Ok(Filled::Nothing),
        };
        if let Some(partial) = &mut self.partial {
            partial.got += read.min(missing);
        }
        self.end += read.saturating_sub(missing);
        Ok(Filled::Read(read, all))
    }

    /// Reads once, straight to the target of the message that is not here in full. `None`: it has none, or none any
    /// more.
    fn fill_target(
        &mut self,
        connection: &mut Connection,
        from: PeerId,
        sink: &mut dyn Sink,
        targets: bool,
        closing: bool,
    ) -> Result<Option<Filled>, LinkError> {
        let Some(partial) = &mut self.partial else { return Ok(None) };
        let (tag, len, got) = (partial.tag, partial.len, partial.got);
        let (head, tentative) = match &partial.body {
            Body::Buffer(_) => return Ok(None),
            Body::Tentative(buffer) => {
                (*buffer.first_chunk().expect("it is longer than its head"), true)
            }
            Body::AtTarget(head) => (*head, false),
        };
        let missing = len - got;
        let answer = match targets && (!tentative || connection.has(missing)) {
            true => sink.receive_target(from, tag, &head, len),
            false => TargetAnswer::Later,
        };
        let target = match answer {
            TargetAnswer::Here(target) if fits(&target, len) => target,
            TargetAnswer::Later if !tentative => return Ok(Some(Filled::Held)),
            _ => return Ok(self.fall_back(closing)),
        };
        let beyond = &mut self.inbox[..BEYOND_BYTES];
        let (read, room) = match connection.read_to(&target, got, beyond)? {
            Some((0, _)) => return Err(connection.closed()),
            Some(read) => read,
            None => return Ok(Some(Filled::Nothing)),
        };
        let new = read.min(missing);
        partial.got += new;
        self.end = read - new;
        if let Body::Tentative(buffer) = &mut partial.body {
            if new == missing {
                target.put(0, &buffer[..got]);
                partial.body = Body::AtTarget(head);
            } else {
                // The system has read less than it had, or the target has too many pieces.
                target.copy_out(got, &mut buffer[got..got + new]);
                self.fall_back(closing);
            }
        }
        Ok(Some(Filled::Read(read, room)))
    }

    /// The message that is not here in full goes into a buffer; `Some` if there is none.
    fn fall_back(&mut self, closing: bool) -> Option<Filled> {
        let partial = self.partial.as_mut()?;
        let body = match std::mem::replace(&mut partial.body, Body::AtTarget([0; FRONT_BYTES])) {
            Body::Buffer(buffer) | Body::Tentative(buffer) => buffer,
            Body::AtTarget(head) => {
                let Some(mut buffer) = buffer(&self.large, partial.len, closing) else {
                    partial.body = Body::AtTarget(head);
                    return Some(Filled::NoBuffer);
                };
                // The sink does not say any more where they are.
                buffer[..partial.got].fill(0);
                buffer[..FRONT_BYTES].copy_from_slice(&head);
                buffer
            }
        };
        partial.body = Body::Buffer(body);
        None
    }

    /// Reads once, as if a message of this length or more were next, into its buffer.
    fn fill_guessed(
        &mut self,
        connection: &mut Connection,
        mut body: Buffer,
        guess: usize,
    ) -> Result<Filled, LinkError> {
        let (front, behind) = self.inbox.split_at_mut(BEYOND_BYTES);
        let mut pieces = [
            IoSliceMut::new(front),
            IoSliceMut::new(&mut body[FRONT_BYTES..guess]),
            IoSliceMut::new(&mut behind[..BEYOND_BYTES]),
        ];
        let read = match connection.read(&mut pieces)? {
            Some(0) => return Err(connection.closed()),
            Some(read) => read,
            None => return Ok(Filled::Nothing),
        };
        let beyond = read.saturating_sub(BEYOND_BYTES);
        let in_body = beyond.min(guess - FRONT_BYTES);
        let rest = beyond - in_body;
        let (front, behind) = self.inbox.split_at(BEYOND_BYTES);
        let len = front.first_chunk().filter(|_| in_body > 0).and_then(|head| {
            match Header::read(*head, self.large.buffer_bytes()) {
                Ok(Header::Message { len, .. } | Header::Retained { len, .. }) => Some(len),
                _ => None,
            }
        });
        if let Some(len) = len.filter(|&len| len >= guess) {
            body[..FRONT_BYTES].copy_from_slice(&front[HEADER_BYTES..]);
            // It may be longer than was guessed.
            let more = rest.min(len - guess);
            body[guess..guess + more].copy_from_slice(&behind[..more]);
            body.truncate(len);
            self.guessed = Some((body, FRONT_BYTES + in_body + more, BEYOND_BYTES + more));
            self.end = BEYOND_BYTES + rest;
        } else {
            self.inbox.copy_within(BEYOND_BYTES..BEYOND_BYTES + rest, BEYOND_BYTES + in_body);
            let place = &mut self.inbox[BEYOND_BYTES..BEYOND_BYTES + in_body];
            place.copy_from_slice(&body[FRONT_BYTES..FRONT_BYTES + in_body]);
            self.end = read;
        }
        Ok(Filled::Read(read, 2 * BEYOND_BYTES + guess - FRONT_BYTES))
    }

    /// Hands on the next message, if it is here. `targets` says whether the sink may be asked for some.
    fn deliver(
        &mut self,
        from: PeerId,
        sink: &mut dyn Sink,
        offers: &mut bool,
        targets: bool,
        closing: bool,
    ) -> Result<InboundStep, LinkError> {
        if self.stuck.is_none() {
            match self.partial.take() {
                None => {}
                Some(partial) if partial.got < partial.len => {
                    self.partial = Some(partial);
                    return Ok(InboundStep::Incomplete);
                }
                Some(Partial { tag, body: Body::AtTarget(head), len, .. })
                    if targets && *offers =>
                {
                    sink.target_filled(from, tag, &head, len);
                    return Ok(InboundStep::Delivered(len));
                }
                Some(at_target @ Partial { body: Body::AtTarget(_), .. }) => {
                    self.partial = Some(at_target);
                    return Ok(InboundStep::NoRoom);
                }
                Some(Partial { tag, body: Body::Buffer(body) | Body::Tentative(body), .. }) => {
                    self.stuck = Some((tag, body.into_fragment()));
                }
            }
        }
        if let Some((tag, fragment)) = self.stuck.take() {
            return Ok(self.hand_over(from, tag, fragment, sink, offers));
        }
        let Some((head, rest)) = self.inbox[self.start..self.end].split_first_chunk() else {
            return Ok(InboundStep::Incomplete);
        };
        let (tag, len) = match Header::read(*head, self.large.buffer_bytes())? {
            Header::Message { .. } if self.counts.counted => {
                let what = "a message that is not retained, behind those that are".to_owned();
                return Err(LinkError::Corrupt { what });
            }
            Header::Message { tag, len } => (tag, len),
            Header::Retained { tag, len, count } => {
                self.counts.counted = true;
                self.counts.confirmed = Some(count);
                (tag, len)
            }
            Header::Count(count) => {
                self.counts.confirmed = Some(count);
                self.start += HEADER_BYTES;
                return Ok(InboundStep::Noted);
            }
            Header::Welcome => {
                let what = "a second welcome".to_owned();
                return Err(LinkError::Corrupt { what });
            }
        };
        self.last = len;
        if len <= SHORT_BYTES {
            let Some(body) = rest.get(..len) else { return Ok(InboundStep::Incomplete) };
            if *offers && offer(from, tag, body, sink) {
                self.start += HEADER_BYTES + len;
                return Ok(InboundStep::Delivered(len));
            }
            if sink.room() == 0 {
                return Ok(InboundStep::NoRoom);
            }
        }
        let asks = targets && *offers && len >= LONG_BYTES;
        let (body, here) = if let Some((body, here, start)) = self.guessed.take() {
            self.start = start;
            if asks {
                // The next one may have a target if this one would have had one.
                let answer = sink.receive_target(from, tag, &body[..FRONT_BYTES], len);
                self.had_target =
                    matches!(answer, TargetAnswer::Here(target) if pays(&target, len));
            }
            (body, here)
        } else {
            let here = rest.len().min(len);
            let head = rest.first_chunk().filter(|_| asks && here < len);
            let target = match head.map(|head| (head, sink.receive_target(from, tag, head, len))) {
                Some((head, TargetAnswer::Here(target)))
                    if fits(&target, len) && pays(&target, len) =>
                {
                    Some((*head, target))
                }
                Some((_, TargetAnswer::Later)) => return Ok(InboundStep::NoRoom),
                _ => None,
            };
            if asks {
                self.had_target = target.is_some();
            }
            if let Some((head, target)) = target.filter(|(_, target)| target.keeps()) {
                target.put(0, &rest[..here]);
                self.start += HEADER_BYTES + here;
                self.partial = Some(Partial { tag, body: Body::AtTarget(head), len, got: here });
                return Ok(InboundStep::Incomplete);
            }
            let pool = if len <= SMALL_BYTES { &self.small } else { &self.large };
            let Some(mut body) = buffer(pool, len, closing) else {
                return Ok(InboundStep::NoBuffer);
            };
            body[..here].copy_from_slice(&rest[..here]);
            self.start += HEADER_BYTES + here;
            if target.is_some() {
                self.partial = Some(Partial { tag, body: Body::Tentative(body), len, got: here });
                return Ok(InboundStep::Incomplete);
            }
            (body, here)
        };
        if here < len {
            self.partial = Some(Partial { tag, body: Body::Buffer(body), len, got: here });
            return Ok(InboundStep::Incomplete);
        }
        let fragment = body.into_fragment();
        if len <= SHORT_BYTES {
            // It was offered by value, or may not be offered, and there is room.
            sink.event(Event::Arrived { from, tag, fragment });
            *offers = false;
            return Ok(InboundStep::Delivered(len));
        }
        Ok(self.hand_over(from, tag, fragment, sink, offers))
    }

    /// Offers a message, or gives it as an event; keeps it if there is no room.
    fn hand_over(
        &mut self,
        from: PeerId,
        tag: AmTag,
        fragment: Fragment,
        sink: &mut dyn Sink,
        offers: &mut bool,
    ) -> InboundStep {
        let len = fragment.len();
        if *offers && sink.fragment(from, tag, &fragment) {
            return InboundStep::Delivered(len);
        }
        if sink.room() == 0 {
            self.stuck = Some((tag, fragment));
            return InboundStep::NoRoom;
        }
        sink.event(Event::Arrived { from, tag, fragment });
        *offers = false;
        InboundStep::Delivered(len)
    }
}

/// A buffer for a message; of a peer that is `closing` in any case.
fn buffer(pool: &HeapPool, len: usize, closing: bool) -> Option<Buffer> {
    let spare = || closing.then(|| HeapPool::new(1, len).buffer(len)).flatten();
    pool.buffer(len).or_else(spare)
}

/// Offers a short message by value.
fn offer(from: PeerId, tag: AmTag, body: &[u8], sink: &mut dyn Sink) -> bool {
    let mut words = [0u64; SHORT_BYTES / 8];
    let count = body.len().div_ceil(8);
    for (word, bytes) in words.iter_mut().zip(body.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    sink.short(from, tag, Short::new(&words[..count], body.len()))
}

#[cfg(test)]
#[allow(unsafe_code, reason = "gives targets in memory of the tests' own")]
mod tests;
