//! What is measured: an operation, how long its buffers are, what stands in them, and what should afterwards.

use super::ELEMENT;
use gapless_coll::Operation;

/// An operation of some length, with rank 0 as its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveWork {
    operation: Operation,
    /// Elements of the vector, or of one rank's block.
    len: usize,
}

impl CollectiveWork {
    /// The operations whose algorithms are compared; all others can be measured, too.
    pub const OPERATIONS: [Operation; 11] = [
        Operation::Barrier,
        Operation::Bcast,
        Operation::Gather,
        Operation::Scatter,
        Operation::Allgather,
        Operation::Alltoall,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::ReduceScatterBlock,
        Operation::Scan,
        Operation::Exscan,
    ];

    /// So many bytes of an operation; none if they are not whole elements of 8. Where blocks may differ in length
    /// (`MPI_Gatherv`), they do not; neighbours are those in a ring of the ranks.
    #[must_use]
    pub fn new(operation: Operation, bytes: u64) -> Option<Self> {
        let len = usize::try_from(bytes / ELEMENT).ok()?;
        bytes.is_multiple_of(ELEMENT).then_some(Self { operation, len })
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Bytes of the vector, or of one rank's block.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len as u64 * ELEMENT
    }

    /// Elements of the vector, or of one rank's block.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Elements of the send and receive buffers of a rank.
    pub(super) fn lens(&self, rank: usize, n: usize) -> (usize, usize) {
        let (one, all) = (self.len, self.len * n);
        let root = |len| if rank == 0 { len } else { 0 };
        match self.operation {
            Operation::Bcast => (0, one),
            Operation::Gather | Operation::Gatherv => (one, root(all)),
            Operation::Scatter | Operation::Scatterv => (root(all), one),
            Operation::Allgather | Operation::Allgatherv => (one, all),
            Operation::Alltoall | Operation::Alltoallv => (all, all),
            Operation::NeighborAllgather => (one, 2 * one),
            Operation::NeighborAlltoall => (2 * one, 2 * one),
            Operation::Reduce => (one, root(one)),
            Operation::Allreduce | Operation::Scan | Operation::Exscan => (one, one),
            Operation::ReduceScatter | Operation::ReduceScatterBlock => (all, one),
            Operation::Barrier => (0, 0),
        }
    }

    /// Bytes that all ranks' buffers take together, at least: each uses two pairs by turns.
    pub(crate) fn arena_bytes(&self, n: usize) -> u64 {
        let pair = |rank| {
            let (send, recv) = self.lens(rank, n);
            (send as u64).saturating_add(recv as u64).saturating_mul(2 * ELEMENT)
        };
        let others = (n as u64).saturating_sub(1);
        pair(0).saturating_add(pair(1).saturating_mul(others))
    }

    /// What a rank contributes; everything else is overwritten.
    pub(super) fn write(&self, rank: usize, send: &mut [f64], recv: &mut [f64]) {
        let fill = |buffer: &mut [f64]| {
            buffer.iter_mut().enumerate().for_each(|(at, slot)| *slot = value(rank, at));
        };
        fill(send);
        if self.operation == Operation::Bcast && rank == 0 { fill(recv) } else { recv.fill(-1.0) }
    }

    /// Whether that is what a rank should have received.
    pub(super) fn is_right(&self, rank: usize, n: usize, recv: &[f64]) -> bool {
        let len = self.len.max(1);
        let sum =
            |ranks: std::ops::Range<usize>, at: usize| ranks.map(|from| value(from, at)).sum();
        // The neighbour on the left, then that on the right.
        let beside = |side: usize| (rank + if side == 0 { n - 1 } else { 1 }) % n;
        let expected = |at: usize| -> f64 {
            match self.operation {
                Operation::Bcast => value(0, at),
                Operation::Gather
                | Operation::Gatherv
                | Operation::Allgather
                | Operation::Allgatherv => value(at / len, at % len),
                Operation::Scatter | Operation::Scatterv => value(0, rank * len + at),
                Operation::Alltoall | Operation::Alltoallv => {
                    value(at / len, rank * len + at % len)
                }
                Operation::NeighborAllgather => value(beside(at / len), at % len),
                // What goes to the right comes from the left.
                Operation::NeighborAlltoall => {
                    value(beside(at / len), (1 - at / len) * len + at % len)
                }
                Operation::ReduceScatter | Operation::ReduceScatterBlock => {
                    sum(0..n, rank * len + at)
                }
                Operation::Scan => sum(0..rank + 1, at),
                Operation::Exscan if rank == 0 => -1.0,
                Operation::Exscan => sum(0..rank, at),
                _ => sum(0..n, at),
            }
        };
        recv.iter().enumerate().all(|(at, found)| *found == expected(at))
    }
}

/// An element of a rank: small and whole, so that sums are exact.
fn value(rank: usize, at: usize) -> f64 {
    let small = u32::try_from((at * 7 + rank * 13) % 1021).unwrap_or(0);
    f64::from(small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_found() {
        let work = CollectiveWork::new(Operation::Allreduce, 64).unwrap();
        let mut recv: Vec<f64> = (0..8).map(|at| value(0, at) + value(1, at)).collect();
        assert!(work.is_right(1, 2, &recv));
        recv[5] += 1.0;
        assert!(!work.is_right(1, 2, &recv));
        assert_eq!(CollectiveWork::new(Operation::Allreduce, 63), None);
        // Three ranks in a ring: 2 and 1 are beside 0.
        let ring = CollectiveWork::new(Operation::NeighborAlltoall, 8).unwrap();
        assert!(ring.is_right(0, 3, &[value(2, 1), value(1, 0)]));
        assert!(!ring.is_right(0, 3, &[value(2, 0), value(1, 1)]));
    }
}
