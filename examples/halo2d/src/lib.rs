//! Heat spreading on a plate that is cut into blocks, one for each process: after every step the
//! blocks exchange their rims. It needs nothing but a communicator, so it runs over any transport.
//!
//! A block is a row-major array with a ghost cell on each side. A row of the rim is contiguous; a
//! column is a vector type, sent and received in place, without packing by hand. The result is
//! compared with the whole plate computed by one process, bit by bit.

#![forbid(unsafe_code)]

use gapless::{Communicator, Datatype, Error, Layout, Parts, Primitive};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Rows and columns of the grid of processes.
    pub grid: (usize, usize),
    /// This process's rows and columns of cells.
    pub block: (usize, usize),
    /// Bytes that this process sent in all.
    pub sent_bytes: u64,
    /// Cells of this process that differ from the serial computation.
    pub wrong: usize,
}

/// What the ghost cells outside the plate hold.
const OUTSIDE: f64 = 0.0;

/// Computes the plate on all processes of `comm`, and checks this process's block.
///
/// # Errors
/// A neighbour is lost; the plate is too small or too large.
pub fn run(comm: &Communicator, plate: Plate) -> Result<Summary, Error> {
    let mut block = Block::new(comm, plate)?;
    let mut sent_bytes = 0;
    for _ in 0..plate.steps {
        sent_bytes += block.exchange(comm)?;
        block.step();
    }
    let whole = serially(plate);
    let mut wrong = 0;
    for row in 0..block.rows {
        let start = (block.first.0 + row + 1) * (plate.columns + 2) + block.first.1 + 1;
        let mine = (row + 1) * (block.columns + 2) + 1;
        let expected = &whole[start..start + block.columns];
        let found = &block.cells[mine..mine + block.columns];
        wrong += expected.iter().zip(found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    }
    let (grid, size) = (block.grid, (block.rows, block.columns));
    Ok(Summary { grid, block: size, sent_bytes, wrong })
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
    rims: Vec<Rim>,
}

/// One side of a block: who is there, what goes to them, and where theirs comes.
struct Rim {
    neighbour: u32,
    /// Tags of what goes and what comes: the direction it travels in.
    tags: (i32, i32),
    /// Elements into the array where the inner cells and the ghost cells begin.
    origins: (u64, u64),
    layout: Layout,
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
            rims: Vec::new(),
        };
        for row in 0..rows {
            for column in 0..columns {
                let at = (row + 1) * (columns + 2) + column + 1;
                block.cells[at] = warmth(first.0 + row, first.1 + column);
            }
        }
        block.rims = block.rims_at(y, x)?;
        Ok(block)
    }

    /// The sides on which there is a neighbour.
    fn rims_at(&self, y: usize, x: usize) -> Result<Vec<Rim>, Error> {
        let (rows, columns, width) = (self.rows as u64, self.columns as u64, self.columns + 2);
        let double = Datatype::from(Primitive::Double);
        let row = Datatype::contiguous(columns, &double)?.commit()?;
        let stride = i64::try_from(width).expect("a row fits memory");
        let column = Datatype::vector(rows, 1, stride, &double)?.commit()?;
        let at = |row: usize, column: usize| (row * width + column) as u64;
        let rank = |y: usize, x: usize| {
            u32::try_from(y * self.grid.1 + x).expect("ranks are numbered by u32")
        };
        let (last_row, last_column) = (self.rows, self.columns);
        let mut rims = Vec::new();
        let mut add = |neighbour: Option<u32>, tags, origins, layout: &Layout| {
            if let Some(neighbour) = neighbour {
                rims.push(Rim { neighbour, tags, origins, layout: layout.clone() });
            }
        };
        let (north, south, west, east) = (0, 1, 2, 3);
        let above = (y > 0).then(|| rank(y - 1, x));
        let left = (x > 0).then(|| rank(y, x - 1));
        let below = (y + 1 < self.grid.0).then(|| rank(y + 1, x));
        let right = (x + 1 < self.grid.1).then(|| rank(y, x + 1));
        add(above, (north, south), (at(1, 1), at(0, 1)), &row);
        add(below, (south, north), (at(last_row, 1), at(last_row + 1, 1)), &row);
        add(left, (west, east), (at(1, 1), at(1, 0)), &column);
        add(right, (east, west), (at(1, last_column), at(1, last_column + 1)), &column);
        Ok(rims)
    }

    /// Sends the rim to the neighbours and receives theirs into the ghost cells, all at once. Gives
    /// the bytes sent.
    fn exchange(&mut self, comm: &Communicator) -> Result<u64, Error> {
        let Block { cells, rims, .. } = self;
        comm.scope(|s| {
            let mut parts = Parts::of(cells);
            let mut sent_bytes = 0;
            for rim in rims.iter() {
                let ghosts = parts.view_mut(rim.origins.1, &rim.layout, 1)?;
                let _ = s.irecv(ghosts, rim.neighbour, rim.tags.1)?;
            }
            for rim in rims.iter() {
                let inner = parts.view(rim.origins.0, &rim.layout, 1)?;
                sent_bytes += inner.packed_bytes();
                let _ = s.isend(inner, rim.neighbour, rim.tags.0)?;
            }
            Ok(sent_bytes)
        })
    }

    fn step(&mut self) {
        step(&self.cells, &mut self.next, self.rows, self.columns);
        std::mem::swap(&mut self.cells, &mut self.next);
    }
}

/// One step: every cell moves towards the mean of its neighbours.
fn step(cells: &[f64], next: &mut [f64], rows: usize, columns: usize) {
    let width = columns + 2;
    for row in 1..=rows {
        for column in 1..=columns {
            let at = row * width + column;
            let around = (cells[at - width] + cells[at + width]) + (cells[at - 1] + cells[at + 1]);
            next[at] = 0.5 * cells[at] + 0.125 * around;
        }
    }
}

/// The whole plate, computed by one process; with the ghost cells around it.
fn serially(plate: Plate) -> Vec<f64> {
    let Plate { rows, columns, steps } = plate;
    let mut cells = vec![OUTSIDE; (rows + 2) * (columns + 2)];
    let mut next = cells.clone();
    for row in 0..rows {
        for column in 0..columns {
            cells[(row + 1) * (columns + 2) + column + 1] = warmth(row, column);
        }
    }
    for _ in 0..steps {
        step(&cells, &mut next, rows, columns);
        std::mem::swap(&mut cells, &mut next);
    }
    cells
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
