//! A two-dimensional halo exchange, with any number of processes:
//!
//! ```text
//! cargo build --release --example halo2d
//! cargo run --release -- run -n 4 target/release/examples/halo2d [--device cuda|opencl]
//! ```
//!
//! With `--device` the blocks lie in memory of devices, and are exchanged there; the steps are computed by the host. The
//! exchange itself is in the library: `src/plate.rs`.

use gapless::World;
use gapless_halo::plate::{Plate, run};
use gapless_halo::{BlockMemory, STEPS_PER_RESIDUAL};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match halo() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("halo2d: {wrong} cells differ from the serial computation");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("halo2d: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives how many cells were wrong in this process.
fn halo() -> Result<usize, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let world = World::init()?;
    let plate = Plate { rows: 480, columns: 640, steps: 50 };
    let summary =
        BlockMemory::chosen(&arguments, world.rank(), |memory| run(&world, plate, memory))?;
    let (grid, block) = (summary.grid, summary.block);
    println!(
        "rank {} of {} ({} × {} processes): {} × {} cells, {} bytes sent, {} wrong",
        world.rank(),
        world.size(),
        grid.0,
        grid.1,
        block.0,
        block.1,
        summary.sent_bytes,
        summary.wrong,
    );
    if world.rank() == 0 {
        for (at, residual) in (1..).zip(&summary.residuals) {
            println!("step {:3}: largest change {residual:.3e}", at * STEPS_PER_RESIDUAL);
        }
    }
    world.finalize()?;
    Ok(summary.wrong)
}
