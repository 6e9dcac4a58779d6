//! The guest's first files, packed as the kernel wants them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::kernel::Kernel;
use super::{Programs, TASKS, make_folder};
use crate::{Failure, shell};

/// Modules; what they need comes before them.
const MODULES: &[&str] = &[
    "crc32_generic",
    "ib_uverbs",
    "rdma_rxe",
    "veth",
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "sch_netem",
];
/// Programs of this machine that the guest runs, besides busybox.
const PROGRAMS: &[&str] = &["ip", "rdma", "tc"];
/// Libraries that are opened at run time.
const LIBRARIES: &[&str] =
    &["libibverbs.so.1", "libgcc_s.so.1", "libnl-3.so.200", "libnl-route-3.so.200"];
/// Where this machine has libraries.
const LIBRARY_FOLDERS: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"];

/// What the first process does, `MODULES`, `TESTS` put in.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /shared /bin /run
/bin/busybox --install -s /bin
export PATH=/host:/bin LD_LIBRARY_PATH=/lib
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
# Each host of a test mounts a file of its own there.
touch /etc/hosts
for module in MODULES; do insmod $module; done
mount -t 9p -o trans=virtio,version=9p2000.L work /shared || reboot -f
end() { echo "$1" > /shared/status; sync; umount /shared; reboot -f; }
/host/ip link set lo up
# Two cables, whose ends are all this host's: the second has a port more for each of two hosts of tests.
/host/ip link add v0 type veth peer name v1
/host/ip link add v2 type veth peer name v3
/host/ip addr add 10.9.0.1/24 dev v0
/host/ip addr add 10.9.0.2/24 dev v1
# A second address of each, for ports by the index of their GID.
/host/ip addr add 10.9.1.1/24 dev v0
/host/ip addr add 10.9.1.2/24 dev v1
/host/ip addr add 10.10.0.1/24 dev v2
/host/ip addr add 10.10.0.2/24 dev v3
for at in all v0 v1 v2 v3; do
    echo 1 > /proc/sys/net/ipv4/conf/$at/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/$at/rp_filter
done
# Many processes at once fill the usual 1,000, and packets are dropped: Soft-RoCE does not get over that (docs/networks.md).
echo 20000 > /proc/sys/net/core/netdev_max_backlog
for at in 0 1 2 3; do
    /host/ip link set v$at up
    /host/rdma link add rxe$at type rxe netdev v$at || end "no Soft-RoCE"
done
ulimit -l unlimited
export GAPLESS_SKIP_LOG=/shared/skips GAPLESS_IB_NETDEV=v0 GAPLESS_SEED=@SEED@ RUST_BACKTRACE=1
export GAPLESS_IB_PORTS=rxe0,rxe1 GAPLESS_IB_MORE_PORTS=rxe2,rxe3 GAPLESS_TUNING= GAPLESS_COLL=
status=0
run() { "$@" >> /shared/log 2>&1 || status=1; }
TESTS
end $status
"#;

/// A job over TCP whose packets the kernel drops and reorders. Many a kernel cannot (`netem`); the guest's can.
const DROPPED: &str = "rails::mischief_between_hosts_costs_nothing";

/// Makes the archive of files.
pub(super) fn files(
    folder: &Path,
    kernel: &Kernel,
    programs: &Programs,
    filters: &[String],
    seed: &str,
) -> Result<PathBuf, Failure> {
    let root = folder.join("root");
    let _ = fs::remove_dir_all(&root);
    for inner in ["bin", "host", "lib", "lib64", "modules", "etc/libibverbs.d"] {
        make_folder(&root.join(inner))?;
    }
    copy(Path::new("/bin/busybox"), &root.join("bin/busybox"))?;
    let Programs { transport, jobs, tasks, command, .. } = programs;
    copy(transport, &root.join("btl-ib"))?;
    if let Some(tasks) = tasks {
        copy(tasks, &root.join("xtq"))?;
    }
    for (name, _, program) in jobs {
        copy(program, &root.join(name))?;
    }
    let mut wanted = vec![transport.clone(), driver()?];
    wanted.extend(tasks.clone());
    if let Some(command) = command {
        let there = root.join(command.strip_prefix("/").unwrap_or(command));
        make_folder(there.parent().unwrap_or(&root))?;
        copy(command, &there)?;
        wanted.push(command.clone());
    }
    wanted.extend(jobs.iter().map(|(.., program)| program.clone()));
    wanted.extend(LIBRARIES.iter().filter_map(|name| find_library(name)));
    for name in PROGRAMS {
        let path = find_program(name)?;
        copy(&path, &root.join("host").join(name))?;
        wanted.push(path);
    }
    let mut libraries: BTreeSet<PathBuf> =
        LIBRARIES.iter().filter_map(|name| find_library(name)).collect();
    for path in &wanted {
        libraries.extend(libraries_of(path)?);
    }
    for library in &libraries {
        let name = library.file_name().unwrap_or_default();
        copy(library, &root.join("lib").join(name))?;
    }
    // Programs ask for the dynamic linker there.
    let linker = Path::new("ld-linux-x86-64.so.2");
    link(&Path::new("/lib").join(linker), &root.join("lib64").join(linker))?;
    // Providers are looked for where this machine's library has them.
    let driver = driver()?;
    let place = root.join(driver.strip_prefix("/").unwrap_or(&driver));
    make_folder(place.parent().unwrap_or(&root))?;
    copy(&driver, &place)?;
    write(&root.join("etc/libibverbs.d/rxe.driver"), "driver rxe\n")?;
    let modules = modules(kernel, &root)?;
    let script = INIT
        .replace("MODULES", &modules.join(" "))
        .replace("TESTS", &tests(programs, filters))
        .replace("@SEED@", seed);
    let init = root.join("init");
    write(&init, &script)?;
    let file = |source| Failure::File { path: init.clone(), source };
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(file)?;
    pack(folder, &root)
}

