//! How a collective can fail, and who is to blame.
use gapless_engine::EngineError;
use gapless_pml::PmlError;

use crate::error::BuildError;
use crate::operation::Operation;
use crate::schedule::Buffer;

/// Why a collective was refused or failed. Ranks are those of the communicator; of an intercommunicator, those of both
/// groups [numbered through](super::between).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CollError {
    /// A rank that is needed is lost.
    #[error("{error}")]
    Lost {
        /// The rank that is to blame; or that left because of a process outside of the communicator, which the error names.
        rank: u32,
        /// How that was noticed, of which process.
        error: PmlError,
    },
    /// A rank is lost, and this one needs data that depended on it.
    #[error("rank {rank} is lost: rank {by} says so")]
    ToldLost {
        /// The rank that is to blame.
        rank: u32,
        /// Who said so.
        by: u32,
    },
    /// A rank could not do its part, for a reason that its own error gives.
    #[error("rank {rank} could not do its part of the collective: its own error says why")]
    GaveUp {
        /// The rank.
        rank: u32,
    },
    /// A member has revoked the communicator.
    #[error("the communicator was revoked")]
    Revoked,
    /// A message failed.
    #[error("a message to or from rank {rank} failed: {error}")]
    Message {
        /// The rank at the message's other end.
        rank: u32,
        /// Why.
        error: PmlError,
    },
    /// A task that was put at a rank, or that a rank was to put here, failed.
    #[error("a task to or from rank {rank} failed: {reason}")]
    Task {
        /// The rank at its other end.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// The schedule has tasks, and nobody carries them ([`Executor::with_tasks`](crate::Executor::with_tasks)).
    #[error("nobody carries the tasks of this {operation}")]
    NoTasks {
        /// Which it is.
        operation: Operation,
    },
    /// The ranks do not agree on a length.
    #[error("rank {rank} sends {sent} bytes where this rank expects {expected}")]
    Length {
        /// The rank that sends.
        rank: u32,
        /// Bytes that it sends.
        sent: u64,
        /// Bytes that this rank expects.
        expected: u64,
    },
    /// The ranks do not agree on an argument: all of them give this error, and none has begun (checked mode), or this rank
    /// has noticed.
    #[error("rank {rank} gives {given} as {argument}, but rank {other} gives {expected}")]
    Differs {
        /// The first rank that differs from those before it.
        rank: u32,
        /// What it is that differs.
        argument: &'static str,
        /// What that rank gives.
        given: String,
        /// A rank that gives something else.
        other: u32,
        /// What it gives.
        expected: String,
    },
    /// Two ranks do not agree on the length of what one sends the other: all ranks give this error, and none has begun
    /// (checked mode).
    #[error("rank {rank} would send {sent} bytes to rank {to}, which expects {expected}")]
    Lengths {
        /// The rank that would send.
        rank: u32,
        /// The rank that would receive.
        to: u32,
        /// Bytes that would be sent.
        sent: u64,
        /// Bytes that are expected.
        expected: u64,
    },
    /// Two ranks do not agree on the types of what one sends the other: all ranks give this error, and none has begun
    /// (checked mode).
    #[error("rank {rank} would send {sent} to rank {to}, which expects {expected}")]
    OtherElements {
        /// The rank that would send.
        rank: u32,
        /// The rank that would receive.
        to: u32,
        /// What would be sent.
        sent: String,
        /// What is expected.
        expected: String,
    },
    /// An engine or a reducer of this rank failed.
    #[error("this rank, {rank}, could not move or combine data: {error}")]
    Engine {
        /// This rank.
        rank: u32,
        /// Why.
        error: EngineError,
    },
    /// No memory for what is packed or combined.
    #[error("this rank, {rank}, has no memory for {bytes} bytes of intermediate data")]
    NoMemory {
        /// This rank.
        rank: u32,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The schedule is another rank's, or of another number of ranks.
    #[error(
        "a schedule of rank {rank} of {ranks} for rank {own} of a communicator of {size} processes"
    )]
    OtherRank {
        /// The schedule's rank.
        rank: usize,
        /// The schedule's number of ranks.
        ranks: usize,
        /// This process's rank in the communicator.
        own: u32,
        /// The communicator's size.
        size: u32,
    },
    /// A buffer's blocks are not those of the schedule.
    #[error("the {buffer:?} buffer: {given} {what} are given, the schedule has {expected}")]
    Row {
        /// Which buffer.
        buffer: Buffer,
        /// What does not fit: blocks, or bytes.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What the schedule has.
        expected: u64,
    },
    /// The schedule combines elements, but it was not said how, or it would cut them.
    #[error("the schedule combines elements of {unit} bytes, the operation those of {given:?}")]
    Combine {
        /// Packed bytes of the schedule's elements.
        unit: u64,
        /// Packed bytes of the operation's elements, if there is an operation.
        given: Option<u64>,
    },
    /// More messages to one rank than can be told apart.
    #[error("{slots} messages between two ranks; at most {max} can be told apart")]
    TooManySlots {
        /// Messages from one rank to another.
        slots: u64,
        /// How many there may be.
        max: u64,
    },
    /// The persistent collective that was made so many before this one still exists, and they could not be told apart.
    /// Dropping it, at all ranks, makes room; so does asking again.
    #[error("the persistent collective made {max} before this one still exists")]
    TooManyPersistent {
        /// How many can be told apart.
        max: u64,
    },
    /// A collective was started again before it had ended.
    #[error("the collective is still in flight")]
    StillActive,
    /// A collective was started again whose ticket is not a persistent one.
    #[error("only a persistent collective can be started again")]
    NotPersistent,
    /// The call does not fit together, as far as this rank can see.
    #[error(transparent)]
    Call {
        /// Why.
        error: BuildError,
    },
    /// Another rank is in another collective.
    #[error(
        "rank {rank} is in {}, this rank in {ours}",
        .theirs.map_or("no collective that there is", Operation::name)
    )]
    Mismatch {
        /// The other rank.
        rank: u32,
        /// Which it is in; `None`: it says what no rank says.
        theirs: Option<Operation>,
        /// Which this rank is in.
        ours: Operation,
    },
    /// A rank is past this collective without having written what this one needs of it.
    #[error(
        "rank {rank} went on without what this rank needs of it: its arguments were refused, or it has called another \
         collective"
    )]
    WentOn {
        /// The other rank.
        rank: u32,
    },
    /// A rank has written into shared memory what no rank writes there.
    #[error("rank {rank} has spoilt shared memory: {what}")]
    Scribbled {
        /// The rank.
        rank: u32,
        /// What was found.
        what: String,
    },
    /// Somebody has written over what this rank had written into shared memory: others may wait for it.
    #[error(
        "what this rank wrote into shared memory was written over: it says {found}, and {expected} was written; another \
         process that has the memory has spoilt it"
    )]
    Overwritten {
        /// The round, or how far it was, that this rank wrote.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Memory of a rank that this one was to read can be neither mapped nor read.
    #[error("memory of rank {rank} cannot be read: {reason}")]
    NotMapped {
        /// Whose it is.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// A collective of a kind, or of lengths, that does not go through shared memory.
    #[error("this {operation} does not go through shared memory")]
    NotShared {
        /// Which it is.
        operation: Operation,
    },
    /// An earlier collective on this communicator was dropped in flight, so messages cannot be told apart any more.
    #[error("an earlier collective on this communicator was dropped in flight")]
    Abandoned,
}

impl CollError {
    /// The rank that is to blame, as far as that is known.
    #[must_use]
    pub fn culprit(&self) -> Option<u32> {
        match self {
            Self::Lost { rank, .. }
            | Self::ToldLost { rank, .. }
            | Self::GaveUp { rank }
            | Self::Message { rank, .. }
            | Self::Task { rank, .. }
            | Self::Length { rank, .. }
            | Self::Differs { rank, .. }
            | Self::Lengths { rank, .. }
            | Self::OtherElements { rank, .. }
            | Self::Engine { rank, .. }
            | Self::Mismatch { rank, .. }
            | Self::WentOn { rank }
            | Self::Scribbled { rank, .. }
            | Self::NotMapped { rank, .. }
            | Self::NoMemory { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// What other ranks are told of it: whether a rank is lost, and which rank is to blame or knows more.
    pub(super) fn notice(&self, own: u32) -> [u8; NOTICE_BYTES] {
        let (lost, rank) = match self {
            Self::Lost { rank, .. } | Self::ToldLost { rank, .. } => (1, *rank),
            Self::GaveUp { rank }
            | Self::WentOn { rank }
            | Self::Message { rank, error: PmlError::SenderFailed { .. } } => (0, *rank),
            _ => (0, own),
        };
        let [a, b, c, d] = rank.to_le_bytes();
        [a, b, c, d, lost]
    }

    /// As [`notice`](CollError::notice), in numbers.
    pub(super) fn blames(&self, own: u32) -> (u32, bool) {
        let [a, b, c, d, lost] = self.notice(own);
        (u32::from_le_bytes([a, b, c, d]), lost == 1)
    }

    /// What a leader has told in numbers. It is not trusted.
    pub(super) fn blamed((rank, is_lost): (u32, bool), size: u32, by: usize) -> Self {
        let [a, b, c, d] = rank.to_le_bytes();
        let by = u32::try_from(by).unwrap_or(u32::MAX);
        Self::told([a, b, c, d, u8::from(is_lost)], by, size)
    }

    /// What another rank has told. It is not trusted: a rank that does not exist is the teller.
    pub(super) fn told(notice: [u8; NOTICE_BYTES], by: u32, size: u32) -> Self {
        let [a, b, c, d, lost] = notice;
        let rank = u32::from_le_bytes([a, b, c, d]);
        match lost {
            _ if rank >= size => Self::GaveUp { rank: by },
            0 => Self::GaveUp { rank },
            _ => Self::ToldLost { rank, by },
        }
    }
}

/// Bytes of what ranks are told of a failure: a rank (little-endian), and whether it is lost.
pub(super) const NOTICE_BYTES: usize = 5;
