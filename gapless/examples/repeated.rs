//! What a step of a halo exchange costs: 8 columns of 256 B out of an array and 8 into it, with each neighbour the
//! same process. Described anew each step ([`Parts`] in a scope), and once for all steps ([`Plan`]).
//!
//! ```sh
//! cargo build --release -p gapless --example repeated
//! target/release/examples/repeated                                       # to oneself
//! cargo run --release -- run -n 2 target/release/examples/repeated       # between two processes
//! ```
//!
//! Two processes need a processor each: if others want it, both kinds last time slices.

use gapless::Parts;
use gapless::prelude::*;
use std::time::Instant;

const FACES: u32 = 8;
/// Rows and columns of the array: a column is 256 B of doubles.
const ROWS: u32 = 32;
const COLUMNS: u32 = 32;
/// Steps of a sample, and samples of each kind, which alternate.
const STEPS: u32 = 500;
const SAMPLES: usize = 200;

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let comm = world.comm();
    let peer = (comm.rank() + 1) % comm.size();
    let double = Datatype::from(Primitive::Double);
    let column = Datatype::vector(ROWS.into(), 1, COLUMNS.into(), &double)?.commit()?;
    let mut field = vec![f64::from(comm.rank()); ROWS as usize * COLUMNS as usize];

    let mut plan = comm.plan(&field);
    for (face, tag) in faces() {
        plan = plan.send(face, &column, 1, peer, tag)?;
        plan = plan.recv(face + u64::from(FACES), &column, 1, peer, tag)?;
    }
    let mut plan = plan.build()?;
    let (mut by_parts, mut by_plan) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        by_parts.push(sample(comm, || exchange_parts(comm, &mut field, &column, peer))?);
        by_plan.push(sample(comm, || plan.exchange(&mut field).map(drop))?);
    }
    if comm.rank() == 0 {
        let (parts, plan) = (show("Parts", &mut by_parts), show("Plan", &mut by_plan));
        println!("Plan / Parts {:.2}", plan / parts);
    }
    world.finalize()
}

/// The columns that are sent, and their tags.
fn faces() -> impl Iterator<Item = (u64, i32)> {
    (0..u64::from(FACES)).zip(0..)
}

/// Seconds of a step.
fn sample(
    comm: &Communicator,
    mut step: impl FnMut() -> Result<(), gapless::Error>,
) -> Result<f64, gapless::Error> {
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..STEPS {
        step()?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(STEPS))
}

fn exchange_parts(
    comm: &Communicator,
    field: &mut [f64],
    column: &Layout,
    peer: u32,
) -> Result<(), gapless::Error> {
    comm.scope(|s| {
        let mut parts = Parts::of(field);
        for (face, tag) in faces() {
            let into = parts.view_mut(face + u64::from(FACES), column, 1)?;
            let _ = s.irecv(into, peer, tag)?;
        }
        for (face, tag) in faces() {
            let _ = s.isend(parts.view(face, column, 1)?, peer, tag)?;
        }
        Ok(())
    })
}

/// Shows and gives the median.
fn show(name: &str, seconds: &mut [f64]) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    let at = |quarters: usize| seconds[(seconds.len() - 1) * quarters / 4] * 1e6;
    println!("{name:6} {:6.2} µs a step (quartiles {:.2} to {:.2})", at(2), at(1), at(3));
    at(2)
}
