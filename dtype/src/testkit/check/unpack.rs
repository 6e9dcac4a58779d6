//! Unpacking into buffers full of canaries: every byte of the type arrives, no other one changes.

use super::{Case, Verdict, difference, ensure, wide};
use crate::naive::bytes::scatter;
use crate::testkit::rng::Rng;

/// One call unpacks everything.
pub(super) fn whole(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let (canaries, packed) = buffers(case, rng);
    let mut got = canaries.clone();
    let mut convertor = case.convertor()?;
    let n = convertor.unpack(&packed, &mut got, case.origin);
    ensure!(n == Ok(packed.len()), "unpacking {} bytes: {n:?}", packed.len());
    let more = convertor.unpack(&[1, 2, 3], &mut got, case.origin);
    ensure!(more == Ok(0), "unpacking past the end: {more:?}");
    compare(case, &canaries, &packed, &got)
}

/// Fragments in any order, each after a seek, make the whole.
pub(super) fn in_any_order(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let (canaries, packed) = buffers(case, rng);
    let mut got = canaries.clone();
    let mut convertor = case.convertor()?;
    let mut fragments = case.fragments(rng);
    rng.shuffle(&mut fragments);
    for fragment in fragments {
        let sought = convertor.seek(wide(fragment.start));
        ensure!(sought.is_ok(), "seeking to {}: {sought:?}", fragment.start);
        let n = convertor.unpack(&packed[fragment.clone()], &mut got, case.origin);
        ensure!(n == Ok(fragment.len()), "unpacking bytes {fragment:?}: {n:?}");
    }
    compare(case, &canaries, &packed, &got)
}

/// Random canaries, and random packed bytes to put among them.
fn buffers(case: &Case<'_>, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let mut canaries = vec![0; case.source.len()];
    rng.fill(&mut canaries);
    let mut packed = vec![0; case.packed.len()];
    rng.fill(&mut packed);
    (canaries, packed)
}

fn compare(case: &Case<'_>, canaries: &[u8], packed: &[u8], got: &[u8]) -> Verdict {
    if case.disjoint {
        let mut expected = canaries.to_vec();
        let done = scatter(&case.bytes, packed, &mut expected, case.origin);
        ensure!(done.is_ok(), "the oracle: {done:?}");
        ensure!(
            got == expected,
            "unpacked from index -{}: {}",
            case.origin,
            difference(got, &expected)
        );
        return Ok(());
    }
    // MPI leaves open which of several bytes for one place stays, not that it is one of them.
    let mut candidates: Vec<(usize, u8)> = Vec::with_capacity(packed.len());
    for (&displacement, &byte) in case.bytes.iter().zip(packed) {
        let at = isize::try_from(displacement).ok().and_then(|d| case.origin.checked_add_signed(d));
        candidates.push((at.expect("inside the buffer"), byte));
    }
    candidates.sort_unstable();
    candidates.dedup();
    for (at, (&got, &canary)) in got.iter().zip(canaries).enumerate() {
        let first = candidates.partition_point(|candidate| candidate.0 < at);
        let mut here =
            candidates[first..].iter().take_while(|candidate| candidate.0 == at).peekable();
        if here.peek().is_none() {
            ensure!(got == canary, "index {at} is a gap, and was written");
        } else {
            ensure!(
                here.any(|candidate| candidate.1 == got),
                "index {at} has a byte of no element"
            );
        }
    }
    Ok(())
}
