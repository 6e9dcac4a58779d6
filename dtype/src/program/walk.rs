//! Running a program: any range of packed bytes, in packed order, into a sink.
//!
//! A walk finds its first byte by one division per loop and one binary search per list, hands whole
//! contiguous spans of loops and lists to the sink at once, and keeps no state: the caller's packed position is
//! the whole cursor. Recursion is bounded by the program's depth, and nothing is allocated.
//!
//! Places wrap modulo 2⁶⁴ on the way down: a partial sum may leave `i64`, the place of a run that is
//! handed out is within the layout's checked bounds.

use std::ops::ControlFlow;

use super::{AffineLengths, Op, OpId, Program, Windows};
use crate::run::in_memory;

/// Goes on, or stops because the sink can take no more.
pub(crate) type Flow = ControlFlow<()>;

/// What takes runs. Only `run` is needed; the others let a sink take many runs at once, in the order that
/// the default implementations spell out. No run is empty and no count is 0.
pub(crate) trait Sink {
    /// One run.
    fn run(&mut self, disp: i64, len: u64) -> Flow;

    /// `count` runs, `stride` apart.
    fn strided(&mut self, mut disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        for _ in 0..count {
            self.run(disp, len)?;
            disp = disp.wrapping_add(stride);
        }
        Flow::Continue(())
    }

    /// `outer` times `inner` runs, the inner index advancing first.
    fn grid(&mut self, mut disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }

    /// Runs of one length at listed displacements from `base`.
    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        for disp in disps {
            self.run(base.wrapping_add(*disp), len)?;
        }
        Flow::Continue(())
    }

    /// As [`blocks`](Self::blocks), of blocks that `windows` says the same of.
    fn dense(&mut self, base: i64, disps: &[i64], len: u64, windows: &Windows<'_>) -> Flow {
        let _ = windows;
        self.blocks(base, disps, len)
    }

    /// Run i has `starts[i + 1] - starts[i]` bytes.
    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        for (disp, ends) in disps.iter().zip(starts.windows(2)) {
            self.run(base.wrapping_add(*disp), ends[1] - ends[0])?;
        }
        Flow::Continue(())
    }

    /// `count` runs whose displacement and length advance by constants.
    fn affine(&mut self, mut disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        let mut len = lens.len;
        for _ in 0..count {
            self.run(disp, len)?;
            disp = disp.wrapping_add(step);
            len = len.wrapping_add(lens.len_step.cast_unsigned());
        }
        Flow::Continue(())
    }
}

/// One dimension of a strided shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) count: u64,
    pub(crate) stride: i64,
}

impl Axis {
    fn at(self, base: i64, i: u64) -> i64 {
        base.wrapping_add(self.stride.wrapping_mul(i.cast_signed()))
    }
}

/// Where a packed byte falls among pieces of equal size.
struct Cut {
    index: u64,
    byte: u64,
}

impl Cut {
    fn of(packed: u64, size: u64) -> Cut {
        Cut { index: packed / size, byte: packed % size }
    }
}

