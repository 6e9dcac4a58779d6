//! Groups: ordered sets of processes, and their algebra (MPI 4.1 §7.3). Nothing here communicates.

use crate::error::PmlError;
use crate::hash::FastMap;
use std::sync::Arc;

/// Processes of the job in the order of their ranks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Group {
    members: Members,
}

#[derive(Clone, Debug)]
enum Members {
    /// Every process, with the rank it has in the job.
    All(u32),
    /// These.
    Listed(Arc<List>),
}

/// Processes, each once.
#[derive(Debug)]
struct List {
    processes: Vec<u32>,
    ranks: FastMap<u32, u32>,
}

/// How two groups or communicators are alike (MPI 4.1 §7.3.1, §7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// One and the same (`MPI_IDENT`). Groups: the same processes in the same order.
    Identical,
    /// Communicators of the same processes in the same order (`MPI_CONGRUENT`).
    Congruent,
    /// The same processes in another order (`MPI_SIMILAR`).
    Similar,
    /// Other processes (`MPI_UNEQUAL`).
    Unequal,
}

impl Group {
    /// Everybody.
    pub(crate) fn all(size: u32) -> Group {
        Group { members: Members::All(size) }
    }

    /// These processes, in this order, each once: whatever comes a second time is left out.
    pub(crate) fn listed(list: impl IntoIterator<Item = u32>) -> Group {
        let (mut processes, mut ranks) = (Vec::new(), FastMap::default());
        for process in list {
            let rank = u32::try_from(processes.len()).expect("fewer than 2^32 processes");
            ranks.entry(process).or_insert_with(|| {
                processes.push(process);
                rank
            });
        }
        Group { members: Members::Listed(Arc::new(List { processes, ranks })) }
    }

    /// Nobody (`MPI_GROUP_EMPTY`).
    #[must_use]
    pub fn empty() -> Group {
        Group::listed([])
    }

