//! What the operations mean, written out on packed bytes.
use std::ops::Range;

use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{Op, ReduceOp, UserOp};

use crate::schedule::{Buffer, Row, Schedule};
use crate::topologies::Edge;
use crate::{Between, BetweenCall, Call, Combine, Reduction};

/// What is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Sums of 32-bit numbers.
    Sum,
    /// Compositions of affine functions, each two 32-bit numbers: they do not commute.
    Affine,
}

fn affine(left: &[u8], right: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let (a, b) = (number(&left[..4]), number(&left[4..8]));
    let (c, d) = (number(&right[..4]), number(&right[4..8]));
    let slope = a.wrapping_mul(c).to_le_bytes();
    let offset = a.wrapping_mul(d).wrapping_add(b).to_le_bytes();
    [slope, offset].concat()
}

impl Arithmetic {
    /// Packed bytes of an element.
    #[must_use]
    pub fn unit(self) -> u64 {
        if self == Self::Sum { 4 } else { 8 }
    }

    /// What a call says of it.
    #[must_use]
    pub fn reduction(self) -> Reduction {
        Reduction { unit: self.unit(), commutative: self == Self::Sum }
    }

    /// What an executor is told of it.
    #[must_use]
    pub fn how(self) -> Combine {
        let int = Datatype::from(Primitive::Int32);
        let element = match self {
            Self::Sum => int,
            Self::Affine => Datatype::contiguous(2, &int).unwrap(),
        };
        Combine::new(&self.op(), &element.commit().unwrap()).unwrap()
    }

    /// The operation.
    #[must_use]
    pub fn op(self) -> Op {
        if self == Self::Sum {
            return ReduceOp::Sum.into();
        }
        let pair = Datatype::contiguous(2, &Primitive::Int32.into()).unwrap().commit().unwrap();
        let op = UserOp::packed("composition", false, &pair, |vectors| {
            let pairs = vectors.invec.chunks_exact(8).zip(vectors.inoutvec.chunks_exact_mut(8));
            pairs.for_each(|(left, right)| right.copy_from_slice(&affine(left, right)));
        });
        op.into()
    }

    fn combine(self, left: &[u8], right: &[u8]) -> Vec<u8> {
        let size = usize::try_from(self.unit()).unwrap();
        let each = left.chunks_exact(size).zip(right.chunks_exact(size));
        let one = |(left, right): (&[u8], &[u8])| match self {
            Self::Affine => affine(left, right),
            Self::Sum => {
                let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
                number(left).wrapping_add(number(right)).to_le_bytes().to_vec()
            }
        };
        each.flat_map(one).collect()
    }

    /// All, in order; at least one.
    fn fold(self, all: &[&[u8]]) -> Vec<u8> {
        let (first, rest) = all.split_first().unwrap();
        rest.iter().fold(first.to_vec(), |sum, next| self.combine(&sum, next))
    }
}

/// The contents of one rank's buffers.
#[derive(Clone, Debug)]
pub struct Content {
    /// The packed stream of the send buffer.
    pub send: Vec<u8>,
    /// That of the receive buffer.
    pub recv: Vec<u8>,
}

