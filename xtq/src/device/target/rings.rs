//! Rings, as the target has them: how they are added while a worker runs, and what a life is given of them with its
//! start.
//!
//! The list of rings only grows. A worker that runs reads it when the count of changes has changed, and says `RUNNING`
//! into the new ring's head. Until then that says `GONE`: an initiator that puts before finds no worker, and wants one.
//! The worker that runs takes its packet; the wish stays, and may start one more life when that worker has left. No
//! packet is left behind (`state.rs` has the model).

use super::super::layout::{
    CONTROL_FIRST, CONTROL_FIRST_SLOT, CONTROL_OUT_LIST, CONTROL_OUTS, CONTROL_RING_LIST,
    CONTROL_RINGS, FIRST_RINGS, OUTS_MAX, RING_ARENA_AT, RING_ARENA_BYTES, RING_HEAD_AT,
    RING_HEAD_BYTES, RING_NEAR, RING_POSITION, RING_SLOTS_AT, RING_STATUS_AT, RING_WANTED,
    RING_WORDS, RINGS_MAX, RingShape, SLOT_BYTES, UNIT_BYTES,
};
use super::super::terms::{RingPlaces, TargetError};
use super::WorkerTarget;
use gapless_mem::{DeviceError, Lease, Words};
use std::sync::atomic::Ordering;

/// A ring, as the target knows it.
#[derive(Debug)]
pub(super) struct Ring {
    /// What the worker was given, if it reaches it through this.
    pub(super) memory: Lease,
    pub(super) reached: bool,
    /// Whether its slots lie in an accelerator's memory.
    pub(super) near: bool,
    /// Its head, if that lies in host memory: elsewhere nobody can want a worker by it. Of a ring in one piece, all of it.
    pub(super) head: Option<Words>,
}

impl Ring {
    /// Whether its initiator wants a worker.
    pub(super) fn is_wanted(&self) -> bool {
        let head = self.head.as_ref().map(Words::all);
        head.is_some_and(|words| words[RING_WANTED / 8].load(Ordering::Acquire) != 0)
    }
}

impl WorkerTarget {
    /// Has the worker reach this memory from now on, of which a ring is made later: [adding](WorkerTarget::add_ring) that
    /// sends no worker away. Here one leaves for a moment, if there is one.
    ///
    /// # Errors
    /// The worker cannot reach it, or does not leave.
    pub fn stock(&mut self, memory: Lease) -> Result<(), TargetError> {
        self.reach(&memory)?;
        self.stocked.push(memory);
        Ok(())
    }

    /// Memory that was stocked, and is no ring's yet. A ring that is not added leaves it here.
    pub(crate) fn stocked(&self) -> Option<&Lease> {
        self.stocked.last()
    }

    /// How many more rings can be added.
    pub(crate) fn rings_left(&self) -> usize {
        RINGS_MAX.saturating_sub(self.rings.len())
    }

    /// Adds the ring of an initiator: zeroed memory that both have. A worker that runs finds it soon, and is not waited
    /// for. It leaves for a moment if the memory has to be registered first, unless it was
    /// [stocked](WorkerTarget::stock). Gives its number.
    ///
    /// # Errors
    /// There are too many; memory that is too short, not at a multiple of 16, or that the worker cannot reach; the
    /// worker does not leave.
    ///
    /// # Safety
    /// As long as this lives, the memory belongs to the ring: to this, and to the [`Lane`](super::super::Lane) of its
    /// initiator.
    pub unsafe fn add_ring(&mut self, memory: Lease, shape: RingShape) -> Result<u8, TargetError> {
        fits(&memory, shape, self.rings.len(), RINGS_MAX, "rings")?;
        let places = RingPlaces::at(self.reach(&memory)?, shape);
        if let Err(error) = places.check() {
            // What was stocked stays so.
            self.give_back(memory);
            return Err(error.into());
        }
        let is_it = |one: &Lease| one.region() == memory.region();
        if let Some(at) = self.stocked.iter().position(is_it) {
            // It is reached by the ring from now on.
            let stocked = self.stocked.swap_remove(at);
            self.give_back(stocked);
        }
        // SAFETY: the lease keeps the memory, which the caller vouches is the ring's, so it is touched as words alone.
        let head = unsafe { Words::new(memory.clone()) }.ok();
        let ring = Ring { near: !is_host(&memory), memory, reached: true, head };
        self.add_places(ring, places)
    }

    /// The same, of a ring whose parts lie apart; `memory` has its slots. `head` is its head, if that lies in host
    /// memory; else nobody can want a worker by it.
    ///
    /// # Errors
    /// As there; and a head that is too short, or that the CPU must not touch.
    ///
    /// # Safety
    /// As there; and the worker finds the parts at these addresses, in zeroed memory that `memory` keeps.
    pub unsafe fn add_ring_at(
        &mut self,
        memory: Lease,
        head: Option<Lease>,
        places: RingPlaces,
    ) -> Result<u8, TargetError> {
        room(self.rings.len(), RINGS_MAX, "rings")?;
        let head = match head {
            Some(head) if head.region().len() < RING_HEAD_BYTES as u64 => {
                return Err(DeviceError::Unsupported { what: "a ring's head this short" }.into());
            }
            // SAFETY: the lease keeps it; the caller vouches that it is the ring's, so it is touched as words alone.
            Some(head) => Some(unsafe { Words::new(head) }?),
            None => None,
        };
        let ring = Ring { near: !is_host(&memory), memory, reached: false, head };
        self.add_places(ring, places)
    }

