//! All-reduce by exchange with partners: of whole vectors (recursive doubling), or of halves (Rabenseifner).
//!
//! Members beyond a power of two are folded onto neighbours. Operands are combined in the order of the members, and
//! results are equal at all members to the last bit: both partners combine the same two values in the same order.
use std::ops::Range;

use crate::area::Area;
use crate::builder::Builder;
use crate::team::{Fold, FoldedPart, Team};

/// With whom a number exchanges in a round: they differ in one binary digit; the nearest first.
fn partner(number: usize, round: u32) -> usize {
    number ^ (1 << round)
}

/// Whether a number comes second of the two partners of a round.
fn is_second(number: usize, round: u32) -> bool {
    number >> round & 1 == 1
}

/// What a rank that is folded away or that speaks for another does first. Gives the number of an active one, and where
/// its value is.
fn fold_in(
    b: &mut Builder,
    team: &Team,
    fold: Fold,
    input: Area,
    sum: Area,
) -> Option<(usize, Area)> {
    match fold.part(team.me) {
        FoldedPart::Follower { leader } => {
            b.send(team.rank(leader), input);
            None
        }
        FoldedPart::Active { number, follower: None } => Some((number, input)),
        FoldedPart::Active { number, follower: Some(follower) } => {
            let came = b.scratch(input.len);
            b.receive(team.rank(follower), came);
            b.reduce(&[input, came], sum);
            Some((number, sum))
        }
    }
}

fn fold_out(b: &mut Builder, team: &Team, fold: Fold, result: Area) {
    match fold.part(team.me) {
        FoldedPart::Follower { leader } => b.receive(team.rank(leader), result),
        FoldedPart::Active { follower: Some(follower), .. } => b.send(team.rank(follower), result),
        FoldedPart::Active { follower: None, .. } => {}
    }
}

/// Recursive doubling: partners exchange all they have. `result` may be `input`.
pub(crate) fn doubling(b: &mut Builder, team: &Team, input: Area, result: Area) {
    let fold = Fold::new(team.len());
    let rounds = fold.rounds();
    if let Some((number, mut value)) = fold_in(b, team, fold, input, result) {
        let room = |b: &mut Builder, after: u32| {
            if rounds > after { b.scratch(input.len) } else { result }
        };
        let (other, came) = (room(b, 1), [room(b, 0), room(b, 1)]);
        for round in 0..rounds {
            let came = came[round as usize % 2];
            let peer = team.rank(fold.member(partner(number, round)));
            b.send(peer, value);
            b.receive(peer, came);
            // The sum goes where nothing is being sent from, and the last one to the result.
            let sum = if (rounds - round) % 2 == 1 { result } else { other };
            if is_second(number, round) {
                b.reduce(&[came, value], sum);
            } else {
                b.reduce(&[value, came], sum);
            }
            value = sum;
        }
        b.copy(value, result);
    }
    fold_out(b, team, fold, result);
}

/// The halves of a range of whole elements.
fn halve(range: &Range<u64>, unit: u64, second: bool) -> Range<u64> {
    let middle = range.start + ((range.end - range.start) / unit).div_ceil(2) * unit;
    if second { middle..range.end } else { range.start..middle }
}

/// What an active member has after halving: the range that is its own after each number of rounds, the longest first.
pub(crate) struct Halved {
    fold: Fold,
    number: Option<usize>,
    ranges: Vec<Range<u64>>,
}

/// Recursive halving: partners exchange the halves that the other keeps; a range of `sum` is complete in the end.
/// `sum` may be `input`.
pub(crate) fn halving(b: &mut Builder, team: &Team, input: Area, sum: Area) -> Halved {
    let fold = Fold::new(team.len());
    let rounds = fold.rounds();
    let mut ranges: Vec<_> = std::iter::once(0..input.len).collect();
    let Some((number, mut value)) = fold_in(b, team, fold, input, sum) else {
        return Halved { fold, number: None, ranges };
    };
    for round in 0..rounds {
        let peer = team.rank(fold.member(partner(number, round)));
        let second = is_second(number, round);
        let range = &ranges[ranges.len() - 1];
        let (give, keep) = (halve(range, b.unit(), !second), halve(range, b.unit(), second));
        let came = b.scratch(keep.end - keep.start);
        b.send(peer, value.cut(give));
        b.receive(peer, came);
        let (own, sum) = (value.cut(keep.clone()), sum.cut(keep.clone()));
        if second {
            b.reduce(&[came, own], sum);
        } else {
            b.reduce(&[own, came], sum);
        }
        value = Area { buffer: sum.buffer, at: sum.at - keep.start, len: value.len };
        ranges.push(keep);
    }
    if rounds == 0 {
        b.copy(value, sum);
    }
    Halved { fold, number: Some(number), ranges }
}

