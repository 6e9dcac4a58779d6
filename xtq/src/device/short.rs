//! A body that lies in its slot, before it is there.

use super::layout::{INLINE_BYTES, UNIT_BODY, UNIT_BYTES};
use crate::buffer::copy_few;
use zerocopy::IntoBytes;

/// Words that make up whole units: 7 words, 4 units.
const GROUP: usize = 7;
const GROUP_UNITS: usize = GROUP * 8 / UNIT_BODY;

/// Words of a body, and two more, so that 0 may always be written behind it.
const WORDS: usize = INLINE_BYTES / 8 + 2;

/// Arguments and payload, one behind the other. What is behind them in their last unit is 0.
#[derive(Clone)]
pub(crate) struct Short {
    words: [u64; WORDS],
    /// Bytes of arguments, and of both.
    first: usize,
    bytes: usize,
}

impl Short {
    pub(crate) const fn none() -> Short {
        Short { words: [0; WORDS], first: 0, bytes: 0 }
    }

    /// A copy of a body, if it is short enough.
    #[inline]
    pub(crate) fn of(arguments: &[u8], payload: &[u8]) -> Option<Short> {
        let mut short = Short::none();
        (short.set_arguments(arguments) && short.set_payload(payload)).then_some(short)
    }

    /// Copies arguments, with which a body begins anew. Whether they are short enough.
    #[inline]
    pub(crate) fn set_arguments(&mut self, arguments: &[u8]) -> bool {
        let fits = self.write(0, arguments);
        if fits {
            self.first = arguments.len();
        }
        fits
    }

    /// Copies a payload in the place of what was behind the arguments. Whether it is short enough.
    #[inline]
    pub(crate) fn set_payload(&mut self, payload: &[u8]) -> bool {
        self.write(self.first, payload)
    }

    /// Writes the last bytes, from `at` on, unless there are too many.
    #[inline]
    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let end = at.saturating_add(bytes.len());
        if end > INLINE_BYTES {
            return false;
        }
        let to = self.words.as_mut_bytes();
        copy_few(&mut to[at..end], bytes);
        to[end..end + UNIT_BYTES].fill(0);
        self.bytes = end;
        true
    }

    #[inline]
    pub(crate) fn arguments(&self) -> &[u8] {
        &self.words.as_bytes()[..self.first]
    }

    #[inline]
    pub(crate) fn payload(&self) -> &[u8] {
        &self.words.as_bytes()[self.first..self.bytes]
    }

    /// Bytes of arguments and of the payload.
    #[inline]
    pub(crate) fn lengths(&self) -> [usize; 2] {
        [self.first, self.bytes - self.first]
    }

    /// Calls with the two halves of each unit, in order. The first has room for a sequence number in its lowest 16 bits,
    /// which are 0.
    #[inline]
    pub(crate) fn each_unit(&self, mut act: impl FnMut(usize, [u64; UNIT_BYTES / 8])) {
        let (mut unit, mut left) = (0, self.bytes);
        for words in self.words.as_chunks::<GROUP>().0 {
            for halves in halves_of(words) {
                if left == 0 {
                    return;
                }
                act(unit, halves);
                (unit, left) = (unit + 1, left.saturating_sub(UNIT_BODY));
            }
        }
    }
}

/// The units of some words: 6 bytes, and then 8. A word is read as it was written: another way it would be waited for.
#[inline]
fn halves_of(words: &[u64; GROUP]) -> [[u64; 2]; GROUP_UNITS] {
    let [a, b, c, d, e, f, g] = words.map(u64::from_le);
    [
        [a << 16, a >> 48 | b << 16],
        [b >> 48 << 16 | c << 32, c >> 32 | d << 32],
        [d >> 32 << 16 | e << 48, e >> 16 | f << 48],
        [f >> 16 << 16, g],
    ]
}

const _: () = {
    assert!(INLINE_BYTES.is_multiple_of(8 * GROUP) && WORDS / GROUP == INLINE_BYTES / 8 / GROUP);
    assert!(UNIT_BODY == 14 && UNIT_BODY <= UNIT_BYTES);
    assert!(GROUP_UNITS * UNIT_BODY == GROUP * 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_the_bytes_of_a_body_and_nothing_behind_it() {
        let bytes: Vec<u8> = (1..=168).collect();
        let mut short = Short::none();
        for first in [0, 1, 7, 8, 16, 24, 32, 64, 100, 168] {
            for second in (0..=168 - first).rev() {
                // The first one by itself; the others behind longer ones.
                if second == 168 - first {
                    short = Short::of(&bytes[..first], &bytes[..second]).unwrap();
                } else {
                    assert!(short.set_payload(&bytes[..second]));
                }
                assert_eq!(short.lengths(), [first, second]);
                assert_eq!(
                    [short.arguments(), short.payload()],
                    [&bytes[..first], &bytes[..second]]
                );
                let all = [&bytes[..first], &bytes[..second]].concat();
                let mut units = Vec::new();
                short.each_unit(|unit, [low, high]| {
                    assert_eq!((unit * UNIT_BODY, low & 0xFFFF), (units.len(), 0));
                    units.extend_from_slice(&low.to_le_bytes()[2..]);
                    units.extend_from_slice(&high.to_le_bytes());
                });
                assert_eq!(units[..all.len()], all);
                assert!(units.len() < all.len() + UNIT_BODY);
                assert!(units[all.len()..].iter().all(|byte| *byte == 0));
            }
        }
        assert!(Short::of(&bytes, &bytes[..1]).is_none());
        assert!(short.set_arguments(&bytes[..8]) && !short.set_payload(&bytes[..161]));
        assert_eq!(short.lengths(), [8, 0]);
    }
}
