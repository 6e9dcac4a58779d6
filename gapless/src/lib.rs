#![doc = include_str!("../README.md")]
//!
//! ## What is sent
//!
//! Numbers, `bool`, `char`, arrays, and slices and lists of them are sent as they are. A struct gets its datatype by
//! `#[derive(Datatype)]`; padding is a gap, so nobody reads it:
//!
//! ```
//! use gapless::{Datatype, ReduceOp, World};
//!
//! #[derive(Datatype, Clone, Debug, Default, PartialEq)]
//! #[repr(C)]
//! struct Particle {
//!     kind: u8,
//!     position: [f64; 3],
//!     mass: f32,
//! }
//!
//! # fn main() -> Result<(), gapless::Error> {
//! let world = World::init()?;
//! let comm = world.comm();
//! let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
//! let leaving = vec![Particle { kind: 1, position: [0.5; 3], mass: 2.0 }; 10];
//! let mut arriving = vec![Particle::default(); 10];
//! let status = comm.sendrecv(&leaving, (right, 0), &mut arriving, (left, 0))?;
//! assert_eq!((&arriving, status.bytes), (&leaving, 290));
//! let mut mass = 0.0;
//! comm.allreduce(&arriving[0].position[0], &mut mass, ReduceOp::Sum)?;
//! assert_eq!(mass, 0.5 * f64::from(comm.size()));
//! world.finalize()
//! # }
//! ```
//!
//! [`Equivalence`] says what may be sent; [`AnyBits`] says what may be received. Not every byte is a `bool`, so `bool`,
//! `char`, enums and structs that have them are received by
//! [`recv_checked`](Communicator::recv_checked), which looks at the bits, or as integers:
//!
//! ```compile_fail,E0277
//! # fn main() -> Result<(), gapless::Error> {
//! let world = gapless::World::init()?;
//! let mut alive = [false; 8];
//! world.comm().recv(&mut alive, 0, 0)?; // error: receive a `bool` as `u8`, or use `recv_checked`
//! # Ok(())
//! # }
//! ```
//!
//! Memory is borrowed, not taken:
//!
//! ```compile_fail,E0277
//! # fn main() -> Result<(), gapless::Error> {
//! let world = gapless::World::init()?;
//! world.comm().send(vec![1.0f64; 8], 0, 0)?; // error: send `&vec`
//! # Ok(())
//! # }
//! ```
//!
//! ## Arrays of `ndarray`
//!
//! With the feature `ndarray`, a reference to an array or a view of that crate (0.17) is a buffer, and so is a view by
//! value: of any strides, also negative ones, and axes of any length. Its elements travel in logical order, the last
//! axis fastest; nothing is copied. In a collective, blocks are slices along the first axis.
//!
#![cfg_attr(feature = "ndarray", doc = "```")]
#![cfg_attr(not(feature = "ndarray"), doc = "```ignore")]
//! use gapless::World;
//! use ndarray::{Array2, s};
//! # fn main() -> Result<(), gapless::Error> {
//! let world = World::init()?;
//! let comm = world.comm();
//! let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
//! let a = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as f64);
//! let mut b = Array2::<f64>::zeros((3, 4));
//! // The last column comes into the second one of the neighbour, upside down.
//! comm.sendrecv(a.slice(s![.., 3]), (right, 0), b.slice_mut(s![..;-1, 1]), (left, 0))?;
//! assert_eq!(b.column(1).to_vec(), [23.0, 13.0, 3.0]);
//! world.finalize()
//! # }
//! ```
//!
//! An array that `broadcast` repeats to 2⁶³ bytes or more panics. A [`Plan`] takes the elements as they lie in memory:
//! `as_slice_memory_order_mut`.
//!
//! ## Where things are
//!
//! - [`prelude`]: what most programs use, in one import;
//! - [`World`]: joining and leaving a job; [`World::alloc`] for memory that moves with one copy;
//! - [`Communicator`]: blocking send (in all modes), receive, probe, exchange; communicators made of it;
//!   [`Communicator::scope`] for non-blocking operations on borrowed memory; [`Communicator::isend_owned`] for
//!   operations that own their buffers, which are futures, too; [`Persistent`] for operations that are started again
//!   and again;
//! - [`View`], [`ViewMut`]: memory, and a [`Layout`] of the pieces in it; [`Datatype`](struct@Datatype): MPI's
//!   constructors, by which layouts are made; [`pack`], [`unpack`]: layouts without messages;
//! - [`Equivalence`], [`AnyBits`], [`CheckedBits`], and the derive macro [`Datatype`](derive@Datatype): what may be sent
//!   and received; [`SendBuffer`], [`RecvBuffer`]: what operations take;
//! - [`Collective`]: collectives in all their forms; most are methods of [`Communicator`] and [`Scope`];
//! - [`Communicator::wait_any`]: waiting for one of several operations, messages and collectives;
//! - [`Communicator::revoke`], [`Communicator::shrink`]: going on after deaths;
//! - [`Window`]: memory that other ranks read, write and accumulate into; made by [`Communicator::window_allocate`] and
//!   [`Communicator::window`];
//! - [`Topology`]: communicators with neighbours, made by [`Communicator::cart_create`] and its like;
//! - [`DeviceBuf`]: memory of devices, and how to share it with peers;
//! - `StreamComm` (feature `cuda`): collectives between GPUs, queued on a stream, by `Communicator::on`;
//! - [`Pages`]: one layout, repeated at indices that are data, such as a block table's: [`View::pages`];
//! - [`Parts`]: several messages out of and into one buffer at once; [`Plan`]: the same again and again, described once;
//! - [`tuning`]: the numbers by which protocols are chosen, and their file;
//! - [`processors`]: sockets, NUMA nodes and caches of this host; [`Communicator::locality`]: which ranks share them;
//! - [`wireup`]: how processes find each other; `launch`: the local launcher (feature `launch`);
//! - [`raw`]: for bindings of other languages: memory that the caller vouches for, and one kind of request;
//! - [`xtq`]: tasks at other processes, without a receive there ([`World::xtq`]);
//! - [`btl`]: to add a transport of one's own with [`Builder::transport`].
//!
//! The layers underneath can be used by themselves: `gapless-dtype` describes data, `gapless-engine` moves it,
//! `gapless-btl` is the contract of transports, `gapless-bml` chooses among them, `gapless-pml` matches messages.
//!
//! ## Threads
//!
//! Any number of threads can use everything at once (`MPI_THREAD_MULTIPLE`, MPI 4.1 §11.6): [`World`],
//! [`Communicator`] and the requests are `Send` and `Sync`. The message layer is behind one lock, which no thread
//! holds while it waits. Any waiting thread makes progress for all. If two threads receive on one communicator with
//! patterns that overlap, they get messages in some order; the program must order collective calls on one
//! communicator. While no thread is in a call, no message progresses, unless there is a progress thread
//! ([`Builder::progress_thread`](crate::Builder::progress_thread)).
//!
//! ## Memory of devices
//!
//! A message is described by a [`View`]: memory, and a [`Layout`] of the pieces in it to send. A [`View::of_region`]
//! may lie in memory of a CUDA or OpenCL device (features `cuda` and `opencl`). Drivers and devices are opened when a
//! message first needs them. A process without any starts normally;
//! messages in memory that no engine serves are refused ([`PmlError::NoEngine`]). `Builder::gpu` gives a world an
//! engine that you have made.
//!
//! ```no_run
//! use gapless::{Datatype, Primitive, Region, Space, View, World};
//! # fn main() -> Result<(), gapless::Error> {
//! # let pointer = 0;
//! let world = World::init()?;
//! // The first column of a row-major 512 × 512 matrix at what `cudaMalloc` gave.
//! let matrix = Region::new(Space::Cuda { device: 0 }, pointer, 0, 512 * 512 * 8);
//! let column = Datatype::vector(512, 1, 512, &Primitive::Double.into())?.commit()?;
//! // SAFETY: the matrix is not freed before the send has ended, and all work that writes it is over.
//! let view = unsafe { View::of_region(matrix, 0, &column, 1) }?;
//! world.comm().send(view, 1, 0)?; // rank 1 receives into memory of any kind
//! world.finalize()
//! # }
//! ```
//!
//! A kernel packs a short message into the shared memory of the transport, and another unpacks it from there. Longer
//! messages between devices that reach each other move by one kernel from layout to layout, or through staging
//! memory; others move through page-locked memory of the host. The cost model chooses (`gapless explain`). Peers keep
//! the device memory that messages used, lists of indices included, mapped: before you free such memory, call
//! [`World::invalidate`], or allocate it with [`World::alloc_device`]; see [`DeviceBuf`].
//!
//! A send can come after work on your streams ([`Scope::isend_after`]), and a stream can wait for a receive
//! ([`Scope::when_done`]). Otherwise, end your work on the buffer before you pass it.
//!
//! ## Safety
//!
//! Memory is granted to a message for as long as it is in flight, and no promise relies on a `Drop` running: see
//! [`Communicator::scope`] and [`OwnedRequest`]. [`SharedBuf`] says who is trusted with memory that peers map.

