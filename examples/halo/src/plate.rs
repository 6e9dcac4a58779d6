//! Heat spreading on a plate: every cell depends on the four beside it, so a block exchanges rows and columns with up to
//! four neighbours.
//!
//! A block is a row-major array with a ghost cell on each side. What is sent and received are boxes of it: a row is
//! contiguous, a column is not, and neither is packed by hand.

use crate::memory::{Exchanged, part};
use crate::{BlockMemory, OUTSIDE, STEPS_PER_RESIDUAL};
use gapless::{Communicator, Error, InPlace, Plan, ReduceOp, World};

/// The plate, and how long it is watched.
#[derive(Clone, Copy, Debug)]
pub struct Plate {
    /// Rows of cells, at least as many as there are processes.
    pub rows: usize,
    /// Columns of cells, at least as many as there are processes.
    pub columns: usize,
    /// Steps in time.
    pub steps: usize,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Rows and columns of the grid of processes.
    pub grid: (usize, usize),
    /// This process's rows and columns of cells.
    pub block: (usize, usize),
    /// Bytes that this process sent in all.
    pub sent_bytes: u64,
    /// The largest change of any cell of the plate, every [`STEPS_PER_RESIDUAL`] steps.
    pub residuals: Vec<f64>,
    /// Cells of this process, and residuals, that differ from the serial computation.
    pub wrong: usize,
}

