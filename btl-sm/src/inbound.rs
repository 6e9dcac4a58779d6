//! The receiving half of a link: what comes out of the ring, as fragments.
//!
//! Tiny messages are copied into private buffers, so that their ring lines go back at once whatever
//! the receiver does with the fragment. Longer ones stay in the sender's slots; dropping their
//! fragment, on any thread and in any order, stores the slot's generation where the sender looks.
//! Everything the peer wrote is copied out once, then checked, then used.

use crate::arm::Reason;
use crate::credit::{Flags, SlotsInUse};
use crate::recycle::Recycler;
use crate::ring::{
    Broken, Consumer, FEW_LINES, INLINE_BYTES, INLINE_WORDS, LINE_BYTES, LineHeader, MESSAGE_LINES,
    MessageKind, lines_for,
};
use crate::segment::{Segment, whole_pages};
use crate::sync::{AtomicU64, Ordering};
use crate::waker::Waker;
use gapless_btl::{AmTag, Event, Fragment, LinkError, PeerId, Reclaim, SHORT_BYTES, Short, Sink};
use std::sync::Arc;

/// Bytes from one private buffer to the next.
const STRIDE: usize = 1152;
/// Messages up to this length pass through registers and cache in the room of four lines, longer ones in that of more.
const MEDIUM_BYTES: usize = 4 * LINE_BYTES;
/// Private buffers that are in use before we look whether any came back.
const WINDOW: usize = 1;
/// Set in the index of a fragment that lies in a slot; then the generation in bits 16 … 47 and the
/// slot in bits 0 … 15.
const IN_SLOT: u64 = 1 << 63;

const _: () = assert!(
    INLINE_BYTES <= SHORT_BYTES && INLINE_BYTES <= STRIDE && crate::geometry::SLOTS <= 1 << 16
);

/// What fragments keep alive and come home to.
struct Home {
    /// The peer's lane, and what wakes the peer.
    waker: Arc<Waker>,
    private: Segment,
    /// Per private buffer: whether its fragment is gone.
    back: Flags,
    /// Per slot of the lane: whether a fragment holds it.
    held: SlotsInUse,
}

// SAFETY: the numbers are those of the contract.
// 1. The lane, which `waker` keeps, and the private buffers are mappings that end with this value.
// 2. A private buffer is used again once its flag in `back` is set, a slot claimed again once `held` was released:
//    both are done here alone. Which slot the peer writes next is the peer's affair.
// 3., 4. It changes atomics, and wakes the peer by a call that does not wait.
unsafe impl Reclaim for Home {
    unsafe fn reclaim(&self, index: u64) {
        if index & IN_SLOT == 0 {
            if let Ok(buffer) = usize::try_from(index) {
                self.back.set(buffer);
            }
            return;
        }
        let bytes = index.to_le_bytes();
        let slot = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let generation = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        if self.held.release(slot, self.waker.lane.returned(), generation) {
            self.waker.wake(Reason::Room);
        }
    }
}

/// The receiving half.
pub(crate) struct Inbound {
    home: Arc<Home>,
    /// The same, as fragments know it.
    pool: Arc<dyn Reclaim>,
    consumer: Consumer,
    buffers: Recycler,
    descriptor: [AtomicU64; 2],
    /// All private buffers are in use: nothing is taken from the ring.
    starved: bool,
}

/// What became of the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handed {
    /// There is none.
    Nothing,
    /// It was taken.
    Taken,
    /// It was offered and refused.
    Refused,
    /// It does not lie in the ring, or breaks the rules: it was not offered.
    NotInline,
}

fn corrupt(what: String) -> LinkError {
    LinkError::Corrupt { what }
}

