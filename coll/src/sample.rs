//! A call of any operation to look at: to explain it, to measure it, to draw how it grows.
use crate::algorithm::Algorithm;
use crate::build::build;
use crate::call::{Call, Reduction};
use crate::check::LEN_MAX;
use crate::error::BuildError;
use crate::locality::Locality;
use crate::operation::Operation;
use crate::schedule::Schedule;
use crate::topologies::{Cartesian, Neighborhood, dims_create};

/// An operation among some ranks with ordinary arguments, which do not work in place.
///
/// What one length says is the vector, or one rank's block. Where MPI lets the ranks' blocks differ (gatherv, scatterv,
/// allgatherv, alltoallv, reduce_scatter), they are half of it, all of it and one and a half times as long, in turn.
/// Neighbours are those of a periodic grid of two dimensions, as square as it can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    operation: Operation,
    ranks: usize,
    root: usize,
    len: u64,
    of: Reduction,
    grid: Option<Cartesian>,
}

/// The [`Sample`] as one rank calls it: it owns the lists of the [`Call`].
#[derive(Clone, Debug)]
pub struct SampleCall<'a> {
    sample: &'a Sample,
    rank: usize,
    lens: Vec<u64>,
    neighbors: Neighborhood,
}

impl Sample {
    /// A sample. Reductions combine elements of 8 bytes, or of the largest power of two below that divides `len`; they
    /// are commutative.
    ///
    /// # Errors
    /// [`BuildError::NoSuchRank`] if the root is not one of the ranks, as always if there is none;
    /// [`BuildError::TooLong`]; [`BuildError::TooMany`].
    pub fn new(
        operation: Operation,
        ranks: usize,
        root: usize,
        len: u64,
    ) -> Result<Self, BuildError> {
        if root >= ranks {
            return Err(BuildError::NoSuchRank { rank: root, ranks });
        }
        if ranks > RANKS_MAX {
            return Err(BuildError::TooMany { ranks, most: RANKS_MAX });
        }
        if len > LEN_MAX {
            return Err(BuildError::TooLong);
        }
        use Operation::{NeighborAllgather, NeighborAlltoall};
        let grid = matches!(operation, NeighborAllgather | NeighborAlltoall).then(|| square(ranks));
        let unit = 1 << len.trailing_zeros().min(3);
        let of = Reduction { unit, commutative: true };
        let sample = Self { operation, ranks, root, len, of, grid: grid.flatten() };
        // What all ranks together hold may be too long.
        sample.of(root).call().check(root, ranks)?;
        Ok(sample)
    }

    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// How many ranks take part.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Packed length of an element, if it combines elements.
    #[must_use]
    pub fn unit(&self) -> Option<u64> {
        self.operation.reduces().then_some(self.of.unit)
    }

    /// Whether it has a root.
    #[must_use]
    pub fn is_rooted(&self) -> bool {
        use Operation::{Bcast, Gather, Gatherv, Reduce, Scatter, Scatterv};
        matches!(self.operation, Bcast | Gather | Gatherv | Reduce | Scatter | Scatterv)
    }

    /// Whether ranks have blocks of different lengths.
    #[must_use]
    pub fn is_ragged(&self) -> bool {
        use Operation::{Allgatherv, Alltoallv, Gatherv, ReduceScatter, Scatterv};
        matches!(self.operation, Allgatherv | Alltoallv | Gatherv | ReduceScatter | Scatterv)
    }

    /// Whether the length is that of one rank's block, and not of a vector.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        use Operation::{Allreduce, Barrier, Bcast, Exscan, Reduce, Scan};
        !matches!(self.operation, Allreduce | Barrier | Bcast | Exscan | Reduce | Scan)
    }

    /// The sides of the grid, if neighbours take part.
    #[must_use]
    pub fn grid(&self) -> Option<&[u32]> {
        self.grid.as_ref().map(Cartesian::dims)
    }

    /// The call of a rank. Ranks that do not exist call what makes no sense.
    #[must_use]
    pub fn of(&self, rank: usize) -> SampleCall<'_> {
        use Operation::{Allgatherv, Alltoallv, Gatherv, ReduceScatter, Scatterv};
        let listed = match self.operation {
            Gatherv | Scatterv => rank == self.root,
            Allgatherv | Alltoallv | ReduceScatter => true,
            _ => false,
        };
        // From rank to rank as long as back.
        let turn = if self.operation == Alltoallv { rank } else { 0 };
        let mut lens = Vec::new();
        if listed {
            lens.extend((0..self.ranks).map(|other| self.block(other + turn)));
        }
        let place = u32::try_from(rank).ok();
        let neighbors =
            self.grid.as_ref().zip(place).and_then(|(grid, it)| grid.neighbors(it).ok());
        let neighbors = neighbors.unwrap_or_default();
        if self.grid.is_some() {
            lens = vec![self.len; neighbors.sources.len()];
        }
        SampleCall { sample: self, rank, lens, neighbors }
    }

    /// The length of a rank's block, if they differ ([`is_ragged`](Self::is_ragged)); of alltoallv, the one that it sends
    /// to rank 0.
    #[must_use]
    pub fn block(&self, rank: usize) -> u64 {
        self.len / self.of.unit * (1 + rank as u64 % 3) / 2 * self.of.unit
    }

    /// The schedule of a rank.
    ///
    /// # Errors
    /// As for [`build()`](crate::build()).
    pub fn build(
        &self,
        rank: usize,
        locality: &Locality,
        algorithm: &Algorithm,
    ) -> Result<Schedule, BuildError> {
        build(rank, locality, &self.of(rank).call(), algorithm)
    }

    /// The schedules of all ranks; none if they have more than `steps_max` steps together.
    ///
    /// # Errors
    /// As for [`build()`](crate::build()).
    pub fn build_all(
        &self,
        locality: &Locality,
        algorithm: &Algorithm,
        steps_max: usize,
    ) -> Result<Option<Vec<Schedule>>, BuildError> {
        let (mut all, mut steps) = (Vec::new(), 0usize);
        for rank in 0..self.ranks {
            let schedule = self.build(rank, locality, algorithm)?;
            // The first two are like many others: whether it is worth to go on.
            let others = if rank == 1 { self.ranks - 1 } else { 1 };
            if steps.saturating_add(schedule.len().saturating_mul(others)) > steps_max {
                return Ok(None);
            }
            steps += schedule.len();
            all.push(schedule);
        }
        Ok(Some(all))
    }
}

