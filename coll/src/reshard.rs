//! How an array gets from one sharding to another: which rank sends what to which, as layouts. Pure arithmetic, which
//! every rank does for itself and with the same result.
//!
//! - A [`Sharding`] is a mesh of ranks, a [`Placement`] for each dimension of the mesh, and the order of local arrays
//!   in memory. Ranks are numbers: the meshes of source and target may be the same, overlap, or have no rank in common.
//! - [`Reshard`] has both for one array. [`Reshard::moves`] lists what goes from rank to rank; [`Reshard::for_rank`]
//!   lists what one rank sends and receives.
//! - A [`Move`] has a layout of the sender's local array and one of the receiver's. Both name the same elements in the
//!   same order.
//!
//! Read first: the chapter on data distribution of High Performance Fortran 2.0, and `MPI_Type_create_darray` (MPI 4.1
//! §5.1.4); PyTorch's DTensor has meshes with placements, too. How it is made: `sharding.rs` says which rank has which
//! indices, axis by axis; `interval.rs` intersects two sets of indices, and makes them layouts; `spread.rs` chooses
//! among replicas.
//!
//! ```
//! use gapless_coll::reshard::{Placement, Reshard, Sharding};
//! use gapless_dtype::{Equivalence, pack, unpack};
//!
//! // A 4 × 6 matrix: two ranks have rows, and get columns.
//! let rows = Sharding::new(&[2], [0, 1], &[Placement::Block { axis: 0 }])?;
//! let columns = Sharding::new(&[2], [0, 1], &[Placement::Block { axis: 1 }])?;
//! let reshard = Reshard::new(&[4, 6], &f32::datatype(), &rows, &columns)?;
//!
//! let mine = reshard.for_rank(1);
//! let pairs: Vec<_> = mine.iter().map(|it| (it.from(), it.to(), it.elements())).collect();
//! assert_eq!(pairs, [(0, 1, 6), (1, 0, 6), (1, 1, 6)]);
//!
//! // What rank 0 sends to it: the right half of its two rows, which are the upper half of rank 1's columns.
//! let rows_of_0: Vec<f32> = (0..12u8).map(f32::from).collect();
//! let packed = pack(&rows_of_0, 0, &mine[0].send_layout()?, 1)?;
//! let mut columns_of_1 = [0.0f32; 12];
//! unpack(&packed, &mut columns_of_1, 0, &mine[0].recv_layout()?, 1)?;
//! assert_eq!(columns_of_1[..6], [3.0, 4.0, 5.0, 9.0, 10.0, 11.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod interval;
mod sharding;
mod spread;
#[cfg(test)]
mod tests;

pub use error::{ReshardEnd, ReshardError};
pub use sharding::{Placement, Sharding};

use gapless_dtype::{Datatype, Layout, TypeError};
use interval::{Interval, along, compose, cut, inverse};
use sharding::{Axis, Shards};
use spread::{Want, spread};
use std::fmt;
use std::sync::Arc;

/// The most intervals that the parts of an axis may consist of, all together.
pub const MAX_INTERVALS: usize = 1 << 22;

/// An axis is cut among replicas if it has as many indices for each of them.
const ROWS_EACH: u64 = 16;

/// An array and its two shardings.
///
/// Each element of each target rank comes from exactly one source rank:
///
/// - from itself, if it holds the element as a source too;
/// - else from one of the source ranks that hold it, of those that cost least ([`with_cost`](Reshard::with_cost)).
///
/// Where several ranks hold the same shard, they share the work. What other ranks want of the shard is laid end to end
/// and cut into equal shares, one for each holder; all cuts lie between *rows*, the elements that an intersection of
/// two shards has at one index of one axis. That is the axis that is slowest in the source's memory among those that
/// have 16 indices for each holder, else the one with the most. So **no holder sends more than its equal share, rounded
/// up, and less than one row more**, and there are fewer messages than receivers and holders together. With costs, this
/// holds for each group of holders that is nearest to the same receivers, if these groups have no rank in common.
///
/// Making one takes time and memory in proportion to the intervals of all parts of its axes.
/// [`for_rank`](Self::for_rank) compares a rank's parts with those of the other sharding, axis by axis, and then looks
/// at the pairs that intersect alone: its own, and those of the replicas of its sources, whose shares it must know.
#[derive(Clone)]
pub struct Reshard {
    element: Datatype,
    source: Shards,
    target: Shards,
    cost: Option<Arc<dyn Fn(u32, u32) -> u64 + Send + Sync>>,
}

