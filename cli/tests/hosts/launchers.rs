//! The launchers of others over two hosts, as they are on clusters: each starts its own daemons on the other host, by a
//! program in the place of `ssh`, and its own protocol carries the addresses. What is not installed is skipped aloud.
//!
//! `PATH` says which release of a launcher runs. `GAPLESS_SHOW_LAUNCHERS=1` prints what ran on what.

mod ending;
mod killed;

use super::namespaces::Namespaces;
use super::slurm::Slurm;
use super::{WATCHDOG, host_of};
use crate::common::{self, BODY, again, finish_all, is_rank, skip, text};
use gapless::World;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A launcher of several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    Hydra,
    /// Its proxies are reached over TCP by processes, too.
    HydraPort,
    OpenMpi,
    /// Our own, which hands over to hydra.
    Ours,
    /// The same, to `prterun`.
    OursToPrrte,
    /// The same, to what is called `mpirun`, which says what it is.
    OursToMpirun,
}

pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|it| it.is_file())
}

/// The line of `--version` that names the release.
fn version(program: &OsStr, word: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.contains(word))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Open MPI's launcher, the first one on the search path, under whichever name; and what it is.
fn open_mpi() -> Option<(PathBuf, String)> {
    let found = ["mpirun.openmpi", "mpirun"].into_iter().filter_map(on_path);
    let found = found.filter_map(|it| version(it.as_os_str(), "Open MPI").map(|what| (it, what)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    found.min_by_key(|it| folders.iter().position(|folder| Some(&**folder) == it.0.parent()))
}

/// A folder with nothing but this program in it, under this name, which finds the others as ever.
fn alone(hosts: &Namespaces, program: &Path, name: &str) -> PathBuf {
    let folder = hosts.folder().join(format!("alone-{name}"));
    let path = folder.join(name);
    std::fs::create_dir_all(&folder).expect("the folder is ours");
    let all = std::env::var("PATH").unwrap_or_default();
    let script = format!("#!/bin/sh\nPATH='{all}' exec '{}' \"$@\"\n", program.display());
    gapless_testkit::write_script(&path, &script);
    folder
}

impl Launcher {
    const ALL: [Launcher; 6] = [
        Launcher::Hydra,
        Launcher::HydraPort,
        Launcher::OpenMpi,
        Launcher::Ours,
        Launcher::OursToPrrte,
        Launcher::OursToMpirun,
    ];

    /// What starts `ranks` of what is appended, two on each host, called on the first one; and what it is. `None`, said
    /// aloud, if it is not installed.
    fn command(self, hosts: &Namespaces, ranks: u32) -> Option<(Command, String)> {
        let (names, ranks) = ("host-a:2,host-b:2", ranks.to_string());
        let shell = hosts.remote_shell();
        let missing = |what: &str| {
            skip(&format!("{self:?} over two hosts"), &format!("{what} is not installed"));
            None
        };
        let mut words: Vec<OsString> = hosts.enter(0);
        let mut variables: Vec<(&str, OsString)> = Vec::new();
        let what = match self {
            Launcher::Hydra | Launcher::HydraPort => {
                let Some(program) = on_path("mpiexec.hydra") else {
                    return missing("mpiexec.hydra");
                };
                words.push(program.clone().into());
                words.extend(["-launcher", "ssh", "-launcher-exec"].map(OsString::from));
                words.push(shell.into());
                words.extend((self == Launcher::HydraPort).then(|| "-pmi-port".into()));
                words.extend(["-hosts", names, "-n", &ranks].map(OsString::from));
                version(program.as_os_str(), "Version:")
            }
            Launcher::OpenMpi => {
                let Some((program, what)) = open_mpi() else {
                    return missing("Open MPI's mpirun");
                };
                words.push(program.into());
                words.extend(["--host", names, "-n", &ranks, "-x", BODY].map(OsString::from));
                // Two jobs that begin at once quarrel about a folder that all would share.
                variables.push(("TMPDIR", hosts.folder().into()));
                variables.push(("OMPI_MCA_plm_rsh_agent", shell.clone().into()));
                variables.push(("PRTE_MCA_plm_ssh_agent", shell.into()));
                Some(what)
            }
            Launcher::Ours | Launcher::OursToPrrte | Launcher::OursToMpirun => {
                let (theirs, word) = match self {
                    Launcher::Ours => ("mpiexec.hydra", "Version:"),
                    Launcher::OursToPrrte => ("prterun", "prterun"),
                    _ => ("mpirun", "Open MPI"),
                };
                // A `prterun` that does not find its files says no version, and starts nothing.
                let able =
                    |it: &PathBuf| theirs != "prterun" || version(it.as_os_str(), word).is_some();
                let found = match theirs {
                    "mpirun" => open_mpi().map(|(program, _)| program),
                    name => on_path(name).filter(able),
                };
                let Some(program) = found else { return missing(theirs) };
                words.push(env!("CARGO_BIN_EXE_gapless").into());
                words.extend(["run", "--hosts", names, "-n", &ranks].map(OsString::from));
                variables.push(("PATH", alone(hosts, &program, theirs).into()));
                variables.push(("HYDRA_LAUNCHER", "ssh".into()));
                variables.push(("HYDRA_LAUNCHER_EXEC", shell.clone().into()));
                variables.push(("OMPI_MCA_plm_rsh_agent", shell.clone().into()));
                variables.push(("PRTE_MCA_plm_ssh_agent", shell.into()));
                version(program.as_os_str(), word)
            }
        };
        // `nsenter` is looked for before the search path is narrowed.
        let entry = on_path("nsenter").map_or_else(|| words[0].clone(), OsString::from);
        let mut command = Command::new(entry);
        command.args(&words[1..]).envs(variables).stdin(Stdio::null()).env_remove("RUST_LOG");
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        Some((command, what.unwrap_or_default()))
    }
}

/// Runs a test's body in four ranks under each launcher, two on each host. To be all that the test called `name` does.
fn under_each(name: &str, body: impl FnOnce(World)) {
    if is_rank(name) {
        return body(World::init().expect("the world comes to be"));
    }
    each(name, |make, what| run(make(), name, what));
}

/// Calls `job` for each launcher that is installed, with what makes commands that start four ranks of what is appended,
/// two on each host, and with what the launcher is.
fn each(name: &str, mut job: impl FnMut(&dyn Fn() -> Command, &str)) {
    let Some(hosts) = Namespaces::new(name) else { return };
    for launcher in Launcher::ALL {
        let Some((_, what)) = launcher.command(&hosts, 4) else { continue };
        let make = || launcher.command(&hosts, 4).expect("it is installed").0;
        job(&make, &format!("{launcher:?} ({what})"));
    }
    let slurm = match Slurm::start(&hosts) {
        Ok(slurm) => slurm,
        Err(why) => return skip("Slurm over two hosts", &why),
    };
    for language in ["pmi2", "pmix"] {
        match slurm.two_on_each(language) {
            Ok(_) => {
                let make = || slurm.two_on_each(language).expect("it has started jobs");
                job(&make, &format!("srun --mpi={language}"));
            }
            Err(why) => skip(&format!("srun --mpi={language} over two hosts"), &why),
        }
    }
}

/// Runs a test's job to its end, in which all four ranks have to pass, and says how long that took if that is wanted.
fn run(mut command: Command, name: &str, what: &str) {
    command.env(BODY, name).args(again(name));
    let begin = Instant::now();
    let output = finish_all(command, WATCHDOG);
    show(what, begin);
    common::assert_ran(&output, 4);
}

/// Says how long something took, if that is wanted.
fn show(what: &str, begin: Instant) {
    if std::env::var_os("GAPLESS_SHOW_LAUNCHERS").is_some() {
        eprintln!("{what}: {:.1} s", begin.elapsed().as_secs_f64());
    }
}

/// Everybody talks to everybody, by shared memory on a host and by TCP between them.
#[test]
fn jobs_of_others_launchers_meet_over_two_hosts() {
    let name = "launchers::jobs_of_others_launchers_meet_over_two_hosts";
    let body = |world: World| {
        let (comm, me) = (world.comm(), world.rank());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(
            host.trim(),
            super::namespaces::NAMES[host_of(me)],
            "rank {me} is where it should be"
        );
        for round in 0..3u8 {
            for other in (0..comm.size()).filter(|&other| other != me) {
                let (out, mut into) = (vec![round; 50_000], vec![0u8; 50_000]);
                comm.sendrecv(&out, (other, 5), &mut into, (other, 5)).unwrap();
                assert_eq!(out, into);
            }
        }
        for other in (0..comm.size()).filter(|&other| other != me) {
            let link = world.link(other).unwrap();
            let carrier = link.limits.expect("it stands").name;
            let due = if host_of(me) == host_of(other) { "sm" } else { "tcp" };
            assert_eq!(carrier, due, "from {me} to {other}");
        }
        let mut sum = [0u32];
        comm.allreduce(&[me + 1], &mut sum, gapless::ReduceOp::Sum).unwrap();
        assert_eq!(sum, [10]);
        world.finalize().unwrap();
    };
    under_each(name, body);
}

/// A job of several hosts without a launcher that knows them is an error of one line.
#[test]
fn without_a_launcher_of_several_hosts_it_is_said_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = common::gapless();
    command.env("PATH", folder.path()).args(["run", "--hosts", "a,b", "-n", "2", "/bin/true"]);
    let output = common::finish(command, WATCHDOG);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("apt-get install mpich") && said.contains("prterun"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
}
