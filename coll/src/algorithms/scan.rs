//! Prefix reductions: along a chain in segments, or in `log2(n)` rounds. Both keep the order of the ranks.
use crate::area::{Area, segments};
use crate::builder::Builder;
use crate::team::Team;

/// The result includes the rank's own input (`MPI_Scan`), or only those before (`MPI_Exscan`; rank 0 has none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    Inclusive,
    Exclusive,
}

/// Each rank gets the prefix of those before it from its left neighbour, and sends it on with its own input.
pub(crate) fn chain(
    b: &mut Builder,
    team: &Team,
    prefix: Prefix,
    (input, result): (Area, Area),
    segment: u64,
) {
    let is_last = team.me + 1 == team.len();
    let cuts: Vec<_> = segments(input.len, b.unit(), segment).collect();
    // Two buffers each for what comes and what goes on, so that neither waits for the other.
    let room = cuts.first().map_or(0, |longest| longest.end);
    let buffers: Vec<_> = match team.me {
        0 => Vec::new(),
        _ => (0..cuts.len().min(2)).map(|_| (b.scratch(room), b.scratch(room))).collect(),
    };
    for (turn, range) in cuts.into_iter().enumerate() {
        let part = 0..range.end - range.start;
        let (own, result) = (input.cut(range.clone()), result.cut(range));
        if team.me == 0 {
            if prefix == Prefix::Inclusive {
                b.copy(own, result);
            }
            if !is_last {
                b.send(team.rank(1), own);
            }
            continue;
        }
        let left = team.rank(team.me - 1);
        let (before, sum) = buffers[turn % 2];
        let (before, sum) = (before.cut(part.clone()), sum.cut(part));
        let sum = match prefix {
            Prefix::Inclusive => {
                b.receive(left, before);
                b.reduce(&[before, own], result);
                result
            }
            Prefix::Exclusive if is_last => {
                b.receive(left, result);
                continue;
            }
            Prefix::Exclusive => {
                b.receive(left, before);
                b.reduce(&[before, own], sum);
                b.copy(before, result);
                sum
            }
        };
        if !is_last {
            b.send(team.rank(team.me + 1), sum);
        }
    }
}

/// Vectors that rounds use by turns.
#[derive(Default)]
struct Turns([Option<Area>; 2]);

impl Turns {
    fn next(&mut self, b: &mut Builder, len: u64) -> Area {
        self.0.swap(0, 1);
        *self.0[0].get_or_insert_with(|| b.scratch(len))
    }
}

/// In round `i` each rank sends what it has of the `2^i` ranks up to itself `2^i` ranks on.
pub(crate) fn doubling(b: &mut Builder, team: &Team, prefix: Prefix, input: Area, result: Area) {
    let (me, n) = (team.me, team.len());
    // The sum of those up to this rank, and of those before it.
    let (mut upto, mut before) = (input, None);
    let [mut comes, mut upto_room, mut before_room]: [Turns; 3] = Default::default();
    let mut distance = 1;
    while distance < n {
        let to = (me + distance < n).then(|| team.rank(me + distance));
        let from = (me >= distance).then(|| team.rank(me - distance));
        let last_round = me < 2 * distance;
        if let Some(to) = to {
            b.send(to, upto);
        }
        if let Some(from) = from {
            let came = comes.next(b, input.len);
            b.receive(from, came);
            let sends_on = me + 2 * distance < n;
            if prefix == Prefix::Exclusive {
                before = Some(match before {
                    None => came,
                    Some(some) => {
                        let sum = before_room.next(b, input.len);
                        b.reduce(&[came, some], sum);
                        sum
                    }
                });
            }
            if sends_on || prefix == Prefix::Inclusive {
                let into_result = prefix == Prefix::Inclusive && last_round;
                let sum = if into_result { result } else { upto_room.next(b, input.len) };
                b.reduce(&[came, upto], sum);
                upto = sum;
            }
        }
        distance *= 2;
    }
    match prefix {
        Prefix::Inclusive => b.copy(upto, result),
        Prefix::Exclusive => before.into_iter().for_each(|before| b.copy(before, result)),
    }
}
