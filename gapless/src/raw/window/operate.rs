//! Operations (MPI 4.1 §12.3).

use super::{Window, slowly};
use crate::error::Error;
use gapless_dtype::{Layout, Primitive};
use gapless_engine::{EngineError, ReduceOp, Typed};
use gapless_mem::{Region, Space};
use gapless_osc::{
    Access, AccessKind, Flavor, PendingRead, Place, ReadEnds, WindowCall, WindowError,
    contiguous_span, contiguous_span_mut, operand,
};

/// What lies at a target: so many instances of a layout.
pub(super) type Target<'t> = (&'t Layout, u64);

/// Where an operation's data is at a target.
#[derive(Clone, Copy)]
pub(crate) struct At<'t> {
    pub(super) rank: u32,
    displacement: u64,
    /// `None`: laid out as at the origin.
    target: Option<AtTarget<'t>>,
    /// The counter there that a put or get raises.
    notice: Option<u32>,
}

/// How it lies at a target.
#[derive(Clone, Copy)]
enum AtTarget<'t> {
    Instances(Target<'t>),
    Place(&'t Place),
}

impl<'t> From<(u32, &'t Place)> for At<'t> {
    fn from((rank, place): (u32, &'t Place)) -> At<'t> {
        let target = place.plain().is_none().then_some(AtTarget::Place(place));
        At { rank, displacement: place.displacement(), target, notice: None }
    }
}

impl At<'_> {
    /// The same, with a notice.
    pub(crate) fn notified(self, notice: Option<u32>) -> Self {
        At { notice, ..self }
    }

    /// The rank and displacement of one contiguous span that lies there as it lies here, and of which no notice is
    /// given.
    #[inline]
    fn plain(self, origin: &Typed) -> Option<(u32, u64)> {
        let is_plain = self.target.is_none() && origin.contiguous_start() == Some(origin.origin());
        (is_plain && self.notice.is_none()).then_some((self.rank, self.displacement))
    }

    fn place(self) -> Place {
        match self.target {
            None => Place::at(self.displacement),
            Some(AtTarget::Instances((layout, count))) => {
                Place::typed(self.displacement, layout, count)
            }
            Some(AtTarget::Place(place)) => place.clone(),
        }
    }
}

/// The basic type that all elements are of.
#[inline]
fn uniform(typed: &Typed) -> Option<Primitive> {
    typed.own_layout()?.signature().uniform()
}

