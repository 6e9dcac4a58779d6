//! Files written whole or not at all, with errors that name the path.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::validate::Invalid;

/// Why a file could not be read or written; each variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: `read`, `write` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The text is not a report, or the report cannot be expressed in JSON.
    #[error("{} is no report: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The report's figures contradict each other.
    #[error("{} does not hold together: {fault}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The first fault.
        fault: Invalid,
    },
    /// There is nothing a plot could show.
    #[error("cannot plot into {}: {source}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: crate::PlotError,
    },
}

impl FileError {
    pub(crate) fn json(path: &Path, source: serde_json::Error) -> Self {
        Self::Json { path: path.to_owned(), source }
    }

    pub(crate) fn invalid(path: &Path, fault: Invalid) -> Self {
        Self::Invalid { path: path.to_owned(), fault }
    }

    pub(crate) fn plot(path: &Path, source: crate::PlotError) -> Self {
        Self::Plot { path: path.to_owned(), source }
    }

    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

/// Writes `bytes` to `path` in one step: a reader sees the old file or the whole new one, and a
/// program that dies half-way leaves the old one. The directory must exist. A new file gets the
/// permissions of any other new file, not those of a temporary one.
///
/// # Errors
/// [`FileError::Io`], naming `path`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, bytes).map_err(|source| FileError::io("write", path, source))
}

pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|source| FileError::io("read", path, source))
}

/// Removes a file; whether it was there. Links, devices and folders stay.
pub(crate) fn remove(path: &Path) -> Result<bool, FileError> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(FileError::io("remove", path, source)),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    }
    // A link (`/dev/stdout` is one) stays; what it leads to is replaced.
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(_) => end_of_links(path)?,
    };
    // Pipes and devices cannot be replaced, only written.
    if let Ok(found) = fs::metadata(&target)
        && !found.is_file()
    {
        return fs::write(&target, bytes);
    }
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut temporary = tempfile::Builder::new()
        .prefix(".gapless-")
        .suffix(".tmp")
        .make_in(folder, |name| fs::File::options().write(true).create_new(true).open(name))?;
    temporary.as_file_mut().write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(&target).map_err(|failed| failed.error)?;
    Ok(())
}

/// Where links lead that end at a file which is not there yet.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as the kernel follows.
    const LINKS_MAX: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&at) else { return Ok(at) };
        // A relative link counts from its own folder.
        at = at.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "its links lead nowhere"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, b"old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_atomically(&link, b"new").unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_link_to_nothing_stays_and_what_it_names_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        std::os::unix::fs::symlink("second", &first).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), &second).unwrap();
        write_atomically(&first, b"new").unwrap();
        assert_eq!(fs::read(folder.path().join("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
        assert!(fs::symlink_metadata(&second).unwrap().is_symlink());
    }

    #[test]
    fn links_in_a_circle_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::os::unix::fs::symlink(&one, &two).unwrap();
        std::os::unix::fs::symlink(&two, &one).unwrap();
        assert!(write_atomically(&one, b"x").is_err());
        assert!(fs::symlink_metadata(&one).unwrap().is_symlink());
    }

    #[test]
    fn a_missing_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing").join("report.json");
        let text = write_atomically(&path, b"").unwrap_err().to_string();
        assert!(text.contains("missing/report.json"), "{text}");
        assert!(text.starts_with("cannot write"), "{text}");
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write_atomically(folder.path(), b"x").is_err());
        assert!(write_atomically(Path::new("/"), b"x").is_err());
    }

    #[test]
    fn a_device_is_written_not_replaced() {
        write_atomically(Path::new("/dev/null"), b"x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
