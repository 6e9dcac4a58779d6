//! What each rank does in a short collective: which entries it publishes and reads, and in which rounds. Pure.

use std::ops::Range;

use gapless_sync::mailboxes::{ENTRY_BYTES, KIND_MAX, Readers};

use super::long_plan::lcm;
use crate::schedule::Buffer;
use crate::{Call, Operation};

/// The most ranks that share a segment.
pub(super) const RANKS_MAX: usize = 256;

/// What a round costs, in cache lines that a rank fetches from others: it fetches some at once, and awaits a round.
const ROUND_LINES: usize = 16;

/// The local rank that allocates the segment.
pub(super) const MAKER: usize = 0;

/// The kind of an entry in the place of data, after a failure.
pub(super) const FAILED: u8 = KIND_MAX;

/// The kind of the first entry of a long collective.
pub(super) const LONG: u8 = FAILED - 1;

/// Bytes of a user's buffer: a range of its packed stream, which begins with `block`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) buffer: Buffer,
    pub(super) block: usize,
    pub(super) range: Range<usize>,
}

/// What an entry is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// What this rank contributes.
    Input,
    /// What was combined in the round before.
    Result,
}

/// What becomes of the blocks that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The blocks stay as they are, one after the other.
    Join,
    /// The blocks are combined, in the order of the ranks.
    Combine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) publish: Option<(Content, Readers)>,
    /// Whose entries are read; this rank's own contribution counts as its entry.
    pub(super) sources: Range<usize>,
    pub(super) entries: EntryLengths,
    pub(super) then: Then,
}

/// How long entries are, and which of their bytes are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryLengths {
    /// All entries have `len` bytes, and the same part of each is read.
    Alike { len: usize, part: Range<usize> },
    /// The whole of each entry is read. Joined, the entries of all ranks end here.
    Each { ends: Box<[usize]> },
}

impl EntryLengths {
    /// Whether all entries are as long, and the same part of each is read.
    pub(super) fn are_alike(&self) -> bool {
        matches!(self, EntryLengths::Alike { .. })
    }
}

/// One rank's part of a short collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShortPlan {
    pub(super) operation: Operation,
    /// What this rank contributes.
    pub(super) input: Option<Span>,
    pub(super) rounds: [Option<Round>; 2],
    /// Where the joined blocks, or what was combined, goes.
    pub(super) output: Option<Span>,
    /// Whether a rank that has ended knows that all have begun.
    pub(super) together: bool,
}

/// Whether all ranks do a call by the segment, if there is one: they agree, because they agree on what this depends on.
pub(super) fn fits(call: &Call<'_>, ranks: usize) -> bool {
    let Some(entry) = longest_entry(call, ranks) else { return false };
    (2..=RANKS_MAX).contains(&ranks) && entry <= ENTRY_BYTES as u64
}

/// Bytes of the longest entry of a call; `None` if it is not done by entries.
fn longest_entry(call: &Call<'_>, ranks: usize) -> Option<u64> {
    match call {
        Call::Scatter { len, .. }
        | Call::Alltoall { len, .. }
        | Call::ReduceScatterBlock { len, .. } => Some(len.saturating_mul(ranks as u64)),
        Call::Barrier
        | Call::Bcast { .. }
        | Call::Gather { .. }
        | Call::Allgather { .. }
        | Call::Reduce { .. }
        | Call::Allreduce { .. }
        | Call::Scan { .. }
        | Call::Exscan { .. }
        | Call::ReduceScatter { .. } => call.bytes(),
        Call::Allgatherv { .. } => call.evened()?.bytes(),
        _ => None,
    }
}

