//! Credit return: how a buffer in flight comes back to its owner, told by stores alone.
//!
//! ```text
//! holder                            owner
//!   reads (or writes) the buffer      looks: acquire
//!   gives back: release               uses the buffer again
//! ```
//!
//! A slot of a lane carries a generation: the sender counts how often it has sent it, the receiver
//! stores the count that it has done with. So nothing is ever cleared, and what a confused receiver
//! stores about an earlier use is not taken for this one's. A private buffer has a flag that its
//! owner clears when it sends it again. Whoever drops a reserved slot unsent may do so on any thread;
//! [`Dropped`] gathers those.
//!
//! Built with `--cfg loom` too: `loom_tests` explores all of it.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The holder of a slot has done with use number `generation`.
#[inline]
pub(crate) fn give_back(returned: &AtomicU32, generation: u32) {
    // Release: the owner overwrites what was read before this.
    returned.store(generation, Ordering::Release);
}

/// Whether use number `generation` of a slot, the last one, is over.
#[inline]
pub(crate) fn is_back(returned: &AtomicU32, generation: u32) -> bool {
    returned.load(Ordering::Acquire) == generation
}

/// One flag for each of a set of buffers: whether its holder has let go of it.
pub(crate) struct Flags(Box<[AtomicBool]>);

impl Flags {
    /// All clear.
    pub(crate) fn new(buffers: usize) -> Flags {
        Flags((0..buffers).map(|_| AtomicBool::new(false)).collect())
    }

    /// The holder lets go; `false` for a buffer that is not there.
    #[inline]
    pub(crate) fn set(&self, buffer: usize) -> bool {
        let flag = self.0.get(buffer);
        // Release: as in `give_back`.
        flag.inspect(|flag| flag.store(true, Ordering::Release)).is_some()
    }

    /// Whether the holder has let go.
    #[inline]
    pub(crate) fn is_set(&self, buffer: usize) -> bool {
        self.0[buffer].load(Ordering::Acquire)
    }

    /// The owner sends it anew. Relaxed: the message that tells the holder comes after.
    #[inline]
    pub(crate) fn clear(&self, buffer: usize) {
        self.0[buffer].store(false, Ordering::Relaxed);
    }
}

/// Per slot of a lane: whether its receiver still has it in use. Only a sender that breaks the rules
/// sends such a slot again.
pub(crate) struct SlotsInUse(Box<[AtomicBool]>);

impl SlotsInUse {
    /// None of `slots`.
    pub(crate) fn new(slots: usize) -> SlotsInUse {
        SlotsInUse((0..slots).map(|_| AtomicBool::new(false)).collect())
    }

    /// A message in `slot` has come; `false` if the one before it is still in use.
    #[inline]
    pub(crate) fn claim(&self, slot: usize) -> bool {
        // Relaxed: the message that names the slot came after the credit, and that after `release`.
        if self.0[slot].load(Ordering::Relaxed) {
            return false;
        }
        self.0[slot].store(true, Ordering::Relaxed);
        true
    }

    /// The message in `slot` was dropped, on any thread; `false` for a slot that is not there.
    #[inline]
    pub(crate) fn release(&self, slot: usize, returned: &[AtomicU32], generation: u32) -> bool {
        let Some((held, returned)) = self.0.get(slot).zip(returned.get(slot)) else { return false };
        // First of the two: who is told by the second may send again at once.
        held.store(false, Ordering::Relaxed);
        give_back(returned, generation);
        true
    }
}

/// Buffers that were reserved and dropped unsent, on any thread.
pub(crate) struct Dropped {
    flags: Flags,
    /// Whether any flag may be set.
    any: AtomicBool,
}

impl Dropped {
    /// None of `buffers`.
    pub(crate) fn new(buffers: usize) -> Dropped {
        Dropped { flags: Flags::new(buffers), any: AtomicBool::new(false) }
    }

    /// A buffer was dropped.
    pub(crate) fn set(&self, buffer: usize) {
        if self.flags.set(buffer) {
            // Release: whoever sees it sees the flag. A read-modify-write: a plain store would cut off
            // what another thread has released by its own, and its flag could be missed.
            self.any.fetch_or(true, Ordering::Release);
        }
    }

    /// Whether [`collect`](Dropped::collect) is worth a call: the cheapest question.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Hands every dropped buffer to `take`, once.
    pub(crate) fn collect(&self, mut take: impl FnMut(usize)) {
        // A read-modify-write, so that a `set` between it and the look at the flags is either seen by
        // that look or leaves `any` set for the next.
        if !self.any.swap(false, Ordering::Acquire) {
            return;
        }
        for buffer in 0..self.flags.0.len() {
            if self.flags.is_set(buffer) {
                self.flags.clear(buffer);
                take(buffer);
            }
        }
    }
}
