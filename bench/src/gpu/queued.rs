//! What ranks that queue collectives on streams do alike: wait, time by the device's clock, and agree.

use std::time::Instant;

use gapless::{Communicator, CudaStream, ReduceOp, StreamComm};

use crate::error::Failure;
use crate::nccl::Nccl;

/// Seconds after which a stream that is not idle hangs.
const PATIENCE: u64 = 20;

/// A rank and its stream.
#[derive(Clone, Copy)]
pub(super) struct Queued<'w> {
    pub(super) comm: &'w Communicator,
    pub(super) stream: &'w CudaStream,
}

impl Queued<'_> {
    /// Waits for the stream; an error if its collectives have failed.
    pub(super) fn idle(&self, on: &StreamComm<'_>) -> Result<(), Failure> {
        self.wait()?;
        on.check().map_err(|error| Failure::World(error.into()))
    }

    fn wait(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.stream.is_idle()? {
            if begun.elapsed().as_secs() > PATIENCE {
                return Err(Failure::Hangs { seconds: PATIENCE });
            }
        }
        Ok(())
    }

    /// Seconds of what is queued, by the device's clock.
    pub(super) fn marked(
        &self,
        enqueue: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let before = self.stream.mark()?;
        enqueue()?;
        let after = self.stream.mark()?;
        self.wait()?;
        let millis = before.until(&after)?.ok_or(Failure::Hangs { seconds: 0 })?;
        Ok(millis / 1000.0)
    }

    /// Of each of these times the slowest rank's. Collective.
    pub(super) fn slowest(&self, seconds: &[f64]) -> Result<Vec<f64>, Failure> {
        let mut slowest = vec![0.0f64; seconds.len()];
        self.comm.allreduce(seconds, &mut slowest, ReduceOp::Max)?;
        Ok(slowest)
    }

    /// Whether it is so at all ranks. Collective.
    pub(super) fn all(&self, here: bool) -> Result<bool, Failure> {
        let mut all = vec![0u8; self.comm.size() as usize];
        self.comm.allgather(&[u8::from(here)], &mut all)?;
        Ok(all.iter().all(|it| *it == 1))
    }
}

/// NCCL among all ranks, if there is a path to it. Collective.
pub(super) fn nccl(comm: &Communicator, path: Option<&str>) -> Result<Option<Nccl>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let mut id = [0u8; crate::nccl::ID_BYTES];
    if comm.rank() == 0 {
        id = Nccl::id(path)?;
    }
    comm.bcast(&mut id, 0)?;
    Ok(Some(Nccl::join(path, id, comm.rank(), comm.size())?))
}
