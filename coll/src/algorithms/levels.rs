//! Operations on levels: a tree within each group of each level, and a method among the leaders of the coarsest groups.
//! Without levels, the method is among all ranks.
//!
//! A group's leader is its first rank, or the root; so the leader of a group leads one of each finer level, too. On a
//! level's tree are the leaders of the next finer level's groups, and on that of the finest all ranks of the group. So
//! each group's data crosses the group's border once.
//!
//! In the place of a tree, the ranks of a host may go through memory that they share ([`Together`]). What a shared
//! segment does not [take](SharedSegment::takes) goes along the tree. That depends on the host alone: hosts see no more
//! of each other than what leaders send.
use std::ops::Range;

use crate::algorithm::Method;
use crate::algorithms::alltoall::{self, Blocks};
use crate::algorithms::compose;
use crate::algorithms::over_tree::{self, Spread};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::{Call, Reduction};
use crate::level::Within;
use crate::locality::{Groups, Locality};
use crate::sm::SharedSegment;
use crate::team::Team;
use crate::together::Together;
use crate::tree::{Node, Tree};

/// What a rank is on each level.
pub(crate) struct Levels {
    rank: usize,
    root: usize,
    /// It among the leaders of the coarsest groups, if it leads one.
    top: Option<Team>,
    /// How many ranks each of the coarsest groups has; none if there are no levels.
    sizes: Option<Vec<u64>>,
    /// The first rank of its own among them, and how many there are.
    group: (usize, usize),
    /// The position of the root's group among them, and its leader.
    target: (usize, usize),
    /// Of the levels on whose tree it is, the coarsest first. Those are the finest ones.
    inner: Vec<Inner>,
}

/// A group of a level, as its tree sees it. Position 0 is the leader.
struct Inner {
    team: Team,
    tree: Tree,
    /// Its first rank.
    first: usize,
    /// How many ranks each position speaks for, in the order of ranks; position 0 is entry `shift`.
    sizes: Vec<u64>,
    shift: usize,
    /// Its ranks, ascending, if they go through memory that they share.
    subgroup: Option<Vec<usize>>,
}

impl Inner {
    /// The ranks of the group, if they do this through memory that they share. `call`: as they would call it if they
    /// were all there are.
    fn subgroup(&self, call: &Call<'_>) -> Option<&[usize]> {
        self.subgroup.as_deref().filter(|subgroup| SharedSegment::takes(call, subgroup.len()))
    }

    /// The leader.
    fn lead(&self) -> usize {
        self.team.rank(0)
    }

    /// What its positions speak for of blocks of one length, in the order of ranks.
    fn cuts(&self, len: u64) -> Cuts {
        lens(&self.sizes, len)
    }

    /// What this rank's position speaks for.
    fn own(&self, cuts: &Cuts) -> Range<u64> {
        let at = (self.team.me + self.shift) % self.team.len();
        cuts.range(at..at + 1)
    }

    /// Where the group's blocks lie among those of all ranks; the ranks of each group follow each other.
    fn part(&self, cuts: &Cuts, len: u64) -> Range<u64> {
        let start = self.first as u64 * len;
        start..start + cuts.total()
    }
}

fn lens(sizes: &[u64], len: u64) -> Cuts {
    Cuts::each(&sizes.iter().map(|size| size * len).collect::<Vec<_>>())
}

