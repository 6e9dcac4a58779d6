//! `cargo xtask mpi`: the MPI library as users take it, in a folder of its own.
//!
//! ```text
//! target/mpi/lib/libmpi_abi.so.1     the standard ABI of MPI 5.0; libmpi_abi.so beside it
//! target/mpi/lib/libmpi.so.12        MPICH's ABI, for programs that were built with MPICH; libmpi.so, libmpich.so.12
//! target/mpi/include/mpi.h           its header
//! target/mpi/bin/mpicc, mpicxx       the system's compilers, with that header and library
//! target/mpi/bin/mpiexec, mpirun     `gapless run`, which takes hydra's options
//! ```
//!
//! rustc makes no library with weak symbols, so it makes an archive, and `cc` links it: with the aliases `MPI_X` of
//! `PMPI_X`, which are weak, and a script that exports nothing else. Both, and the header, are made by the build script of
//! `gapless-mpi` from its table.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::verbs::make_folder;
use crate::{Failure, artifact, shell};

/// The standard ABI's library, and its other names.
pub(crate) const STANDARD: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so"];
/// The library with MPICH's ABI, and its other names.
pub(crate) const MPICH: &[&str] = &["libmpi.so.12", "libmpi.so", "libmpich.so.12"];
/// Our compilers, what names others in their place, and theirs.
pub(crate) const COMPILERS: [(&str, &str, &str); 2] =
    [("mpicc", "MPICC_CC", "cc"), ("mpicxx", "MPICXX_CXX", "c++")];

/// What cargo has built.
struct Parts {
    /// The archive of `gapless-mpi`.
    archive: PathBuf,
    /// What its build script made.
    made: PathBuf,
    /// The command `gapless`.
    command: PathBuf,
}

/// What is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Both libraries, optimised.
    Release,
    /// Both libraries, as tests are built.
    Dev,
    /// The standard ABI's, of what the workspace's tests were built with: nothing is compiled if they are built.
    WithTests,
}

impl Build {
    /// Both libraries; `dev`: as tests are built.
    pub(crate) fn of(dev: bool) -> Build {
        if dev { Build::Dev } else { Build::Release }
    }
}

/// Builds all of it.
pub(crate) fn run(checkout: &Checkout, what: Build) -> Result<(), Failure> {
    let folder = checkout.target.join("mpi");
    let [lib, include, bin] = ["lib", "include", "bin"].map(|name| folder.join(name));
    for part in [&lib, &include, &bin] {
        make_folder(part)?;
    }
    if what != Build::WithTests {
        let mpich = build(checkout, what, &["--features", "gapless-mpi/mpich"])?;
        link(&mpich.archive, &mpich.made, &lib, MPICH)?;
    }
    let Parts { archive, made, command } = build(checkout, what, &[])?;
    link(&archive, &made, &lib, STANDARD)?;
    copy(&made.join("mpi.h"), &include.join("mpi.h"))?;
    copy(&command, &bin.join("gapless"))?;
    for (name, variable, compiler) in COMPILERS {
        script(&bin.join(name), &compiler_script(variable, compiler, ""))?;
    }
    for name in ["mpiexec", "mpirun"] {
        script(&bin.join(name), &launcher_script("gapless"))?;
    }
    println!("{}", folder.display());
    Ok(())
}

/// Starts a job by the command beside it; hydra's options are those of `gapless run`.
pub(crate) fn launcher_script(command: &str) -> String {
    format!("#!/bin/sh\nexec \"$(dirname \"$(readlink -f \"$0\")\")/{command}\" run \"$@\"\n")
}

/// A compiler with the header and the library of the folder that it is in; `below`: their own folder there.
pub(crate) fn compiler_script(variable: &str, compiler: &str, below: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # The compiler is {compiler}, or what {variable} names; -show prints the command.\n\
         prefix=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\n\
         show=\n\
         case $1 in -show|--show|-showme) show=echo; shift;; esac\n\
         exec $show ${{{variable}:-{compiler}}} -I\"$prefix/include{below}\" \"$@\" \
         -L\"$prefix/lib{below}\" -Wl,-rpath,\"$prefix/lib{below}\" -lmpi_abi\n"
    )
}

fn build(checkout: &Checkout, what: Build, features: &[&str]) -> Result<Parts, Failure> {
    let mut cargo = shell::cargo();
    cargo.current_dir(&checkout.root);
    match what {
        Build::WithTests => {
            cargo.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"]);
        }
        Build::Release => {
            cargo.args(["build", "--release", "-p", "gapless-mpi", "-p", "gapless-cli"]);
        }
        Build::Dev => {
            cargo.args(["build", "-p", "gapless-mpi", "-p", "gapless-cli"]);
        }
    }
    let (mut archive, mut made, mut command) = (None, None, None);
    for built in artifact::built(cargo.args(features))? {
        let is_mpi = built.package_id.contains("/mpi#");
        if is_mpi && built.out_dir.is_some() {
            made = built.out_dir;
        } else if is_mpi {
            // Its unit tests are built, too, and have none.
            let is_archive = |name: &PathBuf| name.extension().is_some_and(|end| end == "a");
            archive = built.filenames.into_iter().find(is_archive).or(archive);
        } else if built.executable.as_ref().is_some_and(|name| name.ends_with("gapless")) {
            command = built.executable;
        }
    }
    match (archive, made, command) {
        (Some(archive), Some(made), Some(command)) => Ok(Parts { archive, made, command }),
        _ => {
            Err(Failure::Argument("cargo did not say what it has built of gapless-mpi".to_owned()))
        }
    }
}

/// Links a library with the first of these names, and gives it the others, too.
fn link(archive: &Path, made: &Path, lib: &Path, names: &[&str]) -> Result<(), Failure> {
    let [name, others @ ..] = names else { return Ok(()) };
    let library = lib.join(name);
    let mut cc = Command::new("cc");
    cc.arg(format!("@{}", made.join("link.args").display()));
    cc.arg("-o").arg(&library).arg(format!("-Wl,-soname,{name}")).arg(archive);
    cc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"]);
    shell::run(&mut cc)?;
    for other in others.iter().map(|other| lib.join(other)) {
        let _ = fs::remove_file(&other);
        std::os::unix::fs::symlink(name, &other).map_err(|source| at(&other, source))?;
    }
    Ok(())
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    // A program that runs is not written to, but may be unlinked.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(|source| at(to, source))
}

pub(crate) fn script(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| at(path, source))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|source| at(path, source))
}

pub(crate) fn at(path: &Path, source: std::io::Error) -> Failure {
    Failure::File { path: path.to_owned(), source }
}
