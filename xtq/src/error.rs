//! Errors and refusals; each names the culprit.

use crate::device::TargetError;
use crate::packet::PacketError;
use crate::rewrite::RewriteError;
use crate::tables::NoSuchIndex;
use gapless_bml::{LinkError, Rank};
use std::time::Duration;
use thiserror::Error;

/// Why a target did not take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such function or kernel is registered.
    #[error("nothing is registered by this index")]
    NotRegistered,
    /// No such queue is registered.
    #[error("no queue is registered by this index")]
    NoQueue,
    /// The payload is longer than was registered.
    #[error("the payload is longer than the registered {max} bytes")]
    PayloadTooLong {
        /// What was registered.
        max: u32,
    },
    /// The arguments are not as long as was registered.
    #[error("the arguments are not the registered {registered} bytes")]
    Arguments {
        /// What was registered.
        registered: u32,
    },
    /// The groups are larger, or need more local memory, than the accelerator allows.
    #[error("groups may have {items_max} work-items, and the local memory that its device has")]
    Group {
        /// The most work-items.
        items_max: u32,
    },
    /// The grid is larger than the accelerator, or whoever registered the kernel, allows.
    #[error("the grid is larger than the kernel allows")]
    Grid,
    /// The queue has no room now.
    #[error("the queue is full")]
    QueueFull,
    /// No receive buffer is posted now.
    #[error("no receive buffer is posted")]
    NoReceiveBuffer,
    /// No receive buffer that is posted now is long enough.
    #[error("the longest receive buffer has {largest} bytes")]
    ReceiveBufferTooSmall {
        /// The longest that is posted.
        largest: u32,
    },
    /// An earlier put of the same sequence was refused, and comes first.
    #[error("an earlier put of the sequence comes first")]
    OutOfTurn,
    /// The target could not make a thread to run it, now.
    #[error("no thread to run it could be made")]
    NoWorkers,
}

impl Refusal {
    /// Whether the same put may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Refusal::QueueFull
                | Refusal::NoReceiveBuffer
                | Refusal::ReceiveBufferTooSmall { .. }
                | Refusal::OutOfTurn
                | Refusal::NoWorkers
        )
    }

    /// What it is on the wire: a code from 1 on, and a number.
    pub(crate) fn encode(self) -> (u8, u32) {
        match self {
            Refusal::NotRegistered => (1, 0),
            Refusal::NoQueue => (2, 0),
            Refusal::PayloadTooLong { max } => (3, max),
            Refusal::Arguments { registered } => (4, registered),
            Refusal::Group { items_max } => (5, items_max),
            Refusal::QueueFull => (6, 0),
            Refusal::NoReceiveBuffer => (7, 0),
            Refusal::ReceiveBufferTooSmall { largest } => (8, largest),
            Refusal::OutOfTurn => (9, 0),
            Refusal::NoWorkers => (10, 0),
            Refusal::Grid => (11, 0),
        }
    }

    pub(crate) fn decode(code: u8, value: u32) -> Option<Refusal> {
        Some(match code {
            1 => Refusal::NotRegistered,
            2 => Refusal::NoQueue,
            3 => Refusal::PayloadTooLong { max: value },
            4 => Refusal::Arguments { registered: value },
            5 => Refusal::Group { items_max: value },
            6 => Refusal::QueueFull,
            7 => Refusal::NoReceiveBuffer,
            8 => Refusal::ReceiveBufferTooSmall { largest: value },
            9 => Refusal::OutOfTurn,
            10 => Refusal::NoWorkers,
            11 => Refusal::Grid,
            _ => return None,
        })
    }

    /// Of a packet that is one, and no task here; `None` if it is none.
    #[doc(hidden)]
    pub fn of(error: &RewriteError) -> Option<Refusal> {
        Some(match error {
            RewriteError::Packet(_) => return None,
            RewriteError::NotRegistered { .. } => Refusal::NotRegistered,
            RewriteError::NoQueue { .. } => Refusal::NoQueue,
            RewriteError::PayloadTooLong { max, .. } => Refusal::PayloadTooLong { max: *max },
            RewriteError::Arguments { registered, .. } => {
                Refusal::Arguments { registered: u32::from(*registered) }
            }
        })
    }
}

/// What a put waited for when its [time](crate::Put::within) was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Waited {
    /// It was not sent: there was no link yet, or no room on it.
    #[error("it was not sent: there was no link to the target, or no room on it")]
    Room,
    /// Earlier puts to the target come first.
    #[error("earlier puts to the target, which come first, have not ended")]
    Earlier,
    /// The target refused it for now, and it was to be sent again.
    #[error("the target refuses it for now: {0}")]
    Refused(Refusal),
    /// It was sent, or its ring has to be opened, and the target makes no progress.
    #[error("the target has not answered: it makes no progress")]
    Progress,
    /// The worker of the target's accelerator has left. Starting it again takes the target's progress.
    #[error(
        "the worker of the target is away, and the target, which starts it again, makes no progress"
    )]
    Worker,
    /// The target, or its worker, has it; its task has not ended.
    #[error("its task has not ended")]
    Task,
}

