//! GRANT: the receiver grants its buffer to the sender, who moves the message into it. Its picture is in
//! `wire.rs`, who says what when in `rndv/mapped_put.rs`.

use super::staged::{key_len, key_of};
use super::{FRAGMENT_MIN, INLINE_LAYOUT_MAX, VERSION, kind, reserved};
use gapless_bml::RemoteKey;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of GRANT without key and layout, in bytes.
pub(crate) const GRANT_BYTES: usize = 72;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GrantWire {
    kind: u8,
    version: u8,
    key: u8,
    zero: u8,
    piece: U32,
    serial: U64,
    reply: U64,
    end: U64,
    count: U64,
    low: I64,
    span: U64,
    layout_id: U64,
    layout_bytes: U64,
}
const _: () = assert!(size_of::<GrantWire>() == GRANT_BYTES);

/// The receiver's decision that the sender is to move the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    /// Packed bytes from 0 to here are wanted; never none.
    pub(crate) end: u64,
    /// Instances of the receiver's layout.
    pub(crate) count: u64,
    /// First byte that the receiver's buffer touches, relative to displacement 0.
    pub(crate) low: i64,
    /// Bytes from there to the last one touched: what the key stands for.
    pub(crate) span: u64,
    /// The receiver's name for its layout; 0 if the buffer has no gaps.
    pub(crate) layout_id: u64,
    /// Length of the flattened layout; 0 if the buffer has no gaps, and then no layout is needed.
    pub(crate) layout_bytes: u64,
    /// Longest piece of a layout that the receiver sends, in bytes.
    pub(crate) piece: u32,
    pub(crate) key: RemoteKey,
}

impl Grant {
    /// With the layout behind it, or without: then the sender has the layout, or asks for it.
    pub(crate) fn wire(&self, layout: &[u8]) -> Vec<u8> {
        let key = self.key.as_bytes();
        let wire = GrantWire {
            kind: kind::GRANT,
            version: VERSION,
            key: key_len(key),
            zero: 0,
            piece: self.piece.into(),
            serial: self.serial.into(),
            reply: self.reply.into(),
            end: self.end.into(),
            count: self.count.into(),
            low: self.low.into(),
            span: self.span.into(),
            layout_id: self.layout_id.into(),
            layout_bytes: self.layout_bytes.into(),
        };
        [wire.as_bytes(), key, layout].concat()
    }

    /// `rest` is what follows the fixed part; gives how much of it is the key's.
    pub(super) fn check(wire: &GrantWire, rest: &[u8]) -> Result<(Grant, usize), String> {
        reserved(&[wire.zero])?;
        let length = usize::from(wire.key);
        let key = rest.get(..length).ok_or("a GRANT that ends inside its key")?;
        let key = key_of(key, wire.key)?.ok_or("a GRANT without a key")?;
        let inline = rest.len() - length;
        let grant = Grant {
            serial: wire.serial.get(),
            reply: wire.reply.get(),
            end: wire.end.get(),
            count: wire.count.get(),
            low: wire.low.get(),
            span: wire.span.get(),
            layout_id: wire.layout_id.get(),
            layout_bytes: wire.layout_bytes.get(),
            piece: wire.piece.get(),
            key,
        };
        let high = i64::try_from(grant.span).ok().and_then(|span| grant.low.checked_add(span));
        if grant.end == 0 || grant.piece < FRAGMENT_MIN || high.is_none() {
            return Err(format!("a GRANT that makes no sense: {grant:?}"));
        }
        if (grant.layout_id == 0) != (grant.layout_bytes == 0) {
            return Err(format!("half a layout: {grant:?}"));
        }
        if grant.layout_bytes == 0 && grant.end > grant.span {
            return Err(format!("{} bytes without gaps in {}", grant.end, grant.span));
        }
        if inline > INLINE_LAYOUT_MAX || (inline > 0 && inline as u64 != grant.layout_bytes) {
            return Err(format!("a GRANT with {inline} bytes of a layout: {grant:?}"));
        }
        Ok((grant, length))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn grant() -> Grant {
        Grant {
            serial: 3,
            reply: 4,
            end: 90,
            count: 5,
            low: -8,
            span: 900,
            layout_id: 7,
            layout_bytes: 33,
            piece: 200,
            key: RemoteKey::new(&[9; 40]).unwrap(),
        }
    }

    #[test]
    fn it_is_read_as_it_is_written() {
        let plain = Grant { layout_id: 0, layout_bytes: 0, low: 0, ..grant() };
        let least = Grant { piece: FRAGMENT_MIN, ..grant() };
        let whole = Grant { end: 900, ..plain };
        for (grant, layout) in
            [(grant(), &[5; 33][..]), (grant(), &[]), (plain, &[]), (least, &[]), (whole, &[])]
        {
            let bytes = grant.wire(layout);
            let inline = bytes.len() - layout.len()..bytes.len();
            assert_eq!(Message::parse(&bytes), Ok(Message::Grant(Box::new(grant), inline)));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = grant().wire(&[5; 33]);
        let mut cases = vec![good[..71].to_vec(), good[..100].to_vec(), good[..144].to_vec()];
        cases.push([&good[..], &[0]].concat());
        for (at, value) in [(2, 0), (2, 81), (2, 112), (3, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            cases.push(bad);
        }
        cases.push(Grant { end: 0, ..grant() }.wire(&[]));
        cases.push(Grant { piece: FRAGMENT_MIN - 1, ..grant() }.wire(&[]));
        cases.push(Grant { low: 1, span: i64::MAX.unsigned_abs(), ..grant() }.wire(&[]));
        cases.push(Grant { span: u64::MAX, ..grant() }.wire(&[]));
        cases.push(Grant { layout_id: 0, ..grant() }.wire(&[]));
        cases.push(Grant { layout_bytes: 0, ..grant() }.wire(&[]));
        cases.push(Grant { layout_id: 0, layout_bytes: 0, end: 901, ..grant() }.wire(&[]));
        cases.push(Grant { layout_bytes: 1025, ..grant() }.wire(&[1; 1025]));
        for case in cases {
            assert!(Message::parse(&case).is_err(), "{case:?}");
        }
    }
}
