//! How an array is divided among ranks: a mesh, a placement for each of its dimensions, and the order in memory.

use super::error::{ReshardEnd, ReshardError};
use super::interval::{Interval, compose, share_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the ranks along one dimension of a mesh do with the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All have the same.
    Replicate,
    /// Each has one block of an axis: of `n` indices and `p` ranks, `ceil(n / p)`, the last ranks fewer or none (HPF's
    /// `BLOCK`, `MPI_DISTRIBUTE_BLOCK`, DTensor's `Shard`).
    Block {
        /// The axis of the array.
        axis: usize,
    },
    /// Blocks of an axis are dealt out in turn (HPF's `CYCLIC(k)`, `MPI_DISTRIBUTE_CYCLIC`).
    Cyclic {
        /// The axis of the array.
        axis: usize,
        /// Indices in a block; the last one may have fewer.
        block: u64,
    },
}

impl Placement {
    fn axis(self) -> Option<usize> {
        match self {
            Placement::Replicate => None,
            Placement::Block { axis } | Placement::Cyclic { axis, .. } => Some(axis),
        }
    }
}

/// A mesh of ranks and what each of its dimensions does with an array, whatever its shape.
///
/// Where several dimensions of the mesh shard one axis, the first one divides the axis, the next one divides what each
/// rank has of it then, and so on from left to right, as DTensor does it. A rank's local array has the indices that it
/// has of each axis, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    dims: Vec<u32>,
    ranks: Vec<u32>,
    placements: Vec<Placement>,
    /// The axes from the slowest to the fastest in memory, if that is not row-major.
    order: Option<Vec<usize>>,
    /// Where in `ranks` each rank is.
    places: BTreeMap<u32, usize>,
}

impl Sharding {
    /// A mesh of these dimensions and ranks, the ranks in row-major order (the last dimension varies fastest), and a
    /// placement for each dimension. Local arrays are row-major.
    ///
    /// # Errors
    /// The dimensions do not match the ranks, or there are none; a rank twice; not one placement for each dimension;
    /// cyclic blocks of no indices.
    pub fn new(
        dims: &[u32],
        ranks: impl IntoIterator<Item = u32>,
        placements: &[Placement],
    ) -> Result<Sharding, ReshardError> {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let product = dims.iter().try_fold(1usize, |product, dim| {
            usize::try_from(*dim).ok().and_then(|dim| product.checked_mul(dim))
        });
        if ranks.is_empty() || product != Some(ranks.len()) {
            return Err(ReshardError::Mesh { dims: dims.to_vec(), ranks: ranks.len() });
        }
        if placements.len() != dims.len() {
            let placements = placements.len();
            return Err(ReshardError::Placements { placements, dims: dims.len() });
        }
        let empty = |placement: &Placement| matches!(placement, Placement::Cyclic { block: 0, .. });
        if let Some(dim) = placements.iter().position(empty) {
            return Err(ReshardError::EmptyBlock { dim });
        }
        let mut places = BTreeMap::new();
        for (place, &rank) in ranks.iter().enumerate() {
            if places.insert(rank, place).is_some() {
                return Err(ReshardError::RankTwice { rank });
            }
        }
        let (dims, placements) = (dims.to_vec(), placements.to_vec());
        Ok(Sharding { dims, ranks, placements, order: None, places })
    }

    /// The same with local arrays whose axes lie in memory as `axes` lists them, from the slowest to the fastest:
    /// column-major ones of two axes have `[1, 0]`.
    #[must_use]
    pub fn in_order(self, axes: &[usize]) -> Sharding {
        Sharding { order: Some(axes.to_vec()), ..self }
    }

    /// The ranks of the mesh, in row-major order.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    fn order_of(&self, end: ReshardEnd, axes: usize) -> Result<Vec<usize>, ReshardError> {
        let order = self.order.clone().unwrap_or_else(|| (0..axes).collect());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        match sorted.into_iter().eq(0..axes) {
            true => Ok(order),
            false => Err(ReshardError::Order { end, order, axes }),
        }
    }
}

/// An array divided by a sharding: its shards, and which ranks hold each.
///
/// A shard is the product of one part of each axis, and is named by their numbers.
#[derive(Clone, Debug)]
pub(super) struct Shards {
    sharding: Sharding,
    /// The axes from the slowest to the fastest in memory.
    pub(super) order: Vec<usize>,
    pub(super) axes: Vec<Axis>,
    /// Bytes from a local element to the next in the fastest axis.
    extent: i64,
    /// What the places of a shard's replicas are apart from that of the first one, in ascending order.
    replicas: Vec<usize>,
}

