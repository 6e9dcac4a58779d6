//! HELP: the receiver, which copies out of the sender's memory, lets the sender copy into its own meanwhile. Its
//! picture is in `header.rs`, who says what when in `help.rs`.

use super::staged::{key_len, key_of};
use super::{INLINE_LAYOUT_MAX, VERSION, kind, reserved};
use gapless_bml::RemoteKey;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of HELP without keys and layout, in bytes.
pub(crate) const HELP_BYTES: usize = 72;
/// Shortest piece that a sender takes, in bytes: it takes them by the piece, in a word that both ends change.
pub(crate) const PIECE_MIN: u32 = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HelpWire {
    kind: u8,
    version: u8,
    key: u8,
    word: u8,
    shape: u8,
    zero: [u8; 3],
    turn: U32,
    piece: U32,
    serial: U64,
    reply: U64,
    end: U64,
    count: U64,
    low: I64,
    span: U64,
    layout_id: U64,
}
const _: () = assert!(size_of::<HelpWire>() == HELP_BYTES);

/// How the receiver's buffer is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpLayout {
    /// Without gaps.
    Gapless,
    /// By the layout behind the keys, which has this name.
    Named(u64),
    /// As the sender's own buffer, perhaps another number of times.
    Yours,
}

/// A receiver's request that the sender copies a part of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Help {
    pub(crate) serial: u64,
    pub(crate) reply: u64,
    /// Packed bytes from 0 to here are wanted; never none.
    pub(crate) end: u64,
    /// They are taken in pieces of so many bytes, the last one shorter.
    pub(crate) piece: u32,
    /// Which message over the word it is.
    pub(crate) turn: u32,
    pub(crate) layout: HelpLayout,
    /// Instances of the receiver's layout.
    pub(crate) count: u64,
    /// First byte that the receiver's buffer touches, relative to displacement 0.
    pub(crate) low: i64,
    /// Bytes from there to the last one touched: what the key stands for.
    pub(crate) span: u64,
    pub(crate) key: RemoteKey,
    /// Stands for the word by which both agree who copies what.
    pub(crate) word: RemoteKey,
}

impl Help {
    /// Pieces in all.
    pub(crate) fn pieces(&self) -> Option<u16> {
        u16::try_from(self.end.div_ceil(u64::from(self.piece.max(1)))).ok()
    }

    /// With the layout behind it, if it is named.
    pub(crate) fn wire(&self, layout: &[u8]) -> Vec<u8> {
        let (key, word) = (self.key.as_bytes(), self.word.as_bytes());
        let (shape, name) = match self.layout {
            HelpLayout::Gapless => (0, 0),
            HelpLayout::Named(name) => (1, name),
            HelpLayout::Yours => (2, 0),
        };
        let wire = HelpWire {
            kind: kind::HELP,
            version: VERSION,
            key: key_len(key),
            word: key_len(word),
            shape,
            zero: [0; 3],
            turn: self.turn.into(),
            piece: self.piece.into(),
            serial: self.serial.into(),
            reply: self.reply.into(),
            end: self.end.into(),
            count: self.count.into(),
            low: self.low.into(),
            span: self.span.into(),
            layout_id: name.into(),
        };
        [wire.as_bytes(), key, word, layout].concat()
    }

    /// `rest` is what follows the fixed part; gives how much of it is the keys'.
    pub(super) fn check(wire: &HelpWire, rest: &[u8]) -> Result<(Help, usize), String> {
        reserved(&wire.zero)?;
        let first = usize::from(wire.key);
        let length = first + usize::from(wire.word);
        let keys = rest.get(..length).ok_or("a HELP that ends inside its keys")?;
        let key = |bytes, len| key_of(bytes, len)?.ok_or("a HELP without a key".to_owned());
        let (key, word) = (key(&keys[..first], wire.key)?, key(&keys[first..], wire.word)?);
        let inline = rest.len() - length;
        let layout = match (wire.shape, wire.layout_id.get()) {
            (0, 0) => HelpLayout::Gapless,
            (1, name @ 1..) => HelpLayout::Named(name),
            (2, 0) => HelpLayout::Yours,
            (shape, name) => return Err(format!("layout {name} of kind {shape}")),
        };
        let help = Help {
            serial: wire.serial.get(),
            reply: wire.reply.get(),
            end: wire.end.get(),
            piece: wire.piece.get(),
            turn: wire.turn.get(),
            layout,
            count: wire.count.get(),
            low: wire.low.get(),
            span: wire.span.get(),
            key,
            word,
        };
        let high = i64::try_from(help.span).ok().and_then(|span| help.low.checked_add(span));
        if help.end == 0 || help.piece < PIECE_MIN || high.is_none() || help.pieces().is_none() {
            return Err(format!("a HELP that makes no sense: {help:?}"));
        }
        if layout == HelpLayout::Gapless && help.end > help.span {
            return Err(format!("{} bytes without gaps in {}", help.end, help.span));
        }
        let named = matches!(layout, HelpLayout::Named(_));
        if inline > INLINE_LAYOUT_MAX || named != (inline > 0) {
            return Err(format!("a HELP with {inline} bytes of a layout: {help:?}"));
        }
        Ok((help, length))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn help() -> Help {
        Help {
            serial: 3,
            reply: 4,
            end: 90_000,
            piece: 8192,
            turn: 6,
            layout: HelpLayout::Named(7),
            count: 5,
            low: -8,
            span: 900_000,
            key: RemoteKey::new(&[9; 40]).unwrap(),
            word: RemoteKey::new(&[8; 41]).unwrap(),
        }
    }

    #[test]
    fn it_is_read_as_it_is_written() {
        let gapless = Help { layout: HelpLayout::Gapless, low: 0, ..help() };
        let yours = Help { layout: HelpLayout::Yours, ..help() };
        for (help, layout) in [(help(), &[5; 33][..]), (gapless, &[]), (yours, &[])] {
            let bytes = help.wire(layout);
            let inline = bytes.len() - layout.len()..bytes.len();
            assert_eq!(Message::parse(&bytes), Ok(Message::Help(Box::new(help), inline)));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = help().wire(&[5; 33]);
        let mut cases = vec![good[..71].to_vec(), good[..100].to_vec(), good[..153].to_vec()];
        for (at, value) in [(2, 0), (2, 81), (3, 0), (3, 81), (4, 0), (4, 2), (4, 3), (5, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            cases.push(bad);
        }
        cases.push(Help { end: 0, ..help() }.wire(&[1]));
        cases.push(Help { piece: PIECE_MIN - 1, ..help() }.wire(&[1]));
        cases.push(Help { end: u64::MAX, ..help() }.wire(&[1]));
        cases.push(Help { end: 8192 * 65_535 + 1, ..help() }.wire(&[1]));
        cases.push(Help { low: 1, span: i64::MAX.unsigned_abs(), ..help() }.wire(&[1]));
        cases.push(Help { span: u64::MAX, ..help() }.wire(&[1]));
        cases.push(Help { layout: HelpLayout::Named(0), ..help() }.wire(&[1]));
        cases.push(help().wire(&[1; INLINE_LAYOUT_MAX + 1]));
        cases.push(help().wire(&[]));
        cases.push(Help { layout: HelpLayout::Yours, ..help() }.wire(&[1]));
        cases.push(Help { layout: HelpLayout::Gapless, span: 89_999, ..help() }.wire(&[]));
        for case in cases {
            assert!(Message::parse(&case).is_err(), "{case:?}");
        }
    }
}
