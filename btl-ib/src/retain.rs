//! Messages that a link retains until the process at its other end has them, and the count by which that end says so. Pure
//! counting.
//!
//! An adapter's completion says that the peer's adapter has a message, not that its process has: a process whose link ends
//! may never look at it. So the peer counts what it has handed out to the layer above. The count rides on every header
//! (16 bits); if nothing else goes there, it is written into a word of ours (`link`), which needs no receive buffer. Both
//! are cumulative, so either may come first, and one that is lost costs nothing.
//!
//! A buffer is free again when both have said so, the adapter and the peer. As the peer gives room only behind the messages
//! that it counts, retaining holds up nothing that would not wait for room anyway.

use gapless_btl::Token;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A count that nothing else has told the peer for so long is written there.
pub(crate) const COUNT_LATE: Duration = Duration::from_millis(250);

/// If nothing else has told so many bytes, the count is written at once: the other end measures how quick the link is.
const COUNT_BYTES: u64 = gapless_btl::LAG_BYTES as u64;

/// A message in a buffer of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) index: u32,
    pub(crate) bytes: u32,
}

/// A message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) tag: u8,
    pub(crate) filled: Filled,
    /// Whoever asked is told of its end by this; `NONE` once that was done.
    pub(crate) token: Token,
}

/// Of the messages that we send: those that are retained, in their order.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    kept: VecDeque<Sent>,
    /// How many of these, from the front, the adapter has finished with.
    finished: usize,
    /// How many, from the front, the peer has.
    confirmed: usize,
    /// How many the peer had in all, modulo 2³².
    counted: u32,
    /// Bytes that the peer is not known to have.
    bytes: u64,
}

impl Retained {
    /// A message is sent, or would be if the link did not end.
    pub(crate) fn push(&mut self, sent: Sent) {
        self.bytes += u64::from(sent.filled.bytes);
        self.kept.push_back(sent);
    }

    /// Bytes that the peer is not known to have.
    pub(crate) fn outstanding(&self) -> u64 {
        self.bytes
    }

    /// Whether there are messages that the peer is not known to have.
    pub(crate) fn is_waiting(&self) -> bool {
        self.confirmed < self.kept.len()
    }

    /// The adapter has finished with the next message: whom to tell of it.
    pub(crate) fn finish(&mut self) -> Token {
        let Some(sent) = self.kept.get_mut(self.finished) else { return Token::NONE };
        self.finished += 1;
        std::mem::replace(&mut sent.token, Token::NONE)
    }

    /// The peer has had so many in all, modulo 2³².
    ///
    /// # Errors
    /// So many were not sent.
    pub(crate) fn confirm(&mut self, count: u32) -> Result<(), String> {
        let new = count.wrapping_sub(self.counted);
        // Counts come in two ways, so an old one may be the later.
        if new > 1 << 31 { Ok(()) } else { self.confirm_more(new) }
    }

    /// The same, of a count modulo 2¹⁶.
    ///
    /// # Errors
    /// As [`confirm`](Retained::confirm).
    pub(crate) fn confirm_short(&mut self, count: u16) -> Result<(), String> {
        let [low, high, ..] = self.counted.to_le_bytes();
        let new = count.wrapping_sub(u16::from_le_bytes([low, high]));
        if new > 1 << 15 { Ok(()) } else { self.confirm_more(new.into()) }
    }

    fn confirm_more(&mut self, new: u32) -> Result<(), String> {
        let left = self.kept.len() - self.confirmed;
        let more = usize::try_from(new).unwrap_or(usize::MAX);
        if more > left {
            return Err(format!("a count of {new} messages more, and {left} were sent"));
        }
        let had = self.kept.range(self.confirmed..self.confirmed + more);
        self.bytes -= had.map(|sent| u64::from(sent.filled.bytes)).sum::<u64>();
        self.confirmed += more;
        self.counted = self.counted.wrapping_add(new);
        Ok(())
    }

    /// A buffer that nobody needs any more.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        if self.finished == 0 || self.confirmed == 0 {
            return None;
        }
        self.finished -= 1;
        self.confirmed -= 1;
        self.kept.pop_front().map(|sent| sent.filled.index)
    }

    /// The link is lost: what the peer has, as far as it was not told; and what it may not have.
    pub(crate) fn give_up(self) -> (Vec<Token>, Vec<Sent>) {
        let mut had: Vec<Sent> = self.kept.into();
        let left = had.split_off(self.confirmed);
        let tokens = had.iter().map(|sent| sent.token).filter(|token| *token != Token::NONE);
        (tokens.collect(), left)
    }
}

/// Of the messages that come: how many were handed out, and how many of those the peer was told of. Modulo 2³².
#[derive(Clone, Copy, Debug)]
pub(crate) struct Had {
    count: u32,
    told: u32,
    /// Bytes of those that the peer was not told of.
    bytes: u64,
    /// When the first one came that was not told.
    since: Instant,
}

impl Had {
    pub(crate) fn new(now: Instant) -> Had {
        Had { count: 0, told: 0, bytes: 0, since: now }
    }

