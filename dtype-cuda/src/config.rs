//! What an engine can be told, and what it tells of itself.

use gapless_kernels::Kernel;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

/// What an engine can be told when it is made. The default suits a GPU that is there for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of plans that are kept in device memory at most. Half as much again may lie ready for new
    /// ones, and larger plans are made for the call that needs them and not kept.
    pub plan_bytes: u64,
    /// Bytes of the pieces in which plans are written and uploaded; 4 KiB at least.
    pub piece_bytes: usize,
    /// Bytes of the chunks in which data goes to and from memory that only copies reach, at most; 4 KiB at
    /// least. Shorter ranges go in smaller chunks, so that kernels run beside copies. Between two copies a
    /// GPU rests for about 3 µs, which chunks of 4 MiB feel (4 % of the bus) and chunks of 16 do not.
    pub chunk_bytes: u64,
    /// Streams of the engine's own on CUDA; calls take turns over them.
    pub streams: usize,
    /// The same on OpenCL: queues, if the device's is not a user's. By default 2, so that copies of long ranges run beside
    /// kernels; but 1 on the host's processor, whose drivers build programs for each.
    pub queues: Option<usize>,
    /// Whether a thread builds the OpenCL programs that are likely to be needed, a little after the first command. By
    /// default it does, but not on the host's processor, which has other work then.
    pub prepares: Option<bool>,
    /// Blocks (work-groups) that a launch may have at most, so that the rest of the device is left to the
    /// application (Wu et al. 2016, §5.3).
    pub budget: Option<NonZeroU32>,
    /// Whether kernels start on the first pieces of a plan while the next are written and uploaded. `false`
    /// is for measuring what that is worth: the same threads write all of the plan, into as much staging
    /// memory, then all of it is uploaded, and what uses it is launched when that has ended.
    pub pipelined: bool,
    /// Threads that write a plan, the caller's among them; 64 at most. Plans of more than a few hundred KiB
    /// are written by several, in pieces. The engine starts the others when they
    /// are first needed, keeps them waiting (they cost nothing then), and ends them with itself. 1 starts
    /// none. The default is half the processors that the process may use, up to 8: where each process is
    /// bound to one, as MPI's launchers do, that is 1.
    ///
    /// The caller's thread never depends on the others: it writes what they have not started. A child of
    /// `fork`, which has none of them, goes on alone.
    pub writers: usize,
    /// Whether packed data goes to and from pinned host memory through the device's own memory and its
    /// copy engine. By default kernels store to pinned memory, and load from it, directly.
    pub staged_host: bool,
    /// Whether short work (up to 16 KiB, without a plan) that comes while other short work goes on waits for company, and
    /// goes with it in one launch. CUDA only.
    pub gathers: bool,
    /// From so many bytes on, what is rows of 256 bytes or more goes between two GPUs by the copy engine,
    /// which is as fast as the link and needs no block; with a budget, from an eighth of that. `u64::MAX`
    /// leaves all to kernels.
    pub copy_bytes_min: u64,
    /// Whether a worker runs short copies without a launch. CUDA only.
    pub workers: Workers,
}

/// Whether a kernel stays on a device, and runs copies of up to [`WORKER_COPY_MAX`](crate::WORKER_COPY_MAX) bytes
/// without a launch: one block of 512 threads, which takes half the registers of a multiprocessor while it stays.
/// Kernels of others run beside it; what waits for all of the device (`cudaDeviceSynchronize`, `cudaFree`, loading a
/// module) waits until it has left. It takes what a [budget](crate::GpuEngine::with_budget) bounds, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// Every copy is launched.
    #[default]
    Never,
    /// A short copy that comes within this time behind another is launched, too, and starts it. It leaves when none has
    /// come for this long, and after 5 ms at the latest, to be started again in the same way.
    Idle(Duration),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            plan_bytes: 64 << 20,
            piece_bytes: 512 << 10,
            chunk_bytes: 16 << 20,
            streams: 4,
            queues: None,
            prepares: None,
            budget: None,
            pipelined: true,
            writers: writers(),
            staged_host: false,
            gathers: true,
            copy_bytes_min: 4 << 20,
            workers: Workers::Never,
        }
    }
}

/// Threads that write a plan if nothing else is said.
fn writers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (processors / 2).clamp(1, 8)
}

impl Config {
    /// The same with every number in its bounds.
    pub(crate) fn bounded(mut self) -> Config {
        self.piece_bytes = self.piece_bytes.clamp(4096, 1 << 30).next_multiple_of(4096);
        self.chunk_bytes = self.chunk_bytes.clamp(4096, 1 << 40).next_multiple_of(4096);
        self.streams = self.streams.clamp(1, 64);
        self.queues = self.queues.map(|queues| queues.clamp(1, 64));
        self.writers = self.writers.clamp(1, 64);
        self
    }
}

/// One kernel launch, as reports tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Which kernel.
    pub kernel: Kernel,
    /// Blocks (work-groups).
    pub blocks: u32,
    /// Threads (work-items) of a block.
    pub threads: u32,
    /// Bytes of the plan that the launch uses; 0 for closed forms.
    pub plan_bytes: u64,
}

/// One copy by the copy engine, as reports tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Rows.
    pub rows: u64,
    /// Bytes of a row.
    pub width: u64,
}
