//! `cargo xtask verbs`: the tests of btl-ib, and of jobs over it, over real verbs, without an adapter.
//!
//! A stock Debian kernel runs in a software-emulated QEMU guest, with two ports of its Soft-RoCE driver on the two ends of
//! a pair of virtual network devices. The test programs are built here, with the feature `ib`, and run there one after the
//! other: those of btl-ib, of XTQ ([`TASKS`]) and of jobs ([`PROGRAMS`]). In this order:
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

use crate::artifact::{self, Artifact};
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
    ("hosts", &["together::", "shared::", "lost::", "rails::", "tasks::"]),
    (
        "links",
        &[
            "device_order::",
            "over_every_link",
            "of_two_rails",
            "over_any_transport",
            "over_tcp",
            "opencl_",
            "cuda_",
            "packed_memory",
            "nothing_serves",
        ],
    ),
];
/// Tests of XTQ that put tasks into rings on another host: the suite of all back ends, and what workers alone have.
const TASKS: &[&str] = &["host::tests::suite", "host::tests::worker"];
/// The package of the transport.
const TRANSPORT: &str = "gapless-btl-ib";
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

/// Tests of the transport that the [sample] leaves out: they take half the time, most of it waiting.
const LONG: &[&str] = &[
    "a_peer_that_does_not_poll_is_not_lost",
    "every_way_to_local_memory_moves_the_same_bytes",
    "rdma_in_many_pieces",
    "retained_across_a_cut",
];
/// The seed of the others there.
const SAMPLE_SEED: &str = "1";
/// Seconds that the guest gets for them: several times what it takes on two idle processors.
const SAMPLE_SECONDS: u64 = 400;
/// What is skipped where the tests cannot run.
const WHAT: &str = "btl-ib over Soft-RoCE";

/// Runs the tests whose names contain one of `filters`, or all.
pub(crate) fn run(checkout: &Checkout, filters: &[String], seconds: u64) -> Result<(), Failure> {
    let Some(place) = GuestPlace::ready(checkout)? else { return Ok(()) };
    if filters.is_empty() {
        shell::timed("lints and documentation", || lint(checkout)).0?;
    }
    let programs = shell::timed("the test programs", || build(checkout)).0?;
    report(&place, &programs, filters, seconds)
}

/// Runs those of the transport alone.
pub(crate) fn run_transport(
    checkout: &Checkout,
    filters: &[String],
    seconds: u64,
) -> Result<(), Failure> {
    let Some(place) = GuestPlace::ready(checkout)? else { return Ok(()) };
    let transport = shell::timed("the test program", || library(checkout, TRANSPORT)).0?;
    let programs = Programs::of_transport(transport, &[]);
    report(&place, &programs, filters, seconds)
}

/// Runs programs in a guest, and says how that ended.
fn report(
    place: &GuestPlace,
    programs: &Programs,
    filters: &[String],
    seconds: u64,
) -> Result<(), Failure> {
    let seed = std::env::var("GAPLESS_SEED").unwrap_or_else(|_| guest::seed());
    let end = place.run(programs, filters, &seed, seconds)?;
    if end.passed {
        println!("{WHAT}: passed, {:.0} s in the guest", end.took.as_secs_f64());
        return Ok(());
    }
    Err(Failure::Found { what: "tests over Soft-RoCE that failed", number: 1 })
}

/// Lints btl-ib, and runs its tests without jobs and without [`LONG`], with a fixed seed: what `cargo xtask test --rest` does.
/// Nothing where they cannot run, which is then in the log of what was skipped.
pub(crate) fn sample(checkout: &Checkout) -> Result<Option<GuestEnd>, Failure> {
    let Some(place) = GuestPlace::ready(checkout)? else { return Ok(None) };
    let package = ["-p", "gapless-btl-ib", "--features", "ib", "--all-targets"];
    let mut clippy = shell::cargo();
    clippy.current_dir(&checkout.root).arg("clippy").args(package).args(["--", "-D", "warnings"]);
    shell::timed("lints", || shell::run(&mut clippy)).0?;
    let transport = shell::timed("the test program", || library(checkout, TRANSPORT)).0?;
    let programs = Programs::of_transport(transport, LONG);
    place.run(&programs, &[], SAMPLE_SEED, SAMPLE_SECONDS).map(Some)
}

/// How the tests in a guest ended.
pub(crate) struct GuestEnd {
    pub(crate) passed: bool,
    /// What they said.
    pub(crate) log: String,
    /// What they skipped, in the lines of [`mod@crate::skips`].
    pub(crate) skips: String,
    took: Duration,
}

/// Where guests run.
struct GuestPlace {
    folder: PathBuf,
    kernel: kernel::Kernel,
}

impl GuestPlace {
    /// Packages and kernel are there, or it is said why they are not.
    fn ready(checkout: &Checkout) -> Result<Option<GuestPlace>, Failure> {
        let folder = checkout.target.join("xtask").join("verbs");
        match shell::timed("packages and kernel", || prepare(&folder)).0 {
            Ok(kernel) => Ok(Some(GuestPlace { folder, kernel })),
            Err(Missing(why)) => {
                let what = WHAT.to_owned();
                println!("SKIPPED: {what}: {why}");
                SkipLog::open(&checkout.target.join("xtask"))?.add(&Skip { what, why })?;
                Ok(None)
            }
        }
    }