impl ShortPlan {
    /// What rank `me` of `ranks` does in a call that [`fits`], and was checked.
    pub(super) fn new(call: &Call<'_>, me: usize, ranks: usize) -> ShortPlan {
        let len = usize::try_from(call.bytes().unwrap_or(0)).unwrap_or(0);
        let all = len * ranks;
        let own = me * len..(me + 1) * len;
        let span = |buffer, block, range| Some(Span { buffer, block, range });
        let sent = |in_place: bool, bytes: usize| match in_place {
            true => span(Buffer::Recv, 0, 0..bytes),
            false => span(Buffer::Send, 0, 0..bytes),
        };
        let received = |bytes: usize| span(Buffer::Recv, 0, 0..bytes);
        let mine = |in_place: bool| match in_place {
            true => span(Buffer::Recv, me, own.clone()),
            false => span(Buffer::Send, 0, 0..len),
        };
        let plan = |input, rounds, output, together| ShortPlan {
            operation: call.operation(),
            input,
            rounds,
            output,
            together,
        };
        let one = |round: Round| [Some(round), None];
        let step = RoundMaker { me, ranks, len };
        match *call {
            Call::Bcast { root, .. } if me == root => {
                plan(received(len), one(step.writes(len, Readers::All)), None, false)
            }
            Call::Bcast { root, .. } => {
                plan(None, one(step.reads(root..root + 1, len, 0..len)), received(len), false)
            }
            Call::Scatter { root, in_place, .. } => {
                let mut round = step.reads(root..root + 1, all, own.clone());
                if me != root {
                    return plan(None, one(round), received(len), false);
                }
                round.publish = Some((Content::Input, Readers::All));
                let output = if in_place { None } else { received(len) };
                if output.is_none() {
                    round.sources = 0..0;
                }
                plan(sent(false, all), one(round), output, false)
            }
            Call::Gather { root, .. } if me != root => {
                plan(sent(false, len), one(step.writes(len, Readers::One(root))), None, false)
            }
            Call::Gather { in_place, .. } => {
                plan(mine(in_place), one(step.reads(0..ranks, len, 0..len)), received(all), false)
            }
            Call::Reduce { root, in_place, of, .. } => {
                let is_root = me == root;
                let rounds = step.slices(of.unit, Readers::One(root)).unwrap_or_else(|| {
                    one(match is_root {
                        true => step.reads(0..ranks, len, 0..len).combining(),
                        false => step.writes(len, Readers::One(root)),
                    })
                });
                let output = if is_root { received(len) } else { None };
                plan(sent(in_place && is_root, len), rounds, output, false)
            }
            Call::Allgather { in_place, .. } => {
                let round = step.exchanges(0..ranks, len, 0..len);
                plan(mine(in_place), one(round), received(all), true)
            }
            Call::Alltoall { in_place, .. } => {
                let round = step.exchanges(0..ranks, all, own.clone());
                plan(sent(in_place, all), one(round), received(all), true)
            }
            Call::ReduceScatterBlock { in_place, .. } => {
                let round = step.exchanges(0..ranks, all, own.clone()).combining();
                plan(sent(in_place, all), one(round), received(len), true)
            }
            Call::Allgatherv { lens, in_place } => {
                let ends = ends(lens);
                let (own, all) = (block(&ends, me), ends.last().copied().unwrap_or(0));
                let input = match in_place {
                    true => span(Buffer::Recv, me, own),
                    false => span(Buffer::Send, 0, 0..own.len()),
                };
                let round = step.exchanges(0..ranks, 0, 0..0);
                let round = Round { entries: EntryLengths::Each { ends }, ..round };
                plan(input, one(round), received(all), true)
            }
            Call::ReduceScatter { lens, in_place, .. } => {
                let own = block(&ends(lens), me);
                // All blocks together.
                let round = step.exchanges(0..ranks, len, own.clone()).combining();
                plan(sent(in_place, len), one(round), received(own.len()), true)
            }
            Call::Scan { in_place, .. } => {
                let round = step.exchanges(0..me + 1, len, 0..len).combining();
                plan(sent(in_place, len), one(round), received(len), false)
            }
            Call::Exscan { in_place, .. } => {
                let round = step.exchanges(0..me, len, 0..len).combining();
                let output = if me == 0 { None } else { received(len) };
                plan(sent(in_place, len), one(round), output, false)
            }
            Call::Allreduce { in_place, of, .. } => {
                let whole = || one(step.exchanges(0..ranks, len, 0..len).combining());
                let rounds = step.slices(of.unit, Readers::All).unwrap_or_else(whole);
                plan(sent(in_place, len), rounds, received(len), true)
            }
            // A barrier: entries without bytes.
            _ => plan(None, one(step.exchanges(0..ranks, 0, 0..0)), None, true),
        }
    }

