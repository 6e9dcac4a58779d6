//! Operations (MPI 4.1 §12.3).

use super::Window;
use crate::error::Error;
use crate::raw::request::{Request, Work};
use gapless_dtype::{Layout, Primitive};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Region, Space};
use gapless_osc::{
    AccessKind, Flavor, PendingRead, Place, ReadEnds, WindowCall, WindowError, contiguous_span,
    contiguous_span_mut, given, plain_displacement,
};
use gapless_pml::{Pml, Protocol, Status};
use std::sync::{Arc, OnceLock};

/// What lies at a target: so many instances of a layout.
type Target<'t> = (&'t Layout, u64);

/// A read of which a request tells.
#[derive(Debug)]
struct RequestedRead {
    read: PendingRead,
    bytes: u64,
    ended: OnceLock<Result<(), WindowError>>,
}

impl Work for RequestedRead {
    fn advance(&self, _: &mut Pml) -> bool {
        let Some(ended) = self.read.test() else { return false };
        // Only what came first is told.
        let _ = self.ended.set(ended);
        true
    }

    fn finish(&self) -> Result<Status, Error> {
        match self.ended.get() {
            Some(Err(error)) => Err(error.clone().into()),
            _ => Ok(status(self.bytes)),
        }
    }
}

/// Of an operation on a window (MPI 4.1 §12.3.5): nobody sent anything.
fn status(bytes: u64) -> Status {
    Status { source: 0, tag: 0, bytes, protocol: Protocol::Eager }
}

impl Window {
    /// Where at the target: laid out as at the origin, if it says so by the same layout.
    #[inline]
    fn place(&self, origin: &Typed, displacement: i64, (layout, count): Target<'_>) -> Place {
        let displacement = self.displacement(displacement);
        match origin.layout().id() == layout.id() && origin.count() == count {
            true => Place::at(displacement),
            false => Place::typed(displacement, layout, count),
        }
    }

    /// Addresses have all bits. A displacement that is negative lies in no window (MPI 4.1 §12.3.1).
    #[inline]
    fn displacement(&self, displacement: i64) -> u64 {
        match self.inner.flavor() {
            Flavor::Dynamic => displacement.cast_unsigned(),
            _ => u64::try_from(displacement).unwrap_or(u64::MAX),
        }
    }

    /// Writes to the memory of a rank (`MPI_Put`, MPI 4.1 §12.3.1): `target` instances at `displacement`, which have the
    /// elements of `origin`. `origin` may be changed again when this returns.
    ///
    /// # Errors
    /// No epoch gives access to the rank; bytes outside its window; other elements; a target with some byte twice; the rank
    /// is lost.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads, and that nobody writes.
    #[inline]
    pub unsafe fn put(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
    ) -> Result<(), Error> {
        let (at, began) = (self.place(origin, displacement, target), self.began());
        // SAFETY: the caller's promise.
        let done = unsafe { self.put_at("put", origin, (rank, &at)) };
        self.note(WindowCall::Put, origin.packed_bytes(), began);
        done
    }

