//! Restores the order of sending for the messages of one sender, if the rail does not keep it.
//!
//! Only messages that are matched (eager messages and RTS) are numbered; the rest may come in any
//! order. On an ordered rail every message is the next one and nothing is ever held.

use crate::hash::FastMap;
use thiserror::Error;

/// A message's number breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum OutOfWindow {
    #[error("message {sequence} came twice (message {next} is due)")]
    Duplicate { sequence: u32, next: u32 },
    #[error("message {sequence} is more than {window} after message {next}, which is due")]
    TooFar { sequence: u32, next: u32, window: u32 },
}

/// Whether a message that has arrived is the next one of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalOrder {
    /// It is the next one: handle it, then ask [`Reorder::next_held`].
    Now,
    /// It is early: give it to [`Reorder::hold`].
    Early,
}

/// The messages of one sender that came too early.
#[derive(Debug)]
pub(crate) struct Reorder<M> {
    next: u32,
    held: FastMap<u32, M>,
}

impl<M> Default for Reorder<M> {
    fn default() -> Self {
        Reorder { next: 0, held: FastMap::default() }
    }
}

impl<M> Reorder<M> {
    /// How early a message may be, and so how many can be kept.
    pub(crate) const WINDOW: u32 = 4096;

    /// Whether a message is the next one; if so, the one after it is from now on.
    #[inline]
    pub(crate) fn is_next(&mut self, sequence: u32) -> bool {
        let next = sequence == self.next;
        self.next = self.next.wrapping_add(u32::from(next));
        next
    }

    /// Whether a message is the next one and none that came early waits for it.
    #[inline]
    pub(crate) fn is_in_order(&self, sequence: u32) -> bool {
        sequence == self.next && self.held.is_empty()
    }

    /// The number of the message that is the next one, if none that came early waits for it.
    #[inline]
    pub(crate) fn next_in_order(&self) -> Option<u32> {
        self.held.is_empty().then_some(self.next)
    }

    /// The message that [is in order](Reorder::is_in_order) was handled.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Whether the message of this number is the next one; if so, the one after it is from now on.
    pub(crate) fn order_of(&mut self, sequence: u32) -> Result<ArrivalOrder, OutOfWindow> {
        if self.is_next(sequence) {
            return Ok(ArrivalOrder::Now);
        }
        let ahead = sequence.wrapping_sub(self.next);
        let (next, window) = (self.next, Self::WINDOW);
        if ahead > u32::MAX / 2 || self.held.contains_key(&sequence) {
            return Err(OutOfWindow::Duplicate { sequence, next });
        }
        if ahead > window {
            return Err(OutOfWindow::TooFar { sequence, next, window });
        }
        Ok(ArrivalOrder::Early)
    }

    /// Keeps a message whose order is [`ArrivalOrder::Early`].
    pub(crate) fn hold(&mut self, sequence: u32, message: M) {
        self.held.insert(sequence, message);
    }

    /// The message that is due now, if it came early.
    pub(crate) fn next_held(&mut self) -> Option<M> {
        if self.held.is_empty() {
            return None;
        }
        let message = self.held.remove(&self.next)?;
        self.next = self.next.wrapping_add(1);
        Some(message)
    }

    /// Forgets what is held.
    pub(crate) fn clear(&mut self) {
        self.held = FastMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_messages_wait_for_their_turn() {
        // The numbers wrap.
        let mut reorder = Reorder { next: u32::MAX, ..Reorder::default() };
        assert_eq!(reorder.order_of(1), Ok(ArrivalOrder::Early));
        reorder.hold(1, 'c');
        assert_eq!(reorder.next_held(), None);
        assert_eq!(reorder.order_of(0), Ok(ArrivalOrder::Early));
        reorder.hold(0, 'b');
        assert_eq!(reorder.order_of(u32::MAX), Ok(ArrivalOrder::Now));
        assert_eq!(reorder.next_held(), Some('b'));
        assert_eq!(reorder.next_held(), Some('c'));
        assert_eq!(reorder.next_held(), None);
        assert_eq!(reorder.order_of(2), Ok(ArrivalOrder::Now));
    }

    #[test]
    fn only_the_next_one_is_in_order_and_only_if_none_waits() {
        let mut reorder = Reorder::default();
        assert!(reorder.is_in_order(0) && !reorder.is_in_order(1));
        assert_eq!(reorder.next_in_order(), Some(0));
        reorder.pass();
        assert!(reorder.is_in_order(1) && !reorder.is_in_order(0));
        assert_eq!(reorder.order_of(2), Ok(ArrivalOrder::Early));
        reorder.hold(2, ());
        assert!(!reorder.is_in_order(1));
        assert_eq!(reorder.next_in_order(), None);
    }

    #[test]
    fn repeats_and_leaps_are_refused() {
        let mut reorder = Reorder::default();
        assert_eq!(reorder.order_of(0), Ok(ArrivalOrder::Now));
        assert_eq!(reorder.order_of(0), Err(OutOfWindow::Duplicate { sequence: 0, next: 1 }));
        assert_eq!(reorder.order_of(3), Ok(ArrivalOrder::Early));
        reorder.hold(3, ());
        assert_eq!(reorder.order_of(3), Err(OutOfWindow::Duplicate { sequence: 3, next: 1 }));
        let window = Reorder::<()>::WINDOW;
        let sequence = 2 + window;
        assert_eq!(
            reorder.order_of(sequence),
            Err(OutOfWindow::TooFar { sequence, next: 1, window })
        );
    }
}
