//! Topologies (MPI 4.1 chapter 8).

use crate::arg::{self, HandleOut, Out, Room};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::info::Info;
use gapless::Topology;
use gapless::coll::topologies::{
    Cartesian, Contribution, DistGraph, Graph, TopologyError, WeightedRank, dims_create as balanced,
};
use std::ffi::c_int;

/// Numbers, none of them negative.
fn natural(numbers: &[c_int], name: &'static str, class: c_int) -> Done<Vec<u32>> {
    let negative = |number| Fail::new(class, format!("{name} has {number}"));
    let one = |number: &c_int| u32::try_from(*number).map_err(|_| negative(*number));
    numbers.iter().map(one).collect()
}

/// The same of an array.
///
/// # Safety
/// The array has so many.
unsafe fn list(at: *const c_int, len: usize, name: &'static str, class: c_int) -> Done<Vec<u32>> {
    // SAFETY: the caller's promise.
    natural(unsafe { arg::list(at, len, name) }?, name, class)
}

fn flags(numbers: &[c_int]) -> Vec<bool> {
    numbers.iter().map(|number| *number != 0).collect()
}

fn rank_or(rank: Option<u32>, none: c_int) -> c_int {
    rank.map_or(none, u32::cast_signed)
}

fn other(what: &str) -> Fail {
    Fail::new(face::ERR_TOPOLOGY, format!("the communicator has no {what}"))
}

fn grid(comm: &Comm) -> Done<&Cartesian> {
    match comm.comm.topology() {
        Some(Topology::Cartesian(grid)) => Ok(grid),
        _ => Err(other("grid")),
    }
}

fn graph(comm: &Comm) -> Done<&Graph> {
    match comm.comm.topology() {
        Some(Topology::Graph(graph)) => Ok(graph),
        _ => Err(other("graph")),
    }
}

fn dist_graph(comm: &Comm) -> Done<&DistGraph> {
    match comm.comm.topology() {
        Some(Topology::DistGraph(graph)) => Ok(graph),
        _ => Err(other("distributed graph")),
    }
}

/// A communicator of one group, which alone can get a topology.
fn intra(comm: Comm) -> Done<Comm> {
    match comm.comm.is_inter() {
        true => Err(Fail::new(face::ERR_COMM, "the communicator is an intercommunicator")),
        false => Ok(comm),
    }
}

pub(crate) fn topo_test(comm: Comm, status: Out<c_int>) -> Done {
    status.set(match comm.comm.topology() {
        Some(Topology::Cartesian(_)) => face::CART,
        Some(Topology::Graph(_)) => face::GRAPH,
        Some(Topology::DistGraph(_)) => face::DIST_GRAPH,
        None => face::UNDEFINED,
    });
    Ok(())
}

pub(crate) fn dims_create(nnodes: c_int, dims: Room<c_int>) -> Done {
    let given = natural(&dims.read()?, "dims", face::ERR_DIMS)?;
    if given.is_empty() {
        return Ok(());
    }
    dims.give_first(balanced(u32::try_from(nnodes).unwrap_or(0), &given)?)
}

pub(crate) fn cart_create(
    comm_old: Comm,
    dims: &[c_int],
    periods: &[c_int],
    reorder: c_int,
    comm_cart: HandleOut,
) -> Done {
    let (comm, sides) = (intra(comm_old)?, natural(dims, "dims", face::ERR_DIMS)?);
    comm.give_child(comm.comm.cart_create(&sides, &flags(periods), reorder != 0)?, comm_cart)
}

pub(crate) fn cart_map(comm: Comm, dims: &[c_int], periods: &[c_int], newrank: Out<c_int>) -> Done {
    let (sides, periodic) = (natural(dims, "dims", face::ERR_DIMS)?, flags(periods));
    Cartesian::new(&sides, &periodic)?.check_fits(comm.comm.size())?;
    newrank.set(rank_or(intra(comm)?.comm.cart_map(&sides, &periodic)?, face::UNDEFINED));
    Ok(())
}

pub(crate) fn cartdim_get(comm: Comm, ndims: Out<c_int>) -> Done {
    ndims.set(arg::int(grid(&comm)?.dims().len()));
    Ok(())
}

pub(crate) fn cart_get(
    comm: Comm,
    dims: Room<c_int>,
    periods: Room<c_int>,
    coords: Room<c_int>,
) -> Done {
    let grid = grid(&comm)?;
    dims.give_first(grid.dims().iter().copied())?;
    periods.give_first(grid.periodic().iter().map(|periodic| u8::from(*periodic)))?;
    coords.give_first(grid.coords(comm.comm.rank())?)
}