/// A line for each program, and one for packets that are dropped.
fn tests(programs: &Programs, filters: &[String]) -> String {
    let line = |name: &str, skipped: &[&str]| {
        let skips: String = skipped.iter().map(|test| format!("--skip {test} ")).collect();
        format!("run /{name} --test-threads=1 {skips}{}", filters.join(" "))
    };
    let jobs = programs.jobs.iter().map(|(name, skipped, _)| line(name, skipped));
    let wanted = filters.is_empty() || filters.iter().any(|filter| DROPPED.contains(&**filter));
    let dropped =
        format!("run env GAPLESS_RAIL_KIND=2 GAPLESS_RAIL_JOBS=1 /hosts --exact {DROPPED}");
    let dropped = (wanted && !programs.jobs.is_empty()).then_some(dropped);
    let tasks = programs.tasks.as_ref().map(|_| match filters.is_empty() {
        true => format!("run /xtq --test-threads=1 {}", TASKS.join(" ")),
        false => line("xtq", &[]),
    });
    let transport = std::iter::once(line("btl-ib", programs.skipped));
    let all = transport.chain(tasks).chain(jobs).chain(dropped);
    all.collect::<Vec<_>>().join("\n")
}

/// Another one each time; tests print it.
pub(super) fn seed() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs()).to_string()
}

/// Packs a folder.
fn pack(folder: &Path, root: &Path) -> Result<PathBuf, Failure> {
    let archive = folder.join("guest.cpio");
    let out = fs::File::create(&archive)
        .map_err(|source| Failure::File { path: archive.clone(), source })?;
    let mut find = Command::new("find");
    find.current_dir(root).args([".", "-print0"]).stdout(Stdio::piped());
    let mut names = find.spawn().map_err(|source| shell::could_not_start(&find, source))?;
    let mut command = Command::new("cpio");
    command.current_dir(root).args(["--null", "--create", "--quiet", "--format=newc"]);
    command.stdin(names.stdout.take().map_or_else(Stdio::null, Stdio::from)).stdout(out);
    let packed = shell::run(&mut command);
    let _ = names.wait();
    packed.map(|()| archive)
}

/// Copies the modules; gives their paths in the guest, in the order of loading.
fn modules(kernel: &Kernel, root: &Path) -> Result<Vec<String>, Failure> {
    let mut loaded = Vec::new();
    for name in MODULES {
        let mut command = Command::new("/sbin/modprobe");
        command.arg("-d").arg(&kernel.root).args(["-S", &kernel.release, "--show-depends", name]);
        // Those that are built in are shown as `builtin`.
        let text = shell::output(&mut command)?;
        for path in text.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let path = Path::new(path.trim());
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let inside = format!("/modules/{file}");
            if !loaded.contains(&inside) {
                copy(path, &root.join("modules").join(file))?;
                loaded.push(inside);
            }
        }
    }
    Ok(loaded)
}

/// The provider of Soft-RoCE for this machine's library.
fn driver() -> Result<PathBuf, Failure> {
    let folders = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join("libibverbs"));
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let found = paths.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe-"))
    });
    found.ok_or_else(|| Failure::Missing("the provider librxe of rdma-core".to_owned()))
}

fn find_library(name: &str) -> Option<PathBuf> {
    LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

fn find_program(name: &str) -> Result<PathBuf, Failure> {
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.exists()).ok_or_else(|| Failure::Missing(name.to_owned()))
}

/// The libraries that a program or library names, and those that these name.
fn libraries_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = shell::output(Command::new("ldd").arg(path))?;
    let place = |line: &str| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place).trim();
        let place = place.split_ascii_whitespace().next()?;
        place.starts_with('/').then(|| PathBuf::from(place))
    };
    Ok(text.lines().filter_map(place).collect())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let copied = fs::copy(from, to);
    copied.map(drop).map_err(|source| Failure::File { path: from.to_owned(), source })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| Failure::File { path: path.to_owned(), source })
}

fn link(to: &Path, at: &Path) -> Result<(), Failure> {
    symlink(to, at).map_err(|source| Failure::File { path: at.to_owned(), source })
}
