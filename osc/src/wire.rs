//! What the messages of windows look like.
//!
//! ```text
//! 0 kind | 1 operation | 2 basic type | 3 flag | 4 sequence number:4 | 8 window:4, as the receiver numbers it
//! 12 rank:4 of the sender in the window | 16 token:8 | 24 origin:8 | 32 layout:4 | 36 value:4 | 40 count:8
//! 48 start:8 | 56 length:8 | 64 bytes …
//! ```
//!
//! Numbers are in little-endian order, elements as they lie in memory: all processes of a job have the same build. Every
//! message names what it is about by itself, so none waits for another but in order. The messages of one process to
//! another are numbered, and are handled in that order.
//!
//! | kind | origin, layout, count | start, length | token | bytes | answer |
//! |---|---|---|---|---|---|
//! | put | where; value: a notice counter, if flag 4 | which bytes of the packed stream | | those bytes | |
//! | get | likewise | which bytes | of the read | | those bytes |
//! | accumulate | where | which bytes | of the read, if flag 1 | operands, if flag 2 | what was there, if flag 1 |
//! | compare | where: one element | | of the read | compare, swap | what was there |
//! | lock | | | of the answer | flag 1: exclusive | when it is locked |
//! | unlock, flush | | | of the answer | flag 1: exclusive | that all before is done, or what went wrong |
//! | post | | | | | |
//! | complete | | | of the answer, if there is one | | as of flush |
//! | layout | layout, count: all its bytes | which of its bytes | | flattened | |
//! | forget | layout | | | | |
//! | answer | value, flag: fault; count: done; operation 1: more follow | which bytes | of the question | what was read | |
//! | credit | count: done | | | | |
//! | holds | origin: a rank | | of the answer | | a byte: 1 if the receiver has the lock of that rank, or is about to have or not to have it |
//!
//! *Done* are the bytes of all the receiver's requests that are done, headers included (`peer.rs`). Every kind but answer,
//! credit and holds is a request.

/// Bytes before the payload.
pub(crate) const HEADER: usize = 64;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WindowMessage {
    Put = 1,
    Get,
    Accumulate,
    Compare,
    Lock,
    Unlock,
    Flush,
    Post,
    Complete,
    Layout,
    Forget,
    Answer,
    Credit,
    Holds,
}

impl WindowMessage {
    pub(crate) const ALL: [WindowMessage; 14] = [
        WindowMessage::Put,
        WindowMessage::Get,
        WindowMessage::Accumulate,
        WindowMessage::Compare,
        WindowMessage::Lock,
        WindowMessage::Unlock,
        WindowMessage::Flush,
        WindowMessage::Post,
        WindowMessage::Complete,
        WindowMessage::Layout,
        WindowMessage::Forget,
        WindowMessage::Answer,
        WindowMessage::Credit,
        WindowMessage::Holds,
    ];

    /// Whether it asks the receiver to do something, which may have to wait.
    pub(crate) fn is_request(self) -> bool {
        !matches!(self, WindowMessage::Answer | WindowMessage::Credit | WindowMessage::Holds)
    }

    /// Whether it is sent only as far as the receiver has room: of other requests there are few.
    pub(crate) fn takes_credit(self) -> bool {
        let is_operation = matches!(
            self,
            WindowMessage::Put
                | WindowMessage::Get
                | WindowMessage::Accumulate
                | WindowMessage::Compare
        );
        is_operation || matches!(self, WindowMessage::Layout | WindowMessage::Forget)
    }
}

/// Flag of an accumulation: what was there is wanted.
pub(crate) const FETCH: u8 = 1;
/// Flag of an accumulation: there are operands.
pub(crate) const OPERANDS: u8 = 2;
/// Flag of the last message of a put or get: then the counter `value` goes up by one.
pub(crate) const NOTICE: u8 = 4;

/// In the place of an operation, in an answer: it is not the last one.
pub(crate) const MORE: u8 = 1;
/// The most bytes that a read asks for in one message.
pub(crate) const READ_MAX: u64 = 1 << 20;

/// What stands before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: WindowMessage,
    pub(crate) op: u8,
    pub(crate) primitive: u8,
    pub(crate) flag: u8,
    pub(crate) sequence: u32,
    pub(crate) window: u32,
    pub(crate) rank: u32,
    pub(crate) token: u64,
    pub(crate) origin: u64,
    pub(crate) layout: u32,
    pub(crate) value: u32,
    pub(crate) count: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl Head {
    /// A message that says no more than what it is, to window `window` from rank `rank` there.
    pub(crate) fn new(kind: WindowMessage, window: u32, rank: u32) -> Head {
        Head {
            kind,
            op: 0,
            primitive: 0,
            flag: 0,
            sequence: 0,
            window,
            rank,
            token: 0,
            origin: 0,
            layout: 0,
            value: 0,
            count: 0,
            start: 0,
            length: 0,
        }
    }

    pub(crate) fn write(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&[self.kind as u8, self.op, self.primitive, self.flag]);
        let words = [(4, self.sequence), (8, self.window), (12, self.rank)];
        for (at, word) in words.into_iter().chain([(32, self.layout), (36, self.value)]) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let words = [(16, self.token), (24, self.origin), (40, self.count)];
        for (at, word) in words.into_iter().chain([(48, self.start), (56, self.length)]) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The counter that goes up when this is done.
    pub(crate) fn notice(&self) -> Option<u32> {
        let notifies = matches!(self.kind, WindowMessage::Put | WindowMessage::Get);
        (notifies && self.flag & NOTICE != 0).then_some(self.value)
    }

    /// Whether an accumulation wants what was there.
    pub(crate) fn fetches(&self) -> bool {
        self.flag & FETCH != 0
    }

    /// `None`: no such message.
    pub(crate) fn read(message: &[u8]) -> Option<Head> {
        let bytes = message.first_chunk::<HEADER>()?;
        let narrow = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let wide = |at: usize| u64::from(narrow(at)) | u64::from(narrow(at + 4)) << 32;
        Some(Head {
            kind: *WindowMessage::ALL.get(usize::from(bytes[0]).checked_sub(1)?)?,
            op: bytes[1],
            primitive: bytes[2],
            flag: bytes[3],
            sequence: narrow(4),
            window: narrow(8),
            rank: narrow(12),
            token: wide(16),
            origin: wide(24),
            layout: narrow(32),
            value: narrow(36),
            count: wide(40),
            start: wide(48),
            length: wide(56),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_way() {
        for (at, kind) in (1u8..).zip(WindowMessage::ALL) {
            assert_eq!(kind as u8, at);
            let head = Head {
                op: 2,
                primitive: 3,
                flag: 4,
                sequence: 0x0102_0304,
                token: u64::MAX - 1,
                origin: 1 << 40,
                layout: 9,
                value: 10,
                count: 11,
                start: 12,
                length: 1 << 33,
                ..Head::new(kind, 7, 8)
            };
            assert_eq!(Head::read(&head.write()), Some(head));
        }
        assert_eq!(Head::read(&[1; HEADER - 1]), None);
        assert_eq!(Head::read(&[15; HEADER]), None);
        assert_eq!(Head::read(&[0; HEADER]), None);
    }
}
