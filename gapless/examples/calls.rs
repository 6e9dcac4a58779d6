//! Each rank has the others integrate parts of a function, by calls of one of their own functions.
//!
//! ```sh
//! cargo build --release -p gapless --example calls
//! cargo run --release -- run -n 3 target/release/examples/calls
//! ```

use gapless::xtq::{Answered, Rank};
use gapless::{Datatype, World};

#[derive(Datatype, Clone, Copy)]
#[repr(C)]
struct Interval {
    from: f64,
    to: f64,
    steps: u32,
}

/// The area below a quarter of a circle, times four.
#[gapless::task]
fn part_of_pi(part: Interval) -> f64 {
    let width = (part.to - part.from) / f64::from(part.steps);
    let height = |step| {
        let x = part.from + (f64::from(step) + 0.5) * width;
        4.0 / (1.0 + x * x)
    };
    (0..part.steps).map(height).sum::<f64>() * width
}

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let tasks = world.xtq();
    tasks.register_task::<part_of_pi>()?;
    world.comm().barrier()?; // nobody calls before all have registered
    let width = 1.0 / f64::from(world.size());
    let part = |rank| Interval {
        from: f64::from(rank) * width,
        to: f64::from(rank + 1) * width,
        steps: 1000,
    };
    let parts: Vec<_> = (0..world.size())
        .map(|rank| tasks.call(Rank(rank), part_of_pi(part(rank))))
        .collect::<Result<_, _>>()?;
    let parts: Vec<f64> = Answered::wait_all(parts).into_iter().collect::<Result<_, _>>()?;
    let pi: f64 = parts.iter().sum();
    assert!((pi - std::f64::consts::PI).abs() < 1e-6, "{pi}");
    println!("rank {} has {pi}", world.rank());
    world.comm().barrier()?;
    world.finalize()
}
