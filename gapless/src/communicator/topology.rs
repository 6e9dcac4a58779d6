//! Communicators with a topology (MPI 4.1 chapter 8): grids, and graphs. The arithmetic is in
//! [`coll::topologies`](crate::coll::topologies).

use super::Communicator;
use crate::collective::{Blocks, BlocksMut, CommunicatorState};
use crate::error::Error;
use gapless_coll::topologies::{
    Cartesian, Contribution, DistGraph, Graph, Neighborhood, Note, Shift, TopologyError, reordered,
    reordered_graph,
};
use gapless_pml::PmlError;
use std::sync::Arc;

/// Who is whose neighbour in a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A grid (`MPI_CART`).
    Cartesian(Cartesian),
    /// A graph that all ranks know (`MPI_GRAPH`).
    Graph(Graph),
    /// A graph of which each rank knows its own edges (`MPI_DIST_GRAPH`).
    DistGraph(DistGraph),
}

impl Topology {
    /// The neighbours of a rank, in the order of the blocks of neighbourhood collectives.
    ///
    /// # Errors
    /// There is no such rank; a graph whose edges are not the same in both directions. Of a distributed graph, only
    /// one's own neighbours are known, whatever `rank` is.
    pub fn neighbors(&self, rank: u32) -> Result<Neighborhood, TopologyError> {
        match self {
            Topology::Cartesian(grid) => grid.neighbors(rank),
            Topology::Graph(graph) => graph.neighbors(rank),
            Topology::DistGraph(graph) => Ok(graph.neighbors()),
        }
    }
}

impl Communicator {
    /// The topology, if there is one (`MPI_Topo_test`, `MPI_Cart_get`, `MPI_Graph_get`,
    /// `MPI_Dist_graph_neighbors`).
    #[must_use]
    pub fn topology(&self) -> Option<&Topology> {
        self.common.topology()
    }

    /// The same communicator, which is nobody else's yet, with a topology.
    pub(super) fn arranged(self, topology: Option<Topology>) -> Communicator {
        let common = Arc::new(CommunicatorState::new(&self.shared, &self.comm, topology));
        Communicator { common, ..self }
    }

    /// A communicator of the first ranks of this one, in a grid with these sides, each periodic or not
    /// (`MPI_Cart_create`, MPI 4.1 §8.5.1). Ranks that the grid has no place for get `None`. Collective as
    /// [`dup`](Communicator::dup).
    ///
    /// ```
    /// use gapless::World;
    /// use gapless::coll::topologies::dims_create;
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let sides = dims_create(comm.size(), &[0, 0])?;
    /// let grid = comm.cart_create(&sides, &[true, true], false)?.expect("there is a place for each rank");
    /// // What the neighbours in both directions of both dimensions have.
    /// let mut theirs = [0u32; 4];
    /// grid.neighbor_allgather(&[grid.rank()], &mut theirs)?;
    /// assert_eq!(theirs[0], grid.cart_shift(0, 1)?.source.expect("it is periodic"));
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// `reorder` allows that ranks get other numbers than here. They do if the ranks are on several hosts, as many on
    /// each, and the grid can be cut into blocks, one a host, by which fewer neighbours are on different hosts
    /// ([`reordered`]). Among ranks of one host all keep their numbers.
    ///
    /// # Errors
    /// [`Error::Topology`]; as [`dup`](Communicator::dup).
    pub fn cart_create(
        &self,
        sides: &[u32],
        periodic: &[bool],
        reorder: bool,
    ) -> Result<Option<Communicator>, Error> {
        let grid = Cartesian::new(sides, periodic)?;
        grid.check_fits(self.size())?;
        let order = if reorder { self.grid_order(&grid)? } else { (0..grid.size()).collect() };
        self.placed(&order, Topology::Cartesian(grid))
    }

