//! Where the judges are: a virtual environment in the target folder, mpi4py's source, and mpi4py as built with our `mpicc`.
//! pip fetches all of it, once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::verbs::make_folder;
use crate::{Failure, shell, tools};

/// The version whose tests are run.
const MPI4PY: &str = "4.1.2";
/// MPICH as its own developers pack it, with the standard's ABI.
const MPICH: &str = "mpich==5.0.2";
/// What building and testing need.
const PACKAGES: &[&str] = &["setuptools", "wheel", "cython>=3,<4", "numpy"];

/// What is there to run.
pub(super) struct Setup {
    /// Where results go, in a folder for each library and number of ranks.
    pub(super) results: PathBuf,
    pub(super) python: PathBuf,
    /// mpi4py's tests.
    pub(super) tests: PathBuf,
    /// What runs them.
    pub(super) driver: PathBuf,
    /// Where MPICH is, if it is.
    pub(super) mpich: PathBuf,
}

impl Setup {
    /// Brings what is missing; `peer`: MPICH, too.
    pub(super) fn ready(checkout: &Checkout, peer: bool) -> Result<Setup, Failure> {
        let folder = checkout.target.join("judges");
        let venv = folder.join("venv");
        let python = venv.join("bin/python");
        if !tools::on_search_path("python3") {
            return Err(Failure::Missing("python3".to_owned()));
        }
        make_folder(&folder)?;
        once(&folder, "packages", || {
            shell::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
            shell::run(pip(&python, "install").args(PACKAGES))
        })?;
        let source = folder.join(format!("mpi4py-{MPI4PY}"));
        once(&folder, &format!("source-{MPI4PY}"), || {
            let mut download = pip(&python, "download");
            download.args(["--no-deps", "--no-build-isolation", "--no-binary", "mpi4py", "--dest"]);
            shell::run(download.arg(&folder).arg(format!("mpi4py=={MPI4PY}")))?;
            let archive = folder.join(format!("mpi4py-{MPI4PY}.tar.gz"));
            shell::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))
        })?;
        once(&folder, &format!("mpi4py-{MPI4PY}"), || {
            let mut install = pip(&python, "install");
            install.args(["--no-deps", "--no-build-isolation"]).arg(&source);
            install.env("MPICC", checkout.target.join("mpi/bin/mpicc"));
            // What is compiled are wrappers of functions; optimising them takes minutes.
            shell::run(install.env("CFLAGS", "-O0"))
        })?;
        if peer {
            once(&folder, MPICH, || shell::run(pip(&python, "install").arg(MPICH)))?;
        }
        Ok(Setup {
            results: folder.join("results"),
            tests: source.join("test"),
            driver: checkout.root.join("xtask/src/judges/drive.py"),
            mpich: venv,
            python,
        })
    }

    /// The modules of tests, sorted.
    pub(super) fn modules(&self) -> Result<Vec<String>, Failure> {
        let failure = |source| Failure::File { path: self.tests.clone(), source };
        let mut modules = Vec::new();
        for entry in fs::read_dir(&self.tests).map_err(failure)? {
            let name = entry.map_err(failure)?.file_name();
            let module = name.to_str().and_then(|name| name.strip_suffix(".py"));
            modules.extend(module.filter(|name| name.starts_with("test_")).map(str::to_owned));
        }
        modules.sort();
        Ok(modules)
    }
}

fn pip(python: &Path, what: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", what, "--quiet", "--disable-pip-version-check"]);
    command
}

/// Does something unless it was done: a file says so.
fn once(
    folder: &Path,
    what: &str,
    act: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let done = folder.join(format!("{what}.done"));
    if done.exists() {
        return Ok(());
    }
    act()?;
    fs::write(&done, "").map_err(|source| Failure::File { path: done.clone(), source })
}
