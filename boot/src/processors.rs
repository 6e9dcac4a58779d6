//! How the processors of this host are grouped: sockets, NUMA nodes and last-level caches, as the system tells in
//! `/sys`. A process that is kept on processors of one group is in that group.
//!
//! Each question reads a few files. What the system does not tell is not known; that is no error.
//!
//! ```
//! use gapless_bml::Level;
//! use gapless_boot::processors::Processors;
//! for cache in Processors::here().groups(Level::L3, &Processors::allowed()) {
//!     println!("cache {} of processors {:?}", cache.number, cache.processors);
//! }
//! ```

use gapless_bml::Level;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::{Path, PathBuf};

/// What the system tells of its processors.
#[derive(Clone, Debug)]
pub struct Processors {
    /// The folder that describes them.
    system: PathBuf,
}

/// The processors of a socket, a NUMA node or a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The system's number of it, or that of its lowest processor. No other group of the level has it.
    pub number: usize,
    /// By the system's numbers, the lowest first.
    pub processors: Vec<usize>,
}

impl Processors {
    /// Those of this host.
    #[must_use]
    pub fn here() -> Processors {
        Processors::of(Path::new("/sys/devices/system"))
    }

    /// Those that a folder like `/sys/devices/system` describes.
    #[must_use]
    pub fn of(system: &Path) -> Processors {
        Processors { system: system.to_owned() }
    }

    /// Those that the calling thread may use, the lowest first; none if the system does not tell.
    #[must_use]
    pub fn allowed() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    /// The socket, NUMA node or cache of a processor; none if the system does not tell. The level of hosts is not asked for.
    #[must_use]
    pub fn group(&self, level: Level, processor: usize) -> Option<Group> {
        let folder = self.system.join(format!("cpu/cpu{processor}"));
        let group = match level {
            Level::Host => None,
            Level::Socket => {
                let topology = folder.join("topology");
                let names = ["package_cpus_list", "core_siblings_list"];
                let processors = names.iter().find_map(|name| list(&topology.join(name)));
                numbered(&topology.join("physical_package_id"), processors?)
            }
            Level::Numa => {
                self.nodes().into_iter().find(|node| node.processors.contains(&processor))
            }
            Level::L3 => {
                let caches = entries(&folder.join("cache"));
                let last = caches.iter().find(|cache| number(&cache.join("level")) == Some(3))?;
                numbered(&last.join("id"), list(&last.join("shared_cpu_list"))?)
            }
        };
        group.filter(|group| group.processors.contains(&processor))
    }

    fn nodes(&self) -> Vec<Group> {
        let node = |folder: PathBuf| {
            let number = folder.file_name()?.to_str()?.strip_prefix("node")?.parse().ok()?;
            Some(Group { number, processors: list(&folder.join("cpulist"))? })
        };
        entries(&self.system.join("node")).into_iter().filter_map(node).collect()
    }

    /// The groups of some processors on a level, by their first of them. Processors of which the system tells none are in
    /// no group.
    #[must_use]
    pub fn groups(&self, level: Level, processors: &[usize]) -> Vec<Group> {
        let nodes = if level == Level::Numa { self.nodes() } else { Vec::new() };
        let mut all: Vec<Group> = Vec::new();
        for processor in processors {
            let has = |group: &Group| group.processors.contains(processor);
            if all.iter().any(has) {
                continue;
            }
            match level {
                Level::Numa => all.extend(nodes.iter().find(|node| has(node)).cloned()),
                _ => all.extend(self.group(level, *processor)),
            }
        }
        all
    }

    /// The group that all of these processors are in, if there is one and the system tells.
    #[must_use]
    pub fn common(&self, level: Level, processors: &[usize]) -> Option<Group> {
        let group = self.group(level, *processors.first()?)?;
        processors.iter().all(|it| group.processors.contains(it)).then_some(group)
    }
}

/// A group with the number in this file, or that of its lowest processor.
fn numbered(path: &Path, processors: Vec<usize>) -> Option<Group> {
    let number = number(path).or_else(|| processors.iter().min().copied())?;
    Some(Group { number, processors })
}

