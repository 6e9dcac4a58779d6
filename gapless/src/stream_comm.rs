//! Collectives that a CUDA stream carries out, for communicators: `gapless-gpu` has all that they do.

use crate::communicator::Communicator;
use crate::communicator::ranks::Members;
use crate::device_buf::DeviceBuf;
use crate::error::Error;
use gapless_coll::topologies::Neighborhood;
use gapless_gpu::{StreamError, StreamMemory, StreamOptions, StreamRanks};
use gapless_mem::{Device, Region, Space};
use gapless_mem_cuda::Stream;
use std::sync::Arc;

/// A communicator whose collectives are queued on a CUDA stream, made by [`Communicator::on`].
///
/// ```no_run
/// use gapless::{CudaDriver, Primitive, ReduceOp, Space, World};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let world = World::init()?;
/// let ordinal = world.rank() % 8;
/// let stream = CudaDriver::load()?.device(ordinal)?.stream()?;
/// let memory = world.alloc_device(Space::Cuda { device: ordinal }, 1 << 20)?;
/// let mut comm = world.comm().on(&stream)?;
/// // SAFETY: the memory lives longer than `comm`, and nothing else uses it before `wait` returns.
/// unsafe {
///     let numbers = comm.register(memory.region())?;
///     comm.allreduce(numbers, numbers, 1 << 18, Primitive::Float, ReduceOp::Sum)?;
/// }
/// comm.wait()?;
/// # Ok(())
/// # }
/// ```
///
/// A collective with layouts is planned first:
///
/// ```no_run
/// # use gapless::{Datatype, Equivalence, Registered, StreamBlock, StreamComm, StreamError, Subarray};
/// /// The columns of an n × n matrix of doubles, cut into as many parts as there are ranks, for its rows.
/// # fn transpose(on: &mut StreamComm<'_>, rows: Registered, columns: Registered, n: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let (ranks, double) = (u64::from(on.size()), f64::datatype());
/// let part = |of: [u64; 2]| Subarray::of(&double).sizes(of).subsizes([n / ranks; 2]).starts([0; 2]).build()?.commit();
/// let (from, to) = (part([n / ranks, n])?, part([n, n / ranks])?);
/// let sends: Vec<_> = (0..ranks)
///     .map(|rank| StreamBlock { displacement: rank * n / ranks * 8, layout: &from, count: 1 })
///     .collect();
/// let recvs: Vec<_> = (0..ranks)
///     .map(|rank| StreamBlock { displacement: rank * (n / ranks) * (n / ranks) * 8, layout: &to, count: 1 })
///     .collect();
/// // SAFETY: the registered memory outlives `on`; nothing else uses it until `wait` returns.
/// let plan = unsafe { on.plan_alltoallw(rows, &sends, columns, &recvs) }?;
/// // SAFETY: as above.
/// unsafe { on.start(&plan) }?;
/// # Ok(())
/// # }
/// ```
pub type StreamComm<'s> = gapless_gpu::StreamComm<'s, Members>;

/// For kernels of users that exchange partitions
/// ([`plan_partitioned`](gapless_gpu::StreamComm::plan_partitioned)): the header, and examples.
pub mod stream_code {
    pub use gapless_kernels::partitioned::{EXAMPLE_PARTITIONED, HEADER};
}

/// The blocking collectives of a [`StreamComm`], made by [`StreamComm::blocking`](gapless_gpu::StreamComm::blocking).
pub type Blocking<'a, 's> = gapless_gpu::Blocking<'a, 's, Members>;

impl Communicator {
    /// A communicator of the same ranks whose collectives are queued on `stream`. Collective; may block. The stream may
    /// be the application's own ([`CudaDevice::adopt_stream`](crate::CudaDevice::adopt_stream)).
    ///
    /// # Errors
    /// [`Error::Stream`]: ranks on one GPU that take turns, GPUs that cannot map each other's memory, no room for the
    /// blocks, more than 16 ranks, and what [`StreamError`] lists besides. A peer is lost.
    pub fn on<'s>(&self, stream: &'s Stream) -> Result<StreamComm<'s>, Error> {
        self.on_with(stream, StreamOptions::default())
    }

    /// As [`on`](Communicator::on), with options.
    ///
    /// # Errors
    /// As there.
    pub fn on_with<'s>(
        &self,
        stream: &'s Stream,
        options: StreamOptions,
    ) -> Result<StreamComm<'s>, Error> {
        if self.is_inter() {
            return Err(StreamError::Inter.into());
        }
        StreamComm::new(Members(self.dup()?), stream, options)
    }
}

impl StreamRanks for Members {
    type Memory = DeviceBuf;

    fn allocate(&self, space: Space, bytes: u64) -> Result<DeviceBuf, Error> {
        let shared = &self.0.shared;
        let device = shared.with(|state| state.device(space))?;
        DeviceBuf::allocate(shared, device, bytes)
    }

    fn progress(&self) {
        self.0.shared.progress_beside();
    }

    fn neighbors(&self) -> Result<Neighborhood, Error> {
        let topology = self.0.topology().ok_or(StreamError::NoTopology)?;
        Ok(topology.neighbors(self.0.rank())?)
    }
}

// SAFETY: the region is that of memory of the device, which is freed when this is dropped, once peers have released it.
unsafe impl StreamMemory for DeviceBuf {
    fn region(&self) -> Region {
        DeviceBuf::region(self)
    }

    fn device(&self) -> Arc<dyn Device> {
        DeviceBuf::device(self)
    }
}
