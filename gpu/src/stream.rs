//! Collectives that a CUDA stream carries out: kernels of all ranks wait for each other on the GPUs, and no host has a
//! part in it.
//!
//! [`StreamComm::new`] is collective and may take milliseconds: ranks tell each other which GPU they use (`terms`),
//! reserve thread blocks (`blocks`), map each other's windows (`exchange`), load kernels (`functions`). After that a call
//! computes its arguments (`call`, pure) and launches one kernel, or has a persistent kernel do it (`blocking`). Kernels
//! and windows are in `gapless_kernels::peers`.
//!
//! `layouts` plans collectives of any layouts, `partitioned` messages whose partitions kernels of users exchange.
//!
//! A failure is a word in page-locked memory (`words`). A thread that sleeps (`watch`) ends all waits when the process of
//! a peer has ended.

mod blocking;
mod blocks;
mod call;
mod error;
mod exchange;
mod functions;
mod layouts;
mod partitioned;
mod terms;
mod watch;
mod words;

pub use blocking::Blocking;
pub use call::{Registered, StreamBuffer};
pub use error::StreamError;
pub use layouts::{StreamBlock, StreamPlan, StreamWay};
pub use partitioned::{StreamPartitioned, StreamPartitions};

use blocking::Calls;
use call::{Everywhere, Ground, Launch};
use exchange::Mapped;
use functions::Functions;
use gapless_bml::Ranks;
use gapless_coll::topologies::Neighborhood;
use gapless_dtype::Primitive;
use gapless_dtype_cuda::{Reservation, Workers};
use gapless_engine::ReduceOp;
use gapless_kernels::peers::layouts::LayoutsArgs;
use gapless_kernels::peers::{BLOCKS_MAX, Kernel, RANKS_MAX, Window};
use gapless_mem::{Device, DeviceError, Outstanding, Region, Space};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, CudaError, Function, Grid, Mps, Stream};
use layouts::Planned;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terms::{GpuRecord, RECORD_BYTES};
use watch::Watch;
use words::HostWords;

/// Memory of a device. Dropping it makes peers release it, and then frees it.
///
/// # Safety
/// The region is always the same, and describes memory of the device that stays allocated until the value is dropped and
/// that nobody else uses. The device is that of its space.
pub unsafe trait StreamMemory {
    /// Its bytes.
    fn region(&self) -> Region;

    /// The device.
    fn device(&self) -> Arc<dyn Device>;
}

/// The ranks of a communicator whose collectives are queued on a stream.
pub trait StreamRanks: Ranks<Error: From<StreamError> + From<DeviceError>> {
    /// Memory that peers map.
    type Memory: StreamMemory;

    /// Memory of the device of this space.
    ///
    /// # Errors
    /// There is no such device, or not so much memory.
    fn allocate(&self, space: Space, bytes: u64) -> Result<Self::Memory, Self::Error>;

    /// Works on what else this process has to do: what it has sent and received, others' calls. It waits for nobody but
    /// threads of this process that do the same.
    fn progress(&self);

    /// The neighbours of this rank.
    ///
    /// # Errors
    /// The communicator has no topology ([`StreamError::NoTopology`]); a graph whose edges are not the same in both
    /// directions.
    fn neighbors(&self) -> Result<Neighborhood, Self::Error>;
}

/// What a communicator of a stream may use. All ranks give the same number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Thread blocks of a launch at most, 1 to 64. They are reserved as long as the communicator lives. All ranks have
    /// fewer if a GPU does not hold so many of each rank that uses it. With fewer, long messages take longer: two H100s
    /// reach 0.9 of their speed with 32.
    pub blocks: u32,
    /// How long a kernel waits for a rank that lives before the communicator fails.
    pub patience: Duration,
    /// The way of all blocks of plans, for measuring. `None`: the one that should be the fastest, for each. All ranks
    /// give the same.
    pub way: Option<StreamWay>,
    /// Whether a kernel stays on the GPU between [blocking](StreamComm::blocking) calls, and runs the short ones without a
    /// launch. It takes one more block of the GPU, of 512 threads, while there is room for it. Ranks may differ in this.
    pub workers: Workers,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        let (blocks, patience) = (BLOCKS_MAX, Duration::from_secs(60));
        StreamOptions { blocks, patience, way: None, workers: Workers::Never }
    }
}

