//! Patterns of exchange, and what is done by them: gathering blocks at all members and, run backwards, reducing them.
//!
//! A pattern says for each round which blocks a member sends to whom and which it gets from whom. In the end each has
//! all blocks, each exactly once. Backwards, partial results go against the arrows: whoever would get a block sends
//! its part of it, so that in the end each member has its own block of all: a reduce-scatter. So ring, Bruck, recursive
//! doubling (backwards: recursive halving) and PAT are written once each.
use crate::algorithm::Exchange;
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::team::{Fold, FoldedPart, Runs, Team, cyclic, runs};

/// One round of a member: to whom which blocks, from whom which blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) to: Option<(usize, Runs)>,
    pub(crate) from: Option<(usize, Runs)>,
}

impl Round {
    fn to(peer: usize, blocks: Runs) -> Self {
        Self { to: Some((peer, blocks)), from: None }
    }

    fn from(peer: usize, blocks: Runs) -> Self {
        Self { to: None, from: Some((peer, blocks)) }
    }

    fn both(to: usize, out: Runs, from: usize, into: Runs) -> Self {
        Self { to: Some((to, out)), from: Some((from, into)) }
    }
}

impl Exchange {
    /// Whether its parameter has a meaning.
    pub(crate) fn is_sound(self) -> bool {
        self != Self::Pat { blocks: 0 }
    }

    /// The rounds of member `me` of `n`.
    pub(crate) fn rounds(self, me: usize, n: usize) -> Vec<Round> {
        match self {
            _ if n == 1 => Vec::new(),
            Self::Direct => (1..n)
                .map(|distance| {
                    let (to, from) = ((me + distance) % n, (me + n - distance) % n);
                    Round::both(to, cyclic(me, 1, n), from, cyclic(from, 1, n))
                })
                .collect(),
            Self::Ring => (1..n)
                .map(|round| {
                    let (out, into) = (me + n + 1 - round, me + n - round);
                    Round::both(
                        (me + 1) % n,
                        cyclic(out, 1, n),
                        (me + n - 1) % n,
                        cyclic(into, 1, n),
                    )
                })
                .collect(),
            Self::Bruck => (0..usize::BITS)
                .map(|round| 1 << round)
                .take_while(|held| *held < n)
                .map(|held| {
                    let (to, from, count) =
                        ((me + n - held) % n, (me + held) % n, held.min(n - held));
                    Round::both(to, cyclic(me, count, n), from, cyclic(from, count, n))
                })
                .collect(),
            Self::Doubling => doubling(me, n),
            Self::Pat { blocks } => pat(me, n, blocks),
        }
    }
}

/// Members exchange all they have with a partner, the nearest first.
fn doubling(me: usize, n: usize) -> Vec<Round> {
    let fold = Fold::new(n);
    let all_but = |member: usize| runs((0..n).filter(|other| *other != member).collect());
    let (number, follower) = match fold.part(me) {
        FoldedPart::Active { number, follower } => (number, follower),
        FoldedPart::Follower { leader } => {
            return vec![Round::to(leader, cyclic(me, 1, n)), Round::from(leader, all_but(me))];
        }
    };
    // What a number holds after the first `done` rounds.
    let held = |number: usize, done: u32| {
        let first = number >> done << done;
        runs(fold.members(first..first + (1 << done)).collect())
    };
    let first = follower.map(|follower| Round::from(follower, cyclic(follower, 1, n)));
    let rounds = (0..fold.rounds()).map(|round| {
        let other = number ^ (1 << round);
        let peer = fold.member(other);
        Round::both(peer, held(number, round), peer, held(other, round))
    });
    let last = follower.map(|follower| Round::to(follower, all_but(follower)));
    first.into_iter().chain(rounds).chain(last).collect()
}

/// Each block goes down a binomial tree of distances from its owner, the same for all owners. Edges of `blocks` trees
/// whose distances differ by a multiple of `stride` go in one message.
///
/// First the trees are begun: edges of at least `stride`, the longest first. Then the rest of each tree, which begins
/// at each multiple of `stride`, is walked depth first.
fn pat(me: usize, n: usize, blocks: usize) -> Vec<Round> {
    let size = n.next_power_of_two();
    let most = (1 << blocks.ilog2()).min(size / 2).max(1);
    let stride = size / most;
    let round = |distances: Vec<usize>, edge: usize| {
        let there: Vec<_> = distances.into_iter().filter(|distance| distance + edge < n).collect();
        (!there.is_empty()).then(|| {
            let owners =
                |member: usize| runs(there.iter().map(|it| (member + n - it) % n).collect());
            let from = (me + n - edge) % n;
            Round::both((me + edge) % n, owners(me), from, owners(from))
        })
    };
    let mut rounds = Vec::new();
    let mut edge = size / 2;
    while edge >= stride {
        rounds.extend(round((0..size).step_by(2 * edge).collect(), edge));
        edge /= 2;
    }
    let mut open = vec![(0, stride)];
    while let Some((start, reach)) = open.pop() {
        // Of this node's edges the longest is walked first: its subtree, then the rest of the node.
        if reach < 2 {
            continue;
        }
        let edge = reach / 2;
        rounds.extend(round((start..size).step_by(stride).collect(), edge));
        open.push((start, edge));
        open.push((start + edge, edge));
    }
    rounds
}

