//! Why a communicator of a stream cannot be made, or a call of it was refused, or failed.

use gapless_dtype::{Primitive, TypeError};
use gapless_engine::ReduceOp;
use gapless_mem::Space;
use gapless_mem_cuda::CudaError;
use thiserror::Error;

/// Why a [`StreamComm`](super::StreamComm) cannot be made, or a call was refused, or failed. Ranks are those of the
/// communicator.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The communicator has more ranks than kernels can meet.
    #[error("a communicator of {size} ranks, and collectives on a stream are for {most} at most")]
    TooMany {
        /// Its ranks.
        size: u32,
        /// The most.
        most: u32,
    },
    /// The communicator has two sides.
    #[error("collectives on a stream are not for intercommunicators")]
    Inter,
    /// The stream is being captured: making a communicator of it, or a plan, has to wait for peers now.
    #[error("the stream is being captured into a graph: make communicators and plans before that")]
    Captured,
    /// Two ranks use one GPU, whose processes take turns, as far as the driver says: a kernel of the one would wait for a kernel of the other that
    /// cannot start before it has ended.
    #[error(
        "ranks {one} and {other} use the same GPU, and it is not certain that the Multi-Process Service runs: without it \
         their kernels take turns and cannot wait for each other. Give each rank a GPU of its own, or start MPS"
    )]
    SameDevice {
        /// A rank.
        one: u32,
        /// Another.
        other: u32,
    },
    /// A GPU cannot hold the blocks of all that would run on it at once.
    #[error(
        "the GPU of rank {rank} has room for {room} thread blocks that wait or stay, and {wanted} would be reserved \
         there, {others} of them by processes or communicators beside this one (`gapless info` lists them): ask for fewer \
         (StreamOptions::blocks), or drop other communicators of streams and workers"
    )]
    NoRoom {
        /// The lowest rank on that GPU.
        rank: u32,
        /// Blocks that would be reserved.
        wanted: u32,
        /// Blocks that it can hold, of the largest kind.
        room: u32,
        /// Those that are reserved for something else, by this process or others.
        others: u32,
    },
    /// The ledger in which a user's processes count the blocks that they reserve on a GPU cannot be had.
    #[error(
        "rank {rank} could not reserve blocks of its GPU: the ledger cannot be written, or another process, which does \
         not go on (stopped?), keeps it locked; `gapless info` there says why"
    )]
    Ledger {
        /// That rank.
        rank: u32,
    },
    /// Ranks that ask for different numbers of blocks.
    #[error(
        "rank {rank} asks for {theirs} blocks, and rank 0 for {ours}: all ranks give the same StreamOptions"
    )]
    OptionsDiffer {
        /// A rank.
        rank: u32,
        /// What it asks for.
        theirs: u32,
        /// What rank 0 asks for.
        ours: u32,
    },
    /// A rank could not prepare its part; it has the reason.
    #[error("rank {rank} could not take part; its own error says why")]
    Refused {
        /// That rank.
        rank: u32,
    },
    /// A rank cannot map memory of another.
    #[error(
        "rank {rank} cannot map device memory of rank {other}: they are not on one host, or not linked"
    )]
    Unreachable {
        /// The lowest such rank.
        rank: u32,
        /// Whose memory it cannot map.
        other: u32,
    },
    /// Memory of a rank cannot be shared with other processes.
    #[error(
        "the memory of rank {rank} cannot be shared with other processes: it is not the stream's device's, or of an \
         allocation that CUDA cannot export (cudaMallocAsync, managed memory)"
    )]
    Unshared {
        /// That rank.
        rank: u32,
    },
    /// A buffer that does not lie in the memory of the stream's device.
    #[error("{argument} lies in {space}, not in {device}, the stream's device")]
    WrongSpace {
        /// Which.
        argument: &'static str,
        /// Where it lies.
        space: Space,
        /// Where it should.
        device: Space,
    },
    /// A buffer that is too short.
    #[error("{argument} has {len} bytes, and {needed} are needed")]
    TooShort {
        /// Which.
        argument: &'static str,
        /// What is needed.
        needed: u64,
        /// What there is.
        len: u64,
    },
    /// A number of elements whose bytes overflow.
    #[error("{count} elements of {bytes} bytes are more than any memory holds")]
    TooLong {
        /// Elements.
        count: u64,
        /// Bytes of each.
        bytes: u64,
    },
    /// A buffer at an address where its elements cannot be.
    #[error("{argument} does not begin at a multiple of its elements' {bytes} bytes")]
    Misaligned {
        /// Which.
        argument: &'static str,
        /// Bytes of an element.
        bytes: u64,
    },
    /// Elements or an operation that there is no kernel for.
    #[error("no kernel has {} of {element:?}", op.name())]
    Unsupported {
        /// The operation.
        op: ReduceOp,
        /// The elements.
        element: Primitive,
    },
    /// A buffer that peers read or write was not registered.
    #[error(
        "{argument} of a {operation} has to be registered (StreamComm::register): peers' kernels use it"
    )]
    NotRegistered {
        /// What was called.
        operation: &'static str,
        /// Which buffer.
        argument: &'static str,
    },
    /// A registration, or a plan, of another communicator.
    #[error("the buffer or plan belongs to another communicator of a stream")]
    Foreign,
    /// There is no such rank.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank {
        /// The number.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A kernel waited in vain for a rank: it did not make the same call in time.
    #[error("rank {rank} did not make the same call in time")]
    Late {
        /// Whom it waited for.
        rank: u32,
    },
    /// A rank's process has ended.
    #[error("rank {rank} is lost")]
    Lost {
        /// That rank.
        rank: u32,
    },
    /// A rank makes another call.
    #[error(
        "rank {rank} makes another call: operation, count, elements or registered buffers differ"
    )]
    Differs {
        /// That rank.
        rank: u32,
    },
    /// A rank's kernel has failed; that rank knows why.
    #[error("a collective has failed at rank {rank}, which knows why")]
    Failed {
        /// That rank.
        rank: u32,
    },
    /// A kernel of this rank named a partition that a message does not have, or took a send for a receive.
    #[error(
        "a kernel named a partition that the message with rank {rank} does not have, or took a send for a receive"
    )]
    NoSuchPartition {
        /// The message's other end.
        rank: u32,
    },
    /// A kernel of this rank started a receive again before all partitions of the epoch before had come.
    #[error(
        "a kernel started the receive from rank {rank} again before all its partitions had come"
    )]
    StartedEarly {
        /// The message's sender.
        rank: u32,
    },
    /// A kernel left a word that makes no sense: a bug, or memory that somebody else wrote.
    #[error("a kernel left {word:#x} as its state, which makes no sense")]
    Nonsense {
        /// The word.
        word: u64,
    },
    /// As many blocks are needed as there are ranks, or neighbours.
    #[error("{given} blocks are given in {argument}, and {wanted} are needed")]
    Blocks {
        /// Which argument.
        argument: &'static str,
        /// How many there are.
        given: usize,
        /// How many are needed.
        wanted: usize,
    },
    /// A reshard has a rank that the communicator does not have.
    #[error("the reshard has rank {rank}, and there are {ranks}")]
    ReshardRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// A layout of a reshard cannot be made.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A block reaches outside its buffer.
    #[error("the block of {argument} for rank {rank} reaches outside the registered memory")]
    Outside {
        /// Which buffer.
        argument: &'static str,
        /// Whom it goes to, or comes from.
        rank: u32,
    },
    /// The two ends of a block have different lengths.
    #[error("rank {from} sends {sent} bytes to rank {to}, which wants to receive {received}")]
    LengthsDiffer {
        /// Who sends it.
        from: u32,
        /// Who receives it.
        to: u32,
        /// What is sent.
        sent: u64,
        /// What is wanted.
        received: u64,
    },
    /// Two ranks have different numbers of partitioned messages for each other.
    #[error(
        "rank {from} has {sent} partitioned messages for rank {to}, which has {received} receives"
    )]
    MessagesDiffer {
        /// Who sends.
        from: u32,
        /// Who receives.
        to: u32,
        /// How many sends there are.
        sent: u64,
        /// How many receives.
        received: u64,
    },
    /// The two ends of a partitioned message have different numbers of partitions.
    #[error(
        "rank {from} sends a message of {sent} partitions to rank {to}, which wants to receive {received}"
    )]
    PartitionsDiffer {
        /// Who sends it.
        from: u32,
        /// Who receives it.
        to: u32,
        /// How many are sent.
        sent: u32,
        /// How many are wanted.
        received: u32,
    },
    /// A collective among neighbours needs to know who they are.
    #[error("the communicator had no topology when it was put on the stream")]
    NoTopology,
    /// A layout that kernels cannot take.
    #[error("a layout that kernels cannot take: {reason}")]
    Unfit {
        /// Why.
        reason: String,
    },
    /// The driver refused, or the device is lost.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

impl StreamError {
    /// The rank that is lost, if it is that.
    #[must_use]
    pub fn lost_rank(&self) -> Option<u32> {
        match self {
            StreamError::Lost { rank } => Some(*rank),
            _ => None,
        }
    }
}
