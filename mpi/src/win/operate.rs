//! Operations (MPI 4.1 §12.3). Those on `MPI_PROC_NULL` do nothing.

use super::Win;
use crate::arg::{self, HandleOut};
use crate::call::{Done, Fail, Subject};
use crate::datatype::{Type, typed};
use crate::face::{self, RawHandle};
use crate::op::Op;
use crate::request::{self, Work};
use gapless::raw::{Request, Typed};
use gapless::{Primitive, ReduceOp};
use gapless_dtype::Contents;
use std::ffi::{c_int, c_void};

/// The request of an operation; of none, on nobody.
fn give(win: &Win, begun: Option<Request>, out: HandleOut) -> Done {
    let work = begun.map_or_else(|| Work::nobody(false), Work::One);
    request::give(out, Subject::Win(win.handle()), work)
}

/// What is given; an operation that does nothing ignores that (MPI 4.1 §12.3.4).
///
/// # Safety
/// Unless it is ignored, the memory is as MPI says of such an argument.
unsafe fn given(
    op: ReduceOp,
    origin: *const c_void,
    count: u64,
    datatype: RawHandle,
) -> Done<Option<Typed>> {
    if op == ReduceOp::NoOp {
        return Ok(None);
    }
    let datatype = arg::datatype(datatype, "origin_datatype")?;
    // SAFETY: the caller's promise.
    unsafe { typed(origin, count, &datatype) }.map(Some)
}

