//! How many messages that the other end retains have come, and when it is told.

use crate::outbound::{SMALL_BYTES, SMALL_EACH};

/// After so many messages that the other end retains, their count goes there in a frame of its own; after half as many
/// as there are buffers, if that is less. Long messages have fewer buffers, so they have a bound of their own.
const UNTOLD_MAX: usize = 32;
const UNTOLD_LONG_MAX: usize = 2;
/// If the peer was not told of so many bytes, it is told once nothing more has come: it measures how quick the link is.
const UNTOLD_BYTES: usize = gapless_btl::LAG_BYTES;

/// How many retained messages came, and went.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The peer retains its messages.
    pub(crate) counted: bool,
    /// Those that have come in full, modulo 2¹⁶.
    had: u16,
    /// Those that the peer was not told of; and how many of them are long.
    untold: usize,
    untold_long: usize,
    untold_bytes: usize,
    /// After how many of them the peer is told at once, and after how many long ones.
    most: usize,
    most_long: usize,
    /// What the peer has told of ours.
    pub(crate) confirmed: Option<u16>,
}

impl Counts {
    /// With so many long buffers at either end.
    pub(crate) fn new(buffers: usize) -> Counts {
        let most = (SMALL_EACH * buffers / 2).clamp(1, UNTOLD_MAX);
        let most_long = (buffers / 2).clamp(1, UNTOLD_LONG_MAX);
        Counts { most, most_long, ..Counts::default() }
    }

    /// A message of so many bytes has come in full.
    pub(crate) fn had(&mut self, len: usize) {
        if self.counted {
            self.had = self.had.wrapping_add(1);
            self.untold += 1;
            self.untold_long += usize::from(len > SMALL_BYTES);
            self.untold_bytes = self.untold_bytes.saturating_add(len);
        }
    }

    /// How many have come: the peer is told now.
    pub(crate) fn tell(&mut self) -> u16 {
        (self.untold, self.untold_long, self.untold_bytes) = (0, 0, 0);
        self.had
    }

    /// Whether the peer waits for the count: at once, or if nothing else has told it for a while.
    pub(crate) fn owes(&self, at_once: bool) -> bool {
        let many = self.untold >= self.most || self.untold_long >= self.most_long;
        self.untold > 0 && (!at_once || many)
    }

    /// Whether the peer is to be told once nothing more has come.
    pub(crate) fn owes_much(&self) -> bool {
        self.untold_bytes >= UNTOLD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(buffers: usize) -> Counts {
        Counts { counted: true, ..Counts::new(buffers) }
    }

    /// After how many messages in a row the peer is told at once.
    fn due_after(buffers: usize, long: bool) -> usize {
        let mut counts = counted(buffers);
        (1..)
            .find(|_| {
                counts.had(if long { 4096 } else { 9 });
                counts.owes(true)
            })
            .unwrap_or(0)
    }

    #[test]
    fn counts_are_due_before_few_buffers_run_out() {
        let of = |long| [2, 3, 4, 16, 4096].map(|buffers| due_after(buffers, long));
        assert_eq!(of(true), [1, 1, 2, 2, 2]);
        assert_eq!(of(false), [8, 12, 16, 32, 32]);
    }

    #[test]
    fn what_is_not_due_at_once_is_due_by_the_clock() {
        let mut counts = counted(16);
        assert!(!counts.owes(false));
        counts.had(9);
        assert!(counts.owes(false) && !counts.owes(true));
        assert_eq!(counts.tell(), 1);
        assert!(!counts.owes(false));
        let mut others = Counts::new(2);
        others.had(UNTOLD_BYTES);
        let owes = others.owes(false) || others.owes_much();
        assert_eq!((owes, others.tell()), (false, 0), "nobody retains these");
    }

    #[test]
    fn many_bytes_are_due_once_nothing_more_has_come() {
        let mut counts = counted(16);
        counts.had(UNTOLD_BYTES - 1);
        assert!(!counts.owes_much());
        counts.had(1);
        assert!(counts.owes_much());
        counts.tell();
        assert!(!counts.owes_much());
    }
}
