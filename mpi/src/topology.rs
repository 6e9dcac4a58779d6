//! Topologies (MPI 4.1 chapter 8).

use crate::arg::{self, HandleOut, Numbers, Out};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::info::Info;
use gapless::Topology;
use gapless::coll::topologies::{
    Cartesian, Contribution, DistGraph, Graph, TopologyError, WeightedRank, dims_create as balanced,
};
use std::ffi::c_int;

/// Numbers of an array, none of them negative.
///
/// # Safety
/// The array has so many.
unsafe fn list(at: *const c_int, len: usize, name: &'static str, class: c_int) -> Done<Vec<u32>> {
    // SAFETY: the caller's promise.
    let numbers = unsafe { Numbers::small(at).read(len, name) }?;
    let negative = |number| Fail::new(class, format!("{name} has {number}"));
    let one = |number: i64| u32::try_from(number).map_err(|_| negative(number));
    numbers.into_iter().map(one).collect()
}

/// Truth values of an array.
///
/// # Safety
/// The array has so many.
unsafe fn flags(at: *const c_int, len: usize, name: &'static str) -> Done<Vec<bool>> {
    // SAFETY: the caller's promise.
    let numbers = unsafe { Numbers::small(at).read(len, name) }?;
    Ok(numbers.into_iter().map(|number| number != 0).collect())
}

/// Stores the first of these numbers, as many as there is room for.
///
/// # Safety
/// There is room for `most`.
unsafe fn give<T>(
    at: *mut c_int,
    most: usize,
    numbers: impl IntoIterator<Item = T>,
    name: &'static str,
) -> Done
where
    c_int: TryFrom<T>,
{
    let number = |number| c_int::try_from(number).unwrap_or(c_int::MAX);
    let numbers: Vec<c_int> = numbers.into_iter().take(most).map(number).collect();
    // SAFETY: the caller's promise.
    unsafe { arg::give_all(at, &numbers, name) }
}

fn rank_or(rank: Option<u32>, none: c_int) -> c_int {
    rank.map_or(none, u32::cast_signed)
}

