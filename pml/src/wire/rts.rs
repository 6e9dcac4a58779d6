//! RTS: the longest header, with keys and a layout behind it. Its picture is in `wire.rs`.

use super::envelope::EnvelopeWire;
use super::{CONTROL_MAX, Envelope, FRAGMENT_MIN, INLINE_LAYOUT_MAX, RTS_BYTES, kind};
use gapless_bml::RemoteKey;
use std::ops::Range;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Whether the data of an offer may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DataState {
    /// It is there.
    #[default]
    Present,
    /// The sender will say when.
    Pending,
    /// It will never be: the work that should have made it has failed.
    Failed,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RtsWire {
    envelope: EnvelopeWire,
    bytes: U64,
    serial: U64,
    count: U64,
    low: I64,
    span: U64,
    blocks: U64,
    layout_id: U64,
    layout_bytes: U64,
    fragment: U32,
    depth: U32,
    inline: U16,
    mapped: u8,
    rdma: u8,
    space: u8,
    staged: u8,
    flags: u8,
    shares: u8,
    staged_fragment: U32,
    staged_depth: U32,
    device: U64,
}
const _: () = assert!(size_of::<RtsWire>() == RTS_BYTES);

/// Its buffer lies in memory of a device that can stage.
const DEVICE: u8 = 1;
/// It can put fragments into host memory that its receiver maps.
const THROUGH_HOST: u8 = 2;
/// It can pack into memory of its device that its receiver reads.
const READABLE: u8 = 4;
/// Its buffer is memory of the host that is page-locked for a device of its process.
const LOCKED: u8 = 8;
/// Its device reaches memory of the host by copies alone.
const COPIES_ONLY: u8 = 16;
/// The data is there later.
const LATER: u8 = 1;
/// Its buffer was used lately, so caches may have it.
const CACHED: u8 = 2;

/// What a sender says about staging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StagedOffer {
    /// Whether its buffer lies in memory of a device that can stage.
    pub(crate) device: bool,
    /// Whether it can put fragments into host memory that its receiver maps.
    pub(crate) through_host: bool,
    /// Whether it can pack into memory of its device that its receiver reads.
    pub(crate) readable: bool,
    /// Whether its buffer is memory of the host that a device of its process reaches.
    pub(crate) locked: bool,
    /// Whether its device reaches memory of the host by copies alone.
    pub(crate) copies_only: bool,
    /// What its device [shares](gapless_mem::Abilities::shares) with; 0 if nothing, or if it is no device's.
    pub(crate) shares: u8,
    /// Fragment size in bytes that it wishes; 0 if it cannot stage.
    pub(crate) fragment: u32,
    /// Fragments in flight at once that it wishes.
    pub(crate) depth: u32,
    /// The id of the device; 0 if it is not known.
    pub(crate) device_id: u64,
}

/// Request to send: an offer, from which the receiver chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) envelope: Envelope,
    /// The rendezvous at its sender.
    pub(crate) serial: u64,
    /// Instances of the sender's layout.
    pub(crate) count: u64,
    /// First byte the sender's buffer touches, relative to displacement 0.
    pub(crate) low: i64,
    /// Bytes from there to the last one touched.
    pub(crate) span: u64,
    /// Runs of bytes in the whole message; 1 means no gaps, and then no layout is needed.
    pub(crate) blocks: u64,
    /// The sender's name for its layout.
    pub(crate) layout_id: u64,
    /// Length of the flattened layout.
    pub(crate) layout_bytes: u64,
    /// Fragment size in bytes that the sender wishes.
    pub(crate) fragment: u32,
    /// Fragments in flight at once that the sender wishes.
    pub(crate) depth: u32,
    /// Whether the sender's buffer is memory that a CPU may touch.
    pub(crate) host: bool,
    pub(crate) staged: StagedOffer,
    /// Whether the sender's buffer was used lately.
    pub(crate) cached: bool,
    /// Whether the data may be read.
    pub(crate) data: DataState,
    pub(crate) mapped: Option<RemoteKey>,
    pub(crate) rdma: Option<RemoteKey>,
    /// Where in the message the flattened layout is, if it is there.
    pub(crate) inline: Range<usize>,
}

