//! The programs of the paper's experiments between two nodes: a remote task (Figure 7), an accumulate (9a) and a
//! reduction (9b), whole or in pieces.
//!
//! Rank 0 has the operand in the first half of its memory. Rank 1 has the other operand there, and the result in the
//! end; messages that are received, and not put, go into the second half.

use crate::machine::ELEMENT;
use crate::program::{MemoryRange, Program, Ready, SimStep, SimWork, with_tasks};
use crate::run::{Configuration, initial};

/// Pieces of a vector: of `piece` bytes, the last one of what is left; 0: in one.
fn pieces(bytes: u64, piece: u64) -> impl Iterator<Item = MemoryRange> {
    let piece = if piece == 0 { bytes.max(1) } else { piece };
    (0..bytes.div_ceil(piece))
        .map(move |at| MemoryRange::new(at * piece, piece.min(bytes - at * piece)))
}

/// Rank 0 sends pieces, rank 1 adds them.
fn adding(bytes: u64, piece: u64) -> Vec<Program> {
    let (mut sender, mut adder) = (Vec::new(), Vec::new());
    for (slot, into) in (0..).zip(pieces(bytes, piece)) {
        sender.push(SimStep::new(SimWork::Send { to: 1, slot, from: into }, &[]));
        let source = MemoryRange::new(bytes + into.start, into.len);
        adder.push(SimStep::new(SimWork::Receive { from: 0, slot, into: source }, &[]));
        adder.push(SimStep::new(SimWork::Reduce { source, into }, &[adder.len() - 1]));
    }
    [sender, adder].map(|steps| Program { memory: 2 * bytes, steps }).into()
}

/// A reduction to rank 1 (Figure 9b), which is a remote task as well (Figure 7: in one piece, all ready ahead).
#[must_use]
pub fn reduce(configuration: Configuration, bytes: u64, piece: u64, ready: Ready) -> Vec<Program> {
    let programs = adding(bytes, piece);
    if configuration == Configuration::Xtq { with_tasks(&programs, ready) } else { programs }
}

/// An accumulate at rank 1, with its acknowledgement (Figure 9a).
///
/// Two-sided, rank 1's application receives, adds and answers, all in calls of its own. By XTQ, its library's thread
/// answers when the task has ended (§V.C.1). The window's buffers are ready since it was made.
#[must_use]
pub fn accumulate(configuration: Configuration, bytes: u64, piece: u64) -> Vec<Program> {
    let mut programs = adding(bytes, piece);
    let is_xtq = configuration == Configuration::Xtq;
    if is_xtq {
        programs = with_tasks(&programs, Ready::Ahead);
    }
    let [initiator, target] = &mut programs[..] else { return programs };
    target.steps.iter_mut().for_each(|step| step.thread = usize::from(is_xtq));
    let all: Vec<usize> = (0..target.steps.len()).collect();
    let slot = u32::MAX - 1;
    if is_xtq {
        target.steps.push(SimStep::apart(SimWork::Notify { to: 0, slot }, &all));
        initiator.steps.push(SimStep::new(SimWork::Notice { from: 1, slot }, &[]));
    } else {
        target
            .steps
            .push(SimStep::new(SimWork::Send { to: 0, slot, from: MemoryRange::NOTHING }, &all));
        initiator.steps.push(SimStep::new(
            SimWork::Receive { from: 1, slot, into: MemoryRange::NOTHING },
            &[],
        ));
    }
    programs
}

/// Whether rank 1 has the sum of both in the end.
#[must_use]
pub fn is_sum(memory: &[Vec<u32>], seed: u64, bytes: u64) -> bool {
    let expected = |element| initial(seed, 0, element).wrapping_add(initial(seed, 1, element));
    let elements = bytes / ELEMENT;
    memory
        .get(1)
        .is_some_and(|memory| (0..elements).zip(memory).all(|(at, sum)| *sum == expected(at)))
}
