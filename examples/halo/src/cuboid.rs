//! Heat spreading in a cuboid: every cell depends on the 26 around it, so a block exchanges faces, edges and corners with
//! up to 26 neighbours.
//!
//! - The processes form a grid ([`cart_create`](gapless::Communicator::cart_create)); a neighbour is found by its place.
//! - A block is a row-major array with a ghost cell on each side. What is sent and received are boxes of it, described
//!   once: by a plan of up to 52 messages, or as the blocks of one collective on a graph of the neighbours.
//! - How much still changes is found by an allreduce now and then.

use crate::memory::{Exchanged, part};
use crate::rim::{Neighbour, Rim};
use crate::{BlockMemory, OUTSIDE, STEPS_PER_RESIDUAL};
use gapless::coll::topologies::dims_create;
use gapless::{Communicator, Error, InPlace, Plan, ReduceOp, World};

/// The cuboid, and how long it is watched.
#[derive(Clone, Copy, Debug)]
pub struct Cuboid {
    /// Cells along each side, at least as many as there are processes.
    pub sides: [usize; 3],
    /// Steps in time.
    pub steps: usize,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Processes along each side of the cuboid.
    pub grid: [usize; 3],
    /// This process's cells along each side.
    pub block: [usize; 3],
    /// With how many processes it exchanges.
    pub neighbours: usize,
    /// Bytes that this process sent in all.
    pub sent_bytes: u64,
    /// The largest change of any cell, every [`STEPS_PER_RESIDUAL`] steps.
    pub residuals: Vec<f64>,
    /// Cells of this process, and residuals, that differ from the serial computation.
    pub wrong: usize,
}

/// How blocks exchange their rims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// By a plan of messages.
    Messages,
    /// By one collective among neighbours; in memory of CUDA devices, on a stream.
    Collective,
}

/// What exchanges them.
enum HaloExchange<'w> {
    Messages(Box<Plan>),
    Collective(Box<Rim<'w>>),
}

/// Computes the cuboid on all processes of a world, and checks this process's block.
///
/// # Errors
/// A neighbour is lost; the cuboid is too small or too large; there is no such device.
pub fn run(
    world: &World,
    cuboid: Cuboid,
    memory: BlockMemory,
    exchange: Exchange,
) -> Result<Summary, Error> {
    let grid = dims_create(world.size(), &[0; 3])?;
    let comm = world.comm().cart_create(&grid, &[false; 3], false)?;
    let comm = comm.expect("the grid has a place for each rank");
    let mut block = Block::new(&comm, cuboid)?;
    let mut array = Exchanged::new(world, memory, &block.cells)?;
    let neighbours = block.neighbours(&comm)?;
    let sent: u64 = neighbours.iter().map(|neighbour| neighbour.going.size()).sum();
    let mut way = match exchange {
        Exchange::Messages => {
            HaloExchange::Messages(Box::new(messages(&comm, &block, &array, &neighbours)?))
        }
        Exchange::Collective => {
            HaloExchange::Collective(Box::new(Rim::new(&comm, &array, &neighbours)?))
        }
    };
    let (mut sent_bytes, mut residuals) = (0, Vec::new());
    for number in 1..=cuboid.steps {
        match &mut way {
            HaloExchange::Messages(plan) => array.exchange(plan, &mut block.cells)?,
            HaloExchange::Collective(rim) => rim.exchange(&mut array, &mut block.cells)?,
        }
        sent_bytes += sent;
        let mut change = block.step();
        array.upload(&block.cells)?;
        if number.is_multiple_of(STEPS_PER_RESIDUAL) {
            comm.allreduce(InPlace, &mut change, ReduceOp::Max)?;
            residuals.push(change);
        }
    }
    let (whole, changes) = serially(cuboid);
    let differs = |(one, other): &(&f64, &f64)| one.to_bits() != other.to_bits();
    let mut wrong = residuals.iter().zip(&changes).filter(differs).count();
    for place in places(block.sides) {
        let there: [usize; 3] = std::array::from_fn(|side| block.first[side] + place[side]);
        let (mine, theirs) = (inner(block.sides, place), inner(cuboid.sides, there));
        wrong += usize::from(differs(&(&block.cells[mine], &whole[theirs])));
    }
    let grid = std::array::from_fn(|side| grid[side] as usize);
    let (block, neighbours) = (block.sides, neighbours.len());
    Ok(Summary { grid, block, neighbours, sent_bytes, residuals, wrong })
}

/// One process's part of the cuboid.
struct Block {
    /// Its first cell in the cuboid.
    first: [usize; 3],
    /// Its cells along each side, without ghost cells.
    sides: [usize; 3],
    /// With ghost cells.
    cells: Vec<f64>,
    next: Vec<f64>,
}

impl Block {
    fn new(comm: &Communicator, cuboid: Cuboid) -> Result<Block, Error> {
        let grid = dims_create(comm.size(), &[0; 3])?;
        let at = comm.cart_coords(comm.rank())?;
        let cut = |side: usize, at: u32| cuboid.sides[side] * at as usize / grid[side] as usize;
        let first: [usize; 3] = std::array::from_fn(|side| cut(side, at[side]));
        let sides = std::array::from_fn(|side| cut(side, at[side] + 1) - first[side]);
        let mut cells = vec![OUTSIDE; padded(sides).iter().product()];
        for place in places(sides) {
            cells[inner(sides, place)] =
                warmth(std::array::from_fn(|side| first[side] + place[side]));
        }
        let next = vec![OUTSIDE; cells.len()];
        Ok(Block { first, sides, cells, next })
    }

