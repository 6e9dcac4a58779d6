//! How the processes of a job find each other: the number of this process, the size of the job, and a small store of
//! keys and values with a fence, used once at start-up to exchange transport addresses.
//!
//! The environment of this process tells who started it ([`detect`]):
//!
//! | launcher | language | seen by |
//! |---|---|---|
//! | `gapless run` (feature `launch`), MPICH's and Intel's hydra, Slurm's `pmi2` | PMI-1 over an inherited descriptor ([`Pmi1`]) | `PMI_FD` |
//! | hydra with `-pmi-port` | PMI-1 over TCP ([`Pmi1`]) | `PMI_PORT` |
//! | Open MPI's `mpirun`, PRRTE's `prun`, Slurm's `pmix` | PMIx ([`Pmix`]) | `PMIX_NAMESPACE` |
//! | none | none: a job of one ([`Single`]) | |
//!
//! PMI-1 comes first: our own launcher sets it, and may itself run under another launcher. A launcher that is only
//! partly present (variables without a server, a library that is missing) is a one-line error, never a job of one.
//!
//! A launcher only starts processes and carries their records. How processes of a host meet, and how they notice a
//! death, is up to the transports and the same under every launcher. Every wait for a launcher is bounded by
//! [`Limits`] or ends when it or a peer dies.
//!
//! Clients are `pmi1`, `pmix` and `single`; `detect` chooses, and `membership` sees that one world has the job at a
//! time. Lines go over a `link`, long values in `pieces`. `questions` of other threads are asked by the one that waits
//! at a fence; `asked` answers the launcher before it ends the job.

#[allow(unsafe_code, reason = "takes over the socket by which the launcher asks")]
mod asked;
mod detect;
mod error;
mod limits;
#[allow(unsafe_code, reason = "takes over the descriptor that the launcher left")]
mod line_stream;
#[allow(unsafe_code, reason = "takes each descriptor over once")]
mod membership;
mod pieces;
mod pmi1;
mod pmix;
mod questions;
mod single;

pub use asked::{ASKED, asked, name as name_asked};
pub use detect::{detect, is_launched};
pub use error::WireupError;
pub use limits::Limits;
pub use limits::seconds;
pub use pmi1::Pmi1;
pub use pmix::Pmix;
pub use questions::Questions;
pub use single::Single;

/// A job as its launcher shows it. Keys and values are words: printable ASCII without white space, and keys without
/// `=`.
pub trait Wireup: Send {
    /// This process's number, below [`size`](Wireup::size).
    fn rank(&self) -> u32;

    /// How many processes the job has.
    fn size(&self) -> u32;

    /// How many of them run on this host, if the launcher says so.
    fn local_size(&self) -> Option<u32>;

    /// A name of the job, the same in every process and unlike other jobs'; at most 120 bytes.
    fn job(&self) -> &str;

    /// Publishes a value; seen by others after the next [`fence`](Wireup::fence). A key is put once;
    /// other processes' keys may be the same.
    ///
    /// # Errors
    /// The launcher is gone, or cannot carry the text.
    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError>;

    /// How many worlds of this process were in the job before. Others may still be in one of those.
    fn worlds_before(&self) -> u32 {
        0
    }

    /// Waits until every process of the job is here, for as long as [`Limits::gathering`] says.
    ///
    /// # Errors
    /// The launcher is gone; somebody did not come in time.
    fn fence(&mut self) -> Result<(), WireupError>;

    /// As [`fence`](Wireup::fence), but waits as long as `go_on` returns true; it is called several times a second.
    /// For processes that learn by other means that a peer has died. Once this has given up, the launcher cannot be
    /// used any more.
    ///
    /// # Errors
    /// The launcher is gone; [`WireupError::GivenUp`].
    fn fence_while(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), WireupError> {
        let _ = go_on;
        self.fence()
    }

    /// As [`fence_while`](Wireup::fence_while), and answers the questions of other threads meanwhile, as
    /// [`get`](Wireup::get) would; only if it [can](Wireup::answers_at_fences). By default it does not. Once this has given
    /// up, no other fence follows, but values can still be got.
    ///
    /// # Errors
    /// As [`fence_while`](Wireup::fence_while).
    fn fence_answering(
        &mut self,
        go_on: &dyn Fn() -> bool,
        questions: &Questions,
    ) -> Result<(), WireupError> {
        let _ = questions;
        self.fence_while(go_on)
    }

    /// Whether values can be got while this process waits at a fence. If so, addresses of peers are got when they are
    /// first needed, otherwise all of them at start-up.
    fn answers_at_fences(&self) -> bool {
        false
    }

    /// A value that the process `from` published before the last fence.
    ///
    /// # Errors
    /// No such key, or the launcher is gone.
    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError>;

    /// Tells the launcher because of which process this one leaves without finalizing, if it wants to know: itself, or
    /// another. Called before [`finalize`](Wireup::finalize), or instead of it.
    fn leave_because(&mut self, culprit: u32) {
        let _ = culprit;
    }

    /// Tells the launcher that this process leaves in good order. Called once, last.
    ///
    /// # Errors
    /// The launcher is gone.
    fn finalize(&mut self) -> Result<(), WireupError>;

    /// Asks the launcher to end all processes of the job (`MPI_Abort`, MPI 4.1 §9.3), and to exit with `code`.
    /// Returns once it has been told, or could not be told. The caller then ends its own process, which every
    /// launcher notices.
    fn abort(&mut self, code: i32) {
        let _ = code;
    }
}

/// Longest name of a job.
const JOB_BYTES_MAX: usize = 120;

/// A job's name from the launcher's name, which may be longer than transports can carry: the end of a long name is
/// replaced by a number made of all of it.
fn job_name(launcher: &str) -> String {
    if launcher.len() <= JOB_BYTES_MAX {
        return launcher.to_owned();
    }
    let hash = gapless_bml::digest_bytes(launcher.bytes());
    let kept: String = launcher
        .chars()
        .scan(0, |len, c| {
            *len += c.len_utf8();
            (*len <= JOB_BYTES_MAX - 17).then_some(c)
        })
        .collect();
    format!("{kept}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::job_name;

    #[test]
    fn long_names_stay_apart() {
        assert_eq!(job_name("kvs_1"), "kvs_1");
        let [one, other] = ["a", "b"].map(|end| job_name(&("é".repeat(127) + end)));
        assert!(one != other && one.len() <= 120 && other.len() <= 120, "{one} {other}");
        assert!(one.starts_with("éé"));
    }
}