impl Reshard {
    /// An array of this shape and these elements, any number of axes, from one sharding to another.
    ///
    /// # Errors
    /// A placement or a memory order does not fit the array's axes; elements that would overlap in an array; more bytes
    /// than 63 bits count; cyclic blocks so small that there are more than [`MAX_INTERVALS`].
    pub fn new(
        shape: &[u64],
        element: &Datatype,
        source: &Sharding,
        target: &Sharding,
    ) -> Result<Reshard, ReshardError> {
        let extent = element.extent();
        if extent <= 0 || element.true_extent() > extent || element.commit()?.overlaps(1) {
            return Err(ReshardError::Element { extent });
        }
        // An axis without indices does not make the others any shorter.
        let bytes = shape.iter().try_fold(extent.unsigned_abs(), |product, len| {
            product.checked_mul((*len).max(1)).filter(|it| i64::try_from(*it).is_ok())
        });
        bytes.ok_or(ReshardError::Overflow)?;
        let source = Shards::new(ReshardEnd::Source, shape, extent, source)?;
        let target = Shards::new(ReshardEnd::Target, shape, extent, target)?;
        Ok(Reshard { element: element.clone(), source, target, cost: None })
    }

    /// Chooses replicas by what it costs to send from a rank (the first one) to another: the nearest first. All ranks
    /// must have the same costs; [`Locality`](crate::Locality) is one way to get them.
    #[must_use]
    pub fn with_cost(self, cost: impl Fn(u32, u32) -> u64 + Send + Sync + 'static) -> Reshard {
        Reshard { cost: Some(Arc::new(cost)), ..self }
    }

    /// The shape of a rank's local array at one end; `None` if it is not in that mesh.
    #[must_use]
    pub fn local_shape(&self, end: ReshardEnd, rank: u32) -> Option<Vec<u64>> {
        let shards = match end {
            ReshardEnd::Source => &self.source,
            ReshardEnd::Target => &self.target,
        };
        Some(shards.local_shape(&shards.of_rank(rank)?))
    }

    /// How many elements a rank's local array has at one end; 0 if it is not in that mesh.
    #[must_use]
    pub fn local_elements(&self, end: ReshardEnd, rank: u32) -> u64 {
        self.local_shape(end, rank).map_or(0, |shape| shape.iter().product())
    }