/// A communicator whose collectives are queued on a CUDA stream (`Communicator::on`).
///
/// Its methods only launch a kernel, and ask no other process. (CUDA makes a launch wait where about a thousand others
/// are queued.) So they can be captured into a CUDA graph, and the graph can be launched any number of times. All ranks
/// make the same calls in the same order, captured or not, and launch their graphs in the same order, too.
///
/// Elements are combined in the order of the ranks, rounded after every operation: all ranks get the same bits, each
/// time, and those of `Communicator::allreduce` in host memory (other than which NaN a NaN is).
///
/// *Buffers.* Those of an all-reduce can be anywhere on the device. Long ones are faster, and other operations possible,
/// in memory that all ranks have [registered](StreamComm::register). Send and receive buffer may be the same.
///
/// *Failures.* What goes wrong on the GPU shows at the next call, at [`check`](StreamComm::check), or at
/// [`wait`](StreamComm::wait). From then on all ranks' collectives here fail, and what their buffers hold is undefined.
/// Every wait of a kernel ends: when the peer does the same, when its process ends, or after
/// [`patience`](StreamOptions::patience). A rank whose call has failed does not know how far others are: registered
/// memory may still be read and written by their kernels, until each living rank's `wait` has returned. A
/// `Communicator::barrier` of the ranks that live, after each has waited, tells that.
///
/// *The GPU.* A kernel that waits keeps its blocks of the GPU busy. Whatever waits for the whole GPU meanwhile
/// (`cudaDeviceSynchronize`, `cudaFree`) waits for the peers, too. Between processes that take turns on one GPU this
/// cannot work, and is refused; under MPS it works. With several such communicators on a GPU, all ranks launch on them in
/// one order: kernels of different streams may share a queue of the GPU, and one that waits holds up those behind it.
///
/// Dropping it waits until the stream is idle. A stream that is being captured cannot be waited for: then what it still
/// runs of this communicator is ended by an error, and the memory that kernels wait in is not freed before the process
/// ends.
pub struct StreamComm<'s, R: StreamRanks> {
    stream: &'s Stream,
    ground: Ground,
    functions: Arc<Functions>,
    words: Arc<HostWords>,
    watch: Option<Watch>,
    /// Blocks that wait for nobody, which a launch may have besides.
    further: u32,
    /// The way of all blocks of plans.
    way: Option<StreamWay>,
    /// Whether something was launched that nobody has waited for.
    queued: AtomicBool,
    /// What kernels use. `None` once it is dropped.
    held: Option<KernelResources<R::Memory>>,
    ranks: R,
}

/// What kernels use as long as they run: freed in this order, the window once peers have released it.
struct KernelResources<M> {
    calls: Option<Calls>,
    mapped: Vec<Mapped>,
    plans: Vec<Planned<M>>,
    /// Of partitioned messages.
    partitions: Vec<M>,
    _window: M,
    _words: Arc<HostWords>,
    _blocks: Reservation,
}

/// What a rank has before it hears of others.
struct Prepared<M> {
    functions: Arc<Functions>,
    words: HostWords,
    window: M,
}

/// A rank's GPU, and what it tells of it.
struct RankGpu {
    device: CudaDevice,
    record: GpuRecord,
    /// Kernels of other processes may run there at the same time.
    together: bool,
}

impl RankGpu {
    fn of(stream: &Stream, blocks: u32, workers: Workers) -> Result<RankGpu, StreamError> {
        let device = CudaDriver::load()?.device(stream.device())?;
        let uuid = device.uuid();
        let mps = device.mps();
        // The ledger counts better, and more.
        let reserved = match gapless_dtype_cuda::ledger_folder() {
            Some(_) => 0,
            None => gapless_dtype_cuda::reserved_here(uuid),
        };
        let record = GpuRecord {
            uuid,
            ready: false,
            turns: terms::turns(mps),
            blocks,
            reserved,
            room: 0,
            process: std::process::id(),
            stay: u32::from(workers != Workers::Never),
            namespace: namespace(),
        };
        Ok(RankGpu { device, record, together: mps != Mps::Off })
    }
}

/// In which processes' numbers are counted; 0 if that is not known.
fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").ok();
    let number = link
        .as_ref()
        .and_then(|link| link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
    number.unwrap_or(0)
}

