use super::super::devices::{Adapter, Devices};
use super::super::facts::{Folder, Trial};
use super::*;
use crate::load::Load;
use gapless_report::{Container, Machine};

/// A machine on which all is well.
fn healthy() -> Facts {
    Facts {
        ranks: 4,
        machine: Machine {
            cpus_online: Some(8),
            numa_nodes: Some(2),
            kernel: "6.1.0-13-amd64".to_owned(),
            transparent_hugepages: "madvise".to_owned(),
            ..Machine::default()
        },
        debug_build: false,
        cores: Some(4),
        processors: Some(8),
        load: Some(Load { busy: 0.2, processors: 8 }),
        trial: Some(Ok(Trial { met: true, single_copy: true, shared_memory: true })),
        ptrace_scope: Some(0),
        shm: Some(Folder { bytes: 8 << 30, free: 4 << 30, writable: true }),
        memlock: None,
        open_files: Some(524_288),
        file_bytes: None,
        pids: Some(10_000),
        governors: vec!["performance".to_owned(); 8],
        shmem_huge_pages: Some("advise".to_owned()),
        numa_balancing: Some(0),
        devices: Devices::default(),
    }
}

/// What the check of that name says.
fn check(facts: &Facts, name: &str) -> Finding {
    let found = all(facts).into_iter().find(|finding| finding.check == name);
    found.unwrap_or_else(|| panic!("{name} says nothing"))
}

#[track_caller]
fn says(facts: &Facts, name: &str, state: CheckState, found: &str, mend: &str) {
    let finding = check(facts, name);
    assert_eq!(finding.state, state, "{finding:?}");
    assert!(finding.found.contains(found), "{finding:?}");
    assert!(finding.mend.as_deref().unwrap_or_default().contains(mend), "{finding:?}");
}

#[test]
fn a_healthy_machine_has_nothing_to_mend() {
    let findings = all(&healthy());
    assert!(findings.len() >= 13, "{findings:?}");
    for finding in findings {
        assert_eq!((finding.state, &finding.mend), (CheckState::Ok, &None), "{finding:?}");
        assert!(!finding.why.is_empty() && finding.check.len() <= super::super::CHECK_WIDTH);
    }
}

#[test]
fn other_work_is_a_warning() {
    let busy = |busy| Facts { load: Some(Load { busy, processors: 8 }), ..healthy() };
    says(&busy(3.9), "load", CheckState::Ok, "3.9 of 8 processors", "");
    says(&busy(5.5), "load", CheckState::Warn, "5.5 of 8 processors", "top");
    // More ranks than processors are no other work.
    let many = Facts { ranks: 64, ..healthy() };
    says(&many, "load", CheckState::Ok, "0.2 of 8", "");
}

#[test]
fn a_machine_of_which_nothing_is_known_has_no_problem() {
    for finding in all(&Facts { ranks: 4, ..Facts::default() }) {
        assert!(finding.state < CheckState::Problem, "{finding:?}");
    }
}

#[test]
fn what_is_not_well_is_told_with_what_mends_it() {
    use CheckState::{Problem, Warn};
    let with = |change: fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        facts
    };
    let contained = |facts: &mut Facts| facts.machine.container = Some(Container::default());
    says(&with(|f| f.debug_build = true), "build", Warn, "debug", "--release");
    says(&with(|f| f.machine.kernel = "5.2.21".into()), "kernel", Problem, "5.2", "5.3");
    says(&with(|f| f.cores = Some(3)), "cores", Warn, "3 cores (8 processors of 8", "-n 3");
    says(&with(|f| f.governors[2] = "powersave".into()), "governor", Warn, "1 of 8", "cpupower");
    says(&with(|f| f.shm = None), "/dev/shm", Warn, "missing", "mount -t tmpfs");
    let shm = |bytes, writable| Some(Folder { bytes, free: 0, writable });
    let mut facts = healthy();
    facts.shm = shm(64 << 20, true);
    says(&facts, "/dev/shm", Warn, "64 MiB, 0 B free", "remount");
    contained(&mut facts);
    says(&facts, "/dev/shm", Warn, "64 MiB", "--shm-size");
    facts.shm = shm(8 << 30, false);
    says(&facts, "/dev/shm", Warn, "may not be written", "chmod 1777");
    says(&with(|f| f.file_bytes = Some(1 << 20)), "file length", Problem, "1 MiB", "ulimit -f");
    says(&with(|f| f.file_bytes = Some(1 << 40)), "file length", Warn, "1 TiB", "ulimit -f");
    says(&with(|f| f.open_files = Some(40)), "open files", Problem, "take up to 48", "nofile=48");
    says(&with(|f| f.pids = Some(15)), "processes", Problem, "15", "--pids-limit 32");
    let never = |f: &mut Facts| f.machine.transparent_hugepages = "never".into();
    says(&with(never), "huge pages", Warn, "transparent: never", "echo madvise");
    let shared = |f: &mut Facts| f.shmem_huge_pages = Some("never".into());
    says(&with(shared), "huge pages", Warn, "shared memory: never", "shmem_enabled");
    says(&with(|f| f.numa_balancing = Some(1)), "NUMA", Warn, "2 nodes", "numa_balancing=0");
    let half = Container { cpu_limit_milli: Some(1500), ..Container::default() };
    let facts =
        Facts { machine: Machine { container: Some(half), ..healthy().machine }, ..healthy() };
    says(&facts, "time quota", Warn, "1.5", "--cpus 4");
}

#[test]
fn locked_memory_matters_where_there_is_a_adapter() {
    let mut facts = healthy();
    facts.memlock = Some(8 << 20);
    says(&facts, "locked memory", CheckState::Ok, "8 MiB", "");
    facts.devices.rdma = vec![Adapter::default()];
    says(&facts, "locked memory", CheckState::Warn, "8 MiB", "memlock unlimited");
}

#[test]
fn two_processes_say_what_is_forbidden() {
    let mut facts = healthy();
    facts.trial = Some(Err("the launcher is gone".to_owned()));
    says(&facts, "two processes", CheckState::Problem, "launcher is gone", "gapless");
    assert!(all(&facts).iter().all(|finding| finding.check != "single copy"));
    let trial = Trial { met: true, single_copy: false, shared_memory: true };
    facts.trial = Some(Ok(trial));
    says(&facts, "single copy", CheckState::Warn, "forbidden", "filter of system calls");
    facts.ptrace_scope = Some(1);
    says(&facts, "single copy", CheckState::Warn, "ptrace_scope is 1", "ptrace_scope=0");
    facts.machine.container = Some(Container::default());
    says(&facts, "single copy", CheckState::Warn, "forbidden", "SYS_PTRACE");
    facts.trial = Some(Ok(Trial { shared_memory: false, ..trial }));
    says(&facts, "two processes", CheckState::Problem, "cannot map", "memfd_create");
}
