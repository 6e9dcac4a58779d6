//! Operations on one stretch of a target that is mapped: what most are, and so the shortest way to do them. Whatever is
//! unusual, or wrong, takes the way of `operate.rs`, which has the reason.

use crate::WindowError;
use crate::arithmetic::{Arithmetic, read};
use crate::exposure::{Exposure, change_one};
use crate::header::Stripes;
use crate::window::{Driver, Window};
use gapless_engine::{EngineError, ReduceOp, Typed};

/// Bytes of a target that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Span<'w> {
    exposure: &'w Exposure,
    offset: u64,
}

impl Window {
    /// The bytes that an operation on one stretch is about, which lies there as it lies here: checked as
    /// [`access`](Window::access) does, and more quickly. `None`: the target is not mapped, or `access` has the reason.
    #[must_use]
    #[inline]
    pub fn span(
        &self,
        call: &'static str,
        (rank, displacement): (u32, u64),
        bytes: usize,
    ) -> Option<Span<'_>> {
        self.epochs.operate(call, rank).ok()?;
        let member = self.members.get(rank as usize)?;
        let exposure = member.direct.as_ref()?;
        let offset = displacement.checked_mul(member.unit)?;
        let end = offset.checked_add(bytes as u64)?;
        (end <= member.bytes).then_some(Span { exposure, offset })
    }

    /// [`put`](Window::put) of all bytes of a span.
    ///
    /// # Errors
    /// They are more than were asked for.
    #[inline]
    pub fn put_span<D: Driver>(
        &self,
        driver: &D,
        span: Span<'_>,
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        let stored = span.exposure.memory.store(span.offset, bytes);
        self.now_and_then(driver, Window::weight(bytes.len()));
        stored.map_err(|error| EngineError::from(error).into())
    }

    /// [`get`](Window::get) of all bytes of a span.
    ///
    /// # Errors
    /// They are more than were asked for.
    #[inline]
    pub fn get_span<D: Driver>(
        &self,
        driver: &D,
        span: Span<'_>,
        into: &mut [u8],
    ) -> Result<(), WindowError> {
        let loaded = span.exposure.memory.load(span.offset, into);
        self.now_and_then(driver, Window::weight(into.len()));
        loaded.map_err(|error| EngineError::from(error).into())
    }

    /// One element of a span: combined with `bytes`; gives what was there. `None`: that takes another way, or is refused.
    #[inline]
    pub fn change_span<D: Driver>(
        &self,
        driver: &D,
        (rank, span): (u32, Span<'_>),
        (origin, op): (&Typed, ReduceOp),
        bytes: &[u8],
    ) -> Option<Result<[u8; 8], D::Error>> {
        let arithmetic = Arithmetic::of(op, origin).ok()?;
        let (Span { exposure, offset }, width) = (span, bytes.len());
        let memory = &exposure.memory;
        let fits = width == arithmetic.width()
            && arithmetic.is_atomic()
            && memory.misalignment(offset, width as u64) == 0;
        if !fits {
            return None;
        }
        let stripes = Stripes::default().with(offset, width);
        let mut old = [0; 8];
        let changed = match exposure.header.try_stripes(self.rank, stripes, |_| false) {
            true => Ok(()),
            false => self.take_stripes(driver, exposure, stripes),
        };
        if let Err(error) = changed {
            return Some(Err(error));
        }
        let found = change_one(memory, offset, (&arithmetic, read(bytes)), &mut old[..width]);
        exposure.header.release_stripes(self.rank, stripes);
        self.now_and_then(driver, 1);
        Some(match found {
            Ok(()) => Ok(old),
            Err(fault) => Err(self.refused(rank, fault).into()),
        })
    }
}
