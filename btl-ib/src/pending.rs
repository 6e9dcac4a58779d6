//! Processes of the job that have called and whose addresses this process does not know yet. Whoever reads the job's
//! store looks them up, and then their calls are answered. Until then the thread that takes calls tells them only that
//! this process is alive.

use crate::address::Id;
use crate::proof::Hello;
use gapless_btl::Callers;
use std::collections::HashMap;

/// The most pending connections. Another caller repeats its call until there is room.
const PENDING_MAX: usize = 4096;

/// All pending connections.
#[derive(Default)]
pub(crate) struct PendingConnections {
    /// The last hello of each caller.
    waiting: HashMap<Id, Hello>,
    /// The ranks of new callers.
    called: Callers,
    /// Callers that were introduced and are to be answered, with the number of their link.
    welcome: Vec<(u32, Hello)>,
}

impl PendingConnections {
    /// A process that is not known has called. Its rank is given out once: whoever takes the callers introduces them.
    pub(crate) fn note(&mut self, from: Id, rank: u32, hello: Hello) {
        if let Some(last) = self.waiting.get_mut(&from) {
            // Datagrams may overtake each other, or be recorded ones.
            if hello.turn > last.turn {
                *last = hello;
            }
        } else if self.waiting.len() < PENDING_MAX {
            self.waiting.insert(from, hello);
            self.called.note(rank, PENDING_MAX);
        }
    }

    /// Takes the ranks of those who are new.
    pub(crate) fn take_called(&mut self) -> Vec<u32> {
        self.called.take()
    }

    /// Somebody was introduced, as the link of this number.
    pub(crate) fn introduced(&mut self, id: Id, link: u32) {
        if let Some(hello) = self.waiting.remove(&id) {
            self.welcome.push((link, hello));
        }
    }

    /// The next one that is to be answered.
    pub(crate) fn next(&mut self) -> Option<(u32, Hello)> {
        self.welcome.pop()
    }

    /// Whether somebody is to be answered.
    pub(crate) fn are_welcome(&self) -> bool {
        !self.welcome.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(turn: u32) -> Hello {
        let (number, sequence, buffers, fragment_bytes) = (1, 2, 3, 4);
        let (mtu, reads, ack_word, knows, up) = (3, 16, (5, 8), false, false);
        Hello { number, sequence, buffers, fragment_bytes, mtu, reads, ack_word, knows, up, turn }
    }

    #[test]
    fn each_pending_connection_is_told_of_once_and_answered_once() {
        let mut pending = PendingConnections::default();
        for (who, turn) in [(1u8, 1), (2, 1), (1, 3), (1, 2)] {
            pending.note([who; 16], 10 + u32::from(who), hello(turn));
        }
        assert_eq!((pending.take_called(), pending.take_called()), (vec![11, 12], vec![]));
        assert!(!pending.are_welcome());
        pending.introduced([1; 16], 5);
        pending.introduced([3; 16], 6);
        assert!(pending.are_welcome());
        assert_eq!((pending.next(), pending.next()), (Some((5, hello(3))), None));
        pending.introduced([1; 16], 5);
        assert_eq!(pending.next(), None);
    }

    #[test]
    fn pending_connections_are_bounded() {
        let mut pending = PendingConnections::default();
        for i in 0..2 * u32::try_from(PENDING_MAX).unwrap() {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&i.to_le_bytes());
            pending.note(id, i, hello(1));
        }
        assert_eq!(pending.take_called().len(), PENDING_MAX);
        pending.introduced([0; 16], 0);
        pending.note([0xff; 16], 7, hello(1));
        assert_eq!(pending.take_called(), [7], "there is room again");
    }
}