/// Why a call failed, or how a put or a signal has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum XtqError {
    /// The task cannot be put into a packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// No table has this index.
    #[error(transparent)]
    NoSuchIndex(#[from] NoSuchIndex),
    /// A rank outside the job.
    #[error("no {rank} in a job of {size} processes")]
    NoSuchRank {
        /// The rank that was named.
        rank: Rank,
        /// How many processes there are.
        size: u32,
    },
    /// More payload than a packet can say.
    #[error("{bytes} bytes of payload: a packet says at most {max}", max = u32::MAX)]
    PayloadTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A piece of a payload that does not lie in its slice.
    #[error("bytes {from}..{to} do not lie in a slice of {len} bytes")]
    PieceOutside {
        /// The first of them.
        from: usize,
        /// Behind the last.
        to: usize,
        /// Bytes of the slice.
        len: usize,
    },
    /// A queue that holds nothing, or runs nothing.
    #[error("a queue of {capacity} tasks, of which {width} run at a time")]
    NoRoom {
        /// Tasks that it was to hold.
        capacity: u32,
        /// Tasks that were to run at a time.
        width: u32,
    },
    /// The target did not take the task.
    #[error("{target} refused the task: {refusal}")]
    Refused {
        /// The target.
        target: Rank,
        /// Why.
        refusal: Refusal,
    },
    /// The task ran and failed, or panicked.
    #[error("the task at {target} failed: {reason}")]
    Failed {
        /// Where it ran.
        target: Rank,
        /// What it said, cut to 200 bytes.
        reason: String,
    },
    /// The put has not ended in [time](crate::Put::within).
    #[error(
        "the put at {target} has not ended within {limit:?}: {waited}; its task {}",
        if *may_run { "may still run" } else { "does not run" }
    )]
    TimedOut {
        /// The target.
        target: Rank,
        /// The time that it was given.
        limit: Duration,
        /// What it waited for.
        waited: Waited,
        /// Whether its task may run later, or runs: the target, or a ring, has it. If not, it never runs.
        may_run: bool,
    },
    /// As many puts to the target as this process keeps have not ended ([`Config::puts_max`](crate::Config::puts_max)).
    #[error(
        "{puts} puts to {target} have not ended, with {bytes} bytes, and this process keeps no more: wait for earlier ones"
    )]
    Full {
        /// The target.
        target: Rank,
        /// How many there are.
        puts: usize,
        /// Bytes of those of their bodies that it has not accepted.
        bytes: u64,
    },
    /// A peer is gone.
    #[error("process {} {}", rank.0, error.fate())]
    Lost {
        /// The peer; of a process that left because of another's loss, that other.
        rank: Rank,
        /// Why.
        error: LinkError,
    },
    /// This process is leaving.
    #[error("this process is leaving the job")]
    Closed,
    /// A put, or a kernel of a worker, with a signal that another end made, or such a signal was waited for.
    #[error("a signal that was made by another `Xtq`")]
    ForeignSignal,
    /// A put that another end made was waited for: this one never learns of its end.
    #[error("a put that was made by another `Xtq`")]
    ForeignPut,
    /// A thread waits for tasks inside [`TargetBuffer::with`](crate::TargetBuffer::with): one of them may need the
    /// buffer that it has.
    #[error(
        "tasks were waited for inside `TargetBuffer::with`: one that needs the buffer would never run"
    )]
    Holding,
    /// A task, or another function that a world runs, leaves that world, which waits until it has ended: for itself.
    #[error(
        "a function that its world runs leaves the world, which would wait until the function has ended"
    )]
    InTask,
    /// A kernel of a worker, or a receive buffer for one, and none is attached; or a second one is to be.
    #[error("this process has {}", if *has { "a worker already" } else { "no worker attached" })]
    Worker {
        /// Whether there is one.
        has: bool,
    },
    /// One of the two processes cannot map the other's memory.
    #[error("no ring between this process and {peer}: {reason}")]
    NoRing {
        /// The other process.
        peer: Rank,
        /// Why.
        reason: String,
    },
    /// The worker, or its accelerator, refuses.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Why a function failed, in its own words; whoever waits for the task is told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TaskError(pub String);

impl From<&str> for TaskError {
    fn from(text: &str) -> TaskError {
        TaskError(text.to_owned())
    }
}

impl From<String> for TaskError {
    fn from(text: String) -> TaskError {
        TaskError(text)
    }
}

impl From<XtqError> for TaskError {
    fn from(error: XtqError) -> TaskError {
        TaskError(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_survive_the_way() {
        let all: Vec<Refusal> = (1..=11).map(|code| Refusal::decode(code, 7).unwrap()).collect();
        for (code, refusal) in (1u8..).zip(&all) {
            let (encoded, value) = refusal.encode();
            assert_eq!((encoded, Refusal::decode(encoded, value)), (code, Some(*refusal)));
        }
        assert_eq!((Refusal::decode(0, 0), Refusal::decode(12, 0)), (None, None));
        assert_eq!(all.iter().filter(|refusal| refusal.may_pass()).count(), 5);
    }
}
