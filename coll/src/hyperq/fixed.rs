//! The static algorithm of Faraji and Afsahi 2015, §4: so many copies of each kind, given before the step begins.

use super::{Act, Event, Kind};

/// The static policy in one step: how many ranks copy by each kind is known before they arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// By kind: how many there are in all, and how many are left to issue.
    all: [usize; 2],
    left: [usize; 2],
    moved: usize,
}

impl Fixed {
    /// So many host-staged copies, and so many by IPC.
    #[must_use]
    pub fn new(staged: usize, ipc: usize) -> Fixed {
        Fixed { all: [staged, ipc], left: [staged, ipc], moved: 0 }
    }

    /// Whether all ranks' bytes are where they belong.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.moved == self.all[0] + self.all[1]
    }

    /// How many copies of a kind there are in all.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.all[kind.index()]
    }

    /// Goes on: what is to be done comes behind what is in `acts`. Whoever arrives copies at once, by the kind of which the
    /// larger part is left: so both kinds begin early.
    pub fn step(&mut self, event: Event, acts: &mut Vec<Act>) {
        match event {
            Event::Arrived(rank) => {
                let part = |kind: Kind| {
                    let at = kind.index();
                    // Left of one kind, in parts of all of it: compared crosswise.
                    self.left[at] * self.all[1 - at].max(1)
                };
                let kind = match (self.left, part(Kind::Ipc) > part(Kind::Staged)) {
                    ([0, 0], _) => return,
                    ([0, _], _) => Kind::Ipc,
                    ([_, 0], _) => Kind::Staged,
                    (_, true) => Kind::Ipc,
                    (_, false) => Kind::Staged,
                };
                self.left[kind.index()] -= 1;
                acts.push(Act::Issue(rank, kind));
            }
            Event::Completed(..) => self.moved += 1,
        }
    }
}
