//! `cargo xtask mpi`: the MPI library as users take it, in a folder of its own.
//!
//! ```text
//! target/mpi/lib/libmpi_abi.so.1     the standard ABI of MPI 5.0; libmpi_abi.so beside it
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

use serde::Deserialize;

use crate::metadata::Checkout;
use crate::{Failure, shell};

/// A line of `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Built {
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    executable: Option<PathBuf>,
    out_dir: Option<PathBuf>,
}

/// What cargo has built.
struct Parts {
    /// The archive of `gapless-mpi`.
    archive: PathBuf,
    /// What its build script made.
    made: PathBuf,
    /// The command `gapless`.
    command: PathBuf,
}

/// Builds all of it; `dev`: as tests are built.
pub(crate) fn run(checkout: &Checkout, dev: bool) -> Result<(), Failure> {
    let folder = checkout.target.join("mpi");
    let Parts { archive, made, command } = build(checkout, dev)?;
    let [lib, include, bin] = ["lib", "include", "bin"].map(|name| folder.join(name));
    for part in [&lib, &include, &bin] {
        fs::create_dir_all(part).map_err(|source| at(part, source))?;
    }
    link(&archive, &made, &lib.join("libmpi_abi.so.1"))?;
    let short = lib.join("libmpi_abi.so");
    let _ = fs::remove_file(&short);
    std::os::unix::fs::symlink("libmpi_abi.so.1", &short).map_err(|source| at(&short, source))?;
    copy(&made.join("mpi.h"), &include.join("mpi.h"))?;
    copy(&command, &bin.join("gapless"))?;
    for (name, variable, compiler) in [("mpicc", "MPICC_CC", "cc"), ("mpicxx", "MPICXX_CXX", "c++")]
    {
        script(&bin.join(name), &compiler_script(variable, compiler))?;
    }
    for name in ["mpiexec", "mpirun"] {
        script(&bin.join(name), LAUNCHER)?;
    }
    println!("{}", folder.display());
    Ok(())
}

/// Starts a job; hydra's options are those of `gapless run`.
const LAUNCHER: &str =
    "#!/bin/sh\nexec \"$(dirname \"$(readlink -f \"$0\")\")/gapless\" run \"$@\"\n";

/// A compiler with the header and the library of the folder that it is in.
fn compiler_script(variable: &str, compiler: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # The compiler is {compiler}, or what {variable} names; -show prints the command.\n\
         prefix=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\n\
         show=\n\
         case $1 in -show|--show|-showme) show=echo; shift;; esac\n\
         exec $show ${{{variable}:-{compiler}}} -I\"$prefix/include\" \"$@\" \
         -L\"$prefix/lib\" -Wl,-rpath,\"$prefix/lib\" -lmpi_abi\n"
    )
}

fn build(checkout: &Checkout, dev: bool) -> Result<Parts, Failure> {
    let mut cargo = shell::cargo();
    cargo.current_dir(&checkout.root).args(["build", "--message-format=json-render-diagnostics"]);
    cargo.args(["-p", "gapless-mpi", "-p", "gapless-cli"]);
    if !dev {
        cargo.arg("--release");
    }
    shell::show(&cargo);
    let said = shell::output(cargo.stderr(std::process::Stdio::inherit()))?;
    let (mut archive, mut made, mut command) = (None, None, None);
    for line in said.lines() {
        let Ok(built) = serde_json::from_str::<Built>(line) else { continue };
        let is_mpi = built.package_id.contains("/mpi#");
        if is_mpi && built.out_dir.is_some() {
            made = built.out_dir;
        } else if is_mpi {
            archive = built
                .filenames
                .into_iter()
                .find(|name| name.extension().is_some_and(|end| end == "a"));
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

fn link(archive: &Path, made: &Path, library: &Path) -> Result<(), Failure> {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-o"]).arg(library).arg(made.join("aliases.s")).arg(archive);
    cc.arg(format!("-Wl,-soname,{name}"));
    cc.arg(format!("-Wl,--version-script,{}", made.join("exports.map").display()));
    // Functions of the library call each other, not what a program puts in their places. Threads outlive a `dlclose`.
    cc.args(["-Wl,-Bsymbolic-functions,--gc-sections,-z,nodelete,-z,defs"]);
    cc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"]);
    shell::run(&mut cc)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    // A program that runs is not written to, but may be unlinked.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(|source| at(to, source))
}

fn script(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| at(path, source))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|source| at(path, source))
}

fn at(path: &Path, source: std::io::Error) -> Failure {
    Failure::File { path: path.to_owned(), source }
}
