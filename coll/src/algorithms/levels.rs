//! Operations on levels: a tree within each group of each level, and a method among the leaders of the coarsest groups.
//! Without levels, the method is among all ranks.
//!
//! A group's leader is its first rank, or the root; so the leader of a group leads one of each finer level, too. On a
//! level's tree are the leaders of the next finer level's groups, and on that of the finest all ranks of the group. So
//! each group's data crosses the group's border once.
use crate::algorithms::compose;
use crate::algorithms::over_tree::{self, Spread};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::Reduction;
use crate::level::Within;
use crate::locality::Groups;
use crate::team::Team;
use crate::tree::Tree;
use crate::{Locality, Method};

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
                inner.push(Inner { team, tree: *tree, first: ranks[0], sizes });
            }
        }
        Self { rank, root, top: Team::of(leaders, rank), sizes, target, inner }
    }
}

pub(crate) fn barrier(b: &mut Builder, levels: &Levels, method: Method) {
    let up = levels.inner.iter().rev();
    let nodes: Vec<_> = up.map(|it| over_tree::arrive(b, &it.team, it.tree)).collect();
    if let Some(top) = &levels.top {
        compose::barrier(b, top, method);
    }
    for (it, node) in levels.inner.iter().zip(nodes.iter().rev()) {
        over_tree::leave(b, &it.team, node);
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
        over_tree::bcast(b, &it.team, it.tree, area, segment);
    }
}

/// The sum of the ranks that this rank speaks for; without `room` for it in scratch memory.
fn up(b: &mut Builder, levels: &Levels, areas: (Area, Option<Area>), segment: u64) -> Area {
    let (mut sum, mut room) = areas;
    for it in levels.inner.iter().rev() {
        let leads = it.team.me == 0;
        let result = leads.then(|| *room.get_or_insert_with(|| b.scratch(sum.len)));
        over_tree::reduce(b, &it.team, it.tree, sum, result, segment);
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
    let sum = up(b, levels, (input, room), segment);
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
    let sum = up(b, levels, (input, Some(result)), segment);
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