pub(crate) fn cart_coords(comm: Comm, rank: c_int, coords: Room<c_int>) -> Done {
    let rank = arg::rank(rank, comm.comm.size(), "rank");
    coords.give_first(grid(&comm)?.coords(rank?)?)
}

pub(crate) unsafe fn cart_rank(comm: Comm, coords: *const c_int, rank: Out<c_int>) -> Done {
    let grid = grid(&comm)?;
    // SAFETY: as the first page of the crate says.
    let coords = unsafe { arg::list(coords, grid.dims().len(), "coords") }?;
    let coords: Vec<i64> = coords.iter().copied().map(i64::from).collect();
    rank.set(grid.rank(&coords)?.cast_signed());
    Ok(())
}

pub(crate) fn cart_shift(
    comm: Comm,
    direction: c_int,
    disp: c_int,
    rank_source: Out<c_int>,
    rank_dest: Out<c_int>,
) -> Done {
    let dimensions = grid(&comm)?.dims().len();
    let none = || Fail::new(face::ERR_DIMS, format!("there is no dimension {direction}"));
    let dimension = usize::try_from(direction).ok().filter(|at| *at < dimensions);
    let shift = comm.comm.cart_shift(dimension.ok_or_else(none)?, i64::from(disp))?;
    rank_source.set(rank_or(shift.source, face::PROC_NULL));
    rank_dest.set(rank_or(shift.destination, face::PROC_NULL));
    Ok(())
}

pub(crate) unsafe fn cart_sub(comm: Comm, remain: *const c_int, newcomm: HandleOut) -> Done {
    let dimensions = grid(&comm)?.dims().len();
    // SAFETY: as the first page of the crate says.
    let keep = flags(unsafe { arg::list(remain, dimensions, "remain_dims") }?);
    comm.give_child(Some(comm.comm.cart_sub(&keep)?), newcomm)
}

/// A graph's index and edges.
///
/// # Safety
/// There are as many edges as the last entry of the index says.
unsafe fn nodes(index: &[c_int], edges: *const c_int) -> Done<(Vec<usize>, Vec<u32>)> {
    let index = natural(index, "index", face::ERR_ARG)?;
    let index: Vec<usize> = index.into_iter().map(|edges| edges as usize).collect();
    let all = index.last().copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    Ok((index, unsafe { list(edges, all, "edges", face::ERR_RANK) }?))
}

pub(crate) unsafe fn graph_create(
    comm_old: Comm,
    index: &[c_int],
    edges: *const c_int,
    reorder: c_int,
    comm_graph: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    // SAFETY: as the first page of the crate says.
    let (index, edges) = unsafe { nodes(index, edges) }?;
    // Nobody is in a graph without nodes (MPI 4.1 §8.5.3).
    let made = match index.is_empty() {
        true => None,
        false => comm.comm.graph_create(&index, &edges, reorder != 0)?,
    };
    comm.give_child(made, comm_graph)
}

pub(crate) unsafe fn graph_map(
    comm: Comm,
    index: &[c_int],
    edges: *const c_int,
    newrank: Out<c_int>,
) -> Done {
    // SAFETY: as the first page of the crate says.
    let (index, edges) = unsafe { nodes(index, edges) }?;
    let (places, processes) = (Graph::new(&index, &edges)?.size(), comm.comm.size());
    if places > processes {
        return Err(TopologyError::TooFewProcesses { places, processes }.into());
    }
    newrank.set(rank_or(intra(comm)?.comm.graph_map(&index, &edges)?, face::UNDEFINED));
    Ok(())
}

pub(crate) fn graphdims_get(comm: Comm, nnodes: Out<c_int>, nedges: Out<c_int>) -> Done {
    let graph = graph(&comm)?;
    nnodes.set(arg::int(graph.index().len()));
    nedges.set(arg::int(graph.edges().len()));
    Ok(())
}

pub(crate) fn graph_get(comm: Comm, index: Room<c_int>, edges: Room<c_int>) -> Done {
    let graph = graph(&comm)?;
    index.give_first(graph.index().iter().copied())?;
    edges.give_first(graph.edges().iter().copied())
}

