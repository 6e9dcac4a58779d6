//! Operations with requests (MPI 4.1 §12.3.5).

use super::Window;
use super::operate::{At, Target};
use crate::error::Error;
use crate::raw::request::{Request, Work};
use gapless_engine::{ReduceOp, Typed};
use gapless_osc::{
    AccessKind, PendingRead, PendingTransfer, ReadEnds, WindowCall, WindowError, check_apart,
    operand,
};
use gapless_pml::{Pml, Status};
use std::sync::{Arc, OnceLock};

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
            _ => Ok(Status::of_nothing(self.bytes)),
        }
    }
}

/// A transfer by a device of which a request tells.
#[derive(Debug)]
struct RequestedTransfer {
    transfer: PendingTransfer,
    /// That were read.
    bytes: u64,
}

/// Transfers that nobody waits for yet. Dropping it waits for the devices.
pub(crate) struct DrainOnDrop(pub(crate) Vec<PendingTransfer>);

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(PendingTransfer::drain);
    }
}

impl Work for RequestedTransfer {
    fn advance(&self, _: &mut Pml) -> bool {
        self.transfer.test().is_some()
    }

    fn finish(&self) -> Result<Status, Error> {
        self.transfer.take().transpose()?;
        Ok(Status::of_nothing(self.bytes))
    }
}

impl Window {
    /// [`put`](Window::put), with a request (`MPI_Rput`, MPI 4.1 §12.3.5). It has ended when this returns, unless a
    /// device of this process moves the data ([scopes](crate::Window::scope) say when): then `origin` may be changed
    /// again when the request has ended, or a flush. Requests end in any order. What the device finds wrong, the
    /// request tells, and a flush.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    ///
    /// # Safety
    /// As [`put`](Window::put), until the request has ended, a flush of the target or the end of the epoch has returned
    /// (other than with a [`WindowError`] for want of an epoch), or the window was dropped.
    pub unsafe fn rput(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
    ) -> Result<Request, Error> {
        let (call, began) = ("rput", self.began());
        let at = self.at(origin, (rank, displacement), target);
        // SAFETY: the caller's promise.
        let transfer = unsafe { self.begin_transfer(call, AccessKind::Write, origin, at) }?;
        if let Some(transfer) = transfer {
            self.note(WindowCall::Put, origin.packed_bytes(), began);
            return self.request_of(transfer, 0);
        }
        // SAFETY: the caller's promise.
        let put = || unsafe { self.put_at(call, origin, at) };
        self.timed(WindowCall::Put, origin.packed_bytes(), put)?;
        Ok(Request::ended(&self.comm, Status::of_nothing(0)))
    }

    /// Begins a put or a get, if a device of this process does it: `None`, and nothing was done.
    ///
    /// # Safety
    /// Until it has ended, `origin` describes memory that is valid for reads, and that nobody writes; of a get, valid
    /// for writes, and nobody else's.
    pub(crate) unsafe fn begin_transfer(
        &self,
        call: &'static str,
        way: AccessKind,
        origin: &Typed,
        at: At<'_>,
    ) -> Result<Option<PendingTransfer>, Error> {
        if !self.inner.can_transfer(at.rank, origin)? {
            return Ok(None);
        }
        if way == AccessKind::Read {
            check_apart(origin)?;
        }
        let access = self.access(call, at, origin, way)?;
        // SAFETY: the caller's promise; a get has no byte twice.
        unsafe { self.inner.begin_transfer(self.shared(), way, &access, origin) }
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
        Ok(Request::ended(&self.comm, Status::of_nothing(0)))
    }

    /// [`get`](Window::get), with a request that ends when the data is there (`MPI_Rget`); flushes end it, too. What
    /// the target refuses, the request tells.
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
        let (call, at) = ("rget", self.at(into, (rank, displacement), target));
        // SAFETY: the caller's promise.
        if let Some(transfer) = unsafe { self.begin_transfer(call, AccessKind::Read, into, at) }? {
            return self.request_of(transfer, into.packed_bytes());
        }
        // SAFETY: the caller's promise.
        let read = unsafe { self.get_at(call, into, at, ReadEnds::Requested) }?;
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
        let given = operand(op, origin, result)?;
        let (at, how) = (self.at(given, (rank, displacement), target), (op, ReadEnds::Requested));
        // SAFETY: the caller's promise.
        let read = unsafe { self.get_accumulate_at("rget_accumulate", (given, result), at, how) }?;
        self.requested(read, result.packed_bytes())
    }

    /// The request of a transfer. If there cannot be one, the device is done with the memory first.
    fn request_of(&self, transfer: PendingTransfer, bytes: u64) -> Result<Request, Error> {
        let mut begun = DrainOnDrop(vec![transfer.clone()]);
        let request =
            Request::of_work(&self.comm, Arc::new(RequestedTransfer { transfer, bytes }))?;
        // The request tells from now on.
        begun.0.clear();
        Ok(request)
    }

    fn requested(&self, read: Option<PendingRead>, bytes: u64) -> Result<Request, Error> {
        let ended = read.as_ref().map_or(Some(Ok(())), PendingRead::test);
        match (ended, read) {
            (None, Some(read)) => {
                let read = RequestedRead { read, bytes, ended: OnceLock::new() };
                Request::of_work(&self.comm, Arc::new(read))
            }
            (ended, _) => {
                ended.transpose()?;
                Ok(Request::ended(&self.comm, Status::of_nothing(bytes)))
            }
        }
    }
}
