//! The proof of a collective: all ranks' schedules are executed on symbols and compared with the operation's
//! definition.
//!
//! Every byte holds a value of a free algebra: a byte that some rank put in, or a combination of such. Equal values
//! mean equal results whatever the data and the operation are. Combinations are sequences of ranks, or multisets for
//! commutative operations, so that any bracketing is right and any wrong operand or order is not.
//!
//! [`prove`] refutes a set of schedules if
//! - a dependency names a later step, a place lies outside its buffer, or what is only read is written: the
//!   send buffer, or the receive buffer of a broadcast's root;
//! - a send has no receive of its peer, slot and length, or the other way round;
//! - two steps touch a byte, one writes, and neither waits for the other ([`Refutation::Race`]);
//! - a task is not put exactly once, or can run before its place is ready ([`Refutation::Unready`]), or while another
//!   step touches that (a race);
//! - ranks of a subgroup do not do the same together ([`Refutation::Apart`]);
//! - not all steps can end although every step that may begin does ([`Refutation::Stuck`]); no send ends before its
//!   receive has begun. As what is ready is only ever added to, this holds for every order of events;
//! - a step reads bytes that nobody wrote, or cuts an element;
//! - a result differs from the definition, or a byte was written that the operation does not define.
//!
//! Because races are excluded, one order of execution stands for all.
mod algebra;
mod definition;
mod execute;
mod races;
mod tasks;
mod together;

use std::fmt;

pub use definition::Definition;

use crate::schedule::{Action, Buffer, Schedule};
use algebra::Value;