    /// The rank that this process has in the communicator that [`cart_create`](Communicator::cart_create) makes of this
    /// one with `reorder` (`MPI_Cart_map`, MPI 4.1 §8.5.8). `None`: the grid has no place for it. Asks no other rank.
    ///
    /// # Errors
    /// [`Error::Topology`].
    pub fn cart_map(&self, sides: &[u32], periodic: &[bool]) -> Result<Option<u32>, Error> {
        let grid = Cartesian::new(sides, periodic)?;
        Ok(self.place_in(&self.grid_order(&grid)?))
    }

    /// The rank that this process has in the communicator that [`graph_create`](Communicator::graph_create) makes of this
    /// one with `reorder` (`MPI_Graph_map`, MPI 4.1 §8.5.8). `None`: the graph has no node for it. Asks no other rank.
    ///
    /// # Errors
    /// [`Error::Topology`].
    pub fn graph_map(&self, index: &[usize], edges: &[u32]) -> Result<Option<u32>, Error> {
        let graph = Graph::new(index, edges)?;
        Ok(self.place_in(&self.graph_order(&graph)?))
    }

    /// The ranks that the places of a grid get, if they may get others than their own.
    fn grid_order(&self, grid: &Cartesian) -> Result<Vec<u32>, TopologyError> {
        reordered(grid, &self.common.hosts(&self.comm, &self.shared.places))
    }

    /// The same of the nodes of a graph.
    fn graph_order(&self, graph: &Graph) -> Result<Vec<u32>, TopologyError> {
        reordered_graph(graph, &self.common.hosts(&self.comm, &self.shared.places))
    }

    /// Where this rank is in such an order.
    fn place_in(&self, order: &[u32]) -> Option<u32> {
        (0..).zip(order).find_map(|(place, rank)| (*rank == self.rank()).then_some(place))
    }

    /// A communicator of the first ranks of this one, each a node of a graph that all give alike (`MPI_Graph_create`,
    /// MPI 4.1 §8.5.3; see [`Graph::new`]). Otherwise as [`cart_create`](Communicator::cart_create); `reorder` goes by
    /// [`reordered_graph`], whatever the numbers of ranks on the hosts are.
    ///
    /// # Errors
    /// As [`cart_create`](Communicator::cart_create).
    pub fn graph_create(
        &self,
        index: &[usize],
        edges: &[u32],
        reorder: bool,
    ) -> Result<Option<Communicator>, Error> {
        let graph = Graph::new(index, edges)?;
        let (places, processes) = (graph.size(), self.size());
        if places > processes {
            return Err(TopologyError::TooFewProcesses { places, processes }.into());
        }
        let order = if reorder { self.graph_order(&graph)? } else { (0..places).collect() };
        self.placed(&order, Topology::Graph(graph))
    }

    /// A communicator of these ranks, in this order.
    fn placed(&self, order: &[u32], topology: Topology) -> Result<Option<Communicator>, Error> {
        let place = self.place_in(order);
        let key = place.map_or(Ok(0), i32::try_from).map_err(|_| TopologyError::TooLarge)?;
        let made = self.split(place.map(|_| 0), key)?;
        Ok(made.map(|made| made.arranged(Some(topology))))
    }

    /// A communicator of the same ranks, each of which says who sends to it and whom it sends to
    /// (`MPI_Dist_graph_create_adjacent`, MPI 4.1 §8.5.4). Weights are kept, and not used; ranks keep their numbers.
    /// Collective as [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// [`Error::Topology`]; as [`dup`](Communicator::dup).
    pub fn dist_graph_create_adjacent(
        &self,
        (sources, source_weights): (&[u32], Option<&[u32]>),
        (destinations, destination_weights): (&[u32], Option<&[u32]>),
    ) -> Result<Communicator, Error> {
        let (size, theirs) = (self.size(), destination_weights);
        let graph = DistGraph::adjacent(size, sources, source_weights, destinations, theirs)?;
        Ok(self.dup()?.arranged(Some(Topology::DistGraph(graph))))
    }

