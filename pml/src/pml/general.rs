//! Requests for work that the caller carries out itself (generalized requests, MPI 4.1 §13.2): a collective of many
//! messages, say. They are waited for, tested and watched like any other.

use crate::error::PmlError;
use crate::pml::Pml;
use crate::protocol::Protocol;
use crate::status::{RequestId, Status};

impl Pml {
    /// Adds a request that ends when [`end_general`](Pml::end_general) says so (`MPI_Grequest_start`, MPI 4.1 §13.2).
    /// It cannot be cancelled.
    pub fn begin_general(&mut self) -> RequestId {
        self.core.requests.insert_general()
    }

    /// Ends such a request (`MPI_Grequest_complete`, MPI 4.1 §13.2). Its status names this process, and has no bytes.
    ///
    /// # Errors
    /// There is no such request, or it has ended.
    pub fn end_general(&mut self, id: RequestId) -> Result<(), PmlError> {
        if !self.core.requests.is_general(id) {
            return Err(PmlError::NoSuchRequest);
        }
        let status = Status { source: self.core.me, tag: 0, bytes: 0, protocol: Protocol::Eager };
        self.core.requests.finish_uncounted(id, Ok(status));
        Ok(())
    }
}
