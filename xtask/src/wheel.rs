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
//! glibc that the files need. setuptools, which pip fetches, packs it: that of Debian 12 is too old.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::metadata::Checkout;
use crate::mpi::{COMPILERS, MPICH, STANDARD, at, copy, script};
use crate::verbs::make_folder;
use crate::{Failure, mpi, shell};

/// Says where the parts of the installed wheel are.
const MODULE: &str = r#""""The MPI library of Gapless: where its parts are."""

from importlib.metadata import files


def _find(name):
    return next(file for file in files("gapless-mpi") if file.name == name).locate().resolve()


LIBRARY = _find("libmpi_abi.so.1")
MPICH_LIBRARY = _find("libmpi.so.12")
INCLUDE = _find("mpi.h").parent
MPICC = _find("gapless-mpicc")
MPIEXEC = _find("gapless-mpiexec")
"#;

const MAIN: &str = r#"from . import INCLUDE, LIBRARY, MPICC, MPICH_LIBRARY, MPIEXEC

PARTS = {"library": LIBRARY, "mpich": MPICH_LIBRARY, "include": INCLUDE, "mpicc": MPICC, "mpiexec": MPIEXEC}
for name, path in PARTS.items():
    print(f"{name:8} {path}")
"#;

/// Has pip fetch a setuptools that has `bdist_wheel`, wherever an older one is installed.
const PROJECT: &str = r#"[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"
"#;

/// The licences, which setuptools puts beside the wheel's metadata.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The oldest glibc of the platforms that wheels name.
const GLIBC_MIN: (u32, u32) = (2, 17);

/// The name that Debian's programs have for MPICH's library.
const OTHER: &str = "libmpich.so.12";

/// Makes the wheel in target/wheel/dist.
pub(crate) fn run(checkout: &Checkout, what: mpi::Build) -> Result<(), Failure> {
    mpi::run(checkout, what)?;
    let (made, folder) = (checkout.target.join("mpi"), checkout.target.join("wheel"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|source| at(&folder, source))?;
    }
    for part in ["gapless_mpi", "lib", "include", "bin"] {
        make_folder(&folder.join(part))?;
    }
    write(&folder.join("gapless_mpi/__init__.py"), MODULE)?;
    write(&folder.join("gapless_mpi/__main__.py"), MAIN)?;
    let mut libraries = vec![format!("lib/{}", STANDARD[0]), format!("lib/{}", MPICH[0])];
    let mut programs = vec!["bin/gapless-mpi-launcher".to_owned()];
    copy(&made.join("bin/gapless"), &folder.join(&programs[0]))?;
    for library in &libraries {
        copy(&made.join(library), &folder.join(library))?;
    }
    let mut glibc = GLIBC_MIN;
    for file in libraries.iter().chain(&programs).map(|file| folder.join(file)) {
        shell::run(Command::new("strip").arg("--strip-unneeded").arg(&file))?;
        glibc = glibc.max(needs(&file)?);
    }
    // A wheel has no links: other names are small files. Nobody links with MPICH's, whose header is not here.
    let to_link = "lib/libmpi_abi.so";
    write(&folder.join(to_link), &format!("INPUT({})\n", STANDARD[0]))?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-o", OTHER, "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]);
    cc.arg(format!("-Wl,-soname,{OTHER}")).args(["-L.", &format!("-l:{}", MPICH[0])]);
    shell::run(cc.current_dir(folder.join("lib")))?;
    libraries.extend([to_link.to_owned(), format!("lib/{OTHER}")]);
    copy(&made.join("include/mpi.h"), &folder.join("include/mpi.h"))?;
    let compilers = COMPILERS.map(|(name, variable, compiler)| {
        (name, mpi::compiler_script(variable, compiler, "/gapless"))
    });
    let launcher = ("mpiexec", mpi::launcher_script("gapless-mpi-launcher"));
    for (name, text) in compilers.into_iter().chain([launcher]) {
        let name = format!("bin/gapless-{name}");
        script(&folder.join(&name), &text)?;
        programs.push(name);
    }
    let files = [
        ("lib/gapless", libraries),
        ("include/gapless", vec!["include/mpi.h".to_owned()]),
        ("bin", programs),
    ];
    for name in LICENCES {
        copy(&checkout.root.join(name), &folder.join(name))?;
    }
    write(&folder.join("pyproject.toml"), PROJECT)?;
    write(&folder.join("setup.py"), &setup(&version(checkout)?, glibc, &files))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "-w"])
        .arg(folder.join("dist"))
        .arg(&folder);
    shell::run(&mut pip)?;
    let wheels = fs::read_dir(folder.join("dist")).map_err(|source| at(&folder, source))?;
    wheels.flatten().for_each(|wheel| println!("{}", wheel.path().display()));
    Ok(())
}

/// What setuptools is told: a wheel for any Python 3, with these files in these folders below the prefix.
fn setup(version: &str, (major, minor): (u32, u32), files: &[(&str, Vec<String>)]) -> String {
    let machine = std::env::consts::ARCH;
    let files: String =
        files.iter().map(|(folder, names)| format!("        ({folder:?}, {names:?}),\n")).collect();
    format!(
        r#"from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", "manylinux_{major}_{minor}_{machine}"


setup(
    name="gapless-mpi",
    version="{version}",
    description="The MPI 5.0 standard ABI over Gapless",
    license="MIT OR Apache-2.0",
    packages=["gapless_mpi"],
    distclass=Binary,
    cmdclass={{"bdist_wheel": Wheel}},
    data_files=[
{files}    ],
)
"#
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
fn needs(file: &Path) -> Result<(u32, u32), Failure> {
    let said = shell::output(Command::new("readelf").args(["-W", "--version-info"]).arg(file))?;
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let (major, minor) = number.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    Ok(versions.max().unwrap_or(GLIBC_MIN))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|source| at(path, source))
}
