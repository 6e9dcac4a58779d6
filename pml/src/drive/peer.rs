//! What an endpoint keeps for each peer, and how waiting messages get room in the transport.
//!
//! Matched messages leave in the order of their `isend`. So while anything waits in a peer's outbox, everything later
//! queues behind it. Fragments of the pipeline need no order and come after the outbox, in turns between the messages
//! they belong to.

use crate::buffer::Transfer;
use crate::drive::core::{AM_TAG, Core};
use crate::eager::unanswered::Offering;
use crate::matching::body::Numbered;
use crate::matching::reorder::Reorder;
use crate::request::RequestId;
use crate::rndv::layouts::Fetched;
use crate::rndv::mapped_put::Granting;
use crate::rndv::protocol::Protocol;
use crate::wire::{self, Note, What};
use gapless_bml::{Bml, LinkError, RailSlot, Rank, ReserveError, Token};
use gapless_mem::Space;
use std::collections::VecDeque;
use std::sync::Arc;

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
    /// It is not lost, and a link was asked for: by a send of the other end, or a receive of ours.
    pub(crate) near: bool,
    /// Whether it was told that nothing more to be matched will come.
    pub(crate) told: bool,
    /// Whether it has said that nothing more to be matched will come.
    pub(crate) farewell: bool,
    /// Layouts that were fetched from it.
    pub(crate) layouts: Fetched,
    /// Unexpected messages in the transport's memory.
    pub(crate) parked: u32,
    /// Protocols that are impossible with it, by their place among all.
    pub(crate) closed: [bool; Protocol::ALL.len()],
    /// How often in a row a staged protocol found no key, likewise.
    pub(crate) unkeyed: [u8; Protocol::ALL.len()],
    /// What is known of offering it short messages out of device memory.
    pub(crate) offering: Offering,
    /// What is known of granting it buffers.
    pub(crate) granting: Granting,
    /// Whether a message with it had an end in a device's memory there.
    pub(crate) has_devices: bool,
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

/// What became of an attempt to send something.
#[derive(Debug)]
pub(crate) enum Attempt {
    Sent,
    /// No room: the rest goes back to the front of the queue.
    Waits(Outgoing),
}

/// Eager messages to one peer that engines pack at the same time: as many as go in one launch.
const PACKING_MAX: usize = 64;

impl Core {
    /// Has a peer's queues looked at by [`pump`](Core::pump).
    pub(crate) fn activate(&mut self, peer: u32) {
        let state = &mut self.peers[peer as usize];
        if !state.active {
            state.active = true;
            self.active.push(peer);
        }
    }

    /// Sends a control message, now or as soon as there is room.
    pub(crate) fn send_control(&mut self, bml: &mut Bml, peer: u32, message: &[u8]) {
        let state = &mut self.peers[peer as usize];
        if state.lost.is_some() {
            return;
        }
        state.outbox.push_back(Outgoing::control(message));
        self.flush_peer(bml, peer);
    }

    /// Appends to a peer's outbox.
    pub(crate) fn enqueue(&mut self, peer: u32, item: Outgoing) {
        self.peers[peer as usize].outbox.push_back(item);
        self.activate(peer);
    }

