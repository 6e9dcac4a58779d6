//! Foreign bytes: decoding a layout trusts nothing. Corpora of changed, cut and made-up bytes must
//! be refused or give layouts that are safe to use.

use gapless_dtype::testkit::{Params, Rng, exhaustive, mutate, random_datatype, survive};
use gapless_dtype::{Datatype, Layout, Primitive};

/// Flattened layouts of all kinds.
fn corpus() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(11);
    let params = Params { depth_max: 7, ..Params::default() };
    let mut flat: Vec<_> =
        (0..150).map(|_| random_datatype(&mut rng, &params).commit().unwrap().flatten()).collect();
    let units = exhaustive::units();
    flat.extend(units.iter().step_by(7).map(|unit| unit.commit().unwrap().flatten()));
    flat
}

/// Sets the length that flattened bytes state about themselves, so that the decoder reads on.
fn state_length(bytes: &mut [u8]) {
    let len = u64::try_from(bytes.len()).unwrap().to_le_bytes();
    if let Some(stated) = bytes.get_mut(8..16) {
        stated.copy_from_slice(&len);
    }
}

#[test]
fn every_prefix_is_refused() {
    for flat in corpus() {
        for len in 0..flat.len() {
            let mut prefix = flat[..len].to_vec();
            assert!(Layout::unflatten(&prefix).is_err(), "{len} of {} bytes", flat.len());
            state_length(&mut prefix);
            assert!(Layout::unflatten(&prefix).is_err(), "{len} of {} bytes", flat.len());
        }
    }
}

#[test]
fn trailing_bytes_are_refused() {
    for flat in corpus() {
        for extra in [&[0][..], &[0xff; 16]] {
            let mut longer = [&flat[..], extra].concat();
            assert!(Layout::unflatten(&longer).is_err(), "{} bytes too many", extra.len());
            state_length(&mut longer);
            assert!(Layout::unflatten(&longer).is_err(), "{} bytes too many", extra.len());
        }
    }
}

#[test]
fn every_byte_changed() {
    let (mut rng, mut decoded) = (Rng::new(12), 0);
    for flat in corpus().iter().step_by(3) {
        for at in 0..flat.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, flat[at] ^ 1, flat[at].wrapping_add(1)] {
                let mut changed = flat.clone();
                changed[at] = value;
                decoded += u32::from(survive(&changed, &mut rng));
            }
        }
    }
    // The test would be void if nothing got past the first check.
    assert!(decoded > 1_000, "only {decoded} changed layouts decoded");
}

#[test]
fn mutated_many_times() {
    let (corpus, mut rng, mut decoded) = (corpus(), Rng::new(13), 0);
    for _ in 0..100_000 {
        let mut bytes = rng.pick(&corpus).clone();
        mutate(&mut bytes, &mut rng);
        decoded += u32::from(survive(&bytes, &mut rng));
    }
    assert!(decoded > 1_000, "only {decoded} mutated layouts decoded");
}

#[test]
fn pieces_of_two_layouts() {
    let (corpus, mut rng) = (corpus(), Rng::new(14));
    for _ in 0..10_000 {
        let (front, back) = (rng.pick(&corpus).clone(), rng.pick(&corpus).clone());
        let (cut, rest) = (rng.index(front.len() + 1), rng.index(back.len() + 1));
        let mut bytes = [&front[..cut], &back[rest..]].concat();
        state_length(&mut bytes);
        survive(&bytes, &mut rng);
    }
}

#[test]
fn noise() {
    let mut rng = Rng::new(15);
    let header = Datatype::from(Primitive::Int).commit().unwrap().flatten();
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.index(200)];
        rng.fill(&mut bytes);
        survive(&bytes, &mut rng);
        // Noise behind a header that is right.
        let kept = rng.index(header.len() + 1);
        let mut bytes = [&header[..kept], &bytes[..]].concat();
        state_length(&mut bytes);
        survive(&bytes, &mut rng);
    }
}

/// Huge numbers in small messages must not make the decoder allocate or loop: the watchdog is the
/// test harness's patience, the bound is stated in `limits`.
#[test]
fn huge_numbers() {
    let (corpus, mut rng) = (corpus(), Rng::new(16));
    for flat in corpus.iter().step_by(2) {
        for at in (0..flat.len().saturating_sub(8)).step_by(4) {
            for value in [u64::MAX, u64::MAX / 2, 1 << 40, 1 << 33, 1 << 31] {
                let mut changed = flat.clone();
                changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
                survive(&changed, &mut rng);
            }
        }
    }
}
