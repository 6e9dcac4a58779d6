//! The links: what is kept for each peer, in what order its messages go and come, and who is lost.
//!
//! Matched messages leave in the order of their `isend`. So while anything waits in a peer's outbox, everything later
//! queues behind it. Fragments of the pipeline need no order and come after the outbox, in turns between the messages
//! they belong to.

mod flat;
pub(crate) mod reorder;

use crate::arrival::Numbered;
use crate::buffer::Transfer;
use crate::error::PmlError;
use crate::links::reorder::Reorder;
use crate::status::RequestId;
use crate::wire::{self, NoteKind};
pub(crate) use flat::{FlatLayout, RemoteIndexPages, WireLayout};
use gapless_bml::{AmTag, Bml, LinkError, RailSlot, Rank, ReserveError, Token};
use gapless_mem::Space;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Instant;

/// The active-message tag of all messages of this crate. Tags up to 15 are reserved for it.
pub const AM_TAG: AmTag = AmTag(0);

/// The links of an endpoint. One is found by its peer's number.
#[derive(Debug)]
pub(crate) struct Links {
    peers: Vec<Peer>,
    /// Peers with something to send.
    active: Vec<u32>,
    /// How many peers are lost.
    lost: u32,
    /// Whom the last error named that this process got because of a loss.
    accused: Option<u32>,
    /// Sends that wait to be the first that leave to their peers, in order of age, and since when.
    unmet: VecDeque<(RequestId, Instant)>,
}

impl Index<u32> for Links {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: u32) -> &Peer {
        &self.peers[peer as usize]
    }
}

impl IndexMut<u32> for Links {
    #[inline]
    fn index_mut(&mut self, peer: u32) -> &mut Peer {
        &mut self.peers[peer as usize]
    }
}

impl Links {
    /// Of a process in a job of `size`.
    pub(crate) fn new(size: u32) -> Links {
        Links {
            peers: (0..size).map(|_| Peer::default()).collect(),
            active: Vec::new(),
            lost: 0,
            accused: None,
            unmet: VecDeque::new(),
        }
    }

