//! The sending half of a link: slots, and what goes into the ring.
//!
//! Messages of up to [`TINY_BYTES`] are written by their makers into small private buffers and
//! copied into the ring by `send`: they cost no slot and come back at once. Longer ones are written
//! straight into the slots that the receiver will read. Which slots are free is decided by our own
//! books: a slot is back when the receiver has stored the generation that we counted for it, and a
//! receiver that lies harms only what it is going to read itself.

use crate::credit::{self, Dropped};
use crate::geometry::Class;
use crate::lane::Lane;
use crate::recycle::Recycler;
use crate::ring::{Broken, FEW_LINES, INLINE_BYTES, LINE_BYTES, MessageKind, Producer, lines_for};
use crate::segment::{Segment, whole_pages};
use crate::sync::{AtomicU64, Ordering};
use gapless_btl::{LinkError, PeerId, PoolHandle, Reclaim, ReserveError, Slot};
use std::sync::Arc;

/// Tiny slots that may be reserved at a time.
const TINY: u32 = 64;
/// Bytes from one private buffer to the next.
const STRIDE: usize = 256;
/// Most bytes of a message that is written into a private buffer first: a message by value can be longer.
const TINY_BYTES: usize = 4 * LINE_BYTES;
/// Slots of a class that are in use before we look whether any came back.
const WINDOW: usize = 4;

const _: () = assert!(TINY_BYTES <= STRIDE && TINY_BYTES <= INLINE_BYTES);

/// What a reserved slot keeps alive, and where a dropped one reports. Buffers are numbered tiny
/// ones first, then the lane's slots.
struct Home {
    lane: Arc<Lane>,
    tiny: Segment,
    dropped: Dropped,
}

// SAFETY: the numbers are those of the contract.
// 1. The lane and the private buffers are mappings that end with this value.
// 2. An index is claimed from the free ones by the one sender, and free again when it was sent and came back, or when
//    `collect_dropped` finds the flag that `reclaim` sets.
// 3., 4. It sets that flag, an atomic.
unsafe impl Reclaim for Home {
    unsafe fn reclaim(&self, index: u64) {
        if let Ok(buffer) = usize::try_from(index) {
            self.dropped.set(buffer);
        }
    }
}

/// The sending half.
pub(crate) struct Outbound {
    home: Arc<Home>,
    /// The same, as slots know it.
    pool: Arc<dyn Reclaim>,
    /// A handle that the last slot sent has given back, for the next one: counting is a locked
    /// instruction each way.
    spare: Option<PoolHandle>,
    producer: Producer,
    /// Ring lines promised to slots that are reserved.
    promised: usize,
    /// Per buffer: the lines promised to it while it is reserved, else 0.
    reserved: Box<[u8]>,
    /// Free private buffers, the last one used on top.
    tiny: Vec<u32>,
    classes: Vec<(Class, Recycler)>,
    /// Per slot of the lane: how often it was sent, modulo 2³².
    generations: Box<[u32]>,
    /// A descriptor's two words, where the ring takes them from.
    descriptor: [AtomicU64; 2],
}

