//! The way of most puts: directly into a ring, and out of it again, under the rings' lock alone.
//!
//! & if nothing holds it back or limits it, its target's ring is mapped and lives,
//! a worker is there, and no other put waits for the ring. The ring bounds their number, so they need no room (`room.rs`).
//! It keeps a put until the outcome is known (`kept.rs`). Unless the task has ended well, the put then goes over to the
//! initiator, which sends it again or ends it.

use super::Outgoing;
use super::kept::Name;
use super::rings::{AGAIN_NS, InitiatorRing, PutPath, RingEnd, Rings, SharedRings};
use crate::device::{PutOutcome, SLOTS};
use crate::packet::TaskWork;
use crate::put::{Order, Put, PutHandle, Retry};
use crate::signal::Signal;
use crate::wire::kernel_bit;
use gapless_bml::Rank;
use std::sync::atomic::{AtomicBool, Ordering};

/// With so many puts in a ring, a put looks for outcomes first.
const CROWDED: usize = SLOTS * 3 / 4;
/// Different signals whose ends are told together, at most.
const SIGNALS: usize = 8;

/// A put that went directly into a ring.
#[derive(Clone, Debug)]
pub struct DirectPut {
    /// What becomes of it.
    pub handle: PutHandle,
    /// How many puts have gone into this ring before, and in the lowest bit whether a worker has it: two words are handed
    /// on in registers.
    what: u64,
}

impl DirectPut {
    /// How many puts have gone into this ring before.
    #[must_use]
    #[inline]
    pub fn number(&self) -> u64 {
        self.what >> 1
    }

    /// Whether a worker has it. If not, the worker has just left: the next [`advance`](crate::Xtq::advance) asks for
    /// another.
    #[must_use]
    #[inline]
    pub fn is_served(&self) -> bool {
        self.what & 1 != 0
    }
}

/// Outcomes that were taken, and the signals that are to be told once no lock is held.
#[derive(Default)]
pub(in crate::host) struct CompletionDrain {
    /// How many.
    pub(in crate::host) done: usize,
    /// Whether something lay in a ring.
    pub(in crate::host) is_any: bool,
    /// Something is left for the initiator's turn.
    pub(in crate::host) is_left: bool,
    signals: [Option<(Signal, u64)>; SIGNALS],
}

impl CompletionDrain {
    /// Notes an end for its signal, if there is room: puts in a row mostly have the same.
    fn note(&mut self, signal: &Signal) -> bool {
        for place in &mut self.signals {
            match place {
                Some((known, ends)) if known.is(signal) => *ends += 1,
                Some(_) => continue,
                None => *place = Some((signal.clone(), 1)),
            }
            return true;
        }
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

impl InitiatorRing {
    /// Takes the outcomes of puts that only this ring knows.
    fn drain_completions(
        &mut self,
        troubled: &mut Vec<(Outgoing, PutOutcome)>,
        drain: &mut CompletionDrain,
    ) {
        let PutPath::Live(RingEnd { lane, .. }) = &mut self.way else { return };
        while let Some(first) = self.running.first() {
            drain.is_any = true;
            let Some(slot) = first.slot() else {
                // The initiator looks.
                drain.is_left = true;
                return;
            };
            let Some((_, outcome)) = lane.next() else { return };
            self.silent_ns = None;
            drain.done += 1;
            self.running.pop();
            let record = self.kept.at(slot);
            // A signal that finds no room here is told by the initiator.
            if outcome != PutOutcome::Ended || !record.end_well(|signal| drain.note(signal)) {
                drain.is_left = true;
                troubled.extend(record.take().map(|put| (put, outcome)));
            }
        }
    }

    /// Puts this one, if nothing is in the way.
    #[inline(always)] // in both places
    fn put(&mut self, put: Put, owing: &AtomicBool) -> Result<DirectPut, Put> {
        // What is carried takes progress.
        let PutPath::Live(RingEnd { lane, far: None }) = &mut self.way else { return Err(put) };
        let is_open = self.waiting.is_empty() && self.kernels & put.order.bit() != 0;
        if !is_open || !lane.has_worker() {
            return Err(put);
        }
        let Some(slot) = lane.free_slot() else { return Err(put) };
        let (number, handle) = self.kept.at(slot).put(lane, put)?;
        self.running.push(Name::kept(slot));
        // Before the fence of the announcement: who is about to sleep sees it, or is seen by the caller.
        owing.store(true, Ordering::Relaxed);
        // (`is_served` has no fence.)
        let is_served = lane.announce();
        if !is_served {
            // It has just left: `fill` asks for another at once, and takes that for a first request.
            self.asked_ns = 0;
            self.again_ns = AGAIN_NS / 2;
        }
        Ok(DirectPut { handle, what: number << 1 | u64::from(is_served) })
    }
}

impl Rings {
    /// The ring of a target, unless nothing new is put.
    #[inline]
    fn open_to(&mut self, target: Rank) -> Option<&mut InitiatorRing> {
        self.of.get_mut(&target.0).filter(|_| !self.closed)
    }

    fn drain_completions(&mut self, drain: &mut CompletionDrain) {
        let Rings { of, troubled, .. } = self;
        drain.is_left = !troubled.is_empty();
        drain.is_any = drain.is_left;
        of.values_mut().for_each(|ring| ring.drain_completions(troubled, drain));
    }
}

impl Order {
    /// Whether it may go directly into a ring, as far as its order says.
    #[inline]
    pub(in crate::host) fn is_plain(&self) -> bool {
        let waits = self.after.is_some() || self.limit.is_some() || self.ask.is_some();
        self.retry != Retry::InOrder && !waits
    }

    /// Its kernel, among those of a worker.
    #[inline]
    fn bit(&self) -> u64 {
        match self.command.work {
            TaskWork::Kernel(_) => kernel_bit(self.command.index),
            TaskWork::Function { .. } => 0,
        }
    }
}

impl SharedRings {
    /// Takes the outcomes of puts that only rings know. The caller is to [tell](CompletionDrain::tell) their signals.
    pub(in crate::host) fn drain_completions(&self) -> CompletionDrain {
        let mut drain = CompletionDrain::default();
        self.lock().drain_completions(&mut drain);
        drain
    }

    /// Puts this one, which was [checked](Order::check), into the ring of its target, and sets `owing`. An error: it has
    /// to go another way, and is as it was.
    #[inline]
    pub(in crate::host) fn put(&self, put: Put, owing: &AtomicBool) -> Result<DirectPut, Put> {
        match self.lock().open_to(put.order.target) {
            Some(ring) if ring.running.len() < CROWDED => return ring.put(put, owing),
            Some(_) => {}
            None => return Err(put),
        }
        self.put_behind_many(put, owing)
    }

    /// The same, if there are many in the ring.
    #[cold]
    fn put_behind_many(&self, put: Put, owing: &AtomicBool) -> Result<DirectPut, Put> {
        self.drain_completions().tell();
        match self.lock().open_to(put.order.target) {
            Some(ring) => ring.put(put, owing),
            None => Err(put),
        }
    }
}
