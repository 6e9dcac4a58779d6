//! Whether no task can run before its place is ready, or while another step touches it.
//!
//! A task may run as soon as its put has begun, whatever its own rank does then. What is known to have happened by then
//! is what its rank did before a message to the initiator that the put waits for: that message says «ready». The task's
//! step waits for it directly: so an executor knows from when on the task may come.
use std::collections::HashMap;

use super::races::Waits;
use super::{Access, Refutation};
use crate::schedule::{Action, Schedule};

/// A rank, and one of its steps.
type RankStep = (usize, usize);

/// Checks that each put waits for a message of its target, and that every step of the target which touches the place of
/// the task has ended before such a message leaves, or waits for the end of the task.
pub(super) fn check(
    schedules: &[Schedule],
    accesses: &[Vec<Vec<Access>>],
) -> Result<(), Refutation> {
    if !schedules.iter().any(Schedule::has_tasks) {
        return Ok(());
    }
    let waits: Vec<Waits> = schedules.iter().map(Waits::new).collect();
    let receives = ends(schedules, |rank, action| match action {
        Action::Receive { from, slot, .. } => Some((*from, rank, *slot)),
        _ => None,
    });
    let puts = ends(schedules, |rank, action| match action {
        Action::Put { to, slot, .. } => Some((rank, *to, *slot)),
        _ => None,
    });
    for (rank, schedule) in schedules.iter().enumerate() {
        // The messages to each peer, and where they arrive.
        let mut said: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
        for (step, (action, _)) in schedule.steps().enumerate() {
            if let Action::Send { to, slot, .. } = action
                && let Some((_, there)) = receives.get(&(rank, *to, *slot))
            {
                said.entry(*to).or_default().push((step, *there));
            }
        }
        for (step, (action, _)) in schedule.steps().enumerate() {
            let Action::Task { from, slot, .. } = action else { continue };
            let unready = Refutation::Unready { rank, step };
            let &(_, put) = puts.get(&(*from, rank, *slot)).ok_or_else(|| unready.clone())?;
            // What says that the place is ready.
            let all = said.get(from).map_or(&[][..], Vec::as_slice);
            let ready = all.iter().filter(|(_, there)| waits[*from].has(put, *there));
            let ready: Vec<usize> = ready.map(|(here, _)| *here).collect();
            // From the first of these on an executor lets the task come.
            let opens = |said: &usize| schedule.after(step).iter().any(|it| *it as usize == *said);
            let opened: Vec<usize> = all.iter().map(|(here, _)| *here).filter(opens).collect();
            if !opened.iter().any(|said| ready.contains(said)) {
                return Err(unready);
            }
            for other in (0..schedule.len()).filter(|other| *other != step) {
                let before = || opened.iter().all(|said| waits[rank].has(*said, other));
                let collides = collide(&accesses[rank][step], &accesses[rank][other]);
                if collides && !waits[rank].has(other, step) && !before() {
                    let steps = (step.min(other), step.max(other));
                    return Err(Refutation::Race { rank, steps });
                }
            }
        }
    }
    Ok(())
}

/// Which step of which rank is the one end of each message, or task.
fn ends(
    schedules: &[Schedule],
    of: impl Fn(usize, &Action) -> Option<(usize, usize, u32)>,
) -> HashMap<(usize, usize, u32), RankStep> {
    let mut ends = HashMap::new();
    for (rank, schedule) in schedules.iter().enumerate() {
        for (step, (action, _)) in schedule.steps().enumerate() {
            ends.extend(of(rank, action).map(|key| (key, (rank, step))));
        }
    }
    ends
}

/// Whether two steps touch a cell, and one of them writes it.
fn collide(one: &[Access], other: &[Access]) -> bool {
    let meet = |a: &Access, b: &Access| {
        a.buffer == b.buffer
            && (a.writes || b.writes)
            && a.cells.start.max(b.cells.start) < a.cells.end.min(b.cells.end)
    };
    one.iter().any(|a| other.iter().any(|b| meet(a, b)))
}
