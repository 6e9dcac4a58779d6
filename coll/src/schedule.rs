//! A schedule: what one rank does in one collective, as data.
//!
//! # What whoever executes it must keep
//!
//! 1. **Dependencies.** A step may begin when all steps in [`Schedule::after`] have ended. A send has ended when its
//!    bytes may be overwritten, a receive when its bytes have arrived. Dependencies name earlier steps only, so the
//!    order of the list is one allowed order.
//! 2. **Progress.** Every step whose dependencies have ended is begun; a send or receive that waits for its peer does
//!    not keep others from beginning. A schedule is proved free of deadlock under this rule, even if no send ends
//!    before its receive has begun (rendezvous). Whoever bounds what is under way must let the receives begin.
//! 3. **Matching.** The messages of one collective from rank `a` to rank `b` are told apart by their `slot`, at both
//!    ends alike. A receive takes the message of its peer, its collective and its slot, whatever arrived first. The
//!    slot is part of the match: the slots of one pair and direction differ, but they need not be dense, nor are
//!    their messages begun in the order of their slots.
//! 4. **Length.** Both ends of a message name places of the same length in packed bytes. Their datatypes may differ.
//! 5. **Memory.** Steps without a path of dependencies between them touch no common byte unless both only read.
//!    The send buffer is only read, and so is the receive buffer of a broadcast's root: its datatype may name bytes
//!    twice, and others may read its memory meanwhile. Bytes of the receive buffer that the operation does not define
//!    are not written.
//! 6. **Reduction.** The order of the operands is the schedule's: it depends neither on arrival nor on time, so that
//!    results are reproducible for a given size, length, algorithm, root and [`Locality`](crate::Locality).
//! 7. **Sharing.** What the ranks of a [subgroup](Schedule::subgroup) do together through memory that they share, each
//!    has in its schedule, in the same order, one after the other. Each puts, signals and waits as [`Together::part`]
//!    says: such a step may end when the ranks that it waits for have begun it, and may wait until all of the subgroup
//!    have.
//! 8. **Tasks.** A task runs at its target as soon as it was put, whatever its rank does meanwhile. So the target sends
//!    the initiator a message without bytes when the task's place is as the task is to find it, and the initiator puts
//!    when that has arrived (LeBeane et al. 2016, §V.C.2). From then on until [`Action::Task`] has ended the place is
//!    the task's alone, and whoever executes the schedule must be able to run it: also before that step has begun.
//!    That step waits for the message directly. Tasks of one place come one after the other, so rule 6 holds. Their
//!    slots are apart from those of messages.
use std::ops::Range;
use std::sync::Arc;

use crate::terms::Terms;
use crate::together::Together;

/// One of the buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// What the user contributes: only read. It is absent (no blocks) where the user gives `MPI_IN_PLACE`.
    Send,
    /// What the user receives into. It is also what is read in place, and the only buffer of a broadcast, whose root
    /// only reads it.
    Recv,
    /// Packed bytes of the executor's own, [`Schedule::scratch`] long, one block. Their content does not matter before
    /// or after. Operands in it start at multiples of [`SCRATCH_ALIGN`] bytes, plus whole elements.
    Scratch,
}

/// What the executor aligns scratch memory to, in bytes, so that operands of reductions in it are aligned.
pub const SCRATCH_ALIGN: u64 = 64;

/// Bytes of a buffer: a range of the packed stream of its blocks.
///
/// `start` counts from the beginning of `block` and lies within it. If `start + len` exceeds the block, the place goes
/// on in the following blocks: the packed stream of a row is that of its blocks, one after the other. An empty place
/// never occurs in a step but for messages of no bytes, which name [`Place::NOTHING`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which buffer.
    pub buffer: Buffer,
    /// The block in which it begins.
    pub block: usize,
    /// Where in that block's packed stream it begins, in bytes.
    pub start: u64,
    /// Its length in packed bytes.
    pub len: u64,
}

impl Place {
    /// No bytes: the place of messages that only tell that something has happened.
    pub const NOTHING: Self = Self { buffer: Buffer::Scratch, block: 0, start: 0, len: 0 };
}

/// The blocks of a buffer, with their packed lengths in bytes.
///
/// Which blocks a buffer has, by operation (`n` ranks, or `n` ranks of the other group):
///
/// | operation | send | recv |
/// |---|---|---|
/// | barrier | none | none |
/// | bcast | none | 1: what is broadcast, at the root too |
/// | gather(v) | 1 | `n` at the root |
/// | scatter(v) | `n` at the root | 1 |
/// | allgather(v) | 1 | `n` |
/// | alltoall(v, w) | `n` | `n` |
/// | reduce | 1 | 1 at the root |
/// | allreduce, scan, exscan | 1 | 1 |
/// | reduce_scatter(_block) | `n` | 1; in place `n`, and the result begins at the first |
/// | neighbourhoods: allgather(v) | 1 | one per source |
/// | neighbourhoods: alltoall(v, w) | one per destination | one per source |
///
/// In place, the send buffer has no blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    /// Blocks of one length.
    Equal {
        /// How many.
        blocks: usize,
        /// Length of each, in packed bytes.
        len: u64,
    },
    /// Blocks of different lengths: where each ends in the packed stream of the row, in bytes.
    Each {
        /// The ends, ascending.
        ends: Vec<u64>,
    },
}

