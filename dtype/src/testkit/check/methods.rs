//! Every method of moving bytes gives the same: each instruction set that the processor has, stores through the
//! cache and around it, from any place to any alignment.

use super::{Case, Verdict, difference, ensure, wide};
use crate::copy::Method;
use crate::naive::bytes::scatter;
use crate::testkit::rng::Rng;
use crate::transfer::transfer_in;

/// Bytes before and behind what is packed.
const AROUND: usize = 64;

/// Packs from a random place on, to a random alignment.
pub(super) fn packed(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let mut convertor = case.convertor()?;
    for method in Method::FORCED {
        let (from, shift) = (case.cut(rng), rng.index(AROUND));
        let expected = &case.packed[from..];
        let mut around = vec![0xa5; expected.len() + 2 * AROUND];
        let sought = convertor.seek(wide(from));
        ensure!(sought.is_ok(), "seeking to {from}: {sought:?}");
        let room = &mut around[shift..shift + expected.len()];
        let n = convertor.pack_in(method, &case.source, case.origin, room);
        ensure!(n == Ok(expected.len()), "{method:?}: packing from {from}: {n:?}");
        let got = &around[shift..shift + expected.len()];
        ensure!(got == expected, "{method:?}: from {from}: {}", difference(got, expected));
        let outside = around[..shift].iter().chain(&around[shift + expected.len()..]);
        ensure!(outside.copied().all(|byte| byte == 0xa5), "{method:?}: wrote around from {from}");
    }
    Ok(())
}

/// Unpacks everything from a random alignment; types whose bytes overlap only one method has to get right.
pub(super) fn unpacked(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    if !case.disjoint {
        return Ok(());
    }
    let mut canaries = vec![0; case.source.len()];
    rng.fill(&mut canaries);
    let mut around = vec![0; case.packed.len() + AROUND];
    rng.fill(&mut around);
    let mut convertor = case.convertor()?;
    for method in Method::FORCED {
        let shift = rng.index(AROUND);
        let packed = &around[shift..shift + case.packed.len()];
        let mut expected = canaries.clone();
        let done = scatter(&case.bytes, packed, &mut expected, case.origin);
        ensure!(done.is_ok(), "the oracle: {done:?}");
        let mut got = canaries.clone();
        let sought = convertor.seek(0);
        ensure!(sought.is_ok(), "seeking to 0: {sought:?}");
        let n = convertor.unpack_in(method, packed, &mut got, case.origin);
        ensure!(n == Ok(packed.len()), "{method:?}: unpacking: {n:?}");
        ensure!(got == expected, "{method:?}: unpacked: {}", difference(&got, &expected));
    }
    Ok(())
}

/// From one instance of the layout to another: gaps of the target stay.
pub(super) fn mirrored(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    if !case.disjoint {
        return Ok(());
    }
    let mut canaries = vec![0; case.source.len()];
    rng.fill(&mut canaries);
    let mut expected = canaries.clone();
    let done = scatter(&case.bytes, &case.packed, &mut expected, case.origin);
    ensure!(done.is_ok(), "the oracle: {done:?}");
    for method in Method::FORCED {
        let (mut from, mut to) = (case.convertor()?, case.convertor()?);
        let mut got = canaries.clone();
        let source = (&mut from, &case.source[..], case.origin);
        let n = transfer_in(method, source, (&mut to, &mut got, case.origin), u64::MAX);
        ensure!(n == Ok(wide(case.packed.len())), "{method:?}: transfer: {n:?}");
        ensure!(got == expected, "{method:?}: mirrored: {}", difference(&got, &expected));
    }
    Ok(())
}