// What is where, for who reads the code. A call takes a view of the caller's memory, checks it, takes the world's lock
// (`shared`), and hands the region and layout to `gapless-pml` (messages), `gapless-coll`, `gapless-osc` or `gapless-xtq`;
// the answer comes back as a request, which gives the memory back when it has ended.
//
// - the job: `world` (start-up, progress, leaving), `network`, `accelerators`;
// - what is sent: `view`, `parts` (several views of one buffer), `device_buf`, `shared_buf`,
//   `registered_buf` (with `page_locked`, as persistent requests);
// - messages: `communicator` (blocking), `scope` (borrowed), `owned` (own buffers), `plan` (repeated), `several` and
//   `completion` (waiting without a thread, for some of many), `ordered` (beside streams); `raw` has one request for all
//   kinds, on which bindings stand, and requests that own their buffers;
// - `collective` and `stream_comm`, `window`, `xtq`: collectives, one-sided memory, tasks;
// - below all of them: `shared` (the lock, waiting, sleeping), `error`; `fuzzing` exists for fuzz targets alone.
#![deny(unsafe_code)]

#[cfg(not(any(feature = "cuda", feature = "opencl")))]
mod accelerators;
#[allow(unsafe_code, reason = "grants memory to collectives until they have ended")]
mod collective;
#[allow(unsafe_code, reason = "keeps borrowed and parked memory until requests have ended")]
mod communicator;
mod completion;
#[allow(unsafe_code, reason = "frees memory of devices, and grants it to messages")]
mod device_buf;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod network;
#[allow(unsafe_code, reason = "grants memory to requests that wait for other work")]
mod ordered;
#[allow(unsafe_code, reason = "takes buffers apart and puts them together again")]
mod owned;
#[allow(unsafe_code, reason = "registers memory with devices, and undoes that before it is freed")]
mod page_locked;
#[allow(unsafe_code, reason = "views of parts of one buffer that are found to be apart")]
mod parts;
#[allow(unsafe_code, reason = "grants memory to messages until all of them have ended")]
mod plan;
pub mod prelude;
#[allow(unsafe_code, reason = "passes on what callers vouch for")]
pub mod raw;
#[allow(unsafe_code, reason = "registered memory as slices")]
mod registered_buf;
#[allow(unsafe_code, reason = "grants memory to requests until the scope has joined them")]
mod scope;
mod several;
mod shared;
#[allow(unsafe_code, reason = "allocated memory as slices")]
mod shared_buf;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "vouches for memory of devices")]
mod stream_comm;
#[allow(unsafe_code, reason = "views of regions that the borrow checker does not know")]
mod view;
#[allow(
    unsafe_code,
    reason = "vouches for the memory of windows, and moves bytes of views that are borrowed"
)]
mod window;
mod world;
#[allow(unsafe_code, reason = "passes on the promise that kernels take")]
pub mod xtq;