/// All that can fail at one rank alone.
fn prepare<R: StreamRanks>(
    ranks: &R,
    stream: &Stream,
    place: &RankGpu,
) -> Result<Prepared<R::Memory>, R::Error> {
    let driver = StreamError::Driver;
    if stream.is_captured().map_err(driver)? {
        return Err(StreamError::Captured.into());
    }
    let functions = Functions::of(&place.device).map_err(driver)?;
    let words = HostWords::new(&place.device).map_err(driver)?;
    let space = Space::Cuda { device: stream.device() };
    let layout = Window { ranks: ranks.size() };
    let window = ranks.allocate(space, layout.bytes())?;
    let zeros = vec![0u8; usize::try_from(layout.zeroed()).unwrap_or(usize::MAX)];
    let head = window.region().sub(0, layout.zeroed()).map_err(DeviceError::from)?;
    // SAFETY: the window is new, and nobody else knows it; both live until the copy has ended (`Outstanding`).
    let cleared = unsafe { window.device().copy(head, Region::of(&zeros), &[]) }?;
    Outstanding::new(cleared).wait()?;
    Ok(Prepared { functions, words, window })
}

/// A number for each communicator of a stream of this process.
fn new_owner() -> u64 {
    static OWNERS: AtomicU64 = AtomicU64::new(1);
    OWNERS.fetch_add(1, Ordering::Relaxed)
}

