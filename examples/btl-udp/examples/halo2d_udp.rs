//! The halo exchange of `examples/halo` over this transport alone:
//!
//! ```text
//! cargo run --example halo2d_udp -- -n 4
//! ```
//!
//! With `-n N` it starts itself N times; without, it is one process of whatever launcher started it
//! (`gapless run -n 4 …/halo2d_udp`).

use btl_udp::Udp;
use gapless::World;
use gapless::launch::{self, Job};
use gapless_halo::BlockMemory;
use gapless_halo::plate::{Plate, Summary, run};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => take_part(),
        ["-n", ranks] => start(ranks),
        other => Err(format!("usage: halo2d_udp [-n PROCESSES], not {other:?}").into()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("halo2d_udp: {error}");
        ExitCode::FAILURE
    })
}

/// Starts this program `ranks` times.
fn start(ranks: &str) -> Result<ExitCode, Box<dyn Error>> {
    let ranks = ranks.parse().map_err(|error| format!("-n {ranks}: {error}"))?;
    let program = std::env::current_exe()?.into_os_string();
    let job = Job { ranks, program, arguments: vec![], environment: vec![], prefix: true };
    Ok(launch::run(&job)?.exit_code().into())
}

/// One process of the job.
fn take_part() -> Result<ExitCode, Box<dyn Error>> {
    let world = World::builder().transport(Box::new(Udp::new()?)).only(["udp"]).init()?;
    let plate = Plate { rows: 480, columns: 640, steps: 50 };
    let Summary { grid, block, sent_bytes, wrong, .. } = run(&world, plate, BlockMemory::Host)?;
    println!(
        "rank {} of {} over udp ({} × {} processes): {} × {} cells, {sent_bytes} bytes sent, \
         {wrong} wrong",
        world.rank(),
        world.size(),
        grid.0,
        grid.1,
        block.0,
        block.1,
    );
    world.finalize()?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