/// The page for those who come from MPI, rsmpi or mpi4py: its examples run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-mpi.md")]
struct FromMpi;

/// What the crates below show of this one: their examples run.
#[cfg(doctest)]
#[doc = include_str!("../../boot/README.md")]
#[doc = include_str!("../../osc/README.md")]
struct Below;

/// The page about one-sided windows: its examples run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/windows.md")]
struct Windows;

pub use collective::{
    Blocks, BlocksMut, Collective, CollectiveError, CollectiveRequest, InPlace, Input, Output,
    OwnedCollective, PersistentCollective, Root,
};
pub use communicator::{Communicator, Message, Topology};
pub use completion::Ending;
pub use device_buf::DeviceBuf;
pub use error::Error;
#[cfg(feature = "launch")]
#[doc(inline)]
pub use gapless_boot::launch;
#[doc(inline)]
pub use gapless_boot::{BootError, processors, wireup};
#[doc(inline)]
pub use gapless_tuning as tuning;
pub use owned::{
    Owned, OwnedBlocks, OwnedBuffer, OwnedBufferMut, OwnedRequest, Persistent, Refused,
};
pub use parts::Parts;
pub use plan::{Plan, PlanBuffer, PlanBuilder, ReshardPlan, Rest};
pub use registered_buf::RegisteredBuf;
pub use scope::{Request, Scope};
pub use several::{Handle, InFlight};
pub use shared_buf::SharedBuf;
#[cfg(feature = "cuda")]
pub use stream_comm::{Blocking, StreamComm, stream_code};
pub use view::{
    DeviceIndices, RecvBuffer, SendBuffer, View, ViewMut, check_kinds, detect_space, in_space,
    space_of,
};
pub use window::{
    Assertions, SharedPart, Window, WindowBuilder, WindowFlavor, WindowMemory, WindowModel,
    WindowOperation, WindowRequest, WindowScope,
};
pub use world::{Builder, Link, World};

