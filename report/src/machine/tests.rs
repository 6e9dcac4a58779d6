use super::*;

/// A root directory with the given files.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

const CPUINFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some  CPU @ 3 GHz\ncache size\t: 1024 KB\n\
                       flags\t\t: fpu hypervisor sse\n\nprocessor\t: 1\nmodel name\t: Some  CPU @ 3 GHz\n";

#[test]
fn a_whole_machine() {
    let root = root(&[
        ("proc/cpuinfo", CPUINFO),
        ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
        ("proc/sys/kernel/osrelease", "6.1.0-test\n"),
        ("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
        ("sys/devices/system/cpu/online", "0-3,8\n"),
        ("sys/devices/system/node/online", "0\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/devices/system/cpu/cpu0/cache/index0/level", "1"),
        ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data"),
        ("sys/devices/system/cpu/cpu0/cache/index0/size", "48K"),
        ("sys/devices/system/cpu/cpu0/cache/index3/level", "3"),
        ("sys/devices/system/cpu/cpu0/cache/index3/type", "Unified"),
        ("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K"),
        ("sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "0-3"),
        ("sys/devices/system/cpu/cpu0/cache/uevent", ""),
        (".dockerenv", ""),
        ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/memory.max", "max\n"),
    ]);
    let machine = Machine::describe_below(root.path());
    assert_eq!(machine.cpu, "Some CPU @ 3 GHz");
    assert_eq!(machine.cpus_online, Some(5));
    assert_eq!(machine.numa_nodes, Some(1));
    assert_eq!(machine.memory_bytes, Some(16 << 20));
    assert_eq!(machine.kernel, "6.1.0-test");
    assert_eq!(machine.distribution, "Debian GNU/Linux 12 (bookworm)");
    assert_eq!(machine.transparent_hugepages, "madvise");
    assert!(machine.virtual_machine);
    assert_eq!(machine.caches.len(), 2);
    assert_eq!(machine.caches[1].shared_by, "0-3");
    assert_eq!(machine.last_level_cache_bytes(), Some(32 << 20));
    let container = machine.container.clone().unwrap();
    assert_eq!(container.hint, "/.dockerenv");
    assert_eq!(container.cpu_limit_milli, Some(1500));
    assert_eq!(container.memory_limit_bytes, None);
    assert_eq!(
        machine.one_line(),
        "Some CPU @ 3 GHz, 5 CPUs, last-level cache 32 MiB, memory 16 MiB, Linux 6.1.0-test, \
         huge pages madvise"
    );
}

#[test]
fn nothing_known() {
    let root = root(&[]);
    let machine = Machine::describe_below(root.path());
    assert_eq!(machine.cpu, "unknown");
    assert_eq!(machine.cpus_online, None);
    assert_eq!(machine.memory_bytes, None);
    assert_eq!(machine.last_level_cache_bytes(), None);
    assert_eq!(machine.container, None);
    assert!(!machine.virtual_machine);
    // And it can be written and read back.
    let json = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
}

#[test]
fn hidden_caches_and_processors_fall_back_to_cpuinfo() {
    let root = root(&[("proc/cpuinfo", CPUINFO)]);
    let machine = Machine::describe_below(root.path());
    assert_eq!(machine.cpus_online, Some(2));
    assert_eq!(machine.last_level_cache_bytes(), Some(1 << 20));

    // Others print another level's size there.
    let other = CPUINFO.replace("GenuineIntel", "AuthenticAMD");
    let machine = Machine::describe_below(self::root(&[("proc/cpuinfo", &other)]).path());
    assert_eq!(machine.last_level_cache_bytes(), None);
}

#[test]
fn first_version_control_groups() {
    let root = root(&[
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824"),
    ]);
    let container = Machine::describe_below(root.path()).container.unwrap();
    assert_eq!(container.cpu_limit_milli, None);
    assert_eq!(container.memory_limit_bytes, Some(1 << 30));
}

#[test]
fn unlimited_is_no_container() {
    let root = root(&[
        ("sys/fs/cgroup/cpu.max", "max 100000"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
    ]);
    assert_eq!(Machine::describe_below(root.path()).container, None);
}

#[test]
fn malformed_kernel_files_are_unknown() {
    for list in ["", "x", "3-1", "0-18446744073709551615", "1,,2"] {
        assert_eq!(list_length(list), None, "{list}");
    }
    assert_eq!(memory_total("MemTotal: 99999999999999999999 kB"), None);
    assert_eq!(chosen("always"), None);
    let root = root(&[("sys/fs/cgroup/cpu.max", "100000 0")]);
    assert_eq!(Machine::describe_below(root.path()).container, None);
}

#[test]
fn this_machine_has_a_cpu_and_a_kernel() {
    let machine = Machine::describe();
    assert!(machine.cpus_online.is_some_and(|n| n > 0), "{machine:?}");
    assert!(machine.memory_bytes.is_some_and(|n| n > 0), "{machine:?}");
    assert_ne!(machine.kernel, "unknown");
}
