//! What the checks go by, read once. Nothing here fails: what cannot be read is `None`.

use super::devices::Devices;
use crate::load::Load;
use gapless::launch::Cores;
use gapless_report::Machine;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A limit of the system's; `None`: there is none.
pub(super) type Limit = Option<u64>;

/// A folder in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folder {
    pub(super) bytes: u64,
    pub(super) free: u64,
    pub(super) writable: bool,
}

/// What two processes found out about their link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    /// They met and exchanged a message.
    pub(super) met: bool,
    pub(super) single_copy: bool,
    pub(super) shared_memory: bool,
}

/// A machine as this process sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Processes that a job is to have.
    pub(super) ranks: u32,
    pub(super) machine: Machine,
    pub(super) debug_build: bool,
    /// Cores and processors that may be used.
    pub(super) cores: Option<usize>,
    pub(super) processors: Option<usize>,
    /// What other work does meanwhile.
    pub(super) load: Option<Load>,
    /// What two processes found, or what the attempt said.
    pub(super) trial: Option<Result<Trial, String>>,
    pub(super) ptrace_scope: Option<u32>,
    pub(super) shm: Option<Folder>,
    pub(super) memlock: Limit,
    /// The hard limit: the soft one is raised when needed.
    pub(super) open_files: Limit,
    pub(super) file_bytes: Limit,
    /// Processes and threads of the control group.
    pub(super) pids: Limit,
    /// The clock's policy, of each processor that says it.
    pub(super) governors: Vec<String>,
    pub(super) shmem_huge_pages: Option<String>,
    pub(super) numa_balancing: Option<u32>,
    pub(super) devices: Devices,
}

impl Facts {
    pub(super) fn read(ranks: u32) -> Facts {
        let limit = |resource| getrlimit(resource).current;
        let set = sched_getaffinity(None).ok();
        Facts {
            ranks,
            machine: Machine::describe(),
            debug_build: cfg!(debug_assertions),
            cores: Cores::allowed().ok().map(|cores| cores.count()),
            processors: set.map(|set| (0..CpuSet::MAX_CPU).filter(|&i| set.is_set(i)).count()),
            load: Load::look(),
            trial: Some(trial()),
            shm: folder("/dev/shm"),
            memlock: limit(Resource::Memlock),
            open_files: getrlimit(Resource::Nofile).maximum,
            file_bytes: limit(Resource::Fsize),
            devices: Devices::read(Path::new("/")),
            ..Facts::below(Path::new("/"))
        }
    }

    /// What stands in files below this folder.
    pub(super) fn below(root: &Path) -> Facts {
        let text = |path: &str| text(&root.join(path));
        let number = |path: &str| text(path)?.parse().ok();
        let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten();
        let governors = cpus
            .flatten()
            .filter_map(|entry| self::text(&entry.path().join("cpufreq/scaling_governor")));
        let pids = ["sys/fs/cgroup/pids.max", "sys/fs/cgroup/pids/pids.max"];
        Facts {
            ptrace_scope: number("proc/sys/kernel/yama/ptrace_scope"),
            governors: governors.collect(),
            shmem_huge_pages: text("sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
            numa_balancing: number("proc/sys/kernel/numa_balancing"),
            pids: pids.iter().find_map(|path| text(path)).and_then(|text| text.parse().ok()),
            ..Facts::default()
        }
    }
}

/// A file's text, trimmed; `None` if there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn folder(path: &str) -> Option<Folder> {
    let found = rustix::fs::statvfs(path).ok()?;
    let writable = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(Folder { bytes: bytes(found.f_blocks), free: bytes(found.f_bavail), writable })
}

/// Has two processes of this program meet, as those of a job do.
fn trial() -> Result<Trial, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(&program);
    command.args(["run", "-n", "2", "--timeout", "60"]).arg(&program).args(["info", "--as-rank"]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let line = complaint.lines().map(str::trim).find(|line| !line.is_empty());
        return Err(line.unwrap_or("two processes did not meet").to_owned());
    }
    let works = |what: &str| {
        said.lines().any(|line| line.starts_with(what) && line.contains(super::super::info::WORKS))
    };
    Ok(Trial {
        met: true,
        single_copy: works("single copy"),
        shared_memory: works("shared memory"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_files_is_not_known() {
        let facts = Facts::below(Path::new("/nonexistent"));
        assert!(facts.ptrace_scope.is_none() && facts.governors.is_empty());
        assert!(facts.pids.is_none() && folder("/nonexistent").is_none());
    }

    #[test]
    fn small_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/yama/ptrace_scope", "1\n");
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        write("sys/devices/system/cpu/online", "0\n");
        write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never] advise\n");
        write("sys/fs/cgroup/pids.max", "max\n");
        let facts = Facts::below(root.path());
        assert_eq!(facts.ptrace_scope, Some(1));
        assert_eq!(facts.governors, ["powersave"]);
        assert_eq!(facts.shmem_huge_pages.as_deref(), Some("never"));
        assert_eq!(facts.pids, None, "no limit");
    }
}