/// The parts that an axis is divided into.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// The mesh's dimensions that divide it.
    dims: Vec<usize>,
    /// Of each part, which global indices are which local ones.
    pub(super) parts: Vec<Arc<[Interval]>>,
}

impl Shards {
    pub(super) fn new(
        end: ReshardEnd,
        shape: &[u64],
        extent: i64,
        sharding: &Sharding,
    ) -> Result<Shards, ReshardError> {
        let axes = shape.len();
        if let Some(axis) =
            sharding.placements.iter().filter_map(|it| it.axis()).find(|it| *it >= axes)
        {
            return Err(ReshardError::Axis { end, axis, axes });
        }
        let order = sharding.order_of(end, axes)?;
        let divided = shape.iter().enumerate().map(|(axis, len)| {
            let dims = sharding.placements.iter().enumerate();
            let dims = dims.filter(|(_, it)| it.axis() == Some(axis)).map(|(dim, _)| dim).collect();
            Axis::new(*len, sharding, dims).ok_or(ReshardError::TooManyIntervals { end, axis })
        });
        let axes = divided.collect::<Result<_, _>>()?;
        let mut replicas = vec![0];
        for (dim, placement) in sharding.placements.iter().enumerate() {
            if *placement == Placement::Replicate {
                let step = sharding.stride(dim);
                let places = 0..sharding.dims[dim] as usize;
                replicas = replicas
                    .iter()
                    .flat_map(|place| places.clone().map(move |it| place + it * step))
                    .collect();
            }
        }
        Ok(Shards { sharding: sharding.clone(), order, axes, extent, replicas })
    }

    /// The shard that a rank holds.
    pub(super) fn of_rank(&self, rank: u32) -> Option<Vec<usize>> {
        let place = *self.sharding.places.get(&rank)?;
        let part = |axis: &Axis| {
            axis.dims.iter().fold(0, |part, &dim| {
                let size = self.sharding.dims[dim] as usize;
                part * size + place / self.sharding.stride(dim) % size
            })
        };
        Some(self.axes.iter().map(part).collect())
    }

    /// The ranks that hold a shard.
    pub(super) fn holders(&self, shard: &[usize]) -> Vec<u32> {
        let mut first = 0;
        for (axis, part) in self.axes.iter().zip(shard) {
            let mut part = *part;
            for &dim in axis.dims.iter().rev() {
                let size = self.sharding.dims[dim] as usize;
                first += part % size * self.sharding.stride(dim);
                part /= size;
            }
        }
        self.replicas.iter().map(|replica| self.sharding.ranks[first + replica]).collect()
    }

    /// The local array's length along each axis.
    pub(super) fn local_shape(&self, shard: &[usize]) -> Vec<u64> {
        let len = |(axis, part): (&Axis, &usize)| axis.parts[*part].iter().map(|it| it.len).sum();
        self.axes.iter().zip(shard).map(len).collect()
    }

    /// Bytes from an element of a local array that has elements to the next, along each axis.
    pub(super) fn strides(&self, shard: &[usize]) -> Vec<i64> {
        let shape = self.local_shape(shard);
        let mut strides = vec![0; shape.len()];
        let mut stride = self.extent;
        for &axis in self.order.iter().rev() {
            strides[axis] = stride;
            // No more bytes than the whole array has, which was checked.
            stride = stride.saturating_mul(shape[axis].cast_signed());
        }
        strides
    }
}

impl Sharding {
    /// How many places lie between neighbours along a dimension of the mesh.
    fn stride(&self, dim: usize) -> usize {
        self.dims[dim + 1..].iter().map(|dim| *dim as usize).product()
    }
}

impl Axis {
    /// `None` if there are more intervals than allowed.
    fn new(len: u64, sharding: &Sharding, dims: Vec<usize>) -> Option<Axis> {
        let whole = (len > 0).then_some(Interval { from: 0, to: 0, len });
        let mut parts: Vec<Vec<Interval>> = vec![whole.into_iter().collect()];
        for &dim in &dims {
            let (count, mut left) = (u64::from(sharding.dims[dim]), super::MAX_INTERVALS);
            let mut finer = Vec::new();
            for part in parts {
                let len = part.iter().map(|it| it.len).sum();
                for index in 0..count {
                    let share = share_of(len, sharding.placements[dim], count, index, left)?;
                    let part = compose(&part, &share);
                    left = left.checked_sub(part.len())?;
                    finer.push(part);
                }
            }
            parts = finer;
        }
        Some(Axis { dims, parts: parts.into_iter().map(Arc::from).collect() })
    }
}
