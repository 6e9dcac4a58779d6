//! Flattened layouts. The last byte says whether the length that they state is set right.

use gapless_dtype::testkit::{Params, Rng, random_datatype, survive};

/// Where a flattened layout states its length.
const STATED: std::ops::Range<usize> = 8..16;

pub(crate) fn run(bytes: &[u8]) {
    let Some((&mend, flat)) = bytes.split_last() else { return };
    let mut flat = flat.to_vec();
    if mend & 1 == 1 && flat.len() >= STATED.end {
        let len = (flat.len() as u64).to_le_bytes();
        flat[STATED].copy_from_slice(&len);
    }
    survive(&flat, &mut Rng::new(u64::from(mend)));
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(21);
    let params = Params { depth_max: 6, ..Params::default() };
    let flat = (0..60).filter_map(|_| random_datatype(&mut rng, &params).commit().ok());
    flat.map(|layout| [&layout.flatten()[..], &[1]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Layout;

    #[test]
    fn seeds_decode() {
        assert!(seeds().iter().all(|seed| Layout::unflatten(&seed[..seed.len() - 1]).is_ok()));
    }
}
