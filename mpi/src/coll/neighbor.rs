//! Collectives among neighbours (MPI 4.1 §8.6).

use super::{Call, Side, blocks, blocks_of_types, is_in_place};
use crate::arg::{self, Numbers};
use crate::call::{Done, Fail, Form};
use crate::comm::Comm;
use crate::face::{self, RawHandle};
use gapless::raw::Operation;
use std::ffi::c_void;

/// How many neighbours send to this rank, and to how many it sends.
fn neighbors(comm: &Comm, sendbuf: *const c_void) -> Done<(u32, u32)> {
    if is_in_place(sendbuf) {
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
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    let (sources, _) = neighbors(&comm, sendbuf)?;
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).times(sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAllgather, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn neighbor_allgatherv(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcounts: Numbers,
    displs: Numbers,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    let (sources, _) = neighbors(&comm, sendbuf)?;
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    let datatype = arg::datatype(recvtype, "recvtype")?;
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks(recvbuf, (recvcounts, displs), &datatype, sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAllgather, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn neighbor_alltoall(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    let (sources, destinations) = neighbors(&comm, sendbuf)?;
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).times(destinations) }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).times(sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAlltoall, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn neighbor_alltoallv(
    form: Form,
    sendbuf: *const c_void,
    sendcounts: Numbers,
    sdispls: Numbers,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcounts: Numbers,
    rdispls: Numbers,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    let (sources, destinations) = neighbors(&comm, sendbuf)?;
    let datatype = arg::datatype(sendtype, "sendtype")?;
    // SAFETY: the caller's promise.
    let send = unsafe { blocks(sendbuf, (sendcounts, sdispls), &datatype, destinations) }?;
    let datatype = arg::datatype(recvtype, "recvtype")?;
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks(recvbuf, (recvcounts, rdispls), &datatype, sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAlltoall, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn neighbor_alltoallw(
    form: Form,
    sendbuf: *const c_void,
    sendcounts: Numbers,
    sdispls: Numbers,
    sendtypes: *const RawHandle,
    recvbuf: *mut c_void,
    recvcounts: Numbers,
    rdispls: Numbers,
    recvtypes: *const RawHandle,
    comm: Comm,
) -> Done {
    let (sources, destinations) = neighbors(&comm, sendbuf)?;
    // SAFETY: the caller's promise.
    let send = unsafe { blocks_of_types(sendbuf, (sendcounts, sdispls), sendtypes, destinations) }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks_of_types(recvbuf, (recvcounts, rdispls), recvtypes, sources) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::NeighborAlltoall, send, recv).go(form, &comm) }
}
