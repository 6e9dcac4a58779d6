//! Blocking sends in the other modes (MPI 4.1 §3.4).

use super::Communicator;
use crate::error::Error;
use crate::view::SendBuffer;
use gapless_pml::{SendMode, Status};

impl Communicator {
    /// Sends in a mode of one's choice, and waits until the memory may be used again.
    ///
    /// # Errors
    /// As [`send`](Communicator::send), and what [`SendMode`] says of its modes.
    pub fn send_mode<'v>(
        &self,
        data: impl SendBuffer<'v>,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<Status, Error> {
        let view = data.into_view();
        // SAFETY: `view` borrows its memory for reading until this call returns, which is after
        // the request has ended.
        let id = unsafe { self.start_send(&view.typed, dest, tag, mode) }?;
        self.shared.wait(id)
    }

    /// Sends and waits until a receive has taken the message (`MPI_Ssend`).
    ///
    /// # Errors
    /// As [`send`](Communicator::send); the receiver leaves the job without receiving it
    /// ([`PmlError::Unreceived`](crate::PmlError::Unreceived)).
    pub fn ssend<'v>(
        &self,
        data: impl SendBuffer<'v>,
        dest: u32,
        tag: i32,
    ) -> Result<Status, Error> {
        self.send_mode(data, dest, tag, SendMode::Synchronous)
    }

    /// Sends, on the promise that the receive is posted (`MPI_Rsend`). If it is not, the receive ends
    /// with [`PmlError::NotReady`](crate::PmlError::NotReady), and so does the send, if the message
    /// is not a short one.
    ///
    /// # Errors
    /// As [`send`](Communicator::send); the receive was not posted.
    pub fn rsend<'v>(
        &self,
        data: impl SendBuffer<'v>,
        dest: u32,
        tag: i32,
    ) -> Result<Status, Error> {
        self.send_mode(data, dest, tag, SendMode::Ready)
    }

    /// Sends without waiting: a message that cannot leave now is copied to the buffer of
    /// [`World::attach_buffer`](crate::World::attach_buffer) (`MPI_Bsend`).
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// world.attach_buffer(1 << 20)?;
    /// let mut numbers = vec![1.5f64; 50_000];
    /// world.comm().bsend(&numbers, 0, 3)?;
    /// numbers.fill(0.0);
    /// world.comm().recv(&mut numbers, 0, 3)?;
    /// assert_eq!(numbers[49_999], 1.5);
    /// assert_eq!(world.detach_buffer()?, 1 << 20);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`send`](Communicator::send); there is not enough room
    /// ([`PmlError::BufferExhausted`](crate::PmlError::BufferExhausted)), and then nothing was sent.
    pub fn bsend<'v>(
        &self,
        data: impl SendBuffer<'v>,
        dest: u32,
        tag: i32,
    ) -> Result<Status, Error> {
        self.send_mode(data, dest, tag, SendMode::Buffered)
    }
}