impl Levels {
    /// `root` is 0 if the operation has none. The root leads its groups if `leads`, otherwise first ranks do.
    pub(crate) fn new(
        locality: &Locality,
        within: &Within,
        rank: usize,
        (root, leads): (usize, bool),
    ) -> Self {
        let used: Vec<_> = locality.used(within).collect();
        let leader = |groups: &Groups, group: usize| match leads && groups.of(root) == group {
            true => root,
            false => groups.all()[group][0],
        };
        let Some((coarsest, _)) = used.first() else {
            let (top, target) = (Some(Team::all(rank, locality.ranks())), (root, root));
            let (sizes, group, inner) = (None, (rank, 1), Vec::new());
            return Self { rank, root, top, sizes, group, target, inner };
        };
        let own = &coarsest.all()[coarsest.of(rank)];
        let group = (own[0], own.len());
        let leaders: Vec<_> = (0..coarsest.all().len()).map(|it| leader(coarsest, it)).collect();
        let target = (coarsest.of(root), leaders[coarsest.of(root)]);
        let sizes = Some(coarsest.all().iter().map(|group| group.len() as u64).collect());
        let mut inner = Vec::new();
        for (index, (groups, tree)) in used.iter().enumerate() {
            let group = groups.of(rank);
            let ranks = &groups.all()[group];
            let (members, sizes) = match used.get(index + 1) {
                None => (ranks.clone(), vec![1; ranks.len()]),
                Some((finer, _)) => {
                    let parts = ranks.iter().map(|rank| (finer.of(*rank), *rank));
                    let parts = parts.filter(|(part, rank)| finer.all()[*part][0] == *rank);
                    parts
                        .map(|(part, _)| (leader(finer, part), finer.all()[part].len() as u64))
                        .unzip()
                }
            };
            let lead = leader(groups, group);
            let position = members.iter().position(|member| *member == lead).unwrap_or(0);
            if let Some(team) = Team::of(members, rank) {
                let team = team.from(position);
                let shares = within.is_shared() && ranks.len() > 1;
                let subgroup = shares.then(|| ranks.clone());
                let first = ranks[0];
                inner.push(Inner { team, tree: *tree, first, sizes, shift: position, subgroup });
            }
        }
        Self { rank, root, top: Team::of(leaders, rank), sizes, group, target, inner }
    }

    /// What each of the coarsest groups has of blocks of one length; without levels, each rank.
    fn cuts(&self, top: &Team, len: u64) -> Cuts {
        self.sizes.as_ref().map_or_else(|| Cuts::equal(top.len(), len), |sizes| lens(sizes, len))
    }
}

pub(crate) fn barrier(b: &mut Builder, levels: &Levels, method: Method) {
    let up = levels.inner.iter().rev();
    let nodes: Vec<_> = up.map(|it| arrive(b, it)).collect();
    if let Some(top) = &levels.top {
        compose::barrier(b, top, method);
    }
    for (it, node) in levels.inner.iter().zip(nodes.iter().rev()) {
        match node {
            Some(node) => over_tree::leave(b, &it.team, node),
            None => meet(b, it),
        }
    }
}

/// The leader hears of all; none if all have met.
fn arrive(b: &mut Builder, it: &Inner) -> Option<Node> {
    if it.subgroup(&Call::Barrier).is_some() {
        meet(b, it);
        return None;
    }
    Some(over_tree::arrive(b, &it.team, it.tree))
}

fn meet(b: &mut Builder, it: &Inner) {
    if let Some(subgroup) = it.subgroup(&Call::Barrier) {
        b.share(subgroup, (Together::Meet, it.lead()), (None, None));
    }
}

pub(crate) fn bcast(b: &mut Builder, levels: &Levels, how: (Method, u64), area: Area) {
    let (method, segment) = how;
    if let Some(top) = &levels.top {
        compose::bcast(b, &top.from(levels.target.0), method, area, segment);
    }
    down(b, levels, area, segment);
}

/// What the leaders have, to all.
fn down(b: &mut Builder, levels: &Levels, area: Area, segment: u64) {
    for it in &levels.inner {
        let call = Call::Bcast { root: 0, len: area.len };
        let Some(subgroup) = it.subgroup(&call) else {
            over_tree::bcast(b, &it.team, it.tree, area, segment);
            continue;
        };
        let places = if it.team.me == 0 { (Some(area), None) } else { (None, Some(area)) };
        b.share(subgroup, (Together::Bcast, it.lead()), places);
    }
}

/// The sum of the ranks that this rank speaks for; without `room` for it in scratch memory.
fn up(
    b: &mut Builder,
    levels: &Levels,
    areas: (Area, Option<Area>),
    segment: u64,
    of: Reduction,
) -> Area {
    let (mut sum, mut room) = areas;
    for it in levels.inner.iter().rev() {
        let leads = it.team.me == 0;
        let result = leads.then(|| *room.get_or_insert_with(|| b.scratch(sum.len)));
        let call = Call::Reduce { root: 0, len: sum.len, of, in_place: false };
        match it.subgroup(&call) {
            Some(subgroup) => b.share(subgroup, (Together::Reduce, it.lead()), (Some(sum), result)),
            None => over_tree::reduce(b, &it.team, it.tree, sum, result, segment),
        }
        sum = result.unwrap_or(sum);
    }
    sum
}

