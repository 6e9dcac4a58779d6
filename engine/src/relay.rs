//! Relays: what an engine may be able to do beyond packing and unpacking fragments.
//!
//! A relay is a whole message that two devices hand on to each other while both work: one gathers it, fragment
//! by fragment, into a ring in the receiver's memory, the other scatters it from there, and flags in the
//! memory of both say how far each has come. No processor takes part once both have begun.
//!
//! Fragment `f` of a message belongs to lane `f` modulo the lanes. A lane has `depth` places of the ring to
//! itself and a flag at either end; its turns are counted from the ring's making on, so flags are set to 0
//! once. A ring serves one message at a time, and the next one is begun when the receiver has all of the last.

use crate::{EngineError, Typed};
use gapless_mem::{Completion, Region, Space};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a lane's flag: a line of memory each.
const FLAG_BYTES: u64 = 64;
/// What the parts of a ring begin at multiples of.
const PART_BYTES: u64 = 256;

/// Which half of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayEnd {
    /// Gathers into the ring.
    Sender,
    /// Scatters out of it.
    Receiver,
}

/// How a message goes round a ring. Both ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayShape {
    /// Lanes.
    pub lanes: u32,
    /// Places of each; two at least, or nothing overlaps.
    pub depth: u32,
    /// Bytes of a fragment, a multiple of 16.
    pub fragment: u32,
}

/// The memory of a relay, each region as one end reaches it.
#[derive(Clone, Copy, Debug)]
pub struct RelayMemory {
    /// The places, in the receiver's memory.
    pub fragments: Region,
    /// The flags that the sender writes, in the receiver's memory.
    pub ready: Region,
    /// The flags that the receiver writes, in the sender's.
    pub credit: Region,
}

/// What became of one end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayOutcome {
    /// Every fragment went through.
    Done,
    /// [`Relay::stop`] ended it.
    Stopped,
    /// The other end let it wait for too long.
    Late,
    /// The other end gave up.
    PeerGone,
}

impl RelayShape {
    /// Bytes of the places; `None` for a shape that cannot be.
    #[must_use]
    pub fn ring_bytes(&self) -> Option<u64> {
        let right = self.lanes > 0 && self.depth >= 2 && self.fragment > 0;
        if !right || !self.fragment.is_multiple_of(16) {
            return None;
        }
        let lane = u64::from(self.depth) * u64::from(self.fragment);
        lane.checked_mul(u64::from(self.lanes))
    }

    /// Bytes of either end's flags.
    #[must_use]
    pub fn flag_bytes(&self) -> u64 {
        u64::from(self.lanes) * FLAG_BYTES
    }

    /// Where the receiver's flags lie in memory that holds the places first, and all that this takes.
    #[must_use]
    pub fn receiver_bytes(&self) -> Option<(u64, u64)> {
        let flags = self.ring_bytes()?.checked_next_multiple_of(PART_BYTES)?;
        Some((flags, flags.checked_add(self.flag_bytes())?))
    }

    /// Turns that a message of `len` bytes takes of the lanes.
    #[must_use]
    pub fn turns(&self, len: u64) -> u64 {
        let fragments = len.div_ceil(u64::from(self.fragment.max(1)));
        fragments.div_ceil(u64::from(self.lanes.max(1)))
    }
}

/// What an engine that can relay has.
pub trait Relays: Send + Sync {
    /// Lanes that one end of a relay may have on the device whose memory `space` is, so that they all work
    /// at the same time; 0 if it cannot relay. `beside`: the other end is on the same device.
    fn lanes(&self, space: Space, beside: bool) -> u32;

    /// One end's part, for a ring of so many lanes: made once, for the messages of that ring.
    ///
    /// # Errors
    /// More lanes than there are, or the device's refusal.
    fn relay(&self, end: RelayEnd, space: Space, lanes: u32)
    -> Result<Arc<dyn Relay>, EngineError>;
}

/// One end of a ring. Its messages follow each other.
pub trait Relay: Send + Sync {
    /// Begins to move bytes `range` of `typed`'s packed stream, as the message before which the lanes have
    /// had `turn` turns. Any one wait for the other end is given up after `patience`.
    ///
    /// The completion is ready when this end does nothing more, whatever became of the message: an error
    /// means that the device has failed.
    ///
    /// # Safety
    /// As for [`Engine::pack`](crate::Engine::pack) or [`unpack`](crate::Engine::unpack) as to `typed`,
    /// until the completion; until then `memory` stays valid, of the lengths that `shape` asks for, and
    /// nothing but the two ends of this message touches it.
    ///
    /// # Errors
    /// Nothing was begun: a layout, shape or memory that does not fit, the device's refusal.
    unsafe fn run(
        &self,
        typed: &Typed,
        range: Range<u64>,
        shape: &RelayShape,
        memory: &RelayMemory,
        turn: u64,
        patience: Duration,
    ) -> Result<Completion, EngineError>;

    /// Has this end give up, whatever it waits for; it ends soon, and the other end finds out. So does every
    /// later message.
    fn stop(&self);

    /// Whether nothing of this end is at work, whatever its completions say: memory that it was given may be
    /// used for something else. Where this stays `false`, it never may.
    fn has_ended(&self) -> bool;

    /// What became of the last message, once its completion is ready.
    fn outcome(&self) -> RelayOutcome;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_room_for_every_lane() {
        let shape = RelayShape { lanes: 3, depth: 2, fragment: 48 };
        assert_eq!(shape.ring_bytes(), Some(288));
        assert_eq!((shape.flag_bytes(), shape.receiver_bytes()), (192, Some((512, 704))));
        assert_eq!([0, 1, 144, 145].map(|len| shape.turns(len)), [0, 1, 1, 2]);
        for wrong in [(0, 2, 48), (3, 1, 48), (3, 2, 0), (3, 2, 40)] {
            let (lanes, depth, fragment) = wrong;
            assert_eq!(RelayShape { lanes, depth, fragment }.ring_bytes(), None, "{wrong:?}");
        }
        let huge = RelayShape { lanes: u32::MAX, depth: u32::MAX, fragment: u32::MAX - 15 };
        assert_eq!(huge.receiver_bytes(), None);
    }
}
