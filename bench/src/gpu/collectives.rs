//! What one rank of `coll-gpu` does: collectives on its stream, ours and NCCL's in turn, and what they cost.
//!
//! Each contestant's calls are checked once, on data whose sums are exact, before they are timed. A sample is 50 calls
//! back to back (5 of long ones), captured in a graph or queued one by one, between two marks on the device's clock; or
//! one call and its wait, on the host's. Samples of contestants alternate. A sample counts as the slowest rank's.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use gapless::{
    Communicator, CudaGraph, CudaStream, DeviceBuf, Primitive, ReduceOp, Region, Registered, Space,
    StreamBuffer, StreamComm, StreamOptions, Workers, World,
};
use gapless_mem::Device;
use gapless_mem_cuda::{CudaDevice, CudaDriver, Function, Grid, Module};

use super::queued::{self, Queued};
use crate::error::Failure;
use crate::nccl::{Nccl, NcclCall};

/// How calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMode {
    /// Captured in a graph, back to back.
    Graph,
    /// Queued one by one, back to back.
    Queued,
    /// One, and its wait.
    Awaited,
    /// One, and its wait, right after another: ours by a persistent kernel, if it takes it.
    Blocking,
}

impl CallMode {
    /// All of them.
    pub const ALL: [CallMode; 4] =
        [CallMode::Graph, CallMode::Queued, CallMode::Awaited, CallMode::Blocking];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CallMode::Graph => "graph",
            CallMode::Queued => "queued",
            CallMode::Awaited => "awaited",
            CallMode::Blocking => "blocking",
        }
    }
}

/// How long the kernel of blocking calls stays without any.
const IDLE: Duration = Duration::from_micros(200);

/// Calls of a sample.
fn calls(bytes: u64) -> u32 {
    if bytes >= 8 << 20 { 5 } else { 50 }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// This library, in memory of its own.
    Ours,
    /// This library, in registered memory.
    OursRegistered,
    /// NCCL, in any memory.
    Nccl,
    /// NCCL, in symmetric windows.
    NcclWindows,
    /// A kernel that does nothing, at every rank.
    Empty,
}

const EMPTY: &str =
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";

/// A rank: its buffers and its contestants.
pub struct Rank<'w> {
    queued: Queued<'w>,
    comm: &'w Communicator,
    device: CudaDevice,
    stream: &'w CudaStream,
    ours: RefCell<StreamComm<'w>>,
    memory: [DeviceBuf; 2],
    shared: [Registered; 2],
    nccl: Option<Nccl>,
    windows: Option<[u64; 2]>,
    empty: Function,
    space: Space,
}

