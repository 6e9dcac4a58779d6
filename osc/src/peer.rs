//! What is between this process and another: what it may send there, what waits on either side, and layouts that the other
//! one knows. All of it is bounded, in number and bytes:
//!
//! | what | at most | beyond |
//! |---|---|---|
//! | requests that the receiver has not done | [`CREDIT`] bytes | they wait at the sender |
//! | requests that wait here for credit or room | [`WAITING`] bytes, of operations of [`SHORT`] bytes at most | the caller waits |
//! | requests that are held until a mutex is free, or answers have left | [`CREDIT`] and [`SLACK`] bytes | the peer is given up |
//! | answers that have not left | [`ANSWERS`] bytes and one answer more | requests with answers are held |
//! | messages that have overtaken others | [`EARLY`], [`EARLY_BYTES`] | the peer is given up |
//! | layouts of a peer | `LAYOUTS`, `LAYOUT_BYTES` of `layouts.rs`, flattened | the peer is given up; senders have it forget the oldest |
//!
//! Credit is counted in bytes of messages. Every answer takes along how many bytes of the other's requests are done, since
//! the first; where there are none, a message of its own does. Locks, flushes, posts and completes, of which each rank
//! has one at a time, go without credit ([`SLACK`]).

use crate::device_job::DeviceJob;
use crate::layouts::{Layouts, SentLayout};
use crate::wire::{Head, WindowMessage};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of requests that a process may have on their way to another, or waiting there.
pub(crate) const CREDIT: u64 = 1 << 20;
/// What goes beyond: messages without bytes that need no credit.
pub(crate) const SLACK: u64 = 256 << 10;
/// After so many bytes the sender is told that they are done.
const TOLD_EVERY: u64 = CREDIT / 4;
/// The longest message that takes credit. With what the sender is not told for, it must fit into [`CREDIT`].
pub(crate) const PIECE: u64 = CREDIT / 4;
const _: () = assert!(TOLD_EVERY + SLACK + PIECE <= CREDIT);
/// Bytes of requests that wait for credit or room.
pub(crate) const WAITING: usize = 16 << 20;
/// The longest operation that waits so: its bytes are copied once more.
pub(crate) const SHORT: u64 = CREDIT / 4;
/// Bytes of answers that wait for room.
pub(crate) const ANSWERS: usize = 1 << 20;
/// Messages that have overtaken others.
const EARLY: usize = 1 << 12;
const EARLY_BYTES: usize = 4 << 20;

/// What is between this process and another.
#[derive(Default)]
pub(crate) struct Peer {
    out_sequence: u32,
    pub(crate) in_sequence: u32,
    /// Bytes of requests that have left, and that the other one has done.
    charged: u64,
    credited: u64,
    /// Bytes of its requests that are done here, and of which it was told.
    done: u64,
    told_done: u64,
    /// Requests that found no credit or no room, and those behind them. They have no number yet: answers overtake them.
    pub(crate) waiting: Queue,
    /// What else found no room.
    pub(crate) outbox: Queue,
    /// What has overtaken others.
    pub(crate) early: BTreeMap<u32, Vec<u8>>,
    /// What waits for another try, oldest first.
    pub(crate) held: Queue,
    /// What a device does for the oldest of those.
    pub(crate) job: Option<Box<DeviceJob>>,
    /// Its layouts, as it numbers them.
    pub(crate) layouts: Layouts,
    /// Ours that it knows, or is being told, oldest first.
    pub(crate) told: VecDeque<SentLayout>,
    pub(crate) next_layout: u32,
}

/// Messages, oldest first.
#[derive(Default)]
pub(crate) struct Queue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn front(&self) -> Option<&Vec<u8>> {
        self.messages.front()
    }

    pub(crate) fn push(&mut self, message: Vec<u8>) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }

    pub(crate) fn push_front(&mut self, message: Vec<u8>) {
        self.bytes += message.len();
        self.messages.push_front(message);
    }

    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

impl Peer {
    /// Whether a message may be sent now. None of them is longer than [`PIECE`]: so there is always credit for one after
    /// the other side has told what it has to.
    pub(crate) fn has_credit(&self, kind: WindowMessage, len: usize) -> bool {
        let waiting = self.charged - self.credited;
        !kind.takes_credit() || waiting == 0 || waiting + len as u64 <= CREDIT
    }

    /// Whether one more request may wait.
    pub(crate) fn may_wait(&self, len: usize) -> bool {
        self.waiting.bytes() + len <= WAITING
    }

    /// The message with what only the link knows: its number, and how much is done.
    pub(crate) fn stamp(&self, head: Head) -> Head {
        let count = if head.kind.is_request() { head.count } else { self.done };
        Head { sequence: self.out_sequence, count, ..head }
    }

    /// It has left, or will in its turn.
    pub(crate) fn sent(&mut self, head: &Head, len: usize) {
        self.out_sequence = head.sequence.wrapping_add(1);
        if head.kind.is_request() {
            self.charged += len as u64;
        } else {
            self.told_done = head.count;
        }
    }

    /// What the other one says to be done. Whether that can be.
    pub(crate) fn credit(&mut self, done: u64) -> bool {
        let possible = done <= self.charged;
        if possible {
            self.credited = self.credited.max(done);
        }
        possible
    }

    /// Whether answers that have not left are in the way of questions; of none whose job has begun.
    pub(crate) fn is_full(&self) -> bool {
        self.job.is_none() && self.has_enough()
    }

    /// Whether so many answers wait that no more are kept than those of the job that has begun.
    pub(crate) fn has_enough(&self) -> bool {
        self.outbox.bytes() >= ANSWERS
    }

    /// A request is done; whether that is to be told.
    pub(crate) fn handled(&mut self, len: usize) -> bool {
        self.done += len as u64;
        self.done - self.told_done >= TOLD_EVERY
    }

    /// Keeps a request for later; `false`: it has sent more than it may.
    pub(crate) fn hold(&mut self, message: Vec<u8>) -> bool {
        let all = (self.held.bytes() + message.len()) as u64;
        let fits = self.held.is_empty() || all <= CREDIT + SLACK;
        if fits {
            self.held.push(message);
        }
        fits
    }

    /// Keeps a message that has overtaken others; `false`: that cannot be.
    pub(crate) fn keep_early(&mut self, sequence: u32, message: Vec<u8>) -> bool {
        let ahead = sequence.wrapping_sub(self.in_sequence) as usize;
        let bytes: usize = self.early.values().map(Vec::len).sum();
        ahead < EARLY
            && bytes + message.len() <= EARLY_BYTES
            && self.early.insert(sequence, message).is_none()
    }
}
