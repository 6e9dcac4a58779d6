//! Blocking collectives of a stream's communicator. Short ones are run by a persistent kernel
//! (`gapless_kernels::peers::calls`), if the options say so: nothing is launched, and the result is there in half the
//! time. All others are launched and waited for. Each rank does as it can: the kernels find each other either way.

use super::call::Launch;
use super::error::StreamError;
use super::{StreamBuffer, StreamComm, StreamRanks};
use gapless_dtype::Primitive;
use gapless_dtype_cuda::{CudaPersistent, Workers};
use gapless_engine::ReduceOp;
use gapless_kernels::peers::calls::{self, Call, CallsStart};
use gapless_kernels::peers::{Kernel, PeersArgs};
use gapless_mem::{Completion, Outstanding};
use gapless_mem_cuda::{CudaDevice, CudaError, Function};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest vector, or block for a rank, in bytes, that the persistent kernel takes: its one block is quicker than a
/// launch up to there.
const CALL_MAX: u64 = 16 << 10;

/// Looks for a call's end between two at all else that this process has to do.
const LOOKS: u32 = 256;

/// Looks for a call's end before other threads are let before this one.
const SPINS: u32 = 1 << 16;

/// The persistent kernel.
pub(super) type Calls = CudaPersistent<CallsStart>;

/// The kernel of a communicator whose windows these arguments name; none, if there is to be none, or no room for it.
///
/// # Safety
/// What the arguments name is valid until the kernel is dropped; `function` is [`calls::KERNEL`].
pub(super) unsafe fn kernel(
    device: CudaDevice,
    function: Function,
    workers: Workers,
    args: PeersArgs,
) -> Option<Calls> {
    let device = Arc::new(device);
    let parameter = |start| CallsStart { start, args };
    // SAFETY: the kernel is persistent (`cuda/calls.h`), with this parameter; the rest is the caller's promise.
    let made = unsafe { Calls::new(&device, function, workers, true, parameter) };
    made.unwrap_or_else(|error| {
        tracing::warn!(%error, "short collectives are launched: there is no persistent kernel");
        None
    })
}

/// What the persistent kernel does instead of this launch, if it does that.
fn call(launch: &Launch) -> Option<Call> {
    let PeersArgs { elements, .. } = launch.args;
    let (call, bytes) = match launch.kernel {
        Kernel::Flagged(op, element) => {
            (Call::Allreduce(op, element), elements.saturating_mul(element.bytes()))
        }
        Kernel::Words => (Call::Words, elements),
        Kernel::Direct(..) | Kernel::Move | Kernel::Layouts => return None,
    };
    (bytes <= CALL_MAX).then_some(call)
}

/// The blocking collectives of a [`StreamComm`], made by [`StreamComm::blocking`]. A call returns when its result lies in
/// this rank's memory. It goes neither to the stream nor into a graph that captures it.
///
/// Ranks may mix: some call, others queue the same collective. With [`StreamOptions::workers`](super::StreamOptions)
/// calls of up to 16 KiB (the vector of an all-reduce, else the block for a rank) are run without a launch while a
/// persistent kernel is there. The second of two calls within the time that [`Workers`] says starts it; it leaves when it
/// has had nothing to do for that time, or at the end of a call 5 ms later. A call waits for other ranks as long as a
/// launch would ([`StreamOptions::patience`](super::StreamOptions)), and so does whatever waits for the whole GPU.
pub struct Blocking<'a, 's, R: StreamRanks>(&'a mut StreamComm<'s, R>);

impl<'s, R: StreamRanks> StreamComm<'s, R> {
    /// Its blocking collectives.
    pub fn blocking(&mut self) -> Blocking<'_, 's, R> {
        Blocking(self)
    }

    /// How many blocking calls of this rank were run without a launch so far.
    #[must_use]
    pub fn calls_without_launch(&self) -> u64 {
        let calls = self.held.as_ref().and_then(|held| held.calls.as_ref());
        calls.map_or(0, |calls| calls.given())
    }
}

impl<R: StreamRanks> Blocking<'_, '_, R> {
    /// Returns when all ranks have called it (`MPI_Barrier`, MPI 4.1 §6.3).
    ///
    /// # Errors
    /// As [`allreduce`](Blocking::allreduce).
    pub fn barrier(&mut self) -> Result<(), StreamError> {
        let launch = self.0.ground.barrier();
        // SAFETY: it works on the window alone.
        unsafe { self.run(Some(launch)) }
    }

