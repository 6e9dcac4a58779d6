//! A distributed three-dimensional Fourier transform, forth and back:
//!
//! ```text
//! cargo build --release --example fft3d
//! cargo run --release -- run -n 4 target/release/examples/fft3d [SIDE] [--device cuda]
//! ```
//!
//! With `--device cuda` the exchange is one kernel a process, from layout to layout between GPUs: at most a process a GPU,
//! or several on one under MPS. The library beside says how it is done.

use gapless::{CudaDriver, World};
use gapless_fft3d::{TransposeMemory, run};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match transform() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("fft3d: the transform is wrong");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("fft3d: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives whether all went well.
fn transform() -> Result<bool, Box<dyn Error>> {
    let mut side = 64;
    let mut arguments = std::env::args().skip(1);
    let world = World::init()?;
    let mut memory = TransposeMemory::Host;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--device" if arguments.next().as_deref() == Some("cuda") => {
                let devices = CudaDriver::load()?.devices();
                let device = world.rank().checked_rem(devices).ok_or("there is no CUDA device")?;
                memory = TransposeMemory::Cuda(device);
            }
            number => side = number.parse().map_err(|_| "usage: [SIDE] [--device cuda]")?,
        }
    }
    let summary = run(&world, side, memory)?;
    println!(
        "rank {} of {}: {} planes of {side} × {side}, {} bytes sent in {:.2e} and {:.2e} s, {} wrong, off by {:.1e} at most",
        world.rank(),
        world.size(),
        summary.planes,
        summary.sent_bytes,
        summary.exchange_s[0],
        summary.exchange_s[1],
        summary.wrong,
        summary.error,
    );
    world.finalize()?;
    Ok(summary.wrong == 0 && summary.error < 1e-12)
}
