//! What one rank of `deaths` does on a GPU: all-reduces on its stream.

use gapless::{Communicator, CudaStream, DeviceBuf, Primitive, ReduceOp, StreamComm};

use super::copied;
use crate::error::Failure;

/// Calls that are queued before they are waited for.
const QUEUED: u32 = 4;

/// A communicator on a stream, and its buffers.
pub struct OnStream<'s> {
    on: StreamComm<'s>,
    memory: &'s [DeviceBuf; 2],
}

impl<'s> OnStream<'s> {
    /// Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::on`].
    pub fn new(
        comm: &Communicator,
        stream: &'s CudaStream,
        memory: &'s [DeviceBuf; 2],
    ) -> Result<OnStream<'s>, Failure> {
        Ok(OnStream { on: comm.on(stream)?, memory })
    }

    /// All-reduces of the whole buffer, several behind each other.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn call(&mut self) -> Result<(), Failure> {
        let [from, to] = self.memory.each_ref().map(DeviceBuf::region);
        let failed = |error: gapless::StreamError| Failure::World(error.into());
        let called = (0..QUEUED).try_for_each(|_| {
            let (float, sum) = (Primitive::Float, ReduceOp::Sum);
            // SAFETY: both buffers outlive `on`, and nothing else uses them until `wait` has returned, which it does
            // below whatever becomes of the other calls.
            unsafe { self.on.allreduce(from, to, from.len() / 4, float, sum) }.map(drop)
        });
        let waited = self.on.wait();
        called.and(waited).map_err(failed)
    }

    /// What came of the last call.
    ///
    /// # Errors
    /// The driver's.
    pub fn result(&self) -> Result<Vec<u8>, Failure> {
        let to = &self.memory[1];
        let mut found = vec![0; usize::try_from(to.region().len()).unwrap_or(0)];
        copied::up(&mut found, to)?;
        Ok(found)
    }
}
