//! Each rank has the next one's OpenCL device run a kernel on numbers that it sends along.
//!
//! ```sh
//! cargo build --release -p gapless --example launched_opencl
//! cargo run --release -- run -n 2 target/release/examples/launched_opencl
//! ```

use gapless::xtq::{Kernel, Launch, Lease, OpenClLauncher, Put, QueueOptions, Rank};
use gapless::{Device, OpenClDevice, Region, World};
use std::sync::Arc;

const COUNT: u16 = 1000;
const BYTES: u32 = 4000;

/// The buffer that it was registered with, the payload and its length, and its arguments from the third on.
const SOURCE: &str = "
    kernel void add(global uchar *buffer, global const uchar *payload, ulong bytes, ulong factor) {
        size_t at = get_global_id(0);
        if (at >= 1000 || 4 * at + 4 > bytes) return; // a grid has whole groups, and a payload any length
        ((global float *)buffer)[at] += factor * ((global const float *)payload)[at];
    }";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::init()?;
    let (comm, tasks) = (world.comm(), world.xtq());
    let device = match OpenClDevice::open(0) {
        Ok(device) => Arc::new(device),
        Err(error) => {
            println!("there is no OpenCL device: {error}");
            return Ok(world.finalize()?);
        }
    };
    // The target's part: memory that the kernel adds to, the kernel, a queue for it, and room for a payload.
    let mut sum = vec![0u8; BYTES as usize];
    let memory = device.allocate(BYTES.into())?;
    // SAFETY: both live until the copy has ended, and nothing else touches them.
    unsafe { device.copy(memory, Region::of(&sum), &[]) }?.wait()?;
    // SAFETY: it is freed behind the world's end.
    let lease = unsafe { Lease::kept_by_caller(memory) };
    let launcher = OpenClLauncher::new(Arc::clone(&device));
    let add = launcher.kernel(SOURCE, "", "add")?; // built here, once
    let kernel = Kernel::new(launcher, add, 3 * 8, BYTES).buffer(lease); // three words of arguments
    // SAFETY: whatever it is given, it stays inside its buffer and the payload, and ends.
    unsafe { tasks.register_kernel(1, kernel) }?;
    tasks.register_queue(1, QueueOptions::default())?;
    tasks.post(vec![0; BYTES as usize]);
    comm.barrier()?; // nobody puts before all have registered

    // The initiator's part: 16 groups of 64 items, and a payload. The target fills in the first two words.
    let next = Rank((comm.rank() + 1) % comm.size());
    let arguments = [0, 0, 10u64].map(u64::to_le_bytes).concat();
    let numbers: Vec<u8> = (0..COUNT).flat_map(|at| f32::from(at).to_ne_bytes()).collect();
    let put = Put::kernel(next, 1, 1, Launch::linear(16, 64, 0), arguments).payload(numbers);
    let done = tasks.signal(1);
    tasks.put(put.signal(&done))?;
    tasks.wait(&done)?; // the kernel has ended there
    comm.barrier()?; // and here

    // SAFETY: as above; no task is left.
    unsafe { device.copy(Region::of_mut(&mut sum), memory, &[]) }?.wait()?;
    let found = sum.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    assert!(found.zip(0..COUNT).all(|(found, at)| found == 10.0 * f32::from(at)));
    if world.rank() == 0 {
        println!("{} ranks: each kernel has added what its neighbour put", world.size());
    }
    world.finalize()?;
    // SAFETY: nothing uses it any more.
    Ok(unsafe { device.free(memory) }?)
}
