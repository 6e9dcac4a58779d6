//! What is wrong with a tuning file: which file, which line, which key.

use super::VERSION;
use std::path::PathBuf;
use thiserror::Error;

/// Why a tuning file cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TuningError {
    /// It was named, and is not there.
    #[error("tuning file {path:?} does not exist; `gapless tune --output` writes one")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses it, or it is no text.
    #[error("tuning file {path:?} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No tuner wrote it.
    #[error("tuning file {path:?} is longer than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The longest that is read.
        most: usize,
    },
    /// It is not TOML.
    #[error("tuning file {path:?}, line {line}: {what}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// It does not say which version it is of.
    #[error(
        "tuning file {path:?} does not begin with a version (`version = {VERSION}`); write it anew \
         with `gapless tune`"
    )]
    NoVersion {
        /// The file.
        path: PathBuf,
    },
    /// It is of another version.
    #[error(
        "tuning file {path:?}, line {line}: version {found}, and this build reads version \
         {VERSION}; write it anew with `gapless tune`"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its version.
        found: String,
    },
    /// A key that means nothing.
    #[error("tuning file {path:?}, line {line}: there is no number {key:?}{}", did_you_mean(near))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// A key that was perhaps meant; empty if none is like it.
        near: String,
    },
    /// A value of another kind.
    #[error("tuning file {path:?}, line {line}: {key} is {found}, not {wanted}")]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        wanted: String,
    },
    /// A number that cannot be: negative, no number, or beyond what any machine does.
    #[error(
        "tuning file {path:?}, line {line}: {key} is {value}, which is not from {least} to {most} {unit}"
    )]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// What stands there.
        value: String,
        /// The least that is taken.
        least: f64,
        /// The most that is taken.
        most: f64,
        /// Of what.
        unit: &'static str,
    },
}

fn did_you_mean(near: &str) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {near:?}?") }
}
