//! Why processes do not find each other.

use crate::wireup::WireupError;
use gapless_btl::LinkError;
use thiserror::Error;

/// Why a process cannot take part in its job, or does not fit to another one.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BootError {
    /// The launcher failed, or a setting makes no sense.
    #[error(transparent)]
    Wireup(#[from] WireupError),
    /// A transport to other hosts could not be set up.
    #[error("transport {name} could not be set up: {error}")]
    Transport {
        /// Its name.
        name: &'static str,
        /// Why.
        error: LinkError,
    },
    /// A peer was built, or runs, in another way.
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
    BadCard {
        /// The peer.
        rank: u32,
        /// What it should be.
        what: &'static str,
        /// What was published, shortened.
        text: String,
    },
}
