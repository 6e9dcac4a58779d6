//! Listing runs: a sink that writes them down, merged, until its list is full.

use crate::program::{Flow, Sink};
use crate::run::Run;

/// Writes runs to a list; stops at the first that neither fits nor continues the last one.
pub(super) struct Collector<'a> {
    runs: &'a mut [Run],
    used: usize,
    bytes: u64,
}

impl<'a> Collector<'a> {
    pub(super) fn new(runs: &'a mut [Run]) -> Collector<'a> {
        Collector { runs, used: 0, bytes: 0 }
    }

    /// Runs written, and their bytes.
    pub(super) fn taken(&self) -> (usize, u64) {
        (self.used, self.bytes)
    }

    /// How many more runs fit, of `wanted`.
    fn room(&self, wanted: u64) -> usize {
        let room = self.runs.len() - self.used;
        usize::try_from(wanted).map_or(room, |wanted| wanted.min(room))
    }
}

impl Sink for Collector<'_> {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        if let Some(last) = self.runs[..self.used].last_mut()
            && last.end() == disp
        {
            last.len += len;
        } else if let Some(next) = self.runs.get_mut(self.used) {
            *next = Run { displacement: disp, len };
            self.used += 1;
        } else {
            return Flow::Break(());
        }
        self.bytes += len;
        Flow::Continue(())
    }

    fn strided(&mut self, disp: i64, stride: i64, len: u64, count: u64) -> Flow {
        if stride.cast_unsigned() == len {
            return self.run(disp, len * count);
        }
        // Only the first can continue what came before.
        self.run(disp, len)?;
        let more = count - 1;
        let room = self.room(more);
        let mut at = disp;
        for next in &mut self.runs[self.used..self.used + room] {
            at = at.wrapping_add(stride);
            *next = Run { displacement: at, len };
        }
        self.used += room;
        self.bytes += len * room as u64;
        if more > room as u64 { Flow::Break(()) } else { Flow::Continue(()) }
    }
}
