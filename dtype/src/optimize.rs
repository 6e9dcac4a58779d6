//! Normalisation: puts ops together so that the program stays small and its loops long, while packed
//! order, the meaning of a datatype, never changes.
//!
//! Done here: empty pieces vanish; adjacent runs merge; nested loops that continue each other become one;
//! lists with a constant stride become loops, with one length become blocks, with lengths and
//! displacements that advance by constants become affine; lists of a few lengths that the shortest divides become
//! blocks of that, adjacent ones included, where these are not too many; sequences of one body become loops or lists;
//! sequences of few runs become lists. The cost is linear in the constructors' lists, whatever the counts.

mod bulk;
mod runs;
mod summary;

use std::collections::HashMap;

use crate::program::{Op, OpId, Program, ProgramError, ProgramPart};
use bulk::{Bulk, Digest};
use runs::RunList;
pub(crate) use runs::signed_difference;
use summary::summary;

/// A piece that may be empty.
pub(crate) type ProgramPiece = Option<ProgramPart>;

/// Sequences take over the entries of parts with at most this many runs, so that a part is never copied
/// more often than a constant.
const INLINE_RUNS: u64 = 8;

/// Collects ops; finish with [`Builder::finish`].
#[derive(Default)]
pub(crate) struct Builder {
    program: Program,
    /// Ops that exist already, by their [`summary`]. The same op is stored once, and two pieces with the same op are
    /// known to be alike. If two ops have one summary, only the later one is found, and the other is stored again;
    /// that is harmless and practically never happens.
    shared: HashMap<u64, OpId>,
}

/// How many elements each block of an indexed constructor has.
#[derive(Clone, Copy)]
pub(crate) enum Lengths<'a> {
    Equal(u64),
    Listed(&'a [u64]),
}

impl Lengths<'_> {
    pub(crate) fn at(self, i: usize) -> u64 {
        match self {
            Lengths::Equal(n) => n,
            Lengths::Listed(list) => list[i],
        }
    }
}

impl Builder {
    /// Goes on from a program.
    pub(crate) fn on(program: &Program) -> Builder {
        Builder { program: program.clone(), ..Builder::default() }
    }

