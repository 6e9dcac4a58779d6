#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! A world reads a tuning file when it starts, unless the program gives the numbers (`Builder::tuning`,
//! `Builder::config`):
//!
//! - the file that the variable `GAPLESS_TUNING` names, which must exist; an empty value means none;
//! - else `gapless/tuning.toml` in `$XDG_CONFIG_HOME`, or in `~/.config` if that is not set; if there is
//!   no such file, the [defaults](Tuning::default) are used.
//!
//! The file is TOML of one version. Every number has a key of its own ([`Key`]) and may be missing; other keys are
//! refused. A file that cannot be used is an error that names file, line and key, not a silent return to the
//! defaults: a user who tuned wants to know. A file that nobody named, and that this user may not look at, is somebody
//! else's: the log has a warning, and the defaults are used.
//!
//! [`coll`] is the table by which collectives choose their algorithms: a file of its own, because all ranks of a world
//! must have the same, while these numbers may differ from host to host.

#![forbid(unsafe_code)]

pub mod coll;
mod error;
mod keys;
mod nesting;
mod text;
mod tree;

pub use error::TuningError;
pub use keys::{KEYS, Key, Unit, Value};
pub use text::{parse, write, write_with};

use gapless_pml::Tuning;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The version of the file that this build reads and writes.
pub const VERSION: i64 = 1;

/// The environment variable that names a tuning file in the place of the user's own.
pub const VARIABLE: &str = "GAPLESS_TUNING";

/// The name of the user's own file.
const FILE: &str = "tuning.toml";

/// Longest file that is read, in bytes: many times what `gapless tune` writes.
pub const BYTES_MAX: usize = 64 << 10;

/// Which file a world reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// None: the environment says so, or has no folder for it.
    None,
    /// The user's own, which need not exist.
    Default(PathBuf),
    /// What [`VARIABLE`] names, which must exist.
    Named(PathBuf),
}

impl Location {
    /// Where the environment of this process says.
    #[must_use]
    pub fn of_environment() -> Location {
        Location::of(VARIABLE, FILE, |name| std::env::var_os(name))
    }

    /// Where an environment says: in the file that `named` names, or in the user's own of the name `file`.
    fn of(named: &str, file: &str, variable: impl Fn(&str) -> Option<OsString>) -> Location {
        match variable(named) {
            Some(path) if path.is_empty() => return Location::None,
            Some(path) => return Location::Named(path.into()),
            None => {}
        }
        // Relative folders are none, says the XDG Base Directory Specification.
        let folder = |name: &str| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let home = || folder("HOME").map(|home| home.join(".config"));
        match folder("XDG_CONFIG_HOME").or_else(home) {
            Some(folder) => Location::Default(folder.join("gapless").join(file)),
            None => Location::None,
        }
    }

