//! Which ranks are near each other.
use crate::BuildError;

/// Groups of ranks that are near each other: those of a host, or of a NUMA node. Plain data that all ranks agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    groups: Vec<Vec<usize>>,
    /// The group of each rank.
    group: Vec<usize>,
}

impl Locality {
    /// All ranks are equally near.
    #[must_use]
    pub fn flat(ranks: usize) -> Self {
        Self { groups: vec![(0..ranks).collect()], group: vec![0; ranks] }
    }

    /// These groups. Their order does not matter, nor that of their ranks.
    ///
    /// # Errors
    /// [`BuildError::Locality`] if they do not name every rank from 0 on exactly once.
    pub fn new(mut groups: Vec<Vec<usize>>) -> Result<Self, BuildError> {
        groups.retain(|group| !group.is_empty());
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        let mut group = vec![usize::MAX; groups.iter().map(Vec::len).sum()];
        for (index, ranks) in groups.iter().enumerate() {
            for rank in ranks {
                match group.get_mut(*rank) {
                    Some(none) if *none == usize::MAX => *none = index,
                    _ => return Err(BuildError::Locality),
                }
            }
        }
        Ok(Self { groups, group })
    }

    /// The groups, by their first rank; ranks ascend.
    #[must_use]
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.group.len()
    }

    /// Whether two ranks are in one group. Ranks that do not exist are near nobody.
    #[must_use]
    pub fn is_near(&self, one: usize, other: usize) -> bool {
        self.group.get(one).is_some_and(|group| self.group.get(other) == Some(group))
    }

    /// The group of a rank.
    pub(crate) fn group_of(&self, rank: usize) -> usize {
        self.group[rank]
    }

    /// Whether there are several groups, and one of several ranks.
    #[must_use]
    pub fn has_levels(&self) -> bool {
        self.groups.len() > 1 && self.groups.len() < self.group.len()
    }

    /// Whether the ranks of each group follow each other.
    #[must_use]
    pub fn is_consecutive(&self) -> bool {
        self.group.is_sorted()
    }
}