    /// How many rounds it has.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.rounds.iter().flatten().count()
    }
}

/// Makes rounds.
struct RoundMaker {
    me: usize,
    ranks: usize,
    len: usize,
}

impl RoundMaker {
    fn writes(&self, entry: usize, readers: Readers) -> Round {
        let publish = Some((Content::Input, readers));
        Round { publish, ..self.reads(0..0, entry, 0..0) }
    }

    fn reads(&self, sources: Range<usize>, entry: usize, part: Range<usize>) -> Round {
        let entries = EntryLengths::Alike { len: entry, part };
        Round { publish: None, sources, entries, then: Then::Join }
    }

    fn exchanges(&self, sources: Range<usize>, entry: usize, part: Range<usize>) -> Round {
        let publish = Some((Content::Input, Readers::All));
        Round { publish, ..self.reads(sources, entry, part) }
    }

    /// Each rank combines a slice of all ranks' vectors, and the readers put these together; `None` if that fetches
    /// more than whole vectors.
    fn slices(&self, unit: u64, readers: Readers) -> Option<[Option<Round>; 2]> {
        let RoundMaker { me, ranks, len } = *self;
        let others = ranks - 1;
        // The same as below, of whole vectors that cost less than a round.
        if lines(len, len) * others <= ROUND_LINES {
            return None;
        }
        // All slices are as long; what lies behind the vector's end is not read.
        let slice = len.div_ceil(ranks).checked_next_multiple_of(grain(unit))?;
        let cut = |rank: usize| rank.saturating_mul(slice).min(len);
        let each = lines(slice, len) + lines(slice, slice);
        if slice > ENTRY_BYTES || lines(len, len) * others <= each * others + ROUND_LINES {
            return None;
        }
        let part = self.exchanges(0..ranks, len, cut(me)..cut(me + 1)).combining();
        let reads = readers == Readers::All || readers == Readers::One(me);
        let sources = if reads { 0..ranks } else { 0..0 };
        let publish = Some((Content::Result, readers));
        Some([Some(part), Some(Round { publish, ..self.reads(sources, slice, 0..slice) })])
    }
}

/// Slices are multiples of this: of elements, and of the words in which entries are read.
fn grain(unit: u64) -> usize {
    usize::try_from(lcm(unit.max(1), 8)).unwrap_or(usize::MAX)
}

/// Cache lines that are fetched for `bytes` bytes of an entry of `entry` bytes, and for its flag. Up to 56 bytes lie
/// beside the flag.
fn lines(bytes: usize, entry: usize) -> usize {
    if entry <= 56 { 1 } else { 1 + bytes.div_ceil(64) }
}

/// Where blocks of these lengths end, one behind the other.
fn ends(lens: &[u64]) -> Box<[usize]> {
    let ends = lens.iter().scan(0usize, |end, len| {
        *end = end.saturating_add(usize::try_from(*len).unwrap_or(usize::MAX));
        Some(*end)
    });
    ends.collect()
}

/// Where a rank's block lies.
fn block(ends: &[usize], rank: usize) -> Range<usize> {
    let end = |rank: usize| ends.get(rank).copied().unwrap_or(0);
    rank.checked_sub(1).map_or(0, end)..end(rank)
}

impl Round {
    /// Bytes of a rank's entry.
    #[inline]
    pub(super) fn entry_bytes(&self, rank: usize) -> usize {
        match &self.entries {
            EntryLengths::Alike { len, .. } => *len,
            EntryLengths::Each { ends } => block(ends, rank).len(),
        }
    }