    /// Sends waiting messages, for all peers; returns how many were sent.
    pub(crate) fn flush_all(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(&peer) = self.active.get(at) {
            done += self.flush_peer(bml, peer);
            let state = &mut self.peers[peer as usize];
            if state.outbox.is_empty() && state.streams.is_empty() {
                state.active = false;
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
        done
    }

    /// Sends waiting messages for one peer, until the transport has no room; returns how many were sent.
    pub(crate) fn flush_peer(&mut self, bml: &mut Bml, peer: u32) -> usize {
        let mut done = 0;
        while let Some(first) = self.peers[peer as usize].outbox.front_mut() {
            // Asked where it lies: an engine's word may be a panic.
            let packed = match first {
                Outgoing::Packing { packing, .. } => packing.poll(),
                _ => Ok(true),
            };
            if packed == Ok(false) {
                self.activate(peer);
                self.pack_ahead(bml, peer);
                return done;
            }
            let Some(item) = self.peers[peer as usize].outbox.pop_front() else { break };
            if let Outgoing::Packing { id, packing } = item {
                self.send_packed(bml, peer, (id, packing.end()), packed.map(drop));
                done += 1;
                continue;
            }
            match self.attempt(bml, peer, item) {
                Attempt::Sent => done += 1,
                Attempt::Waits(rest) => {
                    // If the peer was lost by that, its queue was emptied for good.
                    if self.peers[peer as usize].lost.is_some() {
                        return done;
                    }
                    let packing = matches!(rest, Outgoing::Packing { .. });
                    self.peers[peer as usize].outbox.push_front(rest);
                    if !packing {
                        self.activate(peer);
                        return done;
                    }
                }
            }
        }
        done + self.flush_streams(bml, peer)
    }

    fn flush_streams(&mut self, bml: &mut Bml, peer: u32) -> usize {
        let mut done = 0;
        let most = self.config.bounds.fragments_per_progress.max(1) as usize;
        let mut idle = 0;
        while done < most {
            let Some(id) = self.peers[peer as usize].streams.pop_front() else { break };
            match self.take_turn(bml, id) {
                Streamed::Sent => {
                    done += 1;
                    idle = 0;
                    self.peers[peer as usize].streams.push_back(id);
                }
                // Its engine is busy; the others may have their turn.
                Streamed::Busy => {
                    idle += 1;
                    let streams = &mut self.peers[peer as usize].streams;
                    streams.push_back(id);
                    if idle >= streams.len() {
                        break;
                    }
                }
                Streamed::Full => {
                    self.peers[peer as usize].streams.push_front(id);
                    break;
                }
                Streamed::Ended => {}
            }
        }
        done
    }

    /// Starts to pack the eager messages that directly follow those being packed.
    fn pack_ahead(&mut self, bml: &mut Bml, peer: u32) {
        for at in 0..PACKING_MAX {
            let outbox = &mut self.peers[peer as usize].outbox;
            match outbox.get(at) {
                Some(Outgoing::Packing { .. }) => {}
                Some(&Outgoing::Eager(id)) => match self.start_packing(bml, peer, id) {
                    Ok(Some(packing)) => {
                        let packing = Outgoing::Packing { id, packing: Box::new(packing) };
                        self.peers[peer as usize].outbox[at] = packing;
                    }
                    Ok(None) | Err(_) => return,
                },
                _ => return,
            }
        }
    }

    fn attempt(&mut self, bml: &mut Bml, peer: u32, item: Outgoing) -> Attempt {
        match item {
            Outgoing::Eager(id) => match self.start_packing(bml, peer, id) {
                Ok(Some(packing)) => match packing.now() {
                    Ok(slot) => {
                        self.send_packed(bml, peer, (id, slot), Ok(()));
                        Attempt::Sent
                    }
                    Err(packing) => {
                        Attempt::Waits(Outgoing::Packing { id, packing: Box::new(packing) })
                    }
                },
                Ok(None) => Attempt::Waits(Outgoing::Eager(id)),
                // The request has ended meanwhile.
                Err(Gone) => Attempt::Sent,
            },
            packing @ Outgoing::Packing { .. } => Attempt::Waits(packing),
            Outgoing::Rts(id) => self.attempt_rts(bml, peer, id),
            Outgoing::Note(what) => {
                let Some(mut slot) = self.reserve(bml, peer, wire::NOTE_BYTES) else {
                    return Attempt::Waits(Outgoing::Note(what));
                };
                let note = Note { sequence: self.next_sequence(peer), what };
                if let Err(error) = slot.write(0, &wire::note(note)) {
                    tracing::error!(%error, "a slot that cannot be written");
                }
                bml.send(slot, AM_TAG, Token::NONE);
                Attempt::Sent
            }
            Outgoing::Control(bytes, len) => {
                if self.attempt_control(bml, peer, &bytes[..usize::from(len)]) {
                    return Attempt::Sent;
                }
                Attempt::Waits(Outgoing::Control(bytes, len))
            }
            Outgoing::Long(bytes) => {
                if self.attempt_control(bml, peer, &bytes) {
                    return Attempt::Sent;
                }
                Attempt::Waits(Outgoing::Long(bytes))
            }
            Outgoing::Layout { reply, next, piece, bytes } => {
                self.attempt_layout(bml, peer, (reply, next, piece), bytes)
            }
        }
    }

    /// Sends a control message, if there is room; whether there was.
    fn attempt_control(&mut self, bml: &mut Bml, peer: u32, message: &[u8]) -> bool {
        let Some(mut slot) = self.reserve(bml, peer, message.len()) else { return false };
        if let Err(error) = slot.write(0, message) {
            tracing::error!(%error, "a slot that cannot be written");
        }
        bml.send(slot, AM_TAG, Token::NONE);
        true
    }

    /// Room for a message; `None` if there is none now. A link that is gone takes the peer with it.
    pub(crate) fn reserve(&mut self, bml: &mut Bml, peer: u32, len: usize) -> Option<RailSlot> {
        reserve(bml, peer, len, None).unwrap_or_else(|(error, is_up)| {
            self.lose(bml, peer, error.clone());
            if is_up {
                // The peer would wait for us.
                bml.give_up(Rank(peer), error);
            }
            None
        })
    }

    /// Most bytes that a message to `peer` can have.
    pub(crate) fn fragment_max(bml: &Bml, peer: u32) -> usize {
        bml.limits(Rank(peer)).map_or(256, |limits| limits.max_fragment_bytes)
    }
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

/// What became of a turn of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streamed {
    Sent,
    /// The maximum of fragments is being packed.
    Busy,
    /// The transport has no room.
    Full,
    /// Nothing is left to send.
    Ended,
}

/// The request has ended meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;
