//! Sums by workers: kernels that stay on the processes' accelerators, and take tasks out of memory that others write
//! (`docs/worker.md`).
//!
//! The sums lie in memory of each process's accelerator. They go round the ring that messages go, block by block: a rank
//! puts what it has of a block at the rank before it, whose worker adds that to its own; when it has, that rank puts the
//! sum on. In the end each rank has one block of the sum, and gives it to all.

use gapless::xtq::device::{Accumulate, Combine, Element};
use gapless::xtq::{
    DeviceFunction, Kernel, Launch, Lease, Life, Put, QueueOptions, Rank, Signal, Tasks, Worker,
};
use gapless::{Communicator, Device, Region, World};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::network::TENSORS;

/// The index of kernel and queue.
const SUMS: u8 = 18;
/// Work-items of a task.
const ITEMS: u16 = 64;
/// Bytes of the arguments of [`DeviceFunction::Accumulate`].
const ARGUMENTS: u16 = 32;

/// The workers of all processes, as one of them has them.
#[derive(Debug)]
pub struct Workers {
    comm: Communicator,
    tasks: Tasks,
    memory: TensorMemory,
    /// How many blocks its worker has yet to add.
    added: Signal,
}

/// Memory of an accelerator for the largest tensor.
struct TensorMemory {
    device: Arc<dyn Device>,
    sums: Lease,
}

impl std::fmt::Debug for TensorMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory of {} bytes", self.sums.region().len())
    }
}

impl Workers {
    /// Starts this process's worker. All processes of a world call this.
    ///
    /// # Errors
    /// There is one already; the accelerator refuses.
    pub fn new(
        world: &World,
        worker: Arc<dyn Worker>,
        device: Arc<dyn Device>,
    ) -> Result<Workers, Box<dyn Error>> {
        let (tasks, comm) = (world.xtq(), world.comm().dup()?);
        let bytes = (TENSORS.into_iter().max().unwrap_or(0) * size_of::<f32>()) as u64;
        // All memory before the worker, which stays as long as the world: tools that check memory know what there was when
        // a kernel began.
        let sums = TensorMemory::lease(&device, bytes)?;
        let rooms = (0..comm.size())
            .map(|_| TensorMemory::lease(&device, bytes))
            .collect::<Result<Vec<_>, _>>()?;
        tasks.attach_worker(worker, Life { idle: None, longest: Duration::from_secs(600) })?;
        let added = tasks.signal(0);
        let kernel = Kernel::of_worker(DeviceFunction::Accumulate, u32::try_from(bytes)?);
        let kernel = kernel.buffer(sums.clone()).signal(&added);
        // SAFETY: the kernel stays inside its buffer. This process touches that only when no task is on its way: before the
        // barrier of `sum`, and a block when its task has ended.
        unsafe { tasks.register_kernel(SUMS, kernel) }?;
        tasks.register_queue(SUMS, QueueOptions::default())?;
        for room in rooms {
            // SAFETY: nothing but tasks touches it.
            unsafe { tasks.post_to_worker(room) }?;
        }
        comm.barrier()?;
        Ok(Workers { comm, tasks, memory: TensorMemory { device, sums }, added })
    }

    /// Sums the numbers of all processes, in their place. All call this, with as many numbers as no tensor exceeds.
    ///
    /// # Errors
    /// A task fails; a process is lost.
    pub fn sum(&self, numbers: &mut [f32]) -> Result<(), Box<dyn Error>> {
        let (me, ranks) = (self.comm.rank() as usize, self.comm.size() as usize);
        if ranks == 1 {
            return Ok(());
        }
        let block = |distance: usize| block((me + distance) % ranks, ranks, numbers.len());
        let tasks = (1..ranks).filter(|it| !block(it + 1).is_empty()).count();
        self.added.reset(tasks as u64);
        self.memory.write(numbers)?;
        // From now on others put here.
        self.comm.barrier()?;
        let before = self.comm.target(u32::try_from((me + ranks - 1) % ranks)?)?;
        let mut partial = numbers[block(1)].to_vec();
        let mut left = tasks as u64;
        let done = self.tasks.signal((1..ranks).filter(|it| !block(*it).is_empty()).count() as u64);
        for distance in 1..ranks {
            if !partial.is_empty() {
                self.put(before, (block(distance).start, &partial), &done)?;
            }
            let next = block(distance + 1);
            if next.is_empty() {
                partial.clear();
                continue;
            }
            left -= 1;
            self.wait_until(left)?;
            partial = self.memory.read(next)?;
        }
        self.tasks.wait(&done)?;
        let mine = block(ranks);
        numbers[mine].copy_from_slice(&partial);
        for rank in 0..self.comm.size() {
            let range = self::block(rank as usize, ranks, numbers.len());
            if !range.is_empty() {
                self.comm.bcast(&mut numbers[range], rank)?;
            }
        }
        Ok(())
    }

    fn put(
        &self,
        to: Rank,
        (at, numbers): (usize, &[f32]),
        done: &Signal,
    ) -> Result<(), Box<dyn Error>> {
        let word = Accumulate(Combine::Sum, Element::F32).word();
        let offset = (at * size_of::<f32>()) as u64;
        let arguments = [0, 0, offset, word].map(u64::to_le_bytes).concat();
        let launch = Launch::linear(1, ITEMS, ARGUMENTS);
        let put = Put::kernel(to, SUMS, SUMS, launch, arguments).payload(bytes(numbers));
        self.tasks.put(put.signal(done))?;
        Ok(())
    }

    /// Waits until so few blocks are left to be added.
    fn wait_until(&self, left: u64) -> Result<(), Box<dyn Error>> {
        while self.added.value() > left {
            if let Some(ended) = self.added.poll() {
                ended?;
            }
            self.tasks.progress()?;
        }
        Ok(())
    }
}

/// The blocks of so many numbers: as those of a schedule, the first ones are one longer if they are not all alike.
fn block(of: usize, ranks: usize, len: usize) -> Range<usize> {
    let (least, more) = (len / ranks, len % ranks);
    let start = |at: usize| at * least + at.min(more);
    start(of)..start(of + 1)
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

impl TensorMemory {
    /// Memory of an accelerator, which is never freed.
    fn lease(device: &Arc<dyn Device>, bytes: u64) -> Result<Lease, Box<dyn Error>> {
        let region = device.allocate(bytes)?;
        // SAFETY: it is never freed.
        Ok(unsafe { Lease::kept_by_caller(region) })
    }

    fn write(&self, numbers: &[f32]) -> Result<(), Box<dyn Error>> {
        let bytes = bytes(numbers);
        let into = self.sums.region().sub(0, bytes.len() as u64)?;
        // SAFETY: the copy is waited for; no task is on its way, so nothing else touches the memory.
        unsafe { self.device.copy(into, Region::of(&bytes), &[]) }?.wait()?;
        Ok(())
    }

    fn read(&self, range: Range<usize>) -> Result<Vec<f32>, Box<dyn Error>> {
        let mut bytes = vec![0; range.len() * size_of::<f32>()];
        let at = (range.start * size_of::<f32>()) as u64;
        let from = self.sums.region().sub(at, bytes.len() as u64)?;
        // SAFETY: the copy is waited for; the only task of these bytes has ended.
        unsafe { self.device.copy(Region::of_mut(&mut bytes), from, &[]) }?.wait()?;
        let numbers = bytes.as_chunks::<4>().0.iter().map(|number| f32::from_ne_bytes(*number));
        Ok(numbers.collect())
    }
}
