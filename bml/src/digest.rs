//! Digests that are the same in every process.

/// A digest of numbers (FNV-1a on their bytes), the same in every process.
#[must_use]
pub fn digest(numbers: &[u64]) -> u64 {
    digest_bytes(numbers.iter().flat_map(|number| number.to_le_bytes()))
}

/// A digest of bytes (FNV-1a of 64 bits), the same in every process: for mistakes and not for attacks.
pub fn digest_bytes(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