    /// What goes from which rank to which, for all ranks, in ascending order of senders and then receivers; one move
    /// for each pair.
    #[must_use]
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for shard in product(self.source.axes.iter().map(|axis| axis.parts.len()).collect()) {
            self.out_of(&shard, None, &mut moves);
        }
        moves.sort_unstable_by_key(|it| (it.from, it.to));
        moves
    }

    /// What one rank sends and receives: those of [`moves`](Self::moves) that it takes part in. A move to itself is a
    /// copy from its source array to its target array.
    #[must_use]
    pub fn for_rank(&self, rank: u32) -> Vec<Move> {
        let mut moves = Vec::new();
        let own = self.source.of_rank(rank);
        if let Some(shard) = &own {
            self.out_of(shard, Some(rank), &mut moves);
        }
        if let Some(target) = self.target.of_rank(rank) {
            let met = meetings(&self.target.axes, &target, &self.source.axes, None);
            for choice in product(met.iter().map(Vec::len).collect()) {
                let shard: Vec<usize> = met.iter().zip(choice).map(|(it, at)| it[at].0).collect();
                if Some(&shard) != own.as_ref() {
                    self.out_of(&shard, Some(rank), &mut moves);
                }
            }
        }
        moves.sort_unstable_by_key(|it| (it.from, it.to));
        moves
    }

    /// The moves out of one shard of the source, or those of them that one rank takes part in.
    fn out_of(&self, shard: &[usize], only: Option<u32>, moves: &mut Vec<Move>) {
        let holders = self.source.holders(shard);
        // What others want does not matter to a receiver if nobody shares the work.
        let alone = only.filter(|rank| holders.len() == 1 && !holders.contains(rank));
        let alone = alone.and_then(|rank| Some((rank, self.target.of_rank(rank)?)));
        let own = alone.as_ref().map(|(_, shard)| &shard[..]);
        let met = meetings(&self.source.axes, shard, &self.target.axes, own);
        let strides = self.source.strides(shard);
        let (mut wants, mut boxes) = (Vec::new(), Vec::new());
        for choice in product(met.iter().map(Vec::len).collect()) {
            let (target, maps): (Vec<usize>, Vec<_>) =
                met.iter().zip(choice).map(|(it, at)| it[at].clone()).unzip();
            let target_strides = self.target.strides(&target);
            let axes = self.source.order.iter().map(|&axis| MoveAxis {
                map: Arc::clone(&maps[axis]),
                strides: (strides[axis], target_strides[axis]),
            });
            let common = Common::new(axes.collect(), holders.len() as u64);
            let takers = match &alone {
                Some((rank, _)) => vec![*rank],
                None => self.target.holders(&target),
            };
            wants.extend(takers.into_iter().map(|to| common.want(to)).map(|it| (it, boxes.len())));
            boxes.push(common);
        }
        let (wants, box_of): (Vec<Want>, Vec<usize>) = wants.into_iter().unzip();
        let cost = self.cost.as_ref().map(|cost| &**cost as &dyn Fn(u32, u32) -> u64);
        for piece in spread(&holders, &wants, cost) {
            let (from, to) = (piece.from, wants[piece.want].to);
            if only.is_none_or(|rank| rank == from || rank == to) {
                let axes = boxes[box_of[piece.want]].rows(&piece.rows);
                let elements = axes.iter().map(|axis| axis.len()).product();
                moves.push(Move { from, to, elements, element: self.element.clone(), axes });
            }
        }
    }
}

/// Of each axis, the parts of the other sharding that have indices in common with a part of this one, and which of its
/// local indices are which of theirs. With `only`, no other parts are looked at.
fn meetings(
    axes: &[Axis],
    shard: &[usize],
    others: &[Axis],
    only: Option<&[usize]>,
) -> Vec<Vec<(usize, Arc<[Interval]>)>> {
    let of_axis = |axis: usize| {
        let local = inverse(&axes[axis].parts[shard[axis]]);
        let wanted = match only {
            Some(only) => only[axis]..only[axis] + 1,
            None => 0..others[axis].parts.len(),
        };
        let meeting = |index: usize| {
            let map = compose(&local, &others[axis].parts[index]);
            (!map.is_empty()).then(|| (index, Arc::from(map)))
        };
        wanted.filter_map(meeting).collect()
    };
    (0..axes.len()).map(of_axis).collect()
}

/// All lists of numbers below these, the last one fastest.
fn product(lens: Vec<usize>) -> impl Iterator<Item = Vec<usize>> {
    let all = lens.iter().product();
    (0..all).map(move |mut index: usize| {
        let mut choice = vec![0; lens.len()];
        for (at, len) in choice.iter_mut().zip(&lens).rev() {
            *at = index % len;
            index /= len;
        }
        choice
    })
}