    /// Which of them are read.
    #[inline]
    pub(super) fn part(&self, rank: usize) -> Range<usize> {
        match &self.entries {
            EntryLengths::Alike { part, .. } => part.clone(),
            EntryLengths::Each { ends } => 0..block(ends, rank).len(),
        }
    }

    /// Where the part of a rank's entry begins, if all are joined.
    #[inline]
    pub(super) fn joined_at(&self, rank: usize) -> usize {
        match &self.entries {
            EntryLengths::Alike { part, .. } => (rank - self.sources.start) * part.len(),
            EntryLengths::Each { ends } => block(ends, rank).start,
        }
    }

    fn combining(self) -> Round {
        Round { then: Then::Combine, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduction;

    const OF: Reduction = Reduction { unit: 4, commutative: true };

    fn calls(root: usize, len: u64) -> Vec<Call<'static>> {
        let in_place = false;
        vec![
            Call::Barrier,
            Call::Bcast { root, len },
            Call::Gather { root, len, in_place },
            Call::Scatter { root, len, in_place },
            Call::Allgather { len, in_place },
            Call::Alltoall { len, in_place },
            Call::Reduce { root, len, of: OF, in_place },
            Call::Allreduce { len, of: OF, in_place },
            Call::ReduceScatterBlock { len, of: OF, in_place },
            Call::Scan { len, of: OF, in_place },
            Call::Exscan { len, of: OF, in_place },
        ]
    }

    /// Some are 0.
    fn lens(ranks: usize) -> Vec<u64> {
        (0..ranks as u64).map(|rank| 4 * (rank * rank % 5)).collect()
    }

    fn listed(lens: &[u64]) -> Vec<Call<'_>> {
        let each = |in_place| {
            [Call::Allgatherv { lens, in_place }, Call::ReduceScatter { lens, of: OF, in_place }]
        };
        [false, true].into_iter().flat_map(each).collect()
    }

    /// What is read takes exactly the place of what is received, in the order of the ranks.
    #[test]
    fn joined_entries_lie_one_behind_the_other() {
        for ranks in 2..=33 {
            let lens = lens(ranks);
            for call in calls(0, 12).into_iter().chain(listed(&lens)) {
                for (me, plan) in (0..ranks).map(|me| (me, ShortPlan::new(&call, me, ranks))) {
                    let Some(last) = plan.rounds.iter().flatten().last() else { continue };
                    if last.then == Then::Combine || plan.output.is_none() {
                        continue;
                    }
                    let mut end = 0;
                    for source in last.sources.clone() {
                        assert_eq!(last.joined_at(source), end, "{call:?} rank {me}");
                        end += last.part(source).len();
                    }
                    let output = plan.output.unwrap().range;
                    // Slices of a result are rounded up.
                    assert!(end == output.end || plan.rounds[1].is_some(), "{call:?} rank {me}");
                }
            }
        }
    }