impl<'s, R: StreamRanks> StreamComm<'s, R> {
    /// The communicator of these ranks whose collectives are queued on `stream`; among them nothing else is sent. Collective;
    /// may block.
    ///
    /// # Errors
    /// Ranks on one GPU that take turns, GPUs that cannot map each other's memory, no room for the blocks, more than 16
    /// ranks, and what [`StreamError`] lists besides. A peer is lost.
    pub fn new(
        ranks: R,
        stream: &'s Stream,
        options: StreamOptions,
    ) -> Result<StreamComm<'s, R>, R::Error> {
        let (size, most) = (ranks.size(), u32::try_from(RANKS_MAX).unwrap_or(u32::MAX));
        if size > most {
            return Err(StreamError::TooMany { size, most }.into());
        }
        let blocks = options.blocks.clamp(1, BLOCKS_MAX);
        let own = match RankGpu::of(stream, blocks, options.workers) {
            Ok(place) => prepare(&ranks, stream, &place).map(|prepared| (place, prepared)),
            Err(error) => Err(error.into()),
        };
        let record = match &own {
            Ok((place, prepared)) => {
                let units = place.device.properties().compute_units;
                let room = prepared.functions.per_unit.saturating_mul(units);
                GpuRecord { ready: true, room, ..place.record }
            }
            Err(_) => GpuRecord { blocks, ..GpuRecord::decode(&[0; RECORD_BYTES]) },
        };
        let mut records = vec![[0u8; RECORD_BYTES]; size as usize];
        ranks.allgather(&record.encode(), records.as_flattened_mut())?;
        let records: Vec<GpuRecord> = records.iter().map(GpuRecord::decode).collect();
        // Its own reason before others'.
        let (mut place, prepared) = own?;
        place.record.blocks = terms::agree(&records)?;
        let reservation = blocks::reserve(&ranks, &records, place.record.blocks, place.together)?;
        // SAFETY: the window is freed when it is dropped, once peers have released it (`StreamMemory`).
        let mapped = unsafe { exchange::map_everywhere(&ranks, prepared.window.region()) }?;
        let held = (reservation, mapped);
        Ok(StreamComm::with(ranks, stream, place, prepared, held, &records, options))
    }

    fn with(
        ranks: R,
        stream: &'s Stream,
        place: RankGpu,
        prepared: Prepared<R::Memory>,
        (reservation, mapped): (Reservation, Mapped),
        records: &[GpuRecord],
        options: StreamOptions,
    ) -> StreamComm<'s, R> {
        let Prepared { functions, words, window } = prepared;
        let words = Arc::new(words);
        let near = |record: &GpuRecord| {
            record.namespace != 0 && record.namespace == place.record.namespace
        };
        let peers =
            (0..).zip(records).filter(|(rank, record)| *rank != ranks.rank() && near(record));
        let peers: Vec<(u32, u32)> = peers.map(|(rank, record)| (rank, record.process)).collect();
        let watch = Watch::new(&peers, &words);
        let (abort, status) = words.addresses();
        let ground = Ground {
            owner: new_owner(),
            rank: ranks.rank(),
            ranks: ranks.size(),
            space: Space::Cuda { device: stream.device() },
            windows: mapped.at,
            registered: Vec::new(),
            blocks: place.record.blocks,
            patience: u64::try_from(options.patience.as_nanos()).unwrap_or(u64::MAX),
            abort,
            status,
        };
        let kept = Arc::clone(&words);
        let mut held = KernelResources {
            calls: None,
            mapped: vec![mapped],
            plans: Vec::new(),
            partitions: Vec::new(),
            _window: window,
            _words: kept,
            _blocks: reservation,
        };
        let blocks = place.record.blocks;
        let further = place.device.properties().compute_units.saturating_sub(blocks).min(blocks);
        let (workers, function) = (options.workers, functions.calls.clone());
        // SAFETY: the kernel is dropped before windows and words are. It is the one for calls.
        held.calls = unsafe { blocking::kernel(place.device, function, workers, ground.args()) };
        let (held, way, queued) = (Some(held), options.way, AtomicBool::new(false));
        StreamComm { stream, ground, functions, words, watch, further, way, queued, held, ranks }
    }

    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.ground.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ground.ranks
    }

    /// Thread blocks that are reserved for kernels that wait, at every rank: [`StreamOptions::blocks`], or fewer.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.ground.blocks
    }

    /// Makes memory known to all ranks, so that their kernels read and write it where it lies. Collective; may block.
    /// Its length may differ between ranks: the shortest counts.
    ///
    /// # Safety
    /// The memory stays allocated until this communicator is dropped at all ranks. If it is not a `DeviceBuf`'s, it is
    /// invalidated then (`World::invalidate`), before it is freed. Calls that use
    /// it, but for plans, are made by all ranks with the same registration and the same offset.
    ///
    /// # Errors
    /// The memory is not the stream's device's at some rank, or cannot be shared (of `cudaMallocAsync`, say); a peer is
    /// lost.
    pub unsafe fn register(&mut self, region: Region) -> Result<Registered, R::Error> {
        // A rank that refuses takes part, so that the others learn it.
        let device = self.ground.space;
        let right = region.space() == device;
        let shared = if right { region } else { Region::new(device, 0, 0, 0) };
        // SAFETY: the caller's promise.
        let mapped = unsafe { exchange::map_everywhere(&self.ranks, shared) };
        if !right {
            let (argument, space) = ("the registered memory", region.space());
            return Err(StreamError::WrongSpace { argument, space, device }.into());
        }
        let mapped = mapped?;
        let index = self.ground.registered.len();
        let len = mapped.len;
        self.ground.registered.push(Everywhere { at: mapped.at, len, lens: mapped.lens });
        self.keep_mapped(mapped);
        Ok(Registered { owner: self.ground.owner, index, len })
    }

    /// Queues an all-reduce of `count` elements (`MPI_Allreduce`, MPI 4.1 §6.9.6): sum, product, maximum or minimum of
    /// 16-, 32- and 64-bit floats, 32- and 64-bit integers.
    ///
    /// # Safety
    /// From when the stream gets there until it is done, at all ranks if the buffers are registered: nothing else writes
    /// `send`, nothing else touches `recv`, and they overlap only if they are the same. Launches of a graph that has
    /// captured the call, on whatever stream, have ended when this communicator is dropped, and while one runs nothing
    /// else of this communicator does.
    ///
    /// # Errors
    /// [`StreamError`]: buffers that do not fit, elements or an operation without a kernel; a failure of an earlier call.
    pub unsafe fn allreduce(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        count: u64,
        element: Primitive,
        op: ReduceOp,
    ) -> Result<(), StreamError> {
        let launch = self.ground.allreduce((send.into(), recv.into()), count, (op, element))?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch) }
    }

    /// Queues a reduce-scatter of blocks of `count` elements each (`MPI_Reduce_scatter_block`, MPI 4.1 §6.10.1). `send`
    /// is registered, and has a block for each rank.
    ///
    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce); `recv` may be this rank's block of `send`, and overlaps it nowhere else.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn reduce_scatter(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        count: u64,
        element: Primitive,
        op: ReduceOp,
    ) -> Result<(), StreamError> {
        let buffers = (send.into(), recv.into());
        let launch = self.ground.reduce_scatter(buffers, count, (op, element))?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch) }
    }

    /// Queues an all-gather of blocks of `bytes` bytes (`MPI_Allgather`, MPI 4.1 §6.7). `recv` is registered, and has a
    /// block for each rank.
    ///
    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce); `send` may be this rank's block of `recv`, and overlaps it nowhere else.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn allgather(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        bytes: u64,
    ) -> Result<(), StreamError> {
        let launch = self.ground.allgather((send.into(), recv.into()), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch) }
    }

    /// Queues an all-to-all of blocks of `bytes` bytes (`MPI_Alltoall`, MPI 4.1 §6.8). Both buffers have a block for each
    /// rank; `recv` is registered.
    ///
    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce), and the buffers do not overlap.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn alltoall(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        bytes: u64,
    ) -> Result<(), StreamError> {
        let launch = self.ground.alltoall((send.into(), recv.into()), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch) }
    }

    /// Queues a barrier: what comes after it on the stream begins when all ranks' streams have got there (`MPI_Barrier`,
    /// MPI 4.1 §6.3).
    ///
    /// # Errors
    /// A failure of an earlier call.
    pub fn barrier(&mut self) -> Result<(), StreamError> {
        let launch = self.ground.barrier();
        // SAFETY: it works on the window alone, and who launches graphs has promised what else there is to.
        unsafe { self.launch(Some(launch)) }
    }

    /// Queues a broadcast of `bytes` bytes out of rank `root`'s registered buffer (`MPI_Bcast`, MPI 4.1 §6.4).
    ///
    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce): the buffer is both.
    ///
    /// # Errors
    /// As there; no such rank.
    pub unsafe fn broadcast(
        &mut self,
        buffer: impl Into<StreamBuffer>,
        bytes: u64,
        root: u32,
    ) -> Result<(), StreamError> {
        let launch = self.ground.broadcast(buffer.into(), bytes, root)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(launch) }
    }

    /// Kernels may use these mappings from now on.
    fn keep_mapped(&mut self, mapped: Mapped) {
        if let Some(held) = &mut self.held {
            held.mapped.push(mapped);
        }
    }

    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce).
    unsafe fn launch(&self, launch: Option<Launch>) -> Result<(), StreamError> {
        self.words.check()?;
        let Some(Launch { kernel, shape, args }) = launch else { return Ok(()) };
        let function = self.function(kernel)?;
        let grid = Grid::line(shape.blocks, shape.threads);
        // SAFETY: the kernel has this one parameter. Windows and page-locked words live as long as this value, which
        // waits for the stream when it is dropped, or, where it cannot, never frees them; the caller vouches for the
        // buffers, and for graphs. The kernel is made for memory that peers' kernels use at the same time, and its
        // blocks are reserved.
        unsafe { function.launch(self.stream, grid, &[Argument::of(&args)]) }?;
        self.queued.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce); the table is one of this communicator's.
    unsafe fn launch_layouts(&self, blocks: u32, args: &LayoutsArgs) -> Result<(), StreamError> {
        let function = self.function(Kernel::Layouts)?;
        let grid = Grid::line(blocks, functions::THREADS);
        // SAFETY: as in `launch`. Tables and staging memory live as long as windows do. Of the blocks those that wait for
        // others are reserved.
        unsafe { function.launch(self.stream, grid, &[Argument::of(args)]) }?;
        self.queued.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn function(&self, kernel: Kernel) -> Result<&Function, CudaError> {
        let reason = "the image has no such kernel";
        self.functions.get(kernel).ok_or(CudaError::Image { reason })
    }

    /// Whether all is well so far: asks the GPU and peers for nothing.
    ///
    /// # Errors
    /// A kernel of this rank has failed, or a rank is lost ([`StreamError::lost_rank`]).
    pub fn check(&self) -> Result<(), StreamError> {
        self.words.check()
    }

    /// Waits until all that is on the stream has ended, polling. What else this process has to do goes on.
    ///
    /// # Errors
    /// As [`check`](StreamComm::check); the stream is being captured ([`StreamError::Captured`]); the device is lost.
    pub fn wait(&self) -> Result<(), StreamError> {
        const POLLS: u32 = 10_000;
        const BETWEEN: u32 = 16;
        let mut polls = 0u32;
        self.not_captured()?;
        while !self.stream.is_idle()? {
            polls = polls.saturating_add(1);
            if polls.is_multiple_of(BETWEEN) {
                self.ranks.progress();
            }
            if polls > POLLS {
                std::thread::yield_now();
            }
        }
        self.queued.store(false, Ordering::Relaxed);
        self.check()
    }
}

impl<R: StreamRanks> Drop for StreamComm<'_, R> {
    fn drop(&mut self) {
        // Before the mappings: it is the one that ends waits.
        let captured = self.stream.is_captured();
        if captured == Ok(false) {
            self.stream.drain();
            self.watch = None;
            self.held = None;
        } else {
            // What was queued before the capture may run now, and cannot be waited for.
            self.words.abort(self.ground.rank);
            self.watch = None;
            std::mem::forget(self.held.take());
        }
    }
}

impl<R: StreamRanks> fmt::Debug for StreamComm<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ground { rank, ranks, space, .. } = &self.ground;
        write!(f, "StreamComm, rank {rank} of {ranks}, on {space}")
    }
}
