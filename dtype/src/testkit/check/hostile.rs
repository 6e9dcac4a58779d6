//! Flattened bytes changed on purpose: decoding refuses them or yields a layout that is safe to
//! use, never a panic, a hang or a read outside a buffer.

use super::{Case, Verdict};
use crate::naive::bytes::{gather, merge};
use crate::testkit::rng::Rng;
use crate::{Convertor, Layout, Run};

/// Where a flattened layout states its own length.
const TOTAL: std::ops::Range<usize> = 8..16;
/// A buffer for small decoded layouts; displacement 0 is its middle.
const BUFFER: usize = 4096;

/// Mutates the case's flattened bytes in a few ways and uses what still decodes.
pub(super) fn mutated(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let flat = case.layout.flatten();
    for _ in 0..4 {
        let mut bytes = flat.clone();
        mutate(&mut bytes, rng);
        survive(&bytes, rng);
    }
    Ok(())
}

/// Changes `bytes` in one of the ways that break decoders: single bits and bytes, extreme numbers
/// in place of eight, pieces cut off, doubled or moved. The length that a flattened layout states
/// is mostly set right again, or little of this would get past it.
pub fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    const EXTREMES: [u64; 11] = [
        0,
        1,
        2,
        3,
        u64::MAX,
        1 << 63,
        (1 << 63) - 1,
        1 << 32,
        (1 << 32) - 1,
        1 << 62,
        0x8000_0001,
    ];
    for _ in 0..=rng.below(2) {
        let (at, len) = (rng.index(bytes.len()), bytes.len());
        match rng.below(8) {
            _ if len == 0 => return,
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = u8::try_from(rng.below(256)).expect("below 256"),
            2 => bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(rng.below(8)).expect("small")),
            3 | 4 => {
                let extreme = rng.pick(&EXTREMES).to_le_bytes();
                let width = (*rng.pick(&[1, 2, 4, 8])).min(len - at);
                bytes[at..at + width].copy_from_slice(&extreme[..width]);
            }
            5 => bytes.truncate(at),
            6 => bytes.extend_from_within(at..),
            _ => {
                let to = rng.index(len - at + 1);
                bytes[at..].rotate_left(to);
            }
        }
    }
    if rng.chance(85) && bytes.len() >= TOTAL.end {
        let len = super::wide(bytes.len()).to_le_bytes();
        bytes[TOTAL].copy_from_slice(&len);
    }
}

/// Decodes foreign bytes and, if they decode, uses the layout in every bounded way. Returns
/// whether they did.
///
/// # Panics
/// If decoding or the layout panics, lists a run outside its own bounds, or disagrees with itself:
/// those are the failures looked for.
pub fn survive(bytes: &[u8], rng: &mut Rng) -> bool {
    let Ok(layout) = Layout::unflatten(bytes) else {
        return false;
    };
    let listing = layout.program().to_string();
    assert!(!listing.is_empty(), "a program prints something");
    assert_eq!(Layout::unflatten(&layout.flatten()).as_ref(), Ok(&layout), "decoded and encoded");
    let _ = (layout.shape(), layout.block_lengths(), layout.is_contiguous());
    let _ = layout.signature().digest(3);
    for count in [0, 1, 3, u64::MAX] {
        if let Ok(convertor) = Convertor::new(&layout, count) {
            walk(convertor, rng);
        }
    }
    true
}

/// Seeks, lists and packs, in bounded steps.
fn walk(mut convertor: Convertor, rng: &mut Rng) {
    let size = convertor.packed_size();
    let mut runs = [Run::default(); 8];
    for _ in 0..4 {
        let place = rng.below(size.saturating_add(1));
        assert!(convertor.seek(place).is_ok(), "a place inside the packed stream");
        let (listed, bytes) = convertor.iov(&mut runs, 1 << 20);
        assert!(bytes <= size - place, "no more bytes than there are");
        for run in &runs[..listed] {
            let (low, high) = convertor.bounds().expect("runs have bounds");
            assert!(run.len > 0 && low <= run.displacement && run.end() <= high, "{run:?}");
        }
    }
    // In bounds of the buffer for few of these layouts, and refused for all others.
    let source: Vec<u8> = (0..=255).cycle().take(BUFFER).collect();
    let half = i64::try_from(BUFFER / 2).expect("a few KiB");
    let fits = convertor.bounds().is_none_or(|(low, high)| low >= -half && high <= half);
    convertor.seek(0).expect("every stream starts at 0");
    let mut packed = [0; 2 * BUFFER];
    let done = convertor.pack(&source, BUFFER / 2, &mut packed);
    assert_eq!(done.is_ok(), fits, "bounds decide: {done:?}");
    let Ok(n) = done else {
        return;
    };
    // Small enough to be compared: what is packed is what the runs name, and they are maximal.
    convertor.seek(0).expect("every stream starts at 0");
    let mut listed = vec![Run::default(); n + 1];
    let (used, bytes) = convertor.iov(&mut listed, super::wide(n));
    assert_eq!(bytes, super::wide(n), "as many bytes listed as packed");
    let bytes: Vec<i64> =
        listed[..used].iter().flat_map(|run| run.displacement..run.end()).collect();
    assert_eq!(merge(&bytes), listed[..used], "maximal runs");
    let expected = gather(&bytes, &source, BUFFER / 2).expect("inside the buffer");
    assert!(packed[..n] == expected, "packed and listed bytes differ");
}
