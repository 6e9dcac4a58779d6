//! Shapes: what was recognised spells out to the same bytes in the same order.

use super::{Case, Verdict, ensure, wide};
use crate::naive::bytes::merge;
use crate::{Run, Shape};

/// The shape of one instance, spelled out.
pub(super) fn shape(case: &Case<'_>) -> Verdict {
    let one = case.typemap.displacements(1).map_err(|error| format!("the oracle: {error}"))?;
    let shape = case.layout.shape();
    let Some(runs) = spell(shape) else {
        return Ok(());
    };
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