impl Window {
    /// Where at the target: laid out as at the origin, if it says so by the same layout.
    #[inline]
    pub(super) fn at<'t>(
        &self,
        origin: &Typed,
        (rank, displacement): (u32, i64),
        target: Target<'t>,
    ) -> At<'t> {
        let (layout, count) = target;
        let is_alike = origin.layout().id() == layout.id()
            && origin.count() == count
            && origin.as_pages().is_none();
        let displacement = self.displacement(displacement);
        let target = (!is_alike).then_some(AtTarget::Instances(target));
        At { rank, displacement, target, notice: None }
    }

    pub(super) fn access(
        &self,
        call: &'static str,
        at: At<'_>,
        origin: &Typed,
        way: AccessKind,
    ) -> Result<Access, WindowError> {
        let access = self.inner.access(call, (at.rank, &at.place()), origin, way)?;
        match at.notice {
            Some(counter) => self.inner.with_notice(access, counter),
            None => Ok(access),
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
        let at = self.at(origin, (rank, displacement), target);
        // SAFETY: the caller's promise.
        let put = || unsafe { self.put_at("put", origin, at) };
        self.timed(WindowCall::Put, origin.packed_bytes(), put)
    }

    /// # Safety
    /// As [`put`](Window::put).
    #[inline]
    pub(crate) unsafe fn put_at(
        &self,
        call: &'static str,
        origin: &Typed,
        at: At<'_>,
    ) -> Result<(), Error> {
        if let Some(to) = at.plain(origin)
            // SAFETY: the caller's promise.
            && let Some(bytes) = unsafe { contiguous_span(origin) }
            && self.inner.put_now(self.shared(), call, to, bytes)
        {
            return Ok(());
        }
        slowly(move || {
            let access = self.access(call, at, origin, AccessKind::Write)?;
            // SAFETY: the caller's promise.
            unsafe { self.inner.put_all(self.shared(), &access, origin) }
        })
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
        let at = self.at(into, (rank, displacement), target);
        // SAFETY: the caller's promise.
        let get = || unsafe { self.get_at("get", into, at, ReadEnds::Later) };
        self.timed(WindowCall::Get, into.packed_bytes(), get).map(drop)
    }

    /// `None`: it has ended.
    ///
    /// # Safety
    /// As [`get`](Window::get), until the read has ended, as `ends` says.
    #[inline]
    pub(crate) unsafe fn get_at(
        &self,
        call: &'static str,
        into: &Typed,
        at: At<'_>,
        ends: ReadEnds,
    ) -> Result<Option<PendingRead>, Error> {
        if let Some(from) = at.plain(into)
            // SAFETY: the caller's promise.
            && let Some(bytes) = unsafe { contiguous_span_mut(into) }
            && self.inner.get_now(self.shared(), call, from, bytes)
        {
            return Ok(None);
        }
        slowly(move || {
            let access = self.access(call, at, into, AccessKind::Read)?;
            // SAFETY: the caller's promise.
            unsafe { self.inner.get_all(self.shared(), &access, (into, ends)) }.map(Some)
        })
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
    #[inline]
    pub unsafe fn accumulate(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let at = self.at(origin, (rank, displacement), target);
        // SAFETY: the caller's promise.
        let accumulate = || unsafe { self.accumulate_at(origin, at, op) };
        self.timed(WindowCall::Accumulate, origin.packed_bytes(), accumulate)
    }

    /// # Safety
    /// As [`put`](Window::put).
    #[inline]
    pub(crate) unsafe fn accumulate_at(
        &self,
        origin: &Typed,
        at: At<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = "accumulate";
        if let (Some(to), Some(element)) = (at.plain(origin), uniform(origin))
            // SAFETY: the caller's promise.
            && let Some(bytes) = unsafe { contiguous_span(origin) }
            && let what = (element, op)
            && self.inner.accumulate_now(self.shared(), call, to, what, bytes).map_err(|why| *why)?
        {
            return Ok(());
        }
        slowly(move || {
            let at = (at.rank, &at.place());
            let access = self.inner.access(call, at, origin, AccessKind::Change)?;
            // SAFETY: the caller's promise.
            unsafe { self.inner.accumulate_all(self.shared(), (&access, op), (origin, at.1)) }
        })
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
        let given = operand(op, origin, result)?;
        let (at, how) = (self.at(given, (rank, displacement), target), (op, ReadEnds::Later));
        // SAFETY: the caller's promise.
        let done = || unsafe { self.get_accumulate_at("get_accumulate", (given, result), at, how) };
        self.timed(WindowCall::GetAccumulate, result.packed_bytes(), done).map(drop)
    }

    /// Of an [operand](operand); `None`: it has ended.
    ///
    /// # Safety
    /// As [`accumulate`](Window::accumulate) for what is given, which is not looked at by [`ReduceOp::NoOp`], and as
    /// [`get_at`](Window::get_at) for `result`. They have no byte in common.
    #[inline]
    pub(crate) unsafe fn get_accumulate_at(
        &self,
        call: &'static str,
        (given, result): (&Typed, &Typed),
        at: At<'_>,
        (op, ends): (ReduceOp, ReadEnds),
    ) -> Result<Option<PendingRead>, Error> {
        if let (Some(there), Some(element)) = (at.plain(given), uniform(given))
            && result.packed_bytes() <= 8
            // SAFETY: the caller's promise.
            && let Some(found) = unsafe { contiguous_span_mut(result) }
            && let Some(bytes) = match op {
                ReduceOp::NoOp => Some(&[][..]),
                // SAFETY: the caller's promise.
                _ => unsafe { contiguous_span(given) },
            }
            && self.inner.fetch_now(self.shared(), call, there, (element, op), (bytes, found))
        {
            return Ok(None);
        }
        slowly(move || {
            let at = (at.rank, &at.place());
            let access = self.inner.access(call, at, given, AccessKind::Change)?;
            let (what, given, into) = ((&access, op), (given, at.1), (result, ends));
            // SAFETY: the caller's promise.
            unsafe { self.inner.get_accumulate_all(self.shared(), what, given, into) }.map(Some)
        })
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
        let (call, at) = ("fetch_and_op", self.displacement(displacement));
        let bytes = element.size_bytes();
        let len = usize::try_from(bytes).unwrap_or(0);
        self.timed(WindowCall::FetchAndOp, bytes, move || {
            // SAFETY: the caller's promise.
            let found = unsafe { std::slice::from_raw_parts_mut(result, len) };
            let bytes = match origin {
                // SAFETY: the caller's promise; the operation looks at it, so it has no byte of `found`.
                Some(origin) if op != ReduceOp::NoOp => unsafe {
                    std::slice::from_raw_parts(origin, len)
                },
                _ => &[],
            };
            let what = (element, op);
            if self.inner.fetch_now(self.shared(), call, (rank, at), what, (bytes, found)) {
                return Ok(());
            }
            slowly(move || {
                let result = one(result, element)?;
                let origin = origin.map(|origin| one(origin.cast_mut(), element)).transpose()?;
                let both = (operand(op, origin.as_ref(), &result)?, &result);
                let at = At { rank, displacement: at, target: None, notice: None };
                // SAFETY: the caller's promise.
                unsafe { self.get_accumulate_at(call, both, at, (op, ReadEnds::Later)) }.map(drop)
            })
        })
    }

    /// Replaces an element by the one at `origin` if it is the one at `compare`, bit by bit; `result` gets what was there
    /// before (`MPI_Compare_and_swap`), as late as by [`get`](Window::get).
    ///
    /// # Errors
    /// As [`get_accumulate`](Window::get_accumulate); the element is no integer, logical or byte.
    ///
    /// # Safety
    /// As [`fetch_and_op`](Window::fetch_and_op); `compare` as `origin`, but it may be where `result` is.
    pub unsafe fn compare_and_swap(
        &self,
        origin: *const u8,
        compare: *const u8,
        result: *mut u8,
        element: Primitive,
        rank: u32,
        displacement: i64,
    ) -> Result<(), Error> {
        let (call, at) = ("compare_and_swap", self.displacement(displacement));
        let bytes = element.size_bytes();
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if len > 8 {
            let why = "compare_and_swap takes one integer".to_owned();
            return Err(WindowError::Mismatch { why }.into());
        }
        self.timed(WindowCall::CompareAndSwap, bytes, move || {
            // SAFETY: the caller's promise.
            let new = unsafe { std::slice::from_raw_parts(origin, len) };
            // A copy: it may lie where the result goes.
            let mut expected = [0; 8];
            let expected = &mut expected[..len];
            // SAFETY: as above; the copy is new, and there are not more than 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(compare, expected.as_mut_ptr(), len) };
            // SAFETY: as above; it has no byte of `new`.
            let found = unsafe { std::slice::from_raw_parts_mut(result, len) };
            if self.inner.swap_now(self.shared(), (rank, at), element, (&*expected, new, found)) {
                return Ok(());
            }
            slowly(move || {
                let (result, at) = (one(result, element)?, Place::at(at));
                let access = self.inner.access(call, (rank, &at), &result, AccessKind::Change)?;
                let (what, both) = ((&access, element), (&*expected, new));
                // SAFETY: the caller's promise.
                unsafe {
                    self.inner.compare_and_swap_later(self.shared(), what, both, result.region())
                }
            })
        })
    }
}

/// One element in memory of the host.
fn one(pointer: *mut u8, element: Primitive) -> Result<Typed, EngineError> {
    let start = pointer.expose_provenance() as u64;
    let region = Region::new(Space::Host, start, 0, element.size_bytes());
    Typed::elements(region, element.layout(), 1)
}
