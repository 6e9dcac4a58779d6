//! Where judges are, in the target folder, and how they get there: Python's packages by pip, sources and others' files by
//! apt, which has lists of its own there. The system is not changed.
//!
//! What cannot be fetched is [`Failure::Missing`], and its judge is skipped; what is built and fails, fails.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::verbs::make_folder;
use crate::{Failure, mpi, shell, tools};

/// MPICH as its own developers pack it, with the standard's ABI.
pub(super) const MPICH: &str = "mpich==5.0.2";
/// What building and testing need.
const PACKAGES: &[&str] = &["setuptools", "wheel", "cython>=3,<4", "numpy"];
/// How long a fetch, a build or a script of tests may take, as `timeout` reads it.
const LIMIT: &str = "2h";

/// The folder of all judges.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    /// Our library: `lib`, `include`, `bin`.
    pub(super) mpi: PathBuf,
    /// What is built with it is built again when this changes.
    interface: String,
}

impl Place {
    pub(super) fn new(checkout: &Checkout) -> Result<Place, Failure> {
        let (folder, mpi) = (checkout.target.join("judges"), checkout.target.join("mpi"));
        make_folder(&folder)?;
        let read = |name: &str| {
            let path = mpi.join(name);
            fs::read_to_string(&path).map_err(|source| mpi::at(&path, source))
        };
        Ok(Place { interface: read("include/mpi.h")? + &read("bin/mpicc")?, folder, mpi })
    }

    pub(super) fn compiler(&self) -> PathBuf {
        self.mpi.join("bin/mpicc")
    }

    /// Where pip puts things.
    pub(super) fn venv(&self) -> PathBuf {
        self.folder.join("venv")
    }

    /// A Python with what building and testing need.
    pub(super) fn python(&self) -> Result<PathBuf, Failure> {
        self.once("packages", "", || {
            if !tools::on_search_path("python3") {
                return Err(Failure::Missing("python3".to_owned()));
            }
            shell::run(Command::new("python3").args(["-m", "venv"]).arg(self.venv()))?;
            fetch(self.pip("install").args(PACKAGES))
        })?;
        Ok(self.venv().join("bin/python"))
    }

    pub(super) fn pip(&self, what: &str) -> Command {
        let mut command = limited(self.venv().join("bin/python"));
        command.args(["-m", "pip", what, "--quiet", "--disable-pip-version-check"]);
        command
    }

    /// Python's packages, as they are published.
    pub(super) fn wheels(&self, packages: &[&str]) -> Result<(), Failure> {
        self.python()?;
        let name = packages.join("-");
        self.once(&name, "", || fetch(self.pip("install").args(packages)))
    }

    pub(super) fn mpich(&self) -> Result<PathBuf, Failure> {
        self.wheels(&[MPICH]).map(|()| self.venv())
    }

    /// The source of a Python package, which may ask for settings even so; gives its archive.
    fn sdist(
        &self,
        name: &str,
        version: &str,
        settings: &[(&str, OsString)],
    ) -> Result<PathBuf, Failure> {
        self.python()?;
        self.once(&format!("source-{name}-{version}"), "", || {
            let mut download = self.pip("download");
            download.args(["--no-deps", "--no-build-isolation", "--no-binary", name, "--dest"]);
            download.arg(&self.folder).arg(format!("{name}=={version}"));
            fetch(download.envs(settings.iter().map(|(name, value)| (name, value))))
        })?;
        Ok(self.folder.join(format!("{}-{version}.tar.gz", name.replace('-', "_"))))
    }

    /// Builds a Python package from its source, with our `mpicc`.
    pub(super) fn package(
        &self,
        name: &str,
        version: &str,
        settings: &[(&str, OsString)],
    ) -> Result<(), Failure> {
        let archive = self.sdist(name, version, settings)?;
        let build = |folder: &Path| {
            let mut install = self.pip("install");
            install.args(["--no-deps", "--no-build-isolation", "--force-reinstall"]).arg(folder);
            // What is compiled are wrappers of functions; optimising them takes minutes.
            install.env("MPICC", self.compiler()).env("CFLAGS", "-O0");
            shell::run(install.envs(settings.iter().map(|(name, value)| (name, value))))
        };
        self.built(name, &archive, build).map(drop)
    }

