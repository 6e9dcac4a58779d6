//! Which steps of a subgroup's ranks belong together: the first of each, the second of each, and so on.
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::Refutation;
use crate::schedule::{Action, Schedule};

/// A subgroup, and the number of a step among those of its ranks.
type Key = (Vec<usize>, usize);

/// A rank, and one of its steps.
type RankStep = (usize, usize);

/// The steps that are done together with each such step, in the order of the ranks. Steps of all ranks are numbered
/// through; `starts`: where each rank's begin.
pub(super) fn groups(
    schedules: &[Schedule],
    starts: &[usize],
) -> Result<HashMap<usize, Rc<[usize]>>, Refutation> {
    let mut groups: BTreeMap<Key, Vec<RankStep>> = BTreeMap::new();
    for (rank, schedule) in schedules.iter().enumerate() {
        let steps = schedule.steps().enumerate();
        let shares = steps.filter(|(_, (action, _))| matches!(action, Action::Share { .. }));
        for (number, (step, _)) in shares.enumerate() {
            let subgroup = schedule.subgroup().unwrap_or_default().to_vec();
            if !subgroup.contains(&rank) || !subgroup.is_sorted() {
                return Err(Refutation::Apart { rank, step });
            }
            groups.entry((subgroup, number)).or_default().push((rank, step));
        }
    }
    let mut all = HashMap::new();
    for ((subgroup, _), steps) in groups {
        let (rank, step) = steps[0];
        let kind = |(rank, step): &RankStep| match schedules[*rank].action(*step) {
            Action::Share { what, lead, .. } => Some((*what, *lead)),
            _ => None,
        };
        let is_here = subgroup.iter().eq(steps.iter().map(|(rank, _)| rank));
        let odd = steps.iter().find(|other| kind(other) != kind(&steps[0]));
        let leads = kind(&steps[0]).is_some_and(|(_, lead)| subgroup.contains(&lead));
        match odd {
            Some((rank, step)) => return Err(Refutation::Apart { rank: *rank, step: *step }),
            None if !is_here || !leads => return Err(Refutation::Apart { rank, step }),
            None => {}
        }
        let numbers: Rc<[usize]> = steps.iter().map(|(rank, step)| starts[*rank] + step).collect();
        all.extend(numbers.iter().map(|number| (*number, Rc::clone(&numbers))));
    }
    Ok(all)
}
