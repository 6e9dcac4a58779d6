//! What goes to one peer: slots on their way into the socket.
//!
//! A frame that the socket takes at once never lies in the queue. The queue is written with one call for many frames,
//! headers and bodies as they lie.

use crate::config::TcpConfig;
use crate::socket::Socket;
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{AmTag, Event, LinkError, PeerId, ReserveError, SHORT_BYTES, Short, Slot, Token};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IoSlice;

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
    /// The end of a short message that the socket took in part.
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
}

impl Frame {
    fn len(&self) -> usize {
        HEADER_BYTES + self.body.bytes().len()
    }

    /// What has not left, in two pieces.
    fn left(&self) -> [&[u8]; 2] {
        let in_body = self.written.saturating_sub(HEADER_BYTES);
        [&self.head[self.written.min(HEADER_BYTES)..], &self.body.bytes()[in_body..]]
    }
}

/// The way to one peer.
pub(crate) struct Outbound {
    queue: VecDeque<Frame>,
    small: HeapPool,
    large: HeapPool,
}

impl Outbound {
    pub(crate) fn new(config: &TcpConfig) -> Outbound {
        Outbound {
            queue: VecDeque::new(),
            small: HeapPool::new(SMALL_EACH * config.buffers, SMALL_BYTES),
            large: HeapPool::new(config.buffers, config.fragment_bytes),
        }
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
        let head = Header::Welcome.write();
        self.queue.push_back(Frame { head, body: Body::None, written: 0, done: Token::NONE });
    }

    /// A message, behind all others.
    pub(crate) fn push(&mut self, tag: AmTag, buffer: Buffer, done: Token) {
        let head = Header::Message { tag, len: buffer.len() }.write();
        self.queue.push_back(Frame { head, body: Body::Slot(buffer), written: 0, done });
    }

    /// A message by value, at once; whether it has left, or will. Only if nothing is before it.
    pub(crate) fn short(
        &mut self,
        socket: &Socket,
        tag: AmTag,
        message: Short<'_>,
    ) -> Result<bool, Errno> {
        if !self.queue.is_empty() {
            return Ok(false);
        }
        let mut bytes = [0; HEADER_BYTES + SHORT_BYTES];
        let head = Header::Message { tag, len: message.len() }.write();
        bytes[..HEADER_BYTES].copy_from_slice(&head);
        let words = &message.words()[..message.len().div_ceil(8)];
        for (place, word) in bytes[HEADER_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let frame = &bytes[..HEADER_BYTES + message.len()];
        let written = socket.write(&[IoSlice::new(frame)])?;
        if written > 0 && written < frame.len() {
            let body = Body::Rest(frame[HEADER_BYTES..].into());
            self.queue.push_back(Frame { head, body, written, done: Token::NONE });
        }
        Ok(written > 0)
    }

    /// Writes what the socket takes; whether it took anything. Tells of the messages that have left.
    pub(crate) fn flush(
        &mut self,
        socket: &Socket,
        told: &mut VecDeque<Event>,
    ) -> Result<bool, Errno> {
        let mut wrote = false;
        while !self.queue.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let (mut count, mut bytes) = (0, 0);
            for piece in self.queue.iter().flat_map(Frame::left).take(PIECES) {
                pieces[count] = IoSlice::new(piece);
                (count, bytes) = (count + 1, bytes + piece.len());
            }
            let written = socket.write(&pieces[..count])?;
            wrote |= written > 0;
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
            self.queue.pop_front();
        }
    }

    /// Nothing more will leave.
    pub(crate) fn give_up(&mut self, error: &LinkError, told: &mut VecDeque<Event>) {
        for Frame { done, .. } in self.queue.drain(..) {
            if done != Token::NONE {
                told.push_back(Event::Sent { token: done, result: Err(error.clone()) });
            }
        }
    }
}
