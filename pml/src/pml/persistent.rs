//! Persistent requests (MPI 4.1 §3.9): an operation that is described once and started again and
//! again.
//!
//! A [`Persistent`] is the description; [`Pml::start`](crate::Pml::start) makes a request of it like
//! any other, to be waited for, tested or cancelled like any other. It is inactive again when the
//! result of that request has been collected.

use crate::comm::Comm;
use crate::matching::{Source, TagSel};
use crate::pml::Pml;
use crate::status::RequestId;
use crate::wire::SendMode;
use gapless_bml::Rank;
use gapless_engine::Typed;

/// An operation to be started any number of times. Dropping it is `MPI_Request_free`: what it has
/// started goes on.
#[derive(Debug)]
pub struct Persistent {
    pub(crate) comm: Comm,
    pub(crate) buffer: Typed,
    pub(crate) what: PersistentCall,
    /// What it started last.
    pub(crate) active: Option<RequestId>,
}

/// Which operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PersistentCall {
    Send { dest: u32, tag: i32, mode: SendMode },
    Recv { source: Source, tag: TagSel },
}

impl Persistent {
    /// A send (`MPI_Send_init`, `MPI_Ssend_init`, `MPI_Rsend_init`, `MPI_Bsend_init`). Its arguments
    /// are checked when it is started.
    #[must_use]
    pub fn send(comm: &Comm, buffer: &Typed, dest: u32, tag: i32, mode: SendMode) -> Persistent {
        let what = PersistentCall::Send { dest, tag, mode };
        Persistent { comm: comm.clone(), buffer: buffer.clone(), what, active: None }
    }

    /// A receive (`MPI_Recv_init`).
    #[must_use]
    pub fn recv(comm: &Comm, buffer: &Typed, source: Source, tag: TagSel) -> Persistent {
        let what = PersistentCall::Recv { source, tag };
        Persistent { comm: comm.clone(), buffer: buffer.clone(), what, active: None }
    }

    /// The request that it started last, whether that has ended or not.
    #[must_use]
    pub fn last(&self) -> Option<RequestId> {
        self.active
    }
}

impl Pml {
    /// Whether the other end of an operation is likely to be in a device's memory that this process's devices map: so an
    /// earlier message with it has shown. Then registering a long buffer in memory of the host with them is of use.
    pub fn expects_device(&mut self, persistent: &Persistent) -> bool {
        let rank = match persistent.what {
            PersistentCall::Send { dest, .. } => dest,
            PersistentCall::Recv { source: Source::Rank(rank), .. } => rank,
            PersistentCall::Recv { .. } => return false,
        };
        let Some(peer) = persistent.comm.peers().process(rank) else { return false };
        self.core.rndv.facts(peer).has_devices && self.bml.mapped(Rank(peer)).is_some()
    }
}
