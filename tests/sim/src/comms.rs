//! The communicators of a world: what each is made of, and who is in it. Ranks are processes of the
//! job; communicator 0 is the world.

use crate::plan::Plan;
use gapless_dtype::testkit::Rng;

/// What a communicator is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommPlan {
    /// The world once more.
    Dup,
    /// The world by rank modulo this, backwards or not.
    Split { colors: u32, reversed: bool },
    /// All but every third, who take no part in making it.
    Group { without: u32 },
    /// The two halves that an earlier split made: between them.
    Inter { halves: usize },
    /// Both sides of an intercommunicator.
    Merge { inter: usize },
}

/// Draws the communicators of a world; those between halves need all to live.
pub(crate) fn draw(rng: &mut Rng, size: u32, faulty: bool) -> Vec<CommPlan> {
    let mut comms = vec![CommPlan::Dup];
    for _ in 0..if size > 100 { rng.below(2) } else { rng.below(4) } {
        comms.push(match rng.below(100) {
            0..30 => CommPlan::Dup,
            30..50 => CommPlan::Group { without: small(rng, 3) },
            _ => CommPlan::Split { colors: 1 + small(rng, 3), reversed: rng.chance(50) },
        });
    }
    if size > 1 && size < 100 && !faulty && rng.chance(30) {
        let halves = comms.len();
        comms.push(CommPlan::Split { colors: 2, reversed: rng.chance(50) });
        comms.push(CommPlan::Inter { halves });
        if rng.chance(50) {
            comms.push(CommPlan::Merge { inter: halves + 1 });
        }
    }
    comms
}

fn small(rng: &mut Rng, below: u64) -> u32 {
    u32::try_from(rng.below(below)).expect("small")
}

impl CommPlan {
    /// The communicator that it is made of, unless that is the world.
    pub(crate) fn parent(self) -> Option<usize> {
        match self {
            CommPlan::Inter { halves: parent } | CommPlan::Merge { inter: parent } => Some(parent),
            _ => None,
        }
    }
}

impl Plan {
    /// Whether a process is in the communicator of this number (of some color).
    pub(crate) fn is_in(&self, comm: usize, rank: u32) -> bool {
        match self.comms[comm] {
            CommPlan::Group { without } if comm > 0 => rank % 3 != without,
            _ => true,
        }
    }

    /// The processes that `rank` can talk to in the communicator, by their rank there.
    pub(crate) fn members(&self, comm: usize, rank: u32) -> Vec<u32> {
        let all = 0..self.size;
        match self.comms[comm] {
            CommPlan::Split { colors, reversed } if comm > 0 => {
                let members = all.filter(|other| other % colors == rank % colors);
                if reversed { members.rev().collect() } else { members.collect() }
            }
            CommPlan::Group { .. } if comm > 0 => {
                all.filter(|&other| self.is_in(comm, rank) && self.is_in(comm, other)).collect()
            }
            CommPlan::Inter { halves } => self.members(halves, rank + 1),
            CommPlan::Merge { inter } => {
                // The side with the odd ones says that it comes last.
                [self.members(inter, 1), self.members(inter, 0)].concat()
            }
            _ => all.collect(),
        }
    }

    /// Whether two processes can talk to each other in a communicator.
    pub(crate) fn together(&self, comm: usize, a: u32, b: u32) -> bool {
        match self.comms[comm] {
            CommPlan::Split { colors, .. } if comm > 0 => a % colors == b % colors,
            CommPlan::Group { .. } => self.is_in(comm, a) && self.is_in(comm, b),
            CommPlan::Inter { .. } => a % 2 != b % 2,
            _ => true,
        }
    }
}
