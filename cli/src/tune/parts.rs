//! Jobs of several numbers of ranks, of which each leaves its part of the file in a folder.

use crate::failure::Failure;
use crate::run::start_ours;
use gapless::launch::Job;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Starts a job of `gapless tune` with `option` for each number of ranks, which share the seconds of `budget`. `each`
/// reads what rank 0 of a job has left. It ends with the first job that fails, and gives its code.
pub(super) fn run(
    option: &'static str,
    numbers: &[u32],
    budget: f64,
    more: &[OsString],
    mut each: impl FnMut(&Path) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let folder = Scratch::new(option)?;
    for n in numbers {
        let part = folder.0.join(format!("{n}.toml"));
        let mut output = OsString::from("--part=");
        output.push(&part);
        let seconds = budget / numbers.len() as f64;
        let mut arguments: Vec<OsString> = vec!["tune".into(), option.into(), "--as-rank".into()];
        arguments.extend(["--budget".into(), seconds.to_string().into(), output]);
        arguments.extend_from_slice(more);
        let code = start_ours(&Job {
            ranks: *n,
            program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
            arguments,
            environment: Vec::new(),
            prefix: false,
        })?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
        each(&part)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A folder for what ranks leave, removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    /// For what an option asks for.
    fn new(option: &'static str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("gapless-tune-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| Failure::BadOption {
            option,
            value: String::new(),
            why: format!("cannot make the folder {}: {error}", path.display()),
        })?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
