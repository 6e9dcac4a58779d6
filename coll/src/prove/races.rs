//! Whether steps of one rank that touch the same bytes wait for each other, and those that it does together with others.
use super::{Access, Refutation};
use crate::schedule::{Action, Schedule};

/// Checks that of two steps that touch a byte, unless both read, one waits for the other, perhaps through others; and that
/// what is done together with other ranks is done one after the other.
pub(super) fn check(schedule: &Schedule, accesses: &[Vec<Access>]) -> Result<(), Refutation> {
    let waits = Waits::new(schedule);
    let is_shared = |step: &usize| matches!(schedule.action(*step), Action::Share { .. });
    let shares: Vec<usize> = (0..schedule.len()).filter(is_shared).collect();
    if let Some(pair) = shares.windows(2).find(|pair| !waits.has(pair[1], pair[0])) {
        return Err(Refutation::Race { rank: schedule.rank(), steps: (pair[0], pair[1]) });
    }
    let mut sorted: Vec<&Access> =
        accesses.iter().flatten().filter(|it| !it.cells.is_empty()).collect();
    sorted.sort_unstable_by_key(|access| (access.buffer, access.cells.start));
    for (index, one) in sorted.iter().enumerate() {
        let meets =
            |other: &&&Access| other.buffer == one.buffer && other.cells.start < one.cells.end;
        for other in sorted[index + 1..].iter().take_while(meets) {
            let (first, second) = (one.step.min(other.step), one.step.max(other.step));
            if first != second && (one.writes || other.writes) && !waits.has(second, first) {
                return Err(Refutation::Race { rank: schedule.rank(), steps: (first, second) });
            }
        }
    }
    Ok(())
}

/// Which steps a step waits for, directly or not: a bit for each.
pub(super) struct Waits {
    words: usize,
    bits: Vec<u64>,
}

impl Waits {
    pub(super) fn new(schedule: &Schedule) -> Self {
        let words = schedule.len().div_ceil(64);
        let mut bits = vec![0u64; words * schedule.len()];
        for step in 0..schedule.len() {
            let (before, own) = bits.split_at_mut(step * words);
            for earlier in schedule.after(step) {
                let earlier = *earlier as usize;
                own[earlier / 64] |= 1 << (earlier % 64);
                for (word, theirs) in own.iter_mut().zip(&before[earlier * words..][..words]) {
                    *word |= theirs;
                }
            }
        }
        Self { words, bits }
    }

    pub(super) fn has(&self, step: usize, earlier: usize) -> bool {
        self.bits[step * self.words + earlier / 64] >> (earlier % 64) & 1 == 1
    }
}
