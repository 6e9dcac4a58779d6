//! Operations on memory that is mapped, straight between it and the origin's memory: where both sides are equal runs at
//! equal distances, such as contiguous spans, rows and columns. Everything else is packed first, and takes the way of
//! `operate.rs`; so does what is wrong, for the reason.
//!
//! Units: bytes.

use crate::error::{Fault, WindowError};
use crate::exposure::Exposure;
use crate::header::Stripes;
use crate::memory::PART;
use crate::place::{Access, AccessKind, Place};
use crate::window::{Driver, Window};
use gapless_dtype::{Dim, Shape};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Number, Runs};

/// Bytes behind a stripe that are changed with it.
const MORE: usize = 28 << 10;
/// How far runs reach that are changed together: so few mutexes are enough.
const REACH: u64 = 32 << 10;

/// Equal runs at equal distances in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Where the first one begins in the region.
    pub(crate) first: u64,
    /// From one to the next.
    pub(crate) stride: i64,
    pub(crate) len: u64,
    pub(crate) count: u64,
}

impl Grid {
    /// `None`: it is empty, or not like that.
    pub(crate) fn of(typed: &Typed) -> Option<Grid> {
        let packed = typed.packed_bytes();
        if packed == 0 {
            return None;
        }
        if let Some(first) = typed.contiguous_start() {
            return Some(Grid { first, stride: 0, len: packed, count: 1 });
        }
        if typed.as_pages().is_some() {
            return None;
        }
        let (displacement, len, stride, count) = match (typed.layout().shape(), typed.count()) {
            (Shape::Contiguous { displacement, len }, count) => {
                (*displacement, *len, typed.layout().extent(), count)
            }
            (Shape::Strided { displacement, len, dims }, 1) => match dims[..] {
                [Dim { count, stride }] => (*displacement, *len, stride, count),
                _ => return None,
            },
            _ => return None,
        };
        let first = typed.origin().checked_add_signed(displacement)?;
        (len > 0 && len.checked_mul(count) == Some(packed)).then_some(Grid {
            first,
            stride,
            len,
            count,
        })
    }

    /// One run as shorter ones that follow each other.
    fn cut(self, len: u64) -> Option<Grid> {
        let stride = i64::try_from(len).ok()?;
        Some(Grid { first: self.first, stride, len, count: self.len / len })
    }

    /// The same bytes on both sides, in runs of the same length.
    fn alike(self, other: Grid) -> Option<(Grid, Grid)> {
        match (self, other) {
            (one, other) if one.len == other.len && one.count == other.count => Some((one, other)),
            (one, other) if one.count == 1 && one.len == other.len.checked_mul(other.count)? => {
                Some((one.cut(other.len)?, other))
            }
            (one, other) if other.count == 1 && other.len == one.len.checked_mul(one.count)? => {
                Some((one, other.cut(one.len)?))
            }
            _ => None,
        }
    }

    /// The runs, in memory of which the region begins at `start`.
    fn runs(self, start: u64) -> Option<Runs> {
        Some(Runs {
            offset: start.checked_add(self.first)?,
            stride: self.stride,
            len: usize::try_from(self.len).ok()?,
            count: usize::try_from(self.count).ok()?,
        })
    }
}

/// Both sides of an operation whose runs are loaded and stored directly.
struct DirectRuns<'w> {
    exposure: &'w Exposure,
    runs: Runs,
    /// Where the origin's first run begins, in memory that the processor reaches, and from one to the next.
    start: *mut u8,
    stride: isize,
}

