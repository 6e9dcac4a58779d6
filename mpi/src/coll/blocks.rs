//! Gather, scatter, all-gather, all-to-all (MPI 4.1 §6.5 to §6.8).

use super::{Call, Rooted, Side, blocks, blocks_of_types, is_in_place};
use crate::arg::{self, Numbers};
use crate::call::{Done, Form};
use crate::comm::Comm;
use crate::face::RawHandle;
use gapless::raw::{Buffer, Operation};
use std::ffi::{c_int, c_void};

pub(crate) unsafe fn gather(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let (mut send, mut recv) = (Buffer::Nothing, Buffer::Nothing);
    if rooted.is_member(&comm) {
        // SAFETY: the caller's promise.
        send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    }
    if rooted.is_root {
        // SAFETY: the caller's promise.
        recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).times(comm.peers()) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Gather, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn gatherv(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcounts: Numbers,
    displs: Numbers,
    recvtype: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let (mut send, mut recv) = (Buffer::Nothing, Buffer::Nothing);
    if rooted.is_member(&comm) {
        // SAFETY: the caller's promise.
        send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    }
    if rooted.is_root {
        let datatype = arg::datatype(recvtype, "recvtype")?;
        // SAFETY: the caller's promise.
        recv = unsafe { blocks(recvbuf, (recvcounts, displs), &datatype, comm.peers()) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Gatherv, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn scatter(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let (mut send, mut recv) = (Buffer::Nothing, Buffer::Nothing);
    if rooted.is_root {
        // SAFETY: the caller's promise.
        send = unsafe { Side::send(sendbuf, sendcount, sendtype).times(comm.peers()) }?;
    }
    if rooted.is_member(&comm) {
        // SAFETY: the caller's promise.
        recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).one() }?;
    }
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Scatter, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn scatterv(
    form: Form,
    sendbuf: *const c_void,
    sendcounts: Numbers,
    displs: Numbers,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let (mut send, mut recv) = (Buffer::Nothing, Buffer::Nothing);
    if rooted.is_root {
        let datatype = arg::datatype(sendtype, "sendtype")?;
        // SAFETY: the caller's promise.
        send = unsafe { blocks(sendbuf, (sendcounts, displs), &datatype, comm.peers()) }?;
    }
    if rooted.is_member(&comm) {
        // SAFETY: the caller's promise.
        recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).one() }?;
    }
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Scatterv, send, recv).rooted(rooted.root).go(form, &comm) }
}

pub(crate) unsafe fn allgather(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).times(comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Allgather, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn allgatherv(
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
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).one() }?;
    let datatype = arg::datatype(recvtype, "recvtype")?;
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks(recvbuf, (recvcounts, displs), &datatype, comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Allgatherv, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn alltoall(
    form: Form,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: RawHandle,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: RawHandle,
    comm: Comm,
) -> Done {
    // SAFETY: the caller's promise.
    let send = unsafe { Side::send(sendbuf, sendcount, sendtype).or_in_place(comm.peers()) }?;
    // SAFETY: the caller's promise.
    let recv = unsafe { Side::recv(recvbuf, recvcount, recvtype).times(comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Alltoall, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn alltoallv(
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
    let send = match is_in_place(sendbuf) {
        true => Buffer::InPlace,
        false => {
            let datatype = arg::datatype(sendtype, "sendtype")?;
            // SAFETY: the caller's promise.
            unsafe { blocks(sendbuf, (sendcounts, sdispls), &datatype, comm.peers()) }?
        }
    };
    let datatype = arg::datatype(recvtype, "recvtype")?;
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks(recvbuf, (recvcounts, rdispls), &datatype, comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Alltoallv, send, recv).go(form, &comm) }
}

pub(crate) unsafe fn alltoallw(
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
    let send = match is_in_place(sendbuf) {
        true => Buffer::InPlace,
        false => {
            // SAFETY: the caller's promise.
            unsafe { blocks_of_types(sendbuf, (sendcounts, sdispls), sendtypes, comm.peers()) }?
        }
    };
    // SAFETY: the caller's promise.
    let recv = unsafe { blocks_of_types(recvbuf, (recvcounts, rdispls), recvtypes, comm.peers()) }?;
    // SAFETY: the caller's promise.
    unsafe { Call::new(Operation::Alltoallv, send, recv).go(form, &comm) }
}
