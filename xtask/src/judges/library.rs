//! An MPI library that is judged, and its launcher.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::limited;

/// Seconds that a job gets.
const SECONDS: u64 = 300;

/// MPICH's [`Library::name`].
pub(super) const MPICH_NAME: &str = "mpich";

/// A library and its launcher.
pub(super) struct Library {
    pub(super) name: &'static str,
    /// With `bin/mpiexec` and `lib`.
    pub(super) prefix: PathBuf,
}

impl Library {
    /// The launcher's command line, without the number of ranks: `… -n`.
    pub(super) fn launcher(&self) -> Vec<String> {
        let mut words = vec![self.prefix.join("bin/mpiexec").display().to_string()];
        // MPICH's is told by a variable how long a job may take, and asks nothing about processors.
        if self.name != MPICH_NAME {
            words.extend(["--oversubscribe", "--timeout", &SECONDS.to_string()].map(str::to_owned));
        }
        words.push("-n".to_owned());
        words
    }

    /// Starts a program on so many ranks.
    pub(super) fn job(&self, ranks: u32, program: impl AsRef<Path>) -> Command {
        let launcher = self.launcher();
        let mut command = self.around(&launcher[0]);
        command.args(&launcher[1..]).arg(ranks.to_string()).arg(program.as_ref());
        command
    }

    /// A program that starts jobs by [`Library::launcher`].
    pub(super) fn around(&self, program: &str) -> Command {
        let mut command = limited(program);
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        if self.name == MPICH_NAME {
            command.env("MPIEXEC_TIMEOUT", SECONDS.to_string());
        }
        // Libraries of numerics otherwise start threads that nobody needs here.
        command.envs([("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")]);
        command
    }
}
