//! What can go wrong with a message, and whose fault it was.

use crate::status::Status;
use gapless_bml::LinkError;
use gapless_dtype::SignatureError;
use gapless_engine::EngineError;
use gapless_mem::Space;
use std::fmt;
use thiserror::Error;

/// Why a call or a request failed. Ranks of `PeerLost`, `NobodyLeft`, `SenderFailed` and `Unreachable` are process
/// numbers in the job, as all communicators know them; other ranks are those of the communicator.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PmlError {
    /// A process that was needed has ended, has left without finalizing, or has broken the protocol and is treated as
    /// dead. If the peer itself left the job because another process was lost, that other is named.
    #[error("process {rank} {}", error.fate())]
    PeerLost {
        /// The number in the job of the process that is to blame; it is no rank of a communicator.
        rank: u32,
        /// How that was noticed.
        error: LinkError,
    },
    /// A receive from any source, but every other member of the communicator is lost.
    #[error(
        "no member of the communicator is left that could send; process {rank} went last: {error}"
    )]
    NobodyLeft {
        /// One of the lost processes, or the one that is to blame for its leaving.
        rank: u32,
        /// How it was lost.
        error: LinkError,
    },
    /// No transport reaches this process.
    #[error("process {rank} is not connected")]
    Unreachable {
        /// The process's number in the job.
        rank: u32,
    },
    /// The message is longer than the receive's buffer. What fits was received, nothing else was
    /// touched; the sender completes normally (MPI 4.1 §3.2.4, `MPI_ERR_TRUNCATE`).
    #[error("the message has {sent} bytes, the receive has room for {room}")]
    Truncated {
        /// Bytes of the message.
        sent: u64,
        /// Bytes the receive has room for.
        room: u64,
    },
    /// The message's basic types are not those the receive expects (MPI 4.1 §3.3.1). Nothing was
    /// received.
    #[error("the message does not fit the receive: {error}")]
    SignatureMismatch {
        /// What differs.
        error: SignatureError,
    },
    /// A message was sent in ready mode, and no receive was posted for it (MPI 4.1 §3.4). Its receive has got the
    /// data if the message was short enough to be eager.
    #[error(
        "a message with tag {tag}, to or from rank {rank}, was sent in ready mode before its receive was posted"
    )]
    NotReady {
        /// The other end's rank in the communicator.
        rank: u32,
        /// The message's tag.
        tag: i32,
    },
    /// The receiver has left the job, or freed the communicator, without receiving the message.
    #[error("rank {rank} left without receiving the message with tag {tag}")]
    Unreceived {
        /// The receiver's rank in the communicator.
        rank: u32,
        /// The message's tag.
        tag: i32,
    },
    /// A buffered send needs more room than is left (MPI 4.1 §3.6, `MPI_ERR_BUFFER`). Nothing was
    /// sent.
    #[error("a buffered send needs {wanted} bytes; {free} of the {attached} attached are free")]
    BufferExhausted {
        /// Bytes that the message takes, overhead included.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are attached.
        attached: u64,
    },
    /// A second buffer for buffered sends.
    #[error("a buffer is attached already")]
    BufferAttached,
    /// The sender could not read its own buffer (its engine or device failed).
    #[error("process {rank} stopped sending: its engine failed")]
    SenderFailed {
        /// The sender's number in the job.
        rank: u32,
    },
    /// The instances of a receive's layout name some byte twice, which no layout of a receive may (MPI 4.1 §5.1.11).
    #[error("the layout of a receive names some byte twice in {count} instances")]
    OverlappingReceive {
        /// How many instances were to be received.
        count: u64,
    },
    /// A rank that the communicator, or the group, does not have.
    #[error("no rank {rank} in a communicator or group of {size}: it was given as {what}")]
    InvalidRank {
        /// What the rank was given as: which argument of which call.
        what: &'static str,
        /// The rank that was given.
        rank: u32,
        /// The size of the communicator, or of the group.
        size: u32,
    },
    /// Tags are not negative (MPI 4.1 §3.2.3).
    #[error("tag {tag} is negative")]
    InvalidTag {
        /// The tag that was given.
        tag: i32,
    },
    /// A request that was never made here or whose result has been collected.
    #[error("no such request: its result has been collected already, or it is another endpoint's")]
    NoSuchRequest,
    /// A message of a matched probe that was received or dropped already, or is another endpoint's.
    #[error("no such message: it has been received already, or is another endpoint's")]
    NoSuchMessage,
    /// A persistent request was started while the last one it started is in flight (MPI 4.1 §3.9).
    #[error("the persistent request is active: wait for the operation that it started")]
    StillActive,
    /// A communicator of another endpoint, or one that was freed.
    #[error("the communicator was freed, or is another endpoint's")]
    NoSuchComm,
    /// No engine serves the buffer's memory.
    #[error("no engine works on memory in {space}")]
    NoEngine {
        /// Where the buffer lies.
        space: Space,
    },
    /// An engine would work on the buffer's memory, but for this.
    #[error("no engine works on memory in {space}: {reason}")]
    Refused {
        /// Where the buffer lies.
        space: Space,
        /// What is wrong: with the device, a context, or a queue, which is named.
        reason: String,
    },
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The receive was cancelled before a message took it (MPI 4.1 §3.8.4), or the send was taken
    /// back before a receive took it.
    #[error("the operation was cancelled before it was matched")]
    Cancelled,
    /// A member has as many communicators as it can have.
    #[error("a member has no communicator identifier left (at most {max})")]
    TooManyComms {
        /// How many communicators a process can have.
        max: u32,
    },
    /// A communicator was not made, because a member was lost; this process was told of it by another.
    #[error("the communicator was not made: process {rank} is lost")]
    CommFailed {
        /// The lost process's number in the job.
        rank: u32,
    },
    /// A group with a member that the communicator has not, or without this process.
    #[error("the group does not consist of members of the communicator, this process among them")]
    NotAMember,
    /// Not something that is done with an intercommunicator.
    #[error("an intercommunicator does not support this call")]
    InterComm,
    /// Something that is done with an intercommunicator.
    #[error("this call needs an intercommunicator")]
    IntraComm,
    /// A list of ranks has one of them twice.
    #[error("rank {rank} is given twice")]
    RankTwice {
        /// The rank.
        rank: u32,
    },
    /// A range of ranks has stride 0.
    #[error("a range of ranks has stride 0")]
    StrideZero,
    /// The communicator was [revoked](crate::Pml::revoke): nothing can be done with it but to agree on who is left, to
    /// shrink it, and to free it.
    #[error("the communicator was revoked")]
    Revoked,
    /// A predefined communicator cannot be freed.
    #[error("a predefined communicator cannot be freed")]
    PredefinedComm,
    /// An empty set of requests was waited for.
    #[error("there is nothing to wait for")]
    NothingToWaitFor,
    /// A promise of this crate did not hold.
    #[error("bug: {what}")]
    Bug {
        /// Which one.
        what: &'static str,
    },
}

