//! Collectives (MPI 4.1 chapters 6 and 8): described once, and then waited for, started, or started again and again.
//!
//! A [`Collective`] says what a rank does: the operation, its buffers, root and operation on elements. Nothing happens
//! until a communicator takes it (`perform.rs`, which is also the only place where blocking ones begin): it gets its place in
//! the order of calls (`reserve.rs`), `prepare.rs` checks it against the communicator and chooses its algorithm, and
//! `gapless_coll::runtime` carries it out. A blocking one borrows the communicator's modules (`borrowed_modules.rs`),
//! others are in flight behind the world's lock, and whoever makes progress advances them.
//!
//! # What is where
//!
//! - what ranks give: `buffers`, `error`, `between` (intercommunicators);
//! - forms: `named` (methods), `perform` (blocking), `scoped` (borrowed memory), `owned` and `each` (own buffers);
//! - on the way: `reserve`, `prepare`, `borrowed_modules`, `remembered` (the last calls of a communicator),
//!   `persistent_comms` (tags of persistent ones);
//! - what modules of `gapless_coll` are given: `on_gpu` and `tasks` (those of reductions).

mod between;
mod borrowed_modules;
mod buffers;
mod each;
mod error;
mod handle;
mod named;
mod on_gpu;
mod owned;
mod perform;
mod persistent_comms;
#[allow(unsafe_code, reason = "frees device memory")]
mod prepare;
mod remembered;
#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod reserve;
mod scoped;
mod tasks;

pub use between::Root;
pub(crate) use buffers::cut;
pub use buffers::{Blocks, BlocksMut, Buffer, InPlace, Input, Output};
pub use error::CollectiveError;
pub(crate) use handle::CollectiveHandle;
pub use owned::{OwnedCollective, PersistentCollective};
pub(crate) use perform::CommunicatorState;
pub use scoped::CollectiveRequest;
pub(crate) use scoped::Joined;
pub(crate) use tasks::Carrier;

use crate::view::RecvBuffer;
use gapless_coll::Operation;
use gapless_engine::Op;
use std::marker::PhantomData;

/// What a rank does in a collective: the one description for all its forms.
///
/// | form | with a description | by name |
/// |---|---|---|
/// | blocking | [`Communicator::perform`](crate::Communicator::perform) | [`allreduce`](crate::Communicator::allreduce) |
/// | non-blocking | [`Scope::begin`](crate::Scope::begin) | [`iallreduce`](crate::Scope::iallreduce) |
/// | non-blocking, with its buffers | [`Communicator::begin_owned`](crate::Communicator::begin_owned) | |
/// | persistent | [`Communicator::collective_init`](crate::Communicator::collective_init) | |
///
/// All members of a communicator call its collectives in the same order, each in the same form at all members (blocking
/// calls match neither non-blocking nor persistent ones, MPI 4.1 §6.12), with arguments that fit together as MPI
/// demands. What they give for sending is an [`Input`]: anything that makes a [`View`](crate::View), [`Blocks`] where
/// ranks have blocks of different lengths, [`InPlace`] where MPI has `MPI_IN_PLACE`, or `()` where the rank gives
/// nothing. What they receive into is an [`Output`], likewise. Where an argument is of no significance at a rank (the
/// receive buffer of a gather anywhere but at the root, say), whatever is given is not looked at.
///
/// On an intercommunicator (MPI 4.1 §6.2.3) what a rank receives comes from the other group, whose ranks the blocks of
/// buffers are for, and [`Root`] says where the root is. Lists of counts of [`reduce_scatter`](Self::reduce_scatter) are
/// of this rank's group. Nothing can be in place there, and scan, exscan and collectives among neighbours are refused.
///
/// Buffers may have any layout, and may lie in memory of any kind, at each rank another. [`Pages`](crate::Pages) cost a
/// commit of their list, if indices lie in memory of the host; others are refused. What is received into has no index
/// twice. Where blocks have one length,
/// the packed stream of the view is cut into as many equal pieces as there are ranks. Counts are in elements of the
/// view: instances of its layout.
///
/// Results do not depend on time: for one form, number of ranks, table of algorithms, length, operation and root, and
/// for ranks that are near each other in the same way ([`Communicator::locality`](crate::Communicator::locality)), they
/// are the same each time, rounding included.
#[derive(Debug)]
#[must_use = "a description does nothing by itself"]
pub struct Collective<'b> {
    operation: Operation,
    root: Root,
    send: Buffer,
    recv: Buffer,
    /// Of each rank's block of a result that is scattered, in elements.
    counts: Box<[u64]>,
    op: Option<Op>,
    memory: PhantomData<&'b mut [u8]>,
}