pub use gapless_bml::Nearness;
pub use gapless_btl as btl;
pub use gapless_coll as coll;
pub use gapless_derive::{Datatype, task};
pub use gapless_dtype::{
    AnyBits, Buffer, BufferMut, CheckedBits, Darray, Datatype, Distribution, Equivalence, FitError,
    Layout, Order, PageIndices, Pages, PagesError, Primitive, Scalar, Subarray, pack, unpack,
};
#[cfg(any(feature = "cuda", feature = "opencl"))]
pub use gapless_dtype_cuda::GpuEngine;
#[cfg(feature = "cuda")]
pub use gapless_dtype_cuda::Workers;
pub use gapless_engine::{Engine, Op, ReduceOp, UserOp, Vectors};
#[cfg(feature = "cuda")]
pub use gapless_gpu::{
    Registered, StreamBlock, StreamBuffer, StreamError, StreamOptions, StreamPartitioned,
    StreamPartitions, StreamPlan, StreamWay,
};
pub use gapless_mem::{Completion, Device, Region, Space};
#[cfg(feature = "cuda")]
pub use gapless_mem_cuda::{
    CudaDevice, CudaDriver, Graph as CudaGraph, Module as CudaModule, Stream as CudaStream,
    StreamGate as CudaGate,
};
#[cfg(feature = "opencl")]
pub use gapless_mem_opencl::OpenClDevice;
pub use gapless_osc::{
    Accumulations, Fault as WindowFault, Lock, Place, WindowCalls, WindowError, WindowProfile,
};
pub use gapless_pml::{
    BUFFERED_OVERHEAD, Comparison, Config, Counters, Failure, Group, PmlError, Protocol, SendMode,
    Source, Status, TagSel, Tuning,
};