/// Each member has its block of `area`, cut at `cuts` by position; in the end each has all.
pub(crate) fn allgather(b: &mut Builder, team: &Team, how: Exchange, area: Area, cuts: &Cuts) {
    gather_at(b, team, how, area, cuts, &|_| true);
}

/// As [`allgather`], but position 0 has all blocks to begin with: nobody sends it any, and it only reads `area`.
pub(crate) fn allgather_from_full(
    b: &mut Builder,
    team: &Team,
    how: Exchange,
    area: Area,
    cuts: &Cuts,
) {
    gather_at(b, team, how, area, cuts, &|position| position != 0);
}

/// Messages to members for which `gets` is false are left out, at both ends.
fn gather_at(
    b: &mut Builder,
    team: &Team,
    how: Exchange,
    area: Area,
    cuts: &Cuts,
    gets: &dyn Fn(usize) -> bool,
) {
    let pieces = |blocks: &Runs| -> Vec<_> {
        blocks.iter().map(|run| area.cut(cuts.range(run.clone()))).collect()
    };
    for round in how.rounds(team.me, team.len()) {
        if let Some((to, blocks)) = round.to.filter(|(to, _)| gets(*to)) {
            b.send_pieces(team.rank(to), &pieces(&blocks));
        }
        if let Some((from, blocks)) = round.from.filter(|_| gets(team.me)) {
            b.receive_pieces(team.rank(from), &pieces(&blocks));
        }
    }
}

/// Each member has an input of all blocks; in the end `out` is the combination of all members' block of its position.
///
/// The operation must be commutative, unless `how` is [`Exchange::Direct`]: that combines in the order of positions.
/// `out` must not be part of the input.
pub(crate) fn reduce_scatter(
    b: &mut Builder,
    team: &Team,
    how: Exchange,
    input: Area,
    cuts: &Cuts,
    out: Area,
) {
    if how == Exchange::Direct {
        return reduce_direct(b, team, input, cuts, out);
    }
    if how == Exchange::Ring && team.len() > 1 {
        return reduce_ring(b, team, input, cuts, out);
    }
    let mut partial =
        Partial { me: team.me, input, cuts, out, sums: None, begun: vec![false; cuts.blocks()] };
    let rounds: Vec<_> = how.rounds(team.me, team.len()).into_iter().rev().collect();
    let rooms = rooms(b, &rounds, cuts);
    for (turn, round) in rounds.into_iter().enumerate() {
        if let Some((from, blocks)) = round.from {
            let pieces: Vec<_> = blocks.iter().map(|run| partial.whole(b, run.clone())).collect();
            b.send_pieces(team.rank(from), &pieces);
        }
        if let Some((to, blocks)) = round.to {
            let ranges: Vec<_> = blocks.iter().map(|run| cuts.range(run.clone())).collect();
            let room = rooms[turn % 2];
            let mut at = 0;
            let mut next = |len| {
                at += len;
                room.cut(at - len..at)
            };
            let came: Vec<_> = ranges.iter().map(|range| next(range.end - range.start)).collect();
            b.receive_pieces(team.rank(to), &came);
            for (run, came) in blocks.iter().zip(came) {
                partial.add(b, run.clone(), came);
            }
        }
    }
    if !partial.begun[team.me] {
        b.copy(input.cut(cuts.range(team.me..team.me + 1)), out);
    }
}

/// Two areas that rounds receive into by turns: so one is filled while the other is combined.
fn rooms(b: &mut Builder, rounds: &[Round], cuts: &Cuts) -> [Area; 2] {
    let mut longest = [0; 2];
    for (turn, round) in rounds.iter().enumerate() {
        let runs = round.to.iter().flat_map(|(_, blocks)| blocks);
        let len: u64 = runs.map(|run| cuts.start(run.end) - cuts.start(run.start)).sum();
        longest[turn % 2] = len.max(longest[turn % 2]);
    }
    longest.map(|len| b.scratch(len))
}

/// Partial results go round the ring backwards: a member adds its block to what comes, where it came, and sends it on.
fn reduce_ring(b: &mut Builder, team: &Team, input: Area, cuts: &Cuts, out: Area) {
    let (me, n) = (team.me, team.len());
    let (next, before) = (team.rank((me + 1) % n), team.rank((me + n - 1) % n));
    let block = |distance: usize| cuts.range((me + distance) % n..(me + distance) % n + 1);
    let longest = (0..n).map(|block| cuts.len(block)).max().unwrap_or(0);
    let rooms = [b.scratch(longest), b.scratch(if n > 2 { longest } else { 0 })];
    let mut partial = input.cut(block(1));
    for distance in 2..=n {
        b.send(before, partial);
        let own = input.cut(block(distance));
        let came = rooms[distance % 2].cut(0..own.len);
        b.receive(next, came);
        partial = if distance == n { out } else { came };
        b.reduce(&[own, came], partial);
    }
}