impl<'b> Collective<'b> {
    #[inline]
    fn new(operation: Operation, send: Buffer, recv: Buffer) -> Collective<'b> {
        let (counts, memory) = (Box::default(), PhantomData);
        Collective { operation, root: Root::Rank(0), send, recv, counts, op: None, memory }
    }

    /// A description of what lies anywhere.
    ///
    /// # Safety
    /// For all of `'b`, what the first side describes is valid for reads, and nothing writes it; what the second side
    /// describes is valid for reads and writes, and nothing else touches it, nor do blocks that are received into
    /// overlap.
    pub(crate) unsafe fn of_buffers(
        operation: Operation,
        root: Root,
        (send, recv): (Buffer, Buffer),
        counts: &[u64],
        op: Option<Op>,
    ) -> Collective<'b> {
        Collective { root, counts: counts.into(), op, ..Collective::new(operation, send, recv) }
    }

    #[inline]
    fn rooted(self, root: impl Into<Root>) -> Collective<'b> {
        Collective { root: root.into(), ..self }
    }

    #[inline]
    fn with(self, op: Op) -> Collective<'b> {
        Collective { op: Some(op), ..self }
    }

    #[inline]
    fn moves(operation: Operation, send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::new(operation, send.into_arg(), recv.into_arg())
    }

    #[inline]
    fn combines(
        operation: Operation,
        (send, recv): (impl Input<'b>, impl RecvBuffer<'b>),
        op: impl Into<Op>,
    ) -> Collective<'b> {
        let recv = Buffer::Whole(recv.into_view().typed);
        Collective::new(operation, send.into_arg(), recv).with(op.into())
    }

    /// Ends when all ranks have called it (`MPI_Barrier`, MPI 4.1 §6.3).
    #[inline]
    pub fn barrier() -> Collective<'b> {
        Collective::new(Operation::Barrier, Buffer::Nothing, Buffer::Nothing)
    }

    /// What `buffer` holds at `root` goes to all others' (`MPI_Bcast`, MPI 4.1 §6.4). The root's is only read.
    #[inline]
    pub fn bcast(buffer: impl RecvBuffer<'b>, root: impl Into<Root>) -> Collective<'b> {
        let recv = Buffer::Whole(buffer.into_view().typed);
        Collective::new(Operation::Bcast, Buffer::Nothing, recv).rooted(root)
    }

    /// All ranks' blocks, in the order of the ranks, into `recv` at `root` (`MPI_Gather`, MPI 4.1 §6.5). The root may
    /// send [`InPlace`]: its block is where it belongs already.
    pub fn gather(
        send: impl Input<'b>,
        recv: impl Output<'b>,
        root: impl Into<Root>,
    ) -> Collective<'b> {
        Collective::moves(Operation::Gather, send, recv).rooted(root)
    }

    /// As [`gather`](Collective::gather), with blocks of any lengths (`MPI_Gatherv`): `recv` is [`BlocksMut`].
    pub fn gatherv(
        send: impl Input<'b>,
        recv: impl Output<'b>,
        root: impl Into<Root>,
    ) -> Collective<'b> {
        Collective::moves(Operation::Gatherv, send, recv).rooted(root)
    }

    /// A block to each rank, in the order of the ranks, out of `send` at `root` (`MPI_Scatter`, MPI 4.1 §6.6). The
    /// root may receive [`InPlace`]: its block stays where it is.
    pub fn scatter(
        send: impl Input<'b>,
        recv: impl Output<'b>,
        root: impl Into<Root>,
    ) -> Collective<'b> {
        Collective::moves(Operation::Scatter, send, recv).rooted(root)
    }

    /// As [`scatter`](Collective::scatter), with blocks of any lengths (`MPI_Scatterv`): `send` is [`Blocks`].
    pub fn scatterv(
        send: impl Input<'b>,
        recv: impl Output<'b>,
        root: impl Into<Root>,
    ) -> Collective<'b> {
        Collective::moves(Operation::Scatterv, send, recv).rooted(root)
    }

    /// All ranks' blocks, in the order of the ranks, to all (`MPI_Allgather`, MPI 4.1 §6.7). [`InPlace`]: each rank's
    /// block is where it belongs in its `recv` already.
    pub fn allgather(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::Allgather, send, recv)
    }

    /// As [`allgather`](Collective::allgather), with blocks of any lengths (`MPI_Allgatherv`): `recv` is
    /// [`BlocksMut`].
    pub fn allgatherv(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::Allgatherv, send, recv)
    }

    /// A block from each rank to each (`MPI_Alltoall`, MPI 4.1 §6.8). [`InPlace`]: what is sent is in `recv`, where
    /// what is received replaces it.
    pub fn alltoall(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::Alltoall, send, recv)
    }

    /// As [`alltoall`](Collective::alltoall), with blocks of any lengths (`MPI_Alltoallv`): [`Blocks`] and
    /// [`BlocksMut`].
    pub fn alltoallv(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::Alltoallv, send, recv)
    }

    /// As [`alltoallv`](Collective::alltoallv), with blocks of any layouts anywhere (`MPI_Alltoallw`):
    /// [`Blocks::each`] and [`BlocksMut::each`].
    pub fn alltoallw(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::alltoallv(send, recv)
    }

    /// All ranks' elements, combined, into `recv` at `root` (`MPI_Reduce`, MPI 4.1 §6.9.1). The root may send
    /// [`InPlace`]: its elements are in `recv`.
    ///
    /// A slice of `u8` has numbers here, not bytes. A user's function ([`UserOp`](crate::UserOp)) is called by
    /// whoever makes progress, with the world's lock held: it must not use the world.
    pub fn reduce(
        send: impl Input<'b>,
        recv: impl Output<'b>,
        op: impl Into<Op>,
        root: impl Into<Root>,
    ) -> Collective<'b> {
        Collective::moves(Operation::Reduce, send, recv).with(op.into()).rooted(root)
    }

    /// All ranks' elements, combined, to all (`MPI_Allreduce`, MPI 4.1 §6.9.6); see [`reduce`](Collective::reduce).
    /// [`InPlace`]: each rank's elements are in its `recv`.
    pub fn allreduce(
        send: impl Input<'b>,
        recv: impl RecvBuffer<'b>,
        op: impl Into<Op>,
    ) -> Collective<'b> {
        Collective::combines(Operation::Allreduce, (send, recv), op)
    }

    /// All ranks' elements, combined; rank `r` gets the next `counts[r]` elements of the result
    /// (`MPI_Reduce_scatter`, MPI 4.1 §6.10.2). [`InPlace`]: each rank's elements are in its `recv`, which then is as
    /// long as all blocks; its block of the result begins at the first.
    pub fn reduce_scatter(
        send: impl Input<'b>,
        recv: impl RecvBuffer<'b>,
        counts: &[u64],
        op: impl Into<Op>,
    ) -> Collective<'b> {
        let call = Collective::combines(Operation::ReduceScatter, (send, recv), op);
        Collective { counts: counts.into(), ..call }
    }

    /// As [`reduce_scatter`](Collective::reduce_scatter), with blocks of one length (`MPI_Reduce_scatter_block`,
    /// MPI 4.1 §6.10.1).
    pub fn reduce_scatter_block(
        send: impl Input<'b>,
        recv: impl RecvBuffer<'b>,
        op: impl Into<Op>,
    ) -> Collective<'b> {
        Collective::combines(Operation::ReduceScatterBlock, (send, recv), op)
    }

    /// The elements of all ranks up to and with this one, combined (`MPI_Scan`, MPI 4.1 §6.11.1). [`InPlace`]: each
    /// rank's elements are in its `recv`.
    pub fn scan(
        send: impl Input<'b>,
        recv: impl RecvBuffer<'b>,
        op: impl Into<Op>,
    ) -> Collective<'b> {
        Collective::combines(Operation::Scan, (send, recv), op)
    }

    /// The elements of all ranks before this one, combined (`MPI_Exscan`, MPI 4.1 §6.11.2); nothing is written at
    /// rank 0. [`InPlace`]: each rank's elements are in its `recv`.
    pub fn exscan(
        send: impl Input<'b>,
        recv: impl RecvBuffer<'b>,
        op: impl Into<Op>,
    ) -> Collective<'b> {
        Collective::combines(Operation::Exscan, (send, recv), op)
    }

    /// What each rank sends goes to all its neighbours in the communicator's topology; a block of `recv` for each
    /// neighbour that sends to this rank (`MPI_Neighbor_allgather`, MPI 4.1 §8.6.1). In a grid without neighbours at
    /// its rim, blocks of those that are not there are not touched.
    pub fn neighbor_allgather(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::NeighborAllgather, send, recv)
    }

    /// As [`neighbor_allgather`](Collective::neighbor_allgather), with blocks of any lengths
    /// (`MPI_Neighbor_allgatherv`): `recv` is [`BlocksMut`].
    pub fn neighbor_allgatherv(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::neighbor_allgather(send, recv)
    }

    /// A block to each neighbour in the communicator's topology, and one from each (`MPI_Neighbor_alltoall`,
    /// MPI 4.1 §8.6.2).
    pub fn neighbor_alltoall(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::moves(Operation::NeighborAlltoall, send, recv)
    }

    /// As [`neighbor_alltoall`](Collective::neighbor_alltoall), with blocks of any lengths
    /// (`MPI_Neighbor_alltoallv`): [`Blocks`] and [`BlocksMut`].
    pub fn neighbor_alltoallv(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::neighbor_alltoall(send, recv)
    }

    /// As [`neighbor_alltoallv`](Collective::neighbor_alltoallv), with blocks of any layouts anywhere
    /// (`MPI_Neighbor_alltoallw`): [`Blocks::each`] and [`BlocksMut::each`].
    pub fn neighbor_alltoallw(send: impl Input<'b>, recv: impl Output<'b>) -> Collective<'b> {
        Collective::neighbor_alltoall(send, recv)
    }
}
