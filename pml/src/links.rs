//! The links: what is kept for each peer, in what order its messages go and come, and who is lost.
//!
//! Matched messages leave in the order of their `isend`. So while anything waits in a peer's outbox, everything later
//! queues behind it. Fragments of the pipeline need no order and come after the outbox, in turns between the messages
//! they belong to.

pub(crate) mod reorder;

use crate::arrival::Numbered;
use crate::buffer::Transfer;
use crate::links::reorder::Reorder;
use crate::status::RequestId;
use crate::wire::{self, What};
use gapless_bml::{AmTag, Bml, LinkError, RailSlot, Rank, ReserveError};
use gapless_mem::Space;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The active-message tag of all messages of this crate. Tags up to 15 are reserved for it.
pub const AM_TAG: AmTag = AmTag(0);

/// The links of an endpoint.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) peers: Vec<Peer>,
    /// Peers with something to send.
    pub(crate) active: Vec<u32>,
    /// How many peers are lost.
    pub(crate) lost: u32,
    /// Whom the last error named that this process got because of a loss.
    pub(crate) accused: Option<u32>,
    /// Sends that wait to be the first that leave to their peers, in order of age.
    pub(crate) unmet: VecDeque<(RequestId, Instant)>,
}

impl Links {
    pub(crate) fn new(size: u32) -> Links {
        Links {
            peers: (0..size).map(|_| Peer::default()).collect(),
            active: Vec::new(),
            lost: 0,
            accused: None,
            unmet: VecDeque::new(),
        }
    }
}

/// What is known of one peer, and what is in flight with it.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// The number of the next matched message to it.
    pub(crate) next_sequence: u32,
    pub(crate) reorder: Reorder<Numbered>,
    pub(crate) outbox: VecDeque<Outgoing>,
    /// Sends whose receiver has asked for their data.
    pub(crate) streams: VecDeque<RequestId>,
    /// Whether it is in the list of peers with something to send.
    pub(crate) active: bool,
    /// Whom to blame if it is lost, and what became of that process.
    pub(crate) lost: Option<(u32, LinkError)>,
    /// It is not lost, and a link was asked for: by a send of the other end, or a receive of ours.
    pub(crate) near: bool,
    /// Whether it was told that nothing more to be matched will come.
    pub(crate) told: bool,
    /// Whether it has said that nothing more to be matched will come.
    pub(crate) farewell: bool,
}

/// Something that waits for room in the transport.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// An eager message, not packed yet.
    Eager(RequestId),
    /// An eager message that an engine packs, or that waits for those before it.
    Packing { id: RequestId, packing: Box<Transfer<RailSlot>> },
    /// An offer.
    Rts(RequestId),
    /// A note about messages before it.
    Note(What),
    /// A control message: its bytes and their number.
    Control([u8; wire::CTS_BYTES], u8),
    /// A longer one.
    Long(Box<[u8]>),
    /// What is left of a flattened layout.
    Layout { reply: u64, next: usize, piece: usize, bytes: Arc<[u8]> },
}

impl Outgoing {
    /// A control message of at most [`wire::CTS_BYTES`].
    pub(crate) fn control(message: &[u8]) -> Outgoing {
        let mut bytes = [0; wire::CTS_BYTES];
        bytes[..message.len()].copy_from_slice(message);
        let len = u8::try_from(message.len()).expect("a control message is short");
        Outgoing::Control(bytes, len)
    }
}

/// Most bytes that a message to `peer` can have.
pub(crate) fn fragment_max(bml: &Bml, peer: u32) -> usize {
    bml.limits(Rank(peer)).map_or(256, |limits| limits.max_fragment_bytes)
}
/// Room for a message; `None` if there is none now. `from` is where its bytes lie, if rails that are near to that are
/// preferred. An error says whether the link is up all the same.
pub(crate) fn reserve(
    bml: &mut Bml,
    peer: u32,
    len: usize,
    from: Option<Space>,
) -> Result<Option<RailSlot>, (LinkError, bool)> {
    let reserved = match from {
        Some(space) => bml.reserve_for(Rank(peer), len, space),
        None => bml.reserve(Rank(peer), len),
    };
    match reserved {
        Ok(slot) => Ok(Some(slot)),
        Err(ReserveError::Full) => Ok(None),
        Err(ReserveError::Link(error)) => Err((error, false)),
        Err(error) => {
            // Every length is checked against the link's limits first. If a rail has changed its limits since, the
            // message cannot be sent.
            tracing::error!(peer, %error, "a message that the link does not take");
            Err((LinkError::Incompatible { what: error.to_string() }, true))
        }
    }
}
