//! The machine a figure was measured on, as far as the kernel tells.
//!
//! Read first: Linux's `sysfs-devices-system-cpu` and `proc(5)`. Only `/proc`, `/sys` and `/etc` are
//! read, nothing is run, and nothing here fails: what is not known is `unknown` or null.

mod cache;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use cache::{Cache, CacheKind};

/// What a report says of the machine that it was measured on: processors, caches, memory, system, GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Model name of the first CPU.
    pub cpu: String,
    /// Processors online; null when unknown.
    pub cpus_online: Option<u64>,
    /// NUMA nodes online; null when unknown.
    pub numa_nodes: Option<u64>,
    /// The first CPU's caches, by level.
    pub caches: Vec<Cache>,
    /// Memory, in bytes; null when unknown.
    pub memory_bytes: Option<u64>,
    /// Kernel release.
    pub kernel: String,
    /// The distribution's own name for itself.
    pub distribution: String,
    /// Transparent huge pages: the chosen setting (`always`, `madvise`, `never`).
    pub transparent_hugepages: String,
    /// Whether the CPU reports a hypervisor above this kernel.
    pub virtual_machine: bool,
    /// What narrows this process below the machine; absent when nothing was noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// GPUs used; absent for host measurements. Filled by the program that opened them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
}

/// Signs that the process runs in a container, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// How it was noticed, for example `/.dockerenv`.
    pub hint: String,
    /// CPU time allowed, in thousandths of a processor; null when unlimited.
    pub cpu_limit_milli: Option<u64>,
    /// Memory allowed, in bytes; null when unlimited.
    pub memory_limit_bytes: Option<u64>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// Its `Space` in rows, for example `cuda:0`.
    pub space: String,
    /// Model name.
    pub name: String,
    /// Driver version.
    pub driver: String,
    /// Memory, in bytes; null when unknown.
    pub memory_bytes: Option<u64>,
}

impl Machine {
    /// Describes the machine this process runs on. GPUs are left to the caller.
    #[must_use]
    pub fn describe() -> Self {
        Self::describe_below(Path::new("/"))
    }

    /// Size of the largest cache of the highest level, in bytes; null when unknown.
    #[must_use]
    pub fn last_level_cache_bytes(&self) -> Option<u64> {
        let last = self.caches.iter().map(|cache| cache.level).max()?;
        self.caches
            .iter()
            .filter(|cache| cache.level == last && cache.kind != CacheKind::Instruction)
            .map(|cache| cache.bytes)
            .max()
    }

    /// One line for a table's heading.
    #[must_use]
    pub fn one_line(&self) -> String {
        let known = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
        let size = |n: Option<u64>| n.map_or("?".to_owned(), |n| crate::Bytes(n).to_string());
        let mut line = format!(
            "{}, {} CPUs, last-level cache {}, memory {}, Linux {}, huge pages {}",
            self.cpu,
            known(self.cpus_online),
            size(self.last_level_cache_bytes()),
            size(self.memory_bytes),
            self.kernel,
            self.transparent_hugepages,
        );
        for gpu in &self.gpus {
            line.push_str(&format!(", {} {} ({})", gpu.space, gpu.name, gpu.driver));
        }
        line
    }

    /// [`Self::describe`] with another root directory, so that tests can lay one out.
    fn describe_below(root: &Path) -> Self {
        let files = Files(root);
        let cpuinfo = files.text("proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: cpu_model(&cpuinfo).unwrap_or_else(unknown),
            cpus_online: files
                .text("sys/devices/system/cpu/online")
                .and_then(|list| list_length(&list))
                .or_else(|| processors(&cpuinfo)),
            numa_nodes: files
                .text("sys/devices/system/node/online")
                .and_then(|list| list_length(&list)),
            caches: cache::read(&files, &cpuinfo),
            memory_bytes: files.text("proc/meminfo").and_then(|text| memory_total(&text)),
            kernel: files.text("proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            distribution: files
                .text("etc/os-release")
                .and_then(|text| distribution(&text))
                .unwrap_or_else(unknown),
            transparent_hugepages: files
                .text("sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text))
                .unwrap_or_else(unknown),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| {
                flags.split_ascii_whitespace().any(|flag| flag == "hypervisor")
            }),
            container: container(&files),
            gpus: Vec::new(),
        }
    }
}

/// Size of the largest last-level cache a process here can use, in bytes; `None` when the kernel does
/// not tell (some virtual machines and container sandboxes hide it). A benchmark that must not
/// measure its cache then has to assume a size, and say so.
#[must_use]
pub fn last_level_cache_bytes() -> Option<u64> {
    Machine::describe().last_level_cache_bytes()
}

/// Small kernel files below one root.
struct Files<'a>(&'a Path);

