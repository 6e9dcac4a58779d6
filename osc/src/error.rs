//! What can go wrong with a window, and whose fault it was.

use gapless_bml::LinkError;
use gapless_dtype::Primitive;
use gapless_engine::EngineError;
use gapless_mem::DeviceError;
use thiserror::Error;

/// Why a call on a window failed. Ranks are those of the window's communicator, except where a process is named.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// A rank that the window does not have.
    #[error("no rank {rank} in a window of {size} ranks")]
    NoSuchRank {
        /// The rank that was given.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A group that names a rank more than once.
    #[error("rank {rank} is named twice in a group of a window")]
    NamedTwice {
        /// The rank.
        rank: u32,
    },
    /// Bytes outside the window's memory at the target (`MPI_ERR_RMA_RANGE`).
    #[error("bytes {low}..{high} do not lie in the {bytes} bytes of the window at rank {rank}")]
    Outside {
        /// The target.
        rank: u32,
        /// The first byte.
        low: i128,
        /// The one behind the last.
        high: i128,
        /// Bytes of the window there.
        bytes: u64,
    },
    /// An element that is accessed atomically, at an address that is no multiple of its alignment.
    #[error(
        "{primitive} at byte {offset} of the window at rank {rank} is not aligned: atomic operations need that"
    )]
    Misaligned {
        /// The target.
        rank: u32,
        /// Where it lies.
        offset: u64,
        /// What it is.
        primitive: Primitive,
    },
    /// No epoch gives access to this target (`MPI_ERR_RMA_SYNC`).
    #[error("{call}: no epoch gives access to rank {rank}")]
    NoEpoch {
        /// What was called.
        call: &'static str,
        /// The target.
        rank: u32,
    },
    /// A call that does not go with the epoch that is open (`MPI_ERR_RMA_SYNC`).
    #[error("{call} is not possible while {open}")]
    Mixed {
        /// What was called.
        call: &'static str,
        /// What is open.
        open: &'static str,
    },
    /// The end of an epoch that is not open (`MPI_ERR_RMA_SYNC`).
    #[error("{call}: there is no such epoch")]
    NotOpen {
        /// What was called.
        call: &'static str,
    },
    /// A call that a window of this kind does not have (`MPI_ERR_RMA_FLAVOR`).
    #[error("{call} is not possible on {flavor}")]
    Flavor {
        /// What was called.
        call: &'static str,
        /// What kind of window it is.
        flavor: &'static str,
    },
    /// No memory is attached at this address (`MPI_ERR_RMA_ATTACH`).
    #[error("no memory is attached to the window at address {address:#x}")]
    NotAttached {
        /// The address.
        address: u64,
    },
    /// The target has freed the window, or has none.
    #[error("rank {rank} has freed the window")]
    Freed {
        /// The target.
        rank: u32,
    },
    /// A process that was needed is lost.
    #[error("process {process} {}", error.fate())]
    Lost {
        /// Its number in the job; of a process that left because of another's death, that other's.
        process: u32,
        /// How that was noticed.
        error: LinkError,
    },
    /// Origin and target have other elements (`MPI_ERR_TYPE`).
    #[error("the layout at the target does not fit what the origin has: {why}")]
    Mismatch {
        /// What differs.
        why: String,
    },
    /// The layouts or the operation cannot be used: elements of several types in an accumulation, an operation that is not
    /// defined for them (`MPI_ERR_TYPE`, `MPI_ERR_OP`).
    #[error(transparent)]
    Elements(#[from] EngineError),
    /// The same bytes twice in the layout of what is written.
    #[error("a layout that is written names some byte twice in {count} instances")]
    Overlapping {
        /// How many instances.
        count: u64,
    },
    /// A layout that is too long to be told to a target that is reached by messages.
    #[error(
        "a layout takes {bytes} bytes to describe, and no more than {most} are sent to a target"
    )]
    LongLayout {
        /// Bytes of its description.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// The target has refused an operation.
    #[error("rank {rank} has refused an operation: {why}")]
    Refused {
        /// The target.
        rank: u32,
        /// Why.
        why: Fault,
    },
    /// A notice counter that the window does not have.
    #[error("no notice counter {counter} in a window that was made with {counters}")]
    NoCounter {
        /// The counter that was given.
        counter: u32,
        /// How many there are at each rank.
        counters: u32,
    },
    /// Ranks called the making of a window differently.
    #[error("rank {rank} makes the window with other {what}")]
    Differs {
        /// Who.
        rank: u32,
        /// What differs.
        what: &'static str,
    },
    /// A rank could not make its part of a window.
    #[error("rank {rank} has no memory for the window")]
    NoMemory {
        /// Who.
        rank: u32,
    },
    /// Ranks that cannot map each other's memory, in a shared window.
    #[error("rank {rank} cannot map the memory of all ranks of the shared window")]
    Unshared {
        /// Who.
        rank: u32,
    },
    /// Another rank was refused a fence or the freeing, so that no rank has done it.
    #[error("{call}: rank {rank} was refused it, so no rank has done it")]
    Elsewhere {
        /// What was called.
        call: &'static str,
        /// The lowest rank that was refused it, and has the reason.
        rank: u32,
    },
    /// An earlier call failed half-way, so that ranks no longer agree on what is open.
    #[error("an earlier synchronisation of the window failed: it can only be dropped")]
    Broken,
    /// A call, or an operation, that a window does not have whose accumulations the worker of an accelerator does.
    #[error(
        "{call}: the worker of the target's accelerator adds, multiplies, and finds minima and maxima, of numbers of 4 \
         and 8 bytes, and reads nothing back"
    )]
    NotByWorker {
        /// The call, or the operation.
        call: &'static str,
    },
    /// A rank cannot have accumulations done as the window asks for: it has no worker, or one that cannot reach the memory.
    #[error("rank {rank} cannot have accumulations done by {way}")]
    Unable {
        /// Who.
        rank: u32,
        /// How they were to be done.
        way: &'static str,
    },
    /// An accumulation that was a task has failed.
    #[error("an accumulation at rank {rank} failed: {why}")]
    Task {
        /// The target.
        rank: u32,
        /// What it says.
        why: String,
    },
    /// A transport refused a message for another reason than that the peer is gone.
    #[error("a transport refused a message of the window: {why}")]
    Transport {
        /// What it said.
        why: String,
    },
}

