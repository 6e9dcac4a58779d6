//! Large copies around the cache: [`Gather`] packs, [`Scatter`] unpacks. When they are used, and what that
//! brings, is in `method.rs`; how lines are stored in `nontemporal.rs`.

use super::apart::{Apart, TRIED, TRIES, Verdict};
use super::lines::{Dense, Records};
use super::method::{LONG, Level, Method, Stores, sample, ticks};
use super::nontemporal::{CopyPiece, PIECES, ask, fence, run, straight, together};
use super::trial::Trial;
use super::{Copier, shifted, tile};
use crate::program::{AffineLengths, Axis, Flow, Sink, Windows};
use crate::run::in_memory;

/// Equal runs from this length on are packed several at a time around the cache. Whether shorter ones are, is tried: a
/// block-cyclic matrix of 18 MiB, in runs of 512 bytes, is packed in 1.12 of the time so on a Xeon (Sapphire Rapids,
/// 480 MiB of last-level cache).
const SURE: u64 = 1 << 10;

thread_local! {
    static ROWS: Trial = const { Trial::new() };
}

/// Packs what a walk yields: long runs and transposes around the cache, everything else as [`Copier`] does.
///
/// Short runs were gathered in a buffer and left it as whole lines, once: on an idle machine that brought lists
/// of single doubles from 0.34 to 0.46 of `memcpy`, on a busy one it cost records a quarter and shuffled
/// lists more.
pub(crate) struct Gather {
    copier: Copier<true>,
    level: Level,
    /// Long runs that wait for others to be moved together with.
    waiting: [CopyPiece; PIECES],
    waits: usize,
    /// Whether they do.
    together: bool,
}

impl Gather {
    /// Will pack `bytes` bytes altogether.
    ///
    /// # Safety
    ///
    /// As [`Copier::new`], for packing.
    pub(crate) unsafe fn new(method: Method, bytes: u64, user: *mut u8, packed: *mut u8) -> Gather {
        // SAFETY: the caller's promise.
        let copier = unsafe { Copier::new(method.level, user, packed) };
        let none = CopyPiece { from: user, to: packed, len: 0 };
        let together = bytes >= method.together_min;
        let (level, waiting) = (method.level.known(), [none; PIECES]);
        Gather { copier, level, waiting, waits: 0, together }
    }

    /// Moves what still waits. To be called before anyone is told of the bytes.
    pub(crate) fn finish(self) {
        for piece in &self.waiting[..self.waits] {
            let far = piece.from.wrapping_add(piece.len);
            // SAFETY: the processor is of its level; `new`'s caller promised it of this run.
            unsafe { run(self.level, *piece, far) };
        }
        fence();
    }

    /// One run.
    #[inline]
    fn one(&mut self, disp: i64, len: u64) {
        if len < LONG {
            // A copier never stops a walk.
            let _ = self.copier.run(disp, len);
            return;
        }
        let (from, to) = (self.copier.at(disp), self.copier.take(len));
        let piece = CopyPiece { from, to, len: in_memory(len) };
        ask(&piece);
        self.waiting[self.waits] = piece;
        self.waits += 1;
        if self.waits == PIECES {
            // SAFETY: the processor is of its level; `new`'s caller promised it of these runs.
            unsafe { together(self.level, &self.waiting) };
            self.waits = 0;
        }
    }
}

impl Gather {
    /// Equal runs at one stride, around the cache.
    fn each(&mut self, mut disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        for _ in 0..count {
            self.one(disp, len);
            disp = disp.wrapping_add(stride);
        }
        Flow::Continue(())
    }
}

