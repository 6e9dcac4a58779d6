//! The guest's kernel: Debian's own, of the release that this machine's apt knows. The package is kept in the target
//! folder under its hash, and unpacked beside it; it is never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Missing, make_folder};
use crate::shell;

/// The package that depends on the newest kernel. (Those for clouds have no Soft-RoCE.)
const NEWEST: &str = "linux-image-amd64";

/// A kernel in a folder.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    /// What `modprobe -d` wants.
    pub(super) root: PathBuf,
    pub(super) release: String,
}

/// Downloads and unpacks it, if that was not done before.
pub(super) fn bring(folder: &Path) -> Result<Kernel, Missing> {
    let package = newest()?;
    let hash = hash_of(&package)?;
    let root = folder.join(format!("kernel-{hash}"));
    let release = package.trim_start_matches("linux-image-").to_owned();
    let image = root.join(format!("boot/vmlinuz-{release}"));
    let complete = root.join("complete");
    if !complete.exists() {
        make_folder(folder)?;
        let archive = download(folder, &package, &hash)?;
        let _ = fs::remove_dir_all(&root);
        make_folder(&root)?;
        shell::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&root))?;
        // The package brings no list of what its modules need.
        shell::run(Command::new("/sbin/depmod").arg("-b").arg(&root).arg(&release))?;
        fs::write(&complete, "")
            .map_err(|error| Missing(format!("{}: {error}", complete.display())))?;
        let _ = fs::remove_file(&archive);
    }
    Ok(Kernel { image, root, release })
}

/// The newest kernel's package.
fn newest() -> Result<String, Missing> {
    let text = shell::output(Command::new("apt-cache").args(["depends", "--important", NEWEST]));
    let text =
        text.map_err(|failure| Missing(format!("no kernel: {failure} (run apt-get update)")))?;
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut kernels = names.filter(|name| name.starts_with("linux-image-"));
    let found = kernels.next().map(str::to_owned);
    found.ok_or_else(|| Missing(format!("apt knows no {NEWEST}: run apt-get update")))
}

/// The hash by which apt will know the package.
fn hash_of(package: &str) -> Result<String, Missing> {
    let text =
        shell::output(Command::new("apt-cache").args(["show", "--no-all-versions", package]))?;
    let hash = text.lines().find_map(|line| line.strip_prefix("SHA256: "));
    hash.map(str::to_owned).ok_or_else(|| Missing(format!("apt knows no hash of {package}")))
}

/// The package's file, checked.
fn download(folder: &Path, package: &str, hash: &str) -> Result<PathBuf, Missing> {
    let place = folder.join("download");
    let _ = fs::remove_dir_all(&place);
    make_folder(&place)?;
    println!("verbs: downloading {package} (70 MB), once");
    // As the user that runs this: apt's own may not write here.
    let mut apt = Command::new("apt-get");
    apt.current_dir(&place).args(["-q", "-o", "APT::Sandbox::User=root", "download", package]);
    shell::run(&mut apt).map_err(|failure| Missing(format!("no kernel: {failure}")))?;
    let files = fs::read_dir(&place).map_err(|error| Missing(error.to_string()))?;
    let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.next().ok_or_else(|| Missing(format!("apt-get downloaded no {package}")))?;
    let sum = shell::output(Command::new("sha256sum").arg(&file))?;
    if sum.split_ascii_whitespace().next() != Some(hash) {
        return Err(Missing(format!("{package} is not what apt said: {}", sum.trim())));
    }
    Ok(file)
}
