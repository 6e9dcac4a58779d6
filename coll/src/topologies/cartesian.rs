//! Grids of processes (MPI 4.1 §8.5).

use super::error::{check_length, check_rank};
use super::{Edge, Neighborhood, TopologyError};

/// A grid. Ranks run through it in row-major order: the last coordinate is the fastest.
///
/// ```
/// # use gapless_coll::topologies::Cartesian;
/// let grid = Cartesian::new(&[2, 3], &[true, false])?;
/// assert_eq!(grid.coords(5)?, [1, 2]);
/// assert_eq!(grid.rank(&[-1, 0])?, 3, "the first dimension is periodic");
/// assert_eq!(grid.shift(5, 1, 1)?.destination, None, "the second is not");
/// # Ok::<(), gapless_coll::topologies::TopologyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cartesian {
    dims: Box<[u32]>,
    periodic: Box<[bool]>,
    size: u32,
}

/// The two neighbours of a shift (`MPI_Cart_shift`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Who sends to this rank; `None` behind an edge of the grid.
    pub source: Option<u32>,
    /// Whom this rank sends to; `None` behind an edge of the grid.
    pub destination: Option<u32>,
}

/// The part of a grid that a rank is in after some dimensions were dropped (`MPI_Cart_sub`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sub {
    /// The number of the part: that of the coordinates in the dropped dimensions, in row-major order.
    pub color: u32,
    /// The part, with the dimensions that were kept.
    pub grid: Cartesian,
    /// The rank in the part.
    pub rank: u32,
}

impl Cartesian {
    /// A grid with these sides. Without any, it has one place.
    ///
    /// # Errors
    /// [`TopologyError::Length`] unless both lists are as long as each other; [`TopologyError::EmptyDimension`];
    /// [`TopologyError::TooLarge`].
    pub fn new(dims: &[u32], periodic: &[bool]) -> Result<Cartesian, TopologyError> {
        check_length("the list of periods", periodic.len(), dims.len())?;
        if let Some(dimension) = dims.iter().position(|side| *side == 0) {
            return Err(TopologyError::EmptyDimension { dimension });
        }
        let size = dims.iter().try_fold(1u32, |size, side| size.checked_mul(*side));
        let size = size.ok_or(TopologyError::TooLarge)?;
        Ok(Cartesian { dims: dims.into(), periodic: periodic.into(), size })
    }

    /// The sides.
    #[must_use]
    pub fn dims(&self) -> &[u32] {
        &self.dims
    }

    /// Which dimensions are periodic.
    #[must_use]
    pub fn periodic(&self) -> &[bool] {
        &self.periodic
    }

    /// Places in the grid.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether a communicator of so many processes can have this topology; those that are left over are not in it.
    ///
    /// # Errors
    /// [`TopologyError::TooFewProcesses`].
    pub fn check_fits(&self, processes: u32) -> Result<(), TopologyError> {
        let places = self.size;
        match places <= processes {
            true => Ok(()),
            false => Err(TopologyError::TooFewProcesses { places, processes }),
        }
    }

    /// Where a rank is (`MPI_Cart_coords`).
    ///
    /// # Errors
    /// [`TopologyError::Rank`].
    pub fn coords(&self, rank: u32) -> Result<Vec<u32>, TopologyError> {
        check_rank(rank, self.size)?;
        let mut rest = rank;
        let mut coords = vec![0; self.dims.len()];
        for (coordinate, side) in coords.iter_mut().zip(&self.dims).rev() {
            (rest, *coordinate) = (rest / side, rest % side);
        }
        Ok(coords)
    }

