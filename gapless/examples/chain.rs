//! Three ranks or more chain tasks: the task at one rank puts the next at another, twice around, while the main threads
//! only wait. Each adds its rank to the payload that it hands on.
//!
//! ```sh
//! cargo build --release -p gapless --example chain
//! cargo run --release -- run -n 3 target/release/examples/chain
//! ```

use gapless::World;
use gapless::xtq::{Function, Put, QueueOptions, Rank, Retry};
use std::sync::{Arc, Mutex};

/// The index of the function and of its queue, at every rank.
const STEP: u8 = 42;
/// Times around.
const ROUNDS: usize = 2;

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let (me, size) = (world.rank(), world.size());
    let steps = ROUNDS * size as usize;
    let tasks = world.xtq();
    let done = tasks.signal_from(1, &[]);
    let trail: Arc<Mutex<Vec<u8>>> = Arc::default();
    let (ended, found) = (done.clone(), Arc::clone(&trail));
    let step = Function::new(steps.try_into().unwrap_or(u32::MAX), move |task| {
        let mut ranks = task.payload().to_vec();
        ranks.push(me.to_le_bytes()[0]);
        if ranks.len() == steps {
            *found.lock().map_err(|error| error.to_string())? = ranks;
            ended.count_down();
        } else {
            let next = Put::function(Rank((me + 1) % size), STEP, STEP, [0, 0]);
            task.put(next.payload(ranks).retry(Retry::InOrder))?;
        }
        Ok(())
    });
    tasks.register_function(STEP, step)?;
    tasks.register_queue(STEP, QueueOptions::default())?;
    tasks.post(vec![0; steps]);
    world.comm().barrier()?; // nobody puts before all have registered
    if me == 0 {
        tasks.put(Put::function(Rank(1 % size), STEP, STEP, [0, 0]))?;
        tasks.wait(&done)?;
        let trail = trail.lock().map_or_else(|_| Vec::new(), |trail| trail.clone());
        let expected: Vec<u8> =
            (1..=steps).map(|at| (at % size as usize).to_le_bytes()[0]).collect();
        assert_eq!(trail, expected);
        println!("the payload went {trail:?}");
    }
    world.comm().barrier()?;
    world.finalize()
}
