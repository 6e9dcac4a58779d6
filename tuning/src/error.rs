//! What is wrong with a tuning file: which file, which line, which key.

use super::VERSION;
use gapless_coll::{Algorithm, Misfit, NameError, Operation};
use std::path::PathBuf;
use thiserror::Error;

/// Why a tuning file cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TuningError {
    /// It was named, and does not exist.
    #[error("tuning file {path:?} does not exist; `gapless tune` writes one")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// This user may not look at it.
    #[error("tuning file {path:?} cannot be read: permission denied")]
    Denied {
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
    /// Too long to be a tuner's.
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
    /// It has no version.
    #[error(
        "tuning file {path:?} does not begin with a version (`version = {VERSION}`); write it anew \
         with `gapless tune`"
    )]
    NoVersion {
        /// The file.
        path: PathBuf,
    },
    /// It has another version.
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
    /// An unknown key.
    #[error("tuning file {path:?}, line {line}: there is no number {key:?}{}", did_you_mean(near))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// A similar key; empty if there is none.
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
        /// The value in the file.
        found: String,
        /// The expected kind of value.
        wanted: String,
    },
    /// An impossible number: negative, no number, or beyond any machine.
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
        /// The value in the file.
        value: String,
        /// The least that is accepted.
        least: f64,
        /// The most that is accepted.
        most: f64,
        /// Its unit.
        unit: &'static str,
    },
    /// An operation or algorithm in the table of collectives that does not exist.
    #[error("tuning file {path:?}, line {line}: {error}")]
    Name {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The name, and what was meant.
        error: NameError,
    },
    /// A rule in the table of collectives that names no algorithm.
    #[error("tuning file {path:?}, line {line}: a rule of {operation} names no algorithm")]
    NoAlgorithm {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The operation.
        operation: Operation,
    },
    /// A rule in the table of collectives whose algorithm does not do the operation.
    #[error("tuning file {path:?}, line {line}: {algorithm} does not do {operation}: {why}")]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: Box<Algorithm>,
        /// Why not.
        why: Misfit,
    },
}

fn did_you_mean(near: &str) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {near:?}?") }
}