impl Sink for Gather {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        self.one(disp, len);
        Flow::Continue(())
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        if let Some(records) = Records::new(Axis { count, stride }, len) {
            let dense = records.at(self.copier.at(disp), self.copier.packed);
            // SAFETY: `new`'s caller promised it of these runs.
            if unsafe { dense.run::<true, true>(self.level) } {
                self.copier.take(len * count);
                return Flow::Continue(());
            }
        }
        if len < LONG || !self.together {
            return self.copier.strided(disp, stride, len, count);
        }
        if len >= SURE {
            return self.each(disp, stride, len, count);
        }
        ROWS.with(|trial| {
            trial.call(len * count, |around| match around {
                true => self.each(disp, stride, len, count),
                false => self.copier.strided(disp, stride, len, count),
            })
        })
    }

    fn grid(&mut self, mut disp: i64, outer: Axis, inner: Axis, len: u64) -> Flow {
        if tile::pays(true, outer, inner, len) {
            let (user, to) =
                (self.copier.at(disp), self.copier.take(len * inner.count * outer.count));
            // SAFETY: the processor is of its level; `new`'s caller promised it of all runs of the grid; `pays`
            // made sure that their order is free.
            unsafe { tile::move_grid::<true, true>(self.level, user, to, outer, inner, len) };
            return Flow::Continue(());
        }
        for _ in 0..outer.count {
            self.strided(disp, inner.stride, len, inner.count)?;
            disp = disp.wrapping_add(outer.stride);
        }
        Flow::Continue(())
    }

    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        if len < LONG {
            return self.copier.blocks(base, disps, len);
        }
        for disp in disps {
            self.one(base.wrapping_add(*disp), len);
        }
        Flow::Continue(())
    }

    fn dense(&mut self, base: i64, disps: &[i64], len: u64, windows: &Windows<'_>) -> Flow {
        let user = self.copier.at(base.wrapping_add(windows.disp));
        let dense = Dense::of(windows, user, self.copier.packed);
        // SAFETY: `new`'s caller promised it of these blocks.
        if unsafe { dense.run::<true, true>(self.level) } {
            self.copier.take(windows.bytes);
            return Flow::Continue(());
        }
        self.blocks(base, disps, len)
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        if is_short(disps, starts) {
            return self.copier.list(base, disps, starts);
        }
        for (disp, ends) in disps.iter().zip(starts.windows(2)) {
            self.one(base.wrapping_add(*disp), ends[1] - ends[0]);
        }
        Flow::Continue(())
    }

    fn affine(&mut self, disp: i64, step: i64, lens: AffineLengths, count: u64) -> Flow {
        if !self.together {
            return self.copier.affine(disp, step, lens, count);
        }
        let mut disp = disp;
        for j in 0..count {
            self.one(disp, lens.at(j));
            disp = disp.wrapping_add(step);
        }
        Flow::Continue(())
    }
}

/// Whether most of a list are short runs: then the few long ones are moved like the others.
pub(super) fn is_short(disps: &[i64], starts: &[u64]) -> bool {
    starts[disps.len()] - starts[0] < LONG * disps.len() as u64
}

/// Unpacks what a walk yields: long runs and transposes around the cache, as far as they are not in it,
/// everything else as [`Copier`] does.
pub(crate) struct Scatter {
    copier: Copier<false>,
    stores: Stores,
    level: Level,
    /// Whether this is a large copy of its own; of a part of one, only long runs go around the cache.
    whole: bool,
}

/// A run is asked from this length on where it is the first of a part: shorter ones have fewer lines than it takes.
const ASKED_MIN: u64 = 8 << 10;

impl Scatter {
    /// Will unpack a large copy.
    ///
    /// # Safety
    ///
    /// As [`Copier::new`], for unpacking.
    pub(crate) unsafe fn new(method: Method, user: *mut u8, packed: *mut u8) -> Scatter {
        // SAFETY: the caller's promise.
        let copier = unsafe { Copier::new(method.level, user, packed) };
        let stores = Stores::new(method);
        Scatter { copier, level: stores.level(), stores, whole: true }
    }

    /// Will unpack a part of a large copy, of which this is known already.
    ///
    /// # Safety
    ///
    /// As [`Copier::new`], for unpacking.
    pub(crate) unsafe fn part(
        method: Method,
        known: Option<bool>,
        user: *mut u8,
        packed: *mut u8,
    ) -> Scatter {
        // SAFETY: the caller's promise.
        let scatter = unsafe { Scatter::new(method, user, packed) };
        Scatter { stores: scatter.stores.with(known), whole: false, ..scatter }
    }

    /// To be called before anyone is told of the bytes. Gives whether they went around the cache, as far as that was
    /// asked.
    pub(crate) fn finish(self) -> Option<bool> {
        fence();
        self.stores.known()
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
        let piece = CopyPiece { from, to, len: in_memory(len) };
        // SAFETY: the processor is of its level; `new`'s caller promised it of this run.
        unsafe { straight(self.level, piece) };
    }
}

/// Where the `i`th place that is asked lies in its run, with [`LONG`] bytes behind it if the run has as many: several
/// places may lie in one run.
fn within(i: u64, len: u64) -> usize {
    in_memory(sample(i, len.saturating_sub(LONG) + 1))
}

impl Scatter {
    /// Words far apart that are not in cache.
    fn words(&mut self, apart: Apart, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        let trial = TRIED * 2 * TRIES as u64;
        let verdict = if self.stores.asks() { Verdict::now() } else { Verdict::Pays };
        match verdict {
            Verdict::Pays => {
                let (to, from) = (self.copier.at(disp), self.copier.take(len * count));
                // SAFETY: `new`'s caller promised it of these runs.
                unsafe { apart.run(to, from) };
                Flow::Continue(())
            }
            Verdict::Open if count >= trial => {
                let (mut around, mut through) = ([0; TRIES], [0; TRIES]);
                let mut disp = disp;
                for (around, through) in around.iter_mut().zip(&mut through) {
                    let before = ticks();
                    let (to, from) = (self.copier.at(disp), self.copier.take(len * TRIED));
                    // SAFETY: `new`'s caller promised it of these runs.
                    unsafe { apart.first(TRIED).run(to, from) };
                    fence();
                    disp = disp.wrapping_add(stride.wrapping_mul(TRIED.cast_signed()));
                    let between = ticks();
                    self.copier.strided(disp, stride, len, TRIED)?;
                    disp = disp.wrapping_add(stride.wrapping_mul(TRIED.cast_signed()));
                    (*around, *through) =
                        (between.wrapping_sub(before), ticks().wrapping_sub(between));
                }
                Verdict::of(around, through).settle();
                self.strided(disp, stride, len, count - trial)
            }
            Verdict::Open | Verdict::Costs => self.copier.strided(disp, stride, len, count),
        }
    }
}