    /// One more of so many bytes was handed out. Gives whether it is the first one that is to be told.
    pub(crate) fn one_more(&mut self, bytes: u64, now: Instant) -> bool {
        let first = self.count == self.told;
        if first {
            self.since = now;
        }
        self.count = self.count.wrapping_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        first
    }

    /// The count, which is told now.
    pub(crate) fn tell(&mut self) -> u32 {
        (self.told, self.bytes) = (self.count, 0);
        self.count
    }

    /// Whether something is to be told; and whether that is urgent: half a `window`, many bytes, or for a while.
    pub(crate) fn owes(&self, window: u32, now: Instant) -> (bool, bool) {
        let untold = self.count.wrapping_sub(self.told);
        let late = now.saturating_duration_since(self.since) >= COUNT_LATE;
        let many = untold >= (window / 2).max(1) || self.bytes >= COUNT_BYTES;
        (untold > 0, untold > 0 && (late || many))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(index: u32) -> Sent {
        Sent { tag: 7, filled: Filled { index, bytes: 10 }, token: Token(index.into()) }
    }

    /// Both the adapter and the peer let go of a buffer before it is used again, in whichever order.
    #[test]
    fn a_buffer_is_free_when_both_have_it_no_more() {
        let mut it = Retained::default();
        (0..3).for_each(|index| it.push(sent(index)));
        assert_eq!((it.outstanding(), it.take_free()), (30, None));
        it.finish();
        assert_eq!((it.outstanding(), it.take_free()), (30, None), "the peer may need it again");
        it.confirm_short(2).unwrap();
        assert_eq!((it.outstanding(), it.take_free()), (10, Some(0)));
        assert_eq!(it.take_free(), None, "the adapter has it");
        it.finish();
        assert_eq!((it.take_free(), it.take_free()), (Some(1), None));
        it.finish();
        it.finish();
        it.confirm(3).unwrap();
        assert_eq!((it.take_free(), it.take_free(), it.outstanding()), (Some(2), None, 0));
    }

    /// Counts go by two ways that may overtake each other, and round; none of them goes back.
    #[test]
    fn counts_go_round_and_never_back() {
        let mut it = Retained { counted: u32::MAX - 100_000, ..Retained::default() };
        for index in 0..200_000u32 {
            it.push(sent(index));
            it.finish();
            let count = it.counted.wrapping_add(1);
            let [low, high, ..] = count.to_le_bytes();
            let short = u16::from_le_bytes([low, high]);
            match index % 3 {
                0 => it.confirm(count).unwrap(),
                1 => it.confirm_short(short).unwrap(),
                _ => {
                    it.confirm_short(short.wrapping_sub(1000)).unwrap();
                    it.confirm(count.wrapping_sub(70_000)).unwrap();
                    assert_eq!(it.outstanding(), 10, "old ones");
                    it.confirm(count).unwrap();
                }
            }
            assert_eq!((it.take_free(), it.outstanding()), (Some(index), 0));
        }
    }

    #[test]
    fn counts_of_what_was_not_sent_are_refused() {
        let mut it = Retained::default();
        assert!(it.confirm(1).is_err() && it.confirm_short(1).is_err());
        it.push(sent(0));
        it.confirm(1).unwrap();
        for wrong in [2, 3, 1000] {
            assert!(it.confirm(wrong).is_err() && it.confirm_short(2).is_err(), "{wrong}");
        }
        assert_eq!(it.outstanding(), 0);
    }

    /// What the peer has is told, if that was not done; the rest is given back, with the tokens of what was not told.
    #[test]
    fn what_a_lost_link_gives_back() {
        let mut it = Retained::default();
        (0..5).for_each(|index| it.push(sent(index)));
        it.finish();
        it.confirm(2).unwrap();
        assert_eq!(it.take_free(), Some(0));
        let (tokens, left) = it.give_up();
        assert_eq!(tokens, [Token(1)], "it is there, and its completion did not come");
        assert_eq!(left, [sent(2), sent(3), sent(4)]);
        let mut it = Retained::default();
        it.push(sent(0));
        it.finish();
        assert_eq!(it.give_up(), (vec![], vec![Sent { token: Token::NONE, ..sent(0) }]));
    }

    #[test]
    fn what_has_come_is_told_in_time() {
        let now = Instant::now();
        let mut had = Had::new(now);
        assert_eq!(had.owes(8, now + COUNT_LATE), (false, false));
        assert!(had.one_more(9, now) && !had.one_more(9, now));
        assert_eq!(had.owes(8, now), (true, false));
        assert_eq!(had.owes(8, now + COUNT_LATE), (true, true));
        assert_eq!(had.owes(4, now), (true, true), "half a window");
        assert_eq!(had.tell(), 2);
        assert_eq!(had.owes(4, now + COUNT_LATE), (false, false));
        assert!(had.one_more(COUNT_BYTES - 1, now + COUNT_LATE));
        assert_eq!(had.owes(8, now + COUNT_LATE), (true, false), "from then on");
        had.one_more(1, now + COUNT_LATE);
        assert_eq!(had.owes(8, now + COUNT_LATE), (true, true), "many bytes");
        had.tell();
        had.one_more(9, now + COUNT_LATE);
        assert_eq!(had.owes(8, now + COUNT_LATE), (true, false));
    }
}
