//! Who takes part in one phase of a collective, and runs of consecutive members.
use std::ops::Range;
use std::rc::Rc;

/// Some ranks in some order: members have positions from 0, and algorithms work with positions.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    /// The ranks; none: all of them, in order.
    members: Option<Rc<[usize]>>,
    size: usize,
    /// Position 0 is this entry of the list, and the list goes on from its start after its end.
    shift: usize,
    /// The position of the rank that builds its schedule.
    pub(crate) me: usize,
}

impl Team {
    /// All ranks, position by rank.
    pub(crate) fn all(rank: usize, ranks: usize) -> Self {
        Self { members: None, size: ranks, shift: 0, me: rank }
    }

    /// These ranks; none if `rank` is not among them.
    pub(crate) fn of(members: impl Into<Rc<[usize]>>, rank: usize) -> Option<Self> {
        let members = members.into();
        let me = members.iter().position(|member| *member == rank)?;
        Some(Self { size: members.len(), members: Some(members), shift: 0, me })
    }

    /// The same members, beginning with position `first`.
    pub(crate) fn from(&self, first: usize) -> Self {
        let me = (self.me + self.size - first) % self.size;
        Self { shift: (self.shift + first) % self.size, me, ..self.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.size
    }

    /// The rank at a position.
    pub(crate) fn rank(&self, position: usize) -> usize {
        let entry = (position + self.shift) % self.size;
        self.members.as_ref().map_or(entry, |members| members[entry])
    }
}

/// Sets of positions or blocks: ascending, without overlap, no run empty, and none meets the next.
pub(crate) type Runs = Vec<Range<usize>>;

/// One run.
pub(crate) fn run(run: Range<usize>) -> Runs {
    std::iter::once(run).collect()
}

/// The runs of a set.
pub(crate) fn runs(mut items: Vec<usize>) -> Runs {
    items.sort_unstable();
    let mut runs: Runs = Vec::new();
    for item in items {
        match runs.last_mut() {
            Some(run) if run.end == item => run.end += 1,
            _ => runs.push(item..item + 1),
        }
    }
    runs
}

/// `count` numbers from `first` on, with 0 after `n - 1`.
pub(crate) fn cyclic(first: usize, count: usize, n: usize) -> Runs {
    let first = first % n;
    if first + count <= n {
        return run(first..first + count);
    }
    let rest = first + count - n;
    if rest == first { run(0..n) } else { vec![0..rest, first..n] }
}

/// Folds `n` members to a power of two: of the first pairs of neighbours one takes part for both.
///
/// The active members are numbered from 0; each speaks for one or two consecutive members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    /// The power of two, at most `n`.
    pub(crate) active: usize,
    /// How many members are folded away.
    pub(crate) folded: usize,
}

/// A member's part after folding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldedPart {
    /// Takes part with this number; for the member behind it too, if that is given.
    Active { number: usize, follower: Option<usize> },
    /// This member takes part for it.
    Follower { leader: usize },
}

impl Fold {
    pub(crate) fn new(n: usize) -> Self {
        let active = 1 << n.ilog2();
        Self { active, folded: n - active }
    }

    /// How often the active members double.
    pub(crate) fn rounds(self) -> u32 {
        self.active.ilog2()
    }

    /// The first member an active number speaks for; of the number past the last: how many members there are.
    pub(crate) fn member(self, number: usize) -> usize {
        number + number.min(self.folded)
    }

    /// The members that some consecutive active numbers speak for.
    pub(crate) fn members(self, numbers: Range<usize>) -> Range<usize> {
        self.member(numbers.start)..self.member(numbers.end)
    }

    pub(crate) fn part(self, member: usize) -> FoldedPart {
        if member >= 2 * self.folded {
            return FoldedPart::Active { number: member - self.folded, follower: None };
        }
        if member.is_multiple_of(2) {
            FoldedPart::Active { number: member / 2, follower: Some(member + 1) }
        } else {
            FoldedPart::Follower { leader: member - 1 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_keeps_order_and_forgets_nobody() {
        for n in 1..70 {
            let fold = Fold::new(n);
            let mut seen = Vec::new();
            for number in 0..fold.active {
                let members = fold.members(number..number + 1);
                let follower = (members.len() == 2).then(|| members.start + 1);
                assert_eq!(fold.part(members.start), FoldedPart::Active { number, follower });
                if let Some(follower) = follower {
                    assert_eq!(fold.part(follower), FoldedPart::Follower { leader: members.start });
                }
                seen.extend(members);
            }
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn cyclic_runs_are_ascending_and_merged() {
        assert_eq!(cyclic(3, 2, 7), run(3..5));
        assert_eq!(cyclic(5, 4, 7), [0..2, 5..7]);
        assert_eq!(cyclic(4, 7, 7), run(0..7));
        assert_eq!(cyclic(9, 1, 7), run(2..3));
        assert_eq!(runs(vec![4, 1, 2, 6, 5]), [1..3, 4..7]);
    }
}
