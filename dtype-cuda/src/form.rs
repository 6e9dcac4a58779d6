//! How the kernels find the bytes of a number of instances: the decision, and its closed forms.
//!
//! Pure: layout and count in, one [`Form`] out. It is asked for by every call, so it costs a few dozen
//! nanoseconds and looks at no more than [`SHORT`] entries of any list. What needs a list in device memory
//! names the numbers of its plan (see [`plan`](crate::plan)); the rest are launch arguments.
//!
//! | layout, and its instances | form | because |
//! |---|---|---|
//! | one contiguous span | contiguous | nothing to look up |
//! | a grid of up to six dimensions, instances included | strided | arithmetic costs less than reading |
//! | a short list that is a grid of two dimensions | strided | no list to upload, none to read |
//! | runs that advance by constants | affine | likewise |
//! | equal blocks at other places, some adjacent | listed | 4 bytes a block, and nothing for each 32 words |
//! | few blocks so long that their plan would cost more than their launches | spans | see [`LAUNCH_BYTES`] |
//! | anything else | mapped | always works |
//!
//! Units: bytes.

use gapless_dtype::{Convertor, Dim, Layout, Run, Shape};
use gapless_kernels::args::DIMS_MAX;
use gapless_kernels::launch::{Grid, GridDim, Runs};
use smallvec::{SmallVec, smallvec};

use crate::plan::{ListSpec, MapSpec, PlanKind, PlanSpec, follow};

/// Lists of more entries are not looked at: finding that a list is no grid would have to read all of it,
/// on every call. Longer ones that are regular were made loops when the layout was committed.
const SHORT: usize = 64;

/// Bytes of plan that may be read, and written before, rather than have one more launch: a GPU moves
/// about 6 MB in the 1.5 µs between two kernels of a stream, but plans are also prepared, by a processor.
///
/// A plan has 8 bytes for 32 words, 1.6 % of the payload in words of 16 bytes and 25 % in words of 1, so
/// blocks become contiguous spans from about 128 MiB where all are aligned, and from 8 MiB where nothing is.
const LAUNCH_BYTES: u64 = 2 << 20;

/// Contiguous spans at most.
const SPANS_MAX: u64 = 1024;

/// How kernels find the bytes of some instances of a layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// There are none.
    Empty,
    /// One contiguous span.
    Contiguous {
        /// Where it begins.
        displacement: i64,
    },
    /// Equal blocks on a grid, the instances one of its dimensions, or continuing one.
    Strided(Grid),
    /// Runs that advance by constants; has instances of its own.
    Affine(Runs),
    /// Few long blocks, in the stream's order: a contiguous launch each. (A transfer takes the layout's
    /// [`PlanSpec`] instead, which every layout has.)
    Spans(SmallVec<[ContiguousSpan; 4]>),
    /// Equal blocks at displacements listed in a plan: [`PlanSpec::of`] the layout has it all.
    Listed(ListSpec),
    /// Anything, by a plan: [`PlanSpec::of`] the layout has it all.
    Mapped(MapSpec),
}

/// One long block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContiguousSpan {
    /// The stream's byte that it begins with.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Where it begins.
    pub(crate) displacement: i64,
}

impl ContiguousSpan {
    /// Where the stream's byte 0 would lie if all of it were this span: what
    /// [`contiguous`](gapless_kernels::launch::contiguous) takes for a range of the whole stream.
    pub(crate) fn origin(self) -> i64 {
        self.displacement.wrapping_sub(self.at.cast_signed())
    }
}

impl Form {
    /// The form of `count` instances of `layout`, whose packed bytes fit 63 bits.
    pub(crate) fn of(layout: &Layout, count: u64) -> Form {
        if count == 0 {
            return Form::Empty;
        }
        let instances = GridDim { count, stride: layout.extent() };
        let closed = match layout.shape() {
            Shape::Empty => Some(Form::Empty),
            Shape::General => {
                let period = layout.period();
                // A closed form has room for one more dimension, so only one of the two may be there.
                period.and_then(|period| {
                    let parts = GridDim { count: period.count, stride: period.stride };
                    repeated(&period.shape, joined(parts, instances)?)
                })
            }
            shape => repeated(shape, instances),
        };
        closed.unwrap_or_else(|| planned(layout, count))
    }
}

