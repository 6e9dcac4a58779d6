//! Collectives as methods: each operation in each form, on plain and on strided buffers, against what the operation
//! means, written out. Ranks are threads; those of `revoked.rs`, `one_gpu.rs` and `stopped.rs` are processes. One-sided windows (`windows.rs`),
//! which are made by collective calls, and tasks of workers (`tasks.rs`) are here, too.
#![deny(unsafe_code)]

mod allocated;
mod astray;
mod between;
#[allow(unsafe_code, reason = "plays a worker over memory by address")]
mod by_tasks;
mod checked;
#[allow(
    unsafe_code,
    reason = "hands views of device memory to collectives, and an engine's promises on"
)]
mod combined;
#[allow(unsafe_code, reason = "views of memory of devices")]
mod device;
#[allow(unsafe_code, reason = "vouches for memory of threads that wait for each other")]
mod erased;
mod field;
mod given_up;
mod kept;
mod laid_out;
mod lined;
mod moved;
mod neighbors;
#[allow(unsafe_code, reason = "vouches for memory of devices until requests have ended")]
mod one_gpu;
mod reduced;
mod refused;
mod revoked;
mod several;
mod stopped;
#[allow(unsafe_code, reason = "registers kernels, whose memory nobody touches")]
mod tasks;
#[allow(unsafe_code, reason = "an engine that panics")]
mod torn;
mod watched;
mod windows;
mod work;

use field::Field;
use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{Collective, Communicator, Config, Error};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `body` as each of `size` ranks: even numbers of them share memory, as processes of a host do.
fn ranks(size: u32, body: impl Fn(&Communicator) + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let name = format!("collectives {} {number}", std::process::id());
    let hub = Hub::new();
    let transports = |rank| -> Vec<Box<dyn Btl>> {
        let shared = || Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
        match size % 2 {
            0 => vec![Box::new(shared())],
            _ => vec![Box::new(Loopback::new(&hub))],
        }
    };
    job(size, &Config::default(), transports, |world| body(world.comm()));
}

/// How a collective is called.
#[derive(Clone, Copy, Debug)]
enum Form {
    Blocking,
    NonBlocking,
    /// Nobody waits but the scope's end.
    Left,
}

/// One call of every rank.
#[derive(Clone, Copy)]
struct Case<'c> {
    comm: &'c Communicator,
    form: Form,
    /// How far apart a rank's numbers lie; not the same at all ranks.
    stride: usize,
    /// Numbers of a block.
    len: usize,
}

impl Case<'_> {
    fn me(&self) -> usize {
        self.comm.rank() as usize
    }

    fn size(&self) -> usize {
        self.comm.size() as usize
    }

    fn call(&self, collective: Collective<'_>) -> Result<(), Error> {
        match self.form {
            Form::Blocking => self.comm.perform(collective),
            Form::NonBlocking => self.comm.scope(|s| s.begin(collective)?.wait()),
            Form::Left => self.comm.scope(|s| s.begin(collective).map(drop)),
        }
    }

    /// What rank `from` contributes.
    fn given(&self, from: usize, count: usize) -> Vec<i32> {
        (0..count).map(|at| i32::try_from(from * 100_003 + at * 7 + 1).unwrap()).collect()
    }

    fn field(&self, numbers: &[i32]) -> Field {
        Field::of(numbers, self.stride)
    }

    /// A field to be received into.
    fn room(&self, count: usize) -> Field {
        Field::of(&vec![-5; count], 4 - self.stride)
    }
}

/// Every form, stride and length, among 1 to 5 ranks.
fn everywhere(check: impl Fn(&Case<'_>) + Sync) {
    for size in 1..=5 {
        ranks(size, |comm| {
            for form in [Form::Blocking, Form::NonBlocking, Form::Left] {
                for (round, len) in [3, 0, 1, 700, 20_000].into_iter().enumerate() {
                    let stride = 1 + (round + comm.rank() as usize) % 3;
                    check(&Case { comm, form, stride, len });
                }
            }
        });
    }
}

fn rank_of(comm: &Communicator) -> i32 {
    i32::try_from(comm.rank()).unwrap()
}
