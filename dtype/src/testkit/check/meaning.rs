//! What a type says of itself: size and bounds, contents, signature.

use super::{Case, Verdict, ensure, wide};
use crate::items::Items;
use crate::limits::OVERLAP_RUNS_MAX;
use crate::testkit::rng::Rng;
use crate::testkit::tree::rebuild;
use crate::{Datatype, Layout, Primitive};

/// Size and bounds, of the type and of its layout.
pub(super) fn bounds(case: &Case<'_>) -> Verdict {
    let (datatype, typemap) = (case.datatype, case.typemap);
    let expected = numbers(
        typemap.size(),
        [typemap.lb(), typemap.ub(), typemap.extent()],
        [typemap.true_lb(), typemap.true_ub(), typemap.true_extent()],
    );
    let of_type = numbers(
        datatype.size(),
        [datatype.lb(), datatype.ub(), datatype.extent()],
        [datatype.true_lb(), datatype.true_ub(), datatype.true_extent()],
    );
    ensure!(of_type == expected, "the type has {of_type:?}, the oracle {expected:?}");
    let of_layout = layout_numbers(&case.layout);
    ensure!(of_layout == expected, "the layout has {of_layout:?}, the oracle {expected:?}");
    let convertor = case.convertor()?;
    let (size, all) = (convertor.packed_size(), wide(case.bytes.len()));
    ensure!(size == all, "{} instances pack to {size} bytes, not {all}", case.count);
    let touched = case.bytes.iter().copied().min().zip(case.bytes.iter().map(|at| at + 1).max());
    let got = convertor.bounds();
    ensure!(got == touched, "the convertor touches {got:?}, the oracle {touched:?}");
    Ok(())
}

/// Whether some byte is named twice: found wherever runs are few, and never made up.
pub(super) fn overlap(case: &Case<'_>) -> Verdict {
    let (found, twice) = (case.layout.overlaps(case.count), !case.disjoint);
    let few = wide(case.runs.len()) <= OVERLAP_RUNS_MAX;
    ensure!(found == twice || !found && !few, "overlaps: {found}, of the oracle: {twice}");
    ensure!(!case.layout.is_apart(case.count) || !twice, "it says that no byte is named twice");
    ensure!(case.layout.overlaps(case.count) == found, "asked again, it overlaps: {}", !found);
    Ok(())
}

/// Size, bounds and true bounds with names, for messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    size: u64,
    lb_ub_extent: [i64; 3],
    true_lb_ub_extent: [i64; 3],
}

fn numbers(size: u64, lb_ub_extent: [i64; 3], true_lb_ub_extent: [i64; 3]) -> Numbers {
    Numbers { size, lb_ub_extent, true_lb_ub_extent }
}

pub(super) fn layout_numbers(layout: &Layout) -> Numbers {
    numbers(
        layout.size(),
        [layout.lb(), layout.ub(), layout.extent()],
        [layout.true_lb(), layout.true_ub(), layout.true_extent()],
    )
}

/// A type taken apart and put together again is the same type.
pub(super) fn contents(case: &Case<'_>) -> Verdict {
    let again = rebuild(case.datatype).map_err(|error| format!("rebuilding: {error}"))?;
    ensure!(again.same_structure(case.datatype), "rebuilt from contents it differs: {again:?}");
    let layout = again.commit().map_err(|error| format!("committing the rebuilt: {error}"))?;
    ensure!(
        layout.flatten() == case.layout.flatten(),
        "rebuilt from contents it flattens to other bytes"
    );
    Ok(())
}

/// Elements written out one by one, above which a signature is not checked.
const ELEMENTS_MAX: usize = 600;