    /// Of every round: who reads an entry has a writer that means it for him, and both know its length. All ranks count
    /// as many rounds.
    #[test]
    fn every_entry_that_is_read_is_written_for_its_reader() {
        for ranks in 2..=33 {
            let lens = lens(ranks);
            let rooted = (0..ranks).flat_map(|root| calls(root, 12));
            for call in rooted.chain(listed(&lens)) {
                let plans: Vec<ShortPlan> =
                    (0..ranks).map(|me| ShortPlan::new(&call, me, ranks)).collect();
                for (me, plan) in plans.iter().enumerate() {
                    assert_eq!(plan.count(), plans[0].count(), "{call:?}");
                    for (number, round) in plan.rounds.iter().flatten().enumerate() {
                        for source in round.sources.clone() {
                            assert!(
                                round.part(source).end <= round.entry_bytes(source),
                                "{call:?}"
                            );
                        }
                        for source in round.sources.clone().filter(|source| *source != me) {
                            let there = plans[source].rounds[number].as_ref().unwrap();
                            let (_, readers) = there.publish.unwrap();
                            assert!(readers == Readers::All || readers == Readers::One(me));
                            assert_eq!(
                                there.entry_bytes(source),
                                round.entry_bytes(source),
                                "{call:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// A rank that has ended has heard of all, directly or through one that has.
    #[test]
    fn only_together_if_everybody_heard_of_everybody() {
        for ranks in 2..=33 {
            let lens = lens(ranks);
            for call in calls(1, 12).into_iter().chain(listed(&lens)) {
                let plans: Vec<ShortPlan> =
                    (0..ranks).map(|me| ShortPlan::new(&call, me, ranks)).collect();
                let mut heard: Vec<Vec<bool>> =
                    (0..ranks).map(|me| (0..ranks).map(|other| me == other).collect()).collect();
                for number in 0..plans[0].count() {
                    let before = heard.clone();
                    for (me, plan) in plans.iter().enumerate() {
                        for source in plan.rounds[number].as_ref().unwrap().sources.clone() {
                            for rank in 0..ranks {
                                heard[me][rank] |= before[source][rank];
                            }
                        }
                    }
                }
                let all = heard.iter().flatten().all(|heard| *heard);
                assert!(all || plans.iter().all(|plan| !plan.together), "{call:?} {ranks}");
            }
        }
    }

    /// Of 8 vectors of 1 KiB a rank fetches an eighth each, and the slices of the result; of two, both are as quick.
    #[test]
    fn slices_are_combined_where_that_fetches_less() {
        let sliced = |ranks: usize, len: u64| {
            let call = Call::Allreduce { len, of: OF, in_place: false };
            ShortPlan::new(&call, 0, ranks).rounds.iter().flatten().any(|round| {
                matches!(round.publish, Some((Content::Result, _))) && !round.sources.is_empty()
            })
        };
        assert!(sliced(8, 1024) && sliced(16, 1024) && sliced(33, 256));
        assert!(!sliced(2, 1024) && !sliced(8, 8) && !sliced(33, 32));
    }

    #[test]
    fn what_is_long_or_of_unlike_lengths_goes_another_way() {
        let in_place = false;
        assert!(fits(&Call::Bcast { root: 0, len: 1024 }, 2));
        assert!(!fits(&Call::Bcast { root: 0, len: 1025 }, 2));
        assert!(fits(&Call::Alltoall { len: 512, in_place }, 2));
        assert!(!fits(&Call::Alltoall { len: 512, in_place }, 3));
        assert!(!fits(&Call::Alltoall { len: u64::MAX, in_place }, 3));
        assert!(!fits(&Call::Barrier, 1) && fits(&Call::Barrier, RANKS_MAX));
        assert!(!fits(&Call::Barrier, RANKS_MAX + 1));
        assert!(fits(&Call::Allgatherv { lens: &[1024, 0, 1], in_place }, 3));
        assert!(!fits(&Call::Allgatherv { lens: &[0, 1025, 0], in_place }, 3));
        assert!(fits(&Call::ReduceScatter { lens: &[1000, 0, 24], of: OF, in_place }, 3));
        assert!(!fits(&Call::ReduceScatter { lens: &[1000, 0, 28], of: OF, in_place }, 3));
        assert!(!fits(&Call::ReduceScatter { lens: &[u64::MAX, 8], of: OF, in_place }, 2));
        assert!(!fits(&Call::Alltoallv { send: &[1, 1], recv: &[1, 1], in_place }, 2));
    }

    #[test]
    fn kinds_name_operations() {
        for call in calls(0, 1) {
            assert_eq!(Operation::from_code(call.operation().code()), Some(call.operation()));
        }
        assert!(Operation::ALL.iter().all(|known| (1..LONG).contains(&known.code())));
        assert_eq!([0, FAILED].map(Operation::from_code), [None; 2]);
    }
}
