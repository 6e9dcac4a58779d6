//! Which processes are near each other, as all of them agree: each puts its host on its card, and the socket, NUMA node
//! and cache whose processors it is kept on.

use gapless_boot::card;
use gapless_boot::roll::Roll;
use gapless_coll::{Level, Locality};
use gapless_pml::Comm;
use std::collections::BTreeMap;

/// Where each process of the job is, by numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The host of each process, and its seat there.
    all: Vec<(u32, u32)>,
    /// The group of a seat on each of the levels within a host, if it is in one.
    seats: Vec<[Option<usize>; Level::INSIDE.len()]>,
}

impl Places {
    /// As the roll has them. Processes that do not name a host are on hosts of their own.
    pub(crate) fn new(roll: &Roll) -> Places {
        let known: Vec<bool> = roll.hosts().iter().map(|it| card::host(it).is_some()).collect();
        let hosts = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let place = |(process, (host, seat)): (u32, (u32, u32))| match known[host as usize] {
            true => (host, seat),
            false => (hosts.saturating_add(process), seat),
        };
        let seats = roll.seats().iter().map(|it| Level::INSIDE.map(|level| card::group(it, level)));
        Places { all: (0..).zip(roll.places()).map(place).collect(), seats: seats.collect() }
    }

    /// Whether the processes are on more hosts than one.
    pub(crate) fn are_several_hosts(&self) -> bool {
        self.all.iter().any(|(host, _)| *host != self.all[0].0)
    }

    /// Which members of a communicator are near each other.
    pub(crate) fn locality(&self, comm: &Comm) -> Locality {
        let process = |rank| comm.process(rank).ok().and_then(|it| usize::try_from(it).ok());
        self.groups((0..comm.size()).map(process))
    }

    /// Of ranks with these numbers in the job; all are equally near if one is not known. A level is left out if a rank is
    /// in none of its groups, or its groups are not parts of those of the level before.
    fn groups(&self, processes: impl ExactSizeIterator<Item = Option<usize>>) -> Locality {
        let ranks = processes.len();
        let places = processes.map(|process| self.all.get(process?).copied());
        let Some(places) = places.collect::<Option<Vec<_>>>() else {
            return Locality::flat(ranks);
        };
        let hosts = together(places.iter().map(|place| place.0));
        let mut locality = Locality::new(hosts).unwrap_or_else(|_| Locality::flat(ranks));
        for (at, level) in Level::INSIDE.into_iter().enumerate() {
            let seat = |seat: u32| self.seats.get(seat as usize);
            let groups = places.iter().map(|&(host, it)| Some((host, seat(it)?[at]?)));
            let Some(groups) = groups.collect::<Option<Vec<_>>>() else { continue };
            locality = match locality.clone().with(level, together(groups.into_iter())) {
                Ok(finer) => finer,
                Err(_) => locality,
            };
        }
        locality
    }
}

/// The ranks whose keys are equal, for each key.
fn together<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<Vec<usize>> {
    let mut groups = BTreeMap::<K, Vec<usize>>::new();
    for (rank, key) in keys.enumerate() {
        groups.entry(key).or_default().push(rank);
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(processes: &[usize]) -> impl ExactSizeIterator<Item = Option<usize>> {
        processes.iter().copied().map(Some)
    }

    fn placed<const N: usize>(cards: [&str; N]) -> Places {
        Places::new(&Roll::new(cards))
    }

    #[test]
    fn ranks_of_one_host_are_near_each_other() {
        let places = placed(["host:b", "host:a", "host:b", "x:y", "host:a", "host:"]);
        let hosts: Vec<_> = places.all.iter().map(|place| place.0).collect();
        assert!(hosts[0] == hosts[2] && hosts[1] == hosts[4]);
        assert_eq!(hosts.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        let near = places.groups(known(&[4, 2, 0, 5]));
        assert_eq!(near, Locality::new(vec![vec![0], vec![1, 2], vec![3]]).unwrap());
        let alone = placed(["host:a"; 3]).groups(known(&[0, 1, 2]));
        assert_eq!(alone, Locality::flat(3));
        assert_eq!(places.groups(known(&[0, 9])), Locality::flat(2), "unknown");
    }

    #[test]
    fn levels_are_known_where_every_rank_is_kept_on_one_group() {
        let places = placed([
            "host:a,socket:0,numa:0,l3:0",
            "host:a,socket:0,numa:1,l3:1",
            "host:a,socket:0,numa:1,l3:2",
            "host:b,socket:0,numa:0,l3:0",
            "host:b,socket:0,numa:,l3:x",
        ]);
        let levels = |processes: &[usize]| {
            let locality = places.groups(known(processes));
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
        let places = placed(["host:a,numa:0,l3:0", "host:a,numa:1,l3:0"]);
        let locality = places.groups(known(&[0, 1]));
        assert_eq!(locality.groups(Level::Numa), Some(&[vec![0], vec![1]][..]));
        assert_eq!(locality.groups(Level::L3), None);
    }
}
