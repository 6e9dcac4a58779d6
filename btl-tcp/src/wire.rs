//! Frames: what goes over a link that stands.
//!
//! A frame is a header and a body. The header is parsed once, into a [`Header`] that cannot be wrong.

use gapless_btl::{AmTag, LinkError};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 8;

const WELCOME: u8 = 1;
const MESSAGE: u8 = 2;
const RETAINED: u8 = 3;
const COUNT: u8 = 4;

/// ```text
///  0                4      5     6       8
/// +----------------+------+-----+-------+------+
/// | length of body | kind | tag | count | body |
/// +----------------+------+-----+-------+------+
/// ```
///
/// The count is 0 unless the kind has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// The first frame of a listener, and nobody else's: the connection is the link. No body, no tag.
    Welcome,
    /// A message of so many bytes.
    Message {
        /// What it is for.
        tag: AmTag,
        /// Length of the body.
        len: usize,
    },
    /// A message that its sender retains until it is counted.
    Retained {
        /// What it is for.
        tag: AmTag,
        /// Length of the body.
        len: usize,
        /// As in [`Header::Count`].
        count: u16,
    },
    /// How many retained messages the sender of this has had in full, modulo 2¹⁶. No body, no tag.
    Count(u16),
}

impl Header {
    pub(crate) fn write(self) -> [u8; HEADER_BYTES] {
        let (kind, tag, len, count) = match self {
            Header::Welcome => (WELCOME, 0, 0, 0),
            Header::Message { tag, len } => (MESSAGE, tag.0, len, 0),
            Header::Retained { tag, len, count } => (RETAINED, tag.0, len, count),
            Header::Count(count) => (COUNT, 0, 0, count),
        };
        let [a, b, c, d] =
            u32::try_from(len).expect("messages are at most 2²⁴ bytes").to_be_bytes();
        let [e, f] = count.to_be_bytes();
        [a, b, c, d, kind, tag, e, f]
    }

    /// # Errors
    /// What is wrong with it; a message of more than `max` bytes is.
    pub(crate) fn read(bytes: [u8; HEADER_BYTES], max: usize) -> Result<Header, LinkError> {
        let corrupt = |what: String| Err(LinkError::Corrupt { what });
        let [a, b, c, d, kind, tag, e, f] = bytes;
        let (len, count) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]));
        match (kind, usize::try_from(len).ok().filter(|&len| len <= max)) {
            (RETAINED, Some(len)) => Ok(Header::Retained { tag: AmTag(tag), len, count }),
            (COUNT, Some(0)) if tag == 0 => Ok(Header::Count(count)),
            (WELCOME | MESSAGE, _) if count != 0 => corrupt(format!("a header of {bytes:02x?}")),
            (WELCOME, Some(0)) if tag == 0 => Ok(Header::Welcome),
            (MESSAGE, Some(len)) => Ok(Header::Message { tag: AmTag(tag), len }),
            (MESSAGE | RETAINED, None) => {
                corrupt(format!("a message of {len} bytes, at most {max} expected"))
            }
            _ => corrupt(format!("a header of {bytes:02x?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        for len in [0, 1, 255, 256, 65_536, 131_328] {
            let header = Header::Message { tag: AmTag(9), len };
            assert_eq!(Header::read(header.write(), 131_328), Ok(header));
        }
        assert_eq!(Header::read(Header::Welcome.write(), 0), Ok(Header::Welcome));
        for count in [0, 1, 0x1234, u16::MAX] {
            let retained = Header::Retained { tag: AmTag(9), len: 7, count };
            for header in [retained, Header::Count(count)] {
                assert_eq!(Header::read(header.write(), 7), Ok(header));
            }
        }
    }

    #[test]
    fn wrong_headers_are_refused() {
        let message = Header::Message { tag: AmTag(9), len: 300 }.write();
        assert!(Header::read(message, 299).is_err());
        for (at, value) in [(4, 0), (4, 1), (4, 4), (4, 5), (6, 1), (7, 1), (0, 255)] {
            let mut bytes = message;
            bytes[at] = value;
            assert!(Header::read(bytes, 300).is_err(), "byte {at} is {value}");
        }
        for (at, value) in [(3, 1), (5, 1)] {
            for header in [Header::Welcome, Header::Count(0)] {
                let mut bytes = header.write();
                bytes[at] = value;
                assert!(Header::read(bytes, 300).is_err(), "byte {at} is {value}");
            }
        }
        let retained = Header::Retained { tag: AmTag(9), len: 300, count: 1 }.write();
        assert!(Header::read(retained, 299).is_err());
    }
}
