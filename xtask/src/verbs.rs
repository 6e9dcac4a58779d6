//! `cargo xtask verbs`: the tests of btl-ib, and of jobs over it, over real verbs, without an adapter.
//!
//! A stock Debian kernel runs in a software-emulated QEMU guest, with two ports of its Soft-RoCE driver on the two ends of
//! a pair of virtual network devices. The test programs are built here, with the feature `ib`, and run there one after the
//! other: those of btl-ib ([`PROGRAMS`] are the others). In this order:
//!
//! 1. the packages ([`PACKAGES`]): installed if this is root, else named;
//! 2. the kernel ([`mod@kernel`]): downloaded once, by the hash that apt knows, and unpacked into the target folder;
//! 3. the lints and the documentation of btl-ib with the feature, which need these packages, too, if all tests are to run;
//!    then the test programs, by cargo;
//! 4. the guest's first files ([`mod@guest`]): busybox, modules, the programs and their libraries;
//! 5. the guest. How the tests ended is a file in a folder that both see: QEMU's own status says nothing.
//!
//! Where one of these cannot be had it says so in a line, and the tests count as skipped; that is no failure.

mod guest;
mod kernel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};
use crate::{Failure, shell, tools};

/// What is needed beyond a Rust toolchain: where it is seen, and the package that brings it.
const PACKAGES: &[(&str, &str)] = &[
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/cpio", "cpio"),
    ("/usr/bin/dpkg-deb", "dpkg"),
    ("/sbin/depmod", "kmod"),
    ("/sbin/ip", "iproute2"),
    ("/usr/bin/pkg-config", "pkg-config"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
];
/// Test programs of whole jobs, and which of their tests are not run there.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("hosts", &["together::", "shared::", "lost::", "rails::"]),
    ("matrix", &["over_every_link", "of_two_rails", "over_any_transport", "over_tcp"]),
];
/// The command, which they start.
const COMMAND: &str = "gapless";
/// Seconds that the guest gets, unless the user says: on two idle processors it takes a third of that.
pub(crate) const SECONDS: u64 = 1200;

/// Why the tests do not run here.
pub(super) struct Missing(String);

impl From<Failure> for Missing {
    fn from(failure: Failure) -> Missing {
        Missing(failure.to_string())
    }
}

/// Runs the tests whose names contain one of `filters`, or all.
pub(crate) fn run(checkout: &Checkout, filters: &[String], seconds: u64) -> Result<(), Failure> {
    let folder = checkout.target.join("xtask").join("verbs");
    let ready = shell::timed("packages and kernel", || prepare(&folder)).0;
    let kernel = match ready {
        Ok(kernel) => kernel,
        Err(Missing(why)) => {
            let what = "btl-ib over Soft-RoCE".to_owned();
            println!("SKIPPED: {what}: {why}");
            return SkipLog::open(&checkout.target.join("xtask"))?.add(&Skip { what, why });
        }
    };
    if filters.is_empty() {
        shell::timed("lints and documentation", || lint(checkout)).0?;
    }
    let programs = shell::timed("the test programs", || build(checkout)).0?;
    let work = folder.join("work");
    let files = shell::timed("the guest's files", || {
        let _ = fs::remove_dir_all(&work);
        make_folder(&work)?;
        guest::files(&folder, &kernel, &programs, filters)
    });
    let (seen, took) =
        shell::timed("tests in the guest", || boot(&kernel, &files.0?, &work, seconds));
    seen?;
    let log = fs::read_to_string(work.join("log")).unwrap_or_default();
    println!("{}", log.trim_end());
    let skips = fs::read_to_string(work.join("skips")).unwrap_or_default();
    print!("{skips}");
    let status = fs::read_to_string(work.join("status")).unwrap_or_default();
    if status.trim() == "0" {
        println!("btl-ib over Soft-RoCE: passed, {:.0} s in the guest", took.as_secs_f64());
        return Ok(());
    }
    println!("{}", fs::read_to_string(work.join("console")).unwrap_or_default());
    println!("the guest ended with the status {:?}", status.trim());
    Err(Failure::Found { what: "tests over Soft-RoCE that failed", number: 1 })
}

