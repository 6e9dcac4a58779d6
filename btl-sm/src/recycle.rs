//! Which of a fixed set of buffers are free: private bookkeeping of the process that owns them.
//!
//! Buffers come back out of order and through flags that somebody else sets, so whether one is back
//! is the caller's answer (`back`). A few buffers that are used over and over stay in the cache, so
//! those that came back go out again first, and fresh ones only when more than `window` are in flight.

use std::collections::VecDeque;

/// How many buffers are looked at before giving up: bounds the work of one call.
const LOOKS: usize = 64;

/// Buffers, free and in flight, by number. Its memory is allocated once.
#[derive(Debug)]
pub(crate) struct Recycler {
    free: Vec<u32>,
    /// Oldest first, save those that were looked at and not back.
    in_flight: VecDeque<u32>,
    window: usize,
    /// The buffer that left last, if [`reuse`](Recycler::reuse) may look at it.
    last: Option<u32>,
}

impl Recycler {
    /// Buffers `first .. first + count`, all free. While no more than `window` are in flight, nobody
    /// asks whether they are back.
    pub(crate) fn new(first: u32, count: u32, window: usize) -> Recycler {
        let in_flight = VecDeque::with_capacity(count as usize);
        Recycler { free: (first..first + count).rev().collect(), in_flight, window, last: None }
    }

    /// The buffer that left last, if it is back: it stays in flight, for whoever asked.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn reuse(&self, back: impl FnOnce(u32) -> bool) -> Option<u32> {
        self.last.filter(|&last| back(last))
    }

    /// A free buffer, to be followed by [`mark_in_flight`](Recycler::mark_in_flight) or [`put`](Recycler::put).
    pub(crate) fn take(&mut self, mut back: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.in_flight.len() >= self.window || self.free.is_empty() {
            let mut looks = self.in_flight.len().min(LOOKS);
            while looks > 0 {
                looks -= 1;
                let Some(oldest) = self.in_flight.pop_front() else { break };
                if back(oldest) {
                    if self.last == Some(oldest) {
                        self.last = None;
                    }
                    self.free.push(oldest);
                    continue;
                }
                self.in_flight.push_back(oldest);
                if !self.free.is_empty() {
                    break;
                }
            }
        }
        self.free.pop()
    }

    /// The buffer has left our hands; `back` will tell when it has returned.
    pub(crate) fn mark_in_flight(&mut self, buffer: u32) {
        self.in_flight.push_back(buffer);
        self.last = Some(buffer);
    }

    /// The buffer is free again.
    #[cfg(not(loom))]
    pub(crate) fn put(&mut self, buffer: u32) {
        self.free.push(buffer);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_back_goes_out_first() {
        let mut recycler = Recycler::new(10, 8, 1);
        for _ in 0..5 {
            let buffer = recycler.take(|_| true).unwrap();
            assert_eq!(buffer, 10);
            recycler.mark_in_flight(buffer);
        }
    }

    #[test]
    fn the_last_one_is_reused_only_while_it_is_in_flight() {
        let mut recycler = Recycler::new(0, 2, 1);
        assert_eq!(recycler.reuse(|_| true), None);
        let buffer = recycler.take(|_| true).unwrap();
        recycler.mark_in_flight(buffer);
        assert_eq!(recycler.reuse(|_| false), None);
        assert_eq!(recycler.reuse(|_| true), Some(buffer));
        assert_eq!(recycler.take(|_| true), Some(buffer));
        assert_eq!(recycler.reuse(|_| true), None, "it is free, not in flight");
    }

    #[test]
    fn returns_in_any_order_are_found() {
        let mut recycler = Recycler::new(0, 200, 4);
        let all: Vec<_> = (0..200)
            .map(|_| {
                let buffer = recycler.take(|_| false).unwrap();
                recycler.mark_in_flight(buffer);
                buffer
            })
            .collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..200).collect::<Vec<_>>());
        assert_eq!(recycler.take(|_| false), None);
        let found = (0..8).find_map(|_| recycler.take(|buffer| buffer == all[150]));
        assert_eq!(found, Some(all[150]));
    }

    #[test]
    fn nobody_is_asked_within_the_window() {
        let mut recycler = Recycler::new(0, 8, 4);
        for _ in 0..4 {
            let buffer = recycler.take(|_| panic!("asked")).unwrap();
            recycler.mark_in_flight(buffer);
        }
        let mut asked = 0;
        recycler.take(|_| {
            asked += 1;
            true
        });
        assert_eq!(asked, 4, "all that are back are taken at once");
    }
}
