//! Which rank goes where in a grid or a graph, so that neighbours share hosts (the `reorder` of `MPI_Cart_create` and
//! `MPI_Graph_create`).

use super::{Cartesian, Graph, TopologyError};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The rank that each place of a grid gets. `hosts[r]` says where rank `r` is: a host, or any other part of the machine
/// within which messages are cheap.
///
/// If all hosts have as many ranks, the grid is cut into equal blocks, one a host, with the least surface between them.
/// Otherwise, and where that leaves no fewer neighbours on different hosts, every rank keeps its own number. Ranks
/// beyond the grid's size stay outside. The answer follows from the arguments alone.
///
/// # Errors
/// [`TopologyError::TooFewProcesses`] unless there is a host for each place.
///
/// ```
/// # use gapless_coll::topologies::{Cartesian, reordered};
/// // Two hosts with four ranks each get a square of the grid each.
/// let grid = Cartesian::new(&[2, 4], &[false, false])?;
/// assert_eq!(reordered(&grid, &[7, 7, 7, 7, 9, 9, 9, 9])?, [0, 1, 4, 5, 2, 3, 6, 7]);
/// # Ok::<(), gapless_coll::topologies::TopologyError>(())
/// ```
pub fn reordered(grid: &Cartesian, hosts: &[u32]) -> Result<Vec<u32>, TopologyError> {
    grid.check_fits(u32::try_from(hosts.len()).unwrap_or(u32::MAX))?;
    let unchanged: Vec<u32> = (0..grid.size()).collect();
    let groups = members(grid.size(), hosts);
    let share = groups.first().map_or(0, Vec::len);
    if groups.len() < 2 || groups.iter().any(|group| group.len() != share) {
        return Ok(unchanged);
    }
    let Some(block) = block_of(grid, u32::try_from(share).unwrap_or(0)) else {
        return Ok(unchanged);
    };
    let mut order = Vec::with_capacity(grid.size() as usize);
    for place in 0..grid.size() {
        let (mut group, mut member) = (0, 0);
        for ((at, side), edge) in grid.coords(place)?.iter().zip(grid.dims()).zip(&block) {
            group = group * (side / edge) + at / edge;
            member = member * edge + at % edge;
        }
        order.push(groups[group as usize][member as usize]);
    }
    let mut edges = Vec::new();
    for place in 0..grid.size() {
        let ends = grid.neighbors(place)?.destinations.into_iter().flatten();
        edges.extend(ends.map(|edge| (place, edge.rank)));
    }
    Ok(better(order, unchanged, &edges, hosts))
}

/// The rank that each node of a graph gets. `hosts` are as for [`reordered`].
///
/// Each host gets nodes that are joined, as far as that is found by adding to a part of the graph the node that has most
/// edges to it, again and again. Where that leaves no fewer neighbours on different hosts, every rank keeps its own
/// number. Ranks beyond the graph's nodes stay outside. The answer follows from the arguments alone; it takes time in
/// proportion to the square of the nodes if there are several hosts.
///
/// # Errors
/// [`TopologyError::TooFewProcesses`] unless there is a host for each node.
///
/// ```
/// # use gapless_coll::topologies::{Graph, reordered_graph};
/// // Two pairs: 0 and 2, 1 and 3. Ranks 0 and 1 share a host.
/// let pairs = Graph::new(&[1, 2, 3, 4], &[2, 3, 0, 1])?;
/// assert_eq!(reordered_graph(&pairs, &[7, 7, 9, 9])?, [0, 2, 1, 3]);
/// # Ok::<(), gapless_coll::topologies::TopologyError>(())
/// ```
pub fn reordered_graph(graph: &Graph, hosts: &[u32]) -> Result<Vec<u32>, TopologyError> {
    let (places, processes) = (graph.size(), u32::try_from(hosts.len()).unwrap_or(u32::MAX));
    if places > processes {
        return Err(TopologyError::TooFewProcesses { places, processes });
    }
    let unchanged: Vec<u32> = (0..places).collect();
    let groups = members(places, hosts);
    if groups.len() < 2 {
        return Ok(unchanged);
    }
    let mut edges = Vec::new();
    let mut joined = vec![Vec::new(); places as usize];
    for node in 0..places {
        for other in graph.neighbors_of(node)? {
            edges.push((node, *other));
            joined[node as usize].push(*other);
            joined[*other as usize].push(node);
        }
    }
    let mut order = vec![0; places as usize];
    // Those without a rank, and how many edges each has to the nodes of the host that is being filled.
    let mut left: Vec<u32> = unchanged.clone();
    for group in groups {
        let mut links = vec![0u32; places as usize];
        for rank in group {
            let most = |at: &usize| (links[left[*at] as usize], Reverse(left[*at]));
            let Some(at) = (0..left.len()).max_by_key(most) else { break };
            let node = left.swap_remove(at) as usize;
            order[node] = rank;
            joined[node].iter().for_each(|other| links[*other as usize] += 1);
        }
    }
    Ok(better(order, unchanged, &edges, hosts))
}

/// The first ranks by host; hosts in the order of their first ranks.
fn members(places: u32, hosts: &[u32]) -> Vec<Vec<u32>> {
    let mut members = BTreeMap::<u32, Vec<u32>>::new();
    for (rank, host) in (0..places).zip(hosts) {
        members.entry(*host).or_default().push(rank);
    }
    let mut groups: Vec<Vec<u32>> = members.into_values().collect();
    groups.sort();
    groups
}

/// The new order, if fewer edges join places on different hosts by it.
fn better(order: Vec<u32>, unchanged: Vec<u32>, edges: &[(u32, u32)], hosts: &[u32]) -> Vec<u32> {
    let crossings = |order: &[u32]| {
        let host = |place: u32| hosts[order[place as usize] as usize];
        edges.iter().filter(|(one, other)| host(*one) != host(*other)).count()
    };
    if crossings(&order) < crossings(&unchanged) { order } else { unchanged }
}

/// The sides of blocks of `places` places that the grid can be cut into, with the fewest edges between blocks.
fn block_of(grid: &Cartesian, places: u32) -> Option<Vec<u32>> {
    let mut best: Option<(u64, Vec<u32>)> = None;
    extend(grid, places, &mut Vec::new(), &mut best);
    best.map(|(_, block)| block)
}

fn extend(grid: &Cartesian, places: u32, block: &mut Vec<u32>, best: &mut Option<(u64, Vec<u32>)>) {
    let Some(&side) = grid.dims().get(block.len()) else {
        let cost = surface(grid, block);
        if places == 1 && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            *best = Some((cost, block.clone()));
        }
        return;
    };
    for edge in (1..=side.min(places)).rev() {
        if side.is_multiple_of(edge) && places.is_multiple_of(edge) {
            block.push(edge);
            extend(grid, places / edge, block, best);
            block.pop();
        }
    }
}

/// Edges of the grid that lead from one block to another.
fn surface(grid: &Cartesian, block: &[u32]) -> u64 {
    let dimensions = grid.dims().iter().zip(grid.periodic()).zip(block);
    let cuts = dimensions.map(|((side, wraps), edge)| {
        let blocks = u64::from(side / edge);
        let cuts = if *wraps && blocks > 1 { blocks } else { blocks - 1 };
        cuts * u64::from(grid.size() / side)
    });
    cuts.sum()
}
