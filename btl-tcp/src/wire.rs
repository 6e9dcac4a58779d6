//! Frames: what goes over a link that stands.
//!
//! A frame is a header and a body. The header is parsed once, into a [`Header`] that cannot be wrong.

use gapless_btl::{AmTag, LinkError};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 8;

const WELCOME: u8 = 1;
const MESSAGE: u8 = 2;

/// ```text
///  0                4      5     6       8
/// +----------------+------+-----+-------+------+
/// | length of body | kind | tag | zeros | body |
/// +----------------+------+-----+-------+------+
/// ```
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
}

impl Header {
    pub(crate) fn write(self) -> [u8; HEADER_BYTES] {
        let (kind, tag, len) = match self {
            Header::Welcome => (WELCOME, 0, 0),
            Header::Message { tag, len } => (MESSAGE, tag.0, len),
        };
        let [a, b, c, d] =
            u32::try_from(len).expect("messages are at most 2²⁴ bytes").to_be_bytes();
        [a, b, c, d, kind, tag, 0, 0]
    }

    /// # Errors
    /// What is wrong with it; a message of more than `max` bytes is.
    pub(crate) fn read(bytes: [u8; HEADER_BYTES], max: usize) -> Result<Header, LinkError> {
        let corrupt = |what: String| Err(LinkError::Corrupt { what });
        let [a, b, c, d, kind, tag, zero, also_zero] = bytes;
        let len = u32::from_be_bytes([a, b, c, d]);
        match (kind, usize::try_from(len).ok().filter(|&len| len <= max)) {
            _ if (zero, also_zero) != (0, 0) => corrupt(format!("a header of {bytes:02x?}")),
            (WELCOME, Some(0)) if tag == 0 => Ok(Header::Welcome),
            (MESSAGE, Some(len)) => Ok(Header::Message { tag: AmTag(tag), len }),
            (MESSAGE, None) => corrupt(format!("a message of {len} bytes, at most {max} expected")),
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
    }

    #[test]
    fn wrong_headers_are_refused() {
        let message = Header::Message { tag: AmTag(9), len: 300 }.write();
        assert!(Header::read(message, 299).is_err());
        for (at, value) in [(4, 0), (4, 1), (4, 3), (6, 1), (7, 1), (0, 255)] {
            let mut bytes = message;
            bytes[at] = value;
            assert!(Header::read(bytes, 300).is_err(), "byte {at} is {value}");
        }
        for (at, value) in [(3, 1), (5, 1)] {
            let mut bytes = Header::Welcome.write();
            bytes[at] = value;
            assert!(Header::read(bytes, 300).is_err(), "byte {at} is {value}");
        }
    }
}