impl Files<'_> {
    /// A file's text, trimmed; `None` when it is missing, unreadable, empty or not UTF-8.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.0.join(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Entries of a folder, sorted, as paths relative to the root.
    fn entries(&self, folder: &str) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.0.join(folder)) else {
            return Vec::new();
        };
        let mut names: Vec<PathBuf> =
            entries.flatten().map(|entry| Path::new(folder).join(entry.file_name())).collect();
        names.sort();
        names
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value of the first `key : value` line of `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// x86 says `model name`; other architectures say `Model`, `cpu` or nothing.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    ["model name", "Model", "cpu", "Hardware"]
        .iter()
        .find_map(|key| field(cpuinfo, key))
        .filter(|name| !name.is_empty())
        .map(|name| name.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
}

fn processors(cpuinfo: &str) -> Option<u64> {
    let lines = cpuinfo.lines();
    let count = lines.filter(|line| line.starts_with("processor")).count() as u64;
    (count > 0).then_some(count)
}

/// How many numbers a kernel list such as `0-3,8,10-11` holds.
fn list_length(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0u64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn memory_total(meminfo: &str) -> Option<u64> {
    let value = field(meminfo, "MemTotal")?;
    let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn distribution(os_release: &str) -> Option<String> {
    os_release.lines().find_map(|line| {
        let name = line.strip_prefix("PRETTY_NAME=")?;
        Some(name.trim_matches('"').to_owned())
    })
}

/// The bracketed word of `always [madvise] never`.
fn chosen(setting: &str) -> Option<String> {
    let (_, rest) = setting.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

fn container(files: &Files<'_>) -> Option<Container> {
    let (cpu_limit_milli, memory_limit_bytes) = control_group_limits(files);
    let marker = [".dockerenv", "run/.containerenv"].into_iter().find(|path| files.exists(path));
    let hint = match marker {
        Some(path) => format!("/{path}"),
        None if cpu_limit_milli.is_some() || memory_limit_bytes.is_some() => {
            "control-group limits".to_owned()
        }
        None => return None,
    };
    Some(Container { hint, cpu_limit_milli, memory_limit_bytes })
}

/// Limits of the group at the root of what this process sees: version 2, else version 1.
fn control_group_limits(files: &Files<'_>) -> (Option<u64>, Option<u64>) {
    let number = |path: &str| files.text(path)?.parse::<u64>().ok();
    let milli = |quota: u64, period: u64| quota.checked_mul(1000)?.checked_div(period);
    let cpu = match files.text("sys/fs/cgroup/cpu.max") {
        Some(text) => text
            .split_once(' ')
            .and_then(|(quota, period)| milli(quota.parse().ok()?, period.trim().parse().ok()?)),
        None => number("sys/fs/cgroup/cpu/cpu.cfs_quota_us")
            .zip(number("sys/fs/cgroup/cpu/cpu.cfs_period_us"))
            .and_then(|(quota, period)| milli(quota, period)),
    };
    let memory = number("sys/fs/cgroup/memory.max")
        .or_else(|| number("sys/fs/cgroup/memory/memory.limit_in_bytes"))
        // Version 1 says "no limit" as the largest page multiple below 2^63.
        .filter(|&limit| limit < 1 << 62);
    (cpu, memory)
}

#[cfg(test)]
mod tests;
