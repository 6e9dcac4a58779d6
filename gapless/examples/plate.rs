//! Heat spreads on a plate that is cut into blocks, a rank each: the program of [the
//! tutorial](../../docs/tutorial/2-halo-exchange.md).
//!
//! ```sh
//! cargo build --release -p gapless --example plate
//! cargo run --release -- run -n 4 target/release/examples/plate
//! ```

use gapless::coll::topologies::dims_create;
use gapless::prelude::*;

/// Rows and columns of a rank's block, without its ghost cells, and with them.
const CELLS: [usize; 2] = [32, 48];
const WIDTH: usize = CELLS[1] + 2;

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let comm = world.comm();
    // A grid of ranks as square as possible. Beyond the edges there is nobody.
    let sides = dims_create(comm.size(), &[0, 0])?;
    let grid =
        comm.cart_create(&sides, &[false, false], false)?.expect("there is a place for each rank");

    let mut cells = vec![0.0f64; (CELLS[0] + 2) * WIDTH];
    if grid.rank() == 0 {
        cells[WIDTH + 1] = 1000.0; // somebody holds a match to a corner
    }
    let mut next = cells.clone();

    let row = Datatype::contiguous(CELLS[1] as u64, &f64::datatype())?.commit()?;
    let column = Datatype::vector(CELLS[0] as u64, 1, WIDTH as i64, &f64::datatype())?.commit()?;
    let at = |row: usize, column: usize| (row * WIDTH + column) as u64;
    let [last_row, last_column] = CELLS;
    let mut plan = grid.plan(&cells);
    // Along each dimension: its tags, which cells go to who is before us and behind us, where theirs come.
    for (dimension, (down, up), layout, first, last, before, behind) in [
        (0, (0, 1), &row, at(1, 1), at(last_row, 1), at(0, 1), at(last_row + 1, 1)),
        (1, (2, 3), &column, at(1, 1), at(1, last_column), at(1, 0), at(1, last_column + 1)),
    ] {
        let shift = grid.cart_shift(dimension, 1)?;
        if let Some(rank) = shift.source {
            plan = plan.send(first, layout, 1, rank, down)?.recv(before, layout, 1, rank, up)?;
        }
        if let Some(rank) = shift.destination {
            plan = plan.send(last, layout, 1, rank, up)?.recv(behind, layout, 1, rank, down)?;
        }
    }
    let mut plan = plan.build()?;

    for step in 0..100 {
        plan.exchange(&mut cells)?; // all sides at once; afterwards the array is ours again
        let mut change: f64 = 0.0;
        for row in 1..=CELLS[0] {
            for column in 1..=CELLS[1] {
                let at = row * WIDTH + column;
                let around = cells[at - WIDTH] + cells[at + WIDTH] + cells[at - 1] + cells[at + 1];
                next[at] = 0.5 * cells[at] + 0.125 * around;
                change = change.max((next[at] - cells[at]).abs());
            }
        }
        std::mem::swap(&mut cells, &mut next);
        if step % 10 == 9 {
            // The largest change of all blocks: is it time to stop?
            grid.allreduce(InPlace, &mut change, ReduceOp::Max)?;
            if change < 0.5 {
                break;
            }
        }
    }

    // No heat has come from nowhere.
    let inner = |row: usize| &cells[row * WIDTH + 1..][..CELLS[1]];
    let mut heat: f64 = (1..=CELLS[0]).flat_map(inner).sum();
    grid.allreduce(InPlace, &mut heat, ReduceOp::Sum)?;
    assert!(heat > 0.0 && heat <= 1000.0, "{heat}");
    world.finalize()
}
