//! What goes to one peer: slots on their way into the socket.
//!
//! A frame that the socket takes at once never lies in the queue. The queue is written with one call for many frames,
//! headers and bodies as they lie. If the link retains what is sent, a message keeps its buffer until the peer's count
//! covers it.

use crate::burst::Next;
use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::msg_zerocopy::MsgZerocopy;
use crate::vectored::PIECES_MAX;
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{
    AmTag, Event, LinkError, PeerId, ReserveError, SHORT_BYTES, Short, Slot, Token, Unacknowledged,
    ZeroCopyMessage, ZeroCopyResult,
};
use gapless_mem::{Device, DeviceError};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// A buffer of a short message has as many bytes.
pub(crate) const SMALL_BYTES: usize = 2048;
/// For each long buffer there are as many short ones.
pub(crate) const SMALL_EACH: usize = 8;
/// Pieces that one call writes.
const PIECES: usize = 64;

/// A body, wherever it lies.
enum Body {
    None,
    Slot(Buffer),
    /// A message that the socket took in part, or the rest of a zero-copy send.
    Rest(Box<[u8]>),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::None => &[],
            Body::Slot(buffer) => buffer,
            Body::Rest(bytes) => bytes,
        }
    }
}

/// A frame that has not left in full.
struct Frame {
    head: [u8; HEADER_BYTES],
    body: Body,
    /// Bytes of head and body that have left.
    written: usize,
    done: Token,
    /// It is retained, with this tag.
    retained: Option<AmTag>,
    /// The last send without a copy of some of it.
    msg_zerocopy: Option<u64>,
}

impl Frame {
    /// A message that nobody asks about, so many bytes of which have left.
    fn begun(head: [u8; HEADER_BYTES], body: Body, written: usize) -> Frame {
        Frame { head, body, written, done: Token::NONE, retained: None, msg_zerocopy: None }
    }

    fn len(&self) -> usize {
        HEADER_BYTES + self.body.bytes().len()
    }

    /// What has not left, in two pieces.
    fn left(&self) -> [&[u8]; 2] {
        let in_body = self.written.saturating_sub(HEADER_BYTES);
        [&self.head[self.written.min(HEADER_BYTES)..], &self.body.bytes()[in_body..]]
    }

    /// What has not left of a body that lies in a buffer.
    fn left_of_slot(&self) -> &[u8] {
        match &self.body {
            Body::Slot(_) => self.left()[1],
            Body::None | Body::Rest(_) => &[],
        }
    }
}

/// A message that has left; the last send without a copy of some of it.
struct KeptMessage {
    tag: AmTag,
    buffer: Buffer,
    msg_zerocopy: Option<u64>,
}

/// Messages that have left and are not counted yet.
#[derive(Default)]
struct Retained {
    left: VecDeque<KeptMessage>,
    /// Bytes of these, and of those that are on their way out.
    bytes: u64,
    /// How many were counted, modulo 2¹⁶.
    counted: u16,
}

/// The way to one peer.
pub(crate) struct Outbound {
    queue: VecDeque<Frame>,
    /// How many bytes at the front are sealed. Changing them no longer changes what the peer will read.
    sealed: usize,
    /// If messages are retained.
    retained: Option<Box<Retained>>,
    pub(crate) msg_zerocopy: MsgZerocopy,
    small: HeapPool,
    large: HeapPool,
}