/// What is wrong with a set of schedules. Steps are named by rank and number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refutation {
    /// A dependency names the step itself or a later one.
    Backwards {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// A place lies outside its buffer, or lengths within a step differ, or an operand overlaps the result.
    Place {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// A step writes what is only read: the send buffer, or the receive buffer of a broadcast's root.
    WritesInput {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// A message or a task has no other end, or two have one number, or the other end has another length.
    Unmatched {
        /// Who sends.
        from: usize,
        /// Who receives.
        to: usize,
        /// The number of the message.
        slot: u32,
    },
    /// A task is put before its target has said that it is ready, or does not wait for the message by which it says so.
    Unready {
        /// Whose task.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// The ranks of a subgroup do not do the same together.
    Apart {
        /// Whose step has no like at another rank of the subgroup.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// Two steps touch a byte, at least one writes it, and neither waits for the other.
    Race {
        /// Whose steps.
        rank: usize,
        /// The two steps.
        steps: (usize, usize),
    },
    /// Steps wait for each other for ever.
    Stuck {
        /// A step that never ends: whose.
        rank: usize,
        /// Which.
        step: usize,
    },
    /// A step uses bytes that nobody wrote.
    Undefined {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// A step combines elements of different positions, or parts of elements.
    Element {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
    },
    /// A result differs from rank 0's, if operations round.
    Rounding {
        /// Whose result.
        rank: usize,
        /// Which byte of its packed stream.
        at: u64,
    },
    /// A byte of the receive buffer is not as the operation defines it.
    Result {
        /// Whose buffer.
        rank: usize,
        /// Which byte of its packed stream.
        at: u64,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
}

impl fmt::Display for Refutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backwards { rank, step } => {
                write!(f, "rank {rank}: step {step} waits for a later one")
            }
            Self::Place { rank, step } => {
                write!(f, "rank {rank}: step {step} has places that do not fit")
            }
            Self::WritesInput { rank, step } => {
                write!(f, "rank {rank}: step {step} writes what is only read")
            }
            Self::Unmatched { from, to, slot } => {
                write!(f, "message {slot} from {from} to {to} has no other end of its length")
            }
            Self::Unready { rank, step } => {
                write!(f, "rank {rank}: the task of step {step} is put before that rank is ready")
            }
            Self::Apart { rank, step } => {
                write!(f, "rank {rank}: step {step} is not what others of its host do together")
            }
            Self::Race { rank, steps: (one, other) } => {
                write!(f, "rank {rank}: steps {one} and {other} touch the same bytes in any order")
            }
            Self::Stuck { rank, step } => write!(f, "rank {rank}: step {step} never ends"),
            Self::Undefined { rank, step } => {
                write!(f, "rank {rank}: step {step} uses bytes that nobody wrote")
            }
            Self::Element { rank, step } => {
                write!(f, "rank {rank}: step {step} combines elements that do not belong together")
            }
            Self::Rounding { rank, at } => {
                write!(f, "byte {at} is combined in another order at rank {rank} than at rank 0")
            }
            Self::Result { rank, at, found, expected } => {
                write!(f, "rank {rank}: byte {at} is {found}, but should be {expected}")
            }
        }
    }
}

impl std::error::Error for Refutation {}

/// Proves that the schedules of all ranks do what the definition says.
///
/// # Errors
/// The first thing that is wrong.
///
/// # Panics
/// If there is not one schedule per rank of the definition, in order.
pub fn prove(schedules: &[Schedule], definition: &mut Definition) -> Result<(), Refutation> {
    assert_eq!(schedules.len(), definition.ranks.len(), "one schedule per rank");
    let mut accesses = Vec::new();
    for (rank, schedule) in schedules.iter().enumerate() {
        assert_eq!(schedule.rank(), rank, "schedules are in the order of the ranks");
        accesses.push(check(schedule, definition, rank)?);
    }
    for (schedule, accesses) in schedules.iter().zip(&accesses) {
        races::check(schedule, accesses)?;
    }
    tasks::check(schedules, &accesses)?;
    execute::run(schedules, &accesses, definition)
}

/// Proves that all ranks get the same to the last bit, although operations round: that every rank's result is combined
/// of the same operands with the same brackets. For operations that give all ranks one result.
///
/// # Errors
/// The first thing that is wrong.
///
/// # Panics
/// As for [`prove`].
pub fn prove_same_bits(schedules: &[Schedule], definition: &Definition) -> Result<(), Refutation> {
    let mut definition = definition.clone();
    definition.algebra.round();
    prove(schedules, &mut definition)
}

/// For each rank: of which ranks' beginnings its end is known to come after, through messages and dependencies. What a
/// barrier must do: all of all.
///
/// # Panics
/// If the schedules are not proved.
#[must_use]
pub fn heard_of(schedules: &[Schedule]) -> Vec<std::collections::BTreeSet<usize>> {
    execute::heard_of(schedules)
}

/// What a step touches: cells (units of the definition's grain) of a buffer.
#[derive(Clone, Debug)]
struct Access {
    step: usize,
    buffer: Buffer,
    cells: std::ops::Range<usize>,
    writes: bool,
}

/// Checks one schedule by itself, and lists what its steps touch: reads first, then what is written.
fn check(
    schedule: &Schedule,
    definition: &Definition,
    rank: usize,
) -> Result<Vec<Vec<Access>>, Refutation> {
    let mut all = Vec::with_capacity(schedule.len());
    for (step, (action, after)) in schedule.steps().enumerate() {
        if after.iter().any(|before| *before as usize >= step) {
            return Err(Refutation::Backwards { rank, step });
        }
        let (reads, writes) = match action {
            Action::Send { from, .. } | Action::Put { from, .. } => {
                (std::slice::from_ref(from), None)
            }
            Action::Task { into, .. } => (std::slice::from_ref(into), Some(into)),
            Action::Receive { into, .. } => (&[][..], Some(into)),
            Action::Copy { from, into } | Action::Share { from, into, .. } => {
                (std::slice::from_ref(from), Some(into))
            }
            Action::Reduce { sources, into } => (&sources[..], Some(into)),
        };
        let mut accesses = Vec::with_capacity(reads.len() + 1);
        for (place, is_write) in
            reads.iter().map(|place| (place, false)).chain(writes.map(|it| (it, true)))
        {
            let cells =
                definition.cells(schedule, place).ok_or(Refutation::Place { rank, step })?;
            let only_read = match place.buffer {
                Buffer::Send => true,
                Buffer::Recv => definition.ranks[rank].recv_is_input,
                Buffer::Scratch => false,
            };
            if is_write && only_read && !cells.is_empty() {
                return Err(Refutation::WritesInput { rank, step });
            }
            accesses.push(Access { step, buffer: place.buffer, cells, writes: is_write });
        }
        if !fits(action, &accesses) {
            return Err(Refutation::Place { rank, step });
        }
        all.push(accesses);
    }
    Ok(all)
}

/// Whether a step's places have one length, and its result is an operand or apart from all.
fn fits(action: &Action, accesses: &[Access]) -> bool {
    let same_len = accesses.windows(2).all(|pair| pair[0].cells.len() == pair[1].cells.len());
    let Some((result, operands)) = accesses.split_last() else {
        return false;
    };
    let apart = |operand: &Access| {
        operand.buffer != result.buffer
            || operand.cells.end <= result.cells.start
            || result.cells.end <= operand.cells.start
    };
    match action {
        Action::Copy { .. } => same_len && operands.iter().all(apart),
        Action::Reduce { .. } => {
            let same =
                |operand: &Access| operand.buffer == result.buffer && operand.cells == result.cells;
            same_len && operands.len() >= 2 && operands.iter().all(|it| apart(it) || same(it))
        }
        _ => true,
    }
}

/// What a rank has: the contents of its buffers.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    send: Vec<Value>,
    recv: Vec<Value>,
    scratch: Vec<Value>,
    /// Whether the receive buffer is only read.
    recv_is_input: bool,
    /// What the receive buffer should hold in the end; undefined: what it held before.
    expected: Vec<Value>,
}