impl<'w> Rank<'w> {
    /// Makes everything. Collective. `nccl`: where NCCL is; without it, only ours is measured. `most`: bytes of a
    /// buffer.
    ///
    /// # Errors
    /// No device for this rank, ranks that do not reach each other, NCCL's refusal.
    pub fn new(
        world: &'w World,
        stream: &'w CudaStream,
        most: u64,
        nccl: Option<&str>,
    ) -> Result<Rank<'w>, Failure> {
        let comm = world.comm();
        let device = CudaDriver::load()?.device(stream.device())?;
        device.bind_thread()?;
        let space = Space::Cuda { device: stream.device() };
        let memory = [world.alloc_device(space, most)?, world.alloc_device(space, most)?];
        let workers = Workers::Idle(IDLE);
        let mut ours =
            comm.on_with(stream, StreamOptions { workers, ..StreamOptions::default() })?;
        let [a, b] = [memory[0].region(), memory[1].region()];
        let mut register = |region: Region| {
            // SAFETY: the buffers are dropped after `ours`, below.
            unsafe { ours.register(region) }
        };
        let shared = [register(a)?, register(b)?];
        let nccl = queued::nccl(comm, nccl)?;
        let len = usize::try_from(most).unwrap_or(usize::MAX);
        let both = |nccl: &Nccl| Ok::<_, Failure>([nccl.allocate(len)?, nccl.allocate(len)?]);
        let windows = nccl.as_ref().map(both).transpose()?;
        // SAFETY: written by hand, and checked by the driver's compiler.
        let module = unsafe { Module::load(&device, EMPTY.as_bytes()) }?;
        let empty = module.function(c"empty")?;
        let ours = RefCell::new(ours);
        let queued = Queued { comm, stream };
        Ok(Rank { queued, comm, device, stream, ours, memory, shared, nccl, windows, empty, space })
    }

    /// NCCL's version, if it is here.
    #[must_use]
    pub fn nccl_version(&self) -> Option<i32> {
        self.nccl.as_ref().map(|nccl| nccl.version)
    }

    /// Where a contestant's two buffers are.
    fn places(&self, who: Who) -> [u64; 2] {
        match (who, self.windows) {
            (Who::NcclWindows, Some(windows)) => windows,
            _ => [self.memory[0].region().start(), self.memory[1].region().start()],
        }
    }

    /// Our two buffers.
    fn buffers(&self, who: Who) -> [StreamBuffer; 2] {
        match who {
            Who::OursRegistered => self.shared.map(Into::into),
            _ => [self.memory[0].region().into(), self.memory[1].region().into()],
        }
    }

    /// Queues one call.
    fn call(
        &self,
        who: Who,
        call: NcclCall,
        bytes: u64,
        stream: &CudaStream,
    ) -> Result<(), Failure> {
        let (n, count) = (u64::from(self.comm.size()), bytes / 4);
        let [send, recv] = self.places(who);
        match who {
            Who::Empty => {
                // SAFETY: it has no parameters and touches nothing.
                Ok(unsafe { self.empty.launch(stream, Grid::line(1, 32), &[]) }?)
            }
            Who::Nccl | Who::NcclWindows => {
                let nccl = self.nccl.as_ref().ok_or_else(|| Failure::Job("no NCCL".to_owned()))?;
                let whole = matches!(call, NcclCall::Allreduce | NcclCall::Broadcast);
                let count = if whole { count } else { count / n };
                // SAFETY: buffers of `most` bytes, which nothing else uses until the stream is idle.
                unsafe { nccl.call(call, (send, recv), count, stream.handle()) }
            }
            Who::Ours | Who::OursRegistered => {
                let [from, to] = self.buffers(who);
                let mut ours = self.ours.borrow_mut();
                let (float, sum) = (Primitive::Float, ReduceOp::Sum);
                let queued = match call {
                    // SAFETY: as above; the graphs are dropped before `ours`.
                    NcclCall::Allreduce => unsafe { ours.allreduce(from, to, count, float, sum) },
                    // SAFETY: as above.
                    NcclCall::Allgather => unsafe { ours.allgather(from, to, bytes / n) },
                    // SAFETY: as above.
                    NcclCall::ReduceScatter => unsafe {
                        ours.reduce_scatter(from, to, count / n, float, sum)
                    },
                    // SAFETY: as above.
                    NcclCall::Alltoall => unsafe { ours.alltoall(from, to, bytes / n) },
                    // SAFETY: as above.
                    NcclCall::Broadcast => unsafe { ours.broadcast(to, bytes, 0) },
                };
                queued.map_err(|error| Failure::World(error.into()))
            }
        }
    }

    fn idle(&self) -> Result<(), Failure> {
        self.queued.idle(&self.ours.borrow())
    }

    fn region(&self, address: u64, bytes: u64) -> Region {
        Region::new(self.space, address, 0, bytes)
    }

    /// Runs a call on known data; whether all ranks have the right result, every byte of it.
    ///
    /// # Errors
    /// The call's.
    pub fn is_right(&self, who: Who, call: NcclCall, bytes: u64) -> Result<bool, Failure> {
        let (n, me) = (u64::from(self.comm.size()), u64::from(self.comm.rank()));
        let count = bytes / 4;
        let value = |rank: u64, at: u64| ((at * 7 + rank * 131 + at / 1000) % 1000) as f32;
        let [send, recv] = self.places(who);
        let upload = |to: u64, floats: &[f32]| -> Result<(), Failure> {
            let mut bytes = Vec::with_capacity(floats.len() * 4);
            floats.iter().for_each(|float| bytes.extend_from_slice(&float.to_ne_bytes()));
            let to = self.region(to, bytes.len() as u64);
            // SAFETY: both live until the copy is waited for, and the stream is idle.
            Ok(unsafe { self.device.copy(to, Region::of(&bytes), &[]) }?.wait()?)
        };
        let ours: Vec<f32> = (0..count).map(|at| value(me, at)).collect();
        upload(send, &ours)?;
        if call == NcclCall::Broadcast && me == 0 {
            upload(recv, &ours)?;
        } else {
            upload(recv, &vec![-1.0; ours.len()])?;
        }
        self.comm.barrier()?;
        self.call(who, call, bytes, self.stream)?;
        self.idle()?;
        self.comm.barrier()?;
        let block = count / n;
        let sum = |at: u64| (0..n).map(|rank| value(rank, at)).sum::<f32>();
        let right: Vec<f32> = match call {
            NcclCall::Allreduce => (0..count).map(sum).collect(),
            NcclCall::ReduceScatter => (me * block..(me + 1) * block).map(sum).collect(),
            NcclCall::Allgather => (0..count).map(|at| value(at / block, at % block)).collect(),
            NcclCall::Broadcast => (0..count).map(|at| value(0, at)).collect(),
            NcclCall::Alltoall => {
                (0..count).map(|at| value(at / block, me * block + at % block)).collect()
            }
        };
        let mut found = vec![0u8; right.len() * 4];
        let from = self.region(recv, found.len() as u64);
        // SAFETY: as above.
        unsafe { self.device.copy(Region::of_mut(&mut found), from, &[]) }?.wait()?;
        let fine =
            found.chunks_exact(4).zip(&right).all(|(bytes, right)| *bytes == right.to_ne_bytes());
        self.queued.all(fine)
    }

    /// Times the contestants, a sample each in turn; seconds of a call, those of the slowest rank. Collective.
    ///
    /// # Errors
    /// A call's.
    pub fn race(
        &self,
        all: &[Who],
        call: NcclCall,
        way: CallMode,
        bytes: u64,
        samples: usize,
    ) -> Result<Vec<Vec<f64>>, Failure> {
        let calls = calls(bytes);
        let graphs: Vec<Option<CudaGraph>> = all
            .iter()
            .map(|who| match way {
                CallMode::Graph => self.graph(*who, call, bytes, calls).map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_, Failure>>()?;
        let mut seconds = vec![Vec::with_capacity(samples); all.len()];
        for sample in 0..=samples {
            for ((who, graph), seconds) in all.iter().zip(&graphs).zip(&mut seconds) {
                self.comm.barrier()?;
                let took = match (way, graph) {
                    (CallMode::Awaited, _) => self.awaited(*who, call, bytes)?,
                    (CallMode::Blocking, _) => self.blocking(*who, call, bytes)?,
                    (_, Some(graph)) => self.marked(calls, || {
                        // SAFETY: its calls' buffers are there, and nothing else uses them.
                        Ok(unsafe { graph.launch(self.stream) }?)
                    })?,
                    _ => self.marked(calls, || {
                        (0..calls).try_for_each(|_| self.call(*who, call, bytes, self.stream))
                    })?,
                };
                // The first is for warming up.
                if sample > 0 {
                    seconds.push(took);
                }
            }
        }
        seconds.into_iter().map(|seconds| self.queued.slowest(&seconds)).collect()
    }

    fn graph(
        &self,
        who: Who,
        call: NcclCall,
        bytes: u64,
        calls: u32,
    ) -> Result<CudaGraph, Failure> {
        self.stream.capture(|stream| {
            let queue = |stream: &CudaStream| self.call(who, call, bytes, stream);
            (0..calls).try_for_each(|_| queue(stream))
        })
    }

    fn marked(
        &self,
        calls: u32,
        enqueue: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let took = self.queued.marked(enqueue)?;
        self.idle()?;
        Ok(took / f64::from(calls))
    }

    /// The second of two blocking calls.
    fn blocking(&self, who: Who, call: NcclCall, bytes: u64) -> Result<f64, Failure> {
        self.block(who, call, bytes)?;
        let begun = Instant::now();
        self.block(who, call, bytes)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn block(&self, who: Who, call: NcclCall, bytes: u64) -> Result<(), Failure> {
        let ours = matches!(who, Who::Ours | Who::OursRegistered);
        if !ours || call == NcclCall::ReduceScatter {
            self.call(who, call, bytes, self.stream)?;
            return self.idle();
        }
        let ([from, to], n) = (self.buffers(who), u64::from(self.comm.size()));
        let mut ours = self.ours.borrow_mut();
        let mut ours = ours.blocking();
        let (float, sum) = (Primitive::Float, ReduceOp::Sum);
        let done = match call {
            // SAFETY: both buffers outlive `ours`, and nothing else uses them; the stream is idle.
            NcclCall::Allreduce => unsafe { ours.allreduce(from, to, bytes / 4, float, sum) },
            // SAFETY: as above.
            NcclCall::Allgather => unsafe { ours.allgather(from, to, bytes / n) },
            // SAFETY: as above.
            NcclCall::Alltoall => unsafe { ours.alltoall(from, to, bytes / n) },
            // SAFETY: as above.
            NcclCall::Broadcast => unsafe { ours.broadcast(to, bytes, 0) },
            NcclCall::ReduceScatter => Ok(()),
        };
        done.map_err(|error| Failure::World(error.into()))
    }

    fn awaited(&self, who: Who, call: NcclCall, bytes: u64) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.call(who, call, bytes, self.stream)?;
        self.idle()?;
        Ok(begun.elapsed().as_secs_f64())
    }
}
