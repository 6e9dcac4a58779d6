//! Data-parallel training: each process has a share of each batch, and the gradients of all are summed.
//!
//! - The network and its images are small, and real: [`mod@network`], [`mod@data`]. Each process holds the whole
//!   network.
//! - A step: each process computes the gradient of its part of the batch; each tensor of it is all-reduced, in its
//!   place; all go down the same gradient. So all have the same network, bit for bit.
//! - The sums come by one of several ways ([`SumMode`], [`Workers`]). Where two ways add in the same order, all losses
//!   are the same to the last bit; where they do not, they differ by what rounding adds up to.
//!
//! The communicator of a way has a table of its own ([`gapless::World::set_coll_table`]).
#![deny(unsafe_code)]

pub mod data;
pub mod network;
#[allow(
    unsafe_code,
    reason = "has a worker use memory of its accelerator, and copies from and to it"
)]
mod workers;

pub use workers::Workers;

use gapless::coll::Operation;
use gapless::tuning::coll::{Rule, Table};
use gapless::{Communicator, InPlace, ReduceOp, World};
use network::Network;
use std::fmt;
use std::time::{Duration, Instant};

/// How gradients are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumMode {
    /// As the world's table has it: on one host through shared memory.
    Default,
    /// By messages round a ring.
    Messages,
    /// By tasks round the same ring: the target of a message adds it, and no receive is called for it. As by messages,
    /// each sum is made in the order of the ring.
    Xtq,
}

impl SumMode {
    /// All there are.
    pub const ALL: [SumMode; 3] = [SumMode::Default, SumMode::Messages, SumMode::Xtq];

    /// A table of `[shared]` rules that take no all-reduce, and one algorithm for all of them.
    fn table(self) -> Result<Option<Table>, String> {
        let name = match self {
            SumMode::Default => return Ok(None),
            SumMode::Messages => "ring",
            SumMode::Xtq => "xtq",
        };
        let rule = |name: &str, bytes_max| {
            let algorithm = name.parse().map_err(|error| format!("{error}"))?;
            let (operation, ranks_max) = (Operation::Allreduce, usize::MAX);
            Ok::<_, String>(Rule { operation, ranks_max, bytes_max, algorithm })
        };
        Ok(Some(Table::with(vec![rule("shared", 0)?, rule(name, u64::MAX)?])))
    }
}

impl fmt::Display for SumMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SumMode::Default => "default",
            SumMode::Messages => "messages",
            SumMode::Xtq => "xtq",
        })
    }
}

/// How it is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Steps.
    pub steps: usize,
    /// Images of a step, of all processes together.
    pub batch: usize,
    /// How far a step goes.
    pub rate: f32,
}

impl Default for Options {
    fn default() -> Options {
        Options { steps: 600, batch: 60, rate: 0.3 }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The loss of each step: the mean of its images', of all processes.
    pub losses: Vec<f32>,
    /// The share of the tested images that the network takes for what they are.
    pub right: f64,
    /// The network in the end.
    pub network: Network,
    /// How long the steps took here.
    pub time: Duration,
    /// How long of that this process was in all-reduces.
    pub reducing: Duration,
    /// Bytes of each all-reduce of a step.
    pub sizes: Vec<u64>,
}

impl Summary {
    /// The share of time in all-reduces.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.reducing.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Trains the network on all processes of a world. All call this alike.
///
/// # Errors
/// A process is lost; there is nothing to train.
pub fn train(world: &World, way: SumMode, options: Options) -> Result<Summary, Failure> {
    let comm = communicator(world, way)?;
    let sum = |numbers: &mut [f32]| Ok(comm.allreduce(InPlace, numbers, ReduceOp::Sum)?);
    let trained = steps(&comm, &sum, options);
    comm.free()?;
    trained
}

/// The same by the workers of all processes.
///
/// # Errors
/// As [`train`]; a task fails.
pub fn train_by(world: &World, workers: &Workers, options: Options) -> Result<Summary, Failure> {
    steps(world.comm(), &|numbers| workers.sum(numbers), options)
}

/// Why it could not be trained.
pub type Failure = Box<dyn std::error::Error>;

/// A communicator whose all-reduces go that way.
fn communicator(world: &World, way: SumMode) -> Result<Communicator, Failure> {
    let before = world.coll_table();
    if let Some(table) = way.table()? {
        world.set_coll_table(table);
    }
    let made = world.comm().dup();
    world.set_coll_table((*before).clone());
    Ok(made?)
}

/// `sum` gives all processes the sums of their numbers.
fn steps(
    comm: &Communicator,
    sum: &dyn Fn(&mut [f32]) -> Result<(), Failure>,
    options: Options,
) -> Result<Summary, Failure> {
    let images = data::images()?;
    let Options { steps, batch, rate } = options;
    if batch == 0 {
        return Err("a batch without images".into());
    }
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let mut network = Network::random(1);
    let (mut losses, mut reducing) = (Vec::new(), Duration::ZERO);
    comm.barrier()?;
    let began = Instant::now();
    for step in 0..steps {
        let mut gradient = Network::zeros();
        let mut loss = [0.0];
        for at in (rank..batch).step_by(ranks) {
            let image = &images.train[(step * batch + at) % images.train.len()];
            loss[0] += network.learn(image, &mut gradient);
        }
        let since = Instant::now();
        for tensor in &mut gradient.tensors {
            sum(tensor)?;
        }
        sum(&mut loss)?;
        reducing += since.elapsed();
        network.step(&gradient, rate / batch as f32);
        losses.push(loss[0] / batch as f32);
    }
    let time = began.elapsed();
    let right = network.right(&images.test);
    let bytes = |len: usize| (len * size_of::<f32>()) as u64;
    let sizes = network::TENSORS.into_iter().chain([1]).map(bytes).collect();
    Ok(Summary { losses, right, network, time, reducing, sizes })
}
