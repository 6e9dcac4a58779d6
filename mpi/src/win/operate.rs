//! Operations (MPI 4.1 §12.3). Those on `MPI_PROC_NULL` do nothing.

use super::{Target, Win};
use crate::call::{Done, Fail, Subject};
use crate::coll::Blocks;
use crate::datatype::{Elements, Type, typed};
use crate::face;
use crate::op::Op;
use crate::process;
use crate::request::{Place, Work};
use gapless::raw::Typed;
use gapless::{Primitive, ReduceOp};
use gapless_dtype::Contents;
use std::ffi::{c_int, c_void};

/// Does an operation on a target, if it is somebody: with a request, the form that has one, unless the plain one is
/// over when it returns.
macro_rules! operate {
    ($win:ident $target:ident $request:ident $over:expr, $plain:ident $asked:ident($($given:expr),*)($($op:ident)?)) => {
        match ($target.of(&$win)?, $request) {
            (None, None) => {}
            (None, Some(request)) => request.give(Subject::Win($win.handle()), Work::nobody(false)),
            (Some((rank, at, there)), request) if request.is_none() || $over => {
                // SAFETY: of what is `$over`, during the call is enough; else the caller's promise lasts until the
                // epoch has ended, or a flush.
                unsafe { $win.window.$plain($($given,)* rank, at, there $(, $op)?) }?;
                request.into_iter().for_each(Place::give_over);
            }
            // The arm before has it.
            (Some(_), None) => {}
            (Some((rank, at, there)), Some(request)) => {
                // SAFETY: the caller's promise, which lasts until the request has ended.
                let begun = unsafe { $win.window.$asked($($given,)* rank, at, there $(, $op)?) }?;
                request.give(Subject::Win($win.handle()), Work::One(begun));
            }
        }
    };
}

pub(crate) unsafe fn put(
    request: Option<Place>,
    origin: Elements,
    target: Target,
    win: Win,
) -> Done {
    let origin = origin.typed()?;
    operate!(win target request !process::has_devices(), put rput(&origin)());
    Ok(())
}

pub(crate) unsafe fn get(request: Option<Place>, into: Elements, target: Target, win: Win) -> Done {
    let into = into.typed()?;
    operate!(win target request false, get rget(&into)());
    Ok(())
}

pub(crate) unsafe fn accumulate(
    request: Option<Place>,
    origin: Elements,
    target: Target,
    op: Op,
    win: Win,
) -> Done {
    let (op, origin) = (op.reduce_op()?, origin.typed()?);
    operate!(win target request true, accumulate raccumulate(&origin)(op));
    Ok(())
}

pub(crate) unsafe fn get_accumulate(
    request: Option<Place>,
    origin: Blocks,
    result: Elements,
    target: Target,
    op: Op,
    win: Win,
) -> Done {
    let (op, result) = (op.reduce_op()?, result.typed()?);
    // An operation that does nothing ignores what is given (MPI 4.1 §12.3.4).
    let origin = match op {
        ReduceOp::NoOp => None,
        _ => Some(origin.elements()?.typed()?),
    };
    operate!(win target request false, get_accumulate rget_accumulate(origin.as_ref(), &result)(op));
    Ok(())
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
    let (op, element, into) = (op.reduce_op()?, basic(&datatype)?, typed(result, 1, &datatype)?);
    let from = match op {
        ReduceOp::NoOp => None,
        _ => Some(typed(origin, 1, &datatype)?),
    };
    let Some(rank) = win.target(rank)? else { return Ok(()) };
    let (from, window) = (from.as_ref(), &win.window);
    if is_near(&into) && from.is_none_or(is_near) {
        let (origin, result) = (from.map(|_| origin.cast()), result.cast());
        // SAFETY: the caller's promise, which lasts until the epoch has ended, or a flush.
        unsafe { window.fetch_and_op(origin, result, element, rank, displacement, op) }?;
    } else {
        let target = (datatype.committed()?, 1);
        // SAFETY: as above.
        unsafe { window.get_accumulate(from, &into, rank, displacement, target, op) }?;
    }
    Ok(())
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
    for it in [origin, compare, result] {
        if !is_near(&typed(it, 1, &datatype)?) {
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
