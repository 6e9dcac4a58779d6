//! Sending and receiving in one call (MPI 4.1 §3.10): a ring of them does not deadlock.

use super::Communicator;
use crate::error::Error;
use crate::view::{RecvBuffer, SendBuffer};
use gapless_pml::{RequestId, SendMode, Source, Status, TagSel};

impl Communicator {
    /// Sends `data` to rank `to.0` with tag `to.1`, and receives (`MPI_Sendrecv`); gives the status of
    /// the receive.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    /// let mut from_left = [0u32];
    /// comm.sendrecv(&[comm.rank()], (right, 0), &mut from_left, (left, 0))?;
    /// assert_eq!(from_left, [left]);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// The receive's failure, or else the send's.
    pub fn sendrecv<'o, 'i>(
        &self,
        data: impl SendBuffer<'o>,
        to: (u32, i32),
        into: impl RecvBuffer<'i>,
        from: (impl Into<Source>, impl Into<TagSel>),
    ) -> Result<Status, Error> {
        let (out, into) = (data.into_view(), into.into_view());
        // SAFETY: both views borrow their memory until this call returns, which is after `exchanged`
        // has seen both requests end.
        let recv = unsafe { self.start_recv(&into.typed, from.0.into(), from.1.into()) }?;
        // SAFETY: as above.
        let send = unsafe { self.start_send(&out.typed, to.0, to.1, SendMode::Standard) };
        self.exchanged(recv, send)
    }

    /// Sends the data that `buffer` describes, and receives into the same memory (`MPI_Sendrecv_replace`), whatever
    /// its layout; returns the status of the receive. The data is copied before it is sent.
    ///
    /// # Errors
    /// As [`sendrecv`](Communicator::sendrecv); there is no memory for the copy.
    pub fn sendrecv_replace<'v>(
        &self,
        buffer: impl RecvBuffer<'v>,
        to: (u32, i32),
        from: (impl Into<Source>, impl Into<TagSel>),
    ) -> Result<Status, Error> {
        let view = buffer.into_view();
        let from = (from.0.into(), from.1.into());
        let (recv, send) = self.shared.with(|state| {
            // SAFETY: `view` borrows its memory exclusively until this call returns, which is after
            // the receive has ended.
            let started = unsafe { state.open()?.start_replace(&self.comm, &view.typed, to, from) };
            self.shared.rouse(state);
            Ok(started?)
        })?;
        self.exchanged(recv, Ok(send))
    }

    /// Waits until both operations of an exchange have ended.
    fn exchanged(&self, recv: RequestId, send: Result<RequestId, Error>) -> Result<Status, Error> {
        match send {
            Ok(send) => {
                let received = self.shared.wait(recv);
                let sent = self.shared.wait(send);
                received.and_then(|status| sent.map(|_| status))
            }
            Err(error) => {
                // If that is too late, the message is in flight, and the wait ends with it.
                let _ = self.shared.with(|state| state.cancel(recv));
                let _ = self.shared.wait(recv);
                Err(error)
            }
        }
    }
}
