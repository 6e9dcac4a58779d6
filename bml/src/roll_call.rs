//! Who has said that it leaves the job together with the others, in two steps: nothing is started there any more; nothing
//! is under way there any more. Each process tells its neighbours whom it knows of, so all come to know of all.
//!
//! Whoever has said so does not depart. So if all have, all will know, and nobody departs; if one departs, nobody ever
//! knows of all. Either way all come to the same. Whoever has lost a rank that has not departed, as far as it knows,
//! does not wait here for it: that is a casualty, which ends the wait with an error.
//!
//! Pure: words come in, words go out.

use crate::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Two steps of leaving.
pub(crate) const STEPS: usize = 2;

/// Runs of ranks that a word has at most.
const RUNS_MAX: usize = 20;
/// Bytes of a run: its first rank, and how many.
const RUN_BYTES: usize = 8;

#[derive(Debug, Default)]
struct RollCallStep {
    known: BTreeSet<Rank>,
    /// The same, in the order in which they were learned.
    order: Vec<Rank>,
    /// How many of these each neighbour has been told of.
    told: BTreeMap<Rank, usize>,
}

/// Who has said that it leaves, for each step.
#[derive(Debug)]
pub(crate) struct RollCall {
    size: u32,
    steps: [RollCallStep; STEPS],
}

impl RollCall {
    pub(crate) fn new(size: u32) -> RollCall {
        RollCall { size, steps: Default::default() }
    }

    /// `rank` is at this step. Gives whether that is new.
    pub(crate) fn enter(&mut self, step: usize, rank: Rank) -> bool {
        let step = &mut self.steps[step];
        let new = step.known.insert(rank);
        if new {
            step.order.push(rank);
        }
        new
    }

    /// Takes a word: a step, and runs of ranks. Gives whether something was new; `None` if it makes no sense.
    pub(crate) fn hear(&mut self, word: &[u8]) -> Option<bool> {
        let (&step, runs) = word.split_first()?;
        let step = usize::from(step);
        let (runs, rest) = runs.as_chunks::<RUN_BYTES>();
        if step >= STEPS || !rest.is_empty() || runs.is_empty() || runs.len() > RUNS_MAX {
            return None;
        }
        let mut new = false;
        for run in runs {
            let [first, count] = [0, 4]
                .map(|at| u32::from_le_bytes([run[at], run[at + 1], run[at + 2], run[at + 3]]));
            let end = first.checked_add(count).filter(|&end| end <= self.size)?;
            for rank in first..end {
                new |= self.enter(step, Rank(rank));
            }
        }
        Some(new)
    }

    /// The next word for a neighbour, and how many ranks it tells of.
    pub(crate) fn owed(&self, peer: Rank) -> Option<(Vec<u8>, usize)> {
        self.steps.iter().zip(0u8..).find_map(|(step, number)| {
            let mut next = step.order[step.told.get(&peer).copied().unwrap_or(0)..].to_vec();
            let mut runs = runs(&next);
            if runs.len() > RUNS_MAX {
                next.truncate(RUNS_MAX);
                runs = self::runs(&next);
            }
            let bytes = |&(first, count): &(u32, u32)| [first.to_le_bytes(), count.to_le_bytes()];
            let runs: Vec<u8> = runs.iter().flat_map(bytes).flatten().collect();
            (!next.is_empty()).then(|| ([&[number], &runs[..]].concat(), next.len()))
        })
    }

    /// A neighbour has been told of so many more, by a word that was [owed](RollCall::owed).
    pub(crate) fn tell(&mut self, peer: Rank, word: &[u8], count: usize) {
        if let Some(step) = word.first().and_then(|&step| self.steps.get_mut(usize::from(step))) {
            *step.told.entry(peer).or_insert(0) += count;
        }
    }

