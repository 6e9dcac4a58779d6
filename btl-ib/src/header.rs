//! The sixteen bytes before every message.

use crate::bytes::{Reader, Writer};

/// Length of a header.
pub(crate) const HEADER_BYTES: usize = 16;
const MAGIC: u8 = 0x6b;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// One of the caller's; the tag counts.
    Message,
    /// Only gives room.
    Grant,
    /// The sender leaves; nothing comes behind it.
    Farewell,
}

/// ```text
///  0       1      2     3   4       8          10    12      16
/// +-------+------+-----+---+-------+----------+-----+-------+---------+
/// | magic | kind | tag | 0 | grant | sequence | had | bytes | message |
/// +-------+------+-----+---+-------+----------+-----+-------+---------+
/// ```
/// `grant` is how many of the receiver's messages the sender can take in all, since the link began; `had` how many of them
/// its process has had, modulo 2¹⁶.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: MessageKind,
    pub(crate) tag: u8,
    pub(crate) grant: u32,
    /// Counts all messages of the link, modulo 2¹⁶.
    pub(crate) sequence: u16,
    pub(crate) had: u16,
    /// Of the message behind it.
    pub(crate) bytes: u32,
}

impl Header {
    pub(crate) fn write(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = match self.kind {
            MessageKind::Message => 1,
            MessageKind::Grant => 2,
            MessageKind::Farewell => 3,
        };
        let mut into = Writer::new(&mut bytes);
        into.put(&[MAGIC, kind, self.tag, 0]);
        into.put(&self.grant.to_le_bytes()).put(&self.sequence.to_le_bytes());
        into.put(&self.had.to_le_bytes()).put(&self.bytes.to_le_bytes());
        bytes
    }

    /// Reads the header of a message that has `arrived` bytes with it, the `sequence`th of its link.
    ///
    /// # Errors
    /// The rule that is broken.
    pub(crate) fn read(
        header: &[u8; HEADER_BYTES],
        arrived: usize,
        sequence: u16,
    ) -> Result<Header, String> {
        let mut from = Reader(header);
        let [magic, kind, tag, zero] = from.take();
        if magic != MAGIC || zero != 0 {
            return Err(format!("a message starts with {:02x?}", &header[..4]));
        }
        let kind = match kind {
            1 => MessageKind::Message,
            2 => MessageKind::Grant,
            3 => MessageKind::Farewell,
            other => return Err(format!("a message of kind {other}")),
        };
        let (grant, sequence_said, had) = (from.u32(), from.u16(), from.u16());
        let header = Header { kind, tag, grant, sequence: sequence_said, had, bytes: from.u32() };
        if header.sequence != sequence {
            return Err(format!("message {} instead of message {sequence}", header.sequence));
        }
        if arrived.checked_sub(HEADER_BYTES) != usize::try_from(header.bytes).ok() {
            return Err(format!(
                "{arrived} bytes arrived, a header and {} were said",
                header.bytes
            ));
        }
        if kind != MessageKind::Message && (header.bytes != 0 || tag != 0) {
            return Err(format!("{} bytes and tag {tag} in a message of ours", header.bytes));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Header =
        Header { kind: MessageKind::Message, tag: 200, grant: 32, sequence: 7, had: 9, bytes: 5 };

    #[test]
    fn headers_survive_the_wire() {
        assert_eq!(Header::read(&RIGHT.write(), 21, 7), Ok(RIGHT));
        for kind in [MessageKind::Grant, MessageKind::Farewell] {
            let header = Header { kind, tag: 0, bytes: 0, ..RIGHT };
            assert_eq!(Header::read(&header.write(), 16, 7), Ok(header));
        }
    }

    #[test]
    fn broken_rules_are_named() {
        let wrong = |header: Header, arrived, sequence| {
            Header::read(&header.write(), arrived, sequence).expect_err("a broken rule")
        };
        assert_eq!(wrong(RIGHT, 21, 8), "message 7 instead of message 8");
        for arrived in [0, 15, 16, 20, 22] {
            wrong(RIGHT, arrived, 7);
        }
        wrong(Header { kind: MessageKind::Grant, tag: 0, ..RIGHT }, 21, 7);
        wrong(Header { kind: MessageKind::Farewell, bytes: 0, ..RIGHT }, 16, 7);
        for (at, value) in [(0, 0), (1, 0), (1, 4), (3, 1)] {
            let mut bytes = RIGHT.write();
            bytes[at] = value;
            Header::read(&bytes, 21, 7).expect_err("a broken rule");
        }
    }
}
