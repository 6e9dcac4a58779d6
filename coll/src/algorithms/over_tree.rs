//! Broadcast, reduction, gathering and scattering over a tree, whatever its shape.
//!
//! With segments, chains are pipelines: a node sends a segment on while it receives the next.
use std::ops::Range;

use crate::area::{Area, Cuts, segments};
use crate::builder::Builder;
use crate::team::Team;
use crate::tree::{Node, Tree};

/// Position 0 has the bytes of `area`; in the end all members have.
pub(crate) fn bcast(b: &mut Builder, team: &Team, tree: Tree, area: Area, segment: u64) {
    let node = tree.node(team.me, team.len());
    for range in segments(area.len, b.unit(), segment) {
        let part = area.cut(range);
        if let Some(parent) = node.parent {
            b.receive(team.rank(parent), part);
        }
        for child in &node.children {
            b.send(team.rank(child.start), part);
        }
    }
}

/// Combines the members' inputs, in the order of their positions if the tree is ordered. `result` is position 0's and
/// may be its input.
pub(crate) fn reduce(
    b: &mut Builder,
    team: &Team,
    tree: Tree,
    input: Area,
    result: Option<Area>,
    segment: u64,
) {
    let node = tree.node(team.me, team.len());
    let mut children: Vec<_> = node.children.iter().map(|child| child.start).collect();
    children.sort_unstable();
    let cuts: Vec<_> = segments(input.len, b.unit(), segment).collect();
    let longest = cuts.first().map_or(0, |range| range.end);
    // Two buffers per child, so that one is filled while the other is combined.
    let buffers: Vec<Vec<Area>> = (0..cuts.len().min(2))
        .map(|_| children.iter().map(|_| b.scratch(longest)).collect())
        .collect();
    let sums: Vec<_> = match result {
        None if !children.is_empty() => {
            (0..cuts.len().min(2)).map(|_| b.scratch(longest)).collect()
        }
        _ => Vec::new(),
    };
    for (turn, range) in cuts.into_iter().enumerate() {
        let len = range.end - range.start;
        let mut sources = vec![input.cut(range.clone())];
        for (child, buffer) in children.iter().zip(&buffers[turn % 2 % buffers.len()]) {
            let buffer = buffer.cut(0..len);
            b.receive(team.rank(*child), buffer);
            sources.push(buffer);
        }
        let sum = match (result, sums.get(turn % 2)) {
            (Some(result), _) => result.cut(range),
            (None, Some(sum)) => sum.cut(0..len),
            (None, None) => sources[0],
        };
        b.reduce(&sources, sum);
        if let Some(parent) = node.parent {
            b.send(team.rank(parent), sum);
        }
    }
}

/// Where the blocks of all positions lie: position `p`'s is block `(p + shift) % n`.
pub(crate) struct Spread<'a> {
    pub(crate) cuts: &'a Cuts,
    pub(crate) shift: usize,
}

impl Spread<'_> {
    /// One or two runs of positions whose blocks are consecutive.
    fn runs(&self, span: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let at = (self.cuts.blocks() - self.shift).clamp(span.start, span.end);
        [span.start..at, at..span.end].into_iter().filter(|run| !run.is_empty())
    }

    /// The bytes of a run.
    fn range(&self, run: &Range<usize>) -> Range<u64> {
        let first = (run.start + self.shift) % self.cuts.blocks();
        self.cuts.range(first..first + run.len())
    }

    /// How many bytes the blocks of these positions have.
    fn len(&self, span: &Range<usize>) -> u64 {
        self.runs(span).map(|run| self.range(&run)).map(|range| range.end - range.start).sum()
    }
}

/// What a node holds of the blocks.
struct HeldBlocks<'a> {
    spread: &'a Spread<'a>,
    area: Area,
    /// The blocks lie one behind the other from this position's on; if not, in their places.
    first: Option<usize>,
}

impl<'a> HeldBlocks<'a> {
    fn new(
        b: &mut Builder,
        spread: &'a Spread<'a>,
        whole: Option<Area>,
        node: &Node,
        own: Area,
    ) -> Self {
        let (area, first) = match whole {
            Some(area) => (area, None),
            None if node.children.is_empty() => (own, Some(node.span.start)),
            None => (b.scratch(spread.len(&node.span)), Some(node.span.start)),
        };
        Self { spread, area, first }
    }

    /// Where a run lies.
    fn area(&self, run: &Range<usize>) -> Area {
        let Some(first) = self.first else { return self.area.cut(self.spread.range(run)) };
        let at = self.spread.len(&(first..run.start));
        self.area.cut(at..at + self.spread.len(run))
    }

    fn pieces(&self, span: &Range<usize>) -> Vec<Area> {
        self.spread.runs(span).map(|run| self.area(&run)).collect()
    }
}

/// Collects the members' blocks at position 0. `whole` is where all blocks lie there; other members may give room
/// for all of them too, and use no scratch memory then.
pub(crate) fn gather(
    b: &mut Builder,
    team: &Team,
    tree: Tree,
    own: Area,
    whole: Option<Area>,
    spread: &Spread<'_>,
) {
    let node = tree.node(team.me, team.len());
    let held = HeldBlocks::new(b, spread, whole, &node, own);
    let place = held.area(&(team.me..team.me + 1));
    b.copy(own, place);
    for child in &node.children {
        b.receive_pieces(team.rank(child.start), &held.pieces(child));
    }
    if let Some(parent) = node.parent {
        b.send_pieces(team.rank(parent), &held.pieces(&node.span));
    }
}

/// Hands out blocks of position 0, where they lie in `whole`, to the members. Other members may give room for all of
/// them too, and get their subtree's blocks there.
pub(crate) fn scatter(
    b: &mut Builder,
    team: &Team,
    tree: Tree,
    whole: Option<Area>,
    own: Area,
    spread: &Spread<'_>,
) {
    let node = tree.node(team.me, team.len());
    let held = HeldBlocks::new(b, spread, whole, &node, own);
    if let Some(parent) = node.parent {
        b.receive_pieces(team.rank(parent), &held.pieces(&node.span));
    }
    for child in &node.children {
        b.send_pieces(team.rank(child.start), &held.pieces(child));
    }
    let place = held.area(&(team.me..team.me + 1));
    b.copy(place, own);
}

/// All members wait for all: tokens go up the tree and down again.
pub(crate) fn barrier(b: &mut Builder, team: &Team, tree: Tree) {
    let node = arrive(b, team, tree);
    leave(b, team, &node);
}

/// The first half of a barrier: position 0 hears of all.
pub(crate) fn arrive(b: &mut Builder, team: &Team, tree: Tree) -> Node {
    let node = tree.node(team.me, team.len());
    for child in &node.children {
        b.hear(team.rank(child.start));
    }
    if let Some(parent) = node.parent {
        b.tell(team.rank(parent));
    }
    node
}

/// The second half: all hear of position 0.
pub(crate) fn leave(b: &mut Builder, team: &Team, node: &Node) {
    if let Some(parent) = node.parent {
        b.hear(team.rank(parent));
    }
    for child in &node.children {
        b.tell(team.rank(child.start));
    }
}
