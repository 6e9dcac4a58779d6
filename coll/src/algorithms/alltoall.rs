//! Everybody has something for everybody: alltoall, alltoallv and alltoallw.
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::team::Team;

/// The send and receive buffers, and their blocks by position. Position `p` sends block `q` to position `q`.
pub(crate) struct Blocks<'a> {
    pub(crate) send: Area,
    pub(crate) send_cuts: &'a Cuts,
    pub(crate) recv: Area,
    pub(crate) recv_cuts: &'a Cuts,
}

impl Blocks<'_> {
    fn out(&self, to: usize) -> Area {
        self.send.cut(self.send_cuts.range(to..to + 1))
    }

    fn into(&self, from: usize) -> Area {
        self.recv.cut(self.recv_cuts.range(from..from + 1))
    }
}

/// All messages at once, beginning with the next neighbours; with `at_once`, so many rounds at a time (pairwise: 1).
///
/// What is sent must not be what is received into: in place, it is copied away before.
pub(crate) fn exchange(b: &mut Builder, team: &Team, blocks: &Blocks<'_>, at_once: Option<usize>) {
    let (me, n) = (team.me, team.len());
    b.copy(blocks.out(me), blocks.into(me));
    let mut rounds: Vec<std::ops::Range<usize>> = Vec::new();
    for distance in 1..n {
        let (to, from) = ((me + distance) % n, (me + n - distance) % n);
        let awaited = at_once.and_then(|most| rounds.len().checked_sub(most));
        b.set_gate(awaited.map_or(0..0, |round| rounds[round].clone()));
        let start = b.len();
        b.receive(team.rank(from), blocks.into(from));
        b.send(team.rank(to), blocks.out(to));
        // A round without bytes is over when the one before is.
        let end = b.len();
        let before = rounds.last().cloned().unwrap_or(0..0);
        rounds.push(if start < end { start..end } else { before });
    }
    b.set_gate(0..0);
}

/// Bruck's algorithm for short blocks of one length: `log2(n)` messages, each with up to half of the blocks.
///
/// Blocks are kept by how far they have to go; round `i` moves those whose distance has digit `i`, by `2^i`. Rounds use
/// the same memory by turns.
pub(crate) fn bruck(b: &mut Builder, team: &Team, blocks: &Blocks<'_>, len: u64) {
    let (me, n) = (team.me, team.len());
    if len == 0 {
        return;
    }
    let by_distance = b.scratch(n as u64 * len);
    let held =
        |distance: usize| by_distance.cut(distance as u64 * len..(distance as u64 + 1) * len);
    b.copy_all((1..n).map(|distance| (blocks.out((me + distance) % n), held(distance))));
    b.copy(blocks.out(me), blocks.into(me));
    // Of the numbers below `n`, no more than half have some digit.
    let half = n as u64 / 2 * len;
    let turns = if n > 2 { 2 } else { 1 };
    let rooms: Vec<_> = (0..turns).map(|_| (b.scratch(half), b.scratch(half))).collect();
    let (mut step, mut turn) = (1, 0);
    while step < n {
        let moved: Vec<_> = (1..n).filter(|distance| distance & step != 0).collect();
        let total = moved.len() as u64 * len;
        let (out, into) = rooms[turn % rooms.len()];
        let (out, into) = (out.cut(0..total), into.cut(0..total));
        let pieces: Vec<_> = moved.iter().map(|distance| held(*distance)).collect();
        b.pack(&pieces, out);
        b.send(team.rank((me + step) % n), out);
        b.receive(team.rank((me + n - step) % n), into);
        b.copy_all(moved.into_iter().enumerate().map(|(index, distance)| {
            let came = into.cut(index as u64 * len..(index as u64 + 1) * len);
            // After its highest digit a block has arrived.
            let arrived = distance < 2 * step;
            let place = if arrived { blocks.into((me + n - distance) % n) } else { held(distance) };
            (came, place)
        }));
        (step, turn) = (2 * step, turn + 1);
    }
}
