//! Partitioned messages (MPI 4.1 chapter 4).

use super::subject;
use crate::arg::{self, HandleOut, Out};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::datatype::{Type, typed};
use crate::face::{self, RawHandle};
use crate::request::{self, Work, find_some};
use gapless::raw::{Request, Typed};
use std::ffi::{c_int, c_void};

/// All of a message of so many partitions, each of `count` instances.
///
/// # Safety
/// The memory is as MPI says.
unsafe fn whole(
    buf: *const c_void,
    partitions: c_int,
    count: i64,
    datatype: &Type,
) -> Done<(u32, Typed)> {
    let none = |_| Fail::new(face::ERR_ARG, format!("partitions is {partitions}"));
    let partitions = u32::try_from(partitions).map_err(none)?;
    let too_long = || Fail::new(face::ERR_COUNT, "the buffer is too long for the address space");
    let instances =
        arg::count(count, "count")?.checked_mul(partitions.into()).ok_or_else(too_long)?;
    // SAFETY: the caller's promise.
    Ok((partitions, unsafe { typed(buf, instances, datatype) }?))
}

pub(crate) unsafe fn psend_init(
    buf: *const c_void,
    partitions: c_int,
    count: i64,
    datatype: Type,
    dest: c_int,
    tag: c_int,
    comm: Comm,
    _info: impl Sized,
    request: HandleOut,
) -> Done {
    let Some(dest) = comm.peer(dest)? else {
        return request::give(request, subject(comm), Work::nobody(true));
    };
    // SAFETY: the caller's promise.
    let (partitions, typed) = unsafe { whole(buf, partitions, count, &datatype) }?;
    // SAFETY: the caller's promise.
    let made = unsafe { Request::psend_init(&comm.comm, (partitions, &typed), dest, tag) }?;
    request::give_shared(request, subject(comm), made)
}

pub(crate) unsafe fn precv_init(
    buf: *mut c_void,
    partitions: c_int,
    count: i64,
    datatype: Type,
    source: c_int,
    tag: c_int,
    comm: Comm,
    _info: impl Sized,
    request: HandleOut,
) -> Done {
    let Some(source) = comm.peer(source)? else {
        return request::give(request, subject(comm), Work::nobody(true));
    };
    // SAFETY: the caller's promise.
    let (partitions, typed) = unsafe { whole(buf, partitions, count, &datatype) }?;
    // SAFETY: the caller's promise.
    let made = unsafe { Request::precv_init(&comm.comm, (partitions, &typed), source, tag) }?;
    request::give_shared(request, subject(comm), made)
}

fn number(partition: c_int) -> Done<u32> {
    let negative = |_| Fail::new(face::ERR_ARG, format!("partition is {partition}"));
    u32::try_from(partition).map_err(negative)
}

/// Hands partitions over. Threads do so at once, and share the request.
fn ready(request: RawHandle, partitions: impl IntoIterator<Item = c_int>) -> Done {
    let object = find_some(request)?;
    let state = object.look();
    // To nobody, there is nothing to hand over.
    let Some(request) = state.raw() else { return Ok(()) };
    for partition in partitions {
        let done = number(partition).and_then(|partition| Ok(request.pready(partition)?));
        done.map_err(|fail| object.fails(fail))?;
    }
    Ok(())
}

pub(crate) fn pready(partition: c_int, request: RawHandle) -> Done {
    ready(request, [partition])
}

pub(crate) fn pready_range(low: c_int, high: c_int, request: RawHandle) -> Done {
    if low > high {
        let none = Fail::new(face::ERR_ARG, format!("partitions {low} to {high} are none"));
        return Err(find_some(request)?.fails(none));
    }
    ready(request, low..=high)
}

pub(crate) unsafe fn pready_list(
    length: c_int,
    partitions: *const c_int,
    request: RawHandle,
) -> Done {
    let length = arg::len(length, "length")?;
    if length == 0 {
        return Ok(());
    }
    let partitions = arg::pointer(partitions.cast_mut(), "array_of_partitions")?;
    // SAFETY: the caller's promise.
    let partitions = unsafe { std::slice::from_raw_parts(partitions, length) };
    ready(request, partitions.iter().copied())
}

pub(crate) fn parrived(request: RawHandle, partition: c_int, flag: Out<c_int>) -> Done {
    let object = find_some(request)?;
    let state = object.look();
    let arrived = match state.raw() {
        Some(request) => number(partition).and_then(|partition| Ok(request.parrived(partition)?)),
        None => Ok(true),
    };
    flag.set(c_int::from(arrived.map_err(|fail| object.fails(fail))?));
    Ok(())
}
