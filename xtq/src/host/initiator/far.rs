//! Rings of workers on other hosts: packets go there, and statuses come back, by one-sided operations alone (RDMA).
//!
//! The [`Lane`] works on a copy of the ring in this process's memory. One operation at a time carries what is new:
//!
//! ```text
//!            ┌──────────────────────────────────────────────┐ something was put
//!            ▼                                              │
//!   nothing under way ──► bodies ──► look ──► heads ──► nothing under way ──► look, as long as puts are pending
//! ```
//!
//! - *Bodies* writes slots, but for the first 8 bytes of each, and what lies in the arena. No reader takes a slot whose
//!   first 8 bytes have an old sequence number.
//! - *Look* reads the worker's state, and the statuses of puts that are pending. A read also comes behind the writes before
//!   it, whatever order an adapter may write memory in.
//! - *Heads* writes those first 8 bytes, which adapters write at once: so a reader that finds them finds the rest.
//!
//! A look behind heads says whether a worker sees them: a worker that leaves says so, and looks once more
//! (`device/state.rs`). If none is there, a message asks for one, as with rings that are mapped.
//!
//! That 8 aligned bytes are written at once is not in any specification of adapters. On PCIe such a write is one packet,
//! and Soft-RoCE copies them by one instruction.
//!
//! Memory of operations is kept until their end is told, whatever becomes of the ring.

use crate::device::{INLINE_BYTES, Lane, RING_STATE, RingShape, SLOT_BYTES, SLOTS, arena_bytes};
use crate::host::heap::heap;
use gapless_bml::{Bml, Extent, LinkError, Rank, RdmaError, RdmaRail, RemoteKey, TokenSpace};
use gapless_mem::{Lease, Region};
use std::collections::{HashMap, VecDeque};

/// Bytes of a slot that are written last, which hold its sequence number.
const HEAD_BYTES: usize = 8;
/// Slots that one operation writes, at most.
const BATCH: u64 = 64;
/// Pieces that an operation must be able to take: two for a put, three for a look.
const PIECES_MIN: usize = 3;
/// After a look for the ends of tasks the next one comes so much later, in nanoseconds; twice as much each time in which
/// nothing has ended, so many times.
const PAUSE_NS: u64 = 2_000;
const DOUBLINGS: u32 = 5;
/// Bytes of a look: the state, and as many statuses as puts may be pending.
const LOOK_BYTES: u64 = 4096;

/// What an operation does, and what is so when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarStep {
    /// All but the heads of positions before this one.
    Bodies(u64),
    /// Heads of positions before this one.
    Heads(u64),
    /// Statuses of so many positions from `first` on; which bodies and heads were there when it began.
    Look { first: u64, count: u64, bodies: u64, heads: u64 },
}

/// The initiator's end of such a ring.
#[derive(Debug)]
pub(super) struct Far {
    key: RemoteKey,
    /// Where the key is good. Writes and reads of one rail are in order.
    rail: RdmaRail,
    /// What the lane works on.
    copy: Lease,
    /// What is read comes here.
    landing: Lease,
    /// Bodies of positions before this one have been written.
    bodies: u64,
    /// A look has come behind the bodies of positions before this one: their heads may be written.
    settled: u64,
    /// Heads of positions before this one have been written.
    heads: u64,
    /// Bodies in the arena that are not there, by position.
    long: VecDeque<(u64, Extent)>,
    under_way: Option<(u64, FarStep)>,
    /// The last look came behind the head of a put that was pending: what it says of the worker counts.
    is_telling: bool,
    /// Heads that an operation has begun to write.
    given: u64,
    /// The ring has been read: this process can reach it.
    is_tried: bool,
    /// No look for the ends of tasks alone begins before this.
    pause_ns: u64,
    /// Looks that have found no end, since something was put or ended.
    in_vain: u32,
    /// An operation has failed.
    broken: Option<String>,
    /// When that was first noticed.
    broken_ns: Option<u64>,
}

/// Operations under way, of all rings: whose, and their memory.
#[derive(Debug, Default)]
pub(in crate::host) struct Flights {
    next: u64,
    under_way: HashMap<u64, (u32, [Lease; 2])>,
}

impl Flights {
    /// An operation has ended: whose it was.
    pub(super) fn land(&mut self, number: u64) -> Option<u32> {
        self.under_way.remove(&number).map(|(rank, _)| rank)
    }
}

impl Drop for Flights {
    /// Nobody will tell their ends: their memory stays.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.under_way));
    }
}

fn extent(offset: usize, len: usize) -> Extent {
    Extent { offset: offset as u64, len: len as u64 }
}

