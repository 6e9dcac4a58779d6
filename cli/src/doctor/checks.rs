//! The checks of processors, memory, limits and what the system forbids.

use super::facts::{Facts, Limit};
use super::{CheckState, Finding};
use gapless_report::Bytes;

/// Shared memory of `/dev/shm` below which other libraries run out: what Docker gives by default.
const SHM_SMALL: u64 = 64 << 20;
/// Locked memory below which registering buffers with a network adapter soon fails.
const MEMLOCK_SMALL: u64 = 64 << 20;
/// Descriptors of a process besides its links, and those of each link.
const FILES: (u64, u64) = (16, 2);
/// Descriptors of the launcher, and those for each process it starts.
const LAUNCHER_FILES: (u64, u64) = (32, 4);
/// Threads of a process, with some in reserve.
const THREADS: u64 = 4;

/// What all of them find.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let each = [
        build,
        kernel,
        meeting,
        single_copy,
        cores,
        load,
        time_quota,
        governor,
        shm,
        memlock,
        open_files,
        file_length,
        processes,
        huge_pages,
        numa_balancing,
    ];
    each.iter().filter_map(|check| check(facts)).collect()
}

fn build(facts: &Facts) -> Option<Finding> {
    let why = "messages are slower in a debug build";
    let kind = if facts.debug_build { "a debug build" } else { "a release build" };
    let finding = Finding::ok("build", why, kind);
    Some(match facts.debug_build {
        true => finding.but(CheckState::Warn, "cargo build --release"),
        false => finding,
    })
}

fn kernel(facts: &Facts) -> Option<Finding> {
    let release = &facts.machine.kernel;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next()?, numbers.next()?);
    let why = "older kernels lack calls by which processes notice each other's death";
    let finding = Finding::ok("kernel", why, format!("Linux {release}"));
    Some(match version < (5, 3) {
        true => finding.but(CheckState::Problem, "a kernel from 5.3 on"),
        false => finding,
    })
}

fn meeting(facts: &Facts) -> Option<Finding> {
    let why = "processes of a job exchange messages through memory that they share";
    let finding = |found: &str| Finding::ok("two processes", why, found);
    Some(match facts.trial.as_ref()? {
        Ok(trial) if trial.met && trial.shared_memory => finding("meet, and share memory"),
        Ok(_) => finding("meet, but cannot map each other's memory").but(
            CheckState::Problem,
            "allow memfd_create and passing descriptors over Unix sockets (filters of system calls)",
        ),
        Err(error) => finding(error).but(CheckState::Problem, "gapless -v run -n 2 gapless info --as-rank"),
    })
}

fn single_copy(facts: &Facts) -> Option<Finding> {
    let works = match facts.trial.as_ref() {
        Some(Ok(trial)) => trial.single_copy,
        _ => return None,
    };
    let why = "without process_vm_readv, long messages out of ordinary memory are copied twice";
    let scope = facts.ptrace_scope.unwrap_or(0);
    let setting = match facts.ptrace_scope {
        Some(scope) => format!("kernel.yama.ptrace_scope is {scope}"),
        None => "there is no ptrace_scope".to_owned(),
    };
    let finding = |found: &str| Finding::ok("single copy", why, format!("{found} ({setting})"));
    Some(match works {
        true => finding("process_vm_readv works between processes"),
        false => finding("process_vm_readv is forbidden").but(
            CheckState::Warn,
            match (scope, &facts.machine.container) {
                (0, Some(_)) => "docker run --cap-add SYS_PTRACE",
                (0, None) => "allow process_vm_readv and process_vm_writev in the filter of system calls",
                (_, Some(_)) => "docker run --cap-add SYS_PTRACE, or on its host: sysctl kernel.yama.ptrace_scope=0",
                (_, None) => "sudo sysctl kernel.yama.ptrace_scope=0",
            },
        ),
    })
}

fn cores(facts: &Facts) -> Option<Finding> {
    let (cores, processors) = (facts.cores?, facts.processors?);
    let why = "ranks poll: two on one core take turns, and a message may last a time slice";
    let online = facts.machine.cpus_online.map_or(String::new(), |n| format!(" of {n} online"));
    let found = format!(
        "{cores} core{} ({processors} processor{}{online}) for {} rank{}",
        plural(cores as u64),
        plural(processors as u64),
        facts.ranks,
        plural(facts.ranks.into())
    );
    let finding = Finding::ok("cores", why, found);
    Some(match (facts.ranks as usize) > cores {
        true => finding.but(
            CheckState::Warn,
            format!("gapless run -n {cores}, or allow more (taskset, cpuset)"),
        ),
        false => finding,
    })
}

fn load(facts: &Facts) -> Option<Finding> {
    let load = facts.load?;
    let why =
        "ranks poll: other work takes their turns, and what is measured beside it means little";
    let finding = Finding::ok("load", why, load.to_string());
    // That there are too few of them is another finding.
    Some(match load.leaves(facts.ranks.min(load.processors)) {
        true => finding,
        false => finding.but(CheckState::Warn, "top (what it is); end it, or wait"),
    })
}

fn time_quota(facts: &Facts) -> Option<Finding> {
    let milli = facts.machine.container.as_ref()?.cpu_limit_milli?;
    let why = "a group that has used up its quota stands still for the rest of each period";
    let whole = milli as f64 / 1000.0;
    let finding = Finding::ok("time quota", why, format!("processors' time for {whole} of them"));
    Some(match milli < u64::from(facts.ranks) * 1000 {
        true => finding.but(CheckState::Warn, format!("docker run --cpus {}", facts.ranks)),
        false => finding,
    })
}