    /// `len` bytes at `disp`.
    pub(crate) fn run(&mut self, disp: i64, len: u64) -> Result<ProgramPiece, ProgramError> {
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(ProgramPart { disp, op: self.share(Op::Run { len })? }))
    }

    /// `count` copies of `piece`, `stride` apart.
    pub(crate) fn repeat(
        &mut self,
        piece: ProgramPiece,
        count: u64,
        stride: i64,
    ) -> Result<ProgramPiece, ProgramError> {
        let Some(part) = piece else { return Ok(None) };
        if count <= 1 {
            return Ok(if count == 0 { None } else { piece });
        }
        let op = match *self.program.op(part.op) {
            Op::Run { len } if stride.cast_unsigned() == len => {
                Op::Run { len: len.checked_mul(count).ok_or(ProgramError::Overflow)? }
            }
            Op::Loop { count: inner, stride: step, body } if continues(inner, step, stride) => {
                let count = inner.checked_mul(count).ok_or(ProgramError::Overflow)?;
                Op::Loop { count, stride: step, body }
            }
            _ => Op::Loop { count, stride, body: part.op },
        };
        Ok(Some(ProgramPart { disp: part.disp, op: self.share(op)? }))
    }

    /// Blocks of copies of `piece` that are `extent` apart within a block; block i begins at
    /// `displacements[i] × unit` bytes.
    pub(crate) fn place(
        &mut self,
        piece: ProgramPiece,
        extent: i64,
        lengths: Lengths<'_>,
        displacements: &[i64],
        unit: i64,
    ) -> Result<ProgramPiece, ProgramError> {
        let Some(part) = piece else { return Ok(None) };
        let at = |i: usize| {
            let disp = displacements[i].checked_mul(unit);
            disp.and_then(|disp| disp.checked_add(part.disp)).ok_or(ProgramError::Overflow)
        };
        let dense = match self.program.op(part.op) {
            Op::Run { len } if len.cast_signed() == extent => Some(*len),
            _ => None,
        };
        if let Some(len) = dense {
            let bulk = Bulk { displacements, lengths, len, unit, base: part.disp };
            match bulk.digest() {
                Some(Digest::Class(class)) => return self.classified(class),
                Some(Digest::Derived(op, facts)) => {
                    let op = match self.find(&op) {
                        Ok(id) => id,
                        Err(summary) => {
                            let id = self.program.push_derived(op, facts)?;
                            self.shared.insert(summary, id);
                            id
                        }
                    };
                    return Ok(Some(ProgramPart { disp: 0, op }));
                }
                None => {}
            }
            let mut runs = RunList::with_capacity(displacements.len());
            for i in 0..displacements.len() {
                match lengths.at(i) {
                    0 => {}
                    n => runs.push(at(i)?, len.checked_mul(n).ok_or(ProgramError::Overflow)?),
                }
            }
            return self.runs(runs);
        }
        if let Some(equal) = equal_length(lengths, displacements.len()) {
            let origin = Some(ProgramPart { disp: 0, op: part.op });
            let Some(body) = self.repeat(origin, equal, extent)? else { return Ok(None) };
            let disps: Result<Vec<i64>, _> = (0..displacements.len()).map(at).collect();
            return self.each(body.op, disps?);
        }
        let mut parts = Vec::with_capacity(displacements.len());
        for i in 0..displacements.len() {
            match lengths.at(i) {
                0 => {}
                n => {
                    let block = Some(ProgramPart { disp: at(i)?, op: part.op });
                    parts.extend(self.repeat(block, n, extent)?);
                }
            }
        }
        self.sequence(parts)
    }

    /// The pieces one after the other.
    pub(crate) fn sequence(
        &mut self,
        pieces: impl IntoIterator<Item = ProgramPart>,
    ) -> Result<ProgramPiece, ProgramError> {
        let mut parts: Vec<ProgramPart> = Vec::new();
        for piece in pieces {
            match self.program.op(piece.op) {
                Op::Seq { parts: inner, .. } if inner.len() as u64 <= INLINE_RUNS => {
                    let inner: Vec<ProgramPart> = inner.to_vec();
                    for part in inner {
                        let disp =
                            part.disp.checked_add(piece.disp).ok_or(ProgramError::Overflow)?;
                        self.append(&mut parts, ProgramPart { disp, op: part.op })?;
                    }
                }
                _ => self.append(&mut parts, piece)?,
            }
        }
        if parts.len() < 2 {
            return Ok(parts.pop());
        }
        if parts.iter().all(|part| self.few_runs(part.op)) {
            let mut runs = RunList::with_capacity(parts.len());
            for part in &parts {
                self.expand(*part, &mut runs);
            }
            return self.runs(runs);
        }
        let body = parts[0].op;
        if parts.iter().all(|part| part.op == body) {
            return self.each(body, parts.iter().map(|part| part.disp).collect());
        }
        let mut starts = Vec::with_capacity(parts.len() + 1);
        let mut size = 0u64;
        starts.push(0);
        for part in &parts {
            size =
                size.checked_add(self.program.facts(part.op).size).ok_or(ProgramError::Overflow)?;
            starts.push(size);
        }
        let op = self.share(Op::Seq { parts: parts.into(), starts: starts.into() })?;
        Ok(Some(ProgramPart { disp: 0, op }))
    }

    /// The program of `root`, without what merging left behind.
    pub(crate) fn finish(mut self, root: ProgramPiece) -> Result<Program, ProgramError> {
        self.program.set_root(root)?;
        Ok(self.program.compact().with_lines())
    }

    /// Puts `next` after `parts`, or makes the last of them longer.
    fn append(
        &mut self,
        parts: &mut Vec<ProgramPart>,
        next: ProgramPart,
    ) -> Result<(), ProgramError> {
        if let Some(last) = parts.last_mut()
            && let Some(op) = self.joined(*last, next)
        {
            last.op = self.share(op)?;
            return Ok(());
        }
        parts.push(next);
        Ok(())
    }

    /// One op at `last`'s place for both, where they are runs or loops that continue each other.
    fn joined(&self, last: ProgramPart, next: ProgramPart) -> Option<Op> {
        let apart = next.disp.checked_sub(last.disp)?;
        match (self.program.op(last.op), self.program.op(next.op)) {
            (Op::Run { len }, Op::Run { len: more }) if len.cast_signed() == apart => {
                Some(Op::Run { len: len.checked_add(*more)? })
            }
            (Op::Loop { count, stride, body }, tail) => {
                let reach = i64::try_from(*count).ok()?.checked_mul(*stride)?;
                let more = match tail {
                    Op::Loop { count, stride: s, body: b } if s == stride && b == body => *count,
                    _ if next.op == *body => 1,
                    _ => return None,
                };
                let count = count.checked_add(more)?;
                (reach == apart).then_some(Op::Loop { count, stride: *stride, body: *body })
            }
            (_, Op::Loop { count, stride, body }) if *body == last.op && *stride == apart => {
                Some(Op::Loop { count: count.checked_add(1)?, stride: *stride, body: *body })
            }
            _ => None,
        }
    }

    fn few_runs(&self, op: OpId) -> bool {
        let facts = self.program.facts(op);
        match self.program.op(op) {
            Op::Run { .. } => true,
            Op::Loop { count, body, .. } => {
                *count <= INLINE_RUNS && matches!(self.program.op(*body), Op::Run { .. })
            }
            Op::Blocks { .. } | Op::List { .. } | Op::Affine { .. } => {
                facts.chain.blocks <= INLINE_RUNS
            }
            Op::Each { .. } | Op::Seq { .. } => false,
        }
    }

    /// Writes out the runs of an op that has few.
    fn expand(&self, part: ProgramPart, runs: &mut RunList) {
        let size = self.program.facts(part.op).size;
        let mut sink = runs::Expand(runs);
        // The sink never stops a walk.
        let _ = self.program.walk(part.op, part.disp, 0, size, &mut sink);
    }

    /// The shortest op for runs that no longer merge.
    fn runs(&mut self, runs: RunList) -> Result<ProgramPiece, ProgramError> {
        self.classified(runs.classify()?)
    }

    fn classified(&mut self, class: runs::Class) -> Result<ProgramPiece, ProgramError> {
        match class {
            runs::Class::Empty => Ok(None),
            runs::Class::Run { disp, len } => self.run(disp, len),
            runs::Class::Strided { disp, count, stride, len } => {
                let run = self.run(disp, len)?;
                self.repeat(run, count, stride)
            }
            runs::Class::Affine { disp, op } => Ok(Some(ProgramPart { disp, op: self.share(op)? })),
            runs::Class::Listed(op) => Ok(Some(ProgramPart { disp: 0, op: self.share(op)? })),
        }
    }

    /// `body` at every displacement of a list that is not empty.
    fn each(&mut self, body: OpId, disps: Vec<i64>) -> Result<ProgramPiece, ProgramError> {
        let Some(&first) = disps.first() else { return Ok(None) };
        let origin = Some(ProgramPart { disp: first, op: body });
        if disps.len() == 1 {
            return Ok(origin);
        }
        if let Some(stride) = runs::constant_step(&disps) {
            return self.repeat(origin, disps.len() as u64, stride);
        }
        if let Op::Run { len } = *self.program.op(body) {
            let mut list = RunList::with_capacity(disps.len());
            disps.iter().for_each(|&disp| list.push(disp, len));
            return self.runs(list);
        }
        let op = self.share(Op::Each { disps: disps.into(), body })?;
        Ok(Some(ProgramPart { disp: 0, op }))
    }

    fn share(&mut self, op: Op) -> Result<OpId, ProgramError> {
        match self.find(&op) {
            Ok(id) => Ok(id),
            Err(summary) => {
                let id = self.program.push(op)?;
                self.shared.insert(summary, id);
                Ok(id)
            }
        }
    }

    /// The op that equals `op`, or the summary to remember `op` by.
    fn find(&self, op: &Op) -> Result<OpId, u64> {
        let summary = summary(op);
        match self.shared.get(&summary) {
            Some(&id) if self.program.op(id) == op => Ok(id),
            _ => Err(summary),
        }
    }
}

/// Whether `inner` steps of `step` end where the next copy, `stride` further, begins.
fn continues(inner: u64, step: i64, stride: i64) -> bool {
    i128::from(inner) * i128::from(step) == i128::from(stride)
}

/// The one length that all of `n` blocks have.
fn equal_length(lengths: Lengths<'_>, n: usize) -> Option<u64> {
    match lengths {
        Lengths::Equal(equal) => Some(equal),
        Lengths::Listed(list) => {
            let first = *list.first()?;
            (list.len() == n && list.iter().all(|&len| len == first)).then_some(first)
        }
    }
}

#[cfg(test)]
mod tests;