impl Sink for Scatter {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        let to = self.copier.at(disp);
        let place = |i| to.cast_const().wrapping_add(within(i, len));
        let asked = self.whole || len >= ASKED_MIN || self.stores.known().is_some();
        if len >= LONG && asked && self.stores.stream(len, place) {
            self.long(disp, len);
            return Flow::Continue(());
        }
        self.copier.run(disp, len)
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        let to = self.copier.at(disp);
        let step = |i| stride.wrapping_mul(sample(i, count).cast_signed());
        let place = |i| shifted(to, step(i)).wrapping_add(within(i, len)).cast_const();
        if let Some(apart) = Apart::new(to, stride, len, count)
            && self.whole
            && self.stores.stream_words(len * count, place)
        {
            return self.words(apart, disp, stride, len, count);
        }
        if len < LONG || !self.stores.stream(len * count, place) {
            return self.copier.strided(disp, stride, len, count);
        }
        let mut disp = disp;
        for _ in 0..count {
            self.either(disp, len)?;
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
            if dense && self.whole && self.stores.stream(bytes, place) {
                let from = self.copier.take(bytes);
                let level = self.level;
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

    fn dense(&mut self, base: i64, disps: &[i64], len: u64, windows: &Windows<'_>) -> Flow {
        self.copier.dense(base, disps, len, windows)
    }

    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) -> Flow {
        let (to, count) = (self.copier.at(base), disps.len() as u64);
        let block = |i| shifted(to, disps[in_memory(sample(i, count))]);
        let place = |i| block(i).wrapping_add(within(i, len)).cast_const();
        if len < LONG || !self.stores.stream(len * count, place) {
            return self.copier.blocks(base, disps, len);
        }
        for disp in disps {
            self.either(base.wrapping_add(*disp), len)?;
        }
        Flow::Continue(())
    }

    fn list(&mut self, base: i64, disps: &[i64], starts: &[u64]) -> Flow {
        let (to, count) = (self.copier.at(base), disps.len() as u64);
        let long = |i: usize| starts[i + 1] - starts[i] >= LONG;
        let some = (0..disps.len()).find(|&i| long(i)).filter(|_| !is_short(disps, starts));
        let Some(some) = some else {
            return self.copier.list(base, disps, starts);
        };
        let place = |i| {
            let run = in_memory(sample(i, count));
            let run = if long(run) { run } else { some };
            let len = starts[run + 1] - starts[run];
            shifted(to, disps[run]).wrapping_add(within(i, len)).cast_const()
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
            let start = shifted(to, step.wrapping_mul(row.cast_signed()));
            start.wrapping_add(within(i, lens.at(row))).cast_const()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Both kinds of stores move a part of the runs each, then one of them the rest.
    #[test]
    fn a_trial_moves_what_it_times() {
        const STRIDE: usize = 1024;
        let runs = 2 * TRIES * in_memory(TRIED) + 300;
        let packed: Vec<u8> = (0..251).cycle().take(8 * runs).collect();
        let mut user = vec![[0u64; STRIDE / 8]; runs];
        let to = user.as_mut_ptr().cast::<u8>();
        Verdict::Open.settle();
        // SAFETY: all runs lie in `user`, their bytes in `packed`, which is only read.
        let mut scatter = unsafe { Scatter::new(Method::BEST, to, packed.as_ptr().cast_mut()) };
        let apart = Apart::new(to, STRIDE as i64, 8, runs as u64).expect("far apart");
        assert!(scatter.words(apart, 0, STRIDE as i64, 8, runs as u64).is_continue());
        scatter.finish();
        if cfg!(target_arch = "x86_64") {
            assert_ne!(Verdict::now(), Verdict::Open);
        }
        for (row, bytes) in user.iter().zip(packed.chunks_exact(8)) {
            assert_eq!(row[0].to_ne_bytes(), bytes);
            assert!(row[1..].iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn the_quickest_tries_decide() {
        assert_eq!(Verdict::of([9, 9, 2, 9], [3, 3, 3, 3]), Verdict::Pays);
        assert_eq!(Verdict::of([9, 9, 4, 9], [80, 3, 80, 80]), Verdict::Costs);
    }
}
