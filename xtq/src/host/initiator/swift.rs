//! The way of most puts: straight into a ring, and out of it again, under the rings' lock alone.
//!
//! A put of a worker's kernel goes this way if nothing holds it back or limits it, its target's ring is mapped and lives,
//! a worker is there, and no other put waits for the ring. The ring bounds their number, so they need no room (`room.rs`).
//! It keeps a put until the outcome is known (`kept.rs`). Unless the task has ended well, the put then goes over to the
//! initiator, which sends it again or ends it.

use super::Outgoing;
use super::direct::{AGAIN_NS, Direct, End, Name, Rings, SharedRings, Way, bit};
use crate::device::{Outcome, SLOTS};
use crate::packet::Packet;
use crate::put::{Put, PutHandle, Retry};
use crate::signal::Signal;
use gapless_bml::Rank;
use std::sync::atomic::{AtomicBool, Ordering};

/// With so many puts in a ring, a put looks for outcomes first.
const CROWDED: usize = SLOTS * 3 / 4;
/// Different signals whose ends are told together, at most.
const SIGNALS: usize = 8;

/// A put that went straight into a ring.
#[derive(Clone, Debug)]
pub struct Straight {
    /// What becomes of it.
    pub handle: PutHandle,
    /// How many puts have gone into this ring before.
    pub number: u64,
    /// Whether a worker has it. If not, the worker has just left: the next [`advance`](crate::Xtq::advance) asks for
    /// another.
    pub is_served: bool,
}

/// Outcomes that were taken, and the signals that are to be told once no lock is held.
#[derive(Default)]
pub(in crate::host) struct Harvest {
    /// How many.
    pub(in crate::host) done: usize,
    /// Whether something lay in a ring.
    pub(in crate::host) is_any: bool,
    /// Something is left for the initiator's turn.
    pub(in crate::host) is_left: bool,
    signals: [Option<(Signal, u64)>; SIGNALS],
}

impl Harvest {
    /// Notes an end for its signal, if there is room: puts in a row mostly have the same.
    fn note(&mut self, signal: &mut Option<Signal>) -> bool {
        let Some(one) = signal.take() else { return true };
        for place in &mut self.signals {
            match place {
                Some((known, ends)) if known.is(&one) => *ends += 1,
                Some(_) => continue,
                None => *place = Some((one, 1)),
            }
            return true;
        }
        *signal = Some(one);
        false
    }

    /// Tells the signals.
    #[inline]
    pub(in crate::host) fn tell(mut self) {
        // Used places come first.
        for place in &mut self.signals {
            let Some((signal, ends)) = place.take() else { return };
            signal.count_down_by(ends);
        }
    }
}

impl Direct {
    /// Takes the outcomes of puts that only this ring knows.
    fn harvest(&mut self, troubled: &mut Vec<(Outgoing, Outcome)>, harvest: &mut Harvest) {
        let Way::Live(End { lane, .. }) = &mut self.way else { return };
        while let Some(first) = self.running.front() {
            harvest.is_any = true;
            let Some(slot) = first.slot() else {
                // The initiator looks.
                harvest.is_left = true;
                return;
            };
            let Some((_, outcome)) = lane.next() else { return };
            self.silent_ns = None;
            harvest.done += 1;
            self.running.pop_front();
            let Some(record) = self.kept.at(slot) else { return };
            // A signal that finds no room here is told by the initiator.
            if outcome == Outcome::Ended && harvest.note(&mut record.signal) {
                record.end_well();
            } else {
                harvest.is_left = true;
                troubled.push((record.take(), outcome));
            }
        }
    }

    /// Puts this one, if nothing is in the way.
    fn put(&mut self, put: &mut Put, packet: Packet, owing: &AtomicBool) -> Option<Straight> {
        // What is carried takes progress.
        let Way::Live(End { lane, far: None }) = &mut self.way else { return None };
        let is_open = self.waiting.is_empty() && self.kernels & bit(&packet) != 0;
        if !is_open || !lane.has_worker() {
            return None;
        }
        let slot = lane.free_slot()?;
        // What is wrong, or has no room, is told apart by who comes after.
        let (number, handle) = self.kept.at(slot)?.put(lane, put, packet).ok()?;
        self.running.push_back(Name::kept(slot));
        // Before the fence of the announcement: who is about to sleep sees it, or is seen by the caller.
        owing.store(true, Ordering::Relaxed);
        // (`is_served` has no fence.)
        let is_served = lane.announce();
        if !is_served {
            // It has just left: `fill` asks for another at once, and takes that for a first request.
            self.asked_ns = 0;
            self.again_ns = AGAIN_NS / 2;
        }
        Some(Straight { handle, number, is_served })
    }
}

impl Rings {
    /// The ring of a target, unless nothing new is put.
    #[inline]
    fn open_to(&mut self, target: Rank) -> Option<&mut Direct> {
        self.of.get_mut(&target.0).filter(|_| !self.closed)
    }

    fn harvest(&mut self, harvest: &mut Harvest) {
        let Rings { of, troubled, .. } = self;
        harvest.is_left = !troubled.is_empty();
        harvest.is_any = harvest.is_left;
        of.values_mut().for_each(|ring| ring.harvest(troubled, harvest));
    }
}

/// Whether this put may go straight, as far as it goes.
fn is_plain(put: &Put) -> bool {
    put.retry != Retry::InOrder && put.after.is_none() && put.limit.is_none()
}

impl SharedRings {
    /// Takes the outcomes of puts that only rings know. The caller is to [tell](Harvest::tell) their signals.
    pub(in crate::host) fn harvest(&self) -> Harvest {
        let mut harvest = Harvest::default();
        self.lock().harvest(&mut harvest);
        harvest
    }

    /// Puts this one into the ring of its target, and sets `owing`. `None`: it has to go another way, and is as it was.
    pub(in crate::host) fn put(
        &self,
        put: &mut Put,
        packet: Packet,
        owing: &AtomicBool,
    ) -> Option<Straight> {
        if !is_plain(put) {
            return None;
        }
        let mut rings = self.lock();
        let ring = rings.open_to(put.target)?;
        if ring.running.len() < CROWDED {
            return ring.put(put, packet, owing);
        }
        drop(rings);
        self.harvest().tell();
        self.lock().open_to(put.target)?.put(put, packet, owing)
    }
}