    /// The original source of a package of the distribution; gives its archive.
    pub(super) fn source(&self, package: &str) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("sources");
        self.once(&format!("source-{package}"), "", || {
            self.apt(&["source", "--download-only", "--tar-only", package], &folder)
        })?;
        let prefix = format!("{package}_");
        let entries = fs::read_dir(&folder).map_err(|source| mpi::at(&folder, source))?;
        let archives = entries.flatten().map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&prefix) && name.contains(".orig.tar.") && !name.ends_with(".asc")
        });
        archives.max().ok_or_else(|| mpi::at(&folder.join(prefix), ErrorKind::NotFound.into()))
    }

    /// Files of packages of the distribution, unpacked into a folder instead of the system's; gives its `usr`.
    pub(super) fn files(&self, packages: &[&str]) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("system");
        self.once(&format!("files-{}", packages[0]), "", || {
            let archives = folder.join(packages[0]);
            self.apt(&[&["download"], packages].concat(), &archives)?;
            let entries = fs::read_dir(&archives).map_err(|source| mpi::at(&archives, source))?;
            for archive in entries.flatten() {
                shell::run(Command::new("dpkg-deb").arg("-x").arg(archive.path()).arg(&folder))?;
            }
            Ok(())
        })?;
        Ok(folder.join("usr"))
    }

    /// Unpacks and builds something, and again when our library's header changes; gives its folder.
    pub(super) fn built(
        &self,
        name: &str,
        archive: &Path,
        build: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<PathBuf, Failure> {
        let folder = self.folder.join(name);
        let key = format!("{}\n{}", archive.display(), self.interface);
        self.once(name, &key, || {
            if folder.exists() {
                fs::remove_dir_all(&folder).map_err(|source| mpi::at(&folder, source))?;
            }
            make_folder(&folder)?;
            let mut tar = Command::new("tar");
            tar.arg("-xf").arg(archive).arg("--strip-components=1").arg("-C").arg(&folder);
            shell::run(&mut tar)?;
            build(&folder)
        })?;
        Ok(folder)
    }

    /// Runs apt-get in a folder, with the system's sources, of source packages too.
    fn apt(&self, words: &[&str], folder: &Path) -> Result<(), Failure> {
        let apt = self.folder.join("apt");
        let parts = apt.join("sources");
        for folder in [folder, &apt.join("lists"), &apt.join("cache"), &parts] {
            make_folder(folder)?;
        }
        let of_parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        let of_parts = of_parts.map(|entry| entry.path());
        for path in of_parts.chain(["/etc/apt/sources.list".into()]) {
            let (Some(name), Ok(text)) = (path.file_name(), fs::read_to_string(&path)) else {
                continue;
            };
            let with_sources = |line: &str| match line.strip_prefix("deb ") {
                Some(rest) => format!("{line}\ndeb-src {rest}\n"),
                None if line.trim_end() == "Types: deb" => "Types: deb deb-src\n".to_owned(),
                None => format!("{line}\n"),
            };
            let to = parts.join(name);
            fs::write(&to, text.lines().map(with_sources).collect::<String>())
                .map_err(|source| mpi::at(&to, source))?;
        }
        let settings = [
            // Otherwise root's downloads are another user's, who may not write here.
            "APT::Sandbox::User=root".to_owned(),
            "Dir::Etc::SourceList=/dev/null".to_owned(),
            format!("Dir::Etc::SourceParts={}", parts.display()),
            format!("Dir::State::Lists={}", apt.join("lists").display()),
            format!("Dir::Cache={}", apt.join("cache").display()),
        ];
        let get = |words: &[&str]| {
            let mut command = limited("apt-get");
            command.arg("--quiet").args(settings.iter().flat_map(|it| ["-o", it]));
            fetch(command.args(words).current_dir(folder))
        };
        get(&["update"])?;
        get(words)
    }

    /// Does something unless it was done with the same key: a file says so.
    fn once(
        &self,
        what: &str,
        key: &str,
        act: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let done = self.folder.join(format!("{what}.done"));
        if fs::read_to_string(&done).is_ok_and(|before| before == key) {
            return Ok(());
        }
        act()?;
        fs::write(&done, key).map_err(|source| mpi::at(&done, source))
    }
}

/// A program that is ended after [`LIMIT`].
pub(super) fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1m", LIMIT]).arg(program);
    command
}

/// Has pip or apt fetch something; what cannot be had is [`Failure::Missing`].
fn fetch(command: &mut Command) -> Result<(), Failure> {
    shell::run(command).map_err(|failure| Failure::Missing(failure.to_string()))
}

/// Has `make` make something in a folder.
pub(super) fn make(folder: &Path, what: &[&str]) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
    let mut make = limited("make");
    make.arg("--silent").arg(format!("-j{processors}")).args(what).current_dir(folder);
    shell::run(&mut make)
}

/// The version in an archive's name: `fftw3_3.3.10.orig.tar.gz`.
pub(super) fn version(archive: &Path) -> String {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let version = name.split_once('_').map_or(&*name, |(_, version)| version);
    version.split(".orig").next().unwrap_or(version).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_done_again_and_what_is_fetched_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            folder: folder.path().to_owned(),
            mpi: PathBuf::new(),
            interface: String::new(),
        };
        let fails = || shell::run(&mut Command::new("false"));
        assert!(matches!(fetch(&mut limited("false")), Err(Failure::Missing(_))));
        assert!(matches!(place.once("b", "1", fails), Err(Failure::Command { .. })));
        let mut done = 0;
        for key in ["1", "1", "2"] {
            place
                .once("b", key, || {
                    done += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(done, 2, "the second time nothing had changed");
    }

    #[test]
    fn an_archive_tells_its_version() {
        assert_eq!(version(Path::new("/x/fftw3_3.3.10.orig.tar.gz")), "3.3.10");
    }
}
