//! Sending and receiving in one call (MPI 4.1 §3.10), so that a ring of them cannot deadlock.

use crate::comm::Comm;
use crate::error::PmlError;
use crate::matching::{Source, TagSel};
use crate::pml::Pml;
use crate::requests::RequestOutcome;
use crate::status::RequestId;
use gapless_engine::Typed;

impl Pml {
    /// Sends `out` to rank `to.0` with tag `to.1` and receives into `into` (`MPI_Sendrecv`); gives
    /// the status of the receive.
    ///
    /// # Safety
    /// Until this returns, `out` describes memory that is valid for reads and that nothing writes,
    /// `into` memory valid for reads and writes that nothing else touches; they do not overlap.
    ///
    /// # Errors
    /// The receive's failure, else the send's. Both have ended.
    pub unsafe fn sendrecv(
        &mut self,
        comm: &Comm,
        out: &Typed,
        to: (u32, i32),
        into: &Typed,
        from: (Source, TagSel),
    ) -> RequestOutcome {
        // SAFETY: the caller's promise holds until `exchanged` has seen both end.
        let recv = unsafe { self.irecv(comm, into, from.0, from.1) }?;
        // SAFETY: as above.
        let send = unsafe { self.isend(comm, out, to.0, to.1) };
        self.exchanged(recv, send)
    }

    /// Sends the data that `buffer` describes, and receives a message into the same memory (`MPI_Sendrecv_replace`),
    /// whatever its layout; returns the status of the receive. The data is copied before it is sent.
    ///
    /// # Safety
    /// Until this returns, `buffer` describes memory that is valid for reads and writes and that
    /// nothing else touches.
    ///
    /// # Errors
    /// As [`sendrecv`](Pml::sendrecv); there is no memory for the copy.
    pub unsafe fn sendrecv_replace(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        to: (u32, i32),
        from: (Source, TagSel),
    ) -> RequestOutcome {
        // SAFETY: the caller's promise holds until `exchanged` has seen both end.
        let (recv, send) = unsafe { self.start_replace(comm, buffer, to, from) }?;
        self.exchanged(recv, Ok(send))
    }

    /// Starts the receive and the send of [`sendrecv_replace`](Pml::sendrecv_replace), which are returned in this
    /// order. Never waits.
    ///
    /// # Safety
    /// Until the receive has ended, `buffer` describes memory that is valid for reads and writes and that nothing else
    /// touches. What is sent is a copy.
    ///
    /// # Errors
    /// As [`irecv`](Pml::irecv) and [`isend_copy`](Pml::isend_copy); nothing was started, so nothing was sent.
    pub unsafe fn start_replace(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        (dest, sent): (u32, i32),
        (source, tag): (Source, TagSel),
    ) -> Result<(RequestId, RequestId), PmlError> {
        // Of a message that was sent the peer cannot be told that it is void.
        self.core.check_recv(comm, buffer, source, tag)?;
        // SAFETY: nothing writes the memory before the receive below is started.
        let send = unsafe { self.isend_copy(comm, buffer, dest, sent) }?;
        // SAFETY: the caller's promise is passed on.
        match unsafe { self.irecv(comm, buffer, source, tag) } {
            Ok(recv) => Ok((recv, send)),
            Err(error) => {
                // Only if sending found a process lost. The copy is the request's own.
                self.release(send)?;
                Err(error)
            }
        }
    }

    /// Sees both ends of an exchange end.
    fn exchanged(&mut self, recv: RequestId, send: Result<RequestId, PmlError>) -> RequestOutcome {
        match send {
            Ok(send) => {
                let received = self.wait(recv);
                let sent = self.wait(send);
                received.and_then(|status| sent.map(|_| status))
            }
            Err(error) => {
                self.cancel_recv(recv)?;
                // Cancelled, or on its way already.
                let _ = self.wait(recv);
                Err(error.into())
            }
        }
    }
}
