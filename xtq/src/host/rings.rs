//! The target's end of rings, as far as messages go: who has asked for one, who has one, and when its puts may begin.
//! `serve.rs` makes them.
//!
//! ```text
//! (a put of a worker's kernel) ──► asked ──OFFER──► offered ──READY──► ready ──GO──► live
//!                                    │ no room          │ DECLINED
//!                                    └────► without ◄───┘
//! ```
//!
//! An initiator that is ready sends no more such puts by messages, but those of sequences. When those that it has sent
//! have ended, its ring is live. So its tasks begin in the order in which they were put, whichever way they came.

use crate::buffer::Received;
use crate::error::Refusal;
use crate::wire::{Ring, kernel_bit};
use gapless_bml::Rank;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingStage {
    Asked,
    /// The worker has it.
    Offered,
    Ready,
    Live,
    Without,
}

/// What initiators want.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) asked: Vec<Rank>,
    pub(super) wanted: bool,
}

/// The rings of this process's worker.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// The worker's kernels, a bit each.
    kernels: u64,
    /// Whether there is a worker.
    has_worker: bool,
    /// The longest receive buffer that the worker has, and the bytes of all.
    longest: u64,
    posted: u64,
    /// Bytes of payloads for the worker that came by messages, and whose tasks have not ended: no more than are posted.
    lent: u64,
    peers: BTreeMap<u32, RingStage>,
    /// By initiator: tasks for the worker that came by messages and in no sequence, and have not ended.
    tasks: BTreeMap<u32, u32>,
    /// An initiator wants the worker.
    wanted: bool,
}

impl Rings {
    /// There is a worker from now on.
    pub(super) fn attach(&mut self) {
        self.has_worker = true;
        self.peers.retain(|_, stage| *stage != RingStage::Asked);
    }

    /// The worker's kernels, a bit each.
    pub(super) fn kernels(&self) -> u64 {
        self.kernels
    }

    /// Whether the worker has the kernel of this index from now on. Gives who is to be told.
    pub(super) fn set_kernel(&mut self, index: u8, has: bool) -> Vec<Rank> {
        let (before, bit) = (self.kernels, kernel_bit(index));
        self.kernels = if has { before | bit } else { before & !bit };
        if self.kernels == before { Vec::new() } else { self.offered() }
    }

    /// Those who know of a ring.
    fn offered(&self) -> Vec<Rank> {
        let known = |stage: &RingStage| !matches!(stage, RingStage::Asked | RingStage::Without);
        self.peers.iter().filter(|(_, stage)| known(stage)).map(|(rank, _)| Rank(*rank)).collect()
    }

    /// The worker has another receive buffer.
    pub(super) fn post(&mut self, bytes: u64) {
        self.longest = self.longest.max(bytes);
        self.posted = self.posted.saturating_add(bytes);
    }

    /// It has none any more.
    pub(super) fn take_posted(&mut self) {
        (self.longest, self.posted) = (0, 0);
    }

    /// Room for a payload on its way to the worker, if that has a receive buffer for it.
    pub(super) fn claim(&mut self, len: usize) -> Result<Received, Refusal> {
        let bytes = len as u64;
        match self.longest {
            _ if len == 0 => Ok(Received::default()),
            0 => Err(Refusal::NoReceiveBuffer),
            longest if longest < bytes => {
                let largest = u32::try_from(longest).unwrap_or(u32::MAX);
                Err(Refusal::ReceiveBufferTooSmall { largest })
            }
            _ if self.lent + bytes > self.posted => Err(Refusal::NoReceiveBuffer),
            _ => {
                self.lent += bytes;
                Ok(Received { memory: vec![0; len], len })
            }
        }
    }

    /// A payload that was claimed is not needed any more.
    pub(super) fn give_back(&mut self, len: usize) {
        self.lent = self.lent.saturating_sub(len as u64);
    }

    /// A put for the worker has come by a message.
    pub(super) fn ask(&mut self, from: Rank) {
        if self.has_worker {
            self.peers.entry(from.0).or_insert(RingStage::Asked);
        }
    }

    /// The worker was wanted, and could not be started yet.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Who is to get a ring, and whether the worker is wanted: once.
    pub(super) fn take_wishes(&mut self) -> Wishes {
        let asked = self.peers.iter().filter(|(_, stage)| **stage == RingStage::Asked);
        let asked = asked.map(|(rank, _)| Rank(*rank)).collect();
        Wishes { asked, wanted: std::mem::take(&mut self.wanted) }
    }

    /// The worker has one for it, or there is none.
    pub(super) fn offer(&mut self, to: Rank, has: bool) {
        if let Some(stage) = self.peers.get_mut(&to.0).filter(|stage| **stage == RingStage::Asked) {
            *stage = if has { RingStage::Offered } else { RingStage::Without };
        }
    }

    /// What an initiator says about its ring. An error says how it breaks the rules.
    pub(super) fn hear(&mut self, from: Rank, what: Ring) -> Result<(), String> {
        let stage = self.peers.get_mut(&from.0);
        match (what, stage) {
            (Ring::Ready, Some(stage @ RingStage::Offered)) => *stage = RingStage::Ready,
            (Ring::Declined, Some(stage @ RingStage::Offered)) => *stage = RingStage::Without,
            (Ring::Wanted, Some(RingStage::Live)) => self.wanted = true,
            // It was said before it heard that there is no worker any more.
            (Ring::Ready | Ring::Declined | Ring::Wanted, Some(RingStage::Without)) => {}
            _ => return Err(format!("{what:?} of a ring, which is not the next thing to say")),
        }
        Ok(())
    }

