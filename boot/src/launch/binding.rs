//! Which processors each process of a job is kept on: cores and groups of cores, of those that the launcher may use
//! itself. What a control group or an outer launcher has taken away is not in that set.

use super::{LaunchError, system};
use crate::processors::{self, Processors};
use gapless_bml::Level;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeMap;
use std::path::Path;

/// What a process is kept on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindTo {
    /// One core, with all of its hardware threads.
    Core,
    /// All cores of one group of this level; of the host: those that the launcher may use.
    Group(Level),
    /// Nothing: it may use what the launcher may.
    #[default]
    None,
}

/// In which order cores are given to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapBy {
    /// One after the other: neighbours in rank are neighbours on the machine.
    #[default]
    Core,
    /// One of each group of this level in turn: memory traffic is spread.
    Group(Level),
}

/// A core that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its socket, NUMA node and last-level cache, by the system's numbers; none where the system does not tell.
    pub groups: [Option<usize>; 3],
    /// Those of its hardware threads that may be used, by the system's numbers, the lowest first.
    pub processors: Vec<usize>,
}

/// The cores that this process may use: those of a socket, a NUMA node, a cache one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<Core>);

/// Which processors each rank of a job is kept on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The processors of each rank, and the groups that they are all in; empty if nothing is bound.
    pub places: Vec<Core>,
    /// Ranks share cores, as there are fewer cores than ranks. They take turns.
    pub shared: bool,
}

impl Core {
    /// The group of a level, by the system's number; none where the system does not tell, and for hosts.
    #[must_use]
    pub fn group(&self, level: Level) -> Option<usize> {
        let at = Level::INSIDE.iter().position(|it| *it == level)?;
        self.groups[at]
    }

    /// Whether two are in one group of a level. All are of one host, and so are those whose groups are not known.
    fn is_beside(&self, other: &Core, level: Level) -> bool {
        self.group(level) == other.group(level)
    }
}

