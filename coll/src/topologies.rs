//! The virtual topologies of MPI 4.1 chapter 8: who is whose neighbour, and which rank goes where. Pure arithmetic: no
//! communicator, no message.
//!
//! - [`dims_create`]: the sides of a balanced grid;
//! - [`Cartesian`]: grids, with or without periodic dimensions;
//! - [`Graph`]: a graph that every rank knows whole;
//! - [`DistGraph`]: the edges of one rank, as it gave them or as they were put together from all ranks'
//!   [`Contribution`]s;
//! - [`reordered`] and [`reordered_graph`]: which rank goes where, so that neighbours in a grid or a graph share hosts.
//!
//! All three topologies give a [`Neighborhood`]: what neighbourhood collectives send and receive.
//!
//! Ranks and coordinates count from 0. Where MPI has `MPI_PROC_NULL`, here is `None`.

mod cartesian;
mod dims;
mod dist_graph;
mod error;
mod graph;
mod reorder;

pub use cartesian::{Cartesian, Shift, Sub};
pub use dims::dims_create;
pub use dist_graph::{Contribution, DistGraph, Note, WeightedRank};
pub use error::TopologyError;
pub use graph::Graph;
pub use reorder::{reordered, reordered_graph};

/// One end of an edge between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The neighbour.
    pub rank: u32,
    /// Which of the edges from the same source to the same destination this is: both ends of an edge have the same
    /// lane, and no other edge of the two ranks in that direction has.
    pub lane: u32,
}

/// The neighbours of a rank, in the order of the blocks of neighbourhood collectives' buffers (MPI 4.1 §8.6).
///
/// A rank may occur several times, and may be its own neighbour. Its blocks are then told apart by lanes: block `k`
/// goes to `destinations[k]`, and is received there as the block whose source is this rank with the same lane.
///
/// - In a grid, what is sent in the negative direction of a dimension is received from the positive direction, also
///   where both neighbours are one rank because a periodic dimension has one or two.
/// - In graphs, the `n`th edge to a rank is the `n`th edge from it at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighborhood {
    /// Where the blocks of a receive buffer come from; `None` for blocks that nobody sends.
    pub sources: Vec<Option<Edge>>,
    /// Where the blocks of a send buffer go; `None` for blocks that nobody receives.
    pub destinations: Vec<Option<Edge>>,
}

/// The ranks as edges: each with the number of equal ranks before it as its lane.
fn in_turn(ranks: impl IntoIterator<Item = u32>) -> Vec<Option<Edge>> {
    let mut seen = std::collections::BTreeMap::<u32, u32>::new();
    let edges = ranks.into_iter().map(|rank| {
        let lane = seen.entry(rank).or_default();
        let edge = Edge { rank, lane: *lane };
        *lane += 1;
        Some(edge)
    });
    edges.collect()
}

#[cfg(test)]
mod tests;
