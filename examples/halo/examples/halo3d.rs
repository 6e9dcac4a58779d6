//! A three-dimensional halo exchange with up to 26 neighbours, with any number of processes:
//!
//! ```text
//! cargo build --release --example halo3d
//! cargo run --release -- run -n 4 target/release/examples/halo3d [--device cuda|opencl] [--collective]
//! ```
//!
//! With `--collective` the exchange is one `neighbor_alltoallw` in the place of up to 52 messages; on CUDA devices it is
//! one kernel a process, from layout to layout.
//!
//! With `--device` the blocks lie in memory of devices, and are exchanged there; the steps are computed by the host. The
//! exchange itself is in the library: `src/cuboid.rs`.

use gapless::World;
use gapless_halo::cuboid::{Cuboid, Exchange, run};
use gapless_halo::{BlockMemory, STEPS_PER_RESIDUAL};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match halo() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("halo3d: {wrong} cells differ from the serial computation");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("halo3d: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives how many cells were wrong in this process.
fn halo() -> Result<usize, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let collective = arguments.iter().position(|argument| *argument == "--collective");
    collective.map(|at| arguments.remove(at));
    let exchange = if collective.is_some() { Exchange::Collective } else { Exchange::Messages };
    let world = World::init()?;
    let cuboid = Cuboid { sides: [48, 56, 64], steps: 50 };
    let summary = BlockMemory::chosen(&arguments, world.rank(), |memory| {
        run(&world, cuboid, memory, exchange)
    })?;
    let (grid, block) = (summary.grid, summary.block);
    println!(
        "rank {} of {} ({} × {} × {} processes): {} × {} × {} cells, {} neighbours, {} bytes sent, {} wrong",
        world.rank(),
        world.size(),
        grid[0],
        grid[1],
        grid[2],
        block[0],
        block[1],
        block[2],
        summary.neighbours,
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