impl Inbound {
    /// The receiving half over the lane that `waker` knows, with room for `parked` tiny messages.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn new(waker: Arc<Waker>, parked: u32) -> Result<Inbound, LinkError> {
        let bytes = whole_pages(u64::from(parked) * STRIDE as u64)
            .ok_or_else(|| crate::system("mmap", "more than the address space"))?;
        let private = Segment::private(bytes)?;
        let slots = waker.lane.geometry().slots();
        let home = Arc::new(Home {
            waker,
            private,
            back: Flags::new(parked as usize),
            held: SlotsInUse::new(slots),
        });
        Ok(Inbound {
            pool: home.clone(),
            home,
            consumer: Consumer::default(),
            buffers: Recycler::new(0, parked, WINDOW),
            descriptor: [AtomicU64::new(0), AtomicU64::new(0)],
            starved: false,
        })
    }

    /// The mappings that fragments may lie in.
    pub(crate) fn segments(&self) -> [&Segment; 2] {
        [self.home.waker.lane.segment(), &self.home.private]
    }

    /// Whether the last [`receive`](Inbound::receive) stopped for want of private buffers.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Whether something waits in the ring.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.consumer.is_due(self.home.waker.lane.ring())
    }

    /// Moves up to `budget` messages from the ring to `sink`; gives how many. Those behind one that it refuses are
    /// events, as far as there is room.
    ///
    /// # Errors
    /// [`LinkError::Corrupt`]: the peer broke the rules. What came before has been delivered.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        from: PeerId,
        sink: &mut dyn Sink,
        budget: usize,
    ) -> Result<usize, LinkError> {
        self.starved = false;
        if !self.is_due() {
            return Ok(0);
        }
        self.receive_some(from, sink, budget)
    }

    fn receive_some(
        &mut self,
        from: PeerId,
        sink: &mut dyn Sink,
        budget: usize,
    ) -> Result<usize, LinkError> {
        let mut taken = 0;
        let mut result = Ok(());
        while taken < budget {
            match self.hand_over(from, sink) {
                Handed::Taken => taken += 1,
                Handed::Nothing => break,
                other => match self.hand_rest_over(other, from, sink, (&mut taken, budget)) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                },
            }
        }
        if taken > 0 {
            self.pass_on();
        }
        result.map(|()| taken)
    }

    /// As [`receive`](Inbound::receive), of the next message alone; whether it was there and could be given.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) fn receive_next(
        &mut self,
        from: PeerId,
        sink: &mut dyn Sink,
    ) -> Result<bool, LinkError> {
        let mut taken = 0;
        match self.hand_over(from, sink) {
            Handed::Taken => taken = 1,
            Handed::Nothing => return Ok(false),
            other => _ = self.hand_rest_over(other, from, sink, (&mut taken, 1))?,
        }
        if taken > 0 {
            self.pass_on();
        }
        Ok(taken > 0)
    }

    /// Gives the lines of messages that were taken back to the peer.
    #[inline]
    fn pass_on(&mut self) {
        self.consumer.give_back(self.home.waker.lane.ring());
        self.home.waker.wake(Reason::Room);
    }

    /// Hands the next message over, if it is there, lies in the ring, and `sink` takes it.
    #[inline]
    fn hand_over(&mut self, from: PeerId, sink: &mut dyn Sink) -> Handed {
        let ring = self.home.waker.lane.ring();
        let Some((tag, len)) = self.consumer.inline(ring) else {
            return if self.is_due() { Handed::NotInline } else { Handed::Nothing };
        };
        if self.hand_inline_over(from, (AmTag(tag), len), sink) {
            Handed::Taken
        } else {
            Handed::Refused
        }
    }

    /// Hands over what [`hand_over`](Inbound::hand_over) could not, while fewer than `budget` messages were `taken`;
    /// whether the next one may be offered again.
    #[inline(never)]
    fn hand_rest_over(
        &mut self,
        what: Handed,
        from: PeerId,
        sink: &mut dyn Sink,
        (taken, budget): (&mut usize, usize),
    ) -> Result<bool, LinkError> {
        if sink.room() == 0 {
            return Ok(false);
        }
        if what == Handed::NotInline {
            let ring = self.home.waker.lane.ring();
            let header = self.consumer.peek(ring).map_err(|Broken(what)| corrupt(what))?;
            let Some(LineHeader { kind: MessageKind::Slot, tag, len }) = header else {
                return Ok(false);
            };
            let (fragment, tag) = (self.open_slot(len)?, AmTag(tag));
            *taken += 1;
            if sink.fragment(from, tag, &fragment) {
                return Ok(true);
            }
            sink.event(Event::Arrived { from, tag, fragment });
        }
        // Behind what was refused nothing is offered: it would overtake.
        let room = sink.room().min(budget - *taken);
        for _ in 0..room {
            if !self.next(from, sink)? {
                break;
            }
            *taken += 1;
        }
        Ok(false)
    }

    /// Hands the next message over, of `len` bytes in the ring, if `sink` takes it.
    #[inline]
    fn hand_inline_over(
        &mut self,
        from: PeerId,
        (tag, len): (AmTag, u16),
        sink: &mut dyn Sink,
    ) -> bool {
        let ring = self.home.waker.lane.ring();
        let bytes = usize::from(len);
        let taken = if bytes <= LINE_BYTES {
            let mut words = [0; LINE_BYTES / 8];
            self.consumer.look(ring, &mut words);
            sink.short(from, tag, Short::new(&words, bytes))
        } else if bytes <= MEDIUM_BYTES {
            let mut words = [0; MEDIUM_BYTES / 8];
            let words = &mut words[..bytes.div_ceil(8)];
            self.consumer.look(ring, words);
            sink.short(from, tag, Short::new(words, bytes))
        } else if bytes <= FEW_LINES * LINE_BYTES {
            let mut words = [0; FEW_LINES * LINE_BYTES / 8];
            let words = &mut words[..bytes.div_ceil(8)];
            self.consumer.look(ring, words);
            sink.short(from, tag, Short::new(words, bytes))
        } else {
            let mut lines = [[0; LINE_BYTES / 8]; MESSAGE_LINES];
            let lines = &mut lines[..lines_for(bytes)];
            self.consumer.look_at_lines(ring, lines);
            sink.short(from, tag, Short::new(lines.as_flattened(), bytes))
        };
        if taken {
            self.consumer.pass(len);
        }
        taken
    }

    /// The slot that the next message, of `len` bytes in the ring, says it is in.
    fn open_slot(&mut self, len: u16) -> Result<Fragment, LinkError> {
        if len != 16 {
            return Err(corrupt(format!("a descriptor of {len} bytes")));
        }
        let ring = self.home.waker.lane.ring();
        self.consumer.take(ring, len, &self.descriptor);
        let (region, index) = self.open_descriptor()?;
        // SAFETY: the bytes lie in a mapping that `pool` keeps, in a slot that the `held` flags give to
        // this fragment alone until it is reclaimed; no references to it are made meanwhile.
        Ok(unsafe { Fragment::new(region, index, Arc::clone(&self.pool)) })
    }

    /// Gives the next message, if there is one, as an event.
    fn next(&mut self, from: PeerId, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let ring = self.home.waker.lane.ring();
        let Some(header) = self.consumer.peek(ring).map_err(|Broken(what)| corrupt(what))? else {
            return Ok(false);
        };
        let fragment = match header.kind {
            MessageKind::Inline => {
                let back = &self.home.back;
                let is_back = |buffer: u32| back.is_set(buffer as usize);
                let buffer = match self.buffers.reuse(is_back) {
                    Some(buffer) => buffer,
                    None => {
                        let Some(buffer) = self.buffers.take(is_back) else {
                            self.starved = true;
                            return Ok(false);
                        };
                        self.buffers.mark_in_flight(buffer);
                        buffer
                    }
                };
                let index = buffer as usize;
                back.clear(index);
                let into = self.home.private.words(index * STRIDE, INLINE_WORDS);
                self.consumer.take(ring, header.len, into);
                let region = self.home.private.region(index * STRIDE, usize::from(header.len));
                // SAFETY: the bytes lie in a mapping that `pool` keeps, in a buffer that our books give to this
                // fragment alone until it is reclaimed; no references to it are made meanwhile.
                unsafe { Fragment::new(region, index as u64, Arc::clone(&self.pool)) }
            }
            MessageKind::Slot => self.open_slot(header.len)?,
        };
        sink.event(Event::Arrived { from, tag: AmTag(header.tag), fragment });
        Ok(true)
    }

    /// Checks the descriptor that was just taken and claims its slot.
    #[inline(never)]
    fn open_descriptor(&self) -> Result<(gapless_mem::Region, u64), LinkError> {
        let name = self.descriptor[0].load(Ordering::Relaxed);
        let len = self.descriptor[1].load(Ordering::Relaxed);
        let (slot, generation) = (name & 0xFFFF_FFFF, name >> 32);
        let place = usize::try_from(slot).ok().zip(usize::try_from(len).ok());
        let Some((number, region)) =
            place.and_then(|(slot, len)| Some((slot, self.home.waker.lane.slot(slot, len)?)))
        else {
            return Err(corrupt(format!("{len} bytes in slot {slot}, which does not hold them")));
        };
        if !self.home.held.claim(number) {
            return Err(corrupt(format!("slot {slot} was sent again before it came back")));
        }
        Ok((region, IN_SLOT | generation << 16 | slot))
    }
}