impl Row {
    /// A buffer that is not there.
    pub const NONE: Self = Self::Equal { blocks: 0, len: 0 };

    /// One block.
    #[must_use]
    pub fn one(len: u64) -> Self {
        Self::Equal { blocks: 1, len }
    }

    /// Blocks of these lengths.
    #[must_use]
    pub fn each(lens: &[u64]) -> Self {
        let ends = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        Self::Each { ends: ends.collect() }
    }

    /// How many blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match self {
            Self::Equal { blocks, .. } => *blocks,
            Self::Each { ends } => ends.len(),
        }
    }

    /// Where a block lies in the packed stream of the row.
    ///
    /// # Panics
    /// If there is no such block.
    #[must_use]
    pub fn range(&self, block: usize) -> Range<u64> {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        match self {
            Self::Equal { len, .. } => block as u64 * len..(block as u64 + 1) * len,
            Self::Each { ends } => {
                block.checked_sub(1).map_or(0, |before| ends[before])..ends[block]
            }
        }
    }

    /// Length of the packed stream of all blocks, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Equal { blocks, len } => *blocks as u64 * len,
            Self::Each { ends } => ends.last().copied().unwrap_or(0),
        }
    }

    /// The same, unless it overflows.
    pub(crate) fn checked_len(&self) -> Option<u64> {
        match self {
            Self::Equal { blocks, len } => len.checked_mul(*blocks as u64),
            Self::Each { .. } => Some(self.len()),
        }
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block that holds a byte of the packed stream, and where in the block.
    pub(crate) fn locate(&self, at: u64) -> (usize, u64) {
        match self {
            Self::Equal { len: 0, .. } => (0, at),
            Self::Equal { len, .. } => (usize::try_from(at / len).unwrap_or(usize::MAX), at % len),
            Self::Each { ends } => {
                let block = ends.partition_point(|end| *end <= at);
                (block, at - block.checked_sub(1).map_or(0, |before| ends[before]))
            }
        }
    }
}

/// What a step does. Peers are ranks of the communicator; in an intercommunicator, of both groups numbered through
/// (see [`Between`](crate::Between)).
///
/// Puts, signals and waits within a host are parts of [`Share`](Action::Share). A step that is to come: `Launch` (a
/// kernel). Match with a wildcard arm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Sends the bytes of a place.
    Send {
        /// To whom.
        to: usize,
        /// Which message between the two, in this direction.
        slot: u32,
        /// The bytes; [`Place::NOTHING`] for a message without.
        from: Place,
    },
    /// Receives into a place.
    Receive {
        /// From whom.
        from: usize,
        /// Which message between the two, in this direction.
        slot: u32,
        /// Where to.
        into: Place,
    },
    /// Copies within this rank, between places of one length that share no byte.
    Copy {
        /// Where from.
        from: Place,
        /// Where to.
        into: Place,
    },
    /// Combines places of one length, element by element, in the given order: `into = s0 op s1 op …`.
    ///
    /// `into` is one of the sources or shares no byte with any. Places begin and end between elements
    /// ([`Schedule::unit`]). There are two sources at least.
    Reduce {
        /// The operands, in order.
        sources: Box<[Place]>,
        /// Where the result goes.
        into: Place,
    },
    /// Puts a task at another rank, and its bytes with it: the task combines them, there, into the place of the
    /// [`Task`](Action::Task) of the same number. This step has ended when the bytes may be overwritten.
    Put {
        /// At whom.
        to: usize,
        /// Which task between the two, in this direction.
        slot: u32,
        /// The bytes: whole elements.
        from: Place,
    },
    /// Waits until the task has ended that another rank puts here: it has made `into = into op` what came.
    Task {
        /// Who puts it.
        from: usize,
        /// Which task between the two, in this direction.
        slot: u32,
        /// What it works on, in scratch memory.
        into: Place,
    },
    /// Does something together with the others of the [subgroup](Schedule::subgroup).
    Share {
        /// What it is.
        what: Together,
        /// The rank that leads.
        lead: usize,
        /// What this rank reads, or [`Place::NOTHING`].
        from: Place,
        /// What it writes, or [`Place::NOTHING`]. Of a leader that reduces, it may be what it reads.
        into: Place,
    },
}

/// What one rank does in one collective.
///
/// See the [module's text](crate::schedule) for what an executor must keep. `Display` prints it for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) unit: u64,
    pub(crate) send: Row,
    pub(crate) recv: Row,
    pub(crate) scratch: u64,
    pub(crate) actions: Vec<Action>,
    /// Dependencies of all steps, one after the other; step `i` has those up to `bounds[i]`.
    pub(crate) after: Vec<u32>,
    pub(crate) bounds: Vec<usize>,
    pub(crate) subgroup: Option<Arc<[usize]>>,
    /// What all ranks must agree on.
    pub(crate) terms: Terms,
}

