//! CTS: the receiver asks for the data, fragment by fragment. Its picture is in `wire.rs`, who says what when in
//! `rndv/pipeline.rs`.

use super::{CTS_BYTES, VERSION, kind, reserved};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct CtsWire {
    kind: u8,
    version: u8,
    zero: U16,
    depth: U32,
    fragment: U32,
    zero2: U32,
    serial: U64,
    reply: U64,
    offset: U64,
    end: U64,
}
const _: () = assert!(size_of::<CtsWire>() == CTS_BYTES);

/// Clear to send: the receiver's decision for the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cts {
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    /// Packed bytes `offset..end` are wanted; never none.
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// Length of every fragment but the last, in bytes; at least 1.
    pub(crate) fragment: u32,
    /// Fragments in work at once at most; at least 1.
    pub(crate) depth: u32,
}

impl Cts {
    pub(crate) fn wire(&self) -> [u8; CTS_BYTES] {
        zerocopy::transmute!(CtsWire {
            kind: kind::CTS,
            version: VERSION,
            zero: U16::ZERO,
            depth: self.depth.into(),
            fragment: self.fragment.into(),
            zero2: U32::ZERO,
            serial: self.serial.into(),
            reply: self.reply.into(),
            offset: self.offset.into(),
            end: self.end.into(),
        })
    }

    pub(super) fn check(wire: &CtsWire) -> Result<Cts, String> {
        reserved(wire.zero.as_bytes())?;
        reserved(wire.zero2.as_bytes())?;
        let cts = Cts {
            serial: wire.serial.get(),
            reply: wire.reply.get(),
            offset: wire.offset.get(),
            end: wire.end.get(),
            fragment: wire.fragment.get(),
            depth: wire.depth.get(),
        };
        if cts.offset >= cts.end || cts.fragment == 0 || cts.depth == 0 {
            return Err(format!("a CTS that grants nothing: {cts:?}"));
        }
        Ok(cts)
    }
}
