//! Everything a transport has to say.

use crate::{AmTag, Ended, Fragment, LinkError, PeerId, Token};

/// What a [poll](crate::Btl::poll) reports: an arrival, the end of an operation, or the loss of a peer.
#[derive(Debug)]
pub enum Event {
    /// An active message has arrived in full.
    Arrived {
        /// Who sent it.
        from: PeerId,
        /// What it is for.
        tag: AmTag,
        /// Its bytes.
        fragment: Fragment,
    },
    /// A slot that was sent with a token other than [`Token::NONE`] has left.
    Sent {
        /// The token of [`Btl::send`](crate::Btl::send).
        token: Token,
        /// Whether the link was still up.
        result: Result<(), LinkError>,
    },
    /// An RDMA operation has ended: the bytes are in place, or the link is down.
    Completed(Ended),
    /// A peer is gone; comes once, after everything else that concerns it.
    Lost {
        /// The peer.
        peer: PeerId,
        /// Why.
        error: LinkError,
    },
}