impl Far {
    /// The ring of this key, and the lane that works on its copy. `None`: no memory, or operations that take too few pieces.
    pub(super) fn new(bml: &mut Bml, target: Rank, key: RemoteKey) -> Option<(Lane, Far)> {
        let rail = bml.rdma_rail(target)?;
        let (_, rdma) = bml.rdma(target)?;
        if rdma.rdma_limits().max_pieces < PIECES_MIN {
            return None;
        }
        let shape = RingShape::default();
        let copy = heap(shape.bytes()).ok()?;
        let landing = heap(LOOK_BYTES).ok()?;
        // SAFETY: the memory is new and zeroed. The lane touches it as words; operations of `Far` read there what the lane
        // has written and does not touch before their end.
        let lane = unsafe { Lane::new(copy.clone(), shape) }.ok()?;
        Some((lane, Far::fresh(key, rail, [copy, landing])))
    }

    /// Nothing has been carried.
    fn fresh(key: RemoteKey, rail: RdmaRail, [copy, landing]: [Lease; 2]) -> Far {
        Far {
            key,
            rail,
            copy,
            landing,
            bodies: 0,
            settled: 0,
            heads: 0,
            long: VecDeque::new(),
            under_way: None,
            is_telling: false,
            given: 0,
            is_tried: false,
            pause_ns: 0,
            in_vain: 0,
            broken: None,
            broken_ns: None,
        }
    }

    /// Something was put into the lane at this position.
    pub(super) fn add(&mut self, lane: &Lane, position: u64, [arguments, payload]: [usize; 2]) {
        (self.pause_ns, self.in_vain) = (0, 0);
        if arguments + payload > INLINE_BYTES {
            let at = RingShape::ARENA_AT as u64 + lane.long_body_at(position);
            let len = arena_bytes(arguments, payload) as u64;
            self.long.push_back((position, Extent { offset: at, len }));
        }
    }

    /// Whether what the lane says of its worker counts: a look has come behind the head of a put that was pending.
    pub(super) fn is_telling(&self) -> bool {
        self.is_telling
    }

    /// Puts whose heads may be there: no worker finds later ones.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// Whether an operation has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// For tests: an operation has failed.
    #[cfg(test)]
    pub(super) fn cut_off(&mut self) {
        self.broken = Some("a test says so".to_owned());
    }

    /// Whether the ring has been read: this process can reach it.
    pub(super) fn is_tried(&self) -> bool {
        self.is_tried
    }

    /// For how long an operation is known to have failed, and why.
    pub(super) fn broken(&mut self, now_ns: u64) -> Option<(u64, &str)> {
        let why = self.broken.as_deref()?;
        let since = *self.broken_ns.get_or_insert(now_ns);
        Some((now_ns.saturating_sub(since), why))
    }

    /// What is to be done next.
    fn next(&self, lane: &Lane, batch: u64, now_ns: u64) -> Option<FarStep> {
        let (position, taken) = lane.counts();
        let look = FarStep::Look {
            first: taken,
            // No worker has answered what is not there.
            count: self.heads.saturating_sub(taken),
            bodies: self.bodies,
            heads: self.heads,
        };
        if self.under_way.is_some() || self.broken.is_some() {
            None
        } else if self.settled > self.heads {
            Some(FarStep::Heads(self.settled.min(self.heads + batch)))
        } else if self.bodies > self.settled || !self.is_tried {
            Some(look)
        } else if position > self.bodies {
            Some(FarStep::Bodies(position.min(self.bodies + batch)))
        } else {
            (position > taken && now_ns >= self.pause_ns).then_some(look)
        }
    }

    /// The places in the ring that a step is about.
    fn places(&self, step: FarStep) -> Vec<Extent> {
        match step {
            FarStep::Bodies(to) => {
                let slots = (self.bodies..to).map(|position| {
                    extent(RingShape::slot_at(position) + HEAD_BYTES, SLOT_BYTES - HEAD_BYTES)
                });
                let long = self.long.iter().take_while(|(position, _)| *position < to);
                long.map(|(_, body)| *body).chain(slots).collect()
            }
            FarStep::Heads(to) => (self.heads..to)
                .map(|position| extent(RingShape::slot_at(position), HEAD_BYTES))
                .collect(),
            FarStep::Look { first, count, .. } => {
                let mut places = vec![extent(RING_STATE, 8)];
                // Statuses lie in a circle.
                let start = RingShape::status_at(first);
                let end = RingShape::status_at(SLOTS as u64 - 1) + 8;
                let bytes = 8 * usize::try_from(count).unwrap_or(0);
                let straight = bytes.min(end - start);
                places.extend((straight > 0).then(|| extent(start, straight)));
                let rest = bytes - straight;
                places.extend((rest > 0).then(|| extent(RingShape::STATUS_AT, rest)));
                places
            }
        }
    }