    /// # Safety
    /// As [`put`](Window::put).
    #[inline]
    pub(crate) unsafe fn put_at(
        &self,
        call: &'static str,
        origin: &Typed,
        (rank, at): (u32, &Place),
    ) -> Result<(), Error> {
        if let Some(displacement) = plain_displacement(origin, at)
            // SAFETY: the caller's promise.
            && let Some(bytes) = unsafe { contiguous_span(origin) }
            && let Some(span) = self.inner.span(call, (rank, displacement), bytes.len())
            && self.inner.put_span(self.shared(), span, bytes)
        {
            return Ok(());
        }
        let access = self.inner.access(call, (rank, at), origin, AccessKind::Write)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.put_all(self.shared(), &access, origin) }
    }

    /// Reads the memory of a rank (`MPI_Get`, MPI 4.1 §12.3.2): `target` instances at `displacement`, which have the elements
    /// of `into`. They are there after [`flush_local`](Window::flush_local), [`flush`](Window::flush) or the end of the epoch;
    /// what the target refuses is told there.
    ///
    /// # Errors
    /// As [`put`](Window::put); `into` has some byte twice.
    ///
    /// # Safety
    /// Until such a call has returned, also with an error, or the window was dropped, `into` describes memory that is valid
    /// for reads and writes, and that nobody else touches.
    #[inline]
    pub unsafe fn get(
        &self,
        into: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
    ) -> Result<(), Error> {
        let (at, began) = (self.place(into, displacement, target), self.began());
        // SAFETY: the caller's promise.
        let done = match unsafe { self.get_now("get", into, (rank, &at)) } {
            true => Ok(()),
            // SAFETY: the caller's promise.
            false => unsafe { self.get_later(into, (rank, &at)) },
        };
        self.note(WindowCall::Get, into.packed_bytes(), began);
        done
    }

    /// One span, from memory that is mapped. `false`: it takes another way, or is refused.
    ///
    /// # Safety
    /// As [`get`](Window::get), during the call.
    #[inline]
    pub(crate) unsafe fn get_now(
        &self,
        call: &'static str,
        into: &Typed,
        (rank, at): (u32, &Place),
    ) -> bool {
        let Some(displacement) = plain_displacement(into, at) else { return false };
        // SAFETY: the caller's promise.
        let Some(bytes) = (unsafe { contiguous_span_mut(into) }) else { return false };
        let span = self.inner.span(call, (rank, displacement), bytes.len());
        span.is_some_and(|span| self.inner.get_span(self.shared(), span, bytes))
    }

    /// # Safety
    /// As [`get`](Window::get).
    unsafe fn get_later(&self, into: &Typed, (rank, at): (u32, &Place)) -> Result<(), Error> {
        let access = self.inner.access("get", (rank, at), into, AccessKind::Read)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.get_all(self.shared(), &access, (into, ReadEnds::Later)) }.map(drop)
    }

    /// Combines elements of a rank's memory with those of `origin`, each atomically (`MPI_Accumulate`, MPI 4.1 §12.3.4):
    /// `target = target op origin`. All are of one basic type. `origin` may be changed again when this returns.
    ///
    /// # Errors
    /// As [`put`](Window::put); elements of several types, or for which the operation is not defined; numbers that do not
    /// lie at multiples of their length ([`WindowError::Misaligned`]).
    ///
    /// # Safety
    /// As [`put`](Window::put).
    pub unsafe fn accumulate(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (at, began) = (self.place(origin, displacement, target), self.began());
        // SAFETY: the caller's promise.
        let done = unsafe { self.accumulate_at(origin, (rank, &at), op) };
        self.note(WindowCall::Accumulate, origin.packed_bytes(), began);
        done
    }

    /// # Safety
    /// As [`put`](Window::put).
    pub(crate) unsafe fn accumulate_at(
        &self,
        origin: &Typed,
        (rank, at): (u32, &Place),
        op: ReduceOp,
    ) -> Result<(), Error> {
        let uniform = || origin.own_layout()?.signature().uniform();
        if let Some(displacement) = plain_displacement(origin, at)
            && let Some(element) = uniform()
            // SAFETY: the caller's promise.
            && let Some(bytes) = unsafe { contiguous_span(origin) }
            && self.add_span((bytes, element, op), (rank, displacement)).map_err(|why| *why)?
        {
            return Ok(());
        }
        let access = self.inner.access("accumulate", (rank, at), origin, AccessKind::Change)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.accumulate_all(self.shared(), (&access, op), (origin, at)) }
    }

    /// Numbers in memory that is mapped, which are combined with others. `false`: they take another way, or are refused.
    #[inline]
    fn add_span(
        &self,
        (bytes, element, op): (&[u8], Primitive, ReduceOp),
        at: (u32, u64),
    ) -> Result<bool, Box<Error>> {
        let Some(span) = self.inner.span("accumulate", at, bytes.len()) else { return Ok(false) };
        if bytes.len() <= 8
            && self.inner.change_span(self.shared(), span, (element, op), bytes).is_some()
        {
            return Ok(true);
        }
        self.inner.add_span(self.shared(), span, (element, op), bytes)
    }

    /// As [`accumulate`](Window::accumulate), and `result` gets what was there before (`MPI_Get_accumulate`), as late as by
    /// [`get`](Window::get). With [`ReduceOp::NoOp`] it is an atomic get, and `origin` is not looked at; `None` is enough.
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate); `result` has other elements than `origin`, or some byte twice; there is no
    /// origin, and the operation needs one.
    ///
    /// # Safety
    /// As [`accumulate`](Window::accumulate) for `origin`, and as [`get`](Window::get) for `result`. They have no byte in
    /// common.
    pub unsafe fn get_accumulate(
        &self,
        origin: Option<&Typed>,
        result: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let began = self.began();
        let given = given(op, origin.unwrap_or(result), result)?;
        check_given(op, origin)?;
        let at = self.place(given, displacement, target);
        let access = self.inner.access("get_accumulate", (rank, &at), given, AccessKind::Change)?;
        let (what, given, into) = ((&access, op), (given, &at), (result, ReadEnds::Later));
        // SAFETY: the caller's promise.
        let done = unsafe { self.inner.get_accumulate_all(self.shared(), what, given, into) };
        self.note(WindowCall::GetAccumulate, result.packed_bytes(), began);
        done.map(drop)
    }

    /// One element: combined with the one at `origin`; `result` gets what was there before (`MPI_Fetch_and_op`), as late as
    /// by [`get`](Window::get). With [`ReduceOp::NoOp`] there need be no origin.
    ///
    /// # Errors
    /// As [`get_accumulate`](Window::get_accumulate).
    ///
    /// # Safety
    /// As [`get_accumulate`](Window::get_accumulate), for memory of the host of one element.
    #[inline]
    pub unsafe fn fetch_and_op(
        &self,
        origin: Option<*const u8>,
        result: *mut u8,
        element: Primitive,
        rank: u32,
        displacement: i64,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let began = self.began();
        let result = one(result, element);
        // A place in memory that is valid for reads, and looked at only if the operation needs it.
        let origin = origin.map(|origin| one(origin.cast_mut(), element));
        check_given(op, origin.as_ref())?;
        let given = origin.unwrap_or(result);
        let at = self.displacement(displacement);
        // SAFETY: the caller's promise.
        let done = match unsafe { self.fetch_now(given, result, (element, op), (rank, at)) } {
            true => Ok(()),
            // SAFETY: the caller's promise.
            false => unsafe { self.fetch_later(given, result, (element, op), (rank, at)) },
        };
        self.note(WindowCall::FetchAndOp, element.size_bytes(), began);
        done
    }

    /// One number in memory that is mapped. `false`: it takes another way, or is refused.
    ///
    /// # Safety
    /// As [`fetch_and_op`](Window::fetch_and_op), during the call.
    #[inline]
    unsafe fn fetch_now(
        &self,
        given: Region,
        result: Region,
        (element, op): (Primitive, ReduceOp),
        (rank, at): (u32, u64),
    ) -> bool {
        let mut number = [0; 8];
        let len = usize::try_from(result.len()).unwrap_or(usize::MAX);
        let Some(number) = number.get_mut(..len) else { return false };
        let Some(span) = self.inner.span("fetch_and_op", (rank, at), len) else { return false };
        // SAFETY: the caller's promise.
        if op != ReduceOp::NoOp && unsafe { gapless_mem::read(&given, 0, number) }.is_err() {
            return false;
        }
        let Some(old) = self.inner.change_span(self.shared(), span, (element, op), number) else {
            return false;
        };
        gapless_osc::write_number(old, number);
        // SAFETY: the caller's promise.
        unsafe { gapless_mem::write(&result, 0, number) }.is_ok()
    }

    /// # Safety
    /// As [`fetch_and_op`](Window::fetch_and_op).
    unsafe fn fetch_later(
        &self,
        given: Region,
        result: Region,
        (element, op): (Primitive, ReduceOp),
        (rank, at): (u32, u64),
    ) -> Result<(), Error> {
        let given = Typed::elements(given, element.layout(), 1)?;
        let result = Typed::elements(result, element.layout(), 1)?;
        let at = Place::at(at);
        let access = self.inner.access("fetch_and_op", (rank, &at), &given, AccessKind::Change)?;
        let (what, given, into) = ((&access, op), (&given, &at), (&result, ReadEnds::Later));
        // SAFETY: the caller's promise.
        unsafe { self.inner.get_accumulate_all(self.shared(), what, given, into) }.map(drop)
    }

    /// Replaces an element by the one at `origin` if it is the one at `compare`, bit by bit; `result` gets what was there
    /// before (`MPI_Compare_and_swap`), as late as by [`get`](Window::get).
    ///
    /// # Errors
    /// As [`get_accumulate`](Window::get_accumulate); the element is no integer, logical or byte.
    ///
    /// # Safety
    /// As [`fetch_and_op`](Window::fetch_and_op); `compare` as `origin`.
    pub unsafe fn compare_and_swap(
        &self,
        origin: *const u8,
        compare: *const u8,
        result: *mut u8,
        element: Primitive,
        rank: u32,
        displacement: i64,
    ) -> Result<(), Error> {
        let began = self.began();
        let (call, at) = ("compare_and_swap", self.displacement(displacement));
        let (mut new, mut expected) = ([0; 8], [0; 8]);
        let len = usize::try_from(element.size_bytes()).unwrap_or(usize::MAX);
        let (Some(new), Some(expected)) = (new.get_mut(..len), expected.get_mut(..len)) else {
            let why = "compare_and_swap takes one integer".to_owned();
            return Err(WindowError::Mismatch { why }.into());
        };
        for (from, into) in [(origin, &mut *new), (compare, &mut *expected)] {
            // SAFETY: the caller's promise.
            unsafe { gapless_mem::read(&one(from.cast_mut(), element), 0, into) }?;
        }
        let (both, result) = ((&*expected, &*new), one(result, element));
        let span = self.inner.span(call, (rank, at), len);
        let swapped =
            span.and_then(|span| self.inner.swap_span(self.shared(), span, element, both));
        let done = match swapped {
            Some(old) => {
                let mut found = [0; 8];
                let found = found.get_mut(..len).unwrap_or(&mut []);
                gapless_osc::write_number(old, found);
                // SAFETY: the caller's promise.
                unsafe { gapless_mem::write(&result, 0, found) }.map_err(Error::from)
            }
            None => {
                let (typed, at) = (Typed::elements(result, element.layout(), 1)?, Place::at(at));
                let access = self.inner.access(call, (rank, &at), &typed, AccessKind::Change)?;
                let what = (&access, element);
                // SAFETY: the caller's promise.
                unsafe { self.inner.compare_and_swap_later(self.shared(), what, both, result) }
            }
        };
        self.note(WindowCall::CompareAndSwap, element.size_bytes(), began);
        done
    }

    /// [`put`](Window::put), with a request that has ended when this returns (`MPI_Rput`, MPI 4.1 §12.3.5).
    ///
    /// # Errors
    /// As [`put`](Window::put).
    ///
    /// # Safety
    /// As [`put`](Window::put).
    pub unsafe fn rput(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.put(origin, rank, displacement, target) }?;
        Ok(Request::ended(&self.comm, status(0)))
    }

    /// [`accumulate`](Window::accumulate), with a request that has ended when this returns (`MPI_Raccumulate`).
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate).
    ///
    /// # Safety
    /// As [`accumulate`](Window::accumulate).
    pub unsafe fn raccumulate(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        op: ReduceOp,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.accumulate(origin, rank, displacement, target, op) }?;
        Ok(Request::ended(&self.comm, status(0)))
    }

    /// [`get`](Window::get), with a request that ends when the data is there (`MPI_Rget`); flushes end it, too. What the
    /// target refuses, the request tells.
    ///
    /// # Errors
    /// As [`get`](Window::get).
    ///
    /// # Safety
    /// As [`get`](Window::get); the end of the request will do as well.
    pub unsafe fn rget(
        &self,
        into: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
    ) -> Result<Request, Error> {
        let at = self.place(into, displacement, target);
        let access = self.inner.access("rget", (rank, &at), into, AccessKind::Read)?;
        // SAFETY: the caller's promise.
        let read =
            unsafe { self.inner.get_all(self.shared(), &access, (into, ReadEnds::Requested)) }?;
        self.requested(read, into.packed_bytes())
    }

    /// [`get_accumulate`](Window::get_accumulate), with a request, as [`rget`](Window::rget) (`MPI_Rget_accumulate`).
    ///
    /// # Errors
    /// As [`get_accumulate`](Window::get_accumulate).
    ///
    /// # Safety
    /// As [`get_accumulate`](Window::get_accumulate); for `result`, the end of the request will do as well.
    pub unsafe fn rget_accumulate(
        &self,
        origin: Option<&Typed>,
        result: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        op: ReduceOp,
    ) -> Result<Request, Error> {
        let given = given(op, origin.unwrap_or(result), result)?;
        check_given(op, origin)?;
        let (call, at) = ("rget_accumulate", self.place(given, displacement, target));
        let access = self.inner.access(call, (rank, &at), given, AccessKind::Change)?;
        let (what, given, into) = ((&access, op), (given, &at), (result, ReadEnds::Requested));
        // SAFETY: the caller's promise.
        let read = unsafe { self.inner.get_accumulate_all(self.shared(), what, given, into) }?;
        self.requested(read, result.packed_bytes())
    }

    fn requested(&self, read: PendingRead, bytes: u64) -> Result<Request, Error> {
        match read.test() {
            Some(ended) => {
                ended?;
                Ok(Request::ended(&self.comm, status(bytes)))
            }
            None => {
                let read = RequestedRead { read, bytes, ended: OnceLock::new() };
                Request::of_work(&self.comm, Arc::new(read))
            }
        }
    }
}

/// One element in memory of the host.
#[inline]
fn one(pointer: *mut u8, element: Primitive) -> Region {
    Region::new(Space::Host, pointer.expose_provenance() as u64, 0, element.size_bytes())
}

/// Only an atomic get has no origin.
fn check_given<T>(op: ReduceOp, origin: Option<&T>) -> Result<(), WindowError> {
    match origin.is_some() || op == ReduceOp::NoOp {
        true => Ok(()),
        false => Err(WindowError::Mismatch { why: format!("{} of nothing", op.name()) }),
    }
}
