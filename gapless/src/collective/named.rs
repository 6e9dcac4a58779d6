//! Makes `Communicator::{bcast, …, allreduce, …}` and `Scope::{ibcast, …}`; each calls `perform` or `begin`.

use super::{Collective, CollectiveRequest, Input, Output, Root};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::scope::Scope;
use crate::view::RecvBuffer;
use gapless_engine::Op;

macro_rules! named {
    ($($name:ident $starts:ident ($($argument:ident: $type:ty),*) $mpi:literal $mpi_starts:literal;)*) => {
        impl Communicator {
            $(
                #[doc = concat!("`MPI_", $mpi, "`: see [`Collective::", stringify!($name), "`].")]
                ///
                /// # Errors
                /// As [`perform`](Communicator::perform).
                pub fn $name<'b>(&self, $($argument: $type),*) -> Result<(), Error> {
                    self.perform(Collective::$name($($argument),*))
                }
            )*
        }

        impl<'b> Scope<'b, '_> {
            $(
                #[doc = concat!("`MPI_", $mpi_starts, "`: see [`Collective::", stringify!($name), "`].")]
                ///
                /// # Errors
                /// As [`begin`](Scope::begin).
                pub fn $starts(
                    &'b self,
                    $($argument: $type),*
                ) -> Result<CollectiveRequest<'b>, Error> {
                    self.begin(Collective::$name($($argument),*))
                }
            )*
        }
    };
}

named! {
    bcast ibcast (buffer: impl RecvBuffer<'b>, root: impl Into<Root>) "Bcast" "Ibcast";
    gather igather (
        send: impl Input<'b>, recv: impl Output<'b>, root: impl Into<Root>
    ) "Gather" "Igather";
    gatherv igatherv (
        send: impl Input<'b>, recv: impl Output<'b>, root: impl Into<Root>
    ) "Gatherv" "Igatherv";
    scatter iscatter (
        send: impl Input<'b>, recv: impl Output<'b>, root: impl Into<Root>
    ) "Scatter" "Iscatter";
    scatterv iscatterv (
        send: impl Input<'b>, recv: impl Output<'b>, root: impl Into<Root>
    ) "Scatterv" "Iscatterv";
    allgather iallgather (send: impl Input<'b>, recv: impl Output<'b>) "Allgather" "Iallgather";
    allgatherv iallgatherv (send: impl Input<'b>, recv: impl Output<'b>) "Allgatherv" "Iallgatherv";
    alltoall ialltoall (send: impl Input<'b>, recv: impl Output<'b>) "Alltoall" "Ialltoall";
    alltoallv ialltoallv (send: impl Input<'b>, recv: impl Output<'b>) "Alltoallv" "Ialltoallv";
    alltoallw ialltoallw (send: impl Input<'b>, recv: impl Output<'b>) "Alltoallw" "Ialltoallw";
    reduce ireduce (
        send: impl Input<'b>, recv: impl Output<'b>, op: impl Into<Op>, root: impl Into<Root>
    ) "Reduce" "Ireduce";
    allreduce iallreduce (
        send: impl Input<'b>, recv: impl RecvBuffer<'b>, op: impl Into<Op>
    ) "Allreduce" "Iallreduce";
    reduce_scatter ireduce_scatter (
        send: impl Input<'b>, recv: impl RecvBuffer<'b>, counts: &[u64], op: impl Into<Op>
    ) "Reduce_scatter" "Ireduce_scatter";
    reduce_scatter_block ireduce_scatter_block (
        send: impl Input<'b>, recv: impl RecvBuffer<'b>, op: impl Into<Op>
    ) "Reduce_scatter_block" "Ireduce_scatter_block";
    scan iscan (
        send: impl Input<'b>, recv: impl RecvBuffer<'b>, op: impl Into<Op>
    ) "Scan" "Iscan";
    exscan iexscan (
        send: impl Input<'b>, recv: impl RecvBuffer<'b>, op: impl Into<Op>
    ) "Exscan" "Iexscan";
    neighbor_allgather ineighbor_allgather (
        send: impl Input<'b>, recv: impl Output<'b>
    ) "Neighbor_allgather" "Ineighbor_allgather";
    neighbor_allgatherv ineighbor_allgatherv (
        send: impl Input<'b>, recv: impl Output<'b>
    ) "Neighbor_allgatherv" "Ineighbor_allgatherv";
    neighbor_alltoall ineighbor_alltoall (
        send: impl Input<'b>, recv: impl Output<'b>
    ) "Neighbor_alltoall" "Ineighbor_alltoall";
    neighbor_alltoallv ineighbor_alltoallv (
        send: impl Input<'b>, recv: impl Output<'b>
    ) "Neighbor_alltoallv" "Ineighbor_alltoallv";
    neighbor_alltoallw ineighbor_alltoallw (
        send: impl Input<'b>, recv: impl Output<'b>
    ) "Neighbor_alltoallw" "Ineighbor_alltoallw";
}

impl Communicator {
    /// `MPI_Barrier`: see [`Collective::barrier`].
    ///
    /// # Errors
    /// As [`perform`](Communicator::perform).
    pub fn barrier(&self) -> Result<(), Error> {
        self.perform(Collective::barrier())
    }
}

impl<'scope> Scope<'scope, '_> {
    /// `MPI_Ibarrier`: see [`Collective::barrier`].
    ///
    /// # Errors
    /// As [`begin`](Scope::begin).
    pub fn ibarrier(&'scope self) -> Result<CollectiveRequest<'scope>, Error> {
        self.begin(Collective::barrier())
    }
}
