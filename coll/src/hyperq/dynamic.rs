//! The dynamic algorithm of Faraji and Afsahi 2015, §4: the numbers of copies of each kind are found in the call
//! itself, by how soon copies end.
//!
//! - *Initialization.* The first two ranks to arrive get one host-staged and one IPC copy.
//! - *Progress.* When a copy of a kind ends, the ended copies of the other kind are subtracted from those of its own.
//!   If that is 0 or less, one more copy of this kind is issued; if it is *d* > 0, 2^*d* of them, to the next ranks
//!   that have arrived. If fewer have arrived, those that arrive later get them.
//! - *The last copy.* If all others have ended, and no copy of its kind ever has, it is sent again by the other kind.
//!   What is left of a host-staged copy is dropped. An IPC copy goes on, and whichever ends first counts.
//!
//! The scatter has no last step, and goes on from what the gather has shown ([`Dynamic::after`]). A kind of which no
//! copy ended there is not used. If some of both kinds have, half of the copies begin at once, shared by how many those
//! were; each copy that ends is followed by one of its kind, so that the faster kind is used more often.
//!
//! A copy is sent again only if some copy of the other kind has ended: of two processes, one copies, and nothing is
//! known of the other kind.

use std::collections::VecDeque;

use super::{Act, Event, HyperQStep, Kind};

/// The largest power of two that is issued at once; there are never so many ranks.
const POWER_MAX: usize = 20;

/// The dynamic policy in one step: by which kind the next ranks copy follows from how soon copies end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dynamic {
    /// How many ranks copy.
    copies: usize,
    step: HyperQStep,
    /// The only kind that is used, if the other one is slow.
    only: Option<Kind>,
    /// Arrived, and not told to copy.
    waiting: VecDeque<usize>,
    issued: usize,
    /// Ranks whose bytes are where they belong.
    moved: Vec<usize>,
    /// Copies that have not ended, of ranks whose bytes are not there yet.
    pending: Vec<(usize, Kind)>,
    /// By kind: how many copies have ended.
    completed: [usize; 2],
    /// By kind: how many had ended in the step before.
    earlier: [usize; 2],
    /// By kind: how many more may be issued.
    granted: [usize; 2],
    sent_again: Option<usize>,
}

impl Dynamic {
    /// For a step in which so many ranks copy, of which nothing is known.
    #[must_use]
    pub fn new(copies: usize, step: HyperQStep) -> Dynamic {
        Dynamic {
            copies,
            step,
            only: None,
            waiting: VecDeque::new(),
            issued: 0,
            moved: Vec::new(),
            pending: Vec::new(),
            completed: [0; 2],
            earlier: [0; 2],
            granted: [0; 2],
            sent_again: None,
        }
    }

    /// For the scatter after a gather that went like this: without a kind that is [slow](Dynamic::slow); if both are
    /// known, from their numbers on.
    #[must_use]
    pub fn after(gather: &Dynamic, copies: usize) -> Dynamic {
        let mut scatter = Dynamic::new(copies, HyperQStep::Scatter);
        scatter.only = gather.slow().map(Kind::other);
        scatter.earlier = gather.completed;
        if scatter.knows_both() {
            let all: usize = gather.completed.iter().sum();
            scatter.granted = gather.completed.map(|ended| (copies * ended).div_ceil(2 * all));
        }
        scatter
    }

    /// Whether copies of both kinds have ended before this step.
    fn knows_both(&self) -> bool {
        self.earlier.iter().all(|ended| *ended > 0)
    }

    /// How many copies of a kind the end of one of them is worth.
    fn worth(&self, kind: Kind) -> usize {
        let ahead = self.completed(kind).saturating_sub(self.completed(kind.other()));
        if ahead == 0 || self.knows_both() { 1 } else { 1 << ahead.min(POWER_MAX) }
    }

    /// The kind of which no copy has ended, if some copy of the other kind has.
    #[must_use]
    pub fn slow(&self) -> Option<Kind> {
        let [staged, ipc] = self.completed;
        match (staged > 0, ipc > 0) {
            (false, true) => Some(Kind::Staged),
            (true, false) => Some(Kind::Ipc),
            _ => None,
        }
    }

    /// How many copies of a kind have ended.
    #[must_use]
    pub fn completed(&self, kind: Kind) -> usize {
        self.completed[kind.index()]
    }

    /// Whether all ranks' bytes are where they belong. A copy that was sent again may still be under way.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.moved.len() == self.copies
    }

    /// Goes on: what is to be done comes behind what is in `acts`.
    pub fn step(&mut self, event: Event, acts: &mut Vec<Act>) {
        match event {
            Event::Arrived(rank) => self.waiting.push_back(rank),
            Event::Completed(rank, kind) => {
                let known = self.pending.iter().position(|copy| *copy == (rank, kind));
                let Some(at) = known else { return };
                self.pending.swap_remove(at);
                // The other copy of a rank that was sent again does not matter any more.
                self.pending.retain(|(other, _)| *other != rank);
                self.moved.push(rank);
                self.completed[kind.index()] += 1;
                self.granted[kind.index()] += self.worth(kind);
            }
        }
        while let Some(kind) = self.next_kind() {
            let Some(rank) = self.waiting.pop_front() else { break };
            let granted = &mut self.granted[kind.index()];
            *granted = granted.saturating_sub(1);
            self.issue(rank, kind, acts);
        }
        self.send_again(acts);
    }

    fn issue(&mut self, rank: usize, kind: Kind, acts: &mut Vec<Act>) {
        self.issued += 1;
        self.pending.push((rank, kind));
        acts.push(Act::Issue(rank, kind));
    }

    /// The kind of the next copy, if there may be one now: what was quicker so far comes first.
    fn next_kind(&self) -> Option<Kind> {
        if self.only.is_some() {
            return self.only;
        }
        match self.issued {
            _ if self.knows_both() => {}
            0 => return Some(Kind::Staged),
            1 => return Some(Kind::Ipc),
            _ => {}
        }
        let ended = |kind: Kind| self.earlier[kind.index()] + self.completed(kind);
        let first = match ended(Kind::Ipc) > ended(Kind::Staged) {
            true => Kind::Ipc,
            false => Kind::Staged,
        };
        [first, first.other()].into_iter().find(|kind| self.granted[kind.index()] > 0)
    }

    /// The last copy, if its kind is slow.
    fn send_again(&mut self, acts: &mut Vec<Act>) {
        let all_issued = self.issued == self.copies && self.moved.len() + 1 == self.copies;
        let &[(rank, kind)] = &self.pending[..] else { return };
        if self.step == HyperQStep::Scatter || !all_issued || self.slow() != Some(kind) {
            return;
        }
        if self.sent_again.replace(rank).is_some() {
            return;
        }
        if kind == Kind::Staged {
            self.pending.clear();
            acts.push(Act::Drop(rank));
        }
        self.pending.push((rank, kind.other()));
        acts.push(Act::Issue(rank, kind.other()));
    }
}
