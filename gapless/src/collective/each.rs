//! Collectives that own their buffers, with a layout for each rank (MPI 4.1 §6.13.8, §8.8.5).

use super::owned::{Described, park_both};
use super::{Blocks, BlocksMut, Collective, OwnedCollective, PersistentCollective};
use crate::communicator::Communicator;
use crate::owned::{OwnedBlocks, OwnedBuffer, OwnedBufferMut, Refused};

impl Communicator {
    /// As [`collective_init`](Communicator::collective_init), of blocks for each rank or neighbour: `describe` gets
    /// those that are sent, and those that are received into. It makes a persistent
    /// [`alltoallw`](Collective::alltoallw) or [`neighbor_alltoallw`](Collective::neighbor_alltoallw), or another
    /// operation that takes blocks. [`OwnedBlocks`] has an example.
    ///
    /// # Errors
    /// As there; [`Error::InUse`](crate::Error::InUse): blocks that are received into overlap.
    pub fn collective_init_blocks<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: impl Into<OwnedBlocks<S>>,
        recv: impl Into<OwnedBlocks<R>>,
        describe: impl for<'v> FnOnce(Blocks<'v>, BlocksMut<'v>) -> Collective<'v>,
    ) -> Result<PersistentCollective<S, R>, Refused<(S, R)>> {
        self.keep_persistent(described(send.into(), recv.into(), describe)?)
    }

    /// As [`begin_owned`](Communicator::begin_owned), of blocks for each rank or neighbour, as for
    /// [`collective_init_blocks`](Communicator::collective_init_blocks).
    ///
    /// # Errors
    /// As there.
    pub fn begin_owned_blocks<S: OwnedBuffer, R: OwnedBufferMut>(
        &self,
        send: impl Into<OwnedBlocks<S>>,
        recv: impl Into<OwnedBlocks<R>>,
        describe: impl for<'v> FnOnce(Blocks<'v>, BlocksMut<'v>) -> Collective<'v>,
    ) -> Result<OwnedCollective<S, R>, Refused<(S, R)>> {
        self.begin_described(described(send.into(), recv.into(), describe)?)
    }
}

/// Takes the buffers apart and has them described.
fn described<S: OwnedBuffer, R: OwnedBuffer>(
    send: OwnedBlocks<S>,
    recv: OwnedBlocks<R>,
    describe: impl for<'v> FnOnce(Blocks<'v>, BlocksMut<'v>) -> Collective<'v>,
) -> Result<Described<S, R>, Refused<(S, R)>> {
    let ways = (OwnedBlocks::park_sent, OwnedBlocks::park_received);
    let ((out, sent), (inn, received)) = park_both(send, recv, ways, |recv| recv.buffer)?;
    // SAFETY: the description is used only while the memory is kept: see `keep`. `describe` can keep none of the
    // blocks, as it must do with any lifetime.
    let sent = unsafe { Blocks::of_typed(sent) };
    // SAFETY: as above; no two of them have a byte in common, and nothing else refers to the memory.
    let room = unsafe { BlocksMut::of_typed(received) };
    Ok(Described { collective: describe(sent, room), memory: (out, inn) })
}
