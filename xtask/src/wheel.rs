//! `cargo xtask wheel`: the MPI library as a Python wheel, for `pip install`.
//!
//! ```text
//! gapless_mpi/                   tells where things are: `python -m gapless_mpi`
//! lib/gapless/                   the libraries
//! include/gapless/mpi.h          the header
//! bin/gapless-mpicc, -mpicxx     compilers; bin/gapless-mpiexec: the launcher
//! ```
//!
//! Nothing is where the wheels of other MPI libraries put theirs, so that both can be installed. The platform's tag is the
//! glibc that the files need. setuptools, which pip fetches, packs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::mpi::{at, copy, script};
use crate::{Failure, mpi, shell};

/// Says where the parts of the installed wheel are.
const MODULE: &str = r#""""The MPI library of Gapless: where its parts are."""

import sysconfig
from pathlib import Path

PREFIX = Path(sysconfig.get_path("data"))
LIBRARY = PREFIX / "lib" / "gapless" / "libmpi_abi.so.1"
INCLUDE = PREFIX / "include" / "gapless"
MPICC = PREFIX / "bin" / "gapless-mpicc"
MPIEXEC = PREFIX / "bin" / "gapless-mpiexec"
"#;

const MAIN: &str = r#"from . import INCLUDE, LIBRARY, MPICC, MPIEXEC

for name, path in [("library", LIBRARY), ("include", INCLUDE), ("mpicc", MPICC), ("mpiexec", MPIEXEC)]:
    print(f"{name:8} {path}")
"#;

/// Makes the wheel in target/wheel/dist.
pub(crate) fn run(checkout: &Checkout) -> Result<(), Failure> {
    mpi::run(checkout, mpi::Build::Release)?;
    let (made, folder) = (checkout.target.join("mpi"), checkout.target.join("wheel"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|source| at(&folder, source))?;
    }
    for part in ["gapless_mpi", "lib", "include", "bin"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).map_err(|source| at(&part, source))?;
    }
    write(&folder.join("gapless_mpi/__init__.py"), MODULE)?;
    write(&folder.join("gapless_mpi/__main__.py"), MAIN)?;
    let mut glibc = (2, 17);
    // A wheel has no links: a library has one file for each of its names.
    for name in ["libmpi_abi.so.1", "libmpi_abi.so", "libmpi.so.12", "libmpi.so", "libmpich.so.12"]
    {
        let to = folder.join("lib").join(name);
        copy(&made.join("lib").join(name), &to)?;
        shell::run(Command::new("strip").arg("--strip-unneeded").arg(&to))?;
        glibc = glibc.max(needs(&to)?);
    }
    copy(&made.join("include/mpi.h"), &folder.join("include/mpi.h"))?;
    let launcher = folder.join("bin/gapless-mpi-launcher");
    copy(&made.join("bin/gapless"), &launcher)?;
    shell::run(Command::new("strip").arg(&launcher))?;
    glibc = glibc.max(needs(&launcher)?);
    for (name, variable, compiler) in [("mpicc", "MPICC_CC", "cc"), ("mpicxx", "MPICXX_CXX", "c++")]
    {
        let text = mpi::compiler_script(variable, compiler, "/gapless");
        script(&folder.join("bin").join(format!("gapless-{name}")), &text)?;
    }
    script(&folder.join("bin/gapless-mpiexec"), &mpi::launcher_script("gapless-mpi-launcher"))?;
    write(&folder.join("setup.py"), &setup(&version(checkout)?, glibc))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "-w"])
        .arg(folder.join("dist"))
        .arg(&folder);
    shell::run(&mut pip)?;
    let wheels = fs::read_dir(folder.join("dist")).map_err(|source| at(&folder, source))?;
    wheels.flatten().for_each(|wheel| println!("{}", wheel.path().display()));
    Ok(())
}

fn setup(version: &str, (major, minor): (u32, u32)) -> String {
    let machine = std::env::consts::ARCH;
    format!(
        "from setuptools import setup\n\
         from setuptools.dist import Distribution\n\n\n\
         class Binary(Distribution):\n    def has_ext_modules(self):\n        return True\n\n\n\
         setup(\n    name='gapless-mpi',\n    version='{version}',\n    \
         description='The MPI 5.0 standard ABI over Gapless',\n    license='MIT OR Apache-2.0',\n    \
         packages=['gapless_mpi'],\n    distclass=Binary,\n    data_files=[\n        \
         ('lib/gapless', ['lib/libmpi_abi.so.1', 'lib/libmpi_abi.so', 'lib/libmpi.so.12', 'lib/libmpi.so', 'lib/libmpich.so.12']),\n        \
         ('include/gapless', ['include/mpi.h']),\n        \
         ('bin', ['bin/gapless-mpi-launcher', 'bin/gapless-mpicc', 'bin/gapless-mpicxx', 'bin/gapless-mpiexec']),\n    ],\n    \
         options={{'bdist_wheel': {{'plat_name': 'manylinux_{major}_{minor}_{machine}', 'python_tag': 'py3', 'py_limited_api': False}}}},\n)\n"
    )
}

/// The version of the workspace.
fn version(checkout: &Checkout) -> Result<String, Failure> {
    let path = checkout.root.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|source| at(&path, source))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.map(|rest| rest.trim_end_matches('"').to_owned());
    version.ok_or_else(|| Failure::Argument("Cargo.toml says no version".to_owned()))
}

/// The glibc that a program or library needs: the highest version among the symbols that it takes of it.
fn needs(file: &PathBuf) -> Result<(u32, u32), Failure> {
    let said = shell::output(Command::new("readelf").args(["-W", "--version-info"]).arg(file))?;
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let (major, minor) = number.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    Ok(versions.max().unwrap_or((2, 17)))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| at(path, source))
}