    /// Begins what is to be done next, if nothing is under way. Whether that carries something there.
    pub(super) fn go_on(
        &mut self,
        lane: &Lane,
        (bml, space, now_ns): (&mut Bml, TokenSpace, u64),
        target: Rank,
        flights: &mut Flights,
    ) -> bool {
        let is_same = bml.rdma_rail(target) == Some(self.rail);
        let Some((peer, rdma)) = bml.rdma(target).filter(|_| is_same) else {
            self.broken.get_or_insert_with(|| "there is no way to its memory any more".to_owned());
            return false;
        };
        let batch = (rdma.rdma_limits().max_pieces as u64 / 2).clamp(1, BATCH);
        let Some(step) = self.next(lane, batch, now_ns) else { return false };
        let places = self.places(step);
        let number = flights.next;
        let Some(token) = space.token(number) else { return false };
        let len = places.iter().map(|place| place.len).sum();
        let begun = match step {
            FarStep::Look { .. } => {
                self.landing.region().sub(0, len).map_err(wrong).and_then(|local| {
                    // SAFETY: until the end is told, `flights` keeps the memory, and nobody else touches it: `under_way`
                    // lets no other operation begin, and only `ended` reads it. Tokens are not used again.
                    unsafe { rdma.get(peer, &[local], &self.key, &places, token) }
                })
            }
            FarStep::Bodies(_) | FarStep::Heads(_) => {
                let copy = self.copy.region();
                let locals = places.iter().map(|place| copy.sub(place.offset, place.len));
                locals.collect::<Result<Vec<Region>, _>>().map_err(wrong).and_then(|local| {
                    // SAFETY: likewise; and the lane writes a slot, and its place in the arena, again only when the
                    // status of its put has come, for which its head must have landed.
                    unsafe { rdma.put(peer, &local, &self.key, &places, token) }
                })
            }
        };
        match begun {
            Ok(()) => {
                flights.next += 1;
                let memory = [self.copy.clone(), self.landing.clone()];
                flights.under_way.insert(number, (target.0, memory));
                self.under_way = Some((number, step));
                self.pause_ns = now_ns + (PAUSE_NS << self.in_vain.min(DOUBLINGS));
                if let FarStep::Heads(to) = step {
                    self.given = to;
                }
                !matches!(step, FarStep::Look { .. })
            }
            Err(RdmaError::Full) => false,
            Err(error) => {
                self.broken = Some(error.to_string());
                false
            }
        }
    }

    /// An operation has ended.
    pub(super) fn ended(&mut self, lane: &Lane, number: u64, result: Result<(), LinkError>) {
        let Some((_, step)) = self.under_way.take_if(|(under_way, _)| *under_way == number) else {
            return;
        };
        if let Err(error) = result {
            self.broken = Some(error.to_string());
            return;
        }
        match step {
            FarStep::Bodies(to) => {
                self.bodies = to;
                while self.long.front().is_some_and(|(position, _)| *position < to) {
                    self.long.pop_front();
                }
            }
            FarStep::Heads(to) => self.heads = to,
            FarStep::Look { first, count, bodies, heads } => {
                let mut bytes = vec![0; 8 * (usize::try_from(count).unwrap_or(0) + 1)];
                // SAFETY: the operation has ended, and no other is under way: nobody writes there.
                let read = unsafe { gapless_mem::read(&self.landing.region(), 0, &mut bytes) };
                debug_assert!(read.is_ok(), "{read:?}");
                let (words, _) = bytes.as_chunks::<8>();
                let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
                let state = words.next().unwrap_or_default();
                self.in_vain = match lane.learn(state, first, words) {
                    true => 0,
                    false => self.in_vain.saturating_add(1),
                };
                self.settled = bodies;
                self.is_tried = true;
                self.is_telling = heads > first;
            }
        }
    }
}