pub(crate) unsafe fn put(
    origin: *const c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    win: Win,
) -> Done {
    // SAFETY: the caller's promise.
    let origin = unsafe { typed(origin, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    // SAFETY: the caller's promise.
    Ok(unsafe { win.window.put(&origin, rank, displacement, target) }?)
}

pub(crate) unsafe fn rput(
    origin: *const c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    win: Win,
    request: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    let origin = unsafe { typed(origin, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let rank = win.target(rank)?;
    // SAFETY: the caller's promise.
    let begun = rank.map(|rank| unsafe { win.window.rput(&origin, rank, displacement, target) });
    give(&win, begun.transpose()?, request)
}

pub(crate) unsafe fn get(
    into: *mut c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    win: Win,
) -> Done {
    // SAFETY: the caller's promise.
    let into = unsafe { typed(into, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    // SAFETY: the caller's promise, which lasts until the epoch has ended, or a flush.
    Ok(unsafe { win.window.get(&into, rank, displacement, target) }?)
}

pub(crate) unsafe fn rget(
    into: *mut c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    win: Win,
    request: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    let into = unsafe { typed(into, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let rank = win.target(rank)?;
    // SAFETY: the caller's promise, which lasts until the request has ended.
    let begun = rank.map(|rank| unsafe { win.window.rget(&into, rank, displacement, target) });
    give(&win, begun.transpose()?, request)
}

pub(crate) unsafe fn accumulate(
    origin: *const c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    op: Op,
    win: Win,
) -> Done {
    let op = op.reduce_op()?;
    // SAFETY: the caller's promise.
    let origin = unsafe { typed(origin, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    // SAFETY: the caller's promise.
    Ok(unsafe { win.window.accumulate(&origin, rank, displacement, target, op) }?)
}

pub(crate) unsafe fn raccumulate(
    origin: *const c_void,
    count: u64,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    op: Op,
    win: Win,
    request: HandleOut,
) -> Done {
    let op = op.reduce_op()?;
    // SAFETY: the caller's promise.
    let origin = unsafe { typed(origin, count, &datatype) }?;
    let target = (target_type.committed()?, target_count);
    let begun = win.target(rank)?.map(|rank| {
        // SAFETY: the caller's promise.
        unsafe { win.window.raccumulate(&origin, rank, displacement, target, op) }
    });
    give(&win, begun.transpose()?, request)
}

pub(crate) unsafe fn get_accumulate(
    origin: *const c_void,
    count: u64,
    datatype: RawHandle,
    result: *mut c_void,
    result_count: u64,
    result_type: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    op: Op,
    win: Win,
) -> Done {
    let op = op.reduce_op()?;
    // SAFETY: the caller's promise.
    let result = unsafe { typed(result, result_count, &result_type) }?;
    // SAFETY: as above.
    let origin = unsafe { given(op, origin, count, datatype) }?;
    let target = (target_type.committed()?, target_count);
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    let (origin, window) = (origin.as_ref(), &win.window);
    // SAFETY: the caller's promise, which lasts until the epoch has ended, or a flush.
    Ok(unsafe { window.get_accumulate(origin, &result, rank, displacement, target, op) }?)
}

pub(crate) unsafe fn rget_accumulate(
    origin: *const c_void,
    count: u64,
    datatype: RawHandle,
    result: *mut c_void,
    result_count: u64,
    result_type: Type,
    rank: c_int,
    displacement: i64,
    target_count: u64,
    target_type: Type,
    op: Op,
    win: Win,
    request: HandleOut,
) -> Done {
    let op = op.reduce_op()?;
    // SAFETY: the caller's promise.
    let result = unsafe { typed(result, result_count, &result_type) }?;
    // SAFETY: as above.
    let origin = unsafe { given(op, origin, count, datatype) }?;
    let target = (target_type.committed()?, target_count);
    let begun = win.target(rank)?.map(|rank| {
        let (origin, window) = (origin.as_ref(), &win.window);
        // SAFETY: the caller's promise, which lasts until the request has ended.
        unsafe { window.rget_accumulate(origin, &result, rank, displacement, target, op) }
    });
    give(&win, begun.transpose()?, request)
}

/// The basic type that a predefined datatype is.
fn basic(datatype: &Type) -> Done<Primitive> {
    match datatype.datatype.contents() {
        Contents::Primitive(primitive) => Ok(primitive),
        _ => Err(Fail::new(face::ERR_TYPE, "the datatype is no predefined one")),
    }
}

/// Whether it is one element in memory of the host.
fn is_near(typed: &Typed) -> bool {
    typed.as_contiguous().is_some_and(|region| region.as_ptr().is_some())
}

pub(crate) unsafe fn fetch_and_op(
    origin: *const c_void,
    result: *mut c_void,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    op: Op,
    win: Win,
) -> Done {
    let op = op.reduce_op()?;
    let element = basic(&datatype)?;
    // SAFETY: the caller's promise.
    let into = unsafe { typed(result, 1, &datatype) }?;
    // SAFETY: as above.
    let from = unsafe { given(op, origin, 1, datatype.handle()) }?;
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    let from = from.as_ref();
    if is_near(&into) && from.is_none_or(is_near) {
        let origin = from.map(|_| origin.cast());
        let result = result.cast();
        // SAFETY: the caller's promise, which lasts until the epoch has ended, or a flush.
        return Ok(unsafe {
            win.window.fetch_and_op(origin, result, element, rank, displacement, op)
        }?);
    }
    let target = (datatype.committed()?, 1);
    // SAFETY: as above.
    Ok(unsafe { win.window.get_accumulate(from, &into, rank, displacement, target, op) }?)
}

pub(crate) unsafe fn compare_and_swap(
    origin: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    datatype: Type,
    rank: c_int,
    displacement: i64,
    win: Win,
) -> Done {
    let element = basic(&datatype)?;
    // SAFETY: the caller's promise.
    let all = [origin, compare, result].map(|it| unsafe { typed(it, 1, &datatype) });
    for one in all {
        if !is_near(&one?) {
            let why = "compare and swap with memory of a device at the origin";
            return Err(Fail::new(face::ERR_UNSUPPORTED_OPERATION, why));
        }
    }
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    let (origin, compare, result) = (origin.cast(), compare.cast(), result.cast());
    let window = &win.window;
    // SAFETY: the caller's promise, which lasts until the epoch has ended, or a flush.
    Ok(unsafe { window.compare_and_swap(origin, compare, result, element, rank, displacement) }?)
}
