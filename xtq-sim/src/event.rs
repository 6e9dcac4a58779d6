//! What will happen, in order of time; of what happens at the same time, what was planned first comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Ps;

/// Something that happens at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    /// A rank begins.
    Begin { node: usize },
    /// A thread of the CPU has ended what it did.
    Job { node: usize, thread: usize },
    /// The doorbell of the NIC: a message is to be sent.
    Doorbell { message: usize },
    /// A packet's head has passed the switch, as far as the port to its target.
    Port { packet: usize },
    /// A packet's tail is at the NIC of its target.
    Arrival { packet: usize },
    /// The NIC has the first bytes of a message at hand.
    Gathered { message: usize },
    /// The NIC has read all bytes of a message: the buffer may be overwritten.
    Released { message: usize },
    /// All bytes of a message are in the target's memory, and what the NIC writes behind them.
    Landed { message: usize },
    /// The NIC has written an event for the CPU.
    Noted { message: usize },
    /// The doorbell of the GPU.
    Kick { node: usize },
    /// The command processor has read a packet.
    Read { node: usize },
    /// It has scheduled the kernel, which begins, and is free.
    Scheduled { node: usize },
    /// A kernel has ended, and its result is in memory.
    Ended { node: usize, kernel: usize },
    /// The command processor has counted a signal down.
    Signalled { node: usize, signal: usize },
    /// It has written how a task of a process has ended (`cluster.rs`).
    Over { node: usize, kernel: usize },
    /// The pause is over after which a process puts again.
    Again { put: usize },
}

/// The future.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Ps, u64, Event)>>,
    planned: u64,
}

impl Agenda {
    /// Plans something.
    pub(crate) fn plan(&mut self, at: Ps, event: Event) {
        self.heap.push(Reverse((at, self.planned, event)));
        self.planned += 1;
    }

    /// What comes next, and when.
    pub(crate) fn next(&mut self) -> Option<(Ps, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_of_planning() {
        let mut agenda = Agenda::default();
        let kick = |node| Event::Kick { node };
        for (at, node) in [(5, 9), (3, 2), (5, 1), (3, 7)] {
            agenda.plan(Ps(at), kick(node));
        }
        let order: Vec<_> = std::iter::from_fn(|| agenda.next()).collect();
        let expected = [(3, 2), (3, 7), (5, 9), (5, 1)].map(|(at, node)| (Ps(at), kick(node)));
        assert_eq!(order, expected);
    }
}