/// The digest is that of the same elements written out flat, and the prefixes it accepts are those
/// of the element sequence.
pub(super) fn signature(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let one: Vec<Primitive> = case.typemap.signature().collect();
    let count = usize::try_from(case.count).unwrap_or(usize::MAX);
    if one.len().saturating_mul(count) > ELEMENTS_MAX {
        return Ok(());
    }
    let all = one.repeat(count);
    let signature = case.layout.signature();
    let posted = signature.digest(case.count);
    let flat = spelled(&all)?;
    ensure!(
        posted == flat.signature().digest(1),
        "the digest differs from that of the elements spelled out"
    );

    let kinds = all.iter().map(|element| element.by_kind()).collect::<Vec<_>>();
    let by_kind = case.datatype.commit_by_kind().map_err(|error| format!("by kind: {error}"))?;
    ensure!(
        by_kind.signature().digest(case.count) == spelled(&kinds)?.signature().digest(1),
        "by kind, the digest differs from that of the elements' kinds spelled out"
    );

    // Every prefix is accepted, one element more is not.
    let untyped = all.iter().any(|element| element.is_untyped());
    let kept = rng.index(all.len() + 1);
    let sent = spelled(&all[..kept])?.signature().digest(1);
    let verdict = signature.accepts_prefix(case.count, &sent);
    ensure!(verdict.is_ok(), "a prefix of {kept} elements is refused: {verdict:?}");
    let mut longer = all.clone();
    longer.push(Primitive::Byte);
    let sent = spelled(&longer)?.signature().digest(1);
    let verdict = signature.accepts_prefix(case.count, &sent);
    ensure!(verdict.is_err(), "one byte more than posted is accepted");
    let by_size = case.datatype.commit_by_size().map_err(|error| format!("by size: {error}"))?;
    let by_size = by_size.signature();
    ensure!(
        by_size.accepts_prefix(case.count, &sent).is_err(),
        "by size, one byte more than posted is accepted"
    );
    ensure!(
        by_size.uniform() == by_kind.signature().uniform(),
        "by size, the type of all elements is another"
    );

    // Another element in one place is refused, unless untyped ones make it a matter of size.
    if kept == 0 || untyped {
        return Ok(());
    }
    let mut wrong = all[..kept].to_vec();
    let place = rng.index(kept);
    wrong[place] = other_of_its_size(wrong[place]);
    let sent = spelled(&wrong)?.signature().digest(1);
    let verdict = signature.accepts_prefix(case.count, &sent);
    ensure!(verdict.is_err(), "a prefix with another type in place {place} of {kept} is accepted");
    let verdict = by_size.accepts_prefix(case.count, &sent);
    ensure!(verdict.is_ok(), "by size, another type of its size is refused: {verdict:?}");
    Ok(())
}

/// The basic items one by one, and how many lie in a part of the packed bytes.
pub(super) fn items(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let entries = case.typemap.entries();
    if entries.len().saturating_mul(usize::try_from(case.count).unwrap_or(usize::MAX)) > ITEMS_MAX {
        return Ok(());
    }
    let listed = Items::new(&case.layout, case.count).map_err(|error| error.to_string())?;
    let got = listed.flat_map(|stretch| {
        let step = stretch.primitive.size_bytes();
        let at = move |i| stretch.displacement.wrapping_add_unsigned(i * step);
        (0..stretch.items).map(move |i| (stretch.primitive, at(i)))
    });
    let mut byte = 0;
    let mut ends = vec![0];
    let due = (0..case.count).flat_map(|_| entries).map(|entry| {
        let at = case.bytes[usize::try_from(byte).expect("few bytes")];
        byte += entry.primitive.size_bytes();
        ends.push(byte);
        (entry.primitive, at)
    });
    ensure!(got.eq(due), "its items are not those of the typemap");

    let signature = case.layout.signature();
    let bytes = rng.below(byte + 1);
    let (got, due) = (signature.elements_in(bytes), ends.binary_search(&bytes).ok().map(wide));
    ensure!(got == due, "{bytes} bytes have {got:?} elements, and {due:?} of the oracle");
    let elements = rng.index(ends.len());
    let (got, due) = (signature.bytes_of(wide(elements)), ends[elements]);
    ensure!(got == Some(due), "{elements} elements have {got:?} bytes, and {due} of the oracle");
    Ok(())
}

/// Items above which they are not listed.
const ITEMS_MAX: usize = 4000;

/// The elements one behind another, in a struct or by blocks of equal ones.
fn spelled(elements: &[Primitive]) -> Result<Datatype, String> {
    let mut displacements = Vec::new();
    let mut end = 0;
    for element in elements {
        displacements.push(end);
        end += i64::try_from(element.size_bytes()).expect("basic types are small");
    }
    let types: Vec<Datatype> = elements.iter().map(|&element| element.into()).collect();
    Datatype::structure(&vec![1; elements.len()], &displacements, &types)
        .map_err(|error| format!("spelling out the signature: {error}"))
}

fn other_of_its_size(primitive: Primitive) -> Primitive {
    let same = |other: &&Primitive| {
        **other != primitive
            && other.size_bytes() == primitive.size_bytes()
            && !other.is_pair()
            && !other.is_untyped()
    };
    *Primitive::ALL.iter().find(same).unwrap_or(&Primitive::Char)
}