/// Without commutativity, groups must be consecutive and led by their first ranks: then the leader of the root's group
/// has the sum, and sends it to the root.
pub(crate) fn reduce(
    b: &mut Builder,
    levels: &Levels,
    (method, segment): (Method, u64),
    (input, result): (Area, Option<Area>),
    of: Reduction,
) {
    let (place, leader) = levels.target;
    let room = result.filter(|_| leader == levels.root);
    let sum = up(b, levels, (input, room), segment, of);
    if let Some(top) = &levels.top {
        let total = (top.me == place).then(|| room.unwrap_or(sum));
        compose::reduce(b, top, place, (method, segment), (sum, total), of);
    }
    if leader == levels.root {
        return;
    }
    b.set_segment(segment);
    if levels.rank == leader {
        b.send(levels.root, sum);
    } else if let Some(result) = result {
        b.receive(leader, result);
    }
    b.set_segment(0);
}

pub(crate) fn allreduce(
    b: &mut Builder,
    levels: &Levels,
    (method, segment): (Method, u64),
    (input, result): (Area, Area),
    of: Reduction,
) {
    let sum = up(b, levels, (input, Some(result)), segment, of);
    if let Some(top) = &levels.top {
        compose::allreduce(b, top, (method, segment), (sum, result), of);
    }
    down(b, levels, result, segment);
}

/// Groups must be consecutive. Each rank has its block of `area`, which are all `len` long.
pub(crate) fn allgather(
    b: &mut Builder,
    levels: &Levels,
    (method, segment): (Method, u64),
    (area, len): (Area, u64),
) {
    let own = area.cut(levels.rank as u64 * len..(levels.rank as u64 + 1) * len);
    join(b, levels, (own, Some(area)), len);
    if let Some(top) = &levels.top {
        compose::allgather(b, top, (method, segment), area, &levels.cuts(top, len));
    }
    down(b, levels, area, segment);
}

/// Groups must be consecutive, and the root leads its. It has room for the blocks of all ranks, each `len` long.
pub(crate) fn gather(
    b: &mut Builder,
    levels: &Levels,
    tree: Tree,
    (own, whole): (Area, Option<Area>),
    len: u64,
) {
    let held = join(b, levels, (own, whole), len);
    if let Some(top) = &levels.top {
        let (cuts, shift) = (levels.cuts(top, len), levels.target.0);
        let spread = Spread { cuts: &cuts, shift };
        over_tree::gather(b, &top.from(shift), tree, held, whole, &spread);
    }
}

/// The blocks of the ranks that this rank speaks for, one behind the other; without room for those of `all` in scratch
/// memory.
fn join(b: &mut Builder, levels: &Levels, (own, all): (Area, Option<Area>), len: u64) -> Area {
    let mut held = own;
    for it in levels.inner.iter().rev() {
        let cuts = it.cuts(len);
        let leads = it.team.me == 0;
        let subgroup = it.subgroup(&Call::Gather { root: 0, len, in_place: false });
        let room = all.filter(|_| leads || subgroup.is_none());
        let room = room.map(|all| all.cut(it.part(&cuts, len)));
        let room = room.or_else(|| leads.then(|| b.scratch(cuts.total())));
        match subgroup {
            Some(subgroup) => {
                let place = room.map_or(held, |room| room.cut(it.own(&cuts)));
                b.copy(held, place);
                b.share(subgroup, (Together::Gather, it.lead()), (Some(place), room));
            }
            None => {
                let spread = Spread { cuts: &cuts, shift: it.shift };
                over_tree::gather(b, &it.team, it.tree, held, room, &spread);
            }
        }
        held = room.unwrap_or(held);
    }
    held
}

/// Groups must be consecutive, and the root leads its. It has the blocks of all ranks, each `len` long.
pub(crate) fn scatter(
    b: &mut Builder,
    levels: &Levels,
    tree: Tree,
    (own, whole): (Area, Option<Area>),
    len: u64,
) {
    let mut held = None;
    if let Some(top) = &levels.top {
        let (cuts, shift) = (levels.cuts(top, len), levels.target.0);
        let into = room(b, levels, (own, whole), len);
        let spread = Spread { cuts: &cuts, shift };
        over_tree::scatter(b, &top.from(shift), tree, whole, into, &spread);
        held = Some(into);
    }
    part(b, levels, (own, held), len);
}