fn rank_of(rank: c_int, size: u32) -> Done<u32> {
    let none = || Fail::new(face::ERR_RANK, format!("there is no rank {rank} among {size}"));
    u32::try_from(rank).ok().filter(|rank| *rank < size).ok_or_else(none)
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

pub(crate) unsafe fn dims_create(nnodes: c_int, ndims: c_int, dims: *mut c_int) -> Done {
    let len = arg::len(ndims, "ndims")?;
    // SAFETY: as the first page of the crate says.
    let given = unsafe { list(dims, len, "dims", face::ERR_DIMS) }?;
    let processes = u32::try_from(nnodes).unwrap_or(0);
    if len == 0 {
        return Ok(());
    }
    let chosen = balanced(processes, &given)?;
    // SAFETY: as above.
    unsafe { give(dims, len, chosen, "dims") }
}

/// Sides of a grid, and which of them are periodic.
///
/// # Safety
/// Both arrays have so many.
unsafe fn sides(
    ndims: c_int,
    dims: *const c_int,
    periods: *const c_int,
) -> Done<(Vec<u32>, Vec<bool>)> {
    let len = arg::len(ndims, "ndims")?;
    // SAFETY: the caller's promise.
    let sides = unsafe { list(dims, len, "dims", face::ERR_DIMS) }?;
    // SAFETY: as above.
    Ok((sides, unsafe { flags(periods, len, "periods") }?))
}

pub(crate) unsafe fn cart_create(
    comm_old: Comm,
    ndims: c_int,
    dims: *const c_int,
    periods: *const c_int,
    reorder: c_int,
    comm_cart: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    // SAFETY: as the first page of the crate says.
    let (sides, periodic) = unsafe { sides(ndims, dims, periods) }?;
    comm.give_child(comm.comm.cart_create(&sides, &periodic, reorder != 0)?, comm_cart)
}

pub(crate) unsafe fn cart_map(
    comm: Comm,
    ndims: c_int,
    dims: *const c_int,
    periods: *const c_int,
    newrank: Out<c_int>,
) -> Done {
    // SAFETY: as the first page of the crate says.
    let (sides, periodic) = unsafe { sides(ndims, dims, periods) }?;
    Cartesian::new(&sides, &periodic)?.check_fits(comm.comm.size())?;
    newrank.set(rank_or(intra(comm)?.comm.cart_map(&sides, &periodic)?, face::UNDEFINED));
    Ok(())
}

pub(crate) fn cartdim_get(comm: Comm, ndims: Out<c_int>) -> Done {
    ndims.set(arg::int(grid(&comm)?.dims().len()));
    Ok(())
}

pub(crate) unsafe fn cart_get(
    comm: Comm,
    maxdims: c_int,
    dims: *mut c_int,
    periods: *mut c_int,
    coords: *mut c_int,
) -> Done {
    let (grid, most) = (grid(&comm)?, arg::len(maxdims, "maxdims")?);
    // SAFETY: as the first page of the crate says.
    unsafe { give(dims, most, grid.dims().iter().copied(), "dims") }?;
    let periodic = grid.periodic().iter().map(|periodic| u8::from(*periodic));
    // SAFETY: as above.
    unsafe { give(periods, most, periodic, "periods") }?;
    // SAFETY: as above.
    unsafe { give(coords, most, grid.coords(comm.comm.rank())?, "coords") }
}

pub(crate) unsafe fn cart_coords(
    comm: Comm,
    rank: c_int,
    maxdims: c_int,
    coords: *mut c_int,
) -> Done {
    let (grid, most) = (grid(&comm)?, arg::len(maxdims, "maxdims")?);
    let all = grid.coords(rank_of(rank, comm.comm.size())?)?;
    // SAFETY: as the first page of the crate says.
    unsafe { give(coords, most, all, "coords") }
}

pub(crate) unsafe fn cart_rank(comm: Comm, coords: *const c_int, rank: Out<c_int>) -> Done {
    let grid = grid(&comm)?;
    // SAFETY: as the first page of the crate says.
    let coords = unsafe { Numbers::small(coords).read(grid.dims().len(), "coords") }?;
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
    let keep = unsafe { flags(remain, dimensions, "remain_dims") }?;
    comm.give_child(Some(comm.comm.cart_sub(&keep)?), newcomm)
}

/// A graph's index and edges.
///
/// # Safety
/// The index has so many, and there are as many edges as its last entry says.
unsafe fn nodes(
    nnodes: c_int,
    index: *const c_int,
    edges: *const c_int,
) -> Done<(Vec<usize>, Vec<u32>)> {
    let len = arg::len(nnodes, "nnodes")?;
    // SAFETY: the caller's promise.
    let index = unsafe { list(index, len, "index", face::ERR_ARG) }?;
    let index: Vec<usize> = index.into_iter().map(|edges| edges as usize).collect();
    let all = index.last().copied().unwrap_or(0);
    // SAFETY: as above.
    Ok((index, unsafe { list(edges, all, "edges", face::ERR_RANK) }?))
}

pub(crate) unsafe fn graph_create(
    comm_old: Comm,
    nnodes: c_int,
    index: *const c_int,
    edges: *const c_int,
    reorder: c_int,
    comm_graph: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    // SAFETY: as the first page of the crate says.
    let (index, edges) = unsafe { nodes(nnodes, index, edges) }?;
    // Nobody is in a graph without nodes (MPI 4.1 §8.5.3).
    let made = match index.is_empty() {
        true => None,
        false => comm.comm.graph_create(&index, &edges, reorder != 0)?,
    };
    comm.give_child(made, comm_graph)
}

pub(crate) unsafe fn graph_map(
    comm: Comm,
    nnodes: c_int,
    index: *const c_int,
    edges: *const c_int,
    newrank: Out<c_int>,
) -> Done {
    // SAFETY: as the first page of the crate says.
    let (index, edges) = unsafe { nodes(nnodes, index, edges) }?;
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

pub(crate) unsafe fn graph_get(
    comm: Comm,
    maxindex: c_int,
    maxedges: c_int,
    index: *mut c_int,
    edges: *mut c_int,
) -> Done {
    let graph = graph(&comm)?;
    let (most_nodes, most_edges) =
        (arg::len(maxindex, "maxindex")?, arg::len(maxedges, "maxedges")?);
    // SAFETY: as the first page of the crate says.
    unsafe { give(index, most_nodes, graph.index().iter().copied(), "index") }?;
    // SAFETY: as above.
    unsafe { give(edges, most_edges, graph.edges().iter().copied(), "edges") }
}

fn neighbors_of(comm: &Comm, rank: c_int) -> Done<&[u32]> {
    Ok(graph(comm)?.neighbors_of(rank_of(rank, comm.comm.size())?)?)
}

pub(crate) fn graph_neighbors_count(comm: Comm, rank: c_int, nneighbors: Out<c_int>) -> Done {
    nneighbors.set(arg::int(neighbors_of(&comm, rank)?.len()));
    Ok(())
}

pub(crate) unsafe fn graph_neighbors(
    comm: Comm,
    rank: c_int,
    maxneighbors: c_int,
    neighbors: *mut c_int,
) -> Done {
    let (all, most) = (neighbors_of(&comm, rank)?, arg::len(maxneighbors, "maxneighbors")?);
    // SAFETY: as the first page of the crate says.
    unsafe { give(neighbors, most, all.iter().copied(), "neighbors") }
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
    n: c_int,
    sources: *const c_int,
    degrees: *const c_int,
    destinations: *const c_int,
    weighted: *const c_int,
    _info: Option<Info>,
    _reorder: c_int,
    comm_dist_graph: HandleOut,
) -> Done {
    let (comm, n) = (intra(comm_old)?, arg::len(n, "n")?);
    // SAFETY: as the first page of the crate says.
    let sources = unsafe { list(sources, n, "sources", face::ERR_RANK) }?;
    // SAFETY: as above.
    let degrees = unsafe { list(degrees, n, "degrees", face::ERR_ARG) }?;
    let edges = degrees.iter().fold(0usize, |sum, degree| sum.saturating_add(*degree as usize));
    // SAFETY: as above.
    let destinations = unsafe { list(destinations, edges, "destinations", face::ERR_RANK) }?;
    // SAFETY: as above.
    let weights = unsafe { weights(weighted, edges, "weights") }?;
    let edges = Contribution { sources, degrees, destinations, weights };
    comm.give_child(Some(comm.comm.dist_graph_create(&edges)?), comm_dist_graph)
}

pub(crate) unsafe fn dist_graph_create_adjacent(
    comm_old: Comm,
    indegree: c_int,
    sources: *const c_int,
    sourceweights: *const c_int,
    outdegree: c_int,
    destinations: *const c_int,
    destweights: *const c_int,
    _info: Option<Info>,
    _reorder: c_int,
    comm_dist_graph: HandleOut,
) -> Done {
    let comm = intra(comm_old)?;
    let (ins, outs) = (arg::len(indegree, "indegree")?, arg::len(outdegree, "outdegree")?);
    // SAFETY: as the first page of the crate says.
    let sources = unsafe { list(sources, ins, "sources", face::ERR_RANK) }?;
    // SAFETY: as above.
    let source_weights = unsafe { weights(sourceweights, ins, "sourceweights") }?;
    // SAFETY: as above.
    let destinations = unsafe { list(destinations, outs, "destinations", face::ERR_RANK) }?;
    // SAFETY: as above.
    let weights = unsafe { weights(destweights, outs, "destweights") }?;
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

pub(crate) unsafe fn dist_graph_neighbors(
    comm: Comm,
    maxindegree: c_int,
    sources: *mut c_int,
    sourceweights: *mut c_int,
    maxoutdegree: c_int,
    destinations: *mut c_int,
    destweights: *mut c_int,
) -> Done {
    let graph = dist_graph(&comm)?;
    let store = |most, edges: &[WeightedRank], ranks, weights: *mut c_int| {
        // SAFETY: as the first page of the crate says.
        unsafe { give(ranks, most, edges.iter().map(|edge| edge.rank), "neighbors") }?;
        if weights.addr() == face::UNWEIGHTED || weights.addr() == face::WEIGHTS_EMPTY {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { give(weights, most, edges.iter().filter_map(|edge| edge.weight), "weights") }
    };
    store(arg::len(maxindegree, "maxindegree")?, graph.sources(), sources, sourceweights)?;
    let most = arg::len(maxoutdegree, "maxoutdegree")?;
    store(most, graph.destinations(), destinations, destweights)
}
