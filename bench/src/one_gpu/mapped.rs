//! All-reduces in which each process's kernel reads what all others have, in memory that it has mapped: what a communicator
//! on a stream does for processes that share a GPU under the Multi-Process Service.

use std::time::Duration;

use gapless::{
    CudaDriver, DeviceBuf, Primitive, ReduceOp, Registered, StreamComm, StreamOptions, World,
};
use gapless_mem_cuda::Stream;

use super::Gpu;
use crate::error::Failure;

/// Blocks of a launch where a process has the GPU for itself.
const MOST: u32 = 64;
/// How long a kernel waits for the others.
const PATIENCE: Duration = Duration::from_secs(10);
/// Blocks of all processes on one GPU together: a few fewer than any GPU of this decade has multiprocessors.
const ALL: u32 = 128;

/// A stream of this process's; `None`: processes take turns on this device, or it only pretends.
///
/// # Errors
/// The driver refuses.
pub fn stream(gpu: Gpu, mps: bool) -> Result<Option<Stream>, Failure> {
    match gpu {
        Gpu::Cuda(number) if mps => Ok(Some(CudaDriver::load()?.device(number)?.stream()?)),
        _ => Ok(None),
    }
}

/// A communicator on a stream, with both buffers registered.
pub struct Mapped<'s> {
    comm: StreamComm<'s>,
    memory: [Registered; 2],
}

impl<'s> Mapped<'s> {
    /// All processes call this; so many share a GPU. The buffers must outlive it.
    ///
    /// # Errors
    /// Their kernels cannot all run at the same time; a peer is lost.
    pub fn new(
        world: &World,
        stream: &'s Stream,
        buffers: [&DeviceBuf; 2],
        sharing: u32,
    ) -> Result<Mapped<'s>, Failure> {
        let options = StreamOptions {
            blocks: (ALL / sharing.max(1)).clamp(1, MOST),
            patience: PATIENCE,
            ..StreamOptions::default()
        };
        let mut comm = world.comm().on_with(stream, options)?;
        let [send, recv] = buffers.map(DeviceBuf::region);
        let mut register = |region| {
            // SAFETY: the buffers outlive this at all ranks; whoever uses them otherwise has waited for the calls.
            unsafe { comm.register(region) }
        };
        let memory = [register(send)?, register(recv)?];
        Ok(Mapped { comm, memory })
    }

    /// The sum of so many numbers of all; it is there when this returns.
    ///
    /// # Errors
    /// A call's.
    pub fn allreduce(&mut self, count: u64) -> Result<(), Failure> {
        let [send, recv] = self.memory;
        // SAFETY: the buffers are long enough, or it is refused; nothing uses them before the call has been waited for.
        let queued =
            unsafe { self.comm.allreduce(send, recv, count, Primitive::Float, ReduceOp::Sum) };
        queued.map_err(|error| Failure::World(error.into()))?;
        self.comm.wait().map_err(|error| Failure::World(error.into()))
    }
}