    /// An all-reduce of `count` elements (`MPI_Allreduce`, MPI 4.1 §6.9.6), as [`StreamComm::allreduce`].
    ///
    /// # Safety
    /// Until it returns, at all ranks if the buffers are registered: nothing writes `send`, nothing else touches `recv`,
    /// and they overlap only if they are the same. What was queued before to fill or use them has ended, but for calls of
    /// this communicator. No launch of a graph that has captured calls of this communicator goes on.
    ///
    /// # Errors
    /// [`StreamError`]: as [`StreamComm::allreduce`]; the stream is being captured ([`StreamError::Captured`]).
    pub unsafe fn allreduce(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        count: u64,
        element: Primitive,
        op: ReduceOp,
    ) -> Result<(), StreamError> {
        let launch = self.0.ground.allreduce((send.into(), recv.into()), count, (op, element))?;
        // SAFETY: the caller's promise.
        unsafe { self.run(launch) }
    }

    /// An all-gather of blocks of `bytes` bytes (`MPI_Allgather`, MPI 4.1 §6.7), as [`StreamComm::allgather`].
    ///
    /// # Safety
    /// As [`allreduce`](Blocking::allreduce); `send` may be this rank's block of `recv`, and overlaps it nowhere else.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn allgather(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        bytes: u64,
    ) -> Result<(), StreamError> {
        let launch = self.0.ground.allgather((send.into(), recv.into()), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(launch) }
    }

    /// An all-to-all of blocks of `bytes` bytes (`MPI_Alltoall`, MPI 4.1 §6.8), as [`StreamComm::alltoall`].
    ///
    /// # Safety
    /// As [`allreduce`](Blocking::allreduce), and the buffers do not overlap.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn alltoall(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        bytes: u64,
    ) -> Result<(), StreamError> {
        let launch = self.0.ground.alltoall((send.into(), recv.into()), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(launch) }
    }

    /// A broadcast of `bytes` bytes (`MPI_Bcast`, MPI 4.1 §6.4), as [`StreamComm::broadcast`].
    ///
    /// # Safety
    /// As [`allreduce`](Blocking::allreduce): the buffer is both.
    ///
    /// # Errors
    /// As there; no such rank.
    pub unsafe fn broadcast(
        &mut self,
        buffer: impl Into<StreamBuffer>,
        bytes: u64,
        root: u32,
    ) -> Result<(), StreamError> {
        let launch = self.0.ground.broadcast(buffer.into(), bytes, root)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(launch) }
    }

    /// # Safety
    /// As [`allreduce`](Blocking::allreduce).
    unsafe fn run(&mut self, launch: Option<Launch>) -> Result<(), StreamError> {
        let comm = &mut *self.0;
        comm.words.check()?;
        comm.not_captured()?;
        if comm.is_queued() {
            comm.wait()?;
        }
        let Some(launch) = launch else { return Ok(()) };
        let calls = comm.held.as_ref().and_then(|held| held.calls.as_ref());
        let wanted = calls.zip(call(&launch));
        if let Some((calls, call)) = wanted
            && let Some(command) = calls::command(call, &launch.args)
            // SAFETY: the kernel runs such commands. The caller vouches for the buffers until this returns, and nothing
            // of this communicator runs beside it.
            && let Some(work) = unsafe { calls.give(&command) }
        {
            // Whatever panics meanwhile, it has ended when the caller has its buffers back.
            let work = Outstanding::new(work);
            if let Err(error) = comm.ends(work.work()) {
                // It was not run, so this rank is behind the others for good.
                comm.words.abort(comm.ground.rank);
                return Err(error);
            }
            return comm.check();
        }
        // SAFETY: the caller's promise.
        unsafe { comm.launch(Some(launch)) }?;
        if let Some((calls, _)) = wanted {
            calls.wake();
        }
        comm.wait()
    }
}

impl<R: StreamRanks> StreamComm<'_, R> {
    /// Whoever waits for a stream that is being captured would spoil the capture.
    pub(super) fn not_captured(&self) -> Result<(), StreamError> {
        if self.stream.is_captured()? { Err(StreamError::Captured) } else { Ok(()) }
    }

    fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }

    /// Waits for what the persistent kernel does: that ends as a launch does, by its peers, by the host's word, or when
    /// its time is up.
    fn ends(&self, work: &Completion) -> Result<(), StreamError> {
        let mut looks = 0u32;
        while !work.poll().map_err(CudaError::from)? {
            looks = looks.saturating_add(1);
            if looks.is_multiple_of(LOOKS) {
                self.ranks.progress();
            }
            if looks > SPINS {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl<R: StreamRanks> fmt::Debug for Blocking<'_, '_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocking, of {:?}", self.0)
    }
}