/// What a shard of the source and one of the target have in common.
struct Common {
    /// From the slowest in the source's memory to the fastest.
    axes: Vec<MoveAxis>,
    /// The one that is cut among replicas; none if the array has no axes.
    cut: Option<usize>,
}

impl Common {
    fn new(axes: Vec<MoveAxis>, holders: u64) -> Common {
        let lens: Vec<u64> = axes.iter().map(MoveAxis::len).collect();
        let enough = lens.iter().position(|len| len / ROWS_EACH >= holders);
        let longest = || (0..lens.len()).rev().max_by_key(|axis| lens[*axis]);
        Common { axes, cut: enough.or_else(longest) }
    }

    fn want(&self, to: u32) -> Want {
        let elements: u64 = self.axes.iter().map(MoveAxis::len).product();
        let rows = self.cut.map_or(1, |axis| self.axes[axis].len());
        Want { to, rows, row_elements: elements / rows }
    }

    fn rows(&self, rows: &std::ops::Range<u64>) -> Vec<MoveAxis> {
        let mut axes = self.axes.clone();
        if let Some(axis) =
            self.cut.map(|axis| &mut axes[axis]).filter(|it| it.len() != rows.end - rows.start)
        {
            axis.map = cut(&axis.map, rows).into();
        }
        axes
    }
}

/// An axis of what is moved.
#[derive(Clone, Debug)]
struct MoveAxis {
    /// The sender's local indices and the receiver's.
    map: Arc<[Interval]>,
    /// Bytes between neighbours at the sender and at the receiver.
    strides: (i64, i64),
}

impl MoveAxis {
    fn len(&self) -> u64 {
        self.map.iter().map(|it| it.len).sum()
    }
}

/// Elements that one rank sends to another, or copies.
#[derive(Clone, Debug)]
pub struct Move {
    from: u32,
    to: u32,
    elements: u64,
    element: Datatype,
    /// In the order in which both layouts name the elements, the slowest first.
    axes: Vec<MoveAxis>,
}

impl Move {
    /// The sender.
    #[must_use]
    pub fn from(&self) -> u32 {
        self.from
    }

    /// The receiver.
    #[must_use]
    pub fn to(&self) -> u32 {
        self.to
    }

    /// How many elements it moves; at least one.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Packed bytes that it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // More than 64 bits only if elements overlap.
        self.elements.saturating_mul(self.element.size())
    }

    /// The elements in the sender's local array, whose first byte is displacement 0. It has a vector for each axis of
    /// which they have indices at equal distances, else a list.
    ///
    /// # Errors
    /// As [`Datatype::commit`], and for arrays of more axes than datatypes nest deep.
    pub fn send_layout(&self) -> Result<Layout, TypeError> {
        self.layout(|axis| axis.strides.0, |it| it.from)
    }

    /// The same elements in the receiver's local array.
    ///
    /// # Errors
    /// As [`send_layout`](Self::send_layout).
    pub fn recv_layout(&self) -> Result<Layout, TypeError> {
        self.layout(|axis| axis.strides.1, |it| it.to)
    }

    fn layout(
        &self,
        stride: impl Fn(&MoveAxis) -> i64,
        position: impl Fn(&Interval) -> u64,
    ) -> Result<Layout, TypeError> {
        let (mut datatype, mut start) = (self.element.clone(), 0);
        for axis in self.axes.iter().rev() {
            let positions = axis.map.iter().map(|it| (position(it), it.len));
            let first;
            (datatype, first) = along(&datatype, stride(axis), positions)?;
            start += first;
        }
        if start != 0 {
            datatype = Datatype::hindexed_block(1, &[start], &datatype)?;
        }
        datatype.commit()
    }
}

impl fmt::Debug for Reshard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reshard { source, target, .. } = self;
        f.debug_struct("Reshard")
            .field("source", source)
            .field("target", target)
            .finish_non_exhaustive()
    }
}
