//! Errors of setting up; sending has [`ReserveError`](gapless_btl::ReserveError).

use crate::Rank;
use gapless_btl::LinkError;
use std::ops::RangeInclusive;
use thiserror::Error;

/// Why a peer could not be connected or a handler not be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BmlError {
    /// A rank outside the job.
    #[error("no {rank} in a job of {size} processes")]
    NoSuchRank {
        /// The rank that was named.
        rank: Rank,
        /// How many processes there are.
        size: u32,
    },
    /// No transport reaches the peer.
    #[error("no transport reaches {peer}{}", tried_text(tried))]
    NoRail {
        /// The peer.
        peer: Rank,
        /// Transports that both ends have, and why each failed; empty if they have none in common.
        tried: Vec<(String, LinkError)>,
    },
    /// Two ranks have given the same address.
    #[error("{peer} has the address of {other} on transport {rail}")]
    AddressInUse {
        /// The peer that was to be connected.
        peer: Rank,
        /// The one that has the address already.
        other: Rank,
        /// The transport's name.
        rail: String,
    },
    /// The peer is gone; it cannot be connected again.
    #[error("{peer} is gone: {error}")]
    PeerLost {
        /// The peer.
        peer: Rank,
        /// Why.
        error: LinkError,
    },
    /// Tags that another handler has.
    #[error("active-message tags {}..={} overlap {}..={}, which have a handler", tags.start(), tags.end(), taken.start(), taken.end())]
    TagsTaken {
        /// What was asked for.
        tags: RangeInclusive<u8>,
        /// The range of the other handler.
        taken: RangeInclusive<u8>,
    },
    /// An empty range of tags, or one with the tag that bml keeps for itself
    /// ([`Bml::CONTROL_TAG`](crate::Bml::CONTROL_TAG)).
    #[error("active-message tags {}..={} cannot be registered", tags.start(), tags.end())]
    BadTags {
        /// What was asked for.
        tags: RangeInclusive<u8>,
    },
}

fn tried_text(tried: &[(String, LinkError)]) -> String {
    if tried.is_empty() {
        return ": the two ends have no transport in common".to_owned();
    }
    tried.iter().map(|(name, error)| format!("; {name}: {error}")).collect()
}
