//! Layout to layout, between two types of one size: straight, or in pieces through the cache.

use super::{Case, Verdict, convertor, difference, ensure, is_disjoint};
use crate::naive::Typemap;
use crate::naive::bytes::{gather, merge, scatter};
use crate::testkit::rng::Rng;
use crate::{Datatype, Layout, Primitive, transfer};

/// To contiguous memory and back, in pieces of random length.
pub(super) fn to_contiguous(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let count = super::wide(case.packed.len());
    let flat = Datatype::contiguous(count, &Primitive::Byte.into());
    let flat = flat.map_err(|error| format!("a contiguous peer: {error}"))?;
    between(case, &flat, rng)
}

/// To the same bytes cut at random places and strewn about.
pub(super) fn to_scattered(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let fragments = case.fragments(rng);
    let mut order: Vec<usize> = (0..fragments.len()).collect();
    rng.shuffle(&mut order);
    let mut displacements = vec![0_i64; fragments.len()];
    let mut cursor = rng.between(-40, 8);
    for at in order {
        cursor += rng.between(0, 9);
        displacements[at] = cursor;
        cursor += i64::try_from(fragments[at].len()).expect("a few bytes");
    }
    let lengths: Vec<u64> = fragments.iter().map(|piece| super::wide(piece.len())).collect();
    let strewn = Datatype::hindexed(&lengths, &displacements, &Primitive::Byte.into());
    let strewn = strewn.map_err(|error| format!("a scattered peer: {error}"))?;
    between(case, &strewn, rng)
}

/// To the same layout in another buffer, from any place to any place, in pieces; the peer's layout
/// is the same object or decoded from it.
pub(super) fn to_itself(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let decoded = || Layout::unflatten(&case.layout.flatten()).map_err(|error| error.to_string());
    let layout = if rng.chance(50) { case.layout.clone() } else { decoded()? };
    // Overlapping bytes arrive in no certain order, unless each comes from its own place.
    let same_place = !case.disjoint || rng.chance(50);
    let start = case.cut(rng);
    let (at, to_at) = if same_place { (start, start) } else { (start, case.cut(rng)) };
    let len = case.packed.len() - at.max(to_at);
    let mut got = vec![0; case.source.len()];
    rng.fill(&mut got);
    let mut expected = got.clone();
    let places = &case.bytes[to_at..to_at + len];
    let done = scatter(places, &case.packed[at..at + len], &mut expected, case.origin);
    ensure!(done.is_ok(), "the oracle: {done:?}");
    let (mut from, mut to) = (case.convertor()?, convertor(&layout, case.count)?);
    let sought = (from.seek(super::wide(at)), to.seek(super::wide(to_at)));
    ensure!(sought == (Ok(()), Ok(())), "seeking to {at} and {to_at}: {sought:?}");
    let mut left = super::wide(len);
    while left > 0 {
        let most = if rng.chance(50) { u64::MAX } else { 1 + rng.below(100) };
        let source = &case.source;
        let n = transfer(&mut from, source, case.origin, &mut to, &mut got, case.origin, most);
        ensure!(n == Ok(most.min(left)), "{n:?} of {left} bytes moved, {most} asked for");
        left -= most.min(left);
    }
    let end = (super::wide(at + len), super::wide(to_at + len));
    let stand = (from.position(), to.position());
    ensure!(stand == end, "after the transfer the cursors stand at {stand:?}, not {end:?}");
    let different = difference(&got, &expected);
    ensure!(got == expected, "moved to the same layout from {at} to {to_at}: {different}");
    Ok(())
}

fn between(case: &Case<'_>, peer: &Datatype, rng: &mut Rng) -> Verdict {
    let typemap = Typemap::of(peer).map_err(|error| format!("the oracle: {error}"))?;
    let places = typemap.displacements(1).map_err(|error| format!("the oracle: {error}"))?;
    assert!(is_disjoint(&merge(&places)), "the peer is disjoint by construction");
    let low = places.iter().copied().min().unwrap_or(0).min(0);
    let high = places.iter().copied().max().map_or(0, |last| last + 1).max(0);
    let in_memory = |bytes: i64| usize::try_from(bytes).expect("a few bytes");
    let mut canaries = vec![0; in_memory(high - low + 16)];
    rng.fill(&mut canaries);
    let origin = in_memory(8 - low);
    let layout = peer.commit().map_err(|error| format!("committing the peer: {error}"))?;

    let mut expected = canaries.clone();
    let done = scatter(&places, &case.packed, &mut expected, origin);
    ensure!(done.is_ok(), "the oracle: {done:?}");
    let mut got = canaries;
    let (mut from, mut to) = (case.convertor()?, convertor(&layout, 1)?);
    let mut left = case.packed.len();
    while left > 0 {
        let most = if rng.chance(30) { u64::MAX } else { 1 + rng.below(100) };
        let n = transfer(&mut from, &case.source, case.origin, &mut to, &mut got, origin, most);
        let n = n.map_err(|error| format!("transfer: {error}"))?;
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        ensure!(n > 0 && n <= left, "transferred {n} of {left} bytes left");
        left -= n;
    }
    ensure!(got == expected, "transferred: {}", difference(&got, &expected));
    if !case.disjoint {
        return Ok(());
    }

    // And back, into canaries of this type.
    let mut back = vec![0; case.source.len()];
    rng.fill(&mut back);
    let mut expected = back.clone();
    let packed = gather(&places, &got, origin).map_err(|error| format!("the oracle: {error}"))?;
    let done = scatter(&case.bytes, &packed, &mut expected, case.origin);
    ensure!(done.is_ok(), "the oracle: {done:?}");
    let (mut from, mut to) = (convertor(&layout, 1)?, case.convertor()?);
    let n = transfer(&mut from, &got, origin, &mut to, &mut back, case.origin, u64::MAX);
    let n = n.map_err(|error| format!("transfer back: {error}"))?;
    ensure!(n == super::wide(packed.len()), "transferred {n} of {} bytes back", packed.len());
    ensure!(back == expected, "transferred back: {}", difference(&back, &expected));
    Ok(())
}