/// Computes the plate on all processes of a world, and checks this process's block.
///
/// # Errors
/// A neighbour is lost; the plate is too small or too large; there is no such device.
pub fn run(world: &World, plate: Plate, memory: BlockMemory) -> Result<Summary, Error> {
    let comm = world.comm();
    let mut block = Block::new(comm, plate)?;
    let mut array = Exchanged::new(world, memory, &block.cells)?;
    let mut plan = block.plan(comm, &array)?;
    let (mut sent_bytes, mut residuals) = (0, Vec::new());
    for number in 1..=plate.steps {
        array.exchange(&mut plan, &mut block.cells)?;
        sent_bytes += plan.sent_bytes();
        let mut change = block.step();
        array.upload(&block.cells)?;
        if number.is_multiple_of(STEPS_PER_RESIDUAL) {
            comm.allreduce(InPlace, &mut change, ReduceOp::Max)?;
            residuals.push(change);
        }
    }
    let (whole, changes) = serially(plate);
    let mut wrong =
        residuals.iter().zip(&changes).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    for row in 0..block.rows {
        let start = (block.first.0 + row + 1) * (plate.columns + 2) + block.first.1 + 1;
        let mine = (row + 1) * (block.columns + 2) + 1;
        let expected = &whole[start..start + block.columns];
        let found = &block.cells[mine..mine + block.columns];
        wrong += expected.iter().zip(found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    }
    let (grid, size) = (block.grid, (block.rows, block.columns));
    Ok(Summary { grid, block: size, sent_bytes, residuals, wrong })
}

/// One process's part of the plate.
struct Block {
    grid: (usize, usize),
    /// Its first row and column of the plate.
    first: (usize, usize),
    rows: usize,
    columns: usize,
    /// With ghost cells: `rows + 2` by `columns + 2`.
    cells: Vec<f64>,
    next: Vec<f64>,
}

impl Block {
    fn new(comm: &Communicator, plate: Plate) -> Result<Block, Error> {
        let (size, me) = (comm.size() as usize, comm.rank() as usize);
        let grid = grid(size, plate);
        let (y, x) = (me / grid.1, me % grid.1);
        let cut = |all: usize, parts: usize, at: usize| all * at / parts;
        let first = (cut(plate.rows, grid.0, y), cut(plate.columns, grid.1, x));
        let rows = cut(plate.rows, grid.0, y + 1) - first.0;
        let columns = cut(plate.columns, grid.1, x + 1) - first.1;
        let mut block = Block {
            grid,
            first,
            rows,
            columns,
            cells: vec![OUTSIDE; (rows + 2) * (columns + 2)],
            next: vec![OUTSIDE; (rows + 2) * (columns + 2)],
        };
        for row in 0..rows {
            for column in 0..columns {
                let at = (row + 1) * (columns + 2) + column + 1;
                block.cells[at] = warmth(first.0 + row, first.1 + column);
            }
        }
        Ok(block)
    }

    /// The exchange of the rim with the neighbours: theirs comes into the ghost cells.
    fn plan(&self, comm: &Communicator, array: &Exchanged<'_>) -> Result<Plan, Error> {
        let (rows, columns) = (self.rows, self.columns);
        let row = |at: usize| part([rows + 2, columns + 2], [at, 1], [1, columns]);
        let column = |at: usize| part([rows + 2, columns + 2], [1, at], [rows, 1]);
        let me = comm.rank() as usize;
        let (y, x) = (me / self.grid.1, me % self.grid.1);
        let rank = |y: usize, x: usize| {
            u32::try_from(y * self.grid.1 + x).expect("ranks are numbered by u32")
        };
        let (north, south, west, east) = (0, 1, 2, 3);
        let above = (y > 0).then(|| rank(y - 1, x));
        let left = (x > 0).then(|| rank(y, x - 1));
        let below = (y + 1 < self.grid.0).then(|| rank(y + 1, x));
        let right = (x + 1 < self.grid.1).then(|| rank(y, x + 1));
        // Who is there, the tags of what goes and what comes (the direction it travels in), the inner cells, the ghost
        // cells.
        let sides = [
            (above, (north, south), row(1)?, row(0)?),
            (below, (south, north), row(rows)?, row(rows + 1)?),
            (left, (west, east), column(1)?, column(0)?),
            (right, (east, west), column(columns)?, column(columns + 1)?),
        ];
        let mut plan = array.plan(comm, &self.cells);
        for (neighbour, (going, coming), inner, ghosts) in sides {
            if let Some(peer) = neighbour {
                plan = plan.send(0, &inner, 1, peer, going)?;
                plan = plan.recv(0, &ghosts, 1, peer, coming)?;
            }
        }
        plan.build()
    }

    /// Gives the largest change.
    fn step(&mut self) -> f64 {
        let change = step(&self.cells, &mut self.next, self.rows, self.columns);
        std::mem::swap(&mut self.cells, &mut self.next);
        change
    }
}

/// One step: every cell moves towards the mean of its neighbours. Gives the largest change.
fn step(cells: &[f64], next: &mut [f64], rows: usize, columns: usize) -> f64 {
    let width = columns + 2;
    let mut change: f64 = 0.0;
    for row in 1..=rows {
        for column in 1..=columns {
            let at = row * width + column;
            let around = (cells[at - width] + cells[at + width]) + (cells[at - 1] + cells[at + 1]);
            next[at] = 0.5 * cells[at] + 0.125 * around;
            change = change.max((next[at] - cells[at]).abs());
        }
    }
    change
}

/// The whole plate, computed by one process, with the ghost cells around it; and its residuals.
fn serially(plate: Plate) -> (Vec<f64>, Vec<f64>) {
    let Plate { rows, columns, steps } = plate;
    let mut cells = vec![OUTSIDE; (rows + 2) * (columns + 2)];
    let mut next = cells.clone();
    for row in 0..rows {
        for column in 0..columns {
            cells[(row + 1) * (columns + 2) + column + 1] = warmth(row, column);
        }
    }
    let mut residuals = Vec::new();
    for number in 1..=steps {
        let change = step(&cells, &mut next, rows, columns);
        std::mem::swap(&mut cells, &mut next);
        if number.is_multiple_of(STEPS_PER_RESIDUAL) {
            residuals.push(change);
        }
    }
    (cells, residuals)
}

/// What a cell holds at first.
fn warmth(row: usize, column: usize) -> f64 {
    let mixed = (row * 31 + column * 17) % 97;
    u32::try_from(mixed).map_or(0.0, f64::from) / 97.0
}

/// The grid of `size` processes with the shortest rims in all.
fn grid(size: usize, plate: Plate) -> (usize, usize) {
    let rim = |&(rows, columns): &(usize, usize)| rows * plate.columns + columns * plate.rows;
    let divisors = (1..=size).filter(|rows| size.is_multiple_of(*rows));
    divisors.map(|rows| (rows, size / rows)).min_by_key(rim).unwrap_or((1, size))
}
