//! The initiator's end of rings: puts of a worker's kernels go straight into memory that the worker polls, and their
//! outcomes are read out of it. [`Ring`] says how both ends agree on one. `direct_put.rs` is the way of most puts. A
//! ring on another host is a copy here: `far.rs`.
//!
//! The rings have a lock of their own, which is taken after that of the state: a put that finds everything as usual,
//! and whoever looks for outcomes, take no other.

use super::far::Far;
use super::kept::{Name, Running, SlotRecords};
use super::offers::Offer;
use super::{Effects, Initiator, Outgoing, PutStage, QueuedMessage};
use crate::device::{Lane, PutOutcome, RingError, RingShape};
use crate::error::{Refusal, Waited, XtqError};
use crate::packet::Packet;
use crate::wire::{Head, Ring, kernel_bit};
use gapless_bml::{Bml, LinkError, PeerState, Rank, TokenSpace};
use gapless_sync::{Gate, Pass};
use std::collections::{BTreeMap, VecDeque};

/// A worker that does not come is asked for again after so long.
pub(super) const AGAIN_NS: u64 = 1_000_000;
/// That time doubles with each request, up to this. After so long without an outcome the target is asked, too, whether
/// its worker is still there: one that has failed says nothing, and the target may have no other reason to look.
const SELDOM_NS: u64 = 128_000_000;
/// The loss of a peer, which explains why its ring cannot be reached, is told within so long.
const LOSS_NS: u64 = 2_000_000_000;

#[derive(Debug)]
pub(super) enum PutPath {
    /// The keys have come.
    Offered(Offer),
    /// The ring is being read for the first time.
    Tried(RingEnd),
    /// The ring is mapped, or reached. What came by messages has not ended at the target.
    Held(RingEnd),
    Live(RingEnd),
    /// It could not be mapped, or its worker is gone.
    Without,
    /// It is not reached any more. The target, which may not know, may say that it lives now.
    Broken,
}

/// The lane, and what carries it if its ring is on another host.
#[derive(Debug)]
pub(super) struct RingEnd {
    pub(super) lane: Lane,
    pub(super) far: Option<Box<Far>>,
}

impl PutPath {
    fn end(&mut self) -> Option<&mut RingEnd> {
        match self {
            PutPath::Tried(end) | PutPath::Held(end) | PutPath::Live(end) => Some(end),
            PutPath::Offered(..) | PutPath::Without | PutPath::Broken => None,
        }
    }

    /// The offer, if there is one. Until something is done about it, there is no way there.
    pub(super) fn take_offer(&mut self) -> Option<Offer> {
        match std::mem::replace(self, PutPath::Without) {
            PutPath::Offered(offer) => Some(offer),
            way => {
                *self = way;
                None
            }
        }
    }
}

/// A put that was in a ring.
#[derive(Debug)]
pub(super) enum Flying {
    Named(u64),
    Own(Box<Outgoing>),
}

/// A ring at one target.
#[derive(Debug)]
pub(super) struct InitiatorRing {
    pub(super) way: PutPath,
    /// The kernels that the worker runs.
    pub(super) kernels: u64,
    /// Puts that are to go into the ring.
    pub(super) waiting: VecDeque<u64>,
    /// Those in it, in order.
    pub(super) running: Running,
    pub(super) kept: SlotRecords,
    /// When a worker was last asked for, and how long to wait for it.
    pub(super) asked_ns: u64,
    pub(super) again_ns: u64,
    /// When somebody first saw puts in it after the last outcome; `None`: nobody has looked since.
    pub(super) silent_ns: Option<u64>,
}

/// All rings of an initiator.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// By target.
    pub(super) of: BTreeMap<u32, InitiatorRing>,
    /// Outcomes of puts that have not just ended well, until the initiator's turn.
    pub(super) troubled: Vec<(Outgoing, PutOutcome)>,
    /// Nothing new is put.
    pub(super) closed: bool,
}

impl Rings {
    /// Whether there is something to do that no message tells of.
    fn is_busy(&self) -> bool {
        !self.troubled.is_empty() || self.of.values().any(InitiatorRing::is_busy)
    }
}

/// The rings, behind their lock, which costs the thread that has made it next to nothing as long as no other comes.
#[derive(Debug)]
pub(in crate::host) struct SharedRings(Gate<Rings>);

