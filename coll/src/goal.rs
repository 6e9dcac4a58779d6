//! Schedules as a GOAL schedule: the text that LogGOPSim and its kin play, at sizes no machine here has
//! (Hoefler, Siebert, Lumsdaine: Group Operation Assembly Language; LogGOPSim).
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//! l0: send 8b to 1 tag 0
//! }
//! rank 1 {
//! l0: recv 8b from 0 tag 0
//! l1: calc 4
//! l1 requires l0
//! }
//! ```
//! The tag is the slot of the message. `calc` is in nanoseconds. What ranks of a host do together
//! ([`Together`](crate::Together)) is written as its parts: `l4p` puts, `l4s1` signals rank 1 by a message of no bytes,
//! `l4w2` waits for rank 2, and `l4` takes what comes of it. So a simulator knows the order, but takes signals for
//! messages; a task is a message as well, and a computation at its target. [`build_apart`](crate::build_apart) has
//! messages in place of all of it.
use std::fmt;

use crate::cost::Cost;
use crate::schedule::{Action, Schedule};

/// The schedules of all ranks, in order: `Display` writes them as GOAL, and `write!` to a file does not need memory
/// for the text.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// One for each rank.
    pub schedules: &'a [Schedule],
    /// What copies and reductions cost.
    pub cost: &'a Cost,
}

/// One rank's part of a GOAL text, for whoever cannot have the schedules of all ranks at a time: the parts of all
/// ranks, in order, follow a line `num_ranks N`.
#[derive(Clone, Copy, Debug)]
pub struct GoalRank<'a> {
    /// The rank's schedule.
    pub schedule: &'a Schedule,
    /// What copies and reductions cost.
    pub cost: &'a Cost,
}

impl fmt::Display for Goal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "num_ranks {}", self.schedules.len())?;
        self.schedules.iter().try_for_each(|schedule| {
            let part = GoalRank { schedule, cost: self.cost };
            write!(f, "{part}")
        })
    }
}

impl fmt::Display for GoalRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rank {} {{", self.schedule.rank())?;
        let mut shares = 0;
        for (step, (action, after)) in self.schedule.steps().enumerate() {
            match action {
                Action::Send { to, slot, from } => {
                    writeln!(f, "l{step}: send {}b to {to} tag {slot}", from.len)?;
                }
                Action::Receive { from, slot, into } => {
                    writeln!(f, "l{step}: recv {}b from {from} tag {slot}", into.len)?;
                }
                Action::Put { to, slot, from } => {
                    let tag = TAG_OF_TASKS + slot;
                    writeln!(f, "l{step}: send {}b to {to} tag {tag}", from.len)?;
                }
                Action::Task { from, slot, into } => {
                    let tag = TAG_OF_TASKS + slot;
                    writeln!(f, "l{step}t: recv {}b from {from} tag {tag}", into.len)?;
                    for before in after {
                        writeln!(f, "l{step}t requires l{before}")?;
                    }
                    writeln!(f, "l{step}: calc {}", nanoseconds(into.len, self.cost.reduce))?;
                    writeln!(f, "l{step} requires l{step}t")?;
                    continue;
                }
                Action::Copy { into, .. } => {
                    writeln!(f, "l{step}: calc {}", nanoseconds(into.len, self.cost.copy))?;
                }
                Action::Reduce { sources, into } => {
                    let bytes = into.len * (sources.len() as u64 - 1);
                    writeln!(f, "l{step}: calc {}", nanoseconds(bytes, self.cost.reduce))?;
                }
                Action::Share { what, lead, from, into } => {
                    let (subgroup, me) =
                        (self.schedule.subgroup().unwrap_or_default(), self.schedule.rank());
                    let part = what.part(*lead == me);
                    let copy = |bytes| nanoseconds(bytes, self.cost.copy);
                    // Others' tags are slots, which are far less.
                    let tag = TAG_OF_SIGNALS + shares;
                    shares += 1;
                    writeln!(f, "l{step}p: calc {}", copy(if part.puts { from.len } else { 0 }))?;
                    for before in after {
                        writeln!(f, "l{step}p requires l{before}")?;
                    }
                    writeln!(f, "l{step}: calc {}", copy(into.len))?;
                    writeln!(f, "l{step} requires l{step}p")?;
                    for to in part.signals.of(subgroup, *lead, me) {
                        writeln!(f, "l{step}s{to}: send 0b to {to} tag {tag}")?;
                        writeln!(f, "l{step}s{to} requires l{step}p")?;
                        writeln!(f, "l{step} requires l{step}s{to}")?;
                    }
                    for from in part.waits.of(subgroup, *lead, me) {
                        writeln!(f, "l{step}w{from}: recv 0b from {from} tag {tag}")?;
                        writeln!(f, "l{step}w{from} requires l{step}p")?;
                        writeln!(f, "l{step} requires l{step}w{from}")?;
                    }
                    continue;
                }
            }
            for before in after {
                writeln!(f, "l{step} requires l{before}")?;
            }
        }
        writeln!(f, "}}")
    }
}