impl Schedule {
    /// Whose it is.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks take part; of both groups, in an intercommunicator.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Packed length of one element of a reduction, in bytes; 1 for other operations.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// The blocks of a buffer.
    #[must_use]
    pub fn row(&self, buffer: Buffer) -> Row {
        match buffer {
            Buffer::Send => self.send.clone(),
            Buffer::Recv => self.recv.clone(),
            Buffer::Scratch => Row::one(self.scratch),
        }
    }

    /// The same among some ranks of more: whoever was rank `r` is `ranks[r]` of `size`.
    ///
    /// # Panics
    /// If there are less than it names.
    pub(crate) fn renumbered(mut self, ranks: impl Fn(usize) -> usize, size: usize) -> Self {
        (self.rank, self.ranks) = (ranks(self.rank), size);
        for action in &mut self.actions {
            match action {
                Action::Send { to: peer, .. }
                | Action::Receive { from: peer, .. }
                | Action::Put { to: peer, .. }
                | Action::Task { from: peer, .. }
                | Action::Share { lead: peer, .. } => *peer = ranks(*peer),
                Action::Copy { .. } | Action::Reduce { .. } => {}
            }
        }
        self.subgroup =
            self.subgroup.map(|subgroup| subgroup.iter().map(|it| ranks(*it)).collect());
        self
    }

    /// Scratch memory that it needs, in bytes.
    #[must_use]
    pub fn scratch(&self) -> u64 {
        self.scratch
    }

    /// The ranks, ascending, that it has steps in common with ([`Action::Share`]); none: it has no such steps.
    #[must_use]
    pub fn subgroup(&self) -> Option<&[usize]> {
        self.subgroup.as_deref()
    }

    /// Whether it is by an algorithm that goes through memory which the ranks of each host share: this rank's may have
    /// no such steps.
    #[must_use]
    pub fn is_over_shared(&self) -> bool {
        self.terms.algorithm.is_some_and(|algorithm| algorithm.within.is_shared())
    }

    /// Whether it has the same buffers and steps, whatever algorithm they were made by.
    #[must_use]
    pub fn has_steps_of(&self, other: &Self) -> bool {
        let buffers = |it: &Self| (it.rank, it.ranks, it.unit, it.scratch);
        buffers(self) == buffers(other)
            && (&self.send, &self.recv) == (&other.send, &other.recv)
            && self.actions == other.actions
            && (&self.after, &self.bounds) == (&other.after, &other.bounds)
    }

    /// Whether others put tasks here, or this rank puts some.
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        self.actions.iter().any(|it| matches!(it, Action::Put { .. } | Action::Task { .. }))
    }

    /// Messages that it sends, and their bytes; tasks that it puts are among them.
    #[must_use]
    pub fn sent(&self) -> (usize, u64) {
        let sends = self.actions.iter().filter_map(|action| match action {
            Action::Send { from, .. } | Action::Put { from, .. } => Some(from.len),
            _ => None,
        });
        sends.fold((0, 0), |(messages, bytes), len| (messages + 1, bytes + len))
    }

    /// Bytes of memory that the schedule itself takes, without [scratch](Self::scratch).
    #[must_use]
    pub fn memory(&self) -> usize {
        let operands = self.actions.iter().map(|action| match action {
            Action::Reduce { sources, .. } => size_of_val(&**sources),
            _ => 0,
        });
        let row = |row: &Row| match row {
            Row::Equal { .. } => 0,
            Row::Each { ends } => size_of_val(&ends[..]),
        };
        size_of::<Self>()
            + size_of_val(&self.actions[..])
            + operands.sum::<usize>()
            + size_of_val(&self.after[..])
            + size_of_val(&self.bounds[..])
            + row(&self.send)
            + row(&self.recv)
    }

    /// How many steps it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether this rank has nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// What step `step` does.
    ///
    /// # Panics
    /// If there is no such step, as an index into a slice.
    #[must_use]
    pub fn action(&self, step: usize) -> &Action {
        &self.actions[step]
    }

    /// The steps that must have ended before step `step` begins: ascending, all less than `step`. Steps that follow
    /// from others of the list may be left out.
    ///
    /// # Panics
    /// If there is no such step, as an index into a slice.
    #[must_use]
    pub fn after(&self, step: usize) -> &[u32] {
        let start = step.checked_sub(1).map_or(0, |before| self.bounds[before]);
        &self.after[start..self.bounds[step]]
    }

    /// All steps in order, with what they wait for.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (&Action, &[u32])> {
        (0..self.len()).map(|step| (self.action(step), self.after(step)))
    }

    /// Where a place lies in the packed stream of its buffer.
    #[must_use]
    pub fn range(&self, place: &Place) -> Range<u64> {
        let block = match place.buffer {
            Buffer::Scratch => 0,
            _ if place.len == 0 => 0,
            Buffer::Send => self.send.range(place.block).start,
            Buffer::Recv => self.recv.range(place.block).start,
        };
        block + place.start..block + place.start + place.len
    }
}
