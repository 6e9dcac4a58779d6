//! Everything a transport has to say, in a buffer that its caller owns.

use crate::{AmTag, Ended, Fragment, LinkError, PeerId, Token};

/// One thing that happened.
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
    /// A slot that was sent with a token other than [`Token::NONE`] is out of our hands.
    Sent {
        /// The token of [`Btl::send`](crate::Btl::send).
        token: Token,
        /// Whether the link still stood.
        result: Result<(), LinkError>,
    },
    /// An RDMA operation has ended: the bytes are where they should be, or the link is not.
    Completed(Ended),
    /// A peer is gone; comes once, after everything else that concerns it.
    Lost {
        /// The peer.
        peer: PeerId,
        /// Why.
        error: LinkError,
    },
}

/// A bounded list of events, filled by [`Btl::poll`](crate::Btl::poll) and drained by its caller.
///
/// Its memory is allocated once.
#[derive(Debug)]
pub struct Events {
    list: Vec<Event>,
    capacity: usize,
}

impl Events {
    /// Room for `capacity` events (at least 1).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Events {
        let capacity = capacity.max(1);
        Events { list: Vec::with_capacity(capacity), capacity }
    }

    /// Whether a transport must stop and keep the rest for the next poll.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.list.len() >= self.capacity
    }

    /// How many events there is room for in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many more events there is room for.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.list.len())
    }

    /// Appends an event. A transport asks [`is_full`](Events::is_full) first; if it does not, the
    /// list grows rather than lose the event.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.list.push(event);
    }

    /// How many events wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether none wait.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all events, oldest first.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.list.drain(..)
    }
}