fn number(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(crate) fn list(path: &Path) -> Option<Vec<usize>> {
    std::fs::read_to_string(path).ok().map(|text| parse_list(&text))
}

/// What a folder has, by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
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
pub(crate) mod tests {
    use super::*;

    /// A folder like `/sys/devices/system`: each processor with its socket, NUMA node and cache, by numbers, and the
    /// threads of its core.
    pub(crate) fn pretended(processors: &[(usize, [usize; 3], &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let same = |at: usize, number: usize| {
            let same = processors.iter().filter(|(_, groups, _)| groups[at] == number);
            let same: Vec<_> = same.map(|(processor, ..)| processor.to_string()).collect();
            same.join(",") + "\n"
        };
        write("node/online", "0-9\n");
        for (processor, [socket, node, cache], threads) in processors {
            let cpu = format!("cpu/cpu{processor}");
            write(&format!("{cpu}/topology/core_cpus_list"), threads);
            write(&format!("{cpu}/topology/physical_package_id"), &format!("{socket}\n"));
            write(&format!("{cpu}/topology/package_cpus_list"), &same(0, *socket));
            write(&format!("node/node{node}/cpulist"), &same(1, *node));
            write(&format!("{cpu}/cache/index2/level"), "2\n");
            write(&format!("{cpu}/cache/index2/shared_cpu_list"), threads);
            write(&format!("{cpu}/cache/index3/level"), "3\n");
            write(&format!("{cpu}/cache/index3/id"), &format!("{cache}\n"));
            write(&format!("{cpu}/cache/index3/shared_cpu_list"), &same(2, *cache));
        }
        folder
    }

    fn group(number: usize, processors: &[usize]) -> Option<Group> {
        Some(Group { number, processors: processors.to_vec() })
    }

    #[test]
    fn who_is_kept_on_one_group_is_in_it() {
        let folder = pretended(&[
            (0, [0, 0, 7], "0"),
            (1, [0, 0, 7], "1"),
            (2, [0, 1, 8], "2"),
            (3, [5, 2, 9], "3"),
        ]);
        let all = Processors::of(folder.path());
        assert_eq!(all.common(Level::Socket, &[0, 2]), group(0, &[0, 1, 2]));
        assert_eq!(all.common(Level::Numa, &[0, 2]), None);
        assert_eq!(all.common(Level::Numa, &[1]), group(0, &[0, 1]));
        assert_eq!(all.common(Level::L3, &[2]), group(8, &[2]));
        assert_eq!(all.common(Level::Socket, &[3]), group(5, &[3]));
        assert_eq!(all.common(Level::Socket, &[0, 3]), None);
        for nobody in [&[][..], &[4]] {
            assert_eq!(Level::INSIDE.map(|level| all.common(level, nobody)), [None, None, None]);
        }
        assert_eq!(all.common(Level::Host, &[0]), None);
        let numbers = |level| {
            let all = all.groups(level, &[3, 1, 0, 2, 4]);
            all.into_iter().map(|group| group.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(Level::Socket), [5, 0]);
        assert_eq!(numbers(Level::Numa), [2, 0, 1]);
        assert_eq!(numbers(Level::L3), [9, 7, 8]);
    }

    #[test]
    fn groups_without_a_number_have_that_of_their_lowest_processor() {
        let folder = pretended(&[(4, [0, 0, 0], "4"), (6, [0, 0, 0], "6")]);
        let cpu = folder.path().join("cpu/cpu6");
        std::fs::write(cpu.join("topology/physical_package_id"), "-1\n").unwrap();
        std::fs::remove_file(cpu.join("cache/index3/id")).unwrap();
        let all = Processors::of(folder.path());
        assert_eq!(all.group(Level::Socket, 6), group(4, &[4, 6]));
        assert_eq!(all.group(Level::L3, 6), group(4, &[4, 6]));
        // A list that leaves the processor out is wrong.
        std::fs::write(cpu.join("topology/package_cpus_list"), "4\n").unwrap();
        assert_eq!(all.group(Level::Socket, 6), None);
        assert_eq!(Processors::of(Path::new("/nonexistent")).group(Level::Numa, 0), None);
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,5, 7\n"), [0, 1, 2, 5, 7]);
        assert_eq!(parse_list("x,3-,4-99999999999999999999,6"), [6]);
        assert_eq!(parse_list("1022-4000000000").len(), 2);
        assert_eq!(parse_list(""), [0usize; 0]);
    }
}
