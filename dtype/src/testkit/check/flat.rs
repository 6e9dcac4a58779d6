//! Flattening: what is decoded behaves as what was encoded.

use super::meaning::layout_numbers;
use super::{Case, Verdict, convertor, difference, ensure};
use crate::testkit::rng::Rng;
use crate::{Layout, Run};

/// Decoded and encoded again, the bytes are the same; so are numbers and packed bytes.
pub(super) fn same_again(case: &Case<'_>) -> Verdict {
    again(case).map(|_| ())
}

fn again(case: &Case<'_>) -> Result<Layout, String> {
    let flat = case.layout.flatten();
    let layout = Layout::unflatten(&flat).map_err(|error| format!("unflatten: {error}"))?;
    let (got, expected) = (layout_numbers(&layout), layout_numbers(&case.layout));
    if got != expected {
        return Err(format!("unflattened it has {got:?}, not {expected:?}"));
    }
    let mut packed = vec![0; case.packed.len()];
    let n = convertor(&layout, case.count)?.pack(&case.source, case.origin, &mut packed);
    if n != Ok(packed.len()) || packed != case.packed {
        let difference = difference(&packed, &case.packed);
        return Err(format!("unflattened it packs {n:?} bytes: {difference}"));
    }
    if layout.flatten() != flat {
        return Err("unflattened and flattened again the bytes differ".to_owned());
    }
    Ok(layout)
}

/// The decoded layout in full: blocks, signature, runs, seek.
pub(super) fn round_trip(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let layout = again(case)?;
    let (blocks, expected) = (layout.blocks(), case.layout.blocks());
    ensure!(blocks == expected, "unflattened it has {blocks} blocks, not {expected}");
    let digests =
        (layout.signature().digest(case.count), case.layout.signature().digest(case.count));
    ensure!(digests.0 == digests.1, "unflattened it has another signature: {digests:?}");
    let mut decoded = convertor(&layout, case.count)?;
    let mut listed = vec![Run::default(); case.runs.len() + 1];
    let (n, _) = decoded.iov(&mut listed, u64::MAX);
    ensure!(listed[..n] == case.runs, "unflattened it lists other runs");
    let cut = case.cut(rng);
    let sought = decoded.seek(super::wide(cut));
    ensure!(sought.is_ok(), "unflattened, seeking to {cut}: {sought:?}");
    let mut rest = vec![0; case.packed.len() - cut];
    let n = decoded.pack(&case.source, case.origin, &mut rest);
    ensure!(
        n == Ok(rest.len()) && rest == case.packed[cut..],
        "unflattened, packing from {cut} differs"
    );
    Ok(())
}
