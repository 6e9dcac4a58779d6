//! Waiting messages get room in the transport.

use crate::drive::core::Core;
use crate::links::{Outgoing, reserve, send_message};
use crate::rndv::SendTurn;
use crate::wire::{self, Note};
use gapless_bml::{Bml, RailSlot, Rank};

/// Eager messages to one peer that engines pack at the same time: as many as go in one launch.
const PACKING_MAX: usize = 64;

impl Core {
    /// Sends a control message, now or as soon as there is room.
    pub(crate) fn send_control(&mut self, bml: &mut Bml, peer: u32, message: &[u8]) {
        let state = &mut self.links[peer];
        if state.lost.is_some() {
            return;
        }
        state.outbox.push_back(Outgoing::control(message));
        self.flush_peer(bml, peer);
    }

    /// Sends waiting messages, for all peers; returns how many were sent.
    pub(crate) fn flush_all(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(peer) = self.links.active(at) {
            done += self.flush_peer(bml, peer);
            at += usize::from(!self.links.deactivate(at));
        }
        done
    }

    /// Sends waiting messages for one peer, until the transport has no room; returns how many were sent.
    pub(crate) fn flush_peer(&mut self, bml: &mut Bml, peer: u32) -> usize {
        let mut done = 0;
        while let Some(first) = self.links[peer].outbox.front_mut() {
            // Asked where it lies: an engine's word may be a panic.
            let packed = match first {
                Outgoing::Packing { packing, .. } => packing.poll(),
                _ => Ok(true),
            };
            if packed == Ok(false) {
                self.links.activate(peer);
                self.pack_ahead(bml, peer);
                return done;
            }
            let Some(item) = self.links[peer].outbox.pop_front() else { break };
            if let Outgoing::Packing { id, packing } = item {
                self.send_packed(bml, peer, (id, packing.end()), packed.map(drop));
                done += 1;
                continue;
            }
            let Some(rest) = self.attempt(bml, peer, item) else {
                done += 1;
                continue;
            };
            // If the peer was lost by that, its queue was emptied for good.
            if self.links[peer].lost.is_some() {
                return done;
            }
            let packing = matches!(rest, Outgoing::Packing { .. });
            self.links[peer].outbox.push_front(rest);
            if !packing {
                self.links.activate(peer);
                return done;
            }
        }
        done + self.flush_streams(bml, peer)
    }

    fn flush_streams(&mut self, bml: &mut Bml, peer: u32) -> usize {
        let mut done = 0;
        let most = self.config.bounds.fragments_per_progress.max(1) as usize;
        let mut idle = 0;
        while done < most {
            let Some(id) = self.links[peer].streams.pop_front() else { break };
            match self.take_turn(bml, id) {
                SendTurn::Sent | SendTurn::Done(_) => {
                    done += 1;
                    idle = 0;
                    self.links[peer].streams.push_back(id);
                }
                // Its engine is busy; the others may have their turn.
                SendTurn::Busy => {
                    idle += 1;
                    let streams = &mut self.links[peer].streams;
                    streams.push_back(id);
                    if idle >= streams.len() {
                        break;
                    }
                }
                SendTurn::Full => {
                    self.links[peer].streams.push_front(id);
                    break;
                }
                SendTurn::Over => {}
            }
        }
        done
    }

    /// Starts to pack the eager messages that directly follow those being packed.
    fn pack_ahead(&mut self, bml: &mut Bml, peer: u32) {
        for at in 0..PACKING_MAX {
            let outbox = &mut self.links[peer].outbox;
            match outbox.get(at) {
                Some(Outgoing::Packing { .. }) => {}
                Some(&Outgoing::Eager(id)) => match self.start_packing(bml, peer, id) {
                    Ok(Some(packing)) => {
                        let packing = Outgoing::Packing { id, packing: Box::new(packing) };
                        self.links[peer].outbox[at] = packing;
                    }
                    Ok(None) | Err(_) => return,
                },
                _ => return,
            }
        }
    }

    /// Sends something, if there is room; gives what has to wait.
    fn attempt(&mut self, bml: &mut Bml, peer: u32, item: Outgoing) -> Option<Outgoing> {
        match item {
            Outgoing::Eager(id) => match self.start_packing(bml, peer, id) {
                Ok(Some(packing)) => match packing.now() {
                    Ok(slot) => self.send_packed(bml, peer, (id, slot), Ok(())),
                    Err(packing) => {
                        return Some(Outgoing::Packing { id, packing: Box::new(packing) });
                    }
                },
                Ok(None) => return Some(Outgoing::Eager(id)),
                Err(Gone) => {}
            },
            packing @ Outgoing::Packing { .. } => return Some(packing),
            Outgoing::Rts(id) => return self.attempt_rts(bml, peer, id),
            Outgoing::Note(what) => match self.reserve(bml, peer, wire::NOTE_BYTES) {
                Some(slot) => {
                    let note = Note { sequence: self.links.next_sequence(peer), what };
                    send_message(bml, slot, &wire::note(note), &[]);
                }
                None => return Some(Outgoing::Note(what)),
            },
            Outgoing::Control(bytes) => match self.reserve(bml, peer, bytes.len()) {
                Some(slot) => send_message(bml, slot, &bytes, &[]),
                None => return Some(Outgoing::Control(bytes)),
            },
            Outgoing::Layout { reply, next, piece, flat } => {
                return self.attempt_layout(bml, peer, (reply, next, piece), flat);
            }
        }
        None
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
}

/// The request has ended meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;