    /// How many processes there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        match &self.members {
            Members::All(size) => *size,
            Members::Listed(list) => u32::try_from(list.processes.len()).unwrap_or(u32::MAX),
        }
    }

    /// The number in the job of the process with `rank`.
    #[must_use]
    #[inline]
    pub fn process(&self, rank: u32) -> Option<u32> {
        match &self.members {
            Members::All(size) => (rank < *size).then_some(rank),
            Members::Listed(list) => list.processes.get(rank as usize).copied(),
        }
    }

    /// The rank of a process of the job, if it is a member.
    #[must_use]
    #[inline]
    pub fn rank_of(&self, process: u32) -> Option<u32> {
        match &self.members {
            Members::All(size) => (process < *size).then_some(process),
            Members::Listed(list) => list.ranks.get(&process).copied(),
        }
    }

    /// The processes' numbers in the job, by rank.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        (0..self.size()).filter_map(|rank| self.process(rank))
    }

    /// All of this group, then those of `other` that are not in it (`MPI_Group_union`).
    #[must_use]
    pub fn union(&self, other: &Group) -> Group {
        Group::listed(self.processes().chain(other.processes()))
    }

    /// Those of this group that are in `other`, too (`MPI_Group_intersection`).
    #[must_use]
    pub fn intersection(&self, other: &Group) -> Group {
        Group::listed(self.processes().filter(|&process| other.rank_of(process).is_some()))
    }

    /// Those of this group that are not in `other` (`MPI_Group_difference`).
    #[must_use]
    pub fn difference(&self, other: &Group) -> Group {
        Group::listed(self.processes().filter(|&process| other.rank_of(process).is_none()))
    }

    /// Those with `ranks`, in their order (`MPI_Group_incl`).
    ///
    /// # Errors
    /// A rank that is not there, or is given twice.
    pub fn incl(&self, ranks: &[u32]) -> Result<Group, PmlError> {
        let mut list = Vec::with_capacity(ranks.len());
        let mut seen = FastMap::default();
        for &rank in ranks {
            list.push(self.member(rank)?);
            if seen.insert(rank, ()).is_some() {
                return Err(PmlError::RankTwice { rank });
            }
        }
        Ok(Group::listed(list))
    }

    /// All but those with `ranks`, in this group's order (`MPI_Group_excl`).
    ///
    /// # Errors
    /// A rank that is not there, or is given twice.
    pub fn excl(&self, ranks: &[u32]) -> Result<Group, PmlError> {
        Ok(self.difference(&self.incl(ranks)?))
    }

    /// Those whose ranks are `first`, `first + stride`, … up to `last`, for each triple `(first, last,
    /// stride)` (`MPI_Group_range_incl`).
    ///
    /// # Errors
    /// A rank that is not there, or is given twice; a stride of 0.
    pub fn range_incl(&self, ranges: &[(u32, u32, i32)]) -> Result<Group, PmlError> {
        self.incl(&self.ranks_in(ranges)?)
    }

    /// All but those that [`range_incl`](Group::range_incl) would give (`MPI_Group_range_excl`).
    ///
    /// # Errors
    /// As [`range_incl`](Group::range_incl).
    pub fn range_excl(&self, ranges: &[(u32, u32, i32)]) -> Result<Group, PmlError> {
        self.excl(&self.ranks_in(ranges)?)
    }

    /// The ranks that these processes have in `other`; `None` for those that it does not have
    /// (`MPI_Group_translate_ranks`).
    ///
    /// # Errors
    /// A rank that is not there.
    pub fn translate(&self, ranks: &[u32], other: &Group) -> Result<Vec<Option<u32>>, PmlError> {
        ranks.iter().map(|&rank| Ok(other.rank_of(self.member(rank)?))).collect()
    }

    /// How alike the two are (`MPI_Group_compare`); never [`Comparison::Congruent`].
    #[must_use]
    pub fn compare(&self, other: &Group) -> Comparison {
        if self.size() != other.size() {
            Comparison::Unequal
        } else if self.processes().eq(other.processes()) {
            Comparison::Identical
        } else if self.processes().all(|process| other.rank_of(process).is_some()) {
            Comparison::Similar
        } else {
            Comparison::Unequal
        }
    }

    fn member(&self, rank: u32) -> Result<u32, PmlError> {
        let (what, size) = ("a member of the new group", self.size());
        self.process(rank).ok_or(PmlError::InvalidRank { what, rank, size })
    }

    /// The ranks of all triples. One that is not there ends it, so it is never long.
    fn ranks_in(&self, ranges: &[(u32, u32, i32)]) -> Result<Vec<u32>, PmlError> {
        let mut ranks = Vec::new();
        for &(first, last, stride) in ranges {
            if stride == 0 {
                return Err(PmlError::StrideZero);
            }
            let step = i64::from(stride);
            let (mut at, end) = (i64::from(first), i64::from(last));
            while if step > 0 { at <= end } else { at >= end } {
                let rank = u32::try_from(at).expect("between two ranks");
                self.member(rank)?;
                ranks.push(rank);
                at += step;
            }
        }
        Ok(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(group: &Group) -> Vec<u32> {
        group.processes().collect()
    }

    #[test]
    fn sets_keep_the_order_that_mpi_says() {
        let (a, b) = (Group::listed([5, 1, 3]), Group::listed([3, 7, 5]));
        assert_eq!(list(&a.union(&b)), [5, 1, 3, 7]);
        assert_eq!(list(&a.intersection(&b)), [5, 3]);
        assert_eq!(list(&b.intersection(&a)), [3, 5]);
        assert_eq!(list(&a.difference(&b)), [1]);
        assert_eq!(list(&a.difference(&a)), list(&Group::empty()));
        assert_eq!(list(&Group::all(4).difference(&a)), [0, 2]);
    }

    #[test]
    fn ranks_choose_members() {
        let all = Group::all(10);
        assert_eq!(list(&all.incl(&[7, 2]).unwrap()), [7, 2]);
        assert_eq!(list(&Group::all(4).excl(&[2, 0]).unwrap()), [1, 3]);
        let ranges = [(1, 8, 3), (9, 0, -4)];
        let doubled = all.range_incl(&ranges);
        assert_eq!(doubled.unwrap_err(), PmlError::RankTwice { rank: 1 });
        let ranges = [(1, 8, 3), (9, 3, -3), (5, 4, 1)];
        assert_eq!(list(&all.range_incl(&ranges).unwrap()), [1, 4, 7, 9, 6, 3]);
        assert_eq!(list(&all.range_excl(&ranges).unwrap()), [0, 2, 5, 8]);
        let what = "a member of the new group";
        let missing = PmlError::InvalidRank { what, rank: 10, size: 10 };
        assert_eq!(all.incl(&[10]).unwrap_err(), missing);
        assert_eq!(all.range_incl(&[(0, 1, 0)]).unwrap_err(), PmlError::StrideZero);
        let endless = all.range_incl(&[(0, u32::MAX, i32::MAX)]);
        assert!(matches!(endless, Err(PmlError::InvalidRank { .. })));
    }

    #[test]
    fn ranks_translate_and_groups_compare() {
        let (a, b) = (Group::listed([5, 1, 3]), Group::listed([3, 7, 5]));
        assert_eq!(a.translate(&[0, 1, 2], &b), Ok(vec![Some(2), None, Some(0)]));
        assert!(a.translate(&[3], &b).is_err());
        assert_eq!(a.compare(&Group::listed([5, 1, 3])), Comparison::Identical);
        assert_eq!(a.compare(&Group::listed([1, 3, 5])), Comparison::Similar);
        assert_eq!(a.compare(&b), Comparison::Unequal);
        assert_eq!(a.compare(&Group::empty()), Comparison::Unequal);
        assert_eq!(Group::all(2).compare(&Group::listed([0, 1])), Comparison::Identical);
    }
}
