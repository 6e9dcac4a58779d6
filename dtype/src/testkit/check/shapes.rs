//! Shapes: what was recognised spells out to the same bytes in the same order.

use super::{Case, Verdict, ensure, wide};
use crate::naive::bytes::merge;
use crate::{Run, Shape};

/// The shape of one instance, spelled out.
pub(super) fn shape(case: &Case<'_>) -> Verdict {
    let one = case.typemap.displacements(1).map_err(|error| format!("the oracle: {error}"))?;
    let shape = case.layout.shape();
    granularity(case, &merge(&one))?;
    period(case, &one)?;
    table(case, &one)?;
    let Some(runs) = spell(shape) else {
        return Ok(());
    };
    let exact = dividing(&runs);
    let granularity = case.layout.granularity();
    ensure!(granularity == exact, "{shape:?} has granularity {granularity}, not {exact}");
    let lengths: u64 = runs.iter().map(|run| run.len).sum();
    ensure!(lengths == wide(one.len()), "{shape:?} has {lengths} bytes, not {}", one.len());
    let bytes: Vec<i64> = runs.iter().flat_map(|run| run.displacement..run.end()).collect();
    ensure!(bytes == one, "{shape:?} is not {:?}", merge(&one));
    let contiguous = case.layout.is_contiguous();
    let gapless = match merge(&one)[..] {
        [] => true,
        [run] => run.displacement == 0 && run.end() == case.typemap.extent(),
        _ => false,
    };
    ensure!(contiguous == gapless, "is_contiguous() is {contiguous}");
    Ok(())
}

/// The largest power of two that divides all displacements and lengths; 0 of none.
fn dividing(runs: &[Run]) -> u64 {
    let bits = runs.iter().fold(0, |bits, run| bits | run.displacement.cast_unsigned() | run.len);
    bits & bits.wrapping_neg()
}

/// The granularity divides that of the merged runs, and is there if they are.
fn granularity(case: &Case<'_>, merged: &[Run]) -> Verdict {
    let (stated, most) = (case.layout.granularity(), dividing(merged));
    ensure!(
        (stated == 0) == merged.is_empty()
            && stated <= most
            && stated & stated.wrapping_sub(1) == 0,
        "granularity {stated}, runs have {most}"
    );
    Ok(())
}

/// A period's parts spell out the instance, and what it says of the first part is so.
fn period(case: &Case<'_>, one: &[i64]) -> Verdict {
    let Some(period) = case.layout.period() else { return Ok(()) };
    ensure!(period.count > 1 && case.layout.shape() == &Shape::General, "{period:?}");
    let total = period.size.checked_mul(period.count);
    ensure!(total == Some(wide(one.len())), "{period:?} of {} bytes", one.len());
    let parts = one.chunks(usize::try_from(period.size).expect("a checked type is small"));
    let first = parts.clone().next().unwrap_or_default();
    for (at, part) in (0i64..).zip(parts) {
        let moved = first.iter().map(|byte| byte + at * period.stride);
        ensure!(moved.eq(part.iter().copied()), "part {at} of {period:?} is {:?}", merge(part));
    }
    let bounds = (first.iter().min().copied(), first.iter().max().map(|last| last + 1));
    ensure!(bounds == (Some(period.true_lb), Some(period.true_ub)), "{period:?}, not {bounds:?}");
    let runs = merge(first);
    ensure!(period.blocks == wide(runs.len()), "{period:?} has {} blocks", runs.len());
    if let Some(spelt) = spell(&period.shape) {
        let bytes = spelt.iter().flat_map(|run| run.displacement..run.end());
        ensure!(bytes.eq(first.iter().copied()), "{period:?} is not {runs:?}");
    }
    Ok(())
}

/// A table of runs spells out the instance.
fn table(case: &Case<'_>, one: &[i64]) -> Verdict {
    let Some(table) = case.layout.run_table() else { return Ok(()) };
    let runs = table
        .displacements
        .iter()
        .zip(table.starts.windows(2))
        .map(|(at, ends)| Run { displacement: table.displacement + at, len: ends[1] - ends[0] });
    let runs: Vec<Run> = runs.collect();
    ensure!(table.starts.len() == runs.len() + 1 && table.starts[0] == 0, "{table:?}");
    let bytes = runs.iter().flat_map(|run| run.displacement..run.end());
    ensure!(bytes.eq(one.iter().copied()), "{table:?} is not {:?}", merge(one));
    Ok(())
}

/// The runs a closed form stands for; `None` for [`Shape::General`].
fn spell(shape: &Shape) -> Option<Vec<Run>> {
    Some(match shape {
        Shape::Empty => Vec::new(),
        Shape::Contiguous { displacement, len } => {
            vec![Run { displacement: *displacement, len: *len }]
        }
        Shape::Strided { displacement, len, dims } => {
            let mut places = vec![*displacement];
            for dim in dims {
                let count = i64::try_from(dim.count).expect("a checked type is small");
                let along = |place| (0..count).map(move |at| place + at * dim.stride);
                places = places.into_iter().flat_map(along).collect();
            }
            places.into_iter().map(|displacement| Run { displacement, len: *len }).collect()
        }
        Shape::EqualBlocks { displacement, len, displacements } => {
            let place = |at: &i64| Run { displacement: displacement + at, len: *len };
            displacements.iter().map(place).collect()
        }
        Shape::Affine { count, displacement0, displacement_step, len0, len_step } => {
            let count = i64::try_from(*count).expect("a checked type is small");
            let run = |at: i64| Run {
                displacement: displacement0 + at * displacement_step,
                len: len0.checked_add_signed(at * len_step).expect("a length"),
            };
            (0..count).map(run).collect()
        }
        Shape::General => return None,
    })
}
