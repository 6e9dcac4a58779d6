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
//! The tag is the slot of the message. `calc` is in nanoseconds. GOAL has no steps of several ranks: what ranks of a host do
//! together is written as each rank's work alone; [`build_apart`](crate::build_apart) has messages in its place.
use std::fmt;

use crate::Cost;
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

/// One rank's part of a GOAL text, for whoever cannot have the schedules of all ranks at a time: the parts of all ranks,
/// in order, follow a line `num_ranks N`.
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
        for (step, (action, after)) in self.schedule.steps().enumerate() {
            match action {
                Action::Send { to, slot, from } => {
                    writeln!(f, "l{step}: send {}b to {to} tag {slot}", from.len)?;
                }
                Action::Receive { from, slot, into } => {
                    writeln!(f, "l{step}: recv {}b from {from} tag {slot}", into.len)?;
                }
                Action::Copy { into, .. } => {
                    writeln!(f, "l{step}: calc {}", nanoseconds(into.len, self.cost.copy))?;
                }
                Action::Reduce { sources, into } => {
                    let bytes = into.len * (sources.len() as u64 - 1);
                    writeln!(f, "l{step}: calc {}", nanoseconds(bytes, self.cost.reduce))?;
                }
                Action::Share { from, into, .. } => {
                    let bytes = from.len + into.len;
                    writeln!(f, "l{step}: calc {}", nanoseconds(bytes, self.cost.copy))?;
                }
            }
            for before in after {
                writeln!(f, "l{step} requires l{before}")?;
            }
        }
        writeln!(f, "}}")
    }
}

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
    use crate::{Algorithm, Butterfly, Call, Locality, Method, Reduction, Tree, build};

    #[test]
    fn the_text_of_an_allreduce() {
        let of = Reduction { unit: 8, commutative: true };
        let call = Call::Allreduce { len: 80, of, in_place: true };
        let algorithm = Algorithm::new(Method::Doubling(Butterfly::Binary));
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
