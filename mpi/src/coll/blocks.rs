//! Gather, scatter, all-gather, all-to-all (MPI 4.1 §6.5 to §6.8), and those among neighbours (§8.6). Each function is for
//! blocks of one length, of any lengths, and of any datatypes.

use super::{Blocks, Call, Rooted};
use crate::call::{Done, Fail, Form};
use crate::comm::Comm;
use crate::face;
use gapless::raw::{Buffer, Operation};
use std::ffi::c_int;

pub(crate) unsafe fn gather(
    form: Form,
    send: Blocks,
    recv: Blocks,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let operation = if recv.is_even() { Operation::Gather } else { Operation::Gatherv };
    let send = if rooted.is_member { send.one()? } else { Buffer::Nothing };
    let recv = match rooted.is_root {
        // SAFETY: the caller's promise.
        true => unsafe { recv.all(comm.peers()) }?,
        false => Buffer::Nothing,
    };
    // SAFETY: the caller's promise.
    unsafe { Call::new(operation, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn scatter(
    form: Form,
    send: Blocks,
    recv: Blocks,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let operation = if send.is_even() { Operation::Scatter } else { Operation::Scatterv };
    let send = match rooted.is_root {
        // SAFETY: the caller's promise.
        true => unsafe { send.all(comm.peers()) }?,
        false => Buffer::Nothing,
    };
    let recv = if rooted.is_member { recv.one()? } else { Buffer::Nothing };
    // SAFETY: the caller's promise.
    unsafe { Call::new(operation, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn allgather(form: Form, send: Blocks, recv: Blocks, comm: Comm) -> Done {
    let operation = if recv.is_even() { Operation::Allgather } else { Operation::Allgatherv };
    let send = send.one()?;
    // SAFETY: the caller's promise.
    let recv = unsafe { recv.all(comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(operation, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn alltoall(form: Form, send: Blocks, recv: Blocks, comm: Comm) -> Done {
    let operation = if recv.is_even() { Operation::Alltoall } else { Operation::Alltoallv };
    // SAFETY: the caller's promise.
    let send = unsafe { send.all_or_in_place(comm.peers()) }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { recv.all(comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(operation, send, recv).go(form, &comm) }
}

/// How many neighbours send to this rank, and to how many it sends.
fn neighbors(comm: &Comm, send: &Blocks) -> Done<(u32, u32)> {
    if send.is_in_place() {
        return Err(Fail::new(face::ERR_BUFFER, "neighbours' collectives have no MPI_IN_PLACE"));
    }
    let none = || Fail::new(face::ERR_TOPOLOGY, "the communicator has no topology");
    let topology = comm.comm.topology().ok_or_else(none)?;
    let found = topology
        .neighbors(comm.comm.rank())
        .map_err(|error| Fail::new(face::ERR_TOPOLOGY, error.to_string()))?;
    let number = |list: usize| u32::try_from(list).unwrap_or(u32::MAX);
    Ok((number(found.sources.len()), number(found.destinations.len())))
}

pub(crate) unsafe fn neighbor_allgather(
    form: Form,
    send: Blocks,
    recv: Blocks,
    comm: Comm,
) -> Done {
    let (sources, _) = neighbors(&comm, &send)?;
    let send = send.one()?;
    // SAFETY: the caller's promise.
    let recv = unsafe { recv.all(sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAllgather, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn neighbor_alltoall(form: Form, send: Blocks, recv: Blocks, comm: Comm) -> Done {
    let (sources, destinations) = neighbors(&comm, &send)?;
    // SAFETY: the caller's promise.
    let send = unsafe { send.all(destinations) }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { recv.all(sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAlltoall, send, recv).go(form, &comm) }
}
