//! The committed program: a layout as operations over byte runs.
//!
//! A program is an arena of [`Op`]s, children before parents, and a root placed at a displacement. It
//! yields runs in packed order, the order of the typemap, and never in another. Ops are shared: a type
//! used twice is stored once, so a program is no larger than the constructors' own lists. Beside each op
//! stand its [`Facts`] (packed size, bounds, blocks), so that any packed byte is found by one division in
//! a loop and one binary search in a list.
//!
//! Owner: `Layout`. Units: bytes throughout; displacements are relative to where the op is placed.
//! Invariants: no op is empty; loops, lists and sequences have at least two iterations, entries or parts;
//! sizes and bounds fit `i64`; the depth is at most [`MAX_PROGRAM_DEPTH`](crate::limits::MAX_PROGRAM_DEPTH).

mod chain;
mod facts;
mod lines;
mod listing;
mod lower;
mod walk;

use std::sync::Arc;

pub(crate) use chain::Chain;
pub(crate) use facts::{AffineLengths, Facts, apart, grain};
pub(crate) use lines::{Windows, full};
pub(crate) use lower::{lower, placed};
pub(crate) use walk::{Axis, Flow, Sink};

use crate::limits::{MAX_PROGRAM_DEPTH, MAX_PROGRAM_OPS};
use lines::Lines;

/// The index of an op in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(u32);

impl OpId {
    pub(crate) fn new(index: usize) -> Option<OpId> {
        u32::try_from(index).ok().map(OpId)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
}

/// An op placed at a displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramPart {
    pub(crate) disp: i64,
    pub(crate) op: OpId,
}

/// One step of a committed program. Entries and iterations follow each other in packed order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// `len` bytes at 0.
    Run { len: u64 },
    /// `body` at 0, `stride`, 2·`stride`, …
    Loop { count: u64, stride: i64, body: OpId },
    /// `len` bytes at each displacement.
    Blocks { len: u64, disps: Arc<Vec<i64>> },
    /// Entry i covers packed bytes `starts[i]..starts[i + 1]`, at `disps[i]`.
    List { disps: Box<[i64]>, starts: Box<[u64]> },
    /// Block j has `len + j·len_step` bytes, at `j·step`.
    Affine { count: u64, step: i64, len: u64, len_step: i64 },
    /// `body` at each displacement.
    Each { disps: Box<[i64]>, body: OpId },
    /// Part i covers packed bytes `starts[i]..starts[i + 1]`.
    Seq { parts: Box<[ProgramPart]>, starts: Box<[u64]> },
}

/// Why ops could not be put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramError {
    /// A size or displacement does not fit 63 bits.
    Overflow,
    /// The program needs more ops than [`MAX_PROGRAM_OPS`].
    TooManyOps,
    /// The program nests deeper than [`MAX_PROGRAM_DEPTH`].
    TooDeep,
    /// An op is empty, has too few entries, or names an op that does not come before it.
    Malformed(&'static str),
}

/// A whole program. `root` is absent when the layout has no bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    ops: Vec<Op>,
    facts: Vec<Facts>,
    /// Of each op, once the program is complete: the same list by lines, where that pays.
    lines: Vec<Option<Lines>>,
    root: Option<ProgramPart>,
}

impl Program {
    pub(crate) fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    pub(crate) fn facts(&self, id: OpId) -> &Facts {
        &self.facts[id.index()]
    }

    /// As [`facts`](Self::facts), of an op that may not be there.
    pub(crate) fn known(&self, id: OpId) -> Option<&Facts> {
        self.facts.get(id.index())
    }

