//! Partitioned messages (MPI 4.1 chapter 4).

use crate::arg::{self, Out};
use crate::call::{Done, Fail, Subject};
use crate::comm::Comm;
use crate::datatype::{Elements, Type};
use crate::face::{self, RawHandle};
use crate::request::{Place, RequestObject, State, Work, find_some};
use crate::slots::Object;
use gapless::raw::{Request, Typed};
use std::ffi::{c_int, c_void};

/// All of a message of so many partitions, each of `count` instances.
fn whole(buf: *const c_void, partitions: c_int, count: i64, datatype: Type) -> Done<(u32, Typed)> {
    let none = |_| Fail::new(face::ERR_ARG, format!("partitions is {partitions}"));
    let partitions = u32::try_from(partitions).map_err(none)?;
    let part = Elements::new(buf, arg::count(count, "count")?, datatype);
    Ok((partitions, part.times(partitions)?.typed()?))
}

/// A partitioned message: threads hand partitions over while others wait.
fn give(request: Place, comm: Comm, made: Option<Request>) {
    let work = made.map_or_else(|| Work::nobody(true), Work::One);
    request.give_state(Subject::OfComm(comm), State::from(work).shared());
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
    request: Place,
) -> Done {
    let made = comm.peer(dest)?.map(|dest| {
        let (partitions, typed) = whole(buf, partitions, count, datatype)?;
        // SAFETY: the caller's promise.
        Done::Ok(unsafe { Request::psend_init(&comm.comm, (partitions, &typed), dest, tag) }?)
    });
    let made = made.transpose()?;
    give(request, comm, made);
    Ok(())
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
    request: Place,
) -> Done {
    let made = comm.peer(source)?.map(|source| {
        let (partitions, typed) = whole(buf, partitions, count, datatype)?;
        // SAFETY: the caller's promise.
        Done::Ok(unsafe { Request::precv_init(&comm.comm, (partitions, &typed), source, tag) }?)
    });
    let made = made.transpose()?;
    give(request, comm, made);
    Ok(())
}

fn number(partition: c_int) -> Done<u32> {
    let negative = |_| Fail::new(face::ERR_ARG, format!("partition is {partition}"));
    u32::try_from(partition).map_err(negative)
}

/// A request, unless it is one of those that are over from the start.
fn partitioned(request: RawHandle) -> Done<Object<RequestObject>> {
    match find_some(request)? {
        Object::Predefined(..) => {
            Err(Fail::new(face::ERR_REQUEST, "the request has no partitions"))
        }
        object => Ok(object),
    }
}

/// Hands partitions over. Threads do so at once, and share the request.
fn ready(request: RawHandle, partitions: impl IntoIterator<Item = c_int>) -> Done {
    let object = partitioned(request)?;
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

pub(crate) fn pready_list(partitions: &[c_int], request: RawHandle) -> Done {
    match partitions {
        [] => Ok(()),
        partitions => ready(request, partitions.iter().copied()),
    }
}

pub(crate) fn parrived(request: RawHandle, partition: c_int, flag: Out<c_int>) -> Done {
    let object = partitioned(request)?;
    let state = object.look();
    let arrived = match state.raw() {
        Some(request) => number(partition).and_then(|partition| Ok(request.parrived(partition)?)),
        None => Ok(true),
    };
    flag.set(c_int::from(arrived.map_err(|fail| object.fails(fail))?));
    Ok(())
}