fn wrong(error: gapless_mem::OutOfRange) -> RdmaError {
    RdmaError::BadKey { what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{PutOutcome, status_word};
    use crate::packet::{Command, Flags, Launch, Packet, TaskWork};
    use gapless_btl::loopback::{Hub, Loopback};

    fn packet(payload: u32) -> Packet {
        let launch = Launch { argument_bytes: 16, ..Launch::linear(1, 1, 16) };
        let (flags, work) = (Flags::empty(), TaskWork::Kernel(launch));
        let (index, queue) = (1, 1);
        let (object, signal, payload_bytes) = (0, 0, payload);
        Packet::new(&Command { index, queue, flags, object, signal, payload_bytes, work }).unwrap()
    }

    /// That of a loopback.
    fn rail() -> RdmaRail {
        let hub = Hub::new();
        let [mut one, mut other] = [0, 1].map(|rank| Bml::new(Rank(rank), 2));
        one.add(Box::new(Loopback::new(&hub)));
        other.add(Box::new(Loopback::new(&hub)));
        one.connect(Rank(1), &other.addresses()).unwrap();
        one.rdma_rail(Rank(1)).unwrap()
    }

    fn far() -> (Lane, Far) {
        let [copy, landing] =
            [RingShape::default().bytes(), LOOK_BYTES].map(|it| heap(it).unwrap());
        // SAFETY: it is new.
        let lane = unsafe { Lane::new(copy.clone(), RingShape::default()) }.unwrap();
        let far = Far::fresh(RemoteKey::new(&[]).unwrap(), rail(), [copy, landing]);
        (lane, far)
    }

    fn put(lane: &mut Lane, far: &mut Far, payload: u32) {
        let bytes = vec![7; payload as usize];
        let position = lane.put(&packet(payload), [&[0; 16], &bytes]).unwrap();
        far.add(lane, position, [16, bytes.len()]);
    }

    /// Does what is next by copying between the lane's memory and a ring, and gives what it was.
    fn turn(lane: &Lane, far: &mut Far, ring: &Region, batch: u64) -> Option<FarStep> {
        let step = far.next(lane, batch, 0)?;
        let places = far.places(step);
        let mut at = 0;
        for place in places {
            let there = ring.sub(place.offset, place.len).unwrap();
            let (to, from) = match step {
                FarStep::Look { .. } => (far.landing.region().sub(at, place.len).unwrap(), there),
                _ => (there, far.copy.region().sub(place.offset, place.len).unwrap()),
            };
            at += place.len;
            // SAFETY: all of this memory is the test's, and nobody else touches it now.
            unsafe { gapless_mem::copy(&to, &from) }.unwrap();
        }
        far.under_way = Some((1, step));
        far.ended(lane, 1, Ok(()));
        Some(step)
    }

    fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: nobody writes it now.
        unsafe { gapless_mem::read(region, at as u64, &mut bytes) }.unwrap();
        bytes
    }

    #[test]
    fn bodies_come_before_heads_and_a_look_between_them() {
        let (mut lane, mut far) = far();
        let memory = heap(RingShape::default().bytes()).unwrap();
        let ring = memory.region();
        let look = |heads, count, first, bodies| FarStep::Look { first, count, bodies, heads };
        // Before anything is put, the ring is read once.
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(look(0, 0, 0, 0)));
        assert!(far.is_tried() && !far.is_telling());
        assert_eq!(turn(&lane, &mut far, &ring, 2), None);
        for payload in [3, 1000, 5] {
            put(&mut lane, &mut far, payload);
        }
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(FarStep::Bodies(2)));
        let slot = |position| bytes(&ring, RingShape::slot_at(position), SLOT_BYTES);
        assert_eq!((&slot(0)[..8], slot(0)[16] != 0), (&[0; 8][..], true));
        let long = RingShape::ARENA_AT + 16;
        assert_eq!(bytes(&ring, long, 1000), [7; 1000]);
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(look(0, 0, 0, 2)));
        assert!(!far.is_telling());
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(FarStep::Heads(2)));
        let copy = far.copy.region();
        let same =
            |position| bytes(&copy, RingShape::slot_at(position), SLOT_BYTES) == slot(position);
        assert!(same(0) && same(1) && !same(2));
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(FarStep::Bodies(3)));
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(look(2, 2, 0, 3)));
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(FarStep::Heads(3)));
        assert!(same(2));
        assert_eq!(turn(&lane, &mut far, &ring, 2), Some(look(3, 3, 0, 3)));
        assert!(far.is_telling());
    }

    #[test]
    fn statuses_are_read_round_the_circle() {
        let (mut lane, mut far) = far();
        let memory = heap(RingShape::default().bytes()).unwrap();
        let ring = memory.region();
        let slots = SLOTS as u64;
        for round in 0..3 * slots {
            put(&mut lane, &mut far, 3);
            let (position, taken) = lane.counts();
            if position - taken < 7 && round + 1 < 3 * slots {
                continue;
            }
            // Whatever is there is answered: it has ended.
            while far.heads < position {
                turn(&lane, &mut far, &ring, 5).unwrap();
            }
            for position in taken..position {
                let status = status_word(position, 64, 0);
                let at = RingShape::status_at(position) as u64;
                // SAFETY: it is the test's.
                unsafe { gapless_mem::write(&ring, at, &status.to_le_bytes()) }.unwrap();
            }
            let step = turn(&lane, &mut far, &ring, 5).unwrap();
            assert!(matches!(step, FarStep::Look { .. }), "{step:?}");
            for position in taken..position {
                assert_eq!(lane.next(), Some((position, PutOutcome::Ended)));
            }
            assert_eq!(lane.next(), None);
        }
    }

    #[test]
    fn a_state_that_a_look_finds_takes_the_wish_away() {
        let (lane, _) = far();
        lane.learn(0, 0, std::iter::empty());
        assert!(!lane.announce() && lane.is_wanted());
        lane.learn(2, 0, std::iter::empty());
        assert!(lane.has_worker() && !lane.is_wanted());
    }
}
