//! Operations on one contiguous span of a target that is mapped: what most are, and so the shortest way to do them.
//! Whatever is unusual, or wrong, takes the way of `operate.rs`, which has the reason. Calls whose names end in `_now`
//! say whether they have done all, or nothing. Some are inlined always: a call that saves registers would cost as much
//! as the rest.

use crate::arithmetic::{Quick, is_swapped, read, write};
use crate::exposure::Exposure;
use crate::header::{Lock, Stripes};
use crate::memory::change_number;
use crate::window::{Driver, Flavor, Member, Window};
use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;

/// Bytes of a target that is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'w> {
    rank: u32,
    exposure: &'w Exposure,
    offset: u64,
}

impl Window {
    /// The bytes that an operation on one contiguous span is about, which lies there as it lies here: checked as
    /// [`access`](Window::access) does, and more quickly. `None`: the target is not mapped, accumulations
    /// are tasks, or `access` has the reason.
    #[inline]
    pub(crate) fn span(
        &self,
        call: &'static str,
        (rank, displacement): (u32, u64),
        bytes: usize,
    ) -> Option<Span<'_>> {
        self.epochs.operate(call, rank).ok()?;
        let (member, exposure) = self.reached(rank)?;
        let offset = displacement.checked_mul(member.unit)?;
        let end = offset.checked_add(bytes as u64)?;
        (end <= member.bytes).then_some(Span { rank, exposure, offset })
    }

    /// [`lock`](Window::lock), if the rank is mapped and its lock is free. `false`: it takes another way, whatever the
    /// reason is. Nothing was done then.
    #[must_use]
    #[inline]
    pub fn lock_now<D: Driver>(&self, driver: &D, rank: u32, kind: Lock) -> bool {
        let member = self.members.get(rank as usize);
        let Some(exposure) = member.and_then(|member| member.mapped.as_ref()) else { return false };
        let mut epochs = self.epochs.open();
        if epochs.may_lock(rank).is_err() {
            return false;
        }
        self.say_mine(rank, true);
        if !exposure.header.try_lock(self.rank, kind, false, |_| false) {
            self.say_mine(rank, false);
            return false;
        }
        epochs.locked(rank, kind, true);
        drop(epochs);
        self.progress_now_and_then(driver, 1);
        true
    }

    /// [`unlock`](Window::unlock), if the rank is mapped and lives, and no device has work; as
    /// [`lock_now`](Window::lock_now).
    #[must_use]
    #[inline]
    pub fn unlock_now<D: Driver>(&self, driver: &D, rank: u32) -> bool {
        let Some(exposure) = self.ends_at_once(rank) else { return false };
        let mut epochs = self.epochs.open();
        let Some(held) = epochs.lock_of(rank, "unlock").ok().filter(|held| held.checked) else {
            return false;
        };
        exposure.header.unlock(self.rank, held.kind);
        self.say_mine(rank, false);
        epochs.unlocked(rank);
        drop(epochs);
        self.progress_now_and_then(driver, 1);
        true
    }

    /// [`flush`](Window::flush), if the rank is mapped and lives, and no device has work; as
    /// [`lock_now`](Window::lock_now).
    #[must_use]
    #[inline]
    pub fn flush_now<D: Driver>(&self, driver: &D, rank: u32) -> bool {
        if self.ends_at_once(rank).is_none() || self.epochs.may_flush(rank, "flush").is_err() {
            return false;
        }
        self.in_order(driver);
        true
    }

    /// A rank and its memory, if that is mapped; if accumulations are no tasks.
    #[inline]
    pub(crate) fn reached(&self, rank: u32) -> Option<(&Member, &Exposure)> {
        let member = self.members.get(rank as usize)?;
        let exposure = member.mapped.as_ref().filter(|_| self.tasks.is_none())?;
        Some((member, exposure))
    }

    /// The memory of a rank, if its operations end when their calls return: it is mapped and not known to be lost,
    /// accumulations are no tasks, and no flush has to wait for a transfer or tell of one.
    #[inline]
    fn ends_at_once(&self, rank: u32) -> Option<&Exposure> {
        let (member, exposure) = self.reached(rank)?;
        let osc = self.osc();
        let waits = osc.departed().is_lost(member.process) || osc.transfers().are_kept();
        (!waits).then_some(exposure)
    }

    /// [`put`](Window::put) of bytes to a displacement, as they lie here.
    #[must_use]
    #[inline(always)]
    pub fn put_now<D: Driver>(
        &self,
        driver: &D,
        call: &'static str,
        to: (u32, u64),
        bytes: &[u8],
    ) -> bool {
        let Some(span) = self.span(call, to, bytes.len()) else { return false };
        let stored = span.exposure.memory.store(span.offset, bytes).is_ok();
        self.progress_now_and_then(driver, Window::weight(bytes.len()));
        stored
    }

    /// [`get`](Window::get) of bytes from a displacement, as they lie there.
    #[must_use]
    #[inline(always)]
    pub fn get_now<D: Driver>(
        &self,
        driver: &D,
        call: &'static str,
        from: (u32, u64),
        into: &mut [u8],
    ) -> bool {
        let Some(span) = self.span(call, from, into.len()) else { return false };
        let loaded = span.exposure.memory.load(span.offset, into).is_ok();
        self.progress_now_and_then(driver, Window::weight(into.len()));
        loaded
    }

    /// [`accumulate`](Window::accumulate) of numbers to a displacement: one, or a sum of many.
    ///
    /// # Errors
    /// Whoever has a mutex that is needed is lost, and may live. In a box: then there is nothing to move if all is
    /// well.
    #[inline]
    pub fn accumulate_now<D: Driver>(
        &self,
        driver: &D,
        call: &'static str,
        to: (u32, u64),
        what: (Primitive, ReduceOp),
        bytes: &[u8],
    ) -> Result<bool, Box<D::Error>> {
        let Some(span) = self.span(call, to, bytes.len()) else { return Ok(false) };
        if bytes.len() <= 8 && self.change_span(driver, span, what, bytes).is_some() {
            return Ok(true);
        }
        self.add_span(driver, span, what, bytes)
    }

    /// One number at a displacement, combined with another, which is not looked at by `MPI_NO_OP`; `found` gets what
    /// was there (`MPI_Fetch_and_op`).
    #[must_use]
    #[inline(always)]
    pub fn fetch_now<D: Driver>(
        &self,
        driver: &D,
        call: &'static str,
        at: (u32, u64),
        what: (Primitive, ReduceOp),
        (bytes, found): (&[u8], &mut [u8]),
    ) -> bool {
        let Some(span) = self.span(call, at, found.len()) else { return false };
        let bytes = if what.1 == ReduceOp::NoOp { &*found } else { bytes };
        if bytes.len() != found.len() {
            return false;
        }
        let old = self.change_span(driver, span, what, bytes);
        old.map(|old| write(old, found)).is_some()
    }

    /// One integer, logical or byte at a displacement, replaced by `swap` if it is `compare`; `found` gets what was
    /// there (`MPI_Compare_and_swap`).
    #[must_use]
    #[inline]
    pub fn swap_now<D: Driver>(
        &self,
        driver: &D,
        at: (u32, u64),
        number: Primitive,
        (compare, swap, found): (&[u8], &[u8], &mut [u8]),
    ) -> bool {
        let width = compare.len();
        let is_number = matches!(width, 1 | 2 | 4 | 8) && is_swapped(number);
        if !is_number || swap.len() != width || found.len() != width {
            return false;
        }
        let Some(span) = self.span("compare_and_swap", at, width) else { return false };
        let swapped = |old| (old == read(compare)).then(|| read(swap));
        let old = self.change_one(driver, span, width, swapped);
        old.map(|old| write(old, found)).is_some()
    }

    /// Numbers of a span, to which others are added. `false`: it takes another way, whatever the reason is. Nothing was
    /// done then.
    ///
    /// # Errors
    /// As [`accumulate_now`](Window::accumulate_now).
    #[inline]
    pub(crate) fn add_span<D: Driver>(
        &self,
        driver: &D,
        span: Span<'_>,
        (number, op): (Primitive, ReduceOp),
        bytes: &[u8],
    ) -> Result<bool, Box<D::Error>> {
        let sum = Quick::of_number(op, number).and_then(|(quick, width)| quick.sum(width));
        let Some(sum) = sum.filter(|_| self.flavor != Flavor::Numbers) else { return Ok(false) };
        let width = sum.bytes();
        if !bytes.len().is_multiple_of(width)
            || span.exposure.memory.misalignment(span.offset, width as u64) != 0
        {
            return Ok(false);
        }
        self.add_to_span(driver, span.exposure, (span.rank, span.offset, sum), bytes)?;
        self.progress_now_and_then(driver, Window::weight(bytes.len()));
        Ok(true)
    }

    /// One number of a span, combined with another; gives what was there. `None`: it takes another way, whatever the
    /// reason is. Nothing was done then.
    #[inline]
    pub(crate) fn change_span<D: Driver>(
        &self,
        driver: &D,
        span: Span<'_>,
        (number, op): (Primitive, ReduceOp),
        bytes: &[u8],
    ) -> Option<u64> {
        let (quick, width) = Quick::of_number(op, number)?;
        if bytes.len() != width {
            return None;
        }
        self.change_one(driver, span, width, |old| quick.change(old, read(bytes)))
    }

    /// A number of so many bytes, which `change` may replace.
    #[inline]
    fn change_one<D: Driver>(
        &self,
        driver: &D,
        Span { exposure, offset, .. }: Span<'_>,
        width: usize,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<u64> {
        let memory = &exposure.memory;
        if self.flavor == Flavor::Numbers || memory.misalignment(offset, width as u64) != 0 {
            return None;
        }
        let stripes = Stripes::default().with(offset, width);
        if !exposure.header.try_stripes(self.rank, stripes, |_| false) {
            return None;
        }
        let found = change_number(memory, offset, width, change);
        exposure.header.release_stripes(self.rank, stripes);
        self.progress_now_and_then(driver, 1);
        found
    }
}
