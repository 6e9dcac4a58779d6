//! Falling asleep without missing a message: the handshake around a shared flag.
//!
//! ```text
//! sleeper                             sender
//!   flag = epoch (and reason)           publish a message
//!   patient fence                       hurried fence
//!   look for messages a last time       flag ≠ 0, and not signalled already?
//!   block on the descriptor             signal: a byte through the socket
//! ```
//!
//! Either the sleeper's last look sees the message or the sender sees the flag. Every sleep has an
//! epoch of its own, so that a sender signals once per sleep however much it sends meanwhile. The flag
//! also says whether the sleeper is out of room: only then is giving back lines or slots worth a
//! signal. Senders pay a load while nobody sleeps.

use crate::sync::{AtomicU32, Fences, Ordering};

/// Why a sleeper would be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A message is there.
    Message,
    /// Room has been given back.
    Room,
}

/// The bit of the flag that says that the sleeper lacks room.
const LACKS_ROOM: u32 = 1;

/// The sleeper's side of one flag.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// Even; 0 only before the first sleep.
    epoch: u32,
}

impl Sleeper {
    /// Announces sleep. A [`Fences::patient`] fence and a last look must follow.
    pub(crate) fn arm(&mut self, flag: &AtomicU32, lacks_room: bool) {
        self.epoch = self.epoch.wrapping_add(2).max(2);
        let reason = if lacks_room { LACKS_ROOM } else { 0 };
        // Release, and acquire below: a signal for this sleep comes after the wake-up of the one before
        // was silenced.
        flag.store(self.epoch | reason, Ordering::Release);
    }

    /// Takes the announcement back.
    pub(crate) fn disarm(&self, flag: &AtomicU32) {
        flag.store(0, Ordering::Relaxed);
    }
}

/// The sender's question after something was published: whether to signal now. `signalled` remembers the last
/// sleep that was signalled; threads that race may signal twice, never not at all.
#[inline]
pub(crate) fn must_signal(
    flag: &AtomicU32,
    signalled: &AtomicU32,
    fences: Fences,
    reason: Reason,
) -> bool {
    fences.hurried();
    let sleep = flag.load(Ordering::Acquire);
    if sleep == 0 {
        return false;
    }
    if reason == Reason::Room && sleep & LACKS_ROOM == 0 {
        return false;
    }
    if signalled.load(Ordering::Relaxed) == sleep {
        return false;
    }
    signalled.store(sleep, Ordering::Relaxed);
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_signal_per_sleep_and_only_for_its_reason() {
        let (flag, signalled) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut sleeper = Sleeper::default();
        let ask = |reason| must_signal(&flag, &signalled, Fences::Symmetric, reason);
        assert!(!ask(Reason::Message));
        sleeper.arm(&flag, false);
        assert!(!ask(Reason::Room));
        assert!(ask(Reason::Message));
        assert!(!ask(Reason::Message));
        sleeper.disarm(&flag);
        assert!(!ask(Reason::Message));
        sleeper.arm(&flag, true);
        assert!(ask(Reason::Room));
        assert!(!ask(Reason::Message), "the same sleep");
    }

    #[test]
    fn epochs_wrap_past_zero() {
        let flag = AtomicU32::new(0);
        let mut sleeper = Sleeper { epoch: u32::MAX - 1 };
        sleeper.arm(&flag, false);
        assert_eq!(flag.load(Ordering::Relaxed), 2);
    }
}
