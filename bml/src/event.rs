//! What bml tells the layers above, in terms of ranks.

use crate::Bml;
use gapless_btl::{AmTag, Fragment, LinkError, Short, Token};
use std::fmt;

/// A process of the job, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// One thing that happened.
#[derive(Debug)]
pub enum Event {
    /// An active message has arrived in full.
    Arrived {
        /// Who sent it.
        from: Rank,
        /// What it is for.
        tag: AmTag,
        /// Its bytes; dropping it returns its credit.
        fragment: Fragment,
    },
    /// A message that was sent with a token is out of our hands.
    Sent {
        /// The token of [`Bml::send`].
        token: Token,
        /// Whether the link still stood.
        result: Result<(), LinkError>,
    },
    /// An RDMA operation has ended.
    Completed {
        /// The token it was started with, without the [`TokenSpace`](crate::TokenSpace)'s stamp.
        token: Token,
        /// How it ended.
        result: Result<(), LinkError>,
    },
    /// A peer is gone: nothing more comes from it, and nothing reaches it. Once per peer and
    /// handler, after everything else that concerns the peer.
    Lost {
        /// The peer.
        peer: Rank,
        /// Why.
        error: LinkError,
    },
}

/// A layer above: takes the events of the tags it registered.
pub trait Handler {
    /// Takes one event. It may reserve, send and register through `bml`; polling from here does
    /// nothing, because its caller is polling already.
    fn handle(&mut self, bml: &mut Bml, event: Event);

    /// Takes a short message of a tag that nobody registered, in its turn; `false`, with nothing
    /// changed, if it should come as an event.
    fn take(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        let _ = (from, tag, message);
        false
    }

    /// As [`take`](Handler::take), of a longer message, which goes back to the transport if it is taken.
    fn take_fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        let _ = (from, tag, fragment);
        false
    }
}

impl<H: Handler + ?Sized> Handler for &mut H {
    fn handle(&mut self, bml: &mut Bml, event: Event) {
        (**self).handle(bml, event);
    }

    #[inline]
    fn take(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        (**self).take(from, tag, message)
    }

    #[inline]
    fn take_fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        (**self).take_fragment(from, tag, fragment)
    }
}
