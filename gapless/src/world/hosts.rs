//! Which processes share a host, as all of them agree: each puts its host's name on its card.

use gapless_coll::Locality;
use gapless_pml::Comm;
use std::collections::BTreeMap;

/// The host of each process of the job, as a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts(Vec<usize>);

impl Hosts {
    /// Of what the processes' cards say, in their order. Processes that do not say are on hosts of their own.
    pub(crate) fn new<'c>(names: impl IntoIterator<Item = Option<&'c str>>) -> Hosts {
        let mut known = BTreeMap::new();
        let host = |(process, name): (usize, Option<&'c str>)| match name {
            Some(name) => *known.entry(name).or_insert(process),
            None => process,
        };
        Hosts(names.into_iter().enumerate().map(host).collect())
    }

    /// Which members of a communicator share a host.
    pub(crate) fn locality(&self, comm: &Comm) -> Locality {
        let process = |rank| comm.process(rank).ok().and_then(|it| usize::try_from(it).ok());
        self.groups((0..comm.size()).map(process))
    }

    /// Of ranks with these numbers in the job; all are equally near if one is not known.
    fn groups(&self, processes: impl ExactSizeIterator<Item = Option<usize>>) -> Locality {
        let ranks = processes.len();
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for (rank, process) in processes.enumerate() {
            let Some(host) = process.and_then(|process| self.0.get(process)) else {
                return Locality::flat(ranks);
            };
            groups.entry(*host).or_default().push(rank);
        }
        Locality::new(groups.into_values().collect()).unwrap_or_else(|_| Locality::flat(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_are_near_each_other() {
        let hosts = Hosts::new([Some("b"), Some("a"), Some("b"), None, Some("a"), None]);
        assert_eq!(hosts, Hosts(vec![0, 1, 0, 3, 1, 5]));
        let near = hosts.groups([Some(4), Some(2), Some(0), Some(5)].into_iter());
        assert_eq!(near, Locality::new(vec![vec![0], vec![1, 2], vec![3]]).unwrap());
        let alone = Hosts::new([Some("a"); 3]).groups([Some(0), Some(1), Some(2)].into_iter());
        assert_eq!(alone, Locality::flat(3));
        assert_eq!(hosts.groups([Some(0), Some(9)].into_iter()), Locality::flat(2), "unknown");
    }
}
