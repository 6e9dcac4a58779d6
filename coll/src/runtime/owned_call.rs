//! A call that owns its lists.

use std::sync::Arc;

use crate::topologies::Neighborhood;
use crate::{Call, Operation, Reduction};

/// A [`Call`] that owns its lists. What the operation does not need is not looked at.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    /// Which it is.
    pub operation: Operation,
    /// The root.
    pub root: usize,
    /// Whether the send buffer, or of scatters the receive buffer, is the other one.
    pub in_place: bool,
    /// What a reduction combines.
    pub of: Reduction,
    /// Packed bytes of this rank's block, of the vector, or of any block where all are alike.
    pub len: u64,
    /// Packed bytes of each block that is sent.
    pub send: Vec<u64>,
    /// Packed bytes of each block that is received, or of the result.
    pub recv: Vec<u64>,
    /// This rank's neighbours.
    pub neighbors: Option<Arc<Neighborhood>>,
}

impl OwnedCall {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        use Operation as O;
        let OwnedCall { root, in_place, of, len, .. } = *self;
        let (send, recv) = (self.send.as_slice(), self.recv.as_slice());
        let neighbors = || match self.neighbors.as_deref() {
            Some(Neighborhood { sources, destinations }) => (&sources[..], &destinations[..]),
            None => (&[][..], &[][..]),
        };
        match self.operation {
            O::Barrier => Call::Barrier,
            O::Bcast => Call::Bcast { root, len },
            O::Gather => Call::Gather { root, len, in_place },
            O::Gatherv => Call::Gatherv { root, len, lens: recv, in_place },
            O::Scatter => Call::Scatter { root, len, in_place },
            O::Scatterv => Call::Scatterv { root, len, lens: send, in_place },
            O::Allgather => Call::Allgather { len, in_place },
            O::Allgatherv => Call::Allgatherv { lens: recv, in_place },
            O::Alltoall => Call::Alltoall { len, in_place },
            O::Alltoallv => Call::Alltoallv { send, recv, in_place },
            O::Reduce => Call::Reduce { root, len, of, in_place },
            O::Allreduce => Call::Allreduce { len, of, in_place },
            O::ReduceScatter => Call::ReduceScatter { lens: recv, of, in_place },
            O::ReduceScatterBlock => Call::ReduceScatterBlock { len, of, in_place },
            O::Scan => Call::Scan { len, of, in_place },
            O::Exscan => Call::Exscan { len, of, in_place },
            O::NeighborAllgather => {
                let (sources, destinations) = neighbors();
                Call::NeighborAllgather { sources, destinations, len, recv }
            }
            O::NeighborAlltoall => {
                let (sources, destinations) = neighbors();
                Call::NeighborAlltoall { sources, destinations, send, recv }
            }
        }
    }
}