    /// All neighbours, in the order of the ways to them.
    fn neighbours(&self, comm: &Communicator) -> Result<Vec<Neighbour>, Error> {
        let at = comm.cart_coords(comm.rank())?;
        let mut neighbours = Vec::new();
        for (tag, way) in (0..).zip(ways()) {
            let there: [i64; 3] = std::array::from_fn(|side| i64::from(at[side]) + way[side]);
            // Outside the grid nobody is.
            let Ok(rank) = comm.cart_rank(&there) else { continue };
            let pick = |back: usize, along: usize, ahead: usize, side: usize| match way[side] {
                -1 => back,
                0 => along,
                _ => ahead,
            };
            let lens = std::array::from_fn(|side| pick(1, self.sides[side], 1, side));
            let going = std::array::from_fn(|side| pick(1, 1, self.sides[side], side));
            let ghosts = std::array::from_fn(|side| pick(0, 1, self.sides[side] + 1, side));
            let layout = |starts| part(padded(self.sides), starts, lens);
            let (going, ghosts) = (layout(going)?, layout(ghosts)?);
            neighbours.push(Neighbour { rank, way: tag, going, ghosts });
        }
        Ok(neighbours)
    }

    /// Gives the largest change.
    fn step(&mut self) -> f64 {
        let change = step(&self.cells, &mut self.next, self.sides);
        std::mem::swap(&mut self.cells, &mut self.next);
        change
    }
}

/// The exchange with all neighbours, as messages.
fn messages(
    comm: &Communicator,
    block: &Block,
    array: &Exchanged<'_>,
    neighbours: &[Neighbour],
) -> Result<Plan, Error> {
    let mut plan = array.plan(comm, &block.cells);
    for Neighbour { rank, way, going, ghosts } in neighbours {
        // A tag is the way that a message goes. What comes from there goes the opposite way.
        plan = plan.send(0, going, 1, *rank, *way)?;
        plan = plan.recv(0, ghosts, 1, *rank, 25 - *way)?;
    }
    plan.build()
}

/// The 26 ways to a neighbour; the opposite of the first is the last, and so on.
fn ways() -> impl Iterator<Item = [i64; 3]> {
    let each = (0..27).map(|number| [number / 9 - 1, number / 3 % 3 - 1, number % 3 - 1]);
    each.filter(|way| *way != [0; 3])
}

/// With the ghost cells.
fn padded(sides: [usize; 3]) -> [usize; 3] {
    sides.map(|side| side + 2)
}

/// All cells without the ghost cells.
fn places([deep, high, wide]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..deep).flat_map(move |z| (0..high).flat_map(move |y| (0..wide).map(move |x| [z, y, x])))
}

/// Where one of those is in the array.
fn inner(sides: [usize; 3], [z, y, x]: [usize; 3]) -> usize {
    let [_, high, wide] = padded(sides);
    ((z + 1) * high + y + 1) * wide + x + 1
}

/// One step: every cell moves towards the mean of those around it, which are added in one order. Gives the largest
/// change.
fn step(cells: &[f64], next: &mut [f64], sides: [usize; 3]) -> f64 {
    let [_, high, wide] = padded(sides).map(usize::cast_signed);
    let around: Vec<isize> = (-1..=1)
        .flat_map(|z| (-1..=1).flat_map(move |y| (-1..=1).map(move |x| (z * high + y) * wide + x)))
        .filter(|offset| *offset != 0)
        .collect();
    let mut change: f64 = 0.0;
    for place in places(sides) {
        let at = inner(sides, place);
        let sum =
            around.iter().fold(0.0, |sum, offset| sum + cells[at.wrapping_add_signed(*offset)]);
        next[at] = 0.5 * cells[at] + sum / 52.0;
        change = change.max((next[at] - cells[at]).abs());
    }
    change
}

/// The whole cuboid, computed by one process, with the ghost cells around it; and its residuals.
fn serially(Cuboid { sides, steps }: Cuboid) -> (Vec<f64>, Vec<f64>) {
    let mut cells = vec![OUTSIDE; padded(sides).iter().product()];
    let mut next = cells.clone();
    for place in places(sides) {
        cells[inner(sides, place)] = warmth(place);
    }
    let mut residuals = Vec::new();
    for number in 1..=steps {
        let change = step(&cells, &mut next, sides);
        std::mem::swap(&mut cells, &mut next);
        if number.is_multiple_of(STEPS_PER_RESIDUAL) {
            residuals.push(change);
        }
    }
    (cells, residuals)
}

/// What a cell holds at first.
fn warmth([z, y, x]: [usize; 3]) -> f64 {
    let mixed = (z * 41 + y * 31 + x * 17) % 97;
    u32::try_from(mixed).map_or(0.0, f64::from) / 97.0
}