impl Outbound {
    pub(crate) fn new(config: &TcpConfig, retains: bool, msg_zerocopy: MsgZerocopy) -> Outbound {
        Outbound {
            queue: VecDeque::new(),
            sealed: 0,
            retained: retains.then(Box::default),
            msg_zerocopy,
            small: HeapPool::new(SMALL_EACH * config.buffers, SMALL_BYTES),
            large: HeapPool::mapped(config.buffers, config.fragment_bytes),
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

    /// Whether all has left.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Room for a message; the bound on messages under way is that of the pools.
    pub(crate) fn reserve(&self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let pool = if len <= SMALL_BYTES.min(self.large.buffer_bytes()) {
            &self.small
        } else {
            &self.large
        };
        pool.slot(to, len)
    }

    /// What a slot of these pools holds.
    ///
    /// # Panics
    /// It is another transport's.
    pub(crate) fn open(&self, slot: Slot) -> Buffer {
        let opened = self.small.open(slot).or_else(|slot| self.large.open(slot));
        opened.expect("a slot of this transport")
    }

    /// The listener's first word.
    pub(crate) fn welcome(&mut self) {
        self.note(Header::Welcome);
    }

    /// A frame without a body.
    fn note(&mut self, header: Header) {
        self.queue.push_back(Frame::begun(header.write(), Body::None, 0));
    }

    /// How many messages of the peer have come in full. If the last frame has not begun to leave and tells a count, it
    /// tells this one: a peer that reads nothing does not make the queue longer. No other frame may, because counts go
    /// up. Nor may a frame that is sealed.
    pub(crate) fn count(&mut self, count: u16) {
        let sealed = self.sealed > 0 && {
            let before = self.queue.iter().rev().skip(1);
            before.map(|frame| frame.len() - frame.written).sum::<usize>() < self.sealed
        };
        let last = self.queue.back_mut().filter(|last| last.written == 0 && !sealed);
        if let Some(last) = last {
            let len = last.body.bytes().len();
            let header = match last.retained {
                Some(tag) => Some(Header::Retained { tag, len, count }),
                None => matches!(Header::read(last.head, 0), Ok(Header::Count(_)))
                    .then_some(Header::Count(count)),
            };
            if let Some(header) = header {
                last.head = header.write();
                return;
            }
        }
        self.note(Header::Count(count));
    }

    /// A message, behind all others. `count` goes along if it is retained.
    pub(crate) fn push(&mut self, tag: AmTag, buffer: Buffer, done: Token, count: u16) {
        let len = buffer.len();
        let (header, retained) = match &mut self.retained {
            None => (Header::Message { tag, len }, None),
            Some(all) => {
                all.bytes += len as u64;
                (Header::Retained { tag, len, count }, Some(tag))
            }
        };
        let head = header.write();
        let body = Body::Slot(buffer);
        self.queue.push_back(Frame { head, body, written: 0, done, retained, msg_zerocopy: None });
    }

    /// Retains messages from now on.
    pub(crate) fn retain(&mut self) {
        self.retained.get_or_insert_default();
    }

    /// Whether messages are retained.
    pub(crate) fn retains(&self) -> bool {
        self.retained.is_some()
    }

    /// Bytes that are retained.
    pub(crate) fn outstanding(&self) -> u64 {
        self.retained.as_ref().map_or(0, |all| all.bytes)
    }

    /// The peer has had so many messages in full, modulo 2¹⁶.
    ///
    /// # Errors
    /// So many have not left.
    pub(crate) fn confirm(&mut self, count: u16) -> Result<(), LinkError> {
        let corrupt = |left: usize| LinkError::Corrupt {
            what: format!("a count of {count} messages, {left} of which have not left"),
        };
        let Some(all) = &mut self.retained else {
            return if count == 0 { Ok(()) } else { Err(corrupt(usize::from(count))) };
        };
        let new = usize::from(count.wrapping_sub(all.counted));
        if new > all.left.len() {
            return Err(corrupt(new - all.left.len()));
        }
        for KeptMessage { buffer, msg_zerocopy, .. } in all.left.drain(..new) {
            all.bytes -= buffer.len() as u64;
            self.msg_zerocopy.hold(msg_zerocopy, buffer);
        }
        all.counted = count;
        Ok(())
    }

    /// Whether a message can leave [by value](Outbound::short): nothing is before it, and it need not be retained.
    pub(crate) fn takes_short(&self) -> bool {
        self.queue.is_empty() && self.retained.is_none()
    }

    /// A message by value, at once; whether it has left, or will.
    pub(crate) fn short(
        &mut self,
        connection: &mut Connection,
        tag: AmTag,
        message: Short<'_>,
        next: Next,
    ) -> Result<bool, LinkError> {
        let mut bytes = [0; HEADER_BYTES + SHORT_BYTES];
        let head = Header::Message { tag, len: message.len() }.write();
        bytes[..HEADER_BYTES].copy_from_slice(&head);
        let words = &message.words()[..message.len().div_ceil(8)];
        for (place, word) in bytes[HEADER_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let frame = &bytes[..HEADER_BYTES + message.len()];
        let written = connection.write(&[IoSlice::new(frame)], next)?;
        self.sealed = connection.sealed();
        let begun = written > 0 || self.sealed > 0;
        if begun && written < frame.len() {
            let body = Body::Rest(frame[HEADER_BYTES..].into());
            self.queue.push_back(Frame::begun(head, body, written));
        }
        Ok(begun)
    }

    /// Whether a message of so many pieces could leave [from where it lies](Outbound::send_zero_copy), and does now.
    pub(crate) fn may_zero_copy(&self, connection: &Connection, pieces: usize) -> ZeroCopyResult {
        if pieces > PIECES_MAX || self.retained.is_some() || !connection.is_plain() {
            return ZeroCopyResult::Never;
        }
        if self.queue.is_empty() { ZeroCopyResult::Sent } else { ZeroCopyResult::Full }
    }

    /// A message straight from where it lies, which [may](Outbound::may_zero_copy) be sent so. What the socket does not
    /// take is copied. If it takes nothing, the message has to wait in the queue, so that writing is waited for.
    pub(crate) fn send_zero_copy(
        &mut self,
        connection: &mut Connection,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
        next: Next,
    ) -> Result<ZeroCopyResult, LinkError> {
        let len = message.len();
        let head = Header::Message { tag, len }.write();
        let written = connection.write_zero_copy(&head, message, next)?;
        if written == 0 {
            return Ok(ZeroCopyResult::Never);
        }
        if written < HEADER_BYTES + len {
            let from = written.saturating_sub(HEADER_BYTES);
            let body = match self.large.buffer(len) {
                Some(mut buffer) => {
                    message.copy_out(from, &mut buffer[from..]);
                    Body::Slot(buffer)
                }
                // All are being packed into.
                None => {
                    let mut rest = vec![0; len];
                    message.copy_out(from, &mut rest[from..]);
                    Body::Rest(rest.into())
                }
            };
            self.queue.push_back(Frame::begun(head, body, written));
        }
        Ok(ZeroCopyResult::Sent)
    }

    /// Writes what the socket takes, where it may wait for more; whether it took anything. Tells of the messages that
    /// have left.
    pub(crate) fn flush(
        &mut self,
        connection: &mut Connection,
        next: Next,
        told: &mut VecDeque<Event>,
    ) -> Result<bool, LinkError> {
        let mut wrote = false;
        while let Some(front) = self.queue.front_mut() {
            let body = if front.written < HEADER_BYTES { &[] } else { front.left_of_slot() };
            if self.msg_zerocopy.takes(body.len()) {
                let len = body.len();
                let Some((number, written)) = self.msg_zerocopy.send(connection, body)? else {
                    continue;
                };
                front.msg_zerocopy = number.or(front.msg_zerocopy);
                wrote |= written > 0;
                self.advance(written, told);
                if written < len {
                    break;
                }
                continue;
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let (mut count, mut bytes) = (0, 0);
            let mut next = next;
            for frame in &self.queue {
                let [head, body] = frame.left();
                // A body that is sent by itself follows.
                let alone = !head.is_empty() && self.msg_zerocopy.takes(frame.left_of_slot().len());
                for piece in [head, body].into_iter().take(if alone { 1 } else { 2 }) {
                    if count < PIECES {
                        pieces[count] = IoSlice::new(piece);
                        (count, bytes) = (count + 1, bytes + piece.len());
                    }
                }
                if alone {
                    next = Next::Waits;
                }
                if alone || count == PIECES {
                    break;
                }
            }
            let before = connection.carried();
            let written = connection.write(&pieces[..count], next)?;
            self.sealed = connection.sealed();
            wrote |= written > 0 || connection.carried() > before;
            self.advance(written, told);
            if written < bytes {
                break;
            }
        }
        Ok(wrote)
    }

    /// So many bytes have left.
    fn advance(&mut self, mut bytes: usize, told: &mut VecDeque<Event>) {
        while let Some(frame) = self.queue.front_mut() {
            let step = bytes.min(frame.len() - frame.written);
            frame.written += step;
            bytes -= step;
            if frame.written < frame.len() {
                return;
            }
            if frame.done != Token::NONE {
                told.push_back(Event::Sent { token: frame.done, result: Ok(()) });
            }
            let Some(Frame { body, retained, msg_zerocopy, .. }) = self.queue.pop_front() else {
                return;
            };
            match (body, retained, &mut self.retained) {
                (Body::Slot(buffer), Some(tag), Some(all)) => {
                    all.left.push_back(KeptMessage { tag, buffer, msg_zerocopy });
                }
                (Body::Slot(buffer), ..) => self.msg_zerocopy.hold(msg_zerocopy, buffer),
                (Body::None | Body::Rest(_), ..) => {}
            }
        }
    }

    /// Nothing more will leave. Gives what is retained.
    pub(crate) fn give_up(
        &mut self,
        error: &LinkError,
        told: &mut VecDeque<Event>,
    ) -> Vec<Unacknowledged> {
        let mut kept = Vec::new();
        let mut keep = |msg_zerocopy: &mut MsgZerocopy, it: KeptMessage, done| {
            let KeptMessage { tag, buffer, msg_zerocopy: number } = it;
            kept.push(Unacknowledged { tag, message: buffer.to_vec(), done });
            msg_zerocopy.hold(number, buffer);
        };
        for it in self.retained.take().into_iter().flat_map(|all| all.left) {
            keep(&mut self.msg_zerocopy, it, Token::NONE);
        }
        for Frame { done, body, retained, msg_zerocopy, .. } in self.queue.drain(..) {
            let buffer = match body {
                Body::Slot(buffer) => Some(buffer),
                Body::None | Body::Rest(_) => None,
            };
            match (retained, buffer) {
                (Some(tag), Some(buffer)) => {
                    keep(&mut self.msg_zerocopy, KeptMessage { tag, buffer, msg_zerocopy }, done);
                }
                (_, buffer) => {
                    if let Some(buffer) = buffer {
                        self.msg_zerocopy.hold(msg_zerocopy, buffer);
                    }
                    if done != Token::NONE {
                        told.push_back(Event::Sent { token: done, result: Err(error.clone()) });
                    }
                }
            }
        }
        kept
    }

    /// Reads what the system says about sends without a copy, and whatever else is in the error queue, which would be told
    /// of for ever; whether there was anything.
    pub(crate) fn hear_notices(&mut self, connection: &Connection) -> bool {
        self.msg_zerocopy.hear(connection)
    }

    /// The long buffers.
    #[cfg(test)]
    pub(crate) fn long_buffers(&self) -> HeapPool {
        self.large.clone()
    }

    /// After [`give_up`](Outbound::give_up), nothing of the connection is of use; whether the system may still read buffers.
    pub(crate) fn end(&mut self, connection: &Connection) -> bool {
        self.msg_zerocopy.end(connection);
        self.msg_zerocopy.awaits_notices()
    }
}

/// What the system may still read is in the hands of [`MsgZerocopy`], which does not free it.
impl Drop for Outbound {
    fn drop(&mut self) {
        let left = self.retained.take().into_iter().flat_map(|all| all.left);
        for KeptMessage { buffer, msg_zerocopy, .. } in left {
            self.msg_zerocopy.hold(msg_zerocopy, buffer);
        }
        for Frame { body, msg_zerocopy, .. } in self.queue.drain(..) {
            if let Body::Slot(buffer) = body {
                self.msg_zerocopy.hold(msg_zerocopy, buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msg_zerocopy::ZerocopyManner;
    use crate::socket::Socket;
    use crate::tests::{LOOPBACK_V4, config};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Whoever may block waits for room only if something is in the queue.
    #[test]
    fn what_finds_no_room_goes_into_the_queue() {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut connection = Connection::bare(Socket::of(here, ([127, 0, 0, 1], 1).into()));
        let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, 16);
        let mut outbound = Outbound::new(&config(0, LOOPBACK_V4), false, msg_zerocopy);
        let message = ZeroCopyMessage::of_head(&[7; 1000]);
        let result = loop {
            assert_eq!(outbound.may_zero_copy(&connection, 0), ZeroCopyResult::Sent);
            match outbound
                .send_zero_copy(&mut connection, AmTag(1), &message, Next::Leaves)
                .unwrap()
            {
                ZeroCopyResult::Sent if outbound.is_empty() => {}
                other => break other,
            }
        };
        let waits = !outbound.is_empty();
        assert_eq!(result, if waits { ZeroCopyResult::Sent } else { ZeroCopyResult::Never });
        outbound.retain();
        assert_eq!(outbound.may_zero_copy(&connection, 0), ZeroCopyResult::Never);
    }

    /// A peer that reads nothing may send for ever: its counts do not pile up, and they never go back.
    #[test]
    fn counts_do_not_pile_up() {
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        let connection = Connection::bare(Socket::of(here, ([127, 0, 0, 1], 1).into()));
        let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Never, 16);
        let mut outbound = Outbound::new(&config(0, LOOPBACK_V4), true, msg_zerocopy);
        let counts = |outbound: &Outbound| -> Vec<u16> {
            let read = |frame: &Frame| match Header::read(frame.head, 100) {
                Ok(Header::Count(count) | Header::Retained { count, .. }) => count,
                other => panic!("{other:?}"),
            };
            outbound.queue.iter().map(read).collect()
        };
        (1..1000).for_each(|count| outbound.count(count));
        assert_eq!(counts(&outbound), [999]);
        let slot = outbound.reserve(PeerId(0), 5).unwrap();
        let buffer = outbound.open(slot);
        outbound.push(AmTag(3), buffer, Token::NONE, 1000);
        (1001..2000).for_each(|count| outbound.count(count));
        assert_eq!(counts(&outbound), [999, 1999]);
        let header = Header::read(outbound.queue[1].head, 100);
        assert_eq!(header, Ok(Header::Retained { tag: AmTag(3), len: 5, count: 1999 }));
        // Of the last one, a part has left, or was sealed.
        outbound.sealed = outbound.queue[0].len();
        outbound.count(2000);
        assert_eq!(counts(&outbound), [999, 2000], "it is behind what is sealed");
        outbound.sealed += 1;
        outbound.count(2001);
        assert_eq!(counts(&outbound), [999, 2000, 2001]);
        outbound.sealed = 0;
        outbound.advance(HEADER_BYTES + HEADER_BYTES + 1, &mut VecDeque::new());
        (2002..3000).for_each(|count| outbound.count(count));
        assert_eq!(counts(&outbound), [2000, 2999]);
    }
}