fn governor(facts: &Facts) -> Option<Finding> {
    let why = "under other governors the clock rises only after work has begun: short messages wait for it";
    let all = facts.governors.len();
    let slow: Vec<&String> = facts.governors.iter().filter(|name| *name != "performance").collect();
    let Some(first) = slow.first() else {
        let found = if all == 0 { "none is offered here" } else { "performance" };
        return Some(Finding::ok("governor", why, found));
    };
    let found = format!("{first} on {} of {all} processors", slow.len());
    let finding = Finding::ok("governor", why, found);
    Some(finding.but(CheckState::Warn, "sudo cpupower frequency-set -g performance"))
}

fn shm(facts: &Facts) -> Option<Finding> {
    let why = "Gapless does not use /dev/shm; NCCL and MPI libraries beside it do, and fail if it is small";
    let Some(folder) = facts.shm else {
        let finding = Finding::ok("/dev/shm", why, "is missing");
        return Some(
            finding.but(CheckState::Warn, "sudo mount -t tmpfs -o size=50% tmpfs /dev/shm"),
        );
    };
    let free = Bytes(folder.free);
    let finding = Finding::ok("/dev/shm", why, format!("{}, {free} free", Bytes(folder.bytes)));
    Some(match (folder.writable, folder.bytes <= SHM_SMALL) {
        (false, _) => Finding::ok("/dev/shm", why, "may not be written to")
            .but(CheckState::Warn, "sudo chmod 1777 /dev/shm"),
        (true, true) if facts.machine.container.is_some() => {
            finding.but(CheckState::Warn, "docker run --shm-size=1g (or --ipc=host)")
        }
        (true, true) => finding.but(CheckState::Warn, "sudo mount -o remount,size=50% /dev/shm"),
        (true, false) => finding,
    })
}

fn memlock(facts: &Facts) -> Option<Finding> {
    let why = "memory that a network card may reach is locked, and counts against this limit";
    let finding = Finding::ok("locked memory", why, bytes(facts.memlock));
    let small = facts.memlock.is_some_and(|limit| limit < MEMLOCK_SMALL);
    let mend = match facts.machine.container {
        Some(_) => "docker run --ulimit memlock=-1",
        None => "* - memlock unlimited (a line of /etc/security/limits.conf), then log in again",
    };
    Some(match small && !facts.devices.rdma.is_empty() {
        true => finding.but(CheckState::Warn, mend),
        false => finding,
    })
}

fn open_files(facts: &Facts) -> Option<Finding> {
    let ranks = u64::from(facts.ranks);
    let most = |(own, each): (u64, u64)| own + each * ranks;
    let needed = most(FILES).max(most(LAUNCHER_FILES));
    let why = "every link between two processes is a file to both, and every process is some to the launcher";
    let found = match facts.open_files {
        Some(limit) => format!("up to {limit}; {ranks} ranks take up to {needed}"),
        None => "as many as there may be".to_owned(),
    };
    let finding = Finding::ok("open files", why, found);
    Some(match facts.open_files.is_some_and(|limit| limit < needed) {
        true => finding.but(
            CheckState::Problem,
            format!("ulimit -Hn {needed} as root (docker run --ulimit nofile={needed})"),
        ),
        false => finding,
    })
}

fn file_length(facts: &Facts) -> Option<Finding> {
    let why = "shared memory counts as a file: allocations beyond the limit fail";
    let finding = Finding::ok("file length", why, bytes(facts.file_bytes));
    Some(match facts.file_bytes {
        // What the links of two processes take.
        Some(limit) if limit < 16 << 20 => finding.but(CheckState::Problem, "ulimit -f unlimited"),
        Some(_) => finding.but(CheckState::Warn, "ulimit -f unlimited"),
        None => finding,
    })
}

fn processes(facts: &Facts) -> Option<Finding> {
    let limit = facts.pids?;
    let needed = u64::from(facts.ranks) * THREADS;
    let why = "processes and threads beyond the limit of the control group are not started";
    let finding = Finding::ok("processes", why, format!("up to {limit} with their threads"));
    Some(match limit < needed {
        true => finding.but(CheckState::Problem, format!("docker run --pids-limit {}", needed * 2)),
        false => finding,
    })
}

fn huge_pages(facts: &Facts) -> Option<Finding> {
    let why = "with small pages, layouts with long strides miss the address cache at every block";
    let chosen = facts.machine.transparent_hugepages.as_str();
    let shared = facts.shmem_huge_pages.as_deref();
    let found = match shared {
        Some(shared) => format!("transparent: {chosen}, in shared memory: {shared}"),
        None => format!("transparent: {chosen}"),
    };
    let finding = Finding::ok("huge pages", why, found);
    let file = "/sys/kernel/mm/transparent_hugepage";
    Some(match (chosen, shared) {
        ("never", _) => {
            finding.but(CheckState::Warn, format!("echo madvise >{file}/enabled (root)"))
        }
        (_, Some("never" | "deny")) => {
            finding.but(CheckState::Warn, format!("echo advise >{file}/shmem_enabled (root)"))
        }
        _ => finding,
    })
}

fn numa_balancing(facts: &Facts) -> Option<Finding> {
    let nodes = facts.machine.numa_nodes.filter(|&nodes| nodes > 1)?;
    let why = "the kernel moves pages between nodes while programs run: times vary";
    let on = facts.numa_balancing.is_some_and(|value| value != 0);
    let found = format!("{nodes} nodes, automatic balancing {}", if on { "on" } else { "off" });
    let finding = Finding::ok("NUMA", why, found);
    Some(match on {
        true => finding.but(
            CheckState::Warn,
            "sudo sysctl kernel.numa_balancing=0, and gapless run --bind-to core",
        ),
        false => finding,
    })
}

fn bytes(limit: Limit) -> String {
    limit.map_or("unlimited".to_owned(), |limit| Bytes(limit).to_string())
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests;