impl Default for SharedRings {
    fn default() -> SharedRings {
        SharedRings(Gate::new(Rings::default()))
    }
}

impl SharedRings {
    /// A panic inside leaves nothing in disorder that is not looked at again.
    #[inline]
    pub(super) fn lock(&self) -> Pass<'_, Rings> {
        self.0.try_enter().unwrap_or_else(|| self.0.enter())
    }
}

pub(super) fn bit(packet: &Packet) -> u64 {
    packet.kernel().map_or(0, kernel_bit)
}

impl InitiatorRing {
    /// Whether this put goes by the ring.
    pub(super) fn takes(&self, put: &Outgoing) -> bool {
        matches!(self.way, PutPath::Held(_) | PutPath::Live(_))
            && put.sequence.is_none()
            && put.ask.is_none()
            && self.kernels & bit(&put.packet) != 0
            && RingShape::default().holds(put.arguments.bytes().len(), put.payload.len())
    }

    pub(super) fn join(&mut self, id: u64) {
        self.waiting.push_back(id);
    }

    /// Whether there is something to do that no message tells of.
    pub(super) fn is_busy(&self) -> bool {
        let live = matches!(self.way, PutPath::Live(_)) && !self.waiting.is_empty();
        let begins = match &self.way {
            PutPath::Offered(_) => true,
            way => matches!(way, PutPath::Tried(_)),
        };
        live || !self.running.is_empty() || begins
    }

    /// What a put waits for that is in the ring, or is to go into it; `None`: another one's.
    pub(super) fn waits(&self, id: u64, is_in: bool) -> Option<Waited> {
        if !is_in && !self.waiting.contains(&id) {
            return None;
        }
        Some(match &self.way {
            PutPath::Live(end) if !end.lane.is_served() => Waited::Worker,
            PutPath::Live(_) if is_in => Waited::Task,
            PutPath::Live(_) => Waited::Earlier,
            _ => Waited::Progress,
        })
    }

    /// A put goes that is not in the ring.
    pub(super) fn cancel(&mut self, id: u64) {
        self.waiting.retain(|waiting| *waiting != id);
    }

    /// The next put whose outcome is known.
    pub(super) fn next(&mut self) -> Option<(Flying, PutOutcome)> {
        let PutPath::Live(end) = &mut self.way else { return None };
        let (_, outcome) = end.lane.next()?;
        self.silent_ns = None;
        let name = self.running.pop()?;
        Some((self.land(name)?, outcome))
    }

    /// A put goes out of the ring.
    fn land(&mut self, name: Name) -> Option<Flying> {
        Some(match name.slot() {
            None => Flying::Named(name.0),
            Some(slot) => Flying::Own(Box::new(self.kept.at(slot).take()?)),
        })
    }

    /// All that is in the ring goes out of it.
    fn take_running(&mut self) -> VecDeque<Flying> {
        let mut running = VecDeque::new();
        while let Some(name) = self.running.pop() {
            running.extend(self.land(name));
        }
        running
    }

    /// Puts what waits, as far as there is room.
    fn fill(&mut self, puts: &mut super::Puts, now_ns: u64) -> Filled {
        let mut filled = Filled::default();
        let PutPath::Live(RingEnd { lane, far }) = &mut self.way else { return filled };
        if far.as_ref().is_some_and(|far| far.is_broken()) {
            return filled;
        }
        while let Some(id) = self.waiting.front() {
            if let Some(put) = puts.get_mut(id) {
                match lane.put_part(&put.packet.words(), put.arguments.bytes(), put.payload.part())
                {
                    Ok(position) => {
                        if let Some(far) = far {
                            let bytes = [put.arguments.bytes().len(), put.payload.len()];
                            far.add(lane, position, bytes);
                        }
                        put.stage = PutStage::InRing;
                        self.running.push(Name(*id));
                        filled.count += 1;
                    }
                    Err(RingError::Full) => break,
                    // What it holds, and what packets say, was looked at before.
                    Err(error) => filled.wrong.push((*id, error)),
                }
            }
            self.waiting.pop_front();
        }
        if lane.pending() == 0 {
            return filled;
        }
        // Starting a worker clears the wish. While it stands, a message about it is on its way, or was not enough.
        let is_wanted = lane.is_wanted();
        let served = match far {
            Some(far) => !far.is_telling() || lane.is_served(),
            None if filled.count > 0 => lane.announce(),
            None => lane.is_served(),
        };
        let again = now_ns >= self.asked_ns.saturating_add(self.again_ns);
        let silent_ns = *self.silent_ns.get_or_insert(now_ns);
        let is_silent = now_ns >= silent_ns.saturating_add(SELDOM_NS);
        filled.asks = is_silent || !served && (!is_wanted || again);
        if filled.asks {
            (self.asked_ns, self.silent_ns) = (now_ns, Some(now_ns));
            self.again_ns = if is_wanted { SELDOM_NS.min(2 * self.again_ns) } else { AGAIN_NS };
        }
        filled
    }
}