impl Outbound {
    /// The sending half over `lane`.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn new(lane: Arc<Lane>) -> Result<Outbound, LinkError> {
        let bytes = whole_pages(u64::from(TINY) * STRIDE as u64).expect("16 KiB");
        let tiny = Segment::private(bytes)?;
        let small = |n: usize| u32::try_from(n).expect("the geometry bounds it");
        let recycler = |class: &Class| {
            Recycler::new(small(class.first), small(class.count), WINDOW.min(class.count / 2))
        };
        let geometry = lane.geometry();
        let classes = geometry.classes().iter().map(|class| (*class, recycler(class))).collect();
        let slots = geometry.slots();
        let buffers = TINY as usize + slots;
        let home = Arc::new(Home { lane, tiny, dropped: Dropped::new(buffers) });
        Ok(Outbound {
            pool: home.clone(),
            spare: None,
            home,
            producer: Producer::default(),
            promised: 0,
            reserved: vec![0; buffers].into(),
            tiny: (0..TINY).rev().collect(),
            classes,
            generations: vec![0; slots].into(),
            descriptor: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.home.lane
    }

    /// The ring line that the next message starts in.
    #[cfg(test)]
    pub(crate) fn next_line(&self) -> usize {
        self.producer.position() & (self.home.lane.geometry().ring_lines() - 1)
    }

    /// The mappings that slots may lie in.
    pub(crate) fn segments(&self) -> [&Segment; 2] {
        [self.home.lane.segment(), &self.home.tiny]
    }

    /// Takes back what was dropped unsent.
    #[cold]
    fn collect_dropped(&mut self) {
        let Outbound { home, promised, reserved, tiny, classes, .. } = self;
        home.dropped.collect(|index| {
            *promised -= usize::from(std::mem::take(&mut reserved[index]));
            let number = u32::try_from(index).expect("there are fewer than 2³² buffers");
            match index.checked_sub(TINY as usize) {
                None => tiny.push(number),
                Some(slot) => {
                    let owner = classes.iter_mut().rfind(|(class, _)| class.first <= slot);
                    if let Some((_, recycler)) = owner {
                        recycler.put(number - TINY);
                    }
                }
            }
        });
    }

    /// Claims room for a message of `len` bytes; the number is for [`slot`](Outbound::slot).
    ///
    /// # Errors
    /// `Full`, too long, or [`LinkError::Corrupt`] if the receiver breaks the ring's rules.
    #[inline]
    pub(crate) fn claim(&mut self, len: usize) -> Result<usize, ReserveError> {
        if self.home.dropped.any() {
            self.collect_dropped();
        }
        let inline = len <= TINY_BYTES;
        let lines = if inline { lines_for(len) } else { 1 };
        let fits = self.producer.fits(self.home.lane.ring(), self.promised + lines);
        if !fits.map_err(|Broken(what)| LinkError::Corrupt { what })? {
            return Err(ReserveError::Full);
        }
        let index = if inline {
            self.tiny.pop().ok_or(ReserveError::Full)? as usize
        } else {
            self.take_slot(len)? + TINY as usize
        };
        self.reserved[index] = lines.to_le_bytes()[0];
        self.promised += lines;
        Ok(index)
    }

    /// The slot of `len` bytes that [`claim`](Outbound::claim) has just claimed. Apart, so that the
    /// slot is made where its caller wants it: moving one costs more than making it.
    #[inline]
    pub(crate) fn slot(&mut self, to: PeerId, len: usize, index: usize) -> Slot {
        let region = match index.checked_sub(TINY as usize) {
            None => self.home.tiny.region(index * STRIDE, len),
            Some(slot) => self.home.lane.slot_to_write(slot, len).expect("chosen by its length"),
        };
        let pool = self.spare.take().unwrap_or_else(|| Arc::clone(&self.pool).into());
        // SAFETY: the buffer lies in a mapping that `pool` keeps; our books say that it is in no
        // other hand until it is reclaimed or sent, and no references to it are made meanwhile.
        unsafe { Slot::new(region, to, index as u64, pool) }
    }

    /// A free slot of the smallest class that holds `len`, or of a larger one if those are out.
    fn take_slot(&mut self, len: usize) -> Result<usize, ReserveError> {
        let max = self.classes.last().map_or(0, |(class, _)| class.bytes);
        if len > max {
            return Err(ReserveError::TooLong { len, max });
        }
        let returned = self.home.lane.returned();
        let generations = &self.generations;
        let back = |slot: u32| {
            let slot = slot as usize;
            credit::is_back(&returned[slot], generations[slot])
        };
        self.classes
            .iter_mut()
            .filter(|(class, _)| class.bytes >= len)
            .find_map(|(_, recycler)| recycler.take(back))
            .map(|slot| slot as usize)
            .ok_or(ReserveError::Full)
    }

    /// Publishes a message of `len` bytes at once, if there is room for it in the ring.
    ///
    /// # Errors
    /// [`LinkError::Corrupt`] if the receiver breaks the ring's rules.
    #[inline]
    pub(crate) fn send_short(
        &mut self,
        tag: u8,
        words: &[u64],
        len: usize,
    ) -> Result<bool, LinkError> {
        if self.home.dropped.any() {
            self.collect_dropped();
        }
        let ring = self.home.lane.ring();
        let fits = self.producer.fits(ring, self.promised + lines_for(len));
        if !fits.map_err(|Broken(what)| LinkError::Corrupt { what })? {
            return Ok(false);
        }
        let bytes = u16::try_from(len).expect("a short message is shorter than a line's counter");
        self.producer.push_words(ring, tag, bytes, words);
        let lines = lines_for(len);
        if lines > FEW_LINES {
            // Prefetches the lines of the next message, taken to be as long as this one. A few lines are not worth it:
            // the prefetch delays the lines just written. On a Xeon with 300 MiB of cache, messages of 32 and 64 B
            // would take 1.18 of the time, on a Zen 3 1.05; those of 1 KiB take 0.90 and 0.95.
            self.home.lane.expect_lines(self.producer.position(), lines);
        }
        Ok(true)
    }

    /// Whether the slot came from this half.
    pub(crate) fn owns(&self, slot: &Slot) -> bool {
        slot.belongs_to(&self.pool)
    }

    /// Publishes what the slot holds. The caller has asked [`owns`](Outbound::owns).
    pub(crate) fn send(&mut self, slot: Slot, tag: u8) {
        let len = slot.len();
        let (_, index, pool) = slot.into_parts_and_pool();
        self.spare = pool;
        let index = usize::try_from(index).expect("our own index");
        self.promised -= usize::from(std::mem::take(&mut self.reserved[index]));
        let ring = self.home.lane.ring();
        if let Some(slot) = index.checked_sub(TINY as usize) {
            let generation = self.generations[slot].wrapping_add(1);
            self.generations[slot] = generation;
            let name = slot as u64 | u64::from(generation) << 32;
            self.descriptor[0].store(name, Ordering::Relaxed);
            self.descriptor[1].store(len as u64, Ordering::Relaxed);
            self.producer.push(ring, MessageKind::Slot, tag, 16, &self.descriptor);
            let number = u32::try_from(slot).expect("the geometry bounds it");
            let owner = self.classes.iter_mut().rfind(|(class, _)| class.first <= slot);
            if let Some((_, recycler)) = owner {
                recycler.mark_in_flight(number);
            }
        } else {
            let words = self.home.tiny.words(index * STRIDE, TINY_BYTES / 8);
            let bytes = u16::try_from(len).expect("tiny slots hold at most TINY_BYTES");
            self.producer.push(ring, MessageKind::Inline, tag, bytes, words);
            self.tiny.push(u32::try_from(index).expect("there are TINY of them"));
        }
    }
}