impl Program {
    /// Hands packed bytes `lo..hi` of `op`, placed at `base`, to the sink. `lo < hi ≤ size`.
    pub(crate) fn walk<S: Sink>(
        &self,
        op: OpId,
        base: i64,
        lo: u64,
        hi: u64,
        sink: &mut S,
    ) -> Flow {
        let size = self.facts(op).size;
        debug_assert!(lo < hi && hi <= size);
        if lo == 0 && hi == size {
            return self.whole(op, base, sink);
        }
        match self.op(op) {
            Op::Run { .. } => sink.run(base.wrapping_add_unsigned(lo), hi - lo),
            Op::Loop { count, stride, body } => {
                self.walk_loop(*body, base, Axis { count: *count, stride: *stride }, lo, hi, sink)
            }
            Op::Blocks { len, disps } => {
                let (mut from, to) = (Cut::of(lo, *len), Cut::of(hi, *len));
                let at = |i: u64| base.wrapping_add(disps[in_memory(i)]);
                if from.index == to.index {
                    let disp = at(from.index).wrapping_add_unsigned(from.byte);
                    return sink.run(disp, to.byte - from.byte);
                }
                if from.byte > 0 {
                    sink.run(at(from.index).wrapping_add_unsigned(from.byte), *len - from.byte)?;
                    from.index += 1;
                }
                if from.index < to.index {
                    let some = &disps[in_memory(from.index)..in_memory(to.index)];
                    self.blocks(op, base, some, *len, sink)?;
                }
                if to.byte > 0 {
                    sink.run(at(to.index), to.byte)?;
                }
                Flow::Continue(())
            }
            Op::List { disps, starts } => {
                let (mut from, to) = (entry(starts, lo), entry(starts, hi));
                let at = |i: usize| base.wrapping_add(disps[i]);
                if from == to {
                    return sink.run(at(from).wrapping_add_unsigned(lo - starts[from]), hi - lo);
                }
                if lo > starts[from] {
                    let inside = lo - starts[from];
                    sink.run(at(from).wrapping_add_unsigned(inside), starts[from + 1] - lo)?;
                    from += 1;
                }
                if from < to {
                    sink.list(base, &disps[from..to], &starts[from..=to])?;
                }
                if hi > starts[to] {
                    sink.run(at(to), hi - starts[to])?;
                }
                Flow::Continue(())
            }
            Op::Affine { count, step, len, len_step } => {
                let lens = AffineLengths { len: *len, len_step: *len_step };
                walk_affine(base, Axis { count: *count, stride: *step }, lens, lo, hi, sink)
            }
            Op::Each { disps, body } => {
                let body_size = self.facts(*body).size;
                let (mut from, to) = (Cut::of(lo, body_size), Cut::of(hi, body_size));
                let at = |i: u64| base.wrapping_add(disps[in_memory(i)]);
                if from.index == to.index {
                    return self.walk(*body, at(from.index), from.byte, to.byte, sink);
                }
                if from.byte > 0 {
                    self.walk(*body, at(from.index), from.byte, body_size, sink)?;
                    from.index += 1;
                }
                for i in from.index..to.index {
                    self.whole(*body, at(i), sink)?;
                }
                if to.byte > 0 {
                    self.walk(*body, at(to.index), 0, to.byte, sink)?;
                }
                Flow::Continue(())
            }
            Op::Seq { parts, starts } => {
                for i in entry(starts, lo)..parts.len() {
                    let (part, start) = (&parts[i], starts[i]);
                    if start >= hi {
                        break;
                    }
                    let (from, to) = (lo.saturating_sub(start), hi.min(starts[i + 1]) - start);
                    self.walk(part.op, base.wrapping_add(part.disp), from, to, sink)?;
                }
                Flow::Continue(())
            }
        }
    }

    /// Hands packed bytes `lo..hi` of a loop over `body` to the sink; also serves repeated instances.
    pub(crate) fn walk_loop<S: Sink>(
        &self,
        body: OpId,
        base: i64,
        axis: Axis,
        lo: u64,
        hi: u64,
        sink: &mut S,
    ) -> Flow {
        let size = self.facts(body).size;
        let (mut from, to) = (Cut::of(lo, size), Cut::of(hi, size));
        if from.index == to.index {
            return self.walk(body, axis.at(base, from.index), from.byte, to.byte, sink);
        }
        if from.byte > 0 {
            self.walk(body, axis.at(base, from.index), from.byte, size, sink)?;
            from.index += 1;
        }
        if from.index < to.index {
            let count = to.index - from.index;
            let middle = Axis { count, stride: axis.stride };
            self.repeat(body, axis.at(base, from.index), middle, sink)?;
        }
        if to.byte > 0 {
            self.walk(body, axis.at(base, to.index), 0, to.byte, sink)?;
        }
        Flow::Continue(())
    }

