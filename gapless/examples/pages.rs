//! A key-value cache moves between processes: pages of a pool, by lists of indices that each end has for itself.
//!
//! ```sh
//! cargo build --release -p gapless --example pages
//! cargo run --release -- run -n 2 target/release/examples/pages
//! ```

use gapless::prelude::*;
use gapless::{DeviceBuf, Space};

/// A page: so many tokens of so many numbers each.
const TOKENS: usize = 16;
const NUMBERS: usize = 128;
/// Pages of a pool.
const POOL: u32 = 300;

/// Where a rank keeps pages: in memory of a GPU if there is one, or else of the host.
struct Pool {
    host: Vec<f32>,
    device: Option<DeviceBuf>,
}

impl Pool {
    fn new(world: &World) -> Pool {
        let numbers = POOL as usize * TOKENS * NUMBERS;
        let allocate = |device| world.alloc_device(Space::Cuda { device }, numbers as u64 * 4);
        let device = allocate(world.rank()).or_else(|_| allocate(0)).ok();
        Pool { host: vec![0.0; if device.is_some() { 0 } else { numbers }], device }
    }

    fn pages(&self, pages: &Pages) -> Result<View<'_>, gapless::Error> {
        match &self.device {
            Some(memory) => memory.pages(0, pages),
            None => View::pages(&self.host, 0, pages),
        }
    }

    fn pages_mut(&mut self, pages: &Pages) -> Result<ViewMut<'_>, gapless::Error> {
        match &mut self.device {
            Some(memory) => memory.pages_mut(0, pages),
            None => ViewMut::pages(&mut self.host, 0, pages),
        }
    }
}

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let (comm, me) = (world.comm(), world.rank());
    let (right, left) = ((me + 1) % comm.size(), (me + comm.size() - 1) % comm.size());
    let (mut ours, mut theirs) = (Pool::new(&world), Pool::new(&world));

    // What a page is gets committed once. Which pages a request has is data.
    let page = Datatype::contiguous((TOKENS * NUMBERS) as u64, &f32::datatype())?.commit()?;
    for pages in [7, 250, 1, 0] {
        // As an allocator hands them out, in no order, and at each rank others.
        let table = |first: u32, step: u32| -> Vec<u32> {
            (0..pages).map(|at| (first + at * step) % POOL).collect()
        };
        let page_bytes = page.size();
        let from = Pages::new(&page, page_bytes, table(me, 7))?;
        let into = Pages::new(&page, page_bytes, table(5 * me + 2, 11))?;

        // This rank computes a cache. A message to itself takes it into its pages.
        let number = |rank: u32, at: usize| (rank as usize * 1_000_000 + at) as f32;
        let cache = |rank| -> Vec<f32> {
            (0..pages as usize * TOKENS * NUMBERS).map(|at| number(rank, at)).collect()
        };
        comm.sendrecv(&cache(me), (me, 1), ours.pages_mut(&from)?, (me, 1))?;

        // The cache moves to the right: from pages to pages, by both ends' lists.
        comm.sendrecv(ours.pages(&from)?, (right, 0), theirs.pages_mut(&into)?, (left, 0))?;

        let mut arrived = vec![0.0; cache(left).len()];
        comm.sendrecv(theirs.pages(&into)?, (me, 1), &mut arrived, (me, 1))?;
        assert_eq!(arrived, cache(left), "{pages} pages");
    }
    if me == 0 {
        let place = if ours.device.is_some() { "a GPU" } else { "the host" };
        println!("requests of up to 250 pages went from rank to rank, in memory of {place}");
    }
    world.finalize()
}
