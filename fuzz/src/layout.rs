//! Flattened layouts, and pages. The last byte says whether the length that layouts state is set right.

use gapless_dtype::Pages;
use gapless_dtype::testkit::{Params, Rng, random_datatype, survive};

/// Where a flattened layout states its length.
const STATED: std::ops::Range<usize> = 8..16;

pub(crate) fn run(bytes: &[u8]) {
    let Some((&mend, flat)) = bytes.split_last() else { return };
    let mut flat = flat.to_vec();
    if let Ok(pages) = Pages::unflatten(&flat) {
        assert_eq!(Pages::unflatten(&pages.flatten()), Ok(pages));
    }
    if mend & 1 == 1 && flat.len() >= STATED.end {
        let len = (flat.len() as u64).to_le_bytes();
        flat[STATED].copy_from_slice(&len);
    }
    survive(&flat, &mut Rng::new(u64::from(mend)));
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(21);
    let params = Params { depth_max: 6, ..Params::default() };
    let layouts = (0..60).filter_map(|_| random_datatype(&mut rng, &params).commit().ok());
    let flat = layouts.flat_map(|layout| {
        let pages = Pages::new(&layout, 64, &[3u32, 0, 3][..]).ok();
        [Some(layout.flatten()), pages.map(|pages| pages.flatten())].into_iter().flatten()
    });
    flat.map(|flat| [&flat[..], &[1]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Layout;

    #[test]
    fn seeds_decode() {
        let decodes = |flat: &[u8]| match Pages::are_flattened(flat) {
            true => Pages::unflatten(flat).is_ok(),
            false => Layout::unflatten(flat).is_ok(),
        };
        assert!(seeds().iter().all(|seed| decodes(&seed[..seed.len() - 1])));
    }
}
