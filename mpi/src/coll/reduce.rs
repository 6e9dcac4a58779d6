//! Reductions (MPI 4.1 §6.9 to §6.11).

use super::{Call, Rooted, is_in_place};
use crate::arg::Numbers;
use crate::call::{Done, Fail, Form};
use crate::comm::Comm;
use crate::datatype::{Type, typed};
use crate::face;
use crate::op::{self, Op};
use gapless::raw::{Buffer, Operation};
use std::ffi::{c_int, c_void};

/// Elements that are combined, or nothing if they are in place.
///
/// # Safety
/// The memory is as MPI says.
unsafe fn elements(buf: *const c_void, count: u64, datatype: &Type) -> Done<Buffer> {
    match is_in_place(buf) {
        true => Ok(Buffer::InPlace),
        // SAFETY: the caller's promise.
        false => Ok(Buffer::Whole(unsafe { typed(buf, count, datatype) }?)),
    }
}

/// A reduction whose result all ranks have, of as many elements.
///
/// # Safety
/// The memory is as MPI says.
unsafe fn to_all(
    operation: Operation,
    form: Form,
    (sendbuf, recvbuf): (*const c_void, *mut c_void),
    (count, datatype): (u64, &Type),
    (op, comm): (&Op, &Comm),
) -> Done {
    // SAFETY: the caller's promise.
    let send = unsafe { elements(sendbuf, count, datatype) }?;
    // SAFETY: the caller's promise.
    let recv = Buffer::Whole(unsafe { typed(recvbuf, count, datatype) }?);
    let op = Some(op::bind(op, datatype)?);
    // SAFETY: the caller's promise.
    unsafe { Call { op, ..Call::new(operation, send, recv) }.go(form, comm) }
}

macro_rules! to_all {
    ($($name:ident $operation:ident)*) => {
        $(
            pub(crate) unsafe fn $name(
                form: Form,
                sendbuf: *const c_void,
                recvbuf: *mut c_void,
                count: u64,
                datatype: Type,
                op: Op,
                comm: Comm,
            ) -> Done {
                let buffers = (sendbuf, recvbuf);
                // SAFETY: the caller's promise.
                unsafe {
                    to_all(Operation::$operation, form, buffers, (count, &datatype), (&op, &comm))
                }
            }
        )*
    };
}

to_all! {
    allreduce Allreduce
    scan Scan
    exscan Exscan
}

pub(crate) unsafe fn reduce(
    form: Form,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: u64,
    datatype: Type,
    op: Op,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let (mut send, mut recv) = (Buffer::Nothing, Buffer::Nothing);
    if rooted.is_member(&comm) {
        // SAFETY: the caller's promise.
        send = unsafe { elements(sendbuf, count, &datatype) }?;
    }
    if rooted.is_root {
        // SAFETY: the caller's promise.
        recv = Buffer::Whole(unsafe { typed(recvbuf, count, &datatype) }?);
    }
    // Where there is nothing to do, the datatype may be any.
    let op = if rooted.is_idle { None } else { Some(op::bind(&op, &datatype)?) };
    let call = Call { op, ..Call::new(Operation::Reduce, send, recv) };
    // SAFETY: the caller's promise.
    unsafe { call.rooted(rooted.root).go(form, &comm) }
}

fn too_many() -> Fail {
    Fail::new(face::ERR_COUNT, "the buffer is too long for the address space")
}

pub(crate) unsafe fn reduce_scatter(
    form: Form,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcounts: Numbers,
    datatype: Type,
    op: Op,
    comm: Comm,
) -> Done {
    // Of this rank's group.
    let ranks = comm.comm.size() as usize;
    // SAFETY: the caller's promise.
    let counts = unsafe { recvcounts.counts(ranks, "recvcounts") }?;
    let total = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    let total = total.ok_or_else(too_many)?;
    let own = counts.get(comm.comm.rank() as usize).copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    let send = unsafe { elements(sendbuf, total, &datatype) }?;
    let received = if matches!(send, Buffer::InPlace) { total } else { own };
    // SAFETY: the caller's promise.
    let recv = Buffer::Whole(unsafe { typed(recvbuf, received, &datatype) }?);
    let op = Some(op::bind(&op, &datatype)?);
    let call = Call { op, counts, ..Call::new(Operation::ReduceScatter, send, recv) };
    // SAFETY: the caller's promise.
    unsafe { call.go(form, &comm) }
}

pub(crate) unsafe fn reduce_scatter_block(
    form: Form,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcount: u64,
    datatype: Type,
    op: Op,
    comm: Comm,
) -> Done {
    let total = recvcount.checked_mul(u64::from(comm.comm.size())).ok_or_else(too_many)?;
    // SAFETY: the caller's promise.
    let send = unsafe { elements(sendbuf, total, &datatype) }?;
    let received = if matches!(send, Buffer::InPlace) { total } else { recvcount };
    // SAFETY: the caller's promise.
    let recv = Buffer::Whole(unsafe { typed(recvbuf, received, &datatype) }?);
    let op = Some(op::bind(&op, &datatype)?);
    let call = Call { op, ..Call::new(Operation::ReduceScatterBlock, send, recv) };
    // SAFETY: the caller's promise.
    unsafe { call.go(form, &comm) }
}
