//! Operations on two levels: a tree within each group, another method among the groups' leaders.
//!
//! A group's leader is its first rank, or the root. So each group's data crosses the borders between groups once.
use crate::algorithms::compose;
use crate::algorithms::over_tree::{self, Spread};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::Reduction;
use crate::team::Team;
use crate::tree::Tree;
use crate::{Locality, Method};

/// What a rank is: member of its group, and of the leaders too, perhaps. Position 0 of both is a leader.
pub(crate) struct Levels {
    group: Team,
    leaders: Option<Team>,
    /// The position of the root's group among the leaders.
    root_group: usize,
}

impl Levels {
    /// With a root, that is the leader of its group.
    pub(crate) fn new(locality: &Locality, rank: usize, root: Option<usize>) -> Self {
        let leader = |group: &[usize]| {
            let root = root.filter(|root| group.contains(root));
            root.unwrap_or(group[0])
        };
        let leaders: Vec<_> = locality.groups().iter().map(|group| leader(group)).collect();
        let members = &locality.groups()[locality.group_of(rank)];
        let first = members.iter().position(|member| *member == leader(members)).unwrap_or(0);
        let Some(group) = Team::of(members.as_slice(), rank) else {
            unreachable!("a rank is in its group");
        };
        let root_group = root.map_or(0, |root| locality.group_of(root));
        Self { group: group.from(first), leaders: Team::of(leaders, rank), root_group }
    }

    fn leads(&self) -> bool {
        self.group.me == 0
    }
}

pub(crate) fn barrier(b: &mut Builder, levels: &Levels, method: Method, within: Tree) {
    let node = over_tree::arrive(b, &levels.group, within);
    if let Some(leaders) = &levels.leaders {
        compose::barrier(b, leaders, method);
    }
    over_tree::leave(b, &levels.group, &node);
}

pub(crate) fn bcast(
    b: &mut Builder,
    levels: &Levels,
    (method, within, segment): (Method, Tree, u64),
    area: Area,
) {
    if let Some(leaders) = &levels.leaders {
        compose::bcast(b, &leaders.from(levels.root_group), method, area, segment);
    }
    over_tree::bcast(b, &levels.group, within, area, segment);
}

/// The sum of a group, at its leader.
fn sum_of_group(
    b: &mut Builder,
    levels: &Levels,
    (within, segment): (Tree, u64),
    (input, room): (Area, Option<Area>),
) -> Area {
    let sum = levels.leads().then(|| room.unwrap_or_else(|| b.scratch(input.len)));
    over_tree::reduce(b, &levels.group, within, input, sum, segment);
    sum.unwrap_or(input)
}

/// Without commutativity, the groups must be consecutive, and `levels` without a root: then the sum is made at rank 0
/// and sent to the root.
pub(crate) fn reduce(
    b: &mut Builder,
    levels: &Levels,
    (method, within, segment): (Method, Tree, u64),
    (input, result): (Area, Option<Area>),
    of: Reduction,
    forward: Option<(usize, usize)>,
) {
    let room = if forward.is_some() { None } else { result };
    let sum = sum_of_group(b, levels, (within, segment), (input, room));
    let mut at_first = None;
    if let Some(leaders) = &levels.leaders {
        let result = (leaders.me == levels.root_group).then_some(sum);
        compose::reduce(b, leaders, levels.root_group, (method, segment), (sum, result), of);
        at_first = result;
    }
    let Some((rank, root)) = forward else { return };
    b.set_segment(segment);
    match (at_first, result) {
        (Some(sum), Some(result)) => b.copy(sum, result),
        (Some(sum), None) => b.send(root, sum),
        (None, Some(result)) if rank == root => b.receive(0, result),
        _ => {}
    }
    b.set_segment(0);
}

pub(crate) fn allreduce(
    b: &mut Builder,
    levels: &Levels,
    (method, within, segment): (Method, Tree, u64),
    (input, result): (Area, Area),
    of: Reduction,
) {
    let sum = sum_of_group(b, levels, (within, segment), (input, Some(result)));
    if let Some(leaders) = &levels.leaders {
        compose::allreduce(b, leaders, (method, segment), (sum, result), of);
    }
    over_tree::bcast(b, &levels.group, within, result, segment);
}

/// Groups must be consecutive. Each rank has its block of `area`, which are all `len` long.
pub(crate) fn allgather(
    b: &mut Builder,
    locality: &Locality,
    levels: &Levels,
    (method, within, segment): (Method, Tree, u64),
    (area, len): (Area, u64),
) {
    let lens: Vec<_> = locality.groups().iter().map(|group| group.len() as u64 * len).collect();
    let of_groups = Cuts::each(&lens);
    let index = locality.group_of(levels.group.rank(0));
    let part = area.cut(of_groups.range(index..index + 1));
    let of_ranks = Cuts::equal(levels.group.len(), len);
    let own = part.cut(of_ranks.range(levels.group.me..levels.group.me + 1));
    let spread = Spread { cuts: &of_ranks, shift: 0 };
    over_tree::gather(b, &levels.group, within, own, Some(part), &spread);
    if let Some(leaders) = &levels.leaders {
        compose::allgather(b, leaders, (method, segment), area, &of_groups);
    }
    over_tree::bcast(b, &levels.group, within, area, segment);
}