    /// A task for the worker that came by a message is in its queue.
    pub(super) fn begin(&mut self, from: Rank) {
        *self.tasks.entry(from.0).or_default() += 1;
    }

    /// It has ended.
    pub(super) fn end(&mut self, from: Rank) {
        if let Some(tasks) = self.tasks.get_mut(&from.0) {
            *tasks = tasks.saturating_sub(1);
        }
    }

    /// Those whose puts may go into their rings from now on; `comes` says whether a body of theirs is on its way.
    pub(super) fn let_go(&mut self, comes: impl Fn(Rank) -> bool) -> Vec<Rank> {
        let mut gone = Vec::new();
        for (&rank, stage) in &mut self.peers {
            let rests = self.tasks.get(&rank).is_none_or(|tasks| *tasks == 0);
            if *stage == RingStage::Ready && rests && !comes(Rank(rank)) {
                *stage = RingStage::Live;
                gone.push(Rank(rank));
            }
        }
        gone
    }

    /// Whether there is something to do that no message tells of.
    pub(super) fn is_busy(&self) -> bool {
        let begins = |stage: &RingStage| matches!(stage, RingStage::Asked | RingStage::Ready);
        self.wanted || self.peers.values().any(begins)
    }

    /// An initiator is gone. Its ring stays: what it has put runs.
    pub(super) fn lose(&mut self, rank: Rank) {
        self.tasks.remove(&rank.0);
        self.peers.insert(rank.0, RingStage::Without);
    }

    /// There is no worker any more. Gives who is to be told.
    pub(super) fn over(&mut self) -> Vec<Rank> {
        let known = self.offered();
        (self.kernels, self.has_worker) = (0, false);
        self.take_posted();
        self.peers.values_mut().for_each(|stage| *stage = RingStage::Without);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_offered_once_and_go_when_nothing_comes_by_messages() {
        let (mut rings, one) = (Rings::default(), Rank(1));
        rings.ask(one);
        assert!(!rings.is_busy(), "there is no worker");
        rings.attach();
        assert!(rings.hear(one, Ring::Ready).is_err());
        rings.ask(one);
        assert!(rings.is_busy());
        let asked = Wishes { asked: vec![one], wanted: false };
        assert_eq!(rings.take_wishes(), asked);
        assert_eq!(rings.set_kernel(3, true), []);
        rings.offer(one, true);
        assert_eq!((rings.take_wishes(), rings.is_busy()), (Wishes::default(), false));
        assert_eq!((rings.set_kernel(4, true), rings.kernels()), (vec![one], 0b1_1000));
        assert_eq!(rings.set_kernel(4, true), []);
        rings.begin(one);
        assert!(rings.hear(one, Ring::Wanted).is_err());
        rings.hear(one, Ring::Ready).unwrap();
        assert!(rings.hear(one, Ring::Ready).is_err());
        assert_eq!((rings.let_go(|_| false), rings.is_busy()), (vec![], true));
        rings.end(one);
        assert_eq!(rings.let_go(|_| true), []);
        assert_eq!((rings.let_go(|_| false), rings.let_go(|_| false)), (vec![one], vec![]));
        rings.hear(one, Ring::Wanted).unwrap();
        assert_eq!(rings.take_wishes(), Wishes { wanted: true, ..Wishes::default() });
        assert_eq!((rings.over(), rings.kernels()), (vec![one], 0));
        rings.hear(one, Ring::Wanted).unwrap();
        assert!(rings.hear(one, Ring::Go).is_err() && !rings.is_busy());
        rings.ask(Rank(2));
        assert!(!rings.is_busy(), "there is no worker any more");
    }

    #[test]
    fn who_is_lost_or_declines_is_not_asked_again() {
        let mut rings = Rings::default();
        rings.attach();
        for (rank, declines) in [(Rank(1), true), (Rank(2), false)] {
            rings.ask(rank);
            rings.offer(rank, true);
            match declines {
                true => rings.hear(rank, Ring::Declined).unwrap(),
                false => rings.lose(rank),
            }
            rings.ask(rank);
            assert!(!rings.is_busy() && rings.set_kernel(5, declines).is_empty());
        }
    }

    #[test]
    fn a_payload_needs_a_receive_buffer_of_the_workers() {
        let mut rings = Rings::default();
        assert!(rings.claim(0).is_ok());
        assert_eq!(rings.claim(1).unwrap_err(), Refusal::NoReceiveBuffer);
        rings.post(8);
        rings.post(4);
        assert_eq!(rings.claim(9).unwrap_err(), Refusal::ReceiveBufferTooSmall { largest: 8 });
        assert_eq!(rings.claim(8).unwrap().bytes(), [0; 8]);
        // As many bytes as are posted, and no more.
        assert_eq!(
            (rings.claim(4).unwrap().len, rings.claim(1).unwrap_err()),
            (4, Refusal::NoReceiveBuffer)
        );
        rings.give_back(4);
        assert!(rings.claim(3).is_ok() && rings.claim(2).is_err());
        rings.take_posted();
        assert!(rings.claim(1).is_err());
    }
}
