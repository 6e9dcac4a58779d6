//! Copies between two instances of one layout: every run has the same displacement on both sides. Where
//! runs overlap they overlap alike on both sides, so any order gives the same bytes, and grids are walked
//! along the grain of memory.

use super::method::{LONG, Method, Stores, sample};
use super::nontemporal::{CopyPiece, fence, run, runs_ahead};
use super::stream::is_short;
use super::{copy, shifted};
use crate::program::{AffineLengths, Axis, Flow, Sink};
use crate::run::in_memory;

/// Copies every run that it is handed from one origin to the other.
pub(crate) struct Mirror {
    from: *const u8,
    to: *mut u8,
    /// Whether long runs may go around the cache, as in `stream.rs`.
    large: bool,
    stores: Stores,
}

impl Mirror {
    /// Will copy `bytes` bytes altogether.
    ///
    /// # Safety
    ///
    /// Until this value is dropped: the bytes of every run that it is handed may be read relative to `from`
    /// and written relative to `to`, and nothing read is also written.
    pub(crate) unsafe fn new(method: Method, bytes: u64, from: *const u8, to: *mut u8) -> Mirror {
        Mirror { from, to, large: method.may_stream(bytes), stores: Stores::new(method) }
    }

    /// To be called before anyone is told of the bytes.
    pub(crate) fn finish(self) {
        if self.large {
            fence();
        }
    }

    /// Whether runs go around the cache, of which the longest has `len` bytes and the `i`th of `count` lies
    /// at `disp(i)`; each of those has `LONG` bytes.
    fn streams(&mut self, len: u64, count: u64, disp: impl Fn(u64) -> i64) -> bool {
        let to = self.to;
        let place = |i| shifted(to, disp(sample(i, count))).cast_const();
        self.large && len >= LONG && self.stores.stream(len.saturating_mul(count), place)
    }

    /// A long run, `far` ahead of another.
    fn long(&mut self, disp: i64, len: u64, far: i64) {
        let (from, to) = (shifted(self.from.cast_mut(), disp), shifted(self.to, disp));
        let piece = CopyPiece { from, to, len: in_memory(len) };
        // SAFETY: the processor is of its level; `new`'s caller promised it of this run.
        unsafe { run(self.stores.level(), piece, shifted(from, far)) };
    }
}

impl Sink for Mirror {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        let (from, to) = (shifted(self.from.cast_mut(), disp), shifted(self.to, disp));
        // SAFETY: `new`'s caller promised it of this run.
        unsafe { copy(from, to, in_memory(len)) };
        Flow::Continue(())
    }

    fn strided(&mut self, mut disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        if stride.cast_unsigned() == len {
            return self.run(disp, len * count);
        }
        if self.streams(len, count, |i| disp.wrapping_add(stride.wrapping_mul(i.cast_signed()))) {
            let far = stride.wrapping_mul(runs_ahead(in_memory(len)));
            for _ in 0..count {
                self.long(disp, len, far);
                disp = disp.wrapping_add(stride);
            }
            return Flow::Continue(());
        }
        for _ in 0..count {
            self.run(disp, len)?;
            disp = disp.wrapping_add(stride);
        }
        Flow::Continue(())
    }

    fn affine(&mut self, mut disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        // Only where all are long: triangles that end in a point stop short of it.
        let shortest = lens.len.min(lens.at(count - 1));
        let long = match (shortest >= LONG, lens.len_step) {
            (true, _) => count,
            (false, 0..) => 0,
            (false, shrinks) => {
                let most = lens.len.saturating_sub(LONG) / shrinks.unsigned_abs();
                if lens.len < LONG { 0 } else { most + 1 }
            }
        };
        let start = disp;
        let at = |i: u64| start.wrapping_add(step.wrapping_mul(i.cast_signed()));
        let streams = long > 0 && self.streams(lens.len.max(lens.at(long - 1)), long, at);
        for j in 0..count {
            if streams && j < long {
                self.long(disp, lens.at(j), step);
            } else {
                self.run(disp, lens.at(j))?;
            }
            disp = disp.wrapping_add(step);
        }
        Flow::Continue(())
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        let (count, bytes) = (disps.len() as u64, starts[disps.len()] - starts[0]);
        let at = |i: usize| base.wrapping_add(disps[i]);
        let len = |i: usize| starts[i + 1] - starts[i];
        let long = (0..disps.len()).find(|&i| len(i) >= LONG).filter(|_| !is_short(disps, starts));
        let streams = long.is_some_and(|some| {
            self.streams(bytes / count, count, |i| {
                let run = in_memory(i);
                at(if len(run) >= LONG { run } else { some })
            })
        });
        for i in 0..disps.len() {
            if streams && len(i) >= LONG {
                let next = if i + 1 < disps.len() { at(i + 1) } else { at(i) };
                self.long(at(i), len(i), next.wrapping_sub(at(i)));
            } else {
                self.run(at(i), len(i))?;
            }
        }
        Flow::Continue(())
    }

    fn grid(&mut self, mut disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        let with_the_grain = outer.stride.unsigned_abs() >= inner.stride.unsigned_abs();
        let (outer, inner) = if with_the_grain { (outer, inner) } else { (inner, outer) };
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }
}