/// Why a target refuses an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Bytes that are not in the window, or not attached.
    #[error("bytes that do not lie in the window, or in memory that is attached")]
    Outside,
    /// It has no such window.
    #[error("the window was freed")]
    NoWindow,
    /// An atomic access that is not aligned.
    #[error("an atomic access that is not aligned")]
    Misaligned,
    /// Elements or an operation that make no sense.
    #[error("elements or an operation that make no sense")]
    Elements,
    /// A layout that it does not know, or cannot read.
    #[error("a layout that cannot be read")]
    Layout,
    /// Work on the device that has the memory has failed.
    #[error("the device that has the window's memory has failed")]
    Device,
    /// A lock whose holder is lost.
    #[error("the lock is held by process {0}, which is lost")]
    Holder(u32),
}

impl Fault {
    /// Its number on the wire, and what goes with it.
    pub(crate) fn code(self) -> (u8, u32) {
        match self {
            Fault::Outside => (1, 0),
            Fault::NoWindow => (2, 0),
            Fault::Misaligned => (3, 0),
            Fault::Elements => (4, 0),
            Fault::Layout => (5, 0),
            Fault::Holder(process) => (6, process),
            Fault::Device => (7, 0),
        }
    }

    /// What a number stands for: 0 for none.
    pub(crate) fn of_code(code: u8, value: u32) -> Option<Fault> {
        match code {
            0 => None,
            1 => Some(Fault::Outside),
            2 => Some(Fault::NoWindow),
            3 => Some(Fault::Misaligned),
            5 => Some(Fault::Layout),
            6 => Some(Fault::Holder(value)),
            7 => Some(Fault::Device),
            _ => Some(Fault::Elements),
        }
    }
}

impl From<DeviceError> for WindowError {
    fn from(error: DeviceError) -> WindowError {
        WindowError::Elements(error.into())
    }
}

impl WindowError {
    /// The lost process's number in the job, if that is what this error is about.
    #[must_use]
    pub fn lost_process(&self) -> Option<u32> {
        match self {
            WindowError::Lost { process, .. } => Some(*process),
            WindowError::Refused { why: Fault::Holder(process), .. } => Some(*process),
            _ => None,
        }
    }
}
