//! Large copies around the cache: [`Gather`] packs, [`Scatter`] unpacks. When they are used, and what that
//! brings, is in `ways.rs`; how lines are stored in `nontemporal.rs`.

use super::nontemporal::{LINE, fence, run, runs_ahead};
use super::stage::Stage;
use super::ways::{LONG, Level, Stores, Ways, sample};
use super::{Copier, shifted, tile};
use crate::program::{AffineLengths, Axis, Flow, Sink};
use crate::run::in_memory;

/// Packs what a walk yields, every line of packed bytes stored once and as a whole. Short runs are
/// gathered in a buffer first.
pub(crate) struct Gather {
    user: *mut u8,
    stage: Stage,
    level: Level,
}

impl Gather {
    /// # Safety
    ///
    /// As [`Copier::new`], for packing.
    pub(crate) unsafe fn new(ways: Ways, user: *mut u8, packed: *mut u8) -> Gather {
        // SAFETY: every packed byte will be one of a run that is handed over; the caller's promise.
        let stage = unsafe { Stage::new(packed) };
        Gather { user, stage, level: ways.level.known() }
    }

    /// Stores what is left. To be called before anyone is told of the bytes.
    pub(crate) fn finish(mut self) {
        self.stage.finish();
    }

    fn at(&self, disp: i64) -> *mut u8 {
        shifted(self.user, disp)
    }

    /// Hands `count` runs of `len` bytes, short ones, to `copy` in batches that fit the buffer: the first of
    /// a batch, how many, and a copier that puts them there.
    fn batches(&mut self, len: u64, count: u64, mut copy: impl FnMut(u64, u64, &mut Copier<true>)) {
        let mut done = 0;
        while done < count {
            let (place, room) = self.stage.room(in_memory(len));
            let batch = (room as u64 / len).min(count - done);
            // SAFETY: `batch` runs of those that `new`'s caller promised, and a buffer with room for them.
            let mut copier = unsafe { Copier::<true>::new(Level::Baseline, self.user, place) };
            copy(done, batch, &mut copier);
            // SAFETY: the copier has written them.
            unsafe { self.stage.added(in_memory(batch * len)) };
            done += batch;
        }
    }

    /// One run, after which reading goes on at `far`.
    #[inline]
    fn one(&mut self, disp: i64, len: u64, far: i64) {
        if len >= LONG {
            let to = self.stage.settle();
            let (from, far) = (self.at(disp), self.at(far));
            // SAFETY: `new`'s caller promised it of this run.
            unsafe { run(from, to, in_memory(len), far) };
            self.stage.pass(in_memory(len));
        } else {
            self.batches(len, 1, |_, _, copier| {
                // A copier never stops a walk.
                let _ = copier.run(disp, len);
            });
        }
    }

    /// Long runs of one length.
    fn rows(&mut self, disp: i64, stride: i64, len: u64, count: u64) {
        let mut to = self.stage.settle();
        let (mut from, bytes) = (self.at(disp), in_memory(len));
        let mut left = count;
        #[cfg(target_arch = "x86_64")]
        if self.level >= Level::Avx2 && bytes.is_multiple_of(LINE) && to.addr().is_multiple_of(LINE)
        {
            use super::nontemporal::{ROWS, rows};
            while left >= ROWS {
                // SAFETY: the processor has AVX2; eight of the runs that `new`'s caller promised; whole lines.
                unsafe { rows(from, stride, to, bytes) };
                from = shifted(from, stride.wrapping_mul(ROWS.cast_signed()));
                to = to.wrapping_add(bytes * in_memory(ROWS));
                left -= ROWS;
            }
        }
        let ahead = stride.wrapping_mul(runs_ahead(bytes));
        for _ in 0..left {
            // SAFETY: `new`'s caller promised it of this run.
            unsafe { run(from, to, bytes, shifted(from, ahead)) };
            from = shifted(from, stride);
            to = to.wrapping_add(bytes);
        }
        self.stage.pass(in_memory(len * count));
    }
}

impl Sink for Gather {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        self.one(disp, len, disp.wrapping_add_unsigned(len));
        Flow::Continue(())
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        if len >= LONG {
            self.rows(disp, stride, len, count);
        } else {
            self.batches(len, count, |first, batch, copier| {
                let disp = disp.wrapping_add(stride.wrapping_mul(first.cast_signed()));
                let _ = copier.strided(disp, stride, len, batch);
            });
        }
        Flow::Continue(())
    }

    fn grid(&mut self, disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        if tile::pays(true, outer, inner, len) {
            let (user, to) = (self.at(disp), self.stage.settle());
            // SAFETY: `new`'s caller promised it of all runs of the grid; `pays` made sure that their order is
            // free.
            unsafe { tile::move_grid::<true, true>(self.level, user, to, outer, inner, len) };
            self.stage.pass(in_memory(len * inner.count * outer.count));
            return Flow::Continue(());
        }
        let mut disp = disp;
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }

    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        if len < LONG {
            self.batches(len, disps.len() as u64, |first, batch, copier| {
                let first = in_memory(first);
                let _ = copier.blocks(base, &disps[first..first + in_memory(batch)], len);
            });
            return Flow::Continue(());
        }
        for (i, disp) in disps.iter().enumerate() {
            let far = *disps.get(i + 1).unwrap_or(disp);
            self.one(base.wrapping_add(*disp), len, base.wrapping_add(far));
        }
        Flow::Continue(())
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        for (i, (disp, ends)) in disps.iter().zip(starts.windows(2)).enumerate() {
            let far = *disps.get(i + 1).unwrap_or(disp);
            self.one(base.wrapping_add(*disp), ends[1] - ends[0], base.wrapping_add(far));
        }
        Flow::Continue(())
    }

    fn affine(&mut self, mut disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        for j in 0..count {
            let next = disp.wrapping_add(step);
            self.one(disp, lens.at(j), next);
            disp = next;
        }
        Flow::Continue(())
    }
}