impl Cores {
    /// The cores that the calling thread may use.
    ///
    /// # Errors
    /// The system does not say what may be used, as where there may be more than 1024 processors.
    pub fn allowed() -> Result<Cores, LaunchError> {
        let set = sched_getaffinity(None).map_err(|e| system("sched_getaffinity")(e.into()))?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&i| set.is_set(i)).collect();
        Ok(Cores::read(Path::new("/sys/devices/system"), &allowed))
    }

    /// Those of a system described in this folder. What it does not say: each processor is a core, all in one group.
    fn read(system: &Path, allowed: &[usize]) -> Cores {
        let all = Processors::of(system);
        let numbers = Level::INSIDE.map(|level| {
            let groups = all.groups(level, allowed).into_iter();
            let each = groups.flat_map(|it| it.processors.into_iter().map(move |p| (p, it.number)));
            each.collect::<BTreeMap<_, _>>()
        });
        // A core is known by the lowest of its threads, whether that may be used or not.
        let mut cores: BTreeMap<([Option<usize>; 3], usize), Vec<usize>> = BTreeMap::new();
        for &processor in allowed {
            let topology = system.join(format!("cpu/cpu{processor}/topology"));
            let names = ["core_cpus_list", "thread_siblings_list"];
            let threads = names.iter().find_map(|name| processors::list(&topology.join(name)));
            let first = threads.and_then(|threads| threads.into_iter().min()).unwrap_or(processor);
            let groups = numbers.each_ref().map(|numbers| numbers.get(&processor).copied());
            cores.entry((groups, first)).or_default().push(processor);
        }
        let core = |((groups, _), processors)| Core { groups, processors };
        Cores(cores.into_iter().map(core).collect())
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A place for each of so many ranks. If there are fewer cores, they are given out again from the first on.
    #[must_use]
    pub fn place(&self, ranks: u32, to: BindTo, by: MapBy) -> Binding {
        if to == BindTo::None || self.0.is_empty() {
            return Binding { places: Vec::new(), shared: false };
        }
        let mut order: Vec<&Core> = self.0.iter().collect();
        if let MapBy::Group(level) = by {
            // The first of each group, then the second of each, and so on. The sort keeps the order of groups.
            let nth = |core: &Core| {
                let before = self.0.iter().filter(|other| other.is_beside(core, level));
                before.take_while(|other| *other != core).count()
            };
            order.sort_by_cached_key(|core| nth(core));
        }
        let whole = |core: &Core| match to {
            BindTo::Group(level) => self.whole(core, level),
            BindTo::Core | BindTo::None => core.clone(),
        };
        let places = order.iter().cycle().take(ranks as usize).map(|core| whole(core)).collect();
        Binding { places, shared: ranks as usize > self.0.len() }
    }

    /// All cores of a core's group as one.
    fn whole(&self, core: &Core, level: Level) -> Core {
        let all = || self.0.iter().filter(|other| other.is_beside(core, level));
        let mut processors: Vec<usize> =
            all().flat_map(|core| core.processors.iter().copied()).collect();
        processors.sort_unstable();
        let groups = Level::INSIDE
            .map(|level| core.group(level).filter(|_| all().all(|it| it.is_beside(core, level))));
        Core { groups, processors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processors::tests::pretended;

    /// One socket of two nodes; node 0 has two cores of two threads each with a cache each, node 1 has one core.
    fn machine() -> tempfile::TempDir {
        let folder = pretended(&[
            (0, [0, 0, 0], "0,3"),
            (1, [0, 0, 1], "1,4"),
            (2, [0, 1, 2], "2"),
            (3, [0, 0, 0], "0,3"),
            (4, [0, 0, 1], "1,4"),
        ]);
        let old = folder.path().join("cpu/cpu2/topology");
        std::fs::rename(old.join("core_cpus_list"), old.join("thread_siblings_list")).unwrap();
        std::fs::rename(old.join("package_cpus_list"), old.join("core_siblings_list")).unwrap();
        folder
    }

    const NUMA: BindTo = BindTo::Group(Level::Numa);
    const BY_NODE: MapBy = MapBy::Group(Level::Numa);

    fn processors(binding: &Binding) -> Vec<Vec<usize>> {
        binding.places.iter().map(|place| place.processors.clone()).collect()
    }

    #[test]
    fn cores_are_given_out_in_order_and_again() {
        let folder = machine();
        let cores = Cores::read(folder.path(), &[0, 1, 2, 3, 4]);
        assert_eq!(cores.count(), 3);
        let three = cores.place(3, BindTo::Core, MapBy::Core);
        assert_eq!(processors(&three), [vec![0, 3], vec![1, 4], vec![2]]);
        assert!(!three.shared);
        let five = cores.place(5, BindTo::Core, MapBy::Core);
        assert_eq!(processors(&five)[3..], [vec![0, 3], vec![1, 4]]);
        assert!(five.shared);
        assert!(cores.place(5, BindTo::None, MapBy::Core).places.is_empty());
    }

    #[test]
    fn groups_take_turns() {
        let folder = machine();
        let cores = Cores::read(folder.path(), &[0, 1, 2, 3, 4]);
        let by_node = cores.place(3, BindTo::Core, BY_NODE);
        assert_eq!(processors(&by_node), [vec![0, 3], vec![2], vec![1, 4]]);
        let whole = cores.place(3, NUMA, BY_NODE);
        assert_eq!(processors(&whole), [vec![0, 1, 3, 4], vec![2], vec![0, 1, 3, 4]]);
        assert_eq!(whole.places[1].groups, [Some(0), Some(1), Some(2)]);
        let packed = cores.place(2, NUMA, MapBy::Core);
        assert_eq!(processors(&packed), [vec![0, 1, 3, 4], vec![0, 1, 3, 4]]);
        // Whoever is kept on a node of several caches is in none of them.
        assert_eq!(packed.places[0].groups, [Some(0), Some(0), None]);
        let caches = cores.place(3, BindTo::Group(Level::L3), MapBy::Group(Level::L3));
        assert_eq!(processors(&caches), [vec![0, 3], vec![1, 4], vec![2]]);
        let socket = cores.place(2, BindTo::Group(Level::Socket), MapBy::Group(Level::Socket));
        assert_eq!(processors(&socket), [vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]]);
        assert_eq!(socket.places[0].groups, [Some(0), None, None]);
    }

    #[test]
    fn what_may_not_be_used_is_left_out() {
        let folder = machine();
        let cores = Cores::read(folder.path(), &[2, 3]);
        let all = cores.place(2, BindTo::Core, MapBy::Core);
        assert_eq!(processors(&all), [vec![3], vec![2]]);
        let nothing_known = Cores::read(Path::new("/nonexistent"), &[5, 6]);
        let all = nothing_known.place(2, NUMA, MapBy::Core);
        assert_eq!(processors(&all), [vec![5, 6], vec![5, 6]]);
        assert!(Cores(Vec::new()).place(2, BindTo::Core, MapBy::Core).places.is_empty());
    }

    #[test]
    fn this_process_may_use_some() {
        assert!(Cores::allowed().unwrap().count() >= 1);
    }
}
