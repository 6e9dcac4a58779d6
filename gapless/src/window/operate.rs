//! Operations.

use super::Window;
use crate::error::Error;
use crate::raw::At;
use crate::view::{Plain, PlainMut, RecvBuffer, SendBuffer, View, ViewMut};
use gapless_dtype::AnyBits;
use gapless_engine::{ReduceOp, Typed};
use gapless_osc::{
    Access, AccessKind, Place, ReadEnds, WindowCall, WindowError, check_elements, contiguous_span,
    contiguous_span_mut, operand, takes,
};

impl<T: AnyBits, M> Window<T, M> {
    pub(super) fn access(
        &self,
        call: &'static str,
        (rank, at): (u32, &Place),
        typed: &Typed,
        way: AccessKind,
    ) -> Result<Access, Error> {
        check_elements::<T>(call, typed, at)?;
        Ok(self.inner().access(call, (rank, at), typed, way)?)
    }

    /// Writes to the memory of a rank (`MPI_Put`, MPI 4.1 §12.3.1). `at` is a displacement, where the data is to lie as it
    /// lies here, and has the window's elements; or a [`Place::typed`] of any layout that has the elements of the data.
    /// Bytes (`u8`) stand for any elements, at either end.
    ///
    /// # Errors
    /// No epoch gives access to the rank; bytes outside its window; other elements; a layout with some byte twice;
    /// the rank is lost.
    #[inline]
    pub fn put<'v>(
        &self,
        data: impl SendBuffer<'v>,
        rank: u32,
        at: impl Into<Place>,
    ) -> Result<(), Error> {
        let (at, began) = (at.into(), self.began());
        if let Some(plain) = data.as_plain()
            && takes::<T>(plain.element())
            && let Some(displacement) = at.plain()
            && self.inner().put_now(self.shared(), "put", (rank, displacement), plain.bytes())
        {
            self.note(WindowCall::Put, plain.bytes().len() as u64, began);
            return Ok(());
        }
        let view = data.into_view();
        // SAFETY: `view` borrows its memory for reading until this returns.
        let put = unsafe { self.put_typed("put", &view.typed, (rank, &at), None) };
        self.note(WindowCall::Put, view.packed_bytes(), began);
        put
    }

    /// # Safety
    /// During the call, `typed` describes memory that is valid for reads, and that nobody writes.
    pub(super) unsafe fn put_typed(
        &self,
        call: &'static str,
        typed: &Typed,
        (rank, at): (u32, &Place),
        notice: Option<u32>,
    ) -> Result<(), Error> {
        check_elements::<T>(call, typed, at)?;
        let at = At::from((rank, at)).notified(notice);
        // SAFETY: the caller's promise.
        unsafe { self.raw.put_at(call, typed, at) }
    }

    /// Reads the memory of a rank (`MPI_Get`, MPI 4.1 §12.3.2); `at` as for [`put`](Window::put). Waits for the data; to
    /// have several reads under way, use [`rget`](Window::rget).
    ///
    /// # Errors
    /// As [`put`](Window::put); a view that has a byte twice.
    #[inline]
    pub fn get<'v>(
        &self,
        into: impl RecvBuffer<'v>,
        rank: u32,
        at: impl Into<Place>,
    ) -> Result<(), Error> {
        let (mut into, at, began) = (into, at.into(), self.began());
        if let Some(plain) = into.as_plain()
            && takes::<T>(plain.element())
            && let Some(displacement) = at.plain()
        {
            let bytes = plain.into_bytes();
            if self.inner().get_now(self.shared(), "get", (rank, displacement), bytes) {
                self.note(WindowCall::Get, bytes.len() as u64, began);
                return Ok(());
            }
        }
        let mut view = into.into_view();
        let got = self.get_view("get", &mut view, (rank, &at), None);
        self.note(WindowCall::Get, view.packed_bytes(), began);
        got
    }

    pub(super) fn get_view(
        &self,
        call: &'static str,
        view: &mut ViewMut<'_>,
        (rank, at): (u32, &Place),
        notice: Option<u32>,
    ) -> Result<(), Error> {
        check_elements::<T>(call, &view.typed, at)?;
        let (at, ends) = (At::from((rank, at)).notified(notice), ReadEnds::Now);
        // SAFETY: `view` borrows its memory exclusively until this returns.
        unsafe { self.raw.get_at(call, &view.typed, at, ends) }.map(drop)
    }

    /// Combines elements of a rank's memory with `data`, each atomically (`MPI_Accumulate`, MPI 4.1 §12.3.4):
    /// `target = target op data`. All are of one basic type. [`ReduceOp::Replace`] is an atomic put.
    ///
    /// Accumulations of one rank on another happen in the order of the calls. Several ranks may use different operations
    /// on the same elements: each is atomic (MPI's `accumulate_ops` and `same_op` make no difference).
    ///
    /// # Errors
    /// As [`put`](Window::put); elements of several types, or for which the operation is not defined; numbers that do not
    /// lie at multiples of their length ([`WindowError::Misaligned`]).
    #[inline]
    pub fn accumulate<'v>(
        &self,
        data: impl SendBuffer<'v>,
        rank: u32,
        at: impl Into<Place>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (at, began) = (at.into(), self.began());
        if let Some(plain) = data.as_plain()
            && takes::<T>(plain.element())
            && let Some(displacement) = at.plain()
            && let (to, what) = ((rank, displacement), (plain.element(), op))
            && let added =
                self.inner().accumulate_now(self.shared(), "accumulate", to, what, plain.bytes())
            && added.map_err(|error| *error)?
        {
            self.note(WindowCall::Accumulate, plain.bytes().len() as u64, began);
            return Ok(());
        }
        let view = data.into_view();
        // SAFETY: `view` borrows its memory for reading until this returns.
        let done = unsafe { self.accumulate_typed(&view.typed, (rank, &at), op) };
        self.note(WindowCall::Accumulate, view.packed_bytes(), began);
        done
    }

    /// # Safety
    /// As [`put_typed`](Window::put_typed).
    pub(super) unsafe fn accumulate_typed(
        &self,
        typed: &Typed,
        (rank, at): (u32, &Place),
        op: ReduceOp,
    ) -> Result<(), Error> {
        check_elements::<T>("accumulate", typed, at)?;
        // SAFETY: the caller's promise.
        unsafe { self.raw.accumulate_at(typed, (rank, at).into(), op) }
    }

    /// As [`accumulate`](Window::accumulate), and `found` gets what was there before (`MPI_Get_accumulate`). With
    /// [`ReduceOp::NoOp`] it is an atomic get: `data` is ignored (MPI 4.1 §12.3.4), and may be `&[0u8; 0]`.
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate); `found` has other elements than `data`.
    pub fn get_accumulate<'v, 'w>(
        &self,
        data: impl SendBuffer<'v>,
        found: impl RecvBuffer<'w>,
        rank: u32,
        at: impl Into<Place>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (view, found, at) = (data.into_view(), found.into_view(), at.into());
        let began = self.began();
        let done = self.get_accumulate_views("get_accumulate", (&view, &found), (rank, &at), op);
        self.note(WindowCall::GetAccumulate, view.packed_bytes(), began);
        done
    }

    fn get_accumulate_views(
        &self,
        call: &'static str,
        (view, found): (&View<'_>, &ViewMut<'_>),
        (rank, at): (u32, &Place),
        op: ReduceOp,
    ) -> Result<(), Error> {
        let given = operand(op, Some(&view.typed), &found.typed)?;
        check_elements::<T>(call, given, at)?;
        let (both, at, how) = ((given, &found.typed), (rank, at).into(), (op, ReadEnds::Now));
        // SAFETY: `view` borrows its memory for reading until this returns, and `found` exclusively.
        unsafe { self.raw.get_accumulate_at(call, both, at, how) }.map(drop)
    }

    /// One element: combined with `value`; gives what was there before (`MPI_Fetch_and_op`). `U` is the window's element or
    /// a basic type of it, if `at` does not say otherwise; displacements are in the window's elements.
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate).
    #[inline]
    pub fn fetch_and_op<U: AnyBits + Copy>(
        &self,
        value: U,
        rank: u32,
        at: impl Into<Place>,
        op: ReduceOp,
    ) -> Result<U, Error> {
        let (mut found, at, began) = (value, at.into(), self.began());
        if let (Some(plain), Some(room), Some(displacement)) =
            (Plain::of(&value), PlainMut::of(&mut found), at.plain())
            && takes::<T>(plain.element())
            && let (to, what) = ((rank, displacement), (plain.element(), op))
            && let both = (plain.bytes(), room.into_bytes())
            && self.inner().fetch_now(self.shared(), "fetch_and_op", to, what, both)
        {
            self.note(WindowCall::FetchAndOp, plain.bytes().len() as u64, began);
            return Ok(found);
        }
        let given = View::of(std::slice::from_ref(&value));
        let into = ViewMut::of(std::slice::from_mut(&mut found));
        self.get_accumulate_views("fetch_and_op", (&given, &into), (rank, &at), op)?;
        self.note(WindowCall::FetchAndOp, given.packed_bytes(), began);
        Ok(found)
    }

    /// Replaces an element by `swap` if it is `compare`, bit by bit; gives what was there before
    /// (`MPI_Compare_and_swap`). `U` is an integer.
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate); `U` is no integer, logical or byte.
    #[inline]
    pub fn compare_and_swap<U: AnyBits + Copy>(
        &self,
        compare: U,
        swap: U,
        rank: u32,
        at: impl Into<Place>,
    ) -> Result<U, Error> {
        let (mut found, at, began) = (compare, at.into(), self.began());
        if let (Some(expected), Some(new), Some(room), Some(displacement)) =
            (Plain::of(&compare), Plain::of(&swap), PlainMut::of(&mut found), at.plain())
            && let element = expected.element()
            && takes::<T>(element)
            && let all = (expected.bytes(), new.bytes(), room.into_bytes())
            && self.inner().swap_now(self.shared(), (rank, displacement), element, all)
        {
            self.note(WindowCall::CompareAndSwap, new.bytes().len() as u64, began);
            return Ok(found);
        }
        let why = || "compare_and_swap takes one integer".to_owned();
        let primitive = U::BASIC.ok_or_else(|| WindowError::Mismatch { why: why() })?;
        let views = [&compare, &swap].map(|one| View::of(std::slice::from_ref(one)));
        let into = ViewMut::of(std::slice::from_mut(&mut found));
        // SAFETY: `compare` is borrowed for reading.
        let compare = unsafe { contiguous_span(&views[0].typed) };
        // SAFETY: `swap` is.
        let swap = unsafe { contiguous_span(&views[1].typed) };
        // SAFETY: `found` is borrowed exclusively.
        let room = unsafe { contiguous_span_mut(&into.typed) };
        let all = compare.zip(swap).zip(room);
        let ((compare, swap), room) = all.ok_or_else(|| WindowError::Mismatch { why: why() })?;
        let access =
            self.access("compare_and_swap", (rank, &at), &views[0].typed, AccessKind::Change)?;
        self.inner().compare_and_swap(self.shared(), &access, primitive, (compare, swap, room))?;
        self.note(WindowCall::CompareAndSwap, swap.len() as u64, began);
        Ok(found)
    }
}