/// Unpacks what a walk yields: long runs and transposes around the cache, as far as they are not in it,
/// everything else as [`Copier`] does.
pub(crate) struct Scatter {
    copier: Copier<false>,
    stores: Stores,
}

impl Scatter {
    /// # Safety
    ///
    /// As [`Copier::new`], for unpacking.
    pub(crate) unsafe fn new(ways: Ways, user: *mut u8, packed: *mut u8) -> Scatter {
        // SAFETY: the caller's promise.
        let copier = unsafe { Copier::new(ways.level, user, packed) };
        Scatter { copier, stores: Stores::new(ways) }
    }

    /// To be called before anyone is told of the bytes.
    pub(crate) fn finish(self) {
        fence();
    }

    /// One run: around the cache if it is long enough.
    fn either(&mut self, disp: i64, len: u64) -> Flow {
        if len < LONG {
            return self.copier.run(disp, len);
        }
        self.long(disp, len);
        Flow::Continue(())
    }

    /// One long run.
    fn long(&mut self, disp: i64, len: u64) {
        let (to, from) = (self.copier.at(disp), self.copier.take(len));
        // SAFETY: `new`'s caller promised it of this run.
        unsafe { run(from, to, in_memory(len), from.wrapping_add(in_memory(len))) };
    }
}

impl Sink for Scatter {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        let to = self.copier.at(disp);
        let place = |i| to.cast_const().wrapping_add(in_memory(sample(i, len - LONG + 1)));
        if len >= LONG && self.stores.stream(len, place) {
            self.long(disp, len);
            return Flow::Continue(());
        }
        self.copier.run(disp, len)
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        let to = self.copier.at(disp);
        let step = |i| stride.wrapping_mul(sample(i, count).cast_signed());
        let place = |i| shifted(to, step(i)).cast_const();
        if len < LONG || !self.stores.stream(len * count, place) {
            return self.copier.strided(disp, stride, len, count);
        }
        let mut disp = disp;
        for _ in 0..count {
            self.long(disp, len);
            disp = disp.wrapping_add(stride);
        }
        Flow::Continue(())
    }

    fn grid(&mut self, disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        if tile::pays(false, outer, inner, len) {
            let bytes = len * inner.count * outer.count;
            let to = self.copier.at(disp);
            let step = |i| inner.stride.wrapping_mul(sample(i, inner.count).cast_signed());
            // Rows that are long enough to be asked are those of a transpose that is worth it.
            let place = |i| shifted(to, step(i)).cast_const();
            let dense = outer.stride == len.cast_signed() && outer.count * len >= LONG;
            if dense && self.stores.stream(bytes, place) {
                let from = self.copier.take(bytes);
                let level = self.stores.level().known();
                // SAFETY: `new`'s caller promised it of all runs of the grid; `pays` made sure that their
                // order is free.
                unsafe { tile::move_grid::<false, true>(level, to, from, outer, inner, len) };
                return Flow::Continue(());
            }
            return self.copier.grid(disp, outer, inner, len);
        }
        let mut disp = disp;
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }

    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        let (to, count) = (self.copier.at(base), disps.len() as u64);
        let place = |i| shifted(to, disps[in_memory(sample(i, count))]).cast_const();
        if len < LONG || !self.stores.stream(len * count, place) {
            return self.copier.blocks(base, disps, len);
        }
        for disp in disps {
            self.long(base.wrapping_add(*disp), len);
        }
        Flow::Continue(())
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        let (to, count) = (self.copier.at(base), disps.len() as u64);
        let long = |i: usize| starts[i + 1] - starts[i] >= LONG;
        let Some(some) = (0..disps.len()).find(|&i| long(i)) else {
            return self.copier.list(base, disps, starts);
        };
        let place = |i| {
            let i = in_memory(sample(i, count));
            shifted(to, disps[if long(i) { i } else { some }]).cast_const()
        };
        if !self.stores.stream(starts[disps.len()] - starts[0], place) {
            return self.copier.list(base, disps, starts);
        }
        for (disp, ends) in disps.iter().zip(starts.windows(2)) {
            self.either(base.wrapping_add(*disp), ends[1] - ends[0])?;
        }
        Flow::Continue(())
    }

    fn affine(&mut self, disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        let to = self.copier.at(disp);
        // Lengths rise or fall, so the longest is at one of the ends.
        let longest = if lens.len_step > 0 { count - 1 } else { 0 };
        let bytes = lens.before(count).unwrap_or(0);
        let place = |i| {
            let row = sample(i, count);
            let row = if lens.at(row) >= LONG { row } else { longest };
            shifted(to, step.wrapping_mul(row.cast_signed())).cast_const()
        };
        if lens.at(longest) < LONG || !self.stores.stream(bytes, place) {
            return self.copier.affine(disp, step, lens, count);
        }
        let mut disp = disp;
        for j in 0..count {
            self.either(disp, lens.at(j))?;
            disp = disp.wrapping_add(step);
        }
        Flow::Continue(())
    }
}