/// What became of puts that waited for a ring.
#[derive(Default)]
struct Filled {
    /// How many are in it.
    count: usize,
    /// Those that are no puts for it.
    wrong: Vec<(u64, RingError)>,
    /// A worker is to be asked for.
    asks: bool,
}

impl Initiator {
    /// Whether puts to this target go by a ring.
    pub(in crate::host) fn has_ring(&self, target: Rank) -> bool {
        let rings = self.rings.lock();
        rings.of.get(&target.0).is_some_and(|ring| matches!(ring.way, PutPath::Live(_)))
    }

    /// Whether a ring has something to do that no message tells of.
    pub(super) fn are_rings_busy(&self) -> bool {
        self.has_rings && self.rings.lock().is_busy()
    }

    /// Puts this one into the list of its target's ring, if it goes there.
    pub(super) fn join_ring(&self, id: u64, put: &Outgoing) -> bool {
        if !self.has_rings {
            return false;
        }
        let mut rings = self.rings.lock();
        let ring = rings.of.get_mut(&put.target.0).filter(|ring| ring.takes(put));
        ring.map(|ring| ring.join(id)).is_some()
    }

    /// For tests: the ring of this target is not reached any more, if so many of its heads were given away. Whether so.
    #[cfg(test)]
    pub(in crate::host) fn cut_off(&mut self, target: Rank, given: u64) -> bool {
        let mut rings = self.rings.lock();
        let ring = rings.of.get_mut(&target.0);
        let far = ring.and_then(|ring| ring.way.end()).and_then(|end| end.far.as_mut());
        far.filter(|far| far.given() >= given).map(|far| far.cut_off()).is_some()
    }

    /// What a target says about its ring. An error says how it breaks the rules.
    pub(in crate::host) fn hear(
        &mut self,
        from: Rank,
        (what, kernels): (Ring, u64),
        text: &[u8],
    ) -> Result<(), String> {
        let nonsense = || format!("{what:?} of a ring, which is not the next thing to say");
        let mut rings = self.rings.lock();
        if let Some(offer) = Offer::read(what, text).map_err(|()| nonsense())? {
            if rings.of.contains_key(&from.0) {
                return Err(nonsense());
            }
            let way = PutPath::Offered(offer);
            let (waiting, running, kept) = Default::default();
            let (asked_ns, again_ns, silent_ns) = (0, AGAIN_NS, None);
            let ring = InitiatorRing {
                way,
                kernels,
                waiting,
                running,
                kept,
                asked_ns,
                again_ns,
                silent_ns,
            };
            rings.of.insert(from.0, ring);
            self.has_rings = true;
            return Ok(());
        }
        let ring = rings.of.get_mut(&from.0).ok_or_else(nonsense)?;
        match what {
            Ring::Kernels => ring.kernels = kernels,
            Ring::Go => match std::mem::replace(&mut ring.way, PutPath::Without) {
                PutPath::Held(end) => ring.way = PutPath::Live(end),
                PutPath::Broken => ring.way = PutPath::Broken,
                _ => return Err(nonsense()),
            },
            Ring::Over => {
                drop(rings);
                self.leave_ring(from, "its worker is gone", PutPath::Without);
            }
            _ => return Err(nonsense()),
        }
        Ok(())
    }

