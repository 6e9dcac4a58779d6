//! Operations on levels: a tree within each group of each level, and a method among the leaders of the coarsest groups.
//! Without levels, the method is among all ranks.
//!
//! A group's leader is its first rank, or the root; so the leader of a group leads one of each finer level, too. On a
//! level's tree are the leaders of the next finer level's groups, and on that of the finest all ranks of the group. So
//! each group's data crosses the group's border once.
//!
//! In the place of a tree, the ranks of a host may go through memory that they share ([`Together`]). What a page does not
//! [take](Page::takes) goes along the tree. That depends on the host alone: hosts see no more of each other than what
//! leaders send.
use crate::algorithms::compose;
use crate::algorithms::over_tree::{self, Spread};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::Reduction;
use crate::level::Within;
use crate::locality::Groups;
use crate::page::Page;
use crate::schedule::Together;
use crate::team::Team;
use crate::tree::{Node, Tree};
use crate::{Call, Locality, Method};

/// What a rank is on each level.
pub(crate) struct Levels {
    rank: usize,
    root: usize,
    /// It among the leaders of the coarsest groups, if it leads one.
    top: Option<Team>,
    /// How many ranks each of the coarsest groups has; none if there are no levels.
    sizes: Option<Vec<u64>>,
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
    /// How many ranks each position speaks for, in the order of ranks.
    sizes: Vec<u64>,
    /// Its ranks, ascending, if they go through memory that they share.
    circle: Option<Vec<usize>>,
}

impl Inner {
    /// The ranks of the group, if they do this through memory that they share. `call`: as they would call it if they were
    /// all there are.
    fn circle(&self, call: &Call<'_>) -> Option<&[usize]> {
        self.circle.as_deref().filter(|circle| Page::takes(call, circle.len()))
    }

    /// The leader.
    fn lead(&self) -> usize {
        self.team.rank(0)
    }
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
            return Self { rank, root, top, sizes: None, target, inner: Vec::new() };
        };
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
                let circle = shares.then(|| ranks.clone());
                inner.push(Inner { team, tree: *tree, first: ranks[0], sizes, circle });
            }
        }
        Self { rank, root, top: Team::of(leaders, rank), sizes, target, inner }
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
    if it.circle(&Call::Barrier).is_some() {
        meet(b, it);
        return None;
    }
    Some(over_tree::arrive(b, &it.team, it.tree))
}

fn meet(b: &mut Builder, it: &Inner) {
    if let Some(circle) = it.circle(&Call::Barrier) {
        b.share(circle, (Together::Meet, it.lead()), (None, None));
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
        let Some(circle) = it.circle(&call) else {
            over_tree::bcast(b, &it.team, it.tree, area, segment);
            continue;
        };
        let places = if it.team.me == 0 { (Some(area), None) } else { (None, Some(area)) };
        b.share(circle, (Together::Bcast, it.lead()), places);
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
        match it.circle(&call) {
            Some(circle) => b.share(circle, (Together::Reduce, it.lead()), (Some(sum), result)),
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
    for it in levels.inner.iter().rev() {
        let cuts = Cuts::each(&it.sizes.iter().map(|size| size * len).collect::<Vec<_>>());
        let first = it.first as u64 * len;
        let part = area.cut(first..first + cuts.total());
        let own = part.cut(cuts.range(it.team.me..it.team.me + 1));
        let call = Call::Gather { root: 0, len, in_place: false };
        if let Some(circle) = it.circle(&call) {
            let whole = (it.team.me == 0).then_some(part);
            b.share(circle, (Together::Gather, it.lead()), (Some(own), whole));
            continue;
        }
        let spread = Spread { cuts: &cuts, shift: 0 };
        over_tree::gather(b, &it.team, it.tree, own, Some(part), &spread);
    }
    if let Some(top) = &levels.top {
        let cuts = match &levels.sizes {
            None => Cuts::equal(top.len(), len),
            Some(sizes) => Cuts::each(&sizes.iter().map(|size| size * len).collect::<Vec<_>>()),
        };
        compose::allgather(b, top, (method, segment), area, &cuts);
    }
    down(b, levels, area, segment);
}