    pub(crate) fn root(&self) -> Option<ProgramPart> {
        self.root
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Facts of all ops, in their order.
    pub(crate) fn all_facts(&self) -> &[Facts] {
        &self.facts
    }

    /// Facts of the whole instance, relative to the root's place.
    #[inline]
    pub(crate) fn root_facts(&self) -> Option<&Facts> {
        self.root.map(|root| self.facts(root.op))
    }

    /// True bounds of one instance, relative to displacement 0.
    pub(crate) fn bounds(&self) -> Option<(i64, i64)> {
        let root = self.root?;
        let facts = self.facts(root.op);
        Some((root.disp.wrapping_add(facts.lo), root.disp.wrapping_add(facts.hi)))
    }

    /// The largest power of two that divides every run's displacement and length; 0 without runs.
    pub(crate) fn granularity(&self) -> u64 {
        self.root.map_or(0, |root| {
            let facts = self.facts(root.op);
            grain(facts.grain | root.disp.wrapping_add(facts.first).cast_unsigned())
        })
    }

    /// Whether both surely are the same program. Of long lists, at most `entries` entries are compared; with more, two
    /// are taken for different.
    pub(crate) fn alike(&self, other: &Program, entries: u64) -> bool {
        let mut left = entries;
        let mut may_compare = |op: &Op| {
            let long = op.entries().filter(|&entries| entries > COMPARED).unwrap_or(0);
            let rest = left.checked_sub(long as u64);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        std::ptr::eq(self, other)
            || (self.root == other.root
                && self.ops.len() == other.ops.len()
                && self.ops.len() <= COMPARED
                && self.ops.iter().zip(&other.ops).all(|(a, b)| may_compare(a) && a == b))
    }

    /// Adds an op whose children are already there; its facts are derived and checked, not trusted.
    pub(crate) fn push(&mut self, op: Op) -> Result<OpId, ProgramError> {
        let facts = Facts::of(&op, &self.facts)?;
        self.insert(op, facts)
    }

    /// As [`push`](Self::push), for a builder that derived the facts along with the op.
    pub(crate) fn push_derived(&mut self, op: Op, facts: Facts) -> Result<OpId, ProgramError> {
        debug_assert_eq!(Facts::of(&op, &self.facts), Ok(facts));
        self.insert(op, facts)
    }

    fn insert(&mut self, op: Op, facts: Facts) -> Result<OpId, ProgramError> {
        if self.ops.len() >= MAX_PROGRAM_OPS {
            return Err(ProgramError::TooManyOps);
        }
        if facts.depth as usize > MAX_PROGRAM_DEPTH {
            return Err(ProgramError::TooDeep);
        }
        let id = OpId::new(self.ops.len()).ok_or(ProgramError::TooManyOps)?;
        self.ops.push(op);
        self.facts.push(facts);
        Ok(id)
    }

    /// Places the root; its bounds must fit `i64`.
    pub(crate) fn set_root(&mut self, root: Option<ProgramPart>) -> Result<(), ProgramError> {
        if let Some(part) = root {
            let facts = self.facts.get(part.op.index());
            let facts =
                facts.ok_or(ProgramError::Malformed("root names an op that is not there"))?;
            facts.lo.checked_add(part.disp).ok_or(ProgramError::Overflow)?;
            facts.hi.checked_add(part.disp).ok_or(ProgramError::Overflow)?;
        }
        self.root = root;
        Ok(())
    }

    /// Derives what only complete programs have. Changes nothing of what the program means.
    pub(crate) fn with_lines(mut self) -> Program {
        self.lines =
            self.ops.iter().zip(&self.facts).map(|(op, facts)| Lines::of(op, facts)).collect();
        self
    }

    /// The op's list by lines.
    fn lines(&self, id: OpId) -> Option<&Lines> {
        self.lines.get(id.index())?.as_ref()
    }

    /// Drops what the root does not reach; building leaves such ops behind when it merges.
    pub(crate) fn compact(self) -> Program {
        let Some(root) = self.root else { return Program::default() };
        let mut reached = vec![false; self.ops.len()];
        reached[root.op.index()] = true;
        for index in (0..self.ops.len()).rev() {
            if reached[index] {
                self.ops[index].for_each_child(|child| reached[child.index()] = true);
            }
        }
        if reached.iter().all(|&r| r) {
            return self;
        }
        let mut moved = vec![OpId(0); self.ops.len()];
        let mut kept = Program::default();
        for (index, (mut op, facts)) in self.ops.into_iter().zip(self.facts).enumerate() {
            if !reached[index] {
                continue;
            }
            op.for_each_child_mut(|child| *child = moved[child.index()]);
            moved[index] = OpId::new(kept.ops.len()).unwrap_or(OpId(0));
            kept.ops.push(op);
            kept.facts.push(facts);
        }
        kept.root = Some(ProgramPart { disp: root.disp, op: moved[root.op.index()] });
        kept
    }
}

/// Most ops, and most entries of a list that is not long, that are compared to find two programs alike.
const COMPARED: usize = 64;

impl Op {
    /// Entries of its list, if it has one.
    fn entries(&self) -> Option<usize> {
        match self {
            Op::Run { .. } | Op::Loop { .. } | Op::Affine { .. } => None,
            Op::Blocks { disps, .. } => Some(disps.len()),
            Op::List { disps, .. } | Op::Each { disps, .. } => Some(disps.len()),
            Op::Seq { parts, .. } => Some(parts.len()),
        }
    }

    fn for_each_child(&self, mut visit: impl FnMut(OpId)) {
        match self {
            Op::Run { .. } | Op::Blocks { .. } | Op::List { .. } | Op::Affine { .. } => {}
            Op::Loop { body, .. } | Op::Each { body, .. } => visit(*body),
            Op::Seq { parts, .. } => parts.iter().for_each(|part| visit(part.op)),
        }
    }

    fn for_each_child_mut(&mut self, mut visit: impl FnMut(&mut OpId)) {
        match self {
            Op::Run { .. } | Op::Blocks { .. } | Op::List { .. } | Op::Affine { .. } => {}
            Op::Loop { body, .. } | Op::Each { body, .. } => visit(body),
            Op::Seq { parts, .. } => parts.iter_mut().for_each(|part| visit(&mut part.op)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compaction_keeps_what_the_root_reaches() {
        let mut program = Program::default();
        let run = program.push(Op::Run { len: 8 }).unwrap();
        program.push(Op::Run { len: 99 }).unwrap();
        let looped = program.push(Op::Loop { count: 3, stride: 16, body: run }).unwrap();
        program.set_root(Some(ProgramPart { disp: 4, op: looped })).unwrap();
        let program = program.compact();
        assert_eq!(program.ops.len(), 2);
        assert_eq!(program.bounds(), Some((4, 44)));
        assert_eq!(program.root_facts().unwrap().chain.blocks, 3);
    }

    #[test]
    fn refuses_forward_references_and_empty_ops() {
        let mut program = Program::default();
        let dangling = Op::Loop { count: 2, stride: 1, body: OpId(7) };
        assert!(matches!(program.push(dangling), Err(ProgramError::Malformed(_))));
        assert!(matches!(program.push(Op::Run { len: 0 }), Err(ProgramError::Malformed(_))));
        assert_eq!(program.push(Op::Run { len: u64::MAX }), Err(ProgramError::Overflow));
    }
}