/// The most ranks of a sample.
const RANKS_MAX: usize = 1 << 20;

/// A periodic grid of two dimensions.
fn square(ranks: usize) -> Option<Cartesian> {
    let dims = dims_create(u32::try_from(ranks).ok()?, &[0, 0]).ok()?;
    Cartesian::new(&dims, &[true, true]).ok()
}

impl SampleCall<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        let Sample { operation, root, len, of, .. } = *self.sample;
        let (lens, in_place) = (&self.lens[..], false);
        let Neighborhood { sources, destinations } = &self.neighbors;
        match operation {
            Operation::Barrier => Call::Barrier,
            Operation::Bcast => Call::Bcast { root, len },
            Operation::Gather => Call::Gather { root, len, in_place },
            Operation::Gatherv => {
                Call::Gatherv { root, len: self.sample.block(self.rank), lens, in_place }
            }
            Operation::Scatter => Call::Scatter { root, len, in_place },
            Operation::Scatterv => {
                Call::Scatterv { root, len: self.sample.block(self.rank), lens, in_place }
            }
            Operation::Allgather => Call::Allgather { len, in_place },
            Operation::Allgatherv => Call::Allgatherv { lens, in_place },
            Operation::Alltoall => Call::Alltoall { len, in_place },
            Operation::Alltoallv => Call::Alltoallv { send: lens, recv: lens, in_place },
            Operation::Reduce => Call::Reduce { root, len, of, in_place },
            Operation::Allreduce => Call::Allreduce { len, of, in_place },
            Operation::ReduceScatter => Call::ReduceScatter { lens, of, in_place },
            Operation::ReduceScatterBlock => Call::ReduceScatterBlock { len, of, in_place },
            Operation::Scan => Call::Scan { len, of, in_place },
            Operation::Exscan => Call::Exscan { len, of, in_place },
            Operation::NeighborAllgather => {
                Call::NeighborAllgather { sources, destinations, len, recv: lens }
            }
            Operation::NeighborAlltoall => {
                Call::NeighborAlltoall { sources, destinations, send: lens, recv: lens }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose;
    use crate::cost::{Cost, predict};
    use crate::prove::{Definition, prove};

    /// What all ranks of a sample call is one collective.
    #[test]
    fn the_ranks_calls_fit_together() {
        for (operation, n) in
            Operation::ALL.into_iter().flat_map(|it| [1, 2, 7, 12].map(|n| (it, n)))
        {
            let sample = Sample::new(operation, n, n / 2, 24).expect("a sample");
            let locality = Locality::flat(n);
            let of: Vec<_> = (0..n).map(|rank| sample.of(rank)).collect();
            let calls: Vec<_> = of.iter().map(SampleCall::call).collect();
            assert_eq!(calls[0].operation(), operation);
            let algorithm = choose::fallback(operation);
            let schedules = sample.build_all(&locality, &algorithm, usize::MAX).expect("schedules");
            let schedules = schedules.expect("as many steps as there are");
            let mut definition = Definition::new(&calls, 8);
            assert_eq!(prove(&schedules, &mut definition), Ok(()), "{operation} of {n}");
            assert!(predict(&schedules, &locality, &Cost::TYPICAL).is_finite());
        }
    }

    #[test]
    fn impossible_samples_are_refused() {
        let new = |n, root, len| Sample::new(Operation::Allgatherv, n, root, len).map(|_| ());
        assert_eq!(new(0, 0, 8), Err(BuildError::NoSuchRank { rank: 0, ranks: 0 }));
        assert_eq!(new(4, 4, 8), Err(BuildError::NoSuchRank { rank: 4, ranks: 4 }));
        assert_eq!(new(4, 0, u64::MAX), Err(BuildError::TooLong));
        assert_eq!(new(4, 0, 1 << 47), Err(BuildError::TooLong));
        let ranks = RANKS_MAX + 1;
        assert_eq!(new(ranks, 0, 8), Err(BuildError::TooMany { ranks, most: RANKS_MAX }));
        assert_eq!(new(4, 0, 0), Ok(()));
    }

    #[test]
    fn elements_divide_the_length() {
        let unit = |operation, len| Sample::new(operation, 3, 0, len).expect("a sample").unit();
        assert_eq!(unit(Operation::Allreduce, 1 << 20), Some(8));
        assert_eq!(unit(Operation::ReduceScatter, 12), Some(4));
        assert_eq!(unit(Operation::Scan, 3), Some(1));
        assert_eq!(unit(Operation::Scan, 0), Some(8));
        assert_eq!(unit(Operation::Bcast, 8), None);
    }
}
