//! Why a call of the library failed: one type, so that `?` works inside a scope.

use crate::collective::CollectiveError;
use crate::xtq::CallError;
use gapless_bml::BmlError;
use gapless_boot::BootError;
use gapless_boot::wireup::WireupError;
use gapless_coll::topologies::TopologyError;
use gapless_coll::{CollError, Operation};
use gapless_dtype::{FitError, PagesError, TypeError};
use gapless_engine::EngineError;
use gapless_mem::{DeviceError, Space};
use gapless_osc::WindowError;
use gapless_pml::{Failure, PmlError, Status};
use gapless_tuning::TuningError;
use gapless_xtq::XtqError;
use std::fmt;
use thiserror::Error;

/// Why a call failed; the message names the culprit. `{:?}` shows the same text as `{}`: a `main` that returns it says why
/// in words.
#[derive(Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A message failed or was refused; [`status`](Error::status) says which, if a receive had taken it.
    #[error(transparent)]
    Message(#[from] Failure),
    /// The processes of the job could not find each other, do not fit to each other, or could not leave together.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A choice of transports that leaves none.
    #[error("there is no transport {name:?}; known are: {known}")]
    NoSuchTransport {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A datatype could not be made or committed.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// Pages could not be made.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// A layout, or pages, do not fit their buffer, or its memory.
    #[error(transparent)]
    Buffer(#[from] EngineError),
    /// A layout does not fit the elements of a slice: it has other basic types, places numbers where the slice cannot
    /// have elements, or describes bytes between fields.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// An element of a message is no value of its type; see [`recv_checked`](crate::Communicator::recv_checked).
    #[error(
        "element {index} of the message from rank {} with tag {} is no value of {element}", status.source, status.tag
    )]
    Invalid {
        /// Which, from 0.
        index: u64,
        /// The type of the elements.
        element: &'static str,
        /// The message.
        status: Status,
    },
    /// A pointer does not lie where its layout says; see [`check_kinds`](crate::check_kinds).
    #[error("the datatype says that {address:#x} lies in {named}, but it lies in {found}")]
    WrongMemory {
        /// The pointer.
        address: u64,
        /// The space that the datatype names.
        named: Space,
        /// The space that the driver knows of, or the host's.
        found: Space,
    },
    /// Part of a buffer that another message uses; see [`Parts`](crate::Parts).
    #[error("bytes {start}..{end} of the buffer are in use by another message")]
    InUse {
        /// The first such byte.
        start: u64,
        /// The one after the last of its span.
        end: u64,
    },
    /// An array that a plan was not made for; see [`Plan`](crate::Plan).
    #[error("the plan was made for {planned}, not for {given}")]
    OtherArray {
        /// Length, element type and space of the plan's array.
        planned: String,
        /// The same of the given one.
        given: String,
    },
    /// A message of a [`Plan`](crate::Plan) was refused, or failed.
    #[error("message {index} of the plan, {message}: {error}")]
    Planned {
        /// Which, from 0, in the order of their description.
        index: usize,
        /// To or from whom, with which tag.
        message: String,
        /// Why.
        error: Box<Error>,
    },
    /// A collective was refused, or failed.
    #[error("{operation}: {error}")]
    Collective {
        /// Which.
        operation: Operation,
        /// Why.
        error: Box<CollectiveError>,
    },
    /// A function that the library calls, such as that of [`OwnedRequest::on_done`](crate::OwnedRequest::on_done), wants
    /// to wait for a collective on a communicator, or to free it, while its thread waits in a blocking collective there.
    /// Nothing was called: the order of collectives is as if this call were not there.
    #[error("a blocking collective of this thread is under way on this communicator")]
    CollectiveUnderWay,
    /// A topology cannot be made, or has no answer.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A question about a grid to a communicator that is none.
    #[error("the communicator is not a grid")]
    NoGrid,
    /// A block that reaches outside its view; see [`Blocks`](crate::Blocks).
    #[error("block {block} has {count} elements from {start} on, but the view has {elements}")]
    Block {
        /// Which, from 0.
        block: usize,
        /// Its first element.
        start: u64,
        /// How many it has.
        count: u64,
        /// How many the view has.
        elements: u64,
    },
    /// Lists that should have an entry for each block.
    #[error("{counts} counts of blocks, but {displacements} displacements")]
    BlockLists {
        /// Entries of the one.
        counts: usize,
        /// Entries of the other.
        displacements: usize,
    },
    /// Blocks that are received into have an element in common.
    #[error("blocks {one} and {other} overlap, and both would be received into")]
    BlocksOverlap {
        /// A block, from 0.
        one: usize,
        /// Another.
        other: usize,
    },
    /// A one-sided window cannot be made, or a call on it was refused, or failed.
    #[error("window: {0}")]
    Window(#[from] WindowError),
    /// A partition of a [partitioned message](crate::raw::Request::psend_init) that is not there, or was handed over
    /// before; or a message that cannot be cut into so many.
    #[error("partition {partition} of {partitions} is not there, or was marked ready already")]
    Partition {
        /// Which, from 0.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// A communicator and a scope of different worlds.
    #[error("the communicator and the scope are of different worlds")]
    OtherWorld,
    /// Memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] DeviceError),
    /// No device of this process has memory in this space, or none that can be opened.
    #[error("no device has memory in {space}: {reason}")]
    NoDevice {
        /// The space.
        space: Space,
        /// Why it could not be opened.
        reason: String,
    },
    /// Collectives on a stream: the communicator cannot be made, or a call was refused, or failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Stream(#[from] gapless_gpu::StreamError),
    /// A persistent request that was not started was waited for.
    #[error("the persistent request is inactive: nothing was started")]
    Inactive,
    /// The world was finalized; communicators that outlive it cannot be used.
    #[error("the world has been finalized")]
    Finalized,
    /// The tuning file cannot be used; see [`tuning`](crate::tuning).
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A task was not put, refused, or failed.
    #[error(transparent)]
    Task(#[from] XtqError),
    /// A [call](crate::xtq::Tasks::call) of a function at another process has no result.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The operating system refused.
    #[error("{operation} failed: {reason}")]
    System {
        /// The call.
        operation: &'static str,
        /// What the system said.
        reason: String,
    },
    /// A panic left the message layer in an unknown state. Requests never end; their memory was taken back.
    #[error("a panic inside the message layer has ended all communication of this process")]
    Poisoned,
}

impl Error {
    /// The lost process's number in the job, if that is what this error is about.
    #[must_use]
    pub fn lost_rank(&self) -> Option<u32> {
        match self {
            Error::Message(failure) => match &failure.error {
                PmlError::PeerLost { rank, .. }
                | PmlError::NobodyLeft { rank, .. }
                | PmlError::CommFailed { rank } => Some(*rank),
                _ => None,
            },
            Error::Boot(error) => error.lost_rank(),
            Error::Window(error) => error.lost_process(),
            Error::Planned { error, .. } => error.lost_rank(),
            Error::Task(XtqError::Lost { rank, .. }) => Some(rank.0),
            Error::Collective { error, .. } => match **error {
                CollectiveError::Failed {
                    error: CollError::Lost { .. } | CollError::ToldLost { .. },
                    process,
                } => process,
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether this error is that the communicator was [revoked](crate::Communicator::revoke).
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        match self {
            Error::Message(failure) => failure.error == PmlError::Revoked,
            Error::Planned { error, .. } => error.is_revoked(),
            Error::Collective { error, .. } => {
                matches!(**error, CollectiveError::Failed { error: CollError::Revoked, .. })
            }
            _ => false,
        }
    }

    /// Source, tag and bytes of the message that a receive had taken before it failed, as `MPI_Status` has them beside
    /// an error (MPI 4.1 §3.2.5). [`Failure`] says what the bytes are. `None` for everything else.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Message(failure) => failure.status(),
            Error::Invalid { status, .. } => Some(*status),
            Error::Planned { error, .. } => error.status(),
            _ => None,
        }
    }
}

/// `fn main() -> Result<(), gapless::Error>` and `unwrap` print this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<WireupError> for Error {
    fn from(error: WireupError) -> Error {
        BootError::from(error).into()
    }
}

impl From<BmlError> for Error {
    fn from(error: BmlError) -> Error {
        BootError::from(error).into()
    }
}

impl From<PmlError> for Error {
    fn from(error: PmlError) -> Error {
        let error = match error {
            PmlError::NoEngine { space } => match not_built(space) {
                Some(reason) => PmlError::Refused { space, reason },
                None => PmlError::NoEngine { space },
            },
            other => other,
        };
        Error::Message(error.into())
    }
}

/// The feature without which this program was built, if memory of this space needs one.
pub(crate) fn not_built(space: Space) -> Option<String> {
    let feature = match space {
        Space::Cuda { .. } | Space::Managed if !cfg!(feature = "cuda") => "cuda",
        Space::OpenCl { .. } if !cfg!(feature = "opencl") => "opencl",
        _ => return None,
    };
    Some(format!("this program was built without the feature `{feature}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_main_prints_of_it_is_its_message() {
        let error = Error::from(PmlError::InvalidTag { tag: -5 });
        assert_eq!(format!("{error:?}"), "tag -5 is negative");
        let shown = Err::<(), _>(Error::Finalized);
        assert_eq!(format!("{shown:?}"), "Err(the world has been finalized)");
    }

    #[test]
    fn a_feature_that_is_missing_is_named() {
        let opencl = Space::OpenCl { context: 1, device: 2, queue: None };
        for (space, feature, built) in [
            (Space::Cuda { device: 0 }, "`cuda`", cfg!(feature = "cuda")),
            (Space::Managed, "`cuda`", cfg!(feature = "cuda")),
            (opencl, "`opencl`", cfg!(feature = "opencl")),
            (Space::Host, "feature", true),
        ] {
            let said = Error::from(PmlError::NoEngine { space }).to_string();
            assert_eq!(said.contains(feature), !built, "{said}");
        }
    }
}