    pub(super) fn add_places(&mut self, ring: Ring, places: RingPlaces) -> Result<u8, TargetError> {
        let at = self.rings.len();
        places.check()?;
        // Nobody waits for it: a task that runs may need what this process does next.
        self.publish(|target| {
            target.write_ring(CONTROL_RING_LIST, at, places, ring.near);
            target.word(CONTROL_RINGS).store(at as u64 + 1, Ordering::Release);
        });
        self.rings.push(ring);
        // Below 32.
        Ok(u8::try_from(at).unwrap_or(u8::MAX))
    }

    /// Adds a ring of another target, into which tasks here can put
    /// ([`DeviceFunction::Forward`](super::super::DeviceFunction::Forward)); this worker alone puts into it. The worker
    /// leaves for a moment, if there is one. Gives its number.
    ///
    /// # Errors
    /// As [`add_ring`](WorkerTarget::add_ring).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn add_out(&mut self, memory: Lease, shape: RingShape) -> Result<u8, TargetError> {
        let at = self.outs.len();
        fits(&memory, shape, at, OUTS_MAX, "rings to put into")?;
        self.send_away()?;
        let places = RingPlaces::at(self.worker.reach(&memory)?, shape);
        if let Err(error) = places.check() {
            self.forget(&memory);
            return Err(error.into());
        }
        self.write_ring(CONTROL_OUT_LIST, at, places, false);
        self.outs.push(memory);
        self.word(CONTROL_OUTS).store(at as u64 + 1, Ordering::Release);
        Ok(u8::try_from(at).unwrap_or(u8::MAX))
    }

    fn write_ring(&self, list: usize, index: usize, places: RingPlaces, near: bool) {
        let mut words = [0; RING_WORDS];
        words[RING_HEAD_AT] = places.head;
        words[RING_SLOTS_AT] = places.slots;
        words[RING_STATUS_AT] = places.status;
        words[RING_ARENA_AT] = places.arena.0;
        words[RING_ARENA_BYTES] = places.arena.1.into();
        words[RING_POSITION] = 0;
        words[RING_NEAR] = near.into();
        for (at, word) in (list + 8 * RING_WORDS * index..).step_by(8).zip(words) {
            self.word(at).store(word, Ordering::Release);
        }
    }

    /// A life is about to start: nobody wants one any more. The next packet of a ring whose initiator did goes with the
    /// start, so that the life need not fetch it over the bus.
    pub(super) fn take_first(&self) {
        let gives = |(at, ring): (usize, &Ring)| {
            (ring.reached && !ring.near && ring.is_wanted()).then(|| self.give_first(at, ring))?
        };
        let given = self.rings.iter().enumerate().take(FIRST_RINGS).find_map(gives);
        self.word(CONTROL_FIRST).store(given.unwrap_or(0), Ordering::Relaxed);
        for head in self.rings.iter().filter_map(|ring| ring.head.as_ref()) {
            head.all()[RING_WANTED / 8].store(0, Ordering::Relaxed);
        }
    }

    /// Copies the slot of a ring's next packet, whatever is in it. Gives the ring's number, from 1.
    ///
    /// The initiator is a processor of this host, whose stores are seen in the order in which `Lane::put` makes them:
    /// initiators on other hosts want a worker by messages, and not by the word in the ring; accelerators have rings
    /// whose parts lie apart. Whatever else a peer writes is a packet of its own, which the worker checks as all
    /// others.
    fn give_first(&self, at: usize, ring: &Ring) -> Option<u64> {
        let place = CONTROL_RING_LIST + 8 * (RING_WORDS * at + RING_POSITION);
        // The last life is over.
        let slot = RingShape::slot_at(self.word(place).load(Ordering::Relaxed)) / 8;
        let words = ring.head.as_ref()?.all().get(slot..slot + SLOT_BYTES / 8)?;
        for (unit, halves) in words.as_chunks::<{ UNIT_BYTES / 8 }>().0.iter().enumerate() {
            // The half with the sequence number was stored last.
            let low = halves[0].load(Ordering::Acquire);
            let to = CONTROL_FIRST_SLOT + unit * UNIT_BYTES;
            self.word(to).store(low, Ordering::Relaxed);
            self.word(to + 8).store(halves[1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Some(at as u64 + 1)
    }
}

pub(super) fn is_host(memory: &Lease) -> bool {
    memory.region().as_ptr().is_some()
}

pub(super) fn room(number: usize, max: usize, what: &'static str) -> Result<(), TargetError> {
    if number < max { Ok(()) } else { Err(TargetError::TooMany { what, max }) }
}

/// Whether there is room for a ring of this shape in this memory.
fn fits(
    memory: &Lease,
    shape: RingShape,
    number: usize,
    max: usize,
    what: &'static str,
) -> Result<(), TargetError> {
    room(number, max, what)?;
    if memory.region().len() < shape.bytes() {
        return Err(DeviceError::Unsupported { what: "a ring in memory of this length" }.into());
    }
    Ok(())
}
