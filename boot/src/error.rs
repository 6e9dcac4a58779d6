//! Why processes do not find each other.

use crate::wireup::WireupError;
use gapless_bml::BmlError;
use gapless_btl::LinkError;
use thiserror::Error;

/// Why a process cannot take part in its job, or does not fit to another one.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BootError {
    /// The launcher failed, or a setting makes no sense.
    #[error(transparent)]
    Wireup(#[from] WireupError),
    /// A peer could not be reached.
    #[error("start-up failed: {0}")]
    Peer(#[from] BmlError),
    /// A transport of ours could not be set up.
    #[error("transport {name} could not be set up: {error}")]
    Transport {
        /// Its name.
        name: &'static str,
        /// Why.
        error: LinkError,
    },
    /// This process may open too few files for its job.
    #[error(
        "a process of a job of {size} opens {needed} files or more, and the limit of this one is {limit} (ulimit -n)"
    )]
    TooFewDescriptors {
        /// Processes of the job.
        size: u32,
        /// What it needs at least.
        needed: u64,
        /// What the system allows.
        limit: u64,
    },
    /// A process whose build or machine differs so much that its messages would be misread; or that encrypts what goes to
    /// other hosts, where this one does not, or the reverse.
    #[error("rank {rank} is incompatible: {what} is {theirs} there and {ours} here")]
    Incompatible {
        /// The peer.
        rank: u32,
        /// What differs.
        what: String,
        /// What it is there.
        theirs: String,
        /// What it is here.
        ours: String,
    },
    /// A peer published something that makes no sense.
    #[error("rank {rank} published {text:?} as its {what}, which makes no sense")]
    BadRecord {
        /// The peer.
        rank: u32,
        /// What it should be.
        what: &'static str,
        /// What was published, shortened.
        text: String,
    },
    /// Ranks that would choose other algorithms for collectives: the world does not start.
    #[error(
        "rank {rank} has another table of collectives than {}: all ranks must read the same \
         coll.toml, or none (GAPLESS_COLL=)",
        named(others)
    )]
    TablesDiffer {
        /// This process.
        rank: u32,
        /// Those whose table differs from its own, in order.
        others: Vec<u32>,
    },
}

/// Some ranks, a few of them by number.
fn named(ranks: &[u32]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown: Vec<_> = ranks.iter().take(SHOWN_MAX).map(u32::to_string).collect();
    let more = ranks.len() - shown.len();
    let what = if ranks.len() == 1 { "rank" } else { "ranks" };
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{what} {}{rest}", shown.join(", "))
}

impl BootError {
    /// The lost process's number in the job, if that is what this error is about.
    #[must_use]
    pub fn lost_rank(&self) -> Option<u32> {
        match self {
            BootError::Peer(BmlError::PeerLost { peer, .. }) => Some(peer.0),
            _ => None,
        }
    }
}
