//! Jobs under launchers that are not ours: MPICH's `mpiexec.hydra` (PMI-1, over a descriptor and over a
//! port) and Open MPI's `mpirun` (PMIx), the real ones. Each test runs under every launcher that is
//! installed, as root too; what is missing is skipped aloud.

mod again;
mod departing;
mod dying;
mod half;
mod hostile;
mod meeting;

use crate::common::{again, finish, is_rank, skip, text};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// No job here takes longer unless something hangs.
const WATCHDOG: Duration = Duration::from_secs(100);

/// A way to start processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    /// PMI-1 over a descriptor.
    Hydra,
    /// PMI-1 over TCP.
    HydraPort,
    /// PMIx.
    OpenMpi,
}

impl Launcher {
    const ALL: [Launcher; 3] = [Launcher::Hydra, Launcher::HydraPort, Launcher::OpenMpi];

    /// The command line that starts `ranks` processes of what is appended; `None`, said aloud, if
    /// the launcher is not installed.
    fn command(self, ranks: u32) -> Option<Command> {
        static HYDRA: OnceLock<Option<&str>> = OnceLock::new();
        static OPEN_MPI: OnceLock<Option<&str>> = OnceLock::new();
        let (installed, what, why) = match self {
            Launcher::Hydra | Launcher::HydraPort => {
                let hydra = HYDRA.get_or_init(|| speaks(&["mpiexec.hydra"], "HYDRA"));
                (*hydra, "jobs under MPICH's mpiexec", "mpiexec.hydra is not installed")
            }
            Launcher::OpenMpi => {
                let names = ["mpirun.openmpi", "mpirun"];
                let mpirun = OPEN_MPI.get_or_init(|| speaks(&names, "Open MPI"));
                (*mpirun, "jobs under Open MPI's mpirun", "it is not installed")
            }
        };
        let Some(program) = installed else {
            skip(what, why);
            return None;
        };
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env_remove("RUST_LOG");
        if self == Launcher::HydraPort {
            command.arg("-pmi-port");
        }
        // In containers everybody is root, and has few processors; versions 4 and 5 of Open MPI.
        for (name, value) in [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ] {
            command.env(name, value);
        }
        if self == Launcher::OpenMpi {
            command.env("TMPDIR", session_folder());
        }
        command.args(["-n", &ranks.to_string()]);
        Some(command)
    }
}

/// A folder for the session of one job under Open MPI. Its release 4 puts every session of a user into the same
/// folder, and of two jobs that begin at once one may fail because that folder "exists" already.
fn session_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("open-mpi-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("Cargo's folder for tests is there");
    folder
}

/// The first of these programs that says so of itself.
fn speaks(names: &[&'static str], word: &str) -> Option<&'static str> {
    names.iter().copied().find(|name| {
        let output = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        output.is_ok_and(|output| text(&output.stdout).contains(word))
    })
}

/// A test binary's arguments: one test alone, as a rank.
fn as_ranks(command: &mut Command, name: &str) {
    let words: Vec<OsString> = again(name);
    command.args(words).env(crate::common::BODY, name);
}

/// Runs `body` in `ranks` processes under each launcher, and hands each job's output to `check`. To be
/// all that the test called `name` does.
fn under_each(
    ranks: u32,
    name: &str,
    body: impl FnOnce(),
    mut check: impl FnMut(Launcher, &Output),
) {
    if is_rank(name) {
        return body();
    }
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(ranks) else { continue };
        as_ranks(&mut command, name);
        check(launcher, &finish(command, WATCHDOG));
    }
}

/// As [`under_each`]; every process must pass.
fn pass_under_each(ranks: u32, name: &str, body: impl FnOnce()) {
    under_each(ranks, name, body, |launcher, output| {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{launcher:?}: {}\n{out}\n{err}", output.status);
        crate::common::assert_ran(output, ranks);
    });
}