/// The closed form of `shape` repeated, if there is one.
fn repeated(shape: &Shape, instances: GridDim) -> Option<Form> {
    match shape {
        Shape::Empty => Some(Form::Empty),
        &Shape::Contiguous { displacement, len } => {
            let one = instances.count == 1 || len.cast_signed() == instances.stride;
            if one {
                return Some(Form::Contiguous { displacement });
            }
            Some(Form::Strided(Grid { displacement, len, dims: smallvec![instances] }))
        }
        Shape::Strided { displacement, len, dims } => grid(*displacement, *len, dims, instances),
        Shape::EqualBlocks { displacement, len, displacements } => {
            let dims = short_grid(displacements)?;
            grid(displacement.wrapping_add(displacements[0]), *len, &dims, instances)
        }
        &Shape::Affine { count, displacement0, displacement_step, len0, len_step } => {
            Some(Form::Affine(Runs {
                count,
                displacement: displacement0,
                step: displacement_step,
                len: len0,
                grow: len_step,
                instances: instances.count,
                extent: instances.stride,
            }))
        }
        Shape::General => None,
    }
}

/// A grid and its instances, if the kernels have room for all dimensions.
fn grid(displacement: i64, len: u64, inner: &[Dim], instances: GridDim) -> Option<Form> {
    let mut dims: SmallVec<[GridDim; 6]> =
        inner.iter().map(|dim| GridDim { count: dim.count, stride: dim.stride }).collect();
    match joined(dims[0], instances) {
        Some(outer) => dims[0] = outer,
        None => dims.insert(0, instances),
    }
    (dims.len() <= DIMS_MAX).then_some(Form::Strided(Grid { displacement, len, dims }))
}

/// One dimension for both, if there are no two of `outer`, or if each continues where `inner` ends.
fn joined(inner: GridDim, outer: GridDim) -> Option<GridDim> {
    if outer.count == 1 {
        return Some(inner);
    }
    let continues = follow(inner.count, inner.stride, outer.stride);
    let count = inner.count.checked_mul(outer.count).filter(|_| continues)?;
    Some(GridDim { count, stride: inner.stride })
}

/// The two dimensions of a short list that is a grid; lists with only one are loops already.
fn short_grid(displacements: &[i64]) -> Option<[Dim; 2]> {
    let all = displacements.len();
    if !(4..=SHORT).contains(&all) {
        return None;
    }
    let apart = |a: usize, b: usize| displacements[b].checked_sub(displacements[a]);
    let step = apart(0, 1)?;
    let inner = 1 + (1..all).take_while(|&i| apart(i - 1, i) == Some(step)).count();
    if inner < 2 || inner == all || !all.is_multiple_of(inner) {
        return None;
    }
    let stride = apart(0, inner)?;
    let regular = (inner..all).all(|i| apart(i - inner, i) == Some(stride));
    let dim = |count: usize, stride| Dim { count: count as u64, stride };
    regular.then(|| [dim(all / inner, stride), dim(inner, step)])
}

/// The form of what has no closed one.
fn planned(layout: &Layout, count: u64) -> Form {
    let spec = PlanSpec::of(layout);
    if let Some(spans) = spans(layout, count, &spec) {
        return Form::Spans(spans);
    }
    match spec.kind {
        PlanKind::Listed(list) => Form::Listed(list),
        PlanKind::Mapped(map) => Form::Mapped(map),
    }
}

/// The blocks one by one, if they are so few and long that this is better than the plan.
fn spans(layout: &Layout, count: u64, spec: &PlanSpec) -> Option<SmallVec<[ContiguousSpan; 4]>> {
    let number = layout.blocks_of(count).filter(|&blocks| blocks <= SPANS_MAX)?;
    // The plan is read as often as it repeats.
    let read = u128::from(spec.bytes) * u128::from(spec.instances(count));
    if read < u128::from(number) * u128::from(LAUNCH_BYTES) {
        return None;
    }
    blocks(layout, count)
}

/// The blocks one by one, whatever they are.
pub(crate) fn blocks(layout: &Layout, count: u64) -> Option<SmallVec<[ContiguousSpan; 4]>> {
    let mut convertor = Convertor::new(layout, count).ok()?;
    let mut spans = SmallVec::new();
    let mut runs = [Run::default(); 16];
    loop {
        let mut at = convertor.position();
        let (used, _) = convertor.iov(&mut runs, u64::MAX);
        if used == 0 {
            return Some(spans);
        }
        for &Run { displacement, len } in &runs[..used] {
            spans.push(ContiguousSpan { at, len, displacement });
            at += len;
        }
    }
}

#[cfg(test)]
mod tests;
