//! An MPI library that is judged, and its launcher.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::place::limited;
use crate::{Failure, shell};

/// Seconds that a job gets.
const SECONDS: u64 = 300;

/// MPICH's [`Library::name`].
pub(super) const MPICH_NAME: &str = "mpich";

/// A library and its launcher.
pub(super) struct Library {
    pub(super) name: &'static str,
    /// With `bin/mpiexec` and `lib`.
    pub(super) prefix: PathBuf,
    pub(super) limit: Limit,
}

/// How the launcher is told how long a job may take.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// By an option; another says that there may be more ranks than processors.
    Option,
    /// By a variable.
    Variable,
}

impl Library {
    /// The launcher's command line, without the number of ranks: `… -n`.
    pub(super) fn launcher(&self) -> Vec<String> {
        let mut words = vec![self.prefix.join("bin/mpiexec").display().to_string()];
        if let Limit::Option = self.limit {
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
        if let Limit::Variable = self.limit {
            command.env("MPIEXEC_TIMEOUT", SECONDS.to_string());
        }
        // Libraries of numerics otherwise start threads that nobody needs here.
        command.envs([("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")]);
        command
    }
}

/// Runs a command with its output in a file; whether it ended well, and what it said.
pub(super) fn said(command: &mut Command, log: &Path) -> Result<(bool, String), Failure> {
    let at = |source| Failure::File { path: log.to_owned(), source };
    let file = fs::File::create(log).map_err(at)?;
    command.stdin(Stdio::null()).stderr(file.try_clone().map_err(at)?).stdout(file);
    let status = command.status().map_err(|source| shell::could_not_start(command, source))?;
    let text = fs::read(log).map_err(at)?;
    Ok((status.success(), String::from_utf8_lossy(&text).into_owned()))
}