    /// All of `op`: no positions to find.
    fn whole<S: Sink>(&self, op: OpId, base: i64, sink: &mut S) -> Flow {
        match self.op(op) {
            Op::Run { len } => sink.run(base, *len),
            Op::Loop { count, stride, body } => {
                self.repeat(*body, base, Axis { count: *count, stride: *stride }, sink)
            }
            Op::Blocks { len, disps } => self.blocks(op, base, disps, *len, sink),
            Op::List { disps, starts } => sink.list(base, disps, starts),
            Op::Affine { count, step, len, len_step } => {
                let lens = AffineLengths { len: *len, len_step: *len_step };
                sink.affine(base, *step, lens, *count)
            }
            Op::Each { disps, body } => {
                for disp in disps {
                    self.whole(*body, base.wrapping_add(*disp), sink)?;
                }
                Flow::Continue(())
            }
            Op::Seq { parts, .. } => {
                for part in parts {
                    self.whole(part.op, base.wrapping_add(part.disp), sink)?;
                }
                Flow::Continue(())
            }
        }
    }

    /// Successive blocks of the list that `op` is.
    fn blocks<S: Sink>(&self, op: OpId, base: i64, disps: &[i64], len: u64, sink: &mut S) -> Flow {
        match self.lines(op).and_then(|lines| lines.windows(disps, len)) {
            Some(windows) => sink.dense(base, disps, len, &windows),
            None => sink.blocks(base, disps, len),
        }
    }

    /// Whole iterations of a loop over `body`.
    fn repeat<S: Sink>(&self, body: OpId, mut base: i64, axis: Axis, sink: &mut S) -> Flow {
        match self.op(body) {
            Op::Run { len } => return sink.strided(base, axis.stride, *len, axis.count),
            Op::Loop { count, stride, body } => {
                if let Op::Run { len } = self.op(*body) {
                    let inner = Axis { count: *count, stride: *stride };
                    return sink.grid(base, axis, inner, *len);
                }
            }
            _ => {}
        }
        for _ in 0..axis.count {
            self.whole(body, base, sink)?;
            base = base.wrapping_add(axis.stride);
        }
        Flow::Continue(())
    }
}

fn walk_affine<S: Sink>(
    base: i64,
    axis: Axis,
    lens: AffineLengths,
    lo: u64,
    hi: u64,
    sink: &mut S,
) -> Flow {
    let find = |packed: u64| {
        // The last block that starts at or before `packed`; `before` grows with its argument.
        let (mut known, mut beyond) = (0, axis.count + 1);
        while beyond - known > 1 {
            let middle = known + (beyond - known) / 2;
            if lens.before(middle).is_some_and(|start| start <= packed) {
                known = middle;
            } else {
                beyond = middle;
            }
        }
        let start = lens.before(known).unwrap_or(0);
        Cut { index: known, byte: packed - start }
    };
    let (mut from, to) = (find(lo), find(hi));
    if from.index == to.index {
        let disp = axis.at(base, from.index).wrapping_add_unsigned(from.byte);
        return sink.run(disp, to.byte - from.byte);
    }
    if from.byte > 0 {
        let disp = axis.at(base, from.index).wrapping_add_unsigned(from.byte);
        sink.run(disp, lens.at(from.index) - from.byte)?;
        from.index += 1;
    }
    if from.index < to.index {
        let rest = AffineLengths { len: lens.at(from.index), ..lens };
        sink.affine(axis.at(base, from.index), axis.stride, rest, to.index - from.index)?;
    }
    if to.byte > 0 {
        sink.run(axis.at(base, to.index), to.byte)?;
    }
    Flow::Continue(())
}

/// The last entry that starts at or before packed byte `at`; starts ascend from 0.
fn entry(starts: &[u64], at: u64) -> usize {
    starts.partition_point(|&start| start <= at) - 1
}