    /// The same, of edges that any rank may give, not only its own (`MPI_Dist_graph_create`). Collective as
    /// [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// As [`dist_graph_create_adjacent`](Communicator::dist_graph_create_adjacent).
    pub fn dist_graph_create(&self, edges: &Contribution) -> Result<Communicator, Error> {
        let notes = edges.notes_for(self.size())?;
        let made = self.dup()?;
        let words: Vec<u32> = notes.iter().flatten().flat_map(write).collect();
        let given: Vec<u64> = notes.iter().map(|notes| (WORDS * notes.len()) as u64).collect();
        let mut taken = vec![0u64; notes.len()];
        made.alltoall(&given, &mut taken)?;
        let total = taken.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        let total = total.and_then(|total| usize::try_from(total).ok());
        let mut heard = vec![0u32; total.ok_or(TopologyError::TooLarge)?];
        let room = BlocksMut::packed(&mut heard, &taken)?;
        made.alltoallv(Blocks::packed(&words, &given)?, room)?;
        let heard: Vec<Note> = heard.chunks_exact(WORDS).map(read).collect();
        let graph = DistGraph::assemble(made.rank(), edges.weights.is_some(), [heard.as_slice()])?;
        Ok(made.arranged(Some(Topology::DistGraph(graph))))
    }

    /// Who sends to this rank, and to whom it sends, if all send `displacement` places along a dimension of the grid
    /// (`MPI_Cart_shift`, MPI 4.1 §8.5.6).
    ///
    /// # Errors
    /// [`Error::NoGrid`]; [`Error::Topology`]: there is no such dimension.
    pub fn cart_shift(&self, dimension: usize, displacement: i64) -> Result<Shift, Error> {
        Ok(self.grid()?.shift(self.rank(), dimension, displacement)?)
    }

    /// Where a rank is in the grid (`MPI_Cart_coords`).
    ///
    /// # Errors
    /// [`Error::NoGrid`]; [`Error::Topology`]: there is no such rank.
    pub fn cart_coords(&self, rank: u32) -> Result<Vec<u32>, Error> {
        Ok(self.grid()?.coords(rank)?)
    }

    /// Who is at a place of the grid (`MPI_Cart_rank`). Coordinates in periodic dimensions wrap.
    ///
    /// # Errors
    /// [`Error::NoGrid`]; [`Error::Topology`]: there is no such place.
    pub fn cart_rank(&self, coords: &[i64]) -> Result<u32, Error> {
        Ok(self.grid()?.rank(coords)?)
    }

    /// A communicator of the part of the grid that this rank is in if only the dimensions marked in `keep` are kept
    /// (`MPI_Cart_sub`, MPI 4.1 §8.5.7): of its row, for instance. Collective as [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// [`Error::NoGrid`]; [`Error::Topology`]; as [`dup`](Communicator::dup).
    pub fn cart_sub(&self, keep: &[bool]) -> Result<Communicator, Error> {
        let part = self.grid()?.sub(self.rank(), keep)?;
        // Ranks of a part are in the order of those of the grid.
        let made = self.split(Some(part.color), 0)?;
        let made = made.ok_or(PmlError::Bug { what: "a part of a grid for nobody" })?;
        Ok(made.arranged(Some(Topology::Cartesian(part.grid))))
    }

    fn grid(&self) -> Result<&Cartesian, Error> {
        match self.topology() {
            Some(Topology::Cartesian(grid)) => Ok(grid),
            _ => Err(Error::NoGrid),
        }
    }
}

/// Words of a note on its way: source, destination, whether there is a weight, weight.
const WORDS: usize = 4;

fn write(note: &Note) -> [u32; WORDS] {
    let weight = note.weight.unwrap_or(0);
    [note.source, note.destination, u32::from(note.weight.is_some()), weight]
}

fn read(words: &[u32]) -> Note {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let weight = (word(2) != 0).then_some(word(3));
    Note { source: word(0), destination: word(1), weight }
}