/// Rabenseifner's all-reduce: halving, and doubling of the ranges. `result` may be `input`.
pub(crate) fn allreduce(b: &mut Builder, team: &Team, input: Area, result: Area) {
    let Halved { fold, number, ranges } = halving(b, team, input, result);
    if let Some(number) = number {
        for round in (0..fold.rounds()).rev() {
            let peer = team.rank(fold.member(partner(number, round)));
            let range = &ranges[round as usize];
            let second = is_second(number, round);
            b.send(peer, result.cut(halve(range, b.unit(), second)));
            b.receive(peer, result.cut(halve(range, b.unit(), !second)));
        }
    }
    fold_out(b, team, fold, result);
}

/// Rabenseifner's reduction: halving, and ranges gathered towards the root. `sum` has the length
/// of the input; at the root it becomes the result and may be the input.
pub(crate) fn reduce(b: &mut Builder, team: &Team, root: usize, input: Area, sum: Area) {
    let Halved { fold, number, ranges } = halving(b, team, input, sum);
    // The root's leader collects, if the root is folded away.
    let (target, follows) = match fold.part(root) {
        FoldedPart::Active { number, .. } => (number, false),
        FoldedPart::Follower { leader } => (leader / 2, true),
    };
    if let Some(number) = number {
        for round in (0..fold.rounds()).rev() {
            let peer = team.rank(fold.member(partner(number, round)));
            let range = &ranges[round as usize];
            let second = is_second(number, round);
            if second == (is_second(target, round)) {
                b.receive(peer, sum.cut(halve(range, b.unit(), !second)));
            } else {
                b.send(peer, sum.cut(halve(range, b.unit(), second)));
                break;
            }
        }
    }
    if follows && number == Some(target) {
        b.send(team.rank(root), sum);
    }
    if follows && team.me == root {
        b.receive(team.rank(fold.member(target)), sum);
    }
}

/// A reduce-scatter that keeps the order of the members: halving of the input with its blocks permuted so that each
/// active member's end up as its own range. `out` must not be part of the input.
///
/// The halves of `cuts` are of blocks here, not of bytes.
pub(crate) fn reduce_scatter(
    b: &mut Builder,
    team: &Team,
    input: Area,
    cuts: &crate::area::Cuts,
    out: Area,
) {
    let fold = Fold::new(team.len());
    let rounds = fold.rounds();
    let own = cuts.range(team.me..team.me + 1);
    let (number, follower) = match fold.part(team.me) {
        FoldedPart::Follower { leader } => {
            b.send(team.rank(leader), input);
            return b.receive(team.rank(leader), out);
        }
        FoldedPart::Active { number, follower } => (number, follower),
    };
    // The number whose blocks stand at each place: digits from the last to the first.
    let at_place = |place: usize| {
        if rounds == 0 { 0 } else { place.reverse_bits() >> (usize::BITS - rounds) }
    };
    let of_place = |place: usize| cuts.range(fold.members(at_place(place)..at_place(place) + 1));
    let lens: Vec<_> =
        (0..fold.active).map(of_place).map(|range| range.end - range.start).collect();
    let places = crate::area::Cuts::each(&lens);
    let permute = |b: &mut Builder, whole: Area| {
        let packed = b.scratch(whole.len);
        let pieces: Vec<_> = (0..fold.active).map(|place| whole.cut(of_place(place))).collect();
        b.pack(&pieces, packed);
        packed
    };
    let value = permute(b, input);
    if let Some(follower) = follower {
        let came = b.scratch(input.len);
        b.receive(team.rank(follower), came);
        let came = permute(b, came);
        b.reduce(&[value, came], value);
    }
    let mut range = 0..fold.active;
    for round in 0..rounds {
        let peer = team.rank(fold.member(partner(number, round)));
        let (second, middle) = (is_second(number, round), range.start + range.len() / 2);
        let (low, high) = (range.start..middle, middle..range.end);
        let (give, keep) = if second { (low, high) } else { (high, low) };
        let kept = value.cut(places.range(keep.clone()));
        let came = b.scratch(kept.len);
        b.send(peer, value.cut(places.range(give)));
        b.receive(peer, came);
        let order = if second { [came, kept] } else { [kept, came] };
        b.reduce(&order, kept);
        range = keep;
    }
    let mine = value.cut(places.range(range));
    let len = own.end - own.start;
    b.copy(mine.cut(0..len), out);
    if let Some(follower) = follower {
        b.send(team.rank(follower), mine.cut(len..mine.len));
    }
}