    /// Whether all are at this step that are not among those `gone`; then, whether nobody is.
    pub(crate) fn is_over(&self, step: usize, gone: impl Iterator<Item = Rank>) -> Option<bool> {
        let known = &self.steps[step].known;
        let gone = gone.filter(|rank| !known.contains(rank)).count();
        (known.len() + gone == self.size as usize).then_some(gone == 0)
    }
}

/// Ranks as runs of neighbouring ones: the first, and how many.
fn runs(ranks: &[Rank]) -> Vec<(u32, u32)> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == rank => *count += 1,
            _ => runs.push((rank, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure_gossip::{Fact, FailureGossip};

    /// All words between those that are not gone, until there is none.
    fn talk(gossips: &[FailureGossip], calls: &mut [RollCall]) {
        let mut said = true;
        while std::mem::take(&mut said) {
            for (from, gossip) in gossips.iter().enumerate() {
                for &to in gossip.neighbours() {
                    while let Some((word, count)) = calls[from].owed(to) {
                        said = true;
                        assert!(word.len() <= 161);
                        calls[from].tell(to, &word, count);
                        assert!(calls[to.0 as usize].hear(&word).is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn all_know_of_all_and_not_before() {
        for size in [1, 2, 3, 4, 7, 64, 129] {
            let gossips: Vec<FailureGossip> =
                (0..size).map(|rank| FailureGossip::new(Rank(rank), size)).collect();
            let mut calls: Vec<RollCall> = (0..size).map(|_| RollCall::new(size)).collect();
            for step in 0..STEPS {
                let odd = |rank: &u32| !rank.is_multiple_of(2);
                // The odd ones first, so that there are many runs; the last one after all others.
                let (first, rest): (Vec<u32>, Vec<u32>) = (0..size - 1).partition(odd);
                for some in [first, rest, vec![size - 1]] {
                    talk(&gossips, &mut calls);
                    let over = |call: &RollCall| call.is_over(step, [].into_iter());
                    assert!(calls.iter().all(|call| over(call).is_none()), "{size} {some:?}");
                    some.into_iter()
                        .for_each(|rank| _ = calls[rank as usize].enter(step, Rank(rank)));
                }
                talk(&gossips, &mut calls);
                for call in &calls {
                    assert_eq!(call.is_over(step, [].into_iter()), Some(true), "{size}");
                }
            }
        }
    }

    #[test]
    fn without_those_that_have_departed_it_ends_otherwise() {
        let (size, departed) = (9, [Rank(0), Rank(4)]);
        let mut gossips: Vec<FailureGossip> =
            (0..size).map(|rank| FailureGossip::new(Rank(rank), size)).collect();
        let mut calls: Vec<RollCall> = (0..size).map(|_| RollCall::new(size)).collect();
        for gossip in &mut gossips {
            for rank in departed {
                let fact = Fact { rank, culprit: rank, departed: true, why: "".into() };
                gossip.hear(rank, fact);
                gossip.lose(rank, "");
            }
        }
        let rest = (0..size).map(Rank).filter(|rank| !departed.contains(rank));
        for rank in rest.clone() {
            calls[rank.0 as usize].enter(0, rank);
        }
        talk(&gossips, &mut calls);
        for rank in rest {
            let at = rank.0 as usize;
            assert_eq!(calls[at].is_over(0, gossips[at].gone()), Some(false));
            assert_eq!(calls[at].is_over(1, gossips[at].gone()), None);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut call = RollCall::new(4);
        let word = |step: u8, first: u32, count: u32| {
            [&[step][..], &first.to_le_bytes(), &count.to_le_bytes()].concat()
        };
        assert_eq!(call.hear(&word(0, 1, 2)), Some(true));
        assert_eq!(call.hear(&word(0, 1, 2)), Some(false));
        for bad in [word(2, 0, 1), word(0, 3, 2), word(0, u32::MAX, 2), vec![], vec![0], vec![0, 1]]
        {
            assert_eq!(call.hear(&bad), None, "{bad:?}");
        }
        assert_eq!(call.hear(&[&[0][..], &[0; 8 * (RUNS_MAX + 1)]].concat()), None);
    }
}
