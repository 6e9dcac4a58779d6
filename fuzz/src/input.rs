//! Bytes read as decisions. Once they have run out everything is 0, so that any bytes mean something.

/// What is left of the input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

/// Numbers at which arithmetic breaks.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    31,
    32,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
    u64::MAX,
];

impl<'a> Input<'a> {
    /// Whether there is nothing left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Up to `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number of any size, small and extreme ones often.
    pub fn number(&mut self) -> u64 {
        let how = self.byte();
        match how >> 6 {
            0 => u64::from(how & 63),
            1 => u64::from(self.short()),
            2 => EDGES[usize::from(how & 63) % EDGES.len()],
            _ => u64::from_le_bytes(self.array()),
        }
    }

    /// The same, of either sign.
    pub fn signed(&mut self) -> i64 {
        let number = self.number().cast_signed();
        if number & 1 == 0 { number } else { number.wrapping_neg() }
    }
}