/// The first tag of tasks. Others' tags are slots, which are far less.
const TAG_OF_TASKS: u32 = 1 << 29;

/// The first tag of signals of what ranks of a host do together.
const TAG_OF_SIGNALS: u32 = 1 << 30;

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are far below 2^53 ns, and not negative"
)]
fn nanoseconds(bytes: u64, byte: f64) -> u64 {
    (bytes as f64 * byte * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Method};
    use crate::build::build;
    use crate::call::{Call, Reduction};
    use crate::locality::Locality;
    use crate::tree::Tree;

    #[test]
    fn the_text_of_an_allreduce() {
        let of = Reduction { unit: 8, commutative: true };
        let call = Call::Allreduce { len: 80, of, in_place: true };
        let algorithm = Algorithm::new(Method::Doubling);
        let one = |rank| build(rank, &Locality::flat(2), &call, &algorithm).expect("a schedule");
        let goal = Goal { schedules: &[one(0), one(1)], cost: &Cost::TYPICAL };
        let rank = |me: usize, other: usize| {
            format!(
                "rank {me} {{\nl0: send 80b to {other} tag 0\nl1: recv 80b from {other} tag 0\n\
                 l2: calc 8\nl2 requires l0\nl2 requires l1\n}}\n"
            )
        };
        assert_eq!(goal.to_string(), format!("num_ranks 2\n{}{}", rank(0, 1), rank(1, 0)));
    }

    #[test]
    fn the_text_of_a_step_of_a_host() {
        let call = Call::Bcast { root: 0, len: 80 };
        let algorithm = Algorithm::new(Method::Tree(Tree::Binomial)).over_shared();
        let hosts = Locality::new(vec![vec![0, 1], vec![2]]).expect("all ranks");
        let one = |rank| build(rank, &hosts, &call, &algorithm).expect("a schedule");
        let text =
            |rank: usize| GoalRank { schedule: &one(rank), cost: &Cost::TYPICAL }.to_string();
        let leader = "rank 0 {\nl0: send 80b to 2 tag 0\nl1p: calc 4\nl1: calc 0\nl1 requires l1p\n\
             l1s1: send 0b to 1 tag 1073741824\nl1s1 requires l1p\nl1 requires l1s1\n}\n";
        assert_eq!(text(0), leader);
        let other = "rank 1 {\nl0p: calc 0\nl0: calc 4\nl0 requires l0p\n\
             l0w0: recv 0b from 0 tag 1073741824\nl0w0 requires l0p\nl0 requires l0w0\n}\n";
        assert_eq!(text(1), other);
    }

    #[test]
    fn the_text_of_a_task() {
        let of = Reduction { unit: 8, commutative: true };
        let call = Call::Reduce { root: 0, len: 80, of, in_place: true };
        let algorithm = Algorithm::new(Method::Xtq);
        let one = |rank| build(rank, &Locality::flat(2), &call, &algorithm).expect("a schedule");
        let text =
            |rank: usize| GoalRank { schedule: &one(rank), cost: &Cost::TYPICAL }.to_string();
        let target = "rank 0 {\nl0: calc 4\nl1: send 0b to 1 tag 0\nl1 requires l0\n\
             l2t: recv 80b from 1 tag 536870912\nl2t requires l1\nl2: calc 8\nl2 requires l2t\n\
             l3: calc 4\nl3 requires l0\nl3 requires l2\n}\n";
        assert_eq!(text(0), target);
        let initiator = "rank 1 {\nl0: recv 0b from 0 tag 0\n\
             l1: send 80b to 0 tag 536870912\nl1 requires l0\n}\n";
        assert_eq!(text(1), initiator);
    }

    #[test]
    fn messages_have_their_slot_as_tag() {
        let call = Call::Bcast { root: 0, len: 10 };
        let algorithm = Algorithm::new(Method::Tree(Tree::Chain)).segmented(4);
        let one = |rank| build(rank, &Locality::flat(2), &call, &algorithm).expect("a schedule");
        let goal = Goal { schedules: &[one(0), one(1)], cost: &Cost::TYPICAL }.to_string();
        for line in ["l2: send 2b to 1 tag 2", "l1: recv 4b from 0 tag 1"] {
            assert!(goal.lines().any(|it| it == line), "{line} in\n{goal}");
        }
    }
}
