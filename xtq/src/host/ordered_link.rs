//! The messages of one peer, in order and once each: a transport need not promise either.

use std::collections::BTreeMap;

/// Messages that are kept because an earlier one has not come.
const EARLY_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct OrderedLink<M> {
    /// Of the next message to the peer.
    pub(super) out: u32,
    /// Of the next message from it.
    next: u32,
    early: BTreeMap<u32, M>,
}

impl<M> Default for OrderedLink<M> {
    fn default() -> OrderedLink<M> {
        OrderedLink { out: 0, next: 0, early: BTreeMap::new() }
    }
}

impl<M> OrderedLink<M> {
    /// A message has come: it is the next one, or is kept until it is, or came before and is dropped. An error says
    /// what is wrong.
    pub(super) fn arrived(&mut self, serial: u32, message: M) -> Result<Option<M>, String> {
        let ahead = serial.wrapping_sub(self.next);
        if ahead == 0 {
            self.next = self.next.wrapping_add(1);
            return Ok(Some(message));
        }
        if ahead > u32::MAX / 2 {
            return Ok(None);
        }
        if self.early.len() >= EARLY_MAX {
            return Err(format!("{EARLY_MAX} messages came before number {}", self.next));
        }
        self.early.insert(serial, message);
        Ok(None)
    }

    /// The next message, if it came early.
    pub(super) fn next_early(&mut self) -> Option<M> {
        let message = self.early.remove(&self.next)?;
        self.next = self.next.wrapping_add(1);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_once_each_though_numbers_begin_anew() {
        let last = u32::MAX;
        let mut link = OrderedLink { next: last - 1, ..OrderedLink::default() };
        for early in [0, last, 1, 0] {
            assert_eq!(link.arrived(early, early), Ok(None));
        }
        assert_eq!(link.arrived(last - 1, last - 1), Ok(Some(last - 1)));
        let followed: Vec<u32> = std::iter::from_fn(|| link.next_early()).collect();
        assert_eq!(followed, [last, 0, 1]);
        for late in [last - 1, last, 0, 1] {
            assert_eq!(link.arrived(late, late), Ok(None));
            assert_eq!(link.next_early(), None);
        }
        assert_eq!(link.arrived(2, 2), Ok(Some(2)));
    }

    #[test]
    fn there_is_an_end_to_what_comes_early() {
        let mut link = OrderedLink::default();
        for early in (1u32..).take(EARLY_MAX) {
            assert_eq!(link.arrived(early, ()), Ok(None));
        }
        assert!(link.arrived(u32::MAX / 2, ()).is_err());
        assert_eq!(link.arrived(0, ()), Ok(Some(())));
    }
}