    /// Runs tests in a guest, and shows what they say.
    fn run(
        &self,
        programs: &Programs,
        filters: &[String],
        seed: &str,
        seconds: u64,
    ) -> Result<GuestEnd, Failure> {
        let work = self.folder.join("work");
        let files = shell::timed("the guest's files", || {
            let _ = fs::remove_dir_all(&work);
            make_folder(&work)?;
            guest::files(&self.folder, &self.kernel, programs, filters, seed)
        });
        let (seen, took) =
            shell::timed("tests in the guest", || boot(&self.kernel, &files.0?, &work, seconds));
        seen?;
        let read = |name| fs::read_to_string(work.join(name)).unwrap_or_default();
        let (log, skips) = (read("log"), read("skips"));
        println!("{}", log.trim_end());
        print!("{skips}");
        let status = read("status");
        let passed = status.trim() == "0";
        if !passed {
            println!("{}", read("console"));
            println!("the guest ended with the status {:?}", status.trim());
        }
        Ok(GuestEnd { passed, log, skips, took })
    }
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

/// What was built.
pub(super) struct Programs {
    /// The tests of btl-ib, and those of them that are not run.
    transport: PathBuf,
    skipped: &'static [&'static str],
    /// Those of jobs, with their names and tests that are not run.
    jobs: Vec<(&'static str, &'static [&'static str], PathBuf)>,
    /// The tests of XTQ.
    tasks: Option<PathBuf>,
    /// The command, which jobs need. Tests look for it where it was built.
    command: Option<PathBuf>,
}

impl Programs {
    /// The tests of btl-ib alone.
    fn of_transport(transport: PathBuf, skipped: &'static [&'static str]) -> Programs {
        Programs { transport, skipped, jobs: Vec::new(), tasks: None, command: None }
    }
}

/// What `cargo xtask ci` does to all crates, with the feature.
fn lint(checkout: &Checkout) -> Result<(), Failure> {
    let features = "gapless-btl-ib/ib,gapless-xtq/ib,gapless/ib";
    let package =
        ["-p", "gapless-btl-ib", "-p", "gapless-xtq", "-p", "gapless", "--features", features];
    let mut clippy = shell::cargo();
    clippy.current_dir(&checkout.root).arg("clippy").args(package);
    shell::run(clippy.args(["--all-targets", "--", "-D", "warnings"]))?;
    let mut doc = shell::cargo();
    doc.current_dir(&checkout.root).arg("doc").args(package);
    shell::run(doc.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings"))
}

/// Builds all programs.
fn build(checkout: &Checkout) -> Result<Programs, Failure> {
    let transport = library(checkout, TRANSPORT)?;
    let tasks = library(checkout, "gapless-xtq")?;
    let mut jobs = vec!["--workspace", "--features", "gapless-cli/ib"];
    jobs.extend(PROGRAMS.iter().flat_map(|(name, _)| ["--test", name]));
    let jobs = executables(checkout, &jobs)?;
    let command = find(&jobs, COMMAND)?;
    let needed = shell::output(Command::new("ldd").arg(&command))?;
    if ["ibverbs", "rdmacm"].iter().any(|library| needed.contains(library)) {
        println!("{needed}");
        let what = "libraries of rdma-core without which the command does not start";
        return Err(Failure::Found { what, number: 1 });
    }
    let each = PROGRAMS.iter().map(|(name, skipped)| Ok((*name, *skipped, find(&jobs, name)?)));
    Ok(Programs {
        transport,
        skipped: &[],
        jobs: each.collect::<Result<_, Failure>>()?,
        tasks: Some(tasks),
        command: Some(command),
    })
}

/// Builds the tests in a package's library.
fn library(checkout: &Checkout, package: &str) -> Result<PathBuf, Failure> {
    let built = executables(checkout, &["-p", package, "--features", "ib", "--lib"])?;
    find(&built, &package.replace('-', "_"))
}

fn find(all: &[Artifact], name: &str) -> Result<PathBuf, Failure> {
    let found = all.iter().find(|it| it.target.as_ref().is_some_and(|target| target.name == name));
    let path = found.and_then(|artifact| artifact.executable.clone());
    path.ok_or_else(|| Failure::Missing(format!("the program {name}")))
}

/// Builds tests without running them.
fn executables(checkout: &Checkout, what: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).arg("test").args(what);
    let mut built = artifact::built(command.arg("--no-run"))?;
    built.retain(|artifact| artifact.executable.is_some());
    Ok(built)
}

/// Runs the guest to its end.
fn boot(kernel: &kernel::Kernel, files: &Path, work: &Path, seconds: u64) -> Result<(), Failure> {
    let shared = format!("local,path={},mount_tag=work,security_model=none", work.display());
    let mut command = Command::new("qemu-system-x86_64");
    // Emulated also where KVM is there: a stock kernel fails under some.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "1024"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-serial", "stdio", "-append"]).arg(
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable no_timer_check",
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
