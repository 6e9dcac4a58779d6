//! How the processes of a job learn of each other: who am I, how many are we, and a small store of
//! keys and values with a fence, used once at start-up to exchange transport addresses.
//!
//! Our launcher speaks PMI-1 ([`crate::launch`]), the language of MPICH's hydra, so one client serves
//! both; a process that was started by neither is a job of one.

mod pmi1;

pub use pmi1::Pmi1;

use std::collections::HashMap;
use thiserror::Error;

/// Why start-up failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireupError {
    /// A launcher's variable is missing or makes no sense.
    #[error("the launcher set {set} but {variable} is {problem}")]
    Environment {
        /// The variable that shows that there is a launcher.
        set: &'static str,
        /// The variable at fault.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The launcher is gone, or its connection is.
    #[error("the launcher is gone ({doing}: {reason})")]
    LauncherGone {
        /// What was being asked.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The launcher answered something else than the protocol allows.
    #[error("the launcher answered {answer:?} to {asked:?}")]
    BadAnswer {
        /// The request.
        asked: String,
        /// The answer, shortened.
        answer: String,
    },
    /// A value the store cannot carry.
    #[error("the value of {key} has {len} bytes; the launcher carries at most {max}")]
    TooLong {
        /// The key.
        key: String,
        /// Its value's length.
        len: usize,
        /// The launcher's limit.
        max: usize,
    },
    /// A key or value with white space or `=`.
    #[error("{what:?} has a character that the launcher's protocol cannot carry")]
    BadText {
        /// The text.
        what: String,
    },
    /// A key that no process put.
    #[error("no process published {key}")]
    NoSuchKey {
        /// The key.
        key: String,
    },
}

/// A job as its launcher shows it. Keys and values are words: no white space, no `=` in keys.
pub trait Wireup: Send {
    /// This process's number, below [`size`](Wireup::size).
    fn rank(&self) -> u32;

    /// How many processes the job has.
    fn size(&self) -> u32;

    /// How many of them run on this host, where the launcher says so.
    fn local_size(&self) -> Option<u32>;

    /// A name of the job, the same in every process and unlike other jobs'.
    fn job(&self) -> &str;

    /// Publishes a value; seen by others after the next [`fence`](Wireup::fence).
    ///
    /// # Errors
    /// The launcher is gone, or cannot carry the text.
    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError>;

    /// Waits until every process of the job is here. Ends with an error when the launcher dies,
    /// which it does (for us) when another process dies.
    ///
    /// # Errors
    /// The launcher is gone.
    fn fence(&mut self) -> Result<(), WireupError>;

    /// A value that some process published before the last fence.
    ///
    /// # Errors
    /// No such key, or the launcher is gone.
    fn get(&mut self, key: &str) -> Result<String, WireupError>;

    /// Tells the launcher that this process leaves in good order. Called once, last.
    ///
    /// # Errors
    /// The launcher is gone.
    fn finalize(&mut self) -> Result<(), WireupError>;
}

/// Finds the launcher of this process from its environment.
///
/// # Errors
/// A launcher that is half there: its variables are set but make no sense, or it does not answer.
pub fn detect() -> Result<Box<dyn Wireup>, WireupError> {
    if std::env::var_os(pmi1::FD).is_some() {
        return Ok(Box::new(Pmi1::from_environment()?));
    }
    if std::env::var_os("PMI_PORT").is_some() {
        return Err(WireupError::Environment {
            set: "PMI_PORT",
            variable: pmi1::FD,
            problem: "missing: PMI over TCP is not supported, only over a descriptor".to_owned(),
        });
    }
    Ok(Box::new(Single::default()))
}

/// A job of one process, without a launcher.
#[derive(Debug)]
pub struct Single {
    job: String,
    store: HashMap<String, String>,
}

impl Default for Single {
    fn default() -> Single {
        Single { job: format!("single-{}", std::process::id()), store: HashMap::new() }
    }
}

impl Wireup for Single {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn local_size(&self) -> Option<u32> {
        Some(1)
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        self.store.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, WireupError> {
        let missing = || WireupError::NoSuchKey { key: key.to_owned() };
        self.store.get(key).cloned().ok_or_else(missing)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_talks_to_itself() {
        let mut single = Single::default();
        assert_eq!((single.rank(), single.size()), (0, 1));
        single.put("a", "1").unwrap();
        single.fence().unwrap();
        assert_eq!(single.get("a").unwrap(), "1");
        assert!(matches!(single.get("b"), Err(WireupError::NoSuchKey { .. })));
    }
}
