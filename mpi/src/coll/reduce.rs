//! Reductions (MPI 4.1 §6.9 to §6.11).

use super::{Blocks, Call, Rooted, is_in_place};
use crate::arg::{self, Numbers};
use crate::call::{Done, Fail, Form};
use crate::comm::Comm;
use crate::datatype::{Elements, Type, typed};
use crate::face::{self, RawHandle};
use crate::op::{self, Op};
use gapless::raw::{Buffer, Operation};
use std::ffi::{c_int, c_void};

/// Elements that are combined, or nothing if they are in place.
fn combined(buf: *const c_void, like: &Elements) -> Done<Buffer> {
    match is_in_place(buf) {
        true => Ok(Buffer::InPlace),
        false => Ok(Buffer::Whole(typed(buf, like.count, &like.datatype)?)),
    }
}

/// A reduction whose result all ranks have, of as many elements.
#[inline]
pub(crate) unsafe fn to_all(
    operation: Operation,
    form: Form,
    sendbuf: *const c_void,
    recv: Elements,
    op: Op,
    comm: Comm,
) -> Done {
    let (send, result) = (combined(sendbuf, &recv)?, Buffer::Whole(recv.typed()?));
    let op = Some(op::bind(&op, &recv.datatype)?);
    // SAFETY: the caller's promise.
    unsafe { Call { op, ..Call::new(operation, send, result) }.go(form, &comm) }
}

pub(crate) unsafe fn reduce(
    form: Form,
    sendbuf: *const c_void,
    recv: Blocks,
    op: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let mut call = Call::new(Operation::Reduce, Buffer::Nothing, Buffer::Nothing);
    // Where there is nothing to do, arguments may be any.
    if !rooted.is_idle {
        let (recv, op) = (recv.elements()?, arg::op(op, "op")?);
        if rooted.is_member {
            call.send = combined(sendbuf, &recv)?;
        }
        if rooted.is_root {
            call.recv = Buffer::Whole(recv.typed()?);
        }
        call.op = Some(op::bind(&op, &recv.datatype)?);
    }
    // SAFETY: the caller's promise.
    unsafe { call.rooted(rooted.root).go(form, &comm) }
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
    let too_many = || Fail::new(face::ERR_COUNT, "the buffer is too long for the address space");
    let total = total.ok_or_else(too_many)?;
    let own = counts.get(comm.comm.rank() as usize).copied().unwrap_or(0);
    let all = Elements::new(recvbuf, total, datatype);
    // SAFETY: the caller's promise.
    unsafe { scattered(Operation::ReduceScatter, form, sendbuf, (all, own), counts, op, comm) }
}

pub(crate) unsafe fn reduce_scatter_block(
    form: Form,
    sendbuf: *const c_void,
    recv: Elements,
    op: Op,
    comm: Comm,
) -> Done {
    let (own, operation) = (recv.count, Operation::ReduceScatterBlock);
    let all = recv.times(comm.comm.size())?;
    // SAFETY: the caller's promise.
    unsafe { scattered(operation, form, sendbuf, (all, own), Vec::new(), op, comm) }
}

/// A reduction of all elements, of which this rank gets its own. In place, the second side has all.
///
/// # Safety
/// The memory is as MPI says.
unsafe fn scattered(
    operation: Operation,
    form: Form,
    sendbuf: *const c_void,
    (all, own): (Elements, u64),
    counts: Vec<u64>,
    op: Op,
    comm: Comm,
) -> Done {
    let send = combined(sendbuf, &all)?;
    let op = Some(op::bind(&op, &all.datatype)?);
    let count = if matches!(send, Buffer::InPlace) { all.count } else { own };
    let recv = Buffer::Whole(Elements { count, ..all }.typed()?);
    // SAFETY: the caller's promise.
    unsafe { Call { op, counts, ..Call::new(operation, send, recv) }.go(form, &comm) }
}
