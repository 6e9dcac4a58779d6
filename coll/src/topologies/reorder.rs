//! Which rank goes where in a grid, so that neighbours share hosts (the `reorder` of `MPI_Cart_create`).

use super::{Cartesian, TopologyError};
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
    let mut members = BTreeMap::<u32, Vec<u32>>::new();
    for (rank, host) in (0..grid.size()).zip(hosts) {
        members.entry(*host).or_default().push(rank);
    }
    let unchanged: Vec<u32> = (0..grid.size()).collect();
    // Hosts in the order of their first ranks.
    let mut groups: Vec<Vec<u32>> = members.into_values().collect();
    groups.sort();
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
    let is_better = crossings(grid, &order, hosts)? < crossings(grid, &unchanged, hosts)?;
    Ok(if is_better { order } else { unchanged })
}

/// Pairs of neighbours on different hosts, each pair once from either end.
fn crossings(grid: &Cartesian, order: &[u32], hosts: &[u32]) -> Result<usize, TopologyError> {
    let host = |place: u32| hosts[order[place as usize] as usize];
    let mut crossings = 0;
    for place in 0..grid.size() {
        let ends = grid.neighbors(place)?.destinations.into_iter().flatten();
        crossings += ends.filter(|edge| host(edge.rank) != host(place)).count();
    }
    Ok(crossings)
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
