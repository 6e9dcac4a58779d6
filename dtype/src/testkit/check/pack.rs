//! Packing: at once, in pieces, and from any place.

use super::{Case, Verdict, difference, ensure, wide};
use crate::testkit::rng::Rng;

/// One call packs everything, the next one nothing.
pub(super) fn whole(case: &Case<'_>) -> Verdict {
    let mut convertor = case.convertor()?;
    let mut packed = vec![0xa5; case.packed.len() + 3];
    let n = convertor.pack(&case.source, case.origin, &mut packed);
    let n = n.map_err(|error| format!("pack: {error}"))?;
    ensure!(n == case.packed.len(), "packed {n} bytes of {}", case.packed.len());
    ensure!(packed[..n] == case.packed, "packed: {}", difference(&packed[..n], &case.packed));
    ensure!(packed[n..] == [0xa5; 3], "pack wrote beyond what it reported");
    let position = convertor.position();
    ensure!(position == wide(n), "after packing all {n} bytes the position is {position}");
    let more = convertor.pack(&case.source, case.origin, &mut packed);
    ensure!(more == Ok(0), "packing past the end: {more:?}");
    Ok(())
}

/// Pieces of random length, one after another, make the whole.
pub(super) fn in_pieces(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let mut convertor = case.convertor()?;
    let mut packed = vec![0; case.packed.len()];
    for piece in case.fragments(rng) {
        let n = convertor.pack(&case.source, case.origin, &mut packed[piece.clone()]);
        ensure!(n == Ok(piece.len()), "packing bytes {piece:?}: {n:?}");
    }
    ensure!(packed == case.packed, "packed in pieces: {}", difference(&packed, &case.packed));
    Ok(())
}

/// A convertor stands anywhere after a seek, forwards or backwards.
pub(super) fn from_anywhere(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let mut convertor = case.convertor()?;
    for _ in 0..6 {
        let from = case.cut(rng);
        let len = rng.index(48);
        seek_and_pack(case, &mut convertor, from, len)?;
    }
    let end = wide(case.packed.len());
    ensure!(convertor.seek(end).is_ok(), "seeking to the end {end} fails");
    ensure!(convertor.seek(end + 1).is_err(), "seeking to {} of {end} bytes succeeds", end + 1);
    ensure!(convertor.seek(u64::MAX).is_err(), "seeking to 2^64 - 1 succeeds");
    seek_and_pack(case, &mut convertor, 0, case.packed.len())
}

/// Two pieces, the second one from a fresh convertor.
pub(super) fn split_once(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let cut = case.cut(rng);
    let mut convertor = case.convertor()?;
    seek_and_pack(case, &mut convertor, 0, cut)?;
    seek_and_pack(case, &mut case.convertor()?, cut, case.packed.len())
}

fn seek_and_pack(
    case: &Case<'_>,
    convertor: &mut crate::Convertor,
    from: usize,
    len: usize,
) -> Verdict {
    let sought = convertor.seek(wide(from));
    ensure!(sought.is_ok(), "seeking to {from} of {} bytes: {sought:?}", case.packed.len());
    let position = convertor.position();
    ensure!(position == wide(from), "sought to {from}, the position is {position}");
    let expected = &case.packed[from..(from + len).min(case.packed.len())];
    let mut piece = vec![0; len];
    let n = convertor.pack(&case.source, case.origin, &mut piece);
    ensure!(n == Ok(expected.len()), "packing {len} bytes from {from}: {n:?}");
    let piece = &piece[..expected.len()];
    ensure!(piece == expected, "packed from {from}: {}", difference(piece, expected));
    Ok(())
}