/// A member's partial results: of a block that it has added nothing to, its input; of its own, `out`.
struct Partial<'a> {
    me: usize,
    input: Area,
    cuts: &'a Cuts,
    out: Area,
    sums: Option<Area>,
    begun: Vec<bool>,
}

impl Partial<'_> {
    fn sums(&mut self, b: &mut Builder) -> Area {
        *self.sums.get_or_insert_with(|| b.scratch(self.input.len))
    }

    /// The partial results of consecutive blocks, as one area.
    fn whole(&mut self, b: &mut Builder, run: std::ops::Range<usize>) -> Area {
        let range = self.cuts.range(run.clone());
        if run.clone().all(|block| !self.begun[block]) {
            return self.input.cut(range);
        }
        let sums = self.sums(b);
        for block in run {
            if !self.begun[block] {
                let range = self.cuts.range(block..block + 1);
                b.copy(self.input.cut(range.clone()), sums.cut(range));
                self.begun[block] = true;
            }
        }
        sums.cut(range)
    }

    /// Adds what came for consecutive blocks, in as few steps as their places allow.
    fn add(&mut self, b: &mut Builder, run: std::ops::Range<usize>, came: Area) {
        let first = self.cuts.start(run.start);
        let mut at = run.start;
        while at < run.end {
            let alike = |block: &usize| {
                *block < run.end
                    && (*block == self.me) == (at == self.me)
                    && self.begun[*block] == self.begun[at]
            };
            let end = (at..run.end).take_while(alike).count() + at;
            let range = self.cuts.range(at..end);
            let sum = if at == self.me { self.out } else { self.sums(b).cut(range.clone()) };
            let own = if self.begun[at] { sum } else { self.input.cut(range.clone()) };
            b.reduce(&[own, came.cut(range.start - first..range.end - first)], sum);
            self.begun[at..end].fill(true);
            at = end;
        }
    }
}

fn reduce_direct(b: &mut Builder, team: &Team, input: Area, cuts: &Cuts, out: Area) {
    let n = team.len();
    let mut sources: Vec<_> = (0..n).map(|_| input.cut(cuts.range(team.me..team.me + 1))).collect();
    for distance in 1..n {
        let (to, from) = ((team.me + distance) % n, (team.me + n - distance) % n);
        b.send(team.rank(to), input.cut(cuts.range(to..to + 1)));
        sources[from] = b.scratch(out.len);
        b.receive(team.rank(from), sources[from]);
    }
    b.reduce(&sources, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(runs: &Runs) -> usize {
        runs.iter().map(ExactSizeIterator::len).sum()
    }

    /// What comes is added where it came, and room for it is used again.
    #[test]
    fn a_reduce_scatter_needs_little_room() {
        use crate::algorithm::{Algorithm, Method};
        use crate::build::build;
        use crate::call::{Call, Reduction};
        use crate::locality::Locality;
        let (n, len) = (16, 1 << 20);
        let of = Reduction { unit: 8, commutative: true };
        let call = Call::ReduceScatterBlock { len, of, in_place: false };
        for (how, blocks) in
            [(Exchange::Ring, 2), (Exchange::Pat { blocks: 1 }, 18), (Exchange::Bruck, 28)]
        {
            let algorithm = Algorithm::new(Method::Exchange(how));
            let built = build(3, &Locality::flat(n), &call, &algorithm).expect("a schedule");
            assert!(built.scratch() <= blocks * len, "{how}: {} bytes", built.scratch());
        }
    }

    /// Logarithmic patterns take as few rounds as can be, and PAT keeps to its limit.
    #[test]
    fn rounds_and_blocks_are_as_promised() {
        for n in 2..200usize {
            let log = n.next_power_of_two().ilog2() as usize;
            for me in [0, 1, n / 2, n - 1] {
                let rounds = |how: Exchange| how.rounds(me, n);
                assert_eq!(rounds(Exchange::Bruck).len(), log);
                assert_eq!(rounds(Exchange::Pat { blocks: n }).len(), log);
                assert_eq!(rounds(Exchange::Pat { blocks: 1 }).len(), n - 1);
                let folded = if n.is_power_of_two() { 0 } else { 1 };
                assert!(rounds(Exchange::Doubling).len() <= log + folded);
                for most in [1, 2, 3, 8, 64] {
                    for round in rounds(Exchange::Pat { blocks: most }) {
                        let ends = [round.to, round.from].into_iter().flatten();
                        assert!(ends.into_iter().all(|(_, runs)| blocks(&runs) <= most));
                    }
                }
            }
        }
    }
}
