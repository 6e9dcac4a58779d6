//! Graphs of which each rank knows its own edges (`MPI_Dist_graph_create_adjacent`, `MPI_Dist_graph_create`, MPI 4.1
//! §8.5.4).

use super::error::{check_length, check_rank};
use super::{Neighborhood, TopologyError, in_turn};

/// A neighbour, and the weight of the edge if edges have weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightedRank {
    /// The neighbour.
    pub rank: u32,
    /// The weight that the user gave.
    pub weight: Option<u32>,
}

/// The edges of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DistGraph {
    sources: Box<[WeightedRank]>,
    destinations: Box<[WeightedRank]>,
    is_weighted: bool,
}

/// The edges that one rank gives to `MPI_Dist_graph_create`: any, not only its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contribution {
    /// The sources that it gives edges of.
    pub sources: Vec<u32>,
    /// How many edges it gives of each source.
    pub degrees: Vec<u32>,
    /// The destinations of these edges: those of the first source first.
    pub destinations: Vec<u32>,
    /// The edges' weights, in the same order.
    pub weights: Option<Vec<u32>>,
}

/// An edge of a distributed graph as one process tells it another one that is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// Who sends along the edge.
    pub source: u32,
    /// Who receives along it.
    pub destination: u32,
    /// Its weight, if edges have weights.
    pub weight: Option<u32>,
}

fn weighted(
    what: &'static str,
    size: u32,
    ranks: &[u32],
    weights: Option<&[u32]>,
) -> Result<Box<[WeightedRank]>, TopologyError> {
    check_length(what, weights.map_or(ranks.len(), <[u32]>::len), ranks.len())?;
    ranks.iter().try_for_each(|rank| check_rank(*rank, size))?;
    let weight = |edge: usize| weights.map(|weights| weights[edge]);
    let edges = ranks.iter().enumerate();
    Ok(edges.map(|(edge, rank)| WeightedRank { rank: *rank, weight: weight(edge) }).collect())
}

impl DistGraph {
    /// The edges that a rank gave of itself (`MPI_Dist_graph_create_adjacent`), among `size` ranks. Their order is that
    /// of neighbourhood collectives' blocks.
    ///
    /// # Errors
    /// [`TopologyError::Rank`], [`TopologyError::Length`].
    pub fn adjacent(
        size: u32,
        sources: &[u32],
        source_weights: Option<&[u32]>,
        destinations: &[u32],
        destination_weights: Option<&[u32]>,
    ) -> Result<DistGraph, TopologyError> {
        Ok(DistGraph {
            is_weighted: source_weights.is_some() || destination_weights.is_some(),
            sources: weighted("the list of sources' weights", size, sources, source_weights)?,
            destinations: weighted(
                "the list of destinations' weights",
                size,
                destinations,
                destination_weights,
            )?,
        })
    }

    /// The edges of `rank`, put together from the notes that each rank of the communicator had for it
    /// ([`Contribution::notes_for`]), in the order of these ranks. So both ends of an edge have it in the same place
    /// among the edges of the same two ranks, and every run of a program gives the same order. `gave_weights`: the rank
    /// itself gave a list of weights, perhaps an empty one.
    ///
    /// # Errors
    /// [`TopologyError::Weights`] unless all edges have weights, or none.
    pub fn assemble<'a>(
        rank: u32,
        gave_weights: bool,
        notes: impl IntoIterator<Item = &'a [Note]>,
    ) -> Result<DistGraph, TopologyError> {
        let (mut sources, mut destinations) = (Vec::new(), Vec::new());
        let mut has_weights = gave_weights.then_some(true);
        for note in notes.into_iter().flatten() {
            let weight = note.weight;
            if *has_weights.get_or_insert(weight.is_some()) != weight.is_some() {
                return Err(TopologyError::Weights { rank });
            }
            if note.destination == rank {
                sources.push(WeightedRank { rank: note.source, weight });
            }
            if note.source == rank {
                destinations.push(WeightedRank { rank: note.destination, weight });
            }
        }
        let (sources, destinations) = (sources.into(), destinations.into());
        Ok(DistGraph { sources, destinations, is_weighted: has_weights == Some(true) })
    }

    /// Whether weights were given, also if there is no edge (`MPI_Dist_graph_neighbors_count`, MPI 4.1 §8.5.5).
    #[must_use]
    pub fn is_weighted(&self) -> bool {
        self.is_weighted
    }

    /// Who sends to this rank.
    #[must_use]
    pub fn sources(&self) -> &[WeightedRank] {
        &self.sources
    }

    /// Whom this rank sends to.
    #[must_use]
    pub fn destinations(&self) -> &[WeightedRank] {
        &self.destinations
    }

    /// What the rank sends and receives in neighbourhood collectives.
    #[must_use]
    pub fn neighbors(&self) -> Neighborhood {
        let edges = |list: &[WeightedRank]| in_turn(list.iter().map(|edge| edge.rank));
        Neighborhood { sources: edges(&self.sources), destinations: edges(&self.destinations) }
    }
}

impl Contribution {
    /// The edges, in the order in which they were given.
    ///
    /// # Errors
    /// [`TopologyError::Length`], [`TopologyError::Rank`] for ranks that are not among `size`.
    pub fn edges(&self, size: u32) -> Result<Vec<Note>, TopologyError> {
        check_length("the list of degrees", self.degrees.len(), self.sources.len())?;
        let edges =
            self.degrees.iter().fold(0usize, |sum, degree| sum.saturating_add(*degree as usize));
        check_length("the list of destinations", self.destinations.len(), edges)?;
        let weights = self.weights.as_ref().map_or(edges, Vec::len);
        check_length("the list of weights", weights, edges)?;
        let ranks = self.sources.iter().chain(&self.destinations);
        ranks.copied().try_for_each(|rank| check_rank(rank, size))?;
        let repeated = self.sources.iter().zip(&self.degrees);
        let sources =
            repeated.flat_map(|(source, degree)| std::iter::repeat_n(*source, *degree as usize));
        let weight = |edge: usize| self.weights.as_ref().map(|weights| weights[edge]);
        let edges = sources.zip(&self.destinations).enumerate();
        let note = |(edge, (source, destination)): (usize, (u32, &u32))| Note {
            source,
            destination: *destination,
            weight: weight(edge),
        };
        Ok(edges.map(note).collect())
    }

    /// What each of `size` ranks has to be told: the edges that it is an end of, an edge to itself once, in the order
    /// in which they were given.
    ///
    /// # Errors
    /// As [`edges`](Contribution::edges).
    pub fn notes_for(&self, size: u32) -> Result<Vec<Vec<Note>>, TopologyError> {
        let mut notes = vec![Vec::new(); size as usize];
        for note in self.edges(size)? {
            notes[note.source as usize].push(note);
            if note.destination != note.source {
                notes[note.destination as usize].push(note);
            }
        }
        Ok(notes)
    }
}