    /// The worker is gone, or its ring is not reached any more. What it had may have run; what it had not goes by
    /// messages.
    fn leave_ring(&mut self, target: Rank, why: &str, way: PutPath) {
        let mut rings = self.rings.lock();
        let Some(ring) = rings.of.get_mut(&target.0) else { return };
        let (mut running, waiting) = (ring.take_running(), std::mem::take(&mut ring.waiting));
        let left = match ring.way.end() {
            // No worker can have found what has not left.
            Some(RingEnd { lane, far: Some(far) }) => {
                let given = far.given().saturating_sub(lane.counts().1);
                running.split_off(running.len().min(usize::try_from(given).unwrap_or(usize::MAX)))
            }
            _ => VecDeque::new(),
        };
        ring.way = way;
        drop(rings);
        let error = XtqError::Failed { target, reason: why.to_owned() };
        running.into_iter().for_each(|flying| self.end_flying(flying, &error));
        for flying in left.into_iter().chain(waiting.into_iter().map(Flying::Named)) {
            match flying {
                // The body of one whose time is over is gone; whoever put it knows.
                Flying::Named(id) if self.puts.get(&id).is_some_and(|put| !put.limit.is_over()) => {
                    self.queue(id);
                }
                flying => self.end_flying(flying, &error),
            }
        }
    }

    /// A put that lay in a ring ends so.
    fn end_flying(&mut self, flying: Flying, error: &XtqError) {
        match flying {
            Flying::Named(id) => self.end(id, Err(error.clone())),
            Flying::Own(put) => put.end(Err(error.clone()), &mut self.effects),
        }
    }

    /// A target's ring goes, or all go, and what lies in them ends so; the initiator knows of what waits.
    pub(super) fn drop_rings(&mut self, target: Option<Rank>, error: &XtqError) {
        let mut rings = self.rings.lock();
        let is_concerned = |rank: u32| target.is_none_or(|target| target.0 == rank);
        let ranks: Vec<u32> = rings.of.keys().copied().filter(|rank| is_concerned(*rank)).collect();
        let gone: Vec<InitiatorRing> =
            ranks.iter().filter_map(|rank| rings.of.remove(rank)).collect();
        let troubled = rings.troubled.extract_if(.., |(put, _)| is_concerned(put.target.0));
        let troubled: Vec<Outgoing> = troubled.map(|(put, _)| put).collect();
        drop(rings);
        troubled.into_iter().for_each(|put| put.end(Err(error.clone()), &mut self.effects));
        for flying in gone.into_iter().flat_map(|mut ring| ring.take_running()) {
            self.end_flying(flying, error);
        }
    }

    /// Begins what is to be carried to and from rings on other hosts. Gives how many operations go there.
    pub(in crate::host) fn carry_rings(
        &mut self,
        (bml, space): (&mut Bml, TokenSpace),
        now_ns: u64,
    ) -> usize {
        let (mut begun, mut tried, mut over) = (0, Vec::new(), Vec::new());
        if !self.has_rings {
            return 0;
        }
        for (&rank, ring) in &mut self.rings.lock().of {
            let was_tried = matches!(ring.way, PutPath::Tried(_));
            let Some(RingEnd { lane, far: Some(far) }) = ring.way.end() else { continue };
            if let Some((since_ns, why)) = far.broken(now_ns) {
                let is_lost = matches!(bml.state(Rank(rank)), PeerState::Lost(_));
                match was_tried {
                    true => tried.push(rank),
                    false if !is_lost && since_ns > LOSS_NS => over.push((rank, why.to_owned())),
                    false => {}
                }
                continue;
            }
            if was_tried && far.is_tried() {
                tried.push(rank);
                continue;
            }
            begun +=
                usize::from(far.go_on(lane, (bml, space, now_ns), Rank(rank), &mut self.flights));
        }
        for rank in tried {
            let mut rings = self.rings.lock();
            let Some(ring) = rings.of.get_mut(&rank) else { continue };
            let PutPath::Tried(mut end) = std::mem::replace(&mut ring.way, PutPath::Without) else {
                continue;
            };
            drop(rings);
            let works = end.far.as_mut().is_some_and(|far| far.broken(now_ns).is_none());
            self.hold(rank, works.then_some(end));
        }
        for (rank, why) in over {
            let why = format!("the ring of its worker is not reached any more: {why}");
            self.leave_ring(Rank(rank), &why, PutPath::Broken);
        }
        begun
    }