impl Window {
    fn direct_runs(&self, access: &Access, origin: &Typed) -> Option<DirectRuns<'_>> {
        let (_, exposure) = self.reached(access.rank)?;
        let target = &access.target;
        let (ours, theirs) = Grid::of(origin)?.alike(Grid::of(target)?)?;
        let first = usize::try_from(ours.first).ok()?;
        Some(DirectRuns {
            exposure,
            runs: theirs.runs(target.region().offset())?,
            start: origin.region().as_ptr()?.wrapping_add(first),
            stride: isize::try_from(ours.stride).ok()?,
        })
    }

    /// [`put`](Window::put) of all that `origin` describes, as it lies there. `false`: it takes another way, and
    /// nothing was done.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads, and that nobody writes.
    ///
    /// # Errors
    /// As `put`.
    pub unsafe fn put_runs<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        origin: &Typed,
    ) -> Result<bool, WindowError> {
        let Some(DirectRuns { exposure, runs, start, stride }) = self.direct_runs(access, origin)
        else {
            // SAFETY: the caller's promise.
            return unsafe { self.transfer_now(driver, AccessKind::Write, (access, origin)) };
        };
        // SAFETY: the runs are those of `origin`, which lie inside its region: the caller's promise.
        let stored = unsafe { exposure.memory.store_runs(&runs, start, stride) };
        self.progress_now_and_then(driver, Window::weight(runs.bytes()));
        stored.map_err(|_| self.refused(access.rank, Fault::Outside))?;
        Ok(true)
    }

    /// [`get`](Window::get) of all that `origin` describes, to where it lies. `false`: it takes another way, and
    /// nothing was done.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads and writes, has no byte twice, and nobody
    /// else touches it.
    ///
    /// # Errors
    /// As `get`.
    pub unsafe fn get_runs<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        origin: &Typed,
    ) -> Result<bool, WindowError> {
        let Some(DirectRuns { exposure, runs, start, stride }) = self.direct_runs(access, origin)
        else {
            // SAFETY: the caller's promise.
            return unsafe { self.transfer_now(driver, AccessKind::Read, (access, origin)) };
        };
        // SAFETY: as in `put_runs`, to be written.
        let loaded = unsafe { exposure.memory.load_runs(&runs, start, stride) };
        self.progress_now_and_then(driver, Window::weight(runs.bytes()));
        loaded.map_err(|_| self.refused(access.rank, Fault::Outside))?;
        Ok(true)
    }

    /// [`accumulate`](Window::accumulate) of all that `origin` describes, as it lies there: sums alone, unless a device
    /// does it. `false`: it takes another way, and nothing was done.
    ///
    /// # Safety
    /// As [`put_runs`](Window::put_runs).
    ///
    /// # Errors
    /// As `accumulate`.
    pub unsafe fn accumulate_runs<D: Driver>(
        &self,
        driver: &D,
        (access, op): (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
    ) -> Result<bool, D::Error> {
        if access.packed_bytes() == 0 {
            return Ok(true);
        }
        let Some(direct) = self.direct_runs(access, origin) else {
            // SAFETY: the caller's promise.
            return unsafe { self.accumulate_typed(driver, (access, op), (origin, at)) };
        };
        let arithmetic = self.arithmetic(access, op, (origin, at))?;
        let (Some(number), None) = (arithmetic.sum(), self.key(access.rank)) else {
            return Ok(false);
        };
        let DirectRuns { exposure, runs, start, stride } = direct;
        if runs.len as u64 > PART {
            let (mut from, mut offset) = (start, runs.offset);
            for _ in 0..runs.count {
                // SAFETY: the run is one of `origin`: the caller's promise.
                let bytes = unsafe { std::slice::from_raw_parts(from, runs.len) };
                let place = (access.rank, offset, number);
                self.add_to_span(driver, exposure, place, bytes).map_err(|error| *error)?;
                from = from.wrapping_offset(stride);
                offset = offset.wrapping_add_signed(runs.stride);
            }
        } else {
            // SAFETY: the runs are those of `origin`, which lie inside its region: the caller's promise.
            unsafe { self.add_runs(driver, (access, exposure), (runs, number), (start, stride)) }?;
        }
        self.progress_now_and_then(driver, Window::weight(runs.bytes()));
        Ok(true)
    }

    /// Adds numbers to a contiguous span: of several stripes at once if all are free, as mutexes that are taken
    /// together cost less, else of one after the other.
    #[inline]
    pub(crate) fn add_to_span<D: Driver>(
        &self,
        driver: &D,
        exposure: &Exposure,
        (rank, mut offset, number): (u32, u64, Number),
        mut bytes: &[u8],
    ) -> Result<(), Box<D::Error>> {
        let width = number.bytes() as u64;
        while !bytes.is_empty() {
            let rest = Stripes::rest(offset).next_multiple_of(width);
            let one = usize::try_from(rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
            let mut len = bytes.len().min(one + MORE);
            // Checked before the mutexes are taken: what follows a locked instruction waits for it.
            let sums = exposure.memory.sums(offset, number, len);
            let refused = |_| D::Error::from(self.refused(rank, Fault::Outside));
            let sums = sums.map_err(refused)?;
            let mut stripes = Stripes::default().with(offset, len);
            if !exposure.header.try_stripes(self.rank, stripes, |_| false) {
                len = one;
                stripes = Stripes::default().with(offset, len);
                self.take_stripes(driver, &exposure.header, stripes)?;
            }
            let (now, later) = bytes.split_at(len);
            sums.add(now);
            exposure.header.release_stripes(self.rank, stripes);
            (offset, bytes) = (offset + len as u64, later);
        }
        Ok(())
    }

    /// Adds numbers to runs that are shorter than a part, some at a time; one at a time where others have a mutex of
    /// those: who waits for many, and keeps none, might wait for ever.
    ///
    /// # Safety
    /// As [`Atomics::add_runs`](gapless_mem::Atomics::add_runs).
    unsafe fn add_runs<D: Driver>(
        &self,
        driver: &D,
        (access, exposure): (&Access, &Exposure),
        (mut runs, number): (Runs, Number),
        (mut from, stride): (*mut u8, isize),
    ) -> Result<(), D::Error> {
        let most = usize::try_from(PART).map_or(1, |part| part / runs.len.max(1)).max(1);
        let reach = REACH / runs.stride.unsigned_abs().max(1);
        let most = usize::try_from(reach).map_or(most, |reach| reach.clamp(1, most));
        let mut left = runs.count;
        while left > 0 {
            runs.count = left.min(most);
            let mut stripes = stripes(&runs);
            if !exposure.header.try_stripes(self.rank, stripes, |_| false) {
                runs.count = 1;
                stripes = Stripes::default().with(runs.offset, runs.len);
                self.take_stripes(driver, &exposure.header, stripes)?;
            }
            left -= runs.count;
            // SAFETY: the caller's promise.
            let added = unsafe { exposure.memory.add_runs(&runs, number, from, stride) };
            exposure.header.release_stripes(self.rank, stripes);
            added.map_err(|_| self.refused(access.rank, Fault::Outside))?;
            runs.offset = runs.offset.wrapping_add_signed(runs.stride * runs.count as i64);
            from = from.wrapping_offset(stride * runs.count as isize);
        }
        Ok(())
    }
}

/// The stripes that runs lie in. If they are near to each other, also those between them.
fn stripes(runs: &Runs) -> Stripes {
    let near = Stripes::rest(0);
    let mut all = Stripes::default();
    if runs.stride.unsigned_abs() <= near {
        let far = runs.stride * (runs.count as i64 - 1);
        let low = runs.offset.saturating_add_signed(far.min(0));
        let len = usize::try_from(far.unsigned_abs()).unwrap_or(usize::MAX);
        return all.with(low, len.saturating_add(runs.len));
    }
    let mut offset = runs.offset;
    for _ in 0..runs.count {
        all = all.with(offset, runs.len);
        offset = offset.wrapping_add_signed(runs.stride);
    }
    all
}