fn block(row: &Row, index: usize) -> Range<usize> {
    let range = row.range(index);
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

/// What the receive buffers hold afterwards, by rank: the packed streams.
#[must_use]
pub fn after(
    calls: &[Call<'_>],
    schedules: &[Schedule],
    before: &[Content],
    how: Arithmetic,
) -> Vec<Vec<u8>> {
    let n = calls.len();
    let rows: Vec<(Row, Row)> = schedules
        .iter()
        .map(|schedule| (schedule.row(Buffer::Send), schedule.row(Buffer::Recv)))
        .collect();
    let mut after: Vec<Vec<u8>> = before.iter().map(|content| content.recv.clone()).collect();
    // What a rank gives: from the receive buffer, if the send buffer is absent.
    let gives = |rank: usize, in_place: bool| {
        if in_place { &before[rank].recv[..] } else { &before[rank].send[..] }
    };
    for (rank, call) in calls.iter().enumerate() {
        let result = &mut after[rank];
        let vectors = |in_place: bool, root: Option<usize>, ranks: Range<usize>| {
            let each = ranks.map(|from| gives(from, in_place && root.is_none_or(|it| it == from)));
            how.fold(&each.collect::<Vec<_>>())
        };
        match *call {
            Call::Barrier => {}
            Call::Bcast { root, .. } => result.clone_from(&before[root].recv),
            Call::Gather { root, in_place, .. } | Call::Gatherv { root, in_place, .. } => {
                for from in (0..n).filter(|from| rank == root && !(in_place && *from == root)) {
                    result[block(&rows[rank].1, from)].copy_from_slice(&before[from].send);
                }
            }
            Call::Scatter { root, in_place, .. } | Call::Scatterv { root, in_place, .. } => {
                if !(in_place && rank == root) {
                    result.copy_from_slice(&before[root].send[block(&rows[root].0, rank)]);
                }
            }
            Call::Allgather { in_place, .. } | Call::Allgatherv { in_place, .. } => {
                for from in 0..n {
                    let place = block(&rows[rank].1, from);
                    let given = gives(from, in_place);
                    let given = if in_place { &given[place.clone()] } else { given };
                    result[place].copy_from_slice(given);
                }
            }
            Call::Alltoall { in_place, .. } | Call::Alltoallv { in_place, .. } => {
                for (from, rows_there) in rows.iter().enumerate() {
                    let row = if in_place { &rows_there.1 } else { &rows_there.0 };
                    let given = &gives(from, in_place)[block(row, rank)];
                    result[block(&rows[rank].1, from)].copy_from_slice(given);
                }
            }
            Call::Reduce { root, in_place, .. } => {
                if rank == root {
                    *result = vectors(in_place, Some(root), 0..n);
                }
            }
            Call::Allreduce { in_place, .. } => *result = vectors(in_place, None, 0..n),
            Call::Scan { in_place, .. } => *result = vectors(in_place, None, 0..rank + 1),
            Call::Exscan { in_place, .. } => {
                if rank > 0 {
                    *result = vectors(in_place, None, 0..rank);
                }
            }
            Call::ReduceScatter { in_place, .. } | Call::ReduceScatterBlock { in_place, .. } => {
                let sum = vectors(in_place, None, 0..n);
                let row = if in_place { &rows[rank].1 } else { &rows[rank].0 };
                let own = &sum[block(row, rank)];
                result[..own.len()].copy_from_slice(own);
            }
            Call::NeighborAllgather { sources, .. } => {
                for (index, edge) in sources.iter().enumerate() {
                    if let Some(edge) = edge {
                        let given = &before[edge.rank as usize].send;
                        result[block(&rows[rank].1, index)].copy_from_slice(given);
                    }
                }
            }
            Call::NeighborAlltoall { sources, .. } => {
                for (index, edge) in sources.iter().enumerate() {
                    let Some(edge) = edge else { continue };
                    let from = edge.rank as usize;
                    let Call::NeighborAlltoall { destinations, .. } = calls[from] else {
                        panic!("one operation")
                    };
                    let here = Edge { rank: u32::try_from(rank).unwrap(), lane: edge.lane };
                    let there = destinations.iter().position(|it| *it == Some(here)).unwrap();
                    let given = &before[from].send[block(&rows[from].0, there)];
                    result[block(&rows[rank].1, index)].copy_from_slice(given);
                }
            }
        }
    }
    after
}

/// As [`after`], of an intercommunicator; ranks are numbered through both groups.
#[must_use]
pub fn after_between(
    calls: &[BetweenCall<'_>],
    (first, second): (usize, usize),
    schedules: &[Schedule],
    before: &[Content],
    how: Arithmetic,
) -> Vec<Vec<u8>> {
    let rows: Vec<(Row, Row)> = schedules
        .iter()
        .map(|schedule| (schedule.row(Buffer::Send), schedule.row(Buffer::Recv)))
        .collect();
    let mut after: Vec<Vec<u8>> = before.iter().map(|content| content.recv.clone()).collect();
    for (rank, call) in calls.iter().enumerate() {
        let result = &mut after[rank];
        let at = Between { rank, first, second };
        let own = rank - at.local().start;
        let sum = || {
            let each: Vec<&[u8]> = at.remote().map(|from| &before[from].send[..]).collect();
            how.fold(&each)
        };
        match *call {
            BetweenCall::Barrier => {}
            BetweenCall::Bcast { root, .. } => {
                if let Some(root) = root {
                    result.clone_from(&before[root].recv);
                }
            }
            BetweenCall::Gather { root, .. } | BetweenCall::Gatherv { root, .. } => {
                for (index, from) in at.remote().enumerate().filter(|_| root == Some(rank)) {
                    result[block(&rows[rank].1, index)].copy_from_slice(&before[from].send);
                }
            }
            BetweenCall::Scatter { root, .. } | BetweenCall::Scatterv { root, .. } => {
                if let Some(root) = root.filter(|root| *root != rank) {
                    result.copy_from_slice(&before[root].send[block(&rows[root].0, own)]);
                }
            }
            BetweenCall::Allgather { .. } | BetweenCall::Allgatherv { .. } => {
                for (index, from) in at.remote().enumerate() {
                    result[block(&rows[rank].1, index)].copy_from_slice(&before[from].send);
                }
            }
            BetweenCall::Alltoall { .. } | BetweenCall::Alltoallv { .. } => {
                for (index, from) in at.remote().enumerate() {
                    let given = &before[from].send[block(&rows[from].0, own)];
                    result[block(&rows[rank].1, index)].copy_from_slice(given);
                }
            }
            BetweenCall::Reduce { root, .. } => {
                if root == Some(rank) {
                    *result = sum();
                }
            }
            BetweenCall::Allreduce { .. } => *result = sum(),
            BetweenCall::ReduceScatter { .. } | BetweenCall::ReduceScatterBlock { .. } => {
                result.copy_from_slice(&sum()[block(&rows[rank].0, own)]);
            }
        }
    }
    after
}
