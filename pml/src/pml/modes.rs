//! Sends that are cancelled, that wait for work of the caller's, and that are buffered.

use crate::comm::Comm;
use crate::drive::buffered::Attached;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::status::RequestId;
use gapless_engine::Typed;
use gapless_mem::Completion;

/// How often progress is made for the answer of this process itself, behind what it has sent itself before.
const TURNS: usize = 64;

impl Pml {
    /// Cancels a send (`MPI_Cancel`, MPI 4.1 §3.8.4). Returns at once, with whether it is cancelled already: so is one
    /// that had not left, or that nobody of this process has received. Once the receiver has made progress, the
    /// request ends. Either it ends with [`PmlError::Cancelled`], and no receive gets the message, or it ends as it
    /// would have, and a receive has got the message or will. Unlike other sends that need no answer, it may end with
    /// [`PmlError::PeerLost`]: then the outcome is unknown.
    ///
    /// A send whose result is not collected yet can be cancelled as long as its message was short and waits for its
    /// receive; otherwise nothing changes. A send whose message was copied is done and cannot be cancelled: a
    /// buffered one, or a short one to a peer that it had no link with for a while.
    ///
    /// # Errors
    /// There is no such request.
    pub fn cancel_send(&mut self, id: RequestId) -> Result<bool, PmlError> {
        self.core.cancel_send(&mut self.bml, id)?;
        for _ in 0..TURNS {
            if !self.core.asks_itself(id) {
                break;
            }
            self.progress();
        }
        let failure = self.core.requests.failure(id);
        Ok(failure.is_some_and(|failure| failure.error == PmlError::Cancelled))
    }

    /// As [`isend`](Pml::isend), of data that is ready only when all of `after` have ended: kernels on the caller's
    /// streams that write it, for instance. The message is matched as if it were sent now; later messages are not
    /// delayed. If some of that work fails, the send ends with its error, and the receive with
    /// [`PmlError::SenderFailed`].
    ///
    /// The data moves only if this endpoint makes progress after the work has ended.
    ///
    /// # Safety
    /// As [`isend`](Pml::isend); what writes the memory must be among what `after` stands for.
    ///
    /// # Errors
    /// As [`isend`](Pml::isend); some of the work has failed already.
    pub unsafe fn isend_after(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
        after: &[Completion],
    ) -> Result<RequestId, PmlError> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.isend_after(&mut self.bml, comm, buffer, (dest, tag), after) }
    }

    /// Reserves `bytes` for buffered sends (`MPI_Buffer_attach`, MPI 4.1 §3.6): the most that their copies take at a
    /// time, [`BUFFERED_OVERHEAD`](crate::BUFFERED_OVERHEAD) for each message included. The memory is allocated message by message.
    ///
    /// # Errors
    /// A buffer is attached already.
    pub fn attach_buffer(&mut self, bytes: u64) -> Result<(), PmlError> {
        if self.core.attached.is_some() {
            return Err(PmlError::BufferAttached);
        }
        self.core.attached = Some(Attached::new(bytes));
        Ok(())
    }

    /// Makes the attached buffer as large as this, or attaches one. Messages that are in it stay, and count.
    pub fn resize_buffer(&mut self, bytes: u64) {
        match &mut self.core.attached {
            Some(attached) => attached.resize(bytes),
            attached => *attached = Some(Attached::new(bytes)),
        }
    }

    /// Whether no message is in an attached buffer. Makes no progress.
    pub fn is_buffer_empty(&self) -> bool {
        !self.core.attached.as_ref().is_some_and(Attached::is_used)
    }

    /// Detaches the buffer if nothing is in it any more; gives its size in bytes (0 if there is none).
    /// Makes no progress.
    pub fn try_detach_buffer(&mut self) -> Option<u64> {
        match &self.core.attached {
            Some(attached) if attached.is_used() => None,
            _ => Some(self.core.attached.take().map_or(0, |attached| attached.limit())),
        }
    }

    /// Waits until every message in the attached buffer has left, and detaches it
    /// (`MPI_Buffer_detach`, MPI 4.1 §3.6); gives its size in bytes.
    ///
    /// # Errors
    /// None so far.
    pub fn detach_buffer(&mut self) -> Result<u64, PmlError> {
        self.wait_for(|pml| Ok(pml.try_detach_buffer()))
    }
}
