//! Reading and writing the numbers of what goes over the wire. They are little-endian.

/// Takes numbers off the front of bytes, whose length was checked; past their end there are zeros.
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, rest)) = self.0.split_first_chunk::<N>() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *taken
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Puts numbers behind each other.
pub(crate) struct Writer<'b> {
    bytes: &'b mut [u8],
    at: usize,
}

impl<'b> Writer<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> Writer<'b> {
        Writer { bytes, at: 0 }
    }

    /// # Panics
    /// There is no room: lengths of what is written are constants.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Writer<'b> {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }
}