fn neighbors_of(comm: &Comm, rank: c_int) -> Done<&[u32]> {
    Ok(graph(comm)?.neighbors_of(arg::rank(rank, comm.comm.size(), "rank")?)?)
}

pub(crate) fn graph_neighbors_count(comm: Comm, rank: c_int, nneighbors: Out<c_int>) -> Done {
    nneighbors.set(arg::int(neighbors_of(&comm, rank)?.len()));
    Ok(())
}

pub(crate) fn graph_neighbors(comm: Comm, rank: c_int, neighbors: Room<c_int>) -> Done {
    neighbors.give_first(neighbors_of(&comm, rank)?.iter().copied())
}

/// Weights of so many edges; none if edges have no weights.
///
/// # Safety
/// The array is one of MPI's constants, or has so many.
unsafe fn weights(at: *const c_int, len: usize, name: &'static str) -> Done<Option<Vec<u32>>> {
    match at.addr() {
        face::UNWEIGHTED => Ok(None),
        face::WEIGHTS_EMPTY if len > 0 => {
            let why = format!("{name} is MPI_WEIGHTS_EMPTY, but there are edges");
            Err(Fail::new(face::ERR_ARG, why))
        }
        // SAFETY: the caller's promise.
        _ => Ok(Some(unsafe { list(at, len, name, face::ERR_ARG) }?)),
    }
}

pub(crate) unsafe fn dist_graph_create(
    comm_old: Comm,
    sources: &[c_int],
    degrees: &[c_int],
    destinations: *const c_int,
    weighted: *const c_int,
    _info: Option<Info>,
    _reorder: c_int,
    comm_dist_graph: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    let sources = natural(sources, "sources", face::ERR_RANK)?;
    let degrees = natural(degrees, "degrees", face::ERR_ARG)?;
    let edges = degrees.iter().fold(0usize, |sum, degree| sum.saturating_add(*degree as usize));
    // SAFETY: as the first page of the crate says.
    let destinations = unsafe { list(destinations, edges, "destinations", face::ERR_RANK) }?;
    // SAFETY: as above.
    let weights = unsafe { weights(weighted, edges, "weights") }?;
    let edges = Contribution { sources, degrees, destinations, weights };
    comm.give_child(Some(comm.comm.dist_graph_create(&edges)?), comm_dist_graph)
}

pub(crate) unsafe fn dist_graph_create_adjacent(
    comm_old: Comm,
    sources: &[c_int],
    sourceweights: *const c_int,
    destinations: &[c_int],
    destweights: *const c_int,
    _info: Option<Info>,
    _reorder: c_int,
    comm_dist_graph: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    let sources = natural(sources, "sources", face::ERR_RANK)?;
    // SAFETY: as the first page of the crate says.
    let source_weights = unsafe { weights(sourceweights, sources.len(), "sourceweights") }?;
    let destinations = natural(destinations, "destinations", face::ERR_RANK)?;
    // SAFETY: as above.
    let weights = unsafe { weights(destweights, destinations.len(), "destweights") }?;
    let from = (&*sources, source_weights.as_deref());
    let made = comm.comm.dist_graph_create_adjacent(from, (&*destinations, weights.as_deref()))?;
    comm.give_child(Some(made), comm_dist_graph)
}

pub(crate) fn dist_graph_neighbors_count(
    comm: Comm,
    indegree: Out<c_int>,
    outdegree: Out<c_int>,
    weighted: Out<c_int>,
) -> Done {
    let graph = dist_graph(&comm)?;
    indegree.set(arg::int(graph.sources().len()));
    outdegree.set(arg::int(graph.destinations().len()));
    weighted.set(c_int::from(graph.is_weighted()));
    Ok(())
}

pub(crate) fn dist_graph_neighbors(
    comm: Comm,
    sources: Room<c_int>,
    sourceweights: Room<c_int>,
    destinations: Room<c_int>,
    destweights: Room<c_int>,
) -> Done {
    let graph = dist_graph(&comm)?;
    let store = |edges: &[WeightedRank], ranks: Room<c_int>, weights: Room<c_int>| {
        ranks.give_first(edges.iter().map(|edge| edge.rank))?;
        match weights.addr() {
            face::UNWEIGHTED | face::WEIGHTS_EMPTY => Ok(()),
            _ => weights.give_first(edges.iter().filter_map(|edge| edge.weight)),
        }
    };
    store(graph.sources(), sources, sourceweights)?;
    store(graph.destinations(), destinations, destweights)
}
