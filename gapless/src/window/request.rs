//! Operations that own their buffers (MPI 4.1 §12.3.5): several may be under way at once, and outlive their call.

use super::Window;
use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, OwnedBufferMut, Park, Refused};
use crate::shared::Shared;
use crate::view::SendBuffer;
use gapless_dtype::AnyBits;
use gapless_engine::{Engine, ReduceOp, Typed};
use gapless_osc::{
    AccessKind, Driver, Place, Reading, WindowCall, check_apart, operand, room, unpack,
};
use std::fmt;
use std::sync::Arc;

/// An operation on a window that owns its buffer. If it is dropped, the operation goes on; what it would have read is lost.
#[must_use = "the buffer comes back from `wait`"]
pub struct WindowRequest<B: OwnedBuffer> {
    shared: Arc<Shared>,
    parked: B::Parked,
    typed: Box<Typed>,
    /// `None`: it has ended here.
    reading: Option<Reading>,
}

impl<B: OwnedBuffer> fmt::Debug for WindowRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowRequest").field("reading", &self.reading).finish_non_exhaustive()
    }
}

impl<B: OwnedBuffer> WindowRequest<B> {
    /// Waits until the operation has ended at this rank; gives the buffer, and the result.
    pub fn wait(self) -> (B, Result<(), Error>) {
        let WindowRequest { shared, parked, typed, reading } = self;
        let result = reading.map_or(Ok(()), |reading| {
            let bytes = reading.wait(&*shared)?;
            let engine: &dyn Engine = &*shared.tools;
            // SAFETY: the memory is this request's own.
            unsafe { unpack(engine, &typed, 0..bytes.len() as u64, &bytes) }
        });
        (parked.unpark(), result)
    }

    /// The buffer and the result if the operation has ended, else the request again; makes progress.
    ///
    /// # Errors
    /// It is under way.
    pub fn test(self) -> Result<(B, Result<(), Error>), WindowRequest<B>> {
        if self.is_done() { Ok(self.wait()) } else { Err(self) }
    }

    /// Whether the operation has ended at this rank; makes progress.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let Some(reading) = &self.reading else { return true };
        self.shared.progress();
        reading.is_there()
    }
}

impl<T: AnyBits, M> Window<T, M> {
    fn begin<B: OwnedBuffer>(
        &self,
        owned: Owned<B>,
        begin: impl FnOnce(&Typed) -> Result<Option<Reading>, Error>,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        let (parked, typed) = owned.park()?;
        match begin(&typed) {
            Ok(reading) => {
                let (shared, typed) = (self.world(), Box::new(typed));
                Ok(WindowRequest { shared, parked, typed, reading })
            }
            Err(error) => Err(Refused { error, buffer: parked.unpark() }),
        }
    }

    /// [`put`](Window::put) of a buffer that the request takes over (`MPI_Rput`, MPI 4.1 §12.3.5).
    ///
    /// # Errors
    /// As [`put`](Window::put). The buffer comes back with the error.
    pub fn rput<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin_put("rput", data.into(), (rank, at.into()), None)
    }

    pub(super) fn begin_put<B: OwnedBuffer>(
        &self,
        call: &'static str,
        data: Owned<B>,
        (rank, at): (u32, Place),
        notice: Option<u32>,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin(data, |typed| {
            let began = self.began();
            // SAFETY: the memory is the request's own.
            unsafe { self.put_typed(call, typed, (rank, &at), notice) }?;
            self.note(WindowCall::Put, typed.packed_bytes(), began);
            Ok(None)
        })
    }

    /// Begins to read into a buffer that the request takes over (`MPI_Rget`).
    ///
    /// # Errors
    /// As [`get`](Window::get). The buffer comes back with the error.
    pub fn rget<B: OwnedBufferMut>(
        &self,
        into: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin_get("rget", into.into(), (rank, at.into()), None)
    }

    pub(super) fn begin_get<B: OwnedBufferMut>(
        &self,
        call: &'static str,
        into: Owned<B>,
        (rank, at): (u32, Place),
        notice: Option<u32>,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin(into, |typed| {
            check_apart(typed)?;
            let mut access = self.access(call, (rank, &at), typed, AccessKind::Read)?;
            if let Some(counter) = notice {
                access = self.inner().with_notice(access, counter)?;
            }
            let range = 0..access.packed_bytes();
            room(range.end)?;
            Ok(Some(self.inner().start_get(self.shared(), &access, range)?))
        })
    }

    /// [`accumulate`](Window::accumulate) of a buffer that the request takes over (`MPI_Raccumulate`).
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate). The buffer comes back with the error.
    pub fn raccumulate<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
        op: ReduceOp,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        let at = at.into();
        self.begin(data.into(), |typed| {
            let began = self.began();
            // SAFETY: the memory is the request's own.
            unsafe { self.accumulate_typed(typed, (rank, &at), op) }?;
            self.note(WindowCall::Accumulate, typed.packed_bytes(), began);
            Ok(None)
        })
    }

    /// Accumulates `data`, and begins to read what was there before into a buffer that the request takes over
    /// (`MPI_Rget_accumulate`).
    ///
    /// # Errors
    /// As [`get_accumulate`](Window::get_accumulate). The buffer comes back with the error.
    pub fn rget_accumulate<'v, B: OwnedBufferMut>(
        &self,
        data: impl SendBuffer<'v>,
        found: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
        op: ReduceOp,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        let (view, at) = (data.into_view(), at.into());
        self.begin(found.into(), |typed| {
            let given = operand(op, Some(&view.typed), typed)?;
            check_apart(typed)?;
            let access = self.access("rget_accumulate", (rank, &at), given, AccessKind::Change)?;
            let (what, given) = ((&access, op), (given, &at));
            // SAFETY: `view` borrows its memory for reading until this returns.
            let begun =
                unsafe { self.inner().start_get_accumulate_all(self.shared(), what, given) };
            begun.map(Some)
        })
    }
}
