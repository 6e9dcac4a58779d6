//! Trains a small network on handwritten digits, data-parallel, once by each way in which gradients can be summed:
//!
//! ```text
//! cargo build --release --example sgd
//! cargo run --release -- run -n 2 target/release/examples/sgd [STEPS]
//! ```
//!
//! Rank 0 says how each went. By messages and by XTQ sums are made in the same order, so losses must be the same bit
//! for bit; the default adds in another order. The library beside says how it is done.

use gapless::xtq::CudaWorker;
use gapless::{CudaDriver, InPlace, ReduceOp, World};
use gapless_sgd::{Options, SumMode, Summary, Workers, train, train_by};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

/// By how much losses may differ that were summed in another order, relative to the first.
const TOLERANCE: f32 = 1e-3;

fn main() -> ExitCode {
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("sgd: the losses differ");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("sgd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives whether all losses are as they must be.
fn compare() -> Result<bool, Box<dyn Error>> {
    let mut options = Options::default();
    if let Some(steps) = std::env::args().nth(1) {
        options.steps = steps.parse().map_err(|_| "usage: [STEPS]")?;
    }
    let world = World::init()?;
    let says = world.rank() == 0;
    if says {
        println!(
            "{:<10}{:>8}{:>12}{:>8}{:>10}{:>10}  losses",
            "gradients", "steps", "last loss", "right", "seconds", "reducing"
        );
    }
    let first = train(&world, SumMode::Messages, options)?;
    let mut fine = true;
    let mut show = |name: &str, summary: &Summary, exact: bool| {
        let off = compare_losses(&first.losses, &summary.losses);
        fine &= off.is_none_or(|off| !exact && off < TOLERANCE);
        let off = match off {
            None => "the same to the last bit".to_owned(),
            Some(off) => format!("off by {off:.1e} at most"),
        };
        let Summary { losses, right, time, .. } = summary;
        let last = losses.last().copied().unwrap_or(f32::NAN);
        let (seconds, share) = (time.as_secs_f64(), summary.share() * 100.0);
        if says {
            println!(
                "{name:<10}{:>8}{last:>12.6}{right:>8.3}{seconds:>10.3}{share:>8.1} %  {off}",
                losses.len()
            );
        }
    };
    show("messages", &first, true);
    show("xtq", &train(&world, SumMode::Xtq, options)?, true);
    show("default", &train(&world, SumMode::Default, options)?, false);
    let workers = workers(&world)?;
    match &workers {
        Ok(workers) => show("workers", &train_by(&world, workers, options)?, false),
        Err(why) if says => println!("workers: nothing was summed by workers on GPUs: {why}"),
        Err(_) => {}
    }
    if says {
        println!("bytes of the all-reduces of a step: {:?}", first.sizes);
    }
    world.finalize()?;
    Ok(fine)
}

/// The workers of all processes, each on a GPU of its own, or with MPS on one that they share; or why there are none, which
/// all find alike.
fn workers(world: &World) -> Result<Result<Workers, String>, Box<dyn Error>> {
    let device = || -> Result<_, Box<dyn Error>> {
        let driver = CudaDriver::load()?;
        // Without MPS a second process gets no worker on the same GPU.
        let device = Arc::new(driver.device(world.rank() % driver.devices().max(1))?);
        Ok((Arc::new(CudaWorker::new(Arc::clone(&device))?), device))
    };
    let device = device();
    let mut has = [u8::from(device.is_ok())];
    world.comm().allreduce(InPlace, &mut has, ReduceOp::Min)?;
    Ok(match device {
        Ok((worker, device)) if has == [1] => Ok(Workers::new(world, worker, device)?),
        Ok(_) => Err("another process has none".to_owned()),
        Err(why) => Err(why.to_string()),
    })
}

/// The largest difference, relative to the first loss; none if there is not even one of a bit.
fn compare_losses(one: &[f32], other: &[f32]) -> Option<f32> {
    let scale = one.first().copied().unwrap_or(1.0);
    let same = one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| one.to_bits() == other.to_bits());
    let most = one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    (!same).then_some(most / scale)
}