impl Rts {
    /// Writes header, keys and `layout`; gives the length. `self.inline` is not looked at.
    pub(crate) fn write(&self, layout: &[u8], into: &mut [u8; CONTROL_MAX]) -> usize {
        let mapped = self.mapped.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        let rdma = self.rdma.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        let layout = if layout.len() <= INLINE_LAYOUT_MAX { layout } else { &[] };
        let short = |len: usize| u8::try_from(len).expect("a key is at most 80 bytes");
        let wire = RtsWire {
            envelope: self.envelope.wire(kind::RTS),
            bytes: self.envelope.digest.bytes.into(),
            serial: self.serial.into(),
            count: self.count.into(),
            low: self.low.into(),
            span: self.span.into(),
            blocks: self.blocks.into(),
            layout_id: self.layout_id.into(),
            layout_bytes: self.layout_bytes.into(),
            fragment: self.fragment.into(),
            depth: self.depth.into(),
            inline: u16::try_from(layout.len()).expect("at most 1 KiB").into(),
            mapped: short(mapped.len()),
            rdma: short(rdma.len()),
            space: u8::from(!self.host),
            staged: if self.staged.device { DEVICE } else { 0 }
                | if self.staged.through_host { THROUGH_HOST } else { 0 }
                | if self.staged.readable { READABLE } else { 0 }
                | if self.staged.locked { LOCKED } else { 0 }
                | if self.staged.copies_only { COPIES_ONLY } else { 0 },
            flags: if self.data == DataState::Pending { LATER } else { 0 }
                | if self.cached { CACHED } else { 0 },
            shares: self.staged.shares,
            staged_fragment: self.staged.fragment.into(),
            staged_depth: self.staged.depth.into(),
            device: self.staged.device_id.into(),
        };
        let mut at = 0;
        for part in [wire.as_bytes(), mapped, rdma, layout] {
            into[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    }

    pub(super) fn check(wire: &RtsWire, message: &[u8]) -> Result<Rts, String> {
        let envelope = Envelope::check(&wire.envelope, wire.bytes.get())?;
        let key = |range: Range<usize>| -> Result<Option<RemoteKey>, String> {
            if range.is_empty() {
                return Ok(None);
            }
            let bytes = message.get(range.clone()).ok_or("an RTS that ends inside a key")?;
            let key = RemoteKey::new(bytes);
            key.map(Some).ok_or_else(|| format!("a key of {} bytes", range.len()))
        };
        let mapped = RTS_BYTES..RTS_BYTES + usize::from(wire.mapped);
        let rdma = mapped.end..mapped.end + usize::from(wire.rdma);
        let inline = rdma.end..rdma.end + usize::from(wire.inline.get());
        if inline.end != message.len() {
            return Err(format!("an RTS of {} bytes that should be {}", message.len(), inline.end));
        }
        if inline.len() > INLINE_LAYOUT_MAX {
            return Err(format!("an RTS with a layout of {} bytes", inline.len()));
        }
        if !inline.is_empty() && inline.len() as u64 != wire.layout_bytes.get() {
            return Err(format!(
                "an RTS with {} bytes of a layout of {}",
                inline.len(),
                wire.layout_bytes.get()
            ));
        }
        if i64::try_from(wire.span.get())
            .ok()
            .and_then(|span| wire.low.get().checked_add(span))
            .is_none()
        {
            return Err(format!("a span of {} bytes from {}", wire.span.get(), wire.low.get()));
        }
        if wire.space > 1
            || wire.staged > DEVICE | THROUGH_HOST | READABLE | LOCKED | COPIES_ONLY
            || wire.flags > LATER | CACHED
        {
            return Err("an RTS with an unknown space, staging or flag".to_owned());
        }
        let staged = StagedOffer {
            device: wire.staged & DEVICE != 0,
            through_host: wire.staged & THROUGH_HOST != 0,
            readable: wire.staged & READABLE != 0,
            locked: wire.staged & LOCKED != 0,
            copies_only: wire.staged & COPIES_ONLY != 0,
            shares: wire.shares,
            fragment: wire.staged_fragment.get(),
            depth: wire.staged_depth.get(),
            device_id: wire.device.get(),
        };
        if wire.staged != 0 && (staged.fragment < FRAGMENT_MIN || staged.depth == 0) {
            return Err(format!("an RTS with impossible staging: {staged:?}"));
        }
        let of_device = staged.device || staged.readable || staged.copies_only;
        if (of_device || staged.shares != 0) && wire.space == 0 {
            return Err("an RTS for host memory of a device".to_owned());
        }
        if staged.locked && wire.space == 1 {
            return Err("an RTS for page-locked memory that is not the host's".to_owned());
        }
        if wire.fragment.get() < FRAGMENT_MIN {
            return Err(format!("an RTS with fragments of {} bytes", wire.fragment.get()));
        }
        Ok(Rts {
            envelope,
            serial: wire.serial.get(),
            count: wire.count.get(),
            low: wire.low.get(),
            span: wire.span.get(),
            blocks: wire.blocks.get(),
            layout_id: wire.layout_id.get(),
            layout_bytes: wire.layout_bytes.get(),
            fragment: wire.fragment.get(),
            depth: wire.depth.get(),
            host: wire.space == 0,
            staged,
            cached: wire.flags & CACHED != 0,
            data: if wire.flags & LATER != 0 { DataState::Pending } else { DataState::Present },
            mapped: key(mapped)?,
            rdma: key(rdma)?,
            inline,
        })
    }
}
