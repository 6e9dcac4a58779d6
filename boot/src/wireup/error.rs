//! What went wrong with a launcher, at start-up or when a job is left: each a one-line sentence that names the
//! culprit.

use thiserror::Error;

/// What went wrong with a launcher.
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
    /// A variable of the user's makes no sense.
    #[error("{variable} is {problem}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The launcher says that the job has more processes than there can be.
    #[error("the launcher says that the job has {size} processes; there can be {max}")]
    TooManyProcesses {
        /// How many it says.
        size: u32,
        /// The most that is believed.
        max: u32,
    },
    /// A process is in its launcher's job once at a time.
    #[error("this process is in its launcher's job already: finalize or drop that world first")]
    Joined,
    /// This process has left its launcher's job, and the launcher does not let it join again.
    #[error("this launcher does not let a process join again that has left its job ({reason})")]
    OnlyOnce {
        /// What it did.
        reason: String,
    },
    /// The launcher is gone, or its connection is.
    #[error("the launcher is gone ({doing}: {reason})")]
    LauncherGone {
        /// The operation.
        doing: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The launcher does not answer.
    #[error("the launcher has not answered for {} ms ({doing})", waited.as_millis())]
    Late {
        /// The operation.
        doing: &'static str,
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// Some process of the job did not come to the fence in time.
    #[error(
        "some of the job's {size} processes have not come for {:.1} s (GAPLESS_START_SECONDS sets how \
         long they are waited for)",
        waited.as_secs_f64()
    )]
    NotGathered {
        /// How many there are.
        size: u32,
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// The caller gave up waiting at a fence.
    #[error("gave up waiting for the other processes")]
    GivenUp,
    /// The launcher answered something else than the protocol allows.
    #[error("the launcher answered {answer:?} to {asked:?}")]
    BadAnswer {
        /// The request.
        asked: String,
        /// The answer, shortened.
        answer: String,
    },
    /// The launcher, or its library, is of a version that this build does not know.
    #[error("{what} has version {theirs:?}; this build knows {known}")]
    Version {
        /// Whose version.
        what: &'static str,
        /// The version.
        theirs: String,
        /// The versions that are known.
        known: &'static str,
    },
    /// The launcher speaks PMIx, but its library cannot be used here.
    #[error("the launcher set PMIX_NAMESPACE but {library} cannot be used: {reason}")]
    Library {
        /// The library, as it was asked for.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// The PMIx library reported a failure.
    #[error("the launcher refused {doing}: {reason} ({status})")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The library's name of the status.
        reason: String,
        /// The status.
        status: i32,
    },
    /// A key or value that the store cannot carry, not even in pieces.
    #[error("{what} of {len} bytes is too long for the launcher: at most {max}")]
    TooLong {
        /// Which text.
        what: String,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A key or value with white space or a backslash, or a key with `=`.
    #[error("{what:?} has a character that the launcher's protocol cannot carry")]
    BadText {
        /// The text.
        what: String,
    },
    /// A value that a peer published in pieces which do not fit together.
    #[error("what process {from} published as {key} cannot be put together: {problem}")]
    Damaged {
        /// The publisher.
        from: u32,
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that the process did not put.
    #[error("process {from} published no {key}")]
    NoSuchKey {
        /// The process.
        from: u32,
        /// The key.
        key: String,
    },
}
