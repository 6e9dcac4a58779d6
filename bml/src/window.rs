//! How far a sender may be ahead of what a peer is known to have had: the bound on what a receiver parks.
//!
//! A transport confirms what was handed over, and a message that came early is only parked then. So its slot is free
//! again while an earlier message is still missing, and slots bound nothing. The sender therefore stops at a fixed
//! distance from its oldest message that is not confirmed. The receiver has had all before that one, so nothing that
//! a sender may send is further from the number that the receiver waits for.

use std::collections::VecDeque;

/// Messages from the oldest one that is not confirmed, with it.
pub(crate) const WINDOW_MESSAGES: u64 = 1 << 14;
/// Bytes of these, numbers included.
pub(crate) const WINDOW_BYTES: u64 = 64 << 20;

/// The messages from the oldest one on that is not confirmed.
#[derive(Debug)]
pub(crate) struct Window {
    oldest: u64,
    /// How long each is, from the oldest on; and whether it is confirmed.
    messages: VecDeque<(u64, bool)>,
    bytes: u64,
}

impl Window {
    /// Of messages that begin with this number.
    pub(crate) fn new(first: u64) -> Window {
        Window { oldest: first, messages: VecDeque::new(), bytes: 0 }
    }

    /// The number of the next message that has not been admitted.
    fn next(&self) -> u64 {
        self.oldest + self.messages.len() as u64
    }

    /// Whether a further message of so many bytes has room.
    pub(crate) fn fits(&self, len: u64) -> bool {
        let few = (self.messages.len() as u64) < WINDOW_MESSAGES;
        self.messages.is_empty() || few && self.bytes + len <= WINDOW_BYTES
    }

    /// Whether a message may be sent: one that was admitted before, or the next one, if it has room.
    pub(crate) fn admit(&mut self, number: u64, len: u64) -> bool {
        if number < self.next() {
            return true;
        }
        let admitted = number == self.next() && self.fits(len);
        if admitted {
            self.messages.push_back((len, false));
            self.bytes += len;
        }
        admitted
    }

    /// The peer has had this one.
    pub(crate) fn confirm(&mut self, number: u64) {
        let at = number.checked_sub(self.oldest).and_then(|at| usize::try_from(at).ok());
        if let Some((_, confirmed)) = at.and_then(|at| self.messages.get_mut(at)) {
            *confirmed = true;
        }
        while let Some(&(len, true)) = self.messages.front() {
            self.messages.pop_front();
            self.bytes -= len;
            self.oldest += 1;
        }
    }
}

/// The messages that a rail retains, in the order in which they were given to it.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    messages: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl UnderWay {
    /// A message was given to the rail.
    pub(crate) fn sent(&mut self, number: u64, len: u64) {
        self.messages.push_back((number, len));
        self.bytes += len;
    }

    /// The rail retains so many bytes; of what it does not any more, the window is told.
    pub(crate) fn look(&mut self, outstanding: u64, window: &mut Window) {
        while let Some(&(number, len)) = self.messages.front()
            && self.bytes - len >= outstanding
        {
            self.messages.pop_front();
            self.bytes -= len;
            window.confirm(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_message_holds_the_others_back() {
        let mut window = Window::new(1);
        assert!(!window.admit(2, 8), "it is not the next one");
        assert!((1..=WINDOW_MESSAGES).all(|number| window.admit(number, 8)));
        (2..=WINDOW_MESSAGES).for_each(|number| window.confirm(number));
        assert!(!window.admit(WINDOW_MESSAGES + 1, 8));
        assert!(window.admit(7, 8), "it was admitted before");
        window.confirm(1);
        assert_eq!((window.oldest, window.bytes), (WINDOW_MESSAGES + 1, 0));
        assert!(window.admit(WINDOW_MESSAGES + 1, 2 * WINDOW_BYTES), "alone it has room");
        assert!(!window.admit(WINDOW_MESSAGES + 2, 8));
        window.confirm(5);
        window.confirm(WINDOW_MESSAGES + 1);
        assert!(window.admit(WINDOW_MESSAGES + 2, WINDOW_BYTES - 8));
        assert!(!window.admit(WINDOW_MESSAGES + 3, 9) && window.admit(WINDOW_MESSAGES + 3, 8));
    }

    #[test]
    fn what_a_rail_retains_is_not_confirmed() {
        let (mut window, mut rail) = (Window::new(1), UnderWay::default());
        for (number, len) in [(1, 9), (2, 20), (3, 8)] {
            assert!(window.admit(number, len));
            rail.sent(number, len);
        }
        rail.look(37, &mut window);
        assert_eq!(window.oldest, 1);
        rail.look(8, &mut window);
        assert_eq!((window.oldest, window.bytes), (3, 8));
        rail.look(0, &mut window);
        assert_eq!((window.oldest, rail.bytes), (4, 0));
    }
}