    /// The file, if there is to be one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Location::None => None,
            Location::Default(path) | Location::Named(path) => Some(path),
        }
    }

    /// The numbers in the file; `None` if there is no file that this user may look at, and none is required.
    ///
    /// # Errors
    /// A named file that is missing or may not be looked at; a file that cannot be read or is wrong.
    pub fn read(&self) -> Result<Option<Tuning>, TuningError> {
        self.read_as(read)
    }

    fn read_as<T>(
        &self,
        read: impl FnOnce(&Path) -> Result<T, TuningError>,
    ) -> Result<Option<T>, TuningError> {
        let Some(path) = self.path() else { return Ok(None) };
        match read(path) {
            Ok(found) => Ok(Some(found)),
            Err(TuningError::Missing { .. }) if matches!(self, Location::Default(_)) => Ok(None),
            Err(error @ TuningError::Denied { .. }) if matches!(self, Location::Default(_)) => {
                tracing::warn!(%error, "defaults are used in its place");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The numbers by the environment of this process: those of the file, or the defaults.
///
/// # Errors
/// As [`Location::read`].
pub fn load() -> Result<Tuning, TuningError> {
    let location = Location::of_environment();
    let read = location.read()?;
    match (&read, location.path()) {
        (Some(_), Some(path)) => tracing::debug!(path = %path.display(), "tuned"),
        _ => tracing::debug!("not tuned: the cost model's defaults"),
    }
    Ok(read.unwrap_or_default())
}

/// Reads a tuning file.
///
/// # Errors
/// It is missing, no ordinary file, too long, or wrong.
pub fn read(path: &Path) -> Result<Tuning, TuningError> {
    parse(&read_text(path)?, path)
}

/// The text of an ordinary file that is not too long.
fn read_text(path: &Path) -> Result<String, TuningError> {
    let failed = |reason: String| TuningError::Unreadable { path: path.to_owned(), reason };
    // Opening a pipe must not wait for its writer.
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(|error| refusal(path, &error))?;
    let about = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !about.is_file() {
        return Err(failed("it is no ordinary file".to_owned()));
    }
    let mut bytes = Vec::new();
    let limit = BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    if bytes.len() > BYTES_MAX {
        return Err(TuningError::TooLong { path: path.to_owned(), most: BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".to_owned()))
}

/// Why a file cannot be opened.
fn refusal(path: &Path, error: &Error) -> TuningError {
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => TuningError::Missing { path },
        ErrorKind::PermissionDenied => TuningError::Denied { path },
        _ => TuningError::Unreadable { path, reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Location {
        Location::of(VARIABLE, FILE, |name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_environment_says_where() {
        let home = ("HOME", "/home/me");
        let own = |path: &str| Location::Default(path.into());
        assert_eq!(of(&[home]), own("/home/me/.config/gapless/tuning.toml"));
        let xdg = ("XDG_CONFIG_HOME", "/etc/me");
        assert_eq!(of(&[home, xdg]), own("/etc/me/gapless/tuning.toml"));
        let relative = ("XDG_CONFIG_HOME", "me");
        assert_eq!(of(&[home, relative]), own("/home/me/.config/gapless/tuning.toml"));
        assert_eq!(of(&[]), Location::None);
        assert_eq!(of(&[home, xdg, (VARIABLE, "")]), Location::None);
        assert_eq!(of(&[home, (VARIABLE, "a.toml")]), Location::Named("a.toml".into()));
    }

    #[test]
    fn the_own_file_may_be_missing_a_named_one_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gapless/tuning.toml");
        assert_eq!(Location::Default(path.clone()).read(), Ok(None));
        let missing = Location::Named(path.clone()).read();
        assert_eq!(missing, Err(TuningError::Missing { path: path.clone() }));
        assert!(missing.unwrap_err().to_string().contains("tuning.toml"));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "version = 1\n[host]\ndepth = 3\n").unwrap();
        for location in [Location::Default(path.clone()), Location::Named(path.clone())] {
            assert_eq!(location.read().unwrap().unwrap().depth, 3);
        }
        // A wrong file is an error wherever it is.
        std::fs::write(&path, "version = 1\n[host]\ndepth = -3\n").unwrap();
        assert!(Location::Default(path).read().is_err());
    }

    /// In a folder of another user's, say. The superuser may look at everything, so no file shows it.
    #[test]
    fn the_own_file_may_be_forbidden_a_named_one_not() {
        let path = PathBuf::from("/home/you/.config/gapless/tuning.toml");
        let denied =
            |path: &Path| Err::<(), _>(refusal(path, &Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(Location::Default(path.clone()).read_as(denied), Ok(None));
        let named = Location::Named(path.clone()).read_as(denied).unwrap_err();
        assert_eq!(named, TuningError::Denied { path });
        assert!(named.to_string().contains("/home/you/.config/gapless/tuning.toml"), "{named}");
    }

    #[test]
    fn only_ordinary_files_of_sane_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(read(folder.path()), Err(TuningError::Unreadable { .. })));
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(read(&pipe), Err(TuningError::Unreadable { .. })));
        let long = folder.path().join("long");
        std::fs::write(&long, "#".repeat(BYTES_MAX + 1)).unwrap();
        assert!(matches!(read(&long), Err(TuningError::TooLong { most: BYTES_MAX, .. })));
        std::fs::write(&long, [0xFF, 0xFE]).unwrap();
        assert!(matches!(read(&long), Err(TuningError::Unreadable { .. })));
    }
}