/// Where the blocks of the ranks go that this leader speaks for.
fn room(b: &mut Builder, levels: &Levels, (own, all): (Area, Option<Area>), len: u64) -> Area {
    let Some(it) = levels.inner.first() else { return own };
    let cuts = it.cuts(len);
    match all {
        Some(all) => all.cut(it.part(&cuts, len)),
        None if cuts.total() == len => own,
        None => b.scratch(cuts.total()),
    }
}

/// Hands out the blocks that the leaders of the coarsest groups hold.
fn part(b: &mut Builder, levels: &Levels, (own, mut held): (Area, Option<Area>), len: u64) {
    for (index, it) in levels.inner.iter().enumerate() {
        let cuts = it.cuts(len);
        let place = held.map(|held| held.cut(it.own(&cuts)));
        let into = match (levels.inner.get(index + 1), place) {
            (None, _) => own,
            (Some(_), Some(place)) => place,
            (Some(finer), None) => b.scratch(finer.cuts(len).total()),
        };
        let call = Call::Scatter { root: 0, len, in_place: false };
        match (it.subgroup(&call), place) {
            (Some(subgroup), Some(place)) => {
                b.share(subgroup, (Together::Scatter, it.lead()), (held, None));
                b.copy(place, into);
            }
            (Some(subgroup), None) => {
                b.share(subgroup, (Together::Scatter, it.lead()), (None, Some(into)));
            }
            (None, _) => {
                let spread = Spread { cuts: &cuts, shift: it.shift };
                over_tree::scatter(b, &it.team, it.tree, held, into, &spread);
            }
        }
        held = Some(into);
    }
}

/// Groups must be consecutive. Each rank gets its block of the sum, which is `len` long; `out` must not be part of the
/// input.
pub(crate) fn reduce_scatter(
    b: &mut Builder,
    levels: &Levels,
    (method, segment): (Method, u64),
    (input, out, len): (Area, Area, u64),
    of: Reduction,
) {
    let sum = up(b, levels, (input, None), segment, of);
    let mut held = None;
    if let Some(top) = &levels.top {
        let (cuts, into) = (levels.cuts(top, len), room(b, levels, (out, None), len));
        compose::reduce_scatter(b, top, (method, segment), (sum, &cuts, into), of);
        held = Some(into);
    }
    part(b, levels, (out, held), len);
}

/// Groups must be consecutive. What the ranks of a group send is gathered at its leader; leaders send each other what
/// is for the other's group; and all ranks of a group get what came for any of them, and take out what is for them. So
/// few messages cross a group's border, but what arrives is read by the whole group: it is for short blocks.
pub(crate) fn alltoall(
    b: &mut Builder,
    levels: &Levels,
    at_once: Option<usize>,
    (send, recv): (Area, Area),
    len: u64,
) {
    let Some(sizes) = &levels.sizes else { return };
    let (first, own) = (levels.group.0 as u64, levels.group.1 as u64);
    let ranks: u64 = sizes.iter().sum();
    // What each rank of the group sends, in the order of ranks.
    let held = join(b, levels, (send, None), ranks * len);
    // What each rank sends to each of the group.
    let came = b.scratch(ranks * own * len);
    if let Some(top) = &levels.top {
        let out = b.scratch(came.len);
        let mut start = 0;
        let mut pieces = Vec::new();
        for size in sizes {
            let blocks = start * len..(start + size) * len;
            let sent = |rank: u64| held.cut(rank * ranks * len..(rank + 1) * ranks * len);
            pieces.extend((0..own).map(|rank| sent(rank).cut(blocks.clone())));
            start += size;
        }
        b.pack(&pieces, out);
        let cuts = lens(sizes, own * len);
        let blocks = Blocks { send: out, send_cuts: &cuts, recv: came, recv_cuts: &cuts };
        alltoall::exchange(b, top, &blocks, at_once);
    }
    down(b, levels, came, 0);
    let mine = levels.rank as u64 - first;
    b.copy_all((0..ranks).map(|from| {
        let block = from * own + mine;
        (came.cut(block * len..(block + 1) * len), recv.cut(from * len..(from + 1) * len))
    }));
}
