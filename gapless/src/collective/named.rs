//! The methods that are named after collectives: each is its description, performed or begun.

use super::{Collective, CollectiveRequest, Input, Output};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::scope::Scope;
use crate::view::ViewMut;
use gapless_engine::Op;

macro_rules! named {
    ($($name:ident $starts:ident ($($argument:ident: $type:ty),*) $mpi:literal;)*) => {
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
                #[doc = concat!("`MPI_I", $mpi, "`: see [`Collective::", stringify!($name), "`].")]
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
    bcast ibcast (buffer: impl Into<ViewMut<'b>>, root: u32) "bcast";
    gather igather (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>, root: u32) "gather";
    gatherv igatherv (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>, root: u32) "gatherv";
    scatter iscatter (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>, root: u32) "scatter";
    scatterv iscatterv (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>, root: u32) "scatterv";
    allgather iallgather (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>) "allgather";
    allgatherv iallgatherv (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>) "allgatherv";
    alltoall ialltoall (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>) "alltoall";
    alltoallv ialltoallv (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>) "alltoallv";
    alltoallw ialltoallw (send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>) "alltoallw";
    reduce ireduce (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>, op: impl Into<Op>, root: u32
    ) "reduce";
    allreduce iallreduce (
        send: impl Into<Input<'b>>, recv: impl Into<ViewMut<'b>>, op: impl Into<Op>
    ) "allreduce";
    reduce_scatter ireduce_scatter (
        send: impl Into<Input<'b>>, recv: impl Into<ViewMut<'b>>, counts: &[u64], op: impl Into<Op>
    ) "reduce_scatter";
    reduce_scatter_block ireduce_scatter_block (
        send: impl Into<Input<'b>>, recv: impl Into<ViewMut<'b>>, op: impl Into<Op>
    ) "reduce_scatter_block";
    scan iscan (
        send: impl Into<Input<'b>>, recv: impl Into<ViewMut<'b>>, op: impl Into<Op>
    ) "scan";
    exscan iexscan (
        send: impl Into<Input<'b>>, recv: impl Into<ViewMut<'b>>, op: impl Into<Op>
    ) "exscan";
    neighbor_allgather ineighbor_allgather (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>
    ) "neighbor_allgather";
    neighbor_allgatherv ineighbor_allgatherv (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>
    ) "neighbor_allgatherv";
    neighbor_alltoall ineighbor_alltoall (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>
    ) "neighbor_alltoall";
    neighbor_alltoallv ineighbor_alltoallv (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>
    ) "neighbor_alltoallv";
    neighbor_alltoallw ineighbor_alltoallw (
        send: impl Into<Input<'b>>, recv: impl Into<Output<'b>>
    ) "neighbor_alltoallw";
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