/// How an operation failed, and which message it had taken if it is a receive: what `MPI_Status` has beside an error
/// (MPI 4.1 §3.2.5). Every call that gives an operation's result gives this.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Why.
    pub error: PmlError,
    /// Boxed: results with an error are returned by every call, and are large already.
    more: Option<Box<More>>,
}

/// What else is known of an operation that failed.
#[derive(Clone, Debug, PartialEq)]
enum More {
    /// The message that a receive had taken.
    Taken(Status),
    /// The receiver of a message that was sent knows.
    Told,
}

impl Failure {
    /// Of a receive that had taken a message.
    pub(crate) fn of_message(error: PmlError, status: Status) -> Failure {
        Failure { error, more: Some(Box::new(More::Taken(status))) }
    }

    /// Of a send whose message was offered, after which the receiver was told that its data does not come.
    pub(crate) fn of_offer(error: PmlError) -> Failure {
        Failure { error, more: Some(Box::new(More::Told)) }
    }

    /// Of a send: whether its receiver was told that the message fails. The receive that takes the message, or has taken
    /// it, then fails as well. If not, no receive fails because of this send; who waits for the message still waits.
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(self.more.as_deref(), Some(More::Told))
    }

    /// The message that a receive had taken: its source, its tag, and its bytes. Those are the received ones where that
    /// is known (MPI 4.1 §3.2.5: the count is of entries received): what the buffer has room for, if the message was
    /// [truncated](PmlError::Truncated), or [not expected](PmlError::NotReady) and short; 0 if its
    /// [types](PmlError::SignatureMismatch) are others, as nothing is received then. After any other error it is not
    /// known how many were received, and the bytes are those that the buffer has room for. `None` of all other
    /// operations, and of receives that had taken none.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self.more.as_deref() {
            Some(More::Taken(status)) => Some(*status),
            Some(More::Told) | None => None,
        }
    }
}

impl From<PmlError> for Failure {
    fn from(error: PmlError) -> Failure {
        Failure { error, more: None }
    }
}

impl From<Failure> for PmlError {
    fn from(failure: Failure) -> PmlError {
        failure.error
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Status { source, tag, .. }) = self.status() {
            write!(f, "receiving the message from rank {source} with tag {tag} failed: ")?;
        }
        self.error.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