/// Brings packages and kernel.
fn prepare(folder: &Path) -> Result<kernel::Kernel, Missing> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return Err(Missing("the guest is an x86-64 one, and started on Linux".to_owned()));
    }
    let missing = PACKAGES.iter().filter(|(seen, _)| !Path::new(seen).exists());
    let mut missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    // Its path has a release in it.
    let clang = fs::read_dir("/usr/lib/x86_64-linux-gnu").into_iter().flatten().flatten();
    if !clang.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("libclang-"))
    {
        missing.push("libclang-dev");
    }
    if !missing.is_empty() {
        tools::bring("what the guest needs", &missing)
            .map_err(|failure| Missing(format!("{failure} ({})", missing.join(" "))))?;
    }
    kernel::bring(folder)
}

pub(super) fn make_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|source| Failure::File { path: folder.to_owned(), source })
}

#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// What was built.
pub(super) struct Programs {
    /// The tests of btl-ib.
    transport: PathBuf,
    /// Those of jobs, with their names and tests that are not run.
    jobs: Vec<(&'static str, &'static [&'static str], PathBuf)>,
    /// The command. Tests look for it where it was built.
    command: PathBuf,
}

/// What `cargo xtask ci` does to all crates, with the feature.
fn lint(checkout: &Checkout) -> Result<(), Failure> {
    let features = "gapless-btl-ib/ib,gapless/ib";
    let package = ["-p", "gapless-btl-ib", "-p", "gapless", "--features", features];
    let mut clippy = shell::cargo();
    clippy.current_dir(&checkout.root).arg("clippy").args(package);
    shell::run(clippy.args(["--all-targets", "--", "-D", "warnings"]))?;
    let mut doc = shell::cargo();
    doc.current_dir(&checkout.root).arg("doc").args(package);
    shell::run(doc.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings"))
}

/// Builds all programs.
fn build(checkout: &Checkout) -> Result<Programs, Failure> {
    let transport = ["-p", "gapless-btl-ib", "--features", "ib", "--lib"];
    let mut jobs = vec!["--workspace", "--features", "gapless-cli/ib"];
    jobs.extend(PROGRAMS.iter().flat_map(|(name, _)| ["--test", name]));
    let (transport, jobs) = (executables(checkout, &transport)?, executables(checkout, &jobs)?);
    let find = |all: &[Artifact], name: &str| {
        let found = all.iter().find(|artifact| artifact.target.name == name);
        let path = found.and_then(|artifact| artifact.executable.clone());
        path.ok_or_else(|| Failure::Missing(format!("the program {name}")))
    };
    let command = find(&jobs, COMMAND)?;
    let needed = shell::output(Command::new("ldd").arg(&command))?;
    if ["ibverbs", "rdmacm"].iter().any(|library| needed.contains(library)) {
        println!("{needed}");
        let what = "libraries of rdma-core without which the command does not start";
        return Err(Failure::Found { what, number: 1 });
    }
    let each = PROGRAMS.iter().map(|(name, skipped)| Ok((*name, *skipped, find(&jobs, name)?)));
    Ok(Programs {
        transport: find(&transport, "gapless_btl_ib")?,
        jobs: each.collect::<Result<_, Failure>>()?,
        command,
    })
}

/// Builds tests without running them.
fn executables(checkout: &Checkout, what: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).arg("test").args(what);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    shell::show(&command);
    let text = shell::output(command.stderr(Stdio::inherit()))?;
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    Ok(artifacts.filter(|artifact| artifact.executable.is_some()).collect())
}

/// Runs the guest to its end.
fn boot(kernel: &kernel::Kernel, files: &Path, work: &Path, seconds: u64) -> Result<(), Failure> {
    let shared = format!("local,path={},mount_tag=work,security_model=none", work.display());
    let mut command = Command::new("qemu-system-x86_64");
    // Emulated also where KVM is there: a stock kernel fails under some.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "512"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-serial", "stdio", "-append"]).arg(
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable",
    );
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(files);
    command.args(["-virtfs", &shared]);
    shell::show(&command);
    let console = work.join("console");
    let console = fs::File::create(&console)
        .map_err(|source| Failure::File { path: console.clone(), source })?;
    command.stdin(Stdio::null()).stdout(console);
    let mut guest = command.spawn().map_err(|source| shell::could_not_start(&command, source))?;
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        let ended = guest.try_wait().map_err(|source| shell::could_not_start(&command, source))?;
        if ended.is_some() {
            return Ok(());
        }
        if Instant::now() > until {
            println!("the guest takes longer than {seconds} s");
            let _ = guest.kill();
            let _ = guest.wait();
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
