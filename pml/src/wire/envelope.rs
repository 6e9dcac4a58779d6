//! What eager messages and RTS have in common: everything that matching needs.

use super::{EAGER_BYTES, SERIAL_BYTES, VERSION, kind};
use gapless_dtype::SignatureDigest;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How a message was sent; 0 asks nothing of the receiver.
pub(super) const SYNCHRONOUS: u16 = 1;
const READY: u16 = 2;

/// When a send ends, and what it relies on (MPI 4.1 §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendMode {
    /// When the memory may be used again (`MPI_Send`).
    #[default]
    Standard,
    /// Not before a receive has taken the message (`MPI_Ssend`).
    Synchronous,
    /// As standard; the sender promises that the receive is posted (`MPI_Rsend`). If it is not, the receive ends with
    /// [`PmlError::NotReady`](crate::PmlError::NotReady), with the data if the message was short. A longer message
    /// is not carried, and its send ends with the same error.
    Ready,
    /// At once: a message that cannot leave now is copied (`MPI_Bsend`) to the room of
    /// [`Pml::attach_buffer`](crate::Pml::attach_buffer).
    Buffered,
}

/// The fields by which a message is matched. Sources are process numbers of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) context: u32,
    pub(crate) source: u32,
    pub(crate) tag: i32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EnvelopeWire {
    kind: u8,
    version: u8,
    pub(super) mode: U16,
    context: U32,
    tag: I32,
    sequence: U32,
    hash: U64,
    elements: U64,
}
const _: () = assert!(size_of::<EnvelopeWire>() == EAGER_BYTES);

/// What eager messages and RTS have in common: everything that matching needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    pub(crate) tag: i32,
    pub(crate) sequence: u32,
    pub(crate) digest: SignatureDigest,
    pub(crate) mode: SendMode,
}

impl Envelope {
    /// Where the data of an eager message starts.
    pub(crate) fn eager_bytes(&self) -> usize {
        match self.mode {
            SendMode::Synchronous => EAGER_BYTES + SERIAL_BYTES,
            _ => EAGER_BYTES,
        }
    }

    /// The label of a message from `source`.
    pub(crate) fn label(&self, source: u32) -> Label {
        Label { context: self.context, source, tag: self.tag }
    }

    #[inline]
    pub(super) fn wire(&self, kind: u8) -> EnvelopeWire {
        let digest = self.digest.to_bytes();
        let mut hash = U64::ZERO;
        hash.as_mut_bytes().copy_from_slice(&digest[16..24]);
        EnvelopeWire {
            kind,
            version: VERSION,
            mode: match self.mode {
                SendMode::Standard | SendMode::Buffered => 0,
                SendMode::Synchronous => SYNCHRONOUS,
                SendMode::Ready => READY,
            }
            .into(),
            context: self.context.into(),
            tag: self.tag.into(),
            sequence: self.sequence.into(),
            hash,
            elements: self.digest.elements.into(),
        }
    }

    /// The mode that an envelope names.
    #[inline]
    fn mode(wire: &EnvelopeWire) -> Result<SendMode, String> {
        match wire.mode.get() {
            0 => Ok(SendMode::Standard),
            SYNCHRONOUS => Ok(SendMode::Synchronous),
            READY => Ok(SendMode::Ready),
            other => Err(format!("no mode has number {other}")),
        }
    }

    pub(super) fn check(wire: &EnvelopeWire, bytes: u64) -> Result<Envelope, String> {
        let mut digest = [0; SignatureDigest::LEN];
        digest[0..8].copy_from_slice(wire.elements.as_bytes());
        digest[8..16].copy_from_slice(&bytes.to_le_bytes());
        digest[16..24].copy_from_slice(wire.hash.as_bytes());
        let digest = SignatureDigest::from_bytes(&digest)
            .map_err(|error| format!("a message of {bytes} bytes: {error}"))?;
        Ok(Envelope {
            context: wire.context.get(),
            tag: wire.tag.get(),
            sequence: wire.sequence.get(),
            digest,
            mode: Envelope::mode(wire)?,
        })
    }

    /// The header of an eager message.
    #[inline]
    pub(crate) fn eager(&self) -> [u8; EAGER_BYTES] {
        zerocopy::transmute!(self.wire(kind::EAGER))
    }
}

/// Tags in collective contexts of agreements that the order of calls numbers: from here on.
const AGREEMENT: i32 = 1 << 30;
/// Those among survivors.
const SURVEY: i32 = AGREEMENT | 1 << 29;
/// Those of partitioned messages, up to the last.
const PARTITION: i32 = SURVEY | 1 << 28;
/// How many numbers partitioned messages have for their tags ([`partition_tag`]). Agreements have as many, and begin
/// anew after them.
pub const PARTITION_TAGS: u32 = 1 << 28;

/// A tag of partitioned messages (MPI 4.1 §4.2), in the [collective](crate::Comm::collective) context: one of
/// [`PARTITION_TAGS`].
#[must_use]
pub fn partition_tag(number: u32) -> i32 {
    PARTITION | (number % PARTITION_TAGS).cast_signed()
}

impl Label {
    /// The tag of an agreement of that number.
    pub(crate) fn agreement(number: u32) -> i32 {
        AGREEMENT | (number % PARTITION_TAGS).cast_signed()
    }

    /// The same among survivors.
    pub(crate) fn survey(number: u32) -> i32 {
        SURVEY | (number % PARTITION_TAGS).cast_signed()
    }

    /// Whether a message is one of an agreement that the order of calls numbers.
    pub(crate) fn is_agreement(self) -> bool {
        (AGREEMENT..PARTITION).contains(&self.tag) && self.context % 2 == 1
    }

    /// Whether a message is one of an agreement among survivors.
    pub(crate) fn is_survey(self) -> bool {
        (SURVEY..PARTITION).contains(&self.tag) && self.context % 2 == 1
    }
}
