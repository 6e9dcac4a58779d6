//! Graphs that every rank knows whole (`MPI_Graph_create`, MPI 4.1 §8.5.3).

use super::error::{check_length, check_rank};
use super::{Neighborhood, TopologyError, in_turn};
use std::collections::BTreeMap;

/// A graph with a node for each rank. Nodes may be their own neighbours, or the same one's several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where each node's edges end in `edges`.
    index: Box<[usize]>,
    edges: Box<[u32]>,
}

impl Graph {
    /// The graph whose node `i` has the neighbours `edges[index[i - 1]..index[i]]`, with 0 before the first.
    ///
    /// # Errors
    /// [`TopologyError::Index`] where the index decreases; [`TopologyError::Length`] if its last entry is not the
    /// number of edges; [`TopologyError::Rank`] for a neighbour that is no node; [`TopologyError::TooLarge`].
    pub fn new(index: &[usize], edges: &[u32]) -> Result<Graph, TopologyError> {
        let nodes = u32::try_from(index.len()).map_err(|_| TopologyError::TooLarge)?;
        if let Some(before) = index.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(TopologyError::Index { node: before + 1 });
        }
        check_length("the list of edges", edges.len(), index.last().copied().unwrap_or(0))?;
        edges.iter().try_for_each(|neighbor| check_rank(*neighbor, nodes))?;
        Ok(Graph { index: index.into(), edges: edges.into() })
    }

    /// How many nodes there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.index.len()).unwrap_or(u32::MAX)
    }

    /// Where each node's edges end (`MPI_Graph_get`).
    #[must_use]
    pub fn index(&self) -> &[usize] {
        &self.index
    }

    /// All nodes' neighbours (`MPI_Graph_get`).
    #[must_use]
    pub fn edges(&self) -> &[u32] {
        &self.edges
    }

    /// A rank's neighbours in the order of its edges (`MPI_Graph_neighbors`).
    ///
    /// # Errors
    /// [`TopologyError::Rank`].
    pub fn neighbors_of(&self, rank: u32) -> Result<&[u32], TopologyError> {
        check_rank(rank, self.size())?;
        let node = rank as usize;
        let first = node.checked_sub(1).map_or(0, |before| self.index[before]);
        Ok(&self.edges[first..self.index[node]])
    }

    /// What a rank sends and receives in neighbourhood collectives: a block to and from each neighbour.
    ///
    /// # Errors
    /// [`TopologyError::Rank`]; [`TopologyError::NotSymmetric`] if anywhere two nodes have not as many edges to each
    /// other (MPI 4.1 §8.6 asks for it). All ranks get the same error.
    pub fn neighbors(&self, rank: u32) -> Result<Neighborhood, TopologyError> {
        let edges = in_turn(self.neighbors_of(rank)?.iter().copied());
        self.check_symmetric()?;
        Ok(Neighborhood { sources: edges.clone(), destinations: edges })
    }

    fn check_symmetric(&self) -> Result<(), TopologyError> {
        let mut edges = BTreeMap::<(u32, u32), u64>::new();
        for one in 0..self.size() {
            for other in self.neighbors_of(one)? {
                *edges.entry((one, *other)).or_default() += 1;
            }
        }
        for (&(one, other), &forward) in &edges {
            let backward = edges.get(&(other, one)).copied().unwrap_or(0);
            if forward != backward {
                return Err(TopologyError::NotSymmetric { one, other, forward, backward });
            }
        }
        Ok(())
    }
}
