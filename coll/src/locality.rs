//! Which ranks are near each other.
use crate::algorithm::Algorithm;
use crate::error::BuildError;
use crate::level::Within;
use crate::tree::Tree;
use gapless_bml::Level;
use std::collections::BTreeMap;

/// Groups of ranks that are near each other, level by level: those of a host, within them perhaps those of a socket, of
/// a NUMA node, of a cache. Plain data that all ranks agree on.
///
/// ```
/// use gapless_coll::{Level, Locality};
/// let hosts = Locality::new(vec![vec![0, 1, 2, 3], vec![4, 5]])?;
/// let nodes = hosts.with(Level::Numa, vec![vec![0, 1], vec![2, 3], vec![4, 5]])?;
/// assert_eq!(nodes.apart(0, 1), None);
/// assert_eq!(nodes.apart(0, 2), Some(Level::Numa));
/// assert_eq!(nodes.apart(0, 4), Some(Level::Host));
/// # Ok::<(), gapless_coll::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// The hosts, then each finer level that is known. The groups of a level are parts of those of the level before.
    levels: Vec<(Level, Groups)>,
}

/// The groups of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    groups: Vec<Vec<usize>>,
    /// The group of each rank.
    group: Vec<usize>,
}

impl Groups {
    fn new(mut groups: Vec<Vec<usize>>) -> Result<Self, BuildError> {
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

    /// By their first rank; ranks ascend.
    pub(crate) fn all(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// The group of a rank.
    pub(crate) fn of(&self, rank: usize) -> usize {
        self.group[rank]
    }

    /// Whether each group is a part of a group of the other level.
    fn is_within(&self, coarser: &Self) -> bool {
        self.groups.iter().all(|group| {
            let host = group.first().map(|rank| coarser.group[*rank]);
            group.iter().all(|rank| Some(coarser.group[*rank]) == host)
        })
    }
}

/// The number of a host, and its groups on each level within it.
type Place = (u32, [Option<usize>; Level::INSIDE.len()]);

/// The ranks whose keys are equal, for each key.
fn together<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<Vec<usize>> {
    let mut groups = BTreeMap::<K, Vec<usize>>::new();
    for (rank, key) in keys.enumerate() {
        groups.entry(key).or_default().push(rank);
    }
    groups.into_values().collect()
}

impl Locality {
    /// All ranks are equally near.
    #[must_use]
    pub fn flat(ranks: usize) -> Self {
        let groups = Groups { groups: vec![(0..ranks).collect()], group: vec![0; ranks] };
        Self { levels: vec![(Level::Host, groups)] }
    }

    /// The ranks of each host. The order of hosts does not matter, nor that of their ranks.
    ///
    /// # Errors
    /// [`BuildError::Locality`] if they do not name every rank from 0 on exactly once.
    pub fn new(hosts: Vec<Vec<usize>>) -> Result<Self, BuildError> {
        Ok(Self { levels: vec![(Level::Host, Groups::new(hosts)?)] })
    }

    /// The same with groups of a finer level than those it has.
    ///
    /// # Errors
    /// [`BuildError::Locality`] if they do not name every rank exactly once. [`BuildError::Nesting`] if a group is not a
    /// part of one group of the level before, or the level is not finer than that.
    pub fn with(mut self, level: Level, groups: Vec<Vec<usize>>) -> Result<Self, BuildError> {
        let groups = Groups::new(groups)?;
        if groups.group.len() != self.ranks() {
            return Err(BuildError::Locality);
        }
        let nests =
            |(coarser, before): &(Level, Groups)| *coarser < level && groups.is_within(before);
        if !self.levels.last().is_some_and(nests) {
            return Err(BuildError::Nesting { level });
        }
        self.levels.push((level, groups));
        Ok(self)
    }

    /// Of ranks that are at these places: the number of the host, and that host's number of the group on each of
    /// [`Level::INSIDE`]. All are equally near if one is not known. A level is left out if a rank is in none of its groups,
    /// or its groups are not parts of those of the level before.
    #[must_use]
    pub fn of_places(places: impl ExactSizeIterator<Item = Option<Place>>) -> Self {
        let ranks = places.len();
        let Some(places) = places.collect::<Option<Vec<_>>>() else { return Self::flat(ranks) };
        let hosts = together(places.iter().map(|place| place.0));
        let mut locality = Self::new(hosts).unwrap_or_else(|_| Self::flat(ranks));
        for (at, level) in Level::INSIDE.into_iter().enumerate() {
            let groups = places.iter().map(|&(host, inside)| Some((host, inside[at]?)));
            let Some(groups) = groups.collect::<Option<Vec<_>>>() else { continue };
            if let Ok(finer) = locality.clone().with(level, together(groups.into_iter())) {
                locality = finer;
            }
        }
        locality
    }

    /// The ranks of each host, by their first rank; ranks ascend.
    #[must_use]
    pub fn hosts(&self) -> &[Vec<usize>] {
        self.groups(Level::Host).unwrap_or_default()
    }

    /// The groups of a level, by their first rank; none if it is not known.
    #[must_use]
    pub fn groups(&self, level: Level) -> Option<&[Vec<usize>]> {
        self.level(level).map(Groups::all)
    }

    fn level(&self, level: Level) -> Option<&Groups> {
        self.levels.iter().find(|(known, _)| *known == level).map(|(_, groups)| groups)
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.levels.first().map_or(0, |(_, hosts)| hosts.group.len())
    }

    /// The coarsest level that has two ranks in different groups; none if they are as near as is known. Ranks that do not
    /// exist are on hosts of their own.
    #[must_use]
    pub fn apart(&self, one: usize, other: usize) -> Option<Level> {
        let is_near = |groups: &Groups| {
            groups.group.get(one).is_some_and(|group| groups.group.get(other) == Some(group))
        };
        self.levels.iter().find(|(_, groups)| !is_near(groups)).map(|(level, _)| *level)
    }

    /// The levels that divide the ranks, the coarsest first: each into more groups than the one before, into more than one
    /// and less than one a rank.
    #[must_use]
    pub fn dividing(&self) -> Vec<Level> {
        let mut before = 1;
        let divides = |(level, groups): &(Level, Groups)| {
            let count = groups.groups.len();
            let divides = count > before && count < self.ranks();
            before = count.max(before);
            divides.then_some(*level)
        };
        self.levels.iter().filter_map(divides).collect()
    }

    /// Whether the levels that an algorithm uses are here, and each of them divides what the one before has left together.
    #[must_use]
    pub fn has_levels(&self, algorithm: &Algorithm) -> bool {
        let mut before = 1;
        algorithm.within.levels().all(|(level, _)| {
            let count = self.level(level).map_or(0, |groups| groups.groups.len());
            let divides = count > before && count < self.ranks();
            before = count;
            divides
        })
    }

    /// The first level that is used and not known.
    pub(crate) fn missing(&self, within: &Within) -> Option<Level> {
        within.levels().map(|(level, _)| level).find(|level| self.level(*level).is_none())
    }

    /// The groups of the levels that are used, and the tree within each group, the coarsest level first.
    pub(crate) fn used<'a>(
        &'a self,
        within: &'a Within,
    ) -> impl Iterator<Item = (&'a Groups, Tree)> {
        within.levels().filter_map(|(level, tree)| Some((self.level(level)?, tree)))
    }

    /// Whether the ranks of each group follow each other, on all levels that are used.
    #[must_use]
    pub fn is_consecutive(&self, within: &Within) -> bool {
        self.used(within).all(|(groups, _)| groups.group.is_sorted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_parts_of_the_levels_before() {
        let hosts = || Locality::new(vec![vec![0, 2, 4], vec![1, 3]]).expect("all ranks");
        let sockets = hosts().with(Level::Socket, vec![vec![0, 4], vec![2], vec![3, 1]]);
        let sockets = sockets.expect("parts of hosts");
        assert_eq!(sockets.hosts(), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(sockets.groups(Level::Socket), Some(&[vec![0, 4], vec![1, 3], vec![2]][..]));
        assert_eq!(sockets.groups(Level::L3), None);
        assert_eq!(sockets.apart(0, 4), None);
        assert_eq!(sockets.apart(0, 2), Some(Level::Socket));
        assert_eq!(sockets.apart(0, 3), Some(Level::Host));
        assert_eq!(sockets.apart(0, 5), Some(Level::Host));
        let crossing = hosts().with(Level::Numa, vec![vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(crossing, Err(BuildError::Nesting { level: Level::Numa }));
        let coarser = sockets.clone().with(Level::Socket, vec![(0..5).collect()]);
        assert_eq!(coarser, Err(BuildError::Nesting { level: Level::Socket }));
        assert_eq!(hosts().with(Level::L3, vec![vec![0]]), Err(BuildError::Locality));
    }

    #[test]
    fn levels_that_divide_nothing_are_not_used() {
        let each = |count: usize| (0..8).map(|rank| rank / count).fold(Vec::new(), group);
        fn group(mut all: Vec<Vec<usize>>, index: usize) -> Vec<Vec<usize>> {
            let rank = all.iter().map(Vec::len).sum();
            all.resize(all.len().max(index + 1), Vec::new());
            all[index].push(rank);
            all
        }
        let of = |hosts, sockets, nodes, caches| {
            let all =
                Locality::new(each(hosts)).and_then(|it| it.with(Level::Socket, each(sockets)));
            let all = all.and_then(|it| it.with(Level::Numa, each(nodes)));
            all.and_then(|it| it.with(Level::L3, each(caches))).expect("parts of parts")
        };
        assert_eq!(Locality::flat(8).dividing(), []);
        assert_eq!(of(4, 4, 2, 1).dividing(), [Level::Host, Level::Numa]);
        assert_eq!(of(8, 8, 4, 2).dividing(), [Level::Numa, Level::L3]);
        assert_eq!(of(1, 1, 1, 1).dividing(), []);
        let uses = |locality: &Locality, name: &str| {
            locality.has_levels(&name.parse().expect("an algorithm"))
        };
        assert!(uses(&of(4, 4, 2, 1), "ring over flat over numa flat"));
        assert!(!uses(&of(4, 4, 2, 1), "ring over flat over socket flat"), "sockets are hosts");
        assert!(!uses(&of(4, 4, 2, 1), "ring over l3 flat"), "a cache each");
        assert!(!uses(&of(8, 4, 2, 1), "ring over flat over socket flat"), "one host");
        assert!(uses(&of(8, 4, 2, 1), "ring over socket flat over flat"), "the next is numa");
        assert!(!uses(&Locality::flat(8), "ring over numa flat"), "nothing is known");
        assert!(uses(&Locality::flat(8), "ring"));
    }

    #[test]
    fn ranks_of_one_host_are_near_each_other() {
        let at = |host| Some((host, [None; 3]));
        let near = Locality::of_places([at(1), at(0), at(0), at(7)].into_iter());
        assert_eq!(near, Locality::new(vec![vec![0], vec![1, 2], vec![3]]).expect("all ranks"));
        assert_eq!(Locality::of_places([at(4); 3].into_iter()), Locality::flat(3));
        assert_eq!(Locality::of_places([at(0), None].into_iter()), Locality::flat(2), "unknown");
    }

    #[test]
    fn levels_are_known_where_every_rank_is_kept_on_one_group() {
        let places = [
            (0, [Some(0), Some(0), Some(0)]),
            (0, [Some(0), Some(1), Some(1)]),
            (0, [Some(0), Some(1), Some(2)]),
            (1, [Some(0), Some(0), Some(0)]),
            (1, [Some(0), None, None]),
        ];
        let levels = |ranks: &[usize]| {
            let locality = Locality::of_places(ranks.iter().map(|rank| Some(places[*rank])));
            Level::INSIDE.map(|level| locality.groups(level).map(<[_]>::to_vec))
        };
        let [sockets, nodes, caches] = levels(&[0, 1, 2, 3]);
        assert_eq!(sockets, Some(vec![vec![0, 1, 2], vec![3]]), "number 0 of another host");
        assert_eq!(nodes, Some(vec![vec![0], vec![1, 2], vec![3]]));
        assert_eq!(caches, Some(vec![vec![0], vec![1], vec![2], vec![3]]));
        let [sockets, nodes, caches] = levels(&[4, 0, 1]);
        assert_eq!(sockets, Some(vec![vec![0], vec![1, 2]]));
        assert_eq!((nodes, caches), (None, None), "one rank is kept on no node");
    }

    /// As where a socket has one cache and several NUMA nodes.
    #[test]
    fn levels_that_cross_are_left_out() {
        let at = |node| Some((0, [None, Some(node), Some(0)]));
        let locality = Locality::of_places([at(0), at(1)].into_iter());
        assert_eq!(locality.groups(Level::Numa), Some(&[vec![0], vec![1]][..]));
        assert_eq!(locality.groups(Level::L3), None);
    }
}
