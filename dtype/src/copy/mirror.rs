//! Copies between two instances of one layout: every run has the same displacement on both sides. Where
//! runs overlap they overlap alike on both sides, so any order gives the same bytes, and grids are walked
//! along the grain of memory.

use super::{copy, shifted};
use crate::program::{Axis, Flow, Sink};
use crate::run::in_memory;

/// Copies every run that it is handed from one origin to the other.
pub(crate) struct Mirror {
    from: *const u8,
    to: *mut u8,
}

impl Mirror {
    /// # Safety
    ///
    /// Until this value is dropped: the bytes of every run that it is handed may be read relative to `from`
    /// and written relative to `to`, and nothing read is also written.
    pub(crate) unsafe fn new(from: *const u8, to: *mut u8) -> Mirror {
        Mirror { from, to }
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
        for _ in 0..count {
            self.run(disp, len)?;
            disp = disp.wrapping_add(stride);
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
