//! Which processors each process of a job is kept on: cores and NUMA nodes, of those that the launcher may use itself.
//! What a control group or an outer launcher has taken away is not in that set.

use super::{LaunchError, system};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeMap;
use std::path::Path;

/// What a process is kept on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindTo {
    /// One core, with all of its hardware threads.
    Core,
    /// All cores of one NUMA node.
    Numa,
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
    /// One of each NUMA node in turn: memory traffic is spread.
    Numa,
}

/// A core that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its NUMA node, by the system's number.
    pub node: usize,
    /// Those of its hardware threads that may be used, by the system's numbers, the lowest first.
    pub processors: Vec<usize>,
}

/// The cores that this process may use, node by node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<Core>);

/// Where each rank goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The NUMA node and the processors of each rank; empty if nothing is bound.
    pub places: Vec<Core>,
    /// Ranks share cores, as there are fewer cores than ranks. They take turns.
    pub shared: bool,
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

    /// Those of a system described in this folder. What it does not say: each processor is a core, all on node 0.
    fn read(system: &Path, allowed: &[usize]) -> Cores {
        let list = |path: &Path| std::fs::read_to_string(path).map(|text| parse_list(&text));
        let mut node_of = BTreeMap::new();
        for entry in std::fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            if let Some(node) = number {
                let processors = list(&entry.path().join("cpulist")).unwrap_or_default();
                node_of.extend(processors.into_iter().map(|processor| (processor, node)));
            }
        }
        // A core is known by the lowest of its threads, whether that may be used or not.
        let mut cores: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for &processor in allowed {
            let topology = system.join(format!("cpu/cpu{processor}/topology"));
            let names = ["core_cpus_list", "thread_siblings_list"];
            let threads = names.iter().find_map(|name| list(&topology.join(name)).ok());
            let first = threads.and_then(|threads| threads.into_iter().min()).unwrap_or(processor);
            let node: usize = node_of.get(&processor).copied().unwrap_or(0);
            cores.entry((node, first)).or_default().push(processor);
        }
        let core = |((node, _), processors)| Core { node, processors };
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
        if by == MapBy::Numa {
            // The first of each node, then the second of each, and so on. The sort keeps the order of nodes.
            let nth = |core: &Core| {
                let before = self.0.iter().filter(|other| other.node == core.node);
                before.take_while(|other| *other != core).count()
            };
            order.sort_by_cached_key(|core| nth(core));
        }
        let whole = |core: &Core| match to {
            BindTo::Numa => {
                let of_node = self.0.iter().filter(|other| other.node == core.node);
                let mut processors: Vec<usize> =
                    of_node.flat_map(|core| core.processors.iter().copied()).collect();
                processors.sort_unstable();
                Core { node: core.node, processors }
            }
            BindTo::Core | BindTo::None => core.clone(),
        };
        let places = order.iter().cycle().take(ranks as usize).map(|core| whole(core)).collect();
        Binding { places, shared: ranks as usize > self.0.len() }
    }
}

/// Numbers as the kernel lists them: `0-3,8`. What is no number is left out, and so are numbers that no set can hold.
fn parse_list(text: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let pieces = text.trim().split(',').filter_map(|piece| match piece.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?.min(CpuSet::MAX_CPU)),
        None => number(piece).map(|one| one..=one),
    });
    pieces.flatten().filter(|&processor| processor < CpuSet::MAX_CPU).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes; node 0 has two cores of two threads each, node 1 has one core.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("node/node0/cpulist", "0-1,3-4\n");
        write("node/node1/cpulist", "2\n");
        write("node/online", "0-1\n");
        for (processor, threads) in [(0, "0,3"), (1, "1,4"), (3, "0,3"), (4, "1,4")] {
            write(&format!("cpu/cpu{processor}/topology/core_cpus_list"), threads);
        }
        write("cpu/cpu2/topology/thread_siblings_list", "2");
        folder
    }

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
    fn nodes_take_turns() {
        let folder = machine();
        let cores = Cores::read(folder.path(), &[0, 1, 2, 3, 4]);
        let by_node = cores.place(3, BindTo::Core, MapBy::Numa);
        assert_eq!(processors(&by_node), [vec![0, 3], vec![2], vec![1, 4]]);
        let whole = cores.place(3, BindTo::Numa, MapBy::Numa);
        assert_eq!(processors(&whole), [vec![0, 1, 3, 4], vec![2], vec![0, 1, 3, 4]]);
        assert_eq!(whole.places[1].node, 1);
        let packed = cores.place(2, BindTo::Numa, MapBy::Core);
        assert_eq!(processors(&packed), [vec![0, 1, 3, 4], vec![0, 1, 3, 4]]);
    }

    #[test]
    fn what_may_not_be_used_is_left_out() {
        let folder = machine();
        let cores = Cores::read(folder.path(), &[2, 3]);
        let all = cores.place(2, BindTo::Core, MapBy::Core);
        assert_eq!(processors(&all), [vec![3], vec![2]]);
        let nothing_known = Cores::read(Path::new("/nonexistent"), &[5, 6]);
        let all = nothing_known.place(2, BindTo::Numa, MapBy::Core);
        assert_eq!(processors(&all), [vec![5, 6], vec![5, 6]]);
        assert!(Cores(Vec::new()).place(2, BindTo::Core, MapBy::Core).places.is_empty());
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,5, 7\n"), [0, 1, 2, 5, 7]);
        assert_eq!(parse_list("x,3-,4-99999999999999999999,6"), [6]);
        assert_eq!(parse_list("1022-4000000000").len(), 2);
        assert_eq!(parse_list(""), [0usize; 0]);
    }

    #[test]
    fn this_process_may_use_some() {
        assert!(Cores::allowed().unwrap().count() >= 1);
    }
}