    /// Who is there (`MPI_Cart_rank`). Coordinates in periodic dimensions wrap.
    ///
    /// # Errors
    /// [`TopologyError::Length`]; [`TopologyError::Coordinate`].
    pub fn rank(&self, coords: &[i64]) -> Result<u32, TopologyError> {
        check_length("the list of coordinates", coords.len(), self.dims.len())?;
        let mut rank = 0;
        for (dimension, (&coordinate, &size)) in coords.iter().zip(&self.dims).enumerate() {
            let at = self.place(dimension, coordinate);
            let at = at.ok_or(TopologyError::Coordinate { dimension, coordinate, size })?;
            // At most the grid's size.
            rank = rank * size + at;
        }
        Ok(rank)
    }

    /// The coordinate inside the dimension, if there is one.
    fn place(&self, dimension: usize, coordinate: i64) -> Option<u32> {
        let (size, wraps) = (self.dims[dimension], self.periodic[dimension]);
        let inside = if wraps { coordinate.rem_euclid(i64::from(size)) } else { coordinate };
        u32::try_from(inside).ok().filter(|at| *at < size)
    }

    /// Who sends to a rank, and to whom it sends, if all send `displacement` places along a dimension
    /// (`MPI_Cart_shift`).
    ///
    /// # Errors
    /// [`TopologyError::Rank`], [`TopologyError::Dimension`].
    pub fn shift(
        &self,
        rank: u32,
        dimension: usize,
        displacement: i64,
    ) -> Result<Shift, TopologyError> {
        let coords = self.coords(rank)?;
        let dimensions = self.dims.len();
        let here =
            *coords.get(dimension).ok_or(TopologyError::Dimension { dimension, dimensions })?;
        // Places between neighbours along this dimension; at most the grid's size.
        let stride: u32 = self.dims[dimension + 1..].iter().product();
        let base = rank - here * stride;
        let there = |steps: Option<i64>| {
            let coordinate = i64::from(here).checked_add(steps?)?;
            Some(base + self.place(dimension, coordinate)? * stride)
        };
        // So far away that 64 bits do not hold it, only a periodic dimension has places.
        let side = i64::from(self.dims[dimension]);
        let steps = if self.periodic[dimension] { displacement % side } else { displacement };
        Ok(Shift { source: there(steps.checked_neg()), destination: there(Some(steps)) })
    }

    /// The part of the grid that a rank is in if only the dimensions marked in `keep` are kept (`MPI_Cart_sub`).
    /// Ranks of a part are ordered as in the grid.
    ///
    /// # Errors
    /// [`TopologyError::Rank`], [`TopologyError::Length`].
    pub fn sub(&self, rank: u32, keep: &[bool]) -> Result<Sub, TopologyError> {
        check_length("the list of dimensions to keep", keep.len(), self.dims.len())?;
        let coords = self.coords(rank)?;
        let (mut color, mut rank) = (0, 0);
        let (mut dims, mut periodic) = (Vec::new(), Vec::new());
        for (dimension, (&coordinate, &side)) in coords.iter().zip(&self.dims).enumerate() {
            if keep[dimension] {
                rank = rank * side + coordinate;
                dims.push(side);
                periodic.push(self.periodic[dimension]);
            } else {
                color = color * side + coordinate;
            }
        }
        Ok(Sub { color, grid: Cartesian::new(&dims, &periodic)?, rank })
    }

    /// A rank's neighbours: for each dimension, the one in the negative direction, then the one in the positive.
    ///
    /// # Errors
    /// [`TopologyError::Rank`].
    pub fn neighbors(&self, rank: u32) -> Result<Neighborhood, TopologyError> {
        check_rank(rank, self.size)?;
        let mut neighborhood = Neighborhood::default();
        let mut block = 0;
        for dimension in 0..self.dims.len() {
            let shift = self.shift(rank, dimension, 1)?;
            for neighbor in [shift.source, shift.destination] {
                let edge = |lane| neighbor.map(|rank| Edge { rank, lane });
                neighborhood.destinations.push(edge(block));
                // It was sent in the other direction.
                neighborhood.sources.push(edge(block ^ 1));
                block += 1;
            }
        }
        Ok(neighborhood)
    }
}