    /// An operation that carries a ring has ended.
    pub(in crate::host) fn carried(&mut self, number: u64, result: Result<(), LinkError>) {
        let Some(rank) = self.flights.land(number) else { return };
        let mut rings = self.rings.lock();
        let ring = rings.of.get_mut(&rank);
        if let Some(RingEnd { lane, far: Some(far) }) = ring.and_then(|ring| ring.way.end()) {
            far.ended(lane, number, result);
        }
    }

    /// Takes outcomes out of rings. Gives how many; `None`: nothing is in a ring.
    pub(in crate::host) fn take_outcomes(&mut self) -> Option<usize> {
        if !self.has_rings {
            return None;
        }
        let mut rings = self.rings.lock();
        let mut told: Vec<_> = rings
            .troubled
            .drain(..)
            .map(|(put, outcome)| (Flying::Own(Box::new(put)), outcome))
            .collect();
        let mut is_any = !told.is_empty();
        for ring in rings.of.values_mut() {
            is_any |= !ring.running.is_empty();
            told.extend(std::iter::from_fn(|| ring.next()));
        }
        drop(rings);
        let done = told.len();
        for (flying, outcome) in told {
            match (flying, outcome) {
                (Flying::Own(put), PutOutcome::Ended) => {
                    put.end_well(&mut self.effects);
                }
                (Flying::Own(put), outcome) => {
                    let id = self.name(*put);
                    self.told(id, outcome);
                }
                (Flying::Named(id), outcome) => self.told(id, outcome),
            }
        }
        is_any.then_some(done)
    }

    /// Takes outcomes out of rings, and puts what waits. Gives how many of both.
    pub(in crate::host) fn pump_rings(&mut self, now_ns: u64) -> usize {
        let mut done = self.take_outcomes().unwrap_or(0);
        if !self.has_rings {
            return done;
        }
        let mut wrong = Vec::new();
        for (&rank, ring) in &mut self.rings.lock().of {
            let filled = ring.fill(&mut self.puts, now_ns);
            done += filled.count;
            wrong.extend(filled.wrong.into_iter().map(|(id, error)| (Rank(rank), id, error)));
            if filled.asks {
                let head = Head::Ring { what: Ring::Wanted, kernels: 0 };
                self.outbox.entry(rank).or_default().push(QueuedMessage::Say(head, Vec::new()));
            }
        }
        for (target, id, error) in wrong {
            self.end(id, Err(XtqError::Failed { target, reason: error.to_string() }));
        }
        done
    }

    /// The worker has said what became of a put.
    fn told(&mut self, id: u64, outcome: PutOutcome) {
        let Some(put) = self.puts.get_mut(&id) else { return };
        let (target, acknowledged) = (put.target, put.acknowledged);
        let failed = |reason: String| Err(XtqError::Failed { target, reason });
        let result = match outcome {
            PutOutcome::Ended => Ok(()),
            PutOutcome::Failed(why) => failed(why.to_string()),
            PutOutcome::Malformed => failed("its worker has found no packet".to_owned()),
            PutOutcome::Refused(Refusal::NotRegistered) => {
                // The index may be a launched kernel's by now: the target's CPU knows.
                let bit = bit(&put.packet);
                if let Some(ring) = self.rings.lock().of.get_mut(&target.0) {
                    ring.kernels &= !bit;
                }
                if put.limit.is_over() {
                    let refusal = Refusal::NotRegistered;
                    return self.end(id, Err(XtqError::Refused { target, refusal }));
                }
                return self.queue(id);
            }
            PutOutcome::Refused(refusal) => {
                // Only answers to sequences can be wrong.
                let _ = self.refused(id, refusal);
                return;
            }
        };
        self.room.give_back_body(put);
        put.drop_body();
        put.handle.accept(!acknowledged);
        // As elsewhere, who does not ask for the end learns nothing of it.
        self.end(id, if acknowledged { result } else { Ok(()) });
    }
}

impl Outgoing {
    /// It is over; whoever waits for it learns so from `effects`.
    fn end(mut self, result: Result<(), XtqError>, effects: &mut Effects) {
        self.drop_body();
        self.handle.end(result.clone());
        effects.extend(self.signal.map(|signal| (signal, result)));
    }

    /// Its task has ended.
    fn end_well(mut self, effects: &mut Effects) {
        self.drop_body();
        self.handle.accept(true);
        effects.extend(self.signal.map(|signal| (signal, Ok(()))));
    }
}