    /// How many processes the job has.
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// All peers, this process included, and their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Peer)> {
        (0u32..).zip(&self.peers)
    }

    /// Whether there is such a peer, and it is not lost.
    pub(crate) fn has(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(|peer| peer.lost.is_none())
    }

    /// The number of the next matched message to `peer`.
    #[inline]
    pub(crate) fn next_sequence(&mut self, peer: u32) -> u32 {
        let state = &mut self[peer];
        let sequence = state.next_sequence;
        state.next_sequence = sequence.wrapping_add(1);
        sequence
    }

    /// Has a peer's queues looked at at the next step of progress.
    pub(crate) fn activate(&mut self, peer: u32) {
        let state = &mut self[peer];
        if !state.active {
            state.active = true;
            self.active.push(peer);
        }
    }

    /// Appends to a peer's outbox.
    pub(crate) fn enqueue(&mut self, peer: u32, item: Outgoing) {
        self[peer].outbox.push_back(item);
        self.activate(peer);
    }

    /// Whether no peer has anything to send.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// One of the peers with something to send, by its place among them.
    pub(crate) fn active(&self, at: usize) -> Option<u32> {
        self.active.get(at).copied()
    }

    /// Takes a peer from this list if it has nothing more to send; then another one has its place. Whether it did.
    pub(crate) fn deactivate(&mut self, at: usize) -> bool {
        let state = &mut self.peers[self.active[at] as usize];
        let idle = state.outbox.is_empty() && state.streams.is_empty();
        if idle {
            state.active = false;
            self.active.swap_remove(at);
        }
        idle
    }

    /// A send waits to be the first that leaves to its peer.
    pub(crate) fn note_unmet(&mut self, id: RequestId, now: Instant) {
        self.unmet.push_back((id, now));
    }

    /// The oldest of these.
    pub(crate) fn oldest_unmet(&self) -> Option<(RequestId, Instant)> {
        self.unmet.front().copied()
    }

    /// It waits no more.
    pub(crate) fn pop_unmet(&mut self) {
        self.unmet.pop_front();
    }

    /// A receive waits for `peer`, whose death is to be noticed, whether or not it ever sends. Whether its link is to be
    /// asked for.
    #[inline]
    pub(crate) fn approach(&mut self, peer: u32) -> bool {
        let state = &mut self[peer];
        let must_request = !state.link_requested && state.lost.is_none();
        state.link_requested |= must_request;
        must_request
    }

    /// A peer is lost because of `culprit`. Gives what waited to leave, and how operations end that need it; `None` if it
    /// was lost before.
    pub(crate) fn lose(
        &mut self,
        peer: u32,
        (culprit, error): (u32, LinkError),
    ) -> Option<(VecDeque<Outgoing>, PmlError)> {
        let state = &mut self[peer];
        if state.lost.is_some() {
            return None;
        }
        state.lost = Some((culprit, error.clone()));
        state.link_requested = false;
        state.reorder.clear();
        state.streams.clear();
        let outbox = std::mem::take(&mut state.outbox);
        self.lost += 1;
        Some((outbox, PmlError::PeerLost { rank: culprit, error }))
    }

    /// How an operation ends that needs a peer, if that is lost.
    #[inline]
    pub(crate) fn fault(&mut self, peer: u32) -> Option<PmlError> {
        if self[peer].lost.is_none() { None } else { self.loss(peer) }
    }

    #[cold]
    fn loss(&mut self, peer: u32) -> Option<PmlError> {
        let (rank, error) = self[peer].lost.clone()?;
        self.accused = Some(rank);
        Some(PmlError::PeerLost { rank, error })
    }

    /// Whether one of these processes is left whose message a new receive could get.
    pub(crate) fn somebody_left(
        &mut self,
        processes: impl IntoIterator<Item = u32>,
    ) -> Result<(), PmlError> {
        if self.lost == 0 {
            return Ok(());
        }
        let mut last = None;
        for process in processes {
            match &self[process].lost {
                None => return Ok(()),
                Some(lost) => last = Some(lost.clone()),
            }
        }
        // Alone from the start: messages to myself.
        let Some((rank, error)) = last else { return Ok(()) };
        self.accused = Some(rank);
        Err(PmlError::NobodyLeft { rank, error })
    }

    /// Whether no peer is lost.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.lost == 0
    }

    /// An error that this process gets names `culprit`.
    pub(crate) fn accuse(&mut self, culprit: u32) {
        self.accused = Some(culprit);
    }

    /// Whom the last such error named.
    pub(crate) fn accused(&self) -> Option<u32> {
        self.accused
    }

    /// Ends all that waits to leave: engines and slots let go of it.
    pub(crate) fn clear(&mut self) {
        for peer in &mut self.peers {
            peer.streams.clear();
            peer.outbox.clear();
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
    active: bool,
    /// Whom to blame if it is lost, and what became of that process.
    pub(crate) lost: Option<(u32, LinkError)>,
    /// A link was requested, by a receive here or by the peer, and the peer is not lost.
    pub(crate) link_requested: bool,
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
    Note(NoteKind),
    /// A control message.
    Control(SmallVec<[u8; wire::CTS_BYTES]>),
    /// What is left of a flattened layout.
    Layout { reply: u64, next: usize, piece: usize, flat: Arc<FlatLayout> },
}

impl Outgoing {
    /// A control message.
    pub(crate) fn control(message: &[u8]) -> Outgoing {
        Outgoing::Control(SmallVec::from_slice(message))
    }
}

/// Most bytes that a message to `peer` can have.
pub(crate) fn fragment_max(bml: &Bml, peer: u32) -> usize {
    bml.limits(Rank(peer)).map_or(256, |limits| limits.max_fragment_bytes)
}
/// Fills a slot with a message, which has its head in front, and sends it.
pub(crate) fn send_message(bml: &mut Bml, mut slot: RailSlot, head: &[u8], body: &[u8]) {
    let mut written = slot.write(0, head);
    if !body.is_empty() {
        written = written.and_then(|()| slot.write(head.len(), body));
    }
    if let Err(error) = written {
        tracing::error!(%error, "a slot that cannot be written");
    }
    bml.send(slot, AM_TAG, Token::NONE);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> LinkError {
        LinkError::Corrupt { what: "it said nonsense".to_owned() }
    }

    #[test]
    fn a_peer_is_looked_at_until_nothing_waits_for_it() {
        let mut links = Links::new(3);
        assert!(links.is_idle());
        for _ in 0..2 {
            links.enqueue(1, Outgoing::control(&[7]));
        }
        links.activate(2);
        assert_eq!((links.active(0), links.active(1), links.active(2)), (Some(1), Some(2), None));
        assert!(!links.deactivate(0), "two messages wait");
        links[1].outbox.clear();
        links[1].streams.push_back(RequestId::new(0, 0));
        assert!(!links.deactivate(0), "a stream waits");
        links[1].streams.clear();
        assert!(links.deactivate(0) && links.deactivate(0) && links.is_idle());
        links.activate(1);
        assert_eq!(links.active(0), Some(1), "it may come again");
    }

    #[test]
    fn a_lost_peer_is_lost_once_and_whoever_needs_it_hears_whom_to_blame() {
        let mut links = Links::new(3);
        assert!(links.approach(1) && !links.approach(1), "its link is asked for once");
        assert!(links.is_whole() && links.fault(1).is_none() && links.accused().is_none());
        links.enqueue(1, Outgoing::control(&[7]));
        let (outbox, fault) = links.lose(1, (2, closed())).unwrap();
        assert_eq!((outbox.len(), links[1].outbox.len()), (1, 0));
        assert_eq!(fault, PmlError::PeerLost { rank: 2, error: closed() });
        assert!(links.lose(1, (1, closed())).is_none(), "the first cause stays");
        assert_eq!(links.accused(), None, "nobody has needed it so far");
        assert_eq!((links.fault(1), links.accused()), (Some(fault), Some(2)));
        assert!(!links.approach(1) && !links.has(1) && links.has(2) && !links.has(3));
    }

    #[test]
    fn a_receive_from_anybody_needs_one_that_is_left() {
        let mut links = Links::new(3);
        links.lose(1, (1, closed()));
        assert_eq!(links.somebody_left([1, 2]), Ok(()));
        assert_eq!(links.somebody_left([]), Ok(()), "it waits for itself");
        links.lose(2, (2, closed()));
        let error = closed();
        assert_eq!(links.somebody_left([1, 2]), Err(PmlError::NobodyLeft { rank: 2, error }));
        assert_eq!(links.accused(), Some(2));
    }

    #[test]
    fn messages_are_numbered_by_peer_and_the_numbers_wrap() {
        let mut links = Links::new(2);
        links[1].next_sequence = u32::MAX;
        let numbers = [1, 1, 0].map(|peer| links.next_sequence(peer));
        assert_eq!(numbers, [u32::MAX, 0, 0]);
    }
}
