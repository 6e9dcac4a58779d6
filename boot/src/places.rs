//! Where each process of a job is, as all of them agree: each puts its host on its record, and the socket, NUMA node
//! and cache whose processors it is kept on.

use crate::job_map::JobMap;
use crate::process_record;
use gapless_bml::Level;

/// The number of a process's host, and its group on each of [`Level::INSIDE`], if it is in one: numbers of that host.
pub type ProcessPlace = (u32, [Option<usize>; Level::INSIDE.len()]);

/// Where each process of the job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The host of each process, and its binding there.
    all: Vec<(u32, u32)>,
    /// The group of a binding on each of the levels within a host, if it is in one.
    bindings: Vec<[Option<usize>; Level::INSIDE.len()]>,
}

impl Places {
    /// As the job map has them. Processes that do not name a host are on hosts of their own.
    #[must_use]
    pub fn new(map: &JobMap) -> Places {
        let known: Vec<bool> =
            map.hosts().iter().map(|it| process_record::host(it).is_some()).collect();
        let hosts = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let place = |(process, (host, binding)): (u32, (u32, u32))| match known[host as usize] {
            true => (host, binding),
            false => (hosts.saturating_add(process), binding),
        };
        let bindings = map
            .bindings()
            .iter()
            .map(|it| Level::INSIDE.map(|level| process_record::group(it, level)));
        Places { all: (0..).zip(map.places()).map(place).collect(), bindings: bindings.collect() }
    }

    /// Whether the processes are on more hosts than one.
    #[must_use]
    pub fn are_several_hosts(&self) -> bool {
        self.all.iter().any(|(host, _)| *host != self.all[0].0)
    }

    /// Where a process is, if there is one of this number.
    #[must_use]
    pub fn of(&self, process: u32) -> Option<ProcessPlace> {
        let &(host, binding) = self.all.get(process as usize)?;
        Some((host, *self.bindings.get(binding as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_are_together_and_those_that_name_none_alone() {
        let records = ["host:b,socket:0,l3:4", "host:a", "host:b", "x:y", "host:a", "host:,l3:x"];
        let places = Places::new(&JobMap::new(records));
        let hosts: Vec<_> = places.all.iter().map(|place| place.0).collect();
        assert!(hosts[0] == hosts[2] && hosts[1] == hosts[4]);
        assert_eq!(hosts.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert!(places.are_several_hosts());
        assert_eq!(places.of(0), Some((hosts[0], [Some(0), None, Some(4)])));
        assert_eq!(places.of(5), Some((hosts[5], [None; 3])));
        assert_eq!(places.of(6), None);
        assert!(!Places::new(&JobMap::new(["host:a"; 3])).are_several_hosts());
    }
}
