//! A body that lies in its slot, before it is there.

use super::layout::{INLINE_BYTES, UNIT_BODY};

/// Arguments and payload, one behind the other. What is behind them in their last unit is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    lengths: [u8; 2],
    bytes: [u8; INLINE_BYTES],
}

impl Default for Short {
    fn default() -> Short {
        Short { lengths: [0; 2], bytes: [0; INLINE_BYTES] }
    }
}

impl Short {
    /// Copies a body that is short enough. Whether it was.
    #[inline]
    pub(crate) fn fill(&mut self, arguments: &[u8], payload: &[u8]) -> bool {
        let (first, all) = (arguments.len(), arguments.len().saturating_add(payload.len()));
        if all > INLINE_BYTES {
            return false;
        }
        // A whole body has no last unit that is not full.
        if let Some(last) = self.bytes.as_chunks_mut::<UNIT_BODY>().0.get_mut(all / UNIT_BODY) {
            *last = [0; UNIT_BODY];
        }
        self.bytes[..first].copy_from_slice(arguments);
        self.bytes[first..all].copy_from_slice(payload);
        // 168 at most.
        self.lengths = [arguments.len(), payload.len()].map(|len| u8::try_from(len).unwrap_or(0));
        true
    }

    pub(crate) fn lengths(&self) -> [usize; 2] {
        self.lengths.map(usize::from)
    }

    /// Arguments and payload.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let [first, second] = self.lengths();
        let (arguments, rest) = self.bytes.split_at(first);
        [arguments, &rest[..second]]
    }

    /// What goes into each unit.
    #[inline]
    pub(crate) fn units(&self) -> impl Iterator<Item = &[u8; UNIT_BODY]> {
        let [first, second] = self.lengths();
        self.bytes.as_chunks().0.iter().take((first + second).div_ceil(UNIT_BODY))
    }
}

const _: () = assert!(INLINE_BYTES.is_multiple_of(UNIT_BODY) && INLINE_BYTES <= 255);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_earlier_body_is_left_in_a_unit() {
        let mut short = Short::default();
        let bytes: Vec<u8> = (1..=168).collect();
        for (arguments, payload) in [(100, 68), (0, 0), (16, 0), (0, 1), (24, 64), (168, 0), (7, 8)]
        {
            assert!(short.fill(&bytes[..arguments], &bytes[..payload]));
            assert_eq!(short.parts(), [&bytes[..arguments], &bytes[..payload]]);
            let all = [&bytes[..arguments], &bytes[..payload]].concat();
            let units: Vec<u8> = short.units().flatten().copied().collect();
            assert_eq!(units[..all.len()], all);
            assert!(units.len() < all.len() + UNIT_BODY);
            assert!(units[all.len()..].iter().all(|byte| *byte == 0));
        }
        assert!(!short.fill(&bytes, &bytes[..1]));
    }
}
