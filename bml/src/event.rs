//! The events of bml for the layers above, in terms of ranks.

use crate::Bml;
use gapless_btl::{AmTag, Fragment, LinkError, Short, TargetAnswer, Token};
use std::fmt;

/// The number of a process in the job, from 0. It is no rank of a communicator: a communicator maps its ranks to such
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// One thing that happened, in terms of ranks. A transport reports it as [`gapless_btl::Event`], in terms of peers.
#[derive(Debug)]
pub enum RankEvent {
    /// An active message has arrived in full.
    Arrived {
        /// Who sent it.
        from: Rank,
        /// What it is for.
        tag: AmTag,
        /// Its bytes; dropping it returns its credit.
        fragment: Fragment,
    },
    /// A message that was sent with a token has left; its slot is free.
    Sent {
        /// The token of [`Bml::send`].
        token: Token,
        /// Whether the link was still up.
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

/// What [`Bml::take_next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing has come yet, or the transport does not offer it here: the message is not a short one, or the transport
    /// does not look at one peer alone.
    Nothing,
    /// There is a message that was not taken: a poll has to see to it.
    Kept,
    /// The message was taken.
    Taken,
}

/// A layer above: takes the messages and the events of the tags it registered.
pub trait Handler {
    /// Takes one event. It may reserve, send and register through `bml`; polling from here does
    /// nothing, because its caller is polling already.
    fn handle(&mut self, bml: &mut Bml, event: RankEvent);

    /// Takes a short message of its tags while the transport is still polled: nothing can be sent from here. `false`,
    /// with nothing changed, if it should come as an event. Messages of one peer keep their order either way.
    fn short(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        let _ = (from, tag, message);
        false
    }

    /// As [`short`](Handler::short), of a message in the transport's memory, which is the transport's again when this
    /// returns.
    fn fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        let _ = (from, tag, fragment);
        false
    }

    /// Where the end of a message of `len` bytes goes that begins with `head`, likewise:
    /// [`gapless_btl::Sink::receive_target`].
    fn receive_target(
        &mut self,
        from: Rank,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        let _ = (from, tag, head, len);
        TargetAnswer::Nowhere
    }

    /// A message is where it was to be [placed](Handler::receive_target): [`gapless_btl::Sink::target_filled`].
    fn target_filled(&mut self, from: Rank, tag: AmTag, head: &[u8], len: usize) {
        let _ = (from, tag, head, len);
    }
}

impl<H: Handler + ?Sized> Handler for &mut H {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        (**self).handle(bml, event);
    }

    #[inline]
    fn short(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        (**self).short(from, tag, message)
    }

    #[inline]
    fn fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        (**self).fragment(from, tag, fragment)
    }

    fn receive_target(
        &mut self,
        from: Rank,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        (**self).receive_target(from, tag, head, len)
    }

    fn target_filled(&mut self, from: Rank, tag: AmTag, head: &[u8], len: usize) {
        (**self).target_filled(from, tag, head, len);
    }
}
